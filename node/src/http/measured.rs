//! Counts, measures and traces the requests of a port, where somebody reads metrics or spans.

use crate::telemetry::metrics::metrics;
use crate::telemetry::{context, spans};
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use opentelemetry::KeyValue;
use std::time::Instant;
use tracing::Instrument;

/// The label of a request that no route matches.
const NO_ROUTE: &str = "none";

/// Adds the measuring to a port's routes.
pub(crate) fn measured(router: Router, port: &'static str) -> Router {
    router.layer(from_fn_with_state(port, measure))
}

async fn measure(State(port): State<&'static str>, request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or_else(|| NO_ROUTE.to_owned(), |path| path.as_str().to_owned());
    let span = spans::request(port, method(request.method()), &route, context::received(request.headers()));
    let begun = Instant::now();
    let response = next.run(request).instrument(span.clone()).await;
    let time = begun.elapsed();
    let status = response.status().as_u16();
    spans::answered(&span, status);
    let labels =
        [KeyValue::new("port", port), KeyValue::new("route", route), KeyValue::new("status", i64::from(status))];
    metrics().http_duration.record(time, &labels[..2]);
    metrics().http_requests.add(1, &labels);
    response
}

/// The method, as a word of a closed set: clients may send any.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "_OTHER",
    }
}
