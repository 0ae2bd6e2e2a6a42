//! Profiles: making, listing, showing, replacing and deleting them.

use super::body::{self, check_name, check_text};
use crate::app::App;
use crate::http::pagination::{Items, Page};
use crate::http::path_id::{Id, Named};
use crate::http::problem::Problem;
use crate::sandboxes;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use coordinator::Error;
use coordinator::accounts::{Profile, ProfileFields};
use engine::ids::ProfileId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Deserialize)]
struct Sent {
    name: String,
    primary_provider: String,
    #[serde(default)]
    fallback_providers: Vec<String>,
    #[serde(default)]
    mcp_servers: Vec<String>,
    #[serde(default)]
    allowed_tools: Vec<String>,
    #[serde(default)]
    available_sandboxes: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Made {
    id: ProfileId,
    name: String,
    created_at: String,
}

#[derive(Serialize)]
pub(super) struct ProfileView {
    id: ProfileId,
    #[serde(flatten)]
    fields: ProfileFields,
    created_at: String,
    updated_at: String,
}

impl ProfileView {
    fn new(profile: Profile) -> Self {
        Self {
            id: profile.id,
            fields: profile.fields,
            created_at: profile.created_at.rfc3339(),
            updated_at: profile.updated_at.rfc3339(),
        }
    }
}

async fn sent(headers: &HeaderMap, body: Body) -> Result<ProfileFields, Problem> {
    let sent: Sent = body::read(headers, body).await?;
    check_name("name", &sent.name)?;
    check_text("primary_provider", &sent.primary_provider)?;
    let lists = [
        ("fallback_providers", &sent.fallback_providers),
        ("mcp_servers", &sent.mcp_servers),
        ("allowed_tools", &sent.allowed_tools),
        ("available_sandboxes", &sent.available_sandboxes),
    ];
    for (field, list) in lists {
        list.iter().try_for_each(|text| check_text(&format!("an entry of {field}"), text))?;
    }
    Ok(ProfileFields {
        name: sent.name,
        primary_provider: sent.primary_provider,
        fallback_providers: sent.fallback_providers,
        mcp_servers: sent.mcp_servers,
        allowed_tools: sent.allowed_tools,
        available_sandboxes: sent.available_sandboxes,
    })
}

fn refused(error: Error) -> Problem {
    match error {
        Error::Duplicate => Problem::duplicate_profile_name(),
        Error::NotFound => ProfileId::absent(),
        Error::PreconditionFailed => Problem::profile_in_use(),
        error @ (Error::Unavailable(_)
        | Error::Failed(_)
        | Error::Unknown
        | Error::CoordinationUnavailable(_)
        | Error::Fenced
        | Error::NotOpen(_)
        | Error::Unreadable(_)
        | Error::Unusable(_)) => error.into(),
    }
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Made>), Problem> {
    let fields = sent(&headers, body).await?;
    let made = app.accounts().create_profile(fields).await.map_err(refused)?;
    tracing::info!(profile.id = %made.id, "profile made");
    sandboxes::images::provision(&app, &made.fields.available_sandboxes).await?;
    let answer = Made { id: made.id, name: made.fields.name, created_at: made.created_at.rfc3339() };
    Ok((StatusCode::CREATED, Json(answer)))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    page: Page<ProfileId>,
) -> Result<Json<Items<ProfileView>>, Problem> {
    let (profiles, next) = app.accounts().profiles(page.cursor, page.limit).await?;
    Ok(Json(Items::new(profiles.into_iter().map(ProfileView::new).collect(), next)))
}

pub(super) async fn show(State(app): State<Arc<App>>, Id(id): Id<ProfileId>) -> Result<Json<ProfileView>, Problem> {
    let profile = app.accounts().profile(id).await.map_err(refused)?;
    Ok(Json(ProfileView::new(profile)))
}

pub(super) async fn replace(
    State(app): State<Arc<App>>,
    Id(id): Id<ProfileId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ProfileView>, Problem> {
    let fields = sent(&headers, body).await?;
    let profile = app.accounts().replace_profile(id, fields).await.map_err(refused)?;
    tracing::info!(profile.id = %id, "profile replaced");
    sandboxes::images::provision(&app, &profile.fields.available_sandboxes).await?;
    Ok(Json(ProfileView::new(profile)))
}

pub(super) async fn remove(State(app): State<Arc<App>>, Id(id): Id<ProfileId>) -> Result<StatusCode, Problem> {
    app.accounts().delete_profile(id).await.map_err(refused)?;
    tracing::info!(profile.id = %id, "profile deleted");
    Ok(StatusCode::NO_CONTENT)
}
