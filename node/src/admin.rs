//! The admin port: profiles, client keys, sessions, and what the node was configured with (docs/api.md 10).
//!
//! Every request is authenticated first, whatever its path, except the one for the OpenAPI document. No answer holds a
//! secret, except the one that shows a new client key. `lifecycle` serves the router, and the command line prepares the
//! admin key.

mod body;
pub(crate) mod key;
mod keys;
mod profiles;
mod registries;
mod sandboxes;
mod sessions;
#[cfg(test)]
mod tests;

use crate::app::App;
use crate::config::AdminAuth;
use crate::http::JSON;
use crate::http::auth::bearer;
use crate::http::problem::Problem;
use crate::secret::{Kind, constant_time_eq, digest};
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{delete, get, post};
use std::sync::Arc;

/// The admin port's routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/admin/v1/profiles", get(profiles::list).post(profiles::create))
        .route("/admin/v1/profiles/{id}", get(profiles::show).put(profiles::replace).delete(profiles::remove))
        .route("/admin/v1/keys", get(keys::list).post(keys::create))
        .route("/admin/v1/keys/{id}", delete(keys::revoke))
        .route("/admin/v1/sessions", get(sessions::list))
        .route("/admin/v1/sessions/{id}", delete(sessions::close))
        .route("/admin/v1/sessions/{id}/purge", post(sessions::purge))
        .route("/admin/v1/sessions/{id}/events", get(sessions::events))
        .route("/admin/v1/sessions/{id}/owner", get(sessions::owner))
        .route("/admin/v1/nodes", get(sessions::nodes))
        .route("/admin/v1/mcp-servers", get(registries::mcp_servers))
        .route("/admin/v1/providers", get(registries::providers))
        .route("/admin/v1/config", get(registries::config))
        .route("/admin/v1/sandbox-status", get(registries::sandbox_status))
        .route("/admin/v1/sandboxes", get(sandboxes::list))
        .route("/admin/v1/sandboxes/{id}", delete(sandboxes::stop))
        .route("/admin/v1/subagents", get(sandboxes::list_subagents))
        .route("/admin/v1/subagents/{id}", delete(sandboxes::cancel))
        .fallback(async || Problem::no_such_path())
        .method_not_allowed_fallback(async || Problem::no_such_method())
        .layer(from_fn_with_state(app.clone(), authenticate))
        .route("/openapi.json", get(|| async { (JSON, include_str!("http/openapi/admin.json")) }))
        .method_not_allowed_fallback(async || Problem::no_such_method())
        .with_state(app)
}

async fn authenticate(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, Problem> {
    match app.config.admin_auth {
        AdminAuth::Disabled => {}
        AdminAuth::Required => {
            let token = bearer(request.headers()).ok_or_else(|| Problem::missing_key("<admin key>"))?;
            // Read for every request, so that a key which was replaced through another node is refused at once.
            let valid = app.accounts().admin_key().await?;
            let shown = digest(token);
            if !Kind::Admin.matches(token) || !valid.is_some_and(|valid| constant_time_eq(&valid, &shown)) {
                return Err(Problem::invalid_admin_key());
            }
        }
    }
    Ok(next.run(request).await)
}
