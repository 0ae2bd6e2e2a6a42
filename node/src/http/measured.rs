//! Counts and measures the requests of a port, where somebody reads the metrics.

use crate::telemetry::metrics::metrics;
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use opentelemetry::KeyValue;
use std::time::Instant;

/// The label of a request that no route matches.
const NO_ROUTE: &str = "none";

/// Adds the measuring to a port's routes.
pub(crate) fn measured(router: Router, port: &'static str) -> Router {
    router.layer(from_fn_with_state(port, measure))
}

async fn measure(State(port): State<&'static str>, request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let route = KeyValue::new("route", matched.map_or_else(|| NO_ROUTE.to_owned(), |path| path.as_str().to_owned()));
    let begun = Instant::now();
    let response = next.run(request).await;
    let time = begun.elapsed();
    let status = i64::from(response.status().as_u16());
    let labels = [KeyValue::new("port", port), route, KeyValue::new("status", status)];
    metrics().http_duration.record(time, &labels[..2]);
    metrics().http_requests.add(1, &labels);
    response
}
