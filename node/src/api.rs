//! The client port (docs/api.md 12 and 13): REST for management, JSON-RPC over NDJSON for the live session.
//!
//! Every handler authenticates before it reads a body, and the handlers of a session accept only a session key of that
//! session. `lifecycle` serves the router; nothing else calls into this module.

mod caller;
mod calls;
mod drivers;
mod follow;
mod rpc;
mod sandboxes;
mod sessions;
mod stream;
mod subagents;
mod subscribe;

use crate::app::App;
use crate::http::JSON;
use crate::http::problem::Problem;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use std::sync::Arc;
use std::time::Duration;
use tower_http::catch_panic::CatchPanicLayer;

/// The client port's routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/healthz", get(|| async {}))
        .route("/readyz", get(ready))
        .route("/openapi.json", get(|| async { (JSON, include_str!("http/openapi/client.json")) }))
        .route("/api/v1/meta", get(meta))
        .route("/api/v1/sessions", post(sessions::open))
        .route("/api/v1/sessions/{id}", delete(sessions::close))
        .route("/api/v1/sessions/{id}/join", post(sessions::join))
        .route("/api/v1/sessions/{id}/participants", get(sessions::participants))
        .route("/api/v1/sessions/{id}/events", get(sessions::events))
        .route("/api/v1/sessions/{id}/rpc", post(rpc::call))
        .method_not_allowed_fallback(async || Problem::no_such_method())
        .fallback(async || Problem::no_such_path())
        .layer(CatchPanicLayer::custom(|_| panicked()))
        .with_state(app)
}

async fn meta() -> Response {
    Json(serde_json::json!({"version": env!("CARGO_PKG_VERSION"), "api_versions": ["v1"]})).into_response()
}

/// How long the database may take to answer before it counts as unavailable.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a load balancer should send requests to this node: if not, 503 with the reasons. Problems with which the
/// node is still useful are listed in `notes`.
async fn ready(State(app): State<Arc<App>>) -> Response {
    let mut reasons = Vec::new();
    if app.stop.is_cancelled() {
        reasons.push("draining");
    }
    if !app.cluster.has_joined() {
        reasons.push("not in the cluster yet");
    }
    let asked = tokio::time::timeout(READY_TIMEOUT, async { app.accounts().admin_key().await });
    if !matches!(asked.await, Ok(Ok(_))) {
        reasons.push("the database is not available");
    }
    let notes = app.cluster.warnings().await;
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::json!({"ready": reasons.is_empty(), "reasons": reasons, "notes": notes});
    (status, Json(body)).into_response()
}

fn panicked() -> Response {
    tracing::error!("a request handler panicked");
    Problem::internal().into_response()
}
