//! `POST …/rpc`: authentication, the envelope, then the method.

use super::caller::Caller;
use super::{calls, drivers, sandboxes, sessions, stream, subagents, subscribe};
use crate::app::App;
use crate::http::body;
use crate::http::problem::Problem;
use crate::telemetry::context;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use engine::json::Raw;
use engine::rpc::{self, Envelope, Method};
use std::sync::Arc;

pub(super) async fn call(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (session, key) = sessions::authenticated(&app, &headers, &id).await?;
    let body = body::read(body, app.config.max_body).await?;
    let Envelope { id, method, params } = match rpc::parse(&body) {
        Ok(envelope) => envelope,
        Err(malformed) => return Ok(stream::whole(rpc::error(&malformed.id, &malformed.error))),
    };
    drop(body);
    let method = match method {
        Ok(method) => method,
        Err(error) => return Ok(stream::whole(id.map_or_else(String::new, |id| rpc::error(&id, &error)))),
    };
    // Where spans are exported, the call's span becomes the child of the request's, which is in the caller's trace.
    let traceparent = context::current().or_else(|| context::received(&headers).map(str::to_owned));
    let caller = Caller { app, session, key, traceparent };
    Ok(dispatch(caller, method, id, &params).await)
}

async fn dispatch(caller: Caller, method: Method, id: Option<Raw>, params: &Raw) -> Response {
    let result = match method {
        Method::SendMessage | Method::Compact => return calls::answer(caller, method, id, params).await,
        Method::Subscribe => {
            return subscribe::answer(&caller.app, caller.session, caller.key, id.as_ref(), params).await;
        }
        Method::Unsubscribe => subscribe::unsubscribe(&caller, params),
        Method::RegisterDriver => drivers::register(&caller, params).await,
        Method::StartRemoteSandbox => sandboxes::start(&caller, params).await,
        Method::StopRemoteSandbox => sandboxes::stop(&caller, params).await,
        Method::ExecRemoteSandbox => sandboxes::exec(&caller, params).await,
        Method::ReportLocalSandbox => sandboxes::report_local(&caller, params).await,
        Method::ReportLocalSubagent => subagents::report_local(&caller, params).await,
        Method::CancelSubagent => subagents::cancel(&caller, params).await,
        Method::UpdateClientTools => drivers::update_tools(&caller, params).await,
    };
    let frame = match (id, result) {
        (None, _) => String::new(),
        (Some(id), Ok(result)) => rpc::result(&id, &result),
        (Some(id), Err(error)) => rpc::error(&id, &error),
    };
    stream::whole(frame)
}
