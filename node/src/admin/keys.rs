//! Client keys: making, listing and revoking them.

use super::body::{self, check_name};
use crate::app::App;
use crate::http::pagination::{Items, Page};
use crate::http::path_id::{Id, Named};
use crate::http::problem::Problem;
use crate::secret::{Kind, digest, visible_prefix};
use crate::session::revocation;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use coordinator::Error;
use coordinator::accounts::{ClientKey, Revoked};
use engine::ids::{KeyId, ProfileId};
use engine::time::UnixMillis;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Deserialize)]
struct Sent {
    name: String,
    profile_id: String,
}

/// The answer to making a key; the only one that holds a secret.
#[derive(Serialize)]
struct Made<'a> {
    id: KeyId,
    name: &'a str,
    key: &'a str,
    prefix: &'a str,
    profile_id: ProfileId,
    created_at: String,
}

#[derive(Serialize)]
pub(super) struct KeyView {
    id: KeyId,
    name: String,
    prefix: String,
    profile_id: ProfileId,
    created_at: String,
    last_used_at: Option<String>,
}

impl KeyView {
    fn new(key: ClientKey) -> Self {
        Self {
            id: key.id,
            name: key.name,
            prefix: key.prefix,
            profile_id: key.profile,
            created_at: key.created_at.rfc3339(),
            last_used_at: key.last_used_at.map(UnixMillis::rfc3339),
        }
    }
}

pub(super) async fn create(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    let sent: Sent = body::read(&headers, body).await?;
    check_name("name", &sent.name)?;
    let profile = sent.profile_id.parse().map_err(|_| Problem::profile_for_key_missing())?;
    let secret = Kind::Client.generate()?;
    let prefix = visible_prefix(&secret);
    let made = app.accounts().create_key(sent.name, prefix, digest(secret.expose_secret()), profile).await;
    let made = made.map_err(|error| match error {
        Error::NotFound => Problem::profile_for_key_missing(),
        error => error.into(),
    })?;
    tracing::info!(key.id = %made.id, profile.id = %profile, "client key made");
    let answer = Made {
        id: made.id,
        name: &made.name,
        key: secret.expose_secret(),
        prefix: &made.prefix,
        profile_id: profile,
        created_at: made.created_at.rfc3339(),
    };
    let mut response = (StatusCode::CREATED, Json(answer)).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

pub(super) async fn list(State(app): State<Arc<App>>, page: Page<KeyId>) -> Result<Json<Items<KeyView>>, Problem> {
    let (keys, next) = app.accounts().keys(page.cursor, page.limit).await?;
    Ok(Json(Items::new(keys.into_iter().map(KeyView::new).collect(), next)))
}

pub(super) async fn revoke(State(app): State<Arc<App>>, Id(id): Id<KeyId>) -> Result<StatusCode, Problem> {
    // A task, because all of it must happen even if the administrator does not wait.
    let node = app.clone();
    let revoking = app.tasks.spawn(async move {
        let auth = node.auth.clone();
        let revoked = node.accounts().revoke_key(id, move || auth.forget(id)).await?;
        // Also for a key that was revoked before, because the node that did it may have died before it got this far.
        revocation::follow_up(&node, id).await?;
        Ok::<_, Error>(revoked)
    });
    let revoked = revoking.await.map_err(|error| {
        tracing::error!(error = %error, key.id = %id, "a revocation broke off");
        Problem::internal()
    })?;
    match revoked {
        Ok(Revoked::Now) => {
            tracing::info!(key.id = %id, "client key revoked");
            Ok(StatusCode::NO_CONTENT)
        }
        Ok(Revoked::Before) | Err(Error::NotFound) => Err(KeyId::absent()),
        Err(error) => Err(error.into()),
    }
}
