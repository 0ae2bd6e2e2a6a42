//! `POST …/rpc`: authentication, the envelope, then the method.

use super::{calls, reports, sessions, stream, subscribe, trace};
use crate::app::App;
use crate::body;
use crate::problem::Problem;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use coordinator::log;
use engine::ids::{KeyId, SessionId};
use engine::json::Raw;
use engine::rpc::{self, Envelope, Method, RpcError};
use std::sync::Arc;

/// Who calls, on what.
pub(super) struct Caller {
    pub app: Arc<App>,
    pub session: SessionId,
    pub key: KeyId,
    pub traceparent: Option<String>,
}

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
    let caller = Caller { app, session, key, traceparent: trace::parent(&headers) };
    Ok(dispatch(caller, method, id, &params).await)
}

async fn dispatch(caller: Caller, method: Method, id: Option<Raw>, params: &Raw) -> Response {
    let result = match method {
        Method::SendMessage | Method::Compact => return calls::answer(caller, method, id, params).await,
        Method::Subscribe => {
            return subscribe::answer(&caller.app, caller.session, caller.key, id.as_ref(), params).await;
        }
        Method::Unsubscribe => reports::unsubscribe(&caller, params),
        Method::RegisterDriver => reports::register_driver(&caller, params).await,
        Method::StartRemoteSandbox => reports::start_sandbox(&caller, params).await,
        Method::StopRemoteSandbox => reports::stop_sandbox(&caller, params).await,
        Method::ExecRemoteSandbox => reports::exec_sandbox(&caller, params).await,
        Method::ReportLocalSandbox => reports::local_sandbox(&caller, params).await,
        Method::ReportLocalSubagent => reports::local_subagent(&caller, params).await,
        Method::CancelSubagent => reports::cancel_subagent(&caller, params).await,
        Method::UpdateClientTools => reports::update_tools(&caller, params).await,
    };
    let frame = match (id, result) {
        (None, _) => String::new(),
        (Some(id), Ok(result)) => rpc::result(&id, &result),
        (Some(id), Err(error)) => rpc::error(&id, &error),
    };
    stream::whole(frame)
}

impl Caller {
    /// What the checks that come before params look at.
    pub async fn admission(&self) -> Result<Admission, RpcError> {
        let admission = self.app.log.admission(self.session, self.key).await;
        admission.map(Admission).map_err(|error| super::failed(&error))
    }
}

/// The caller and its session, as far as every method asks.
pub(super) struct Admission(log::Admission);

impl Admission {
    /// `-32001` unless the caller is a registered driver.
    pub fn driver(&self, method: Method) -> Result<(), RpcError> {
        if self.0.driver { Ok(()) } else { Err(RpcError::driver_not_registered(method)) }
    }

    /// `-32000` unless the session is open.
    pub fn open(&self) -> Result<(), RpcError> {
        match self.0.state {
            log::State::Open => Ok(()),
            state => Err(RpcError::not_open(state.shown())),
        }
    }
}
