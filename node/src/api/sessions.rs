//! `/api/v1/sessions`: opening, joining and closing a session, its participants and its events.

use crate::app::App;
use crate::http::body;
use crate::http::pagination::Page;
use crate::http::path_id::Named;
use crate::http::problem::Problem;
use crate::secret::{Kind, digest};
use crate::session;
use crate::telemetry::spans;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use coordinator::Error;
use coordinator::accounts::Profile;
use coordinator::log::{self, NewSession, Side};
use engine::event::NewEvent;
use engine::event::payload::{EventPayload, SessionError, SessionJoin, SessionOpen};
use engine::ids::{EventId, KeyId, ProfileId, SessionId};
use engine::open::{Compaction, Declared, Refusal, parse_join, parse_open};
use engine::provider::Entry;
use engine::toolbox::McpTool;
use engine::tools::{Declarations, Forbidden};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use std::sync::Arc;
use tracing::Instrument;

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::BadRequest(detail) => Problem::bad_request(detail),
            Refusal::InvalidSubagentTools(detail) => Problem::invalid_subagent_tools(detail),
            Refusal::Forbidden(forbidden @ Forbidden::Reserved) => Problem::reserved_tool_name(forbidden.to_string()),
            Refusal::Forbidden(forbidden @ Forbidden::NotAllowed(_)) => {
                Problem::tool_not_allowed(forbidden.to_string())
            }
        }
    }
}

fn fresh_event(key: KeyId, payload: &impl EventPayload) -> NewEvent {
    NewEvent::of(EventId(coordinator::fresh_id()), key, payload)
}

pub(super) async fn open(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    let client = app.auth.client(&headers).await?;
    body::require_json(&headers)?;
    let open = parse_open(&body::read(body, app.config.max_body).await?)?;
    let profile = app.accounts().profile(client.profile).await;
    let (profile, provider) = usable(&app, client.key, client.profile, profile, &open.declared).await?;
    let declarations = open.declared.check(&profile.fields.allowed_tools)?;
    let id = SessionId(coordinator::fresh_id());
    // A task of its own, because it must end even if the client does not wait: MCP connections are made for the
    // session.
    let span = spans::session(id, &profile.fields.name);
    let create = create(Arc::clone(&app), id, client.key, profile, provider, open, declarations);
    let created = app.tasks.spawn(create.instrument(span));
    created.await.unwrap_or_else(|_| Err(Problem::internal()))
}

async fn create(
    app: Arc<App>,
    id: SessionId,
    key: KeyId,
    profile: Profile,
    provider: Entry,
    open: engine::open::Open,
    declarations: Declarations,
) -> Result<Response, Problem> {
    let mcp_tools = mcp_tools(&app, id, &profile).await;
    let secret = Kind::Session.generate()?;
    let made = app.log.create(NewSession {
        id,
        profile: profile.id,
        key,
        state: log::State::Open,
        event: fresh_event(key, &introduction(&open.declared, &declarations)),
        client_version: open.declared.client_version,
        compaction: open.compaction,
        mcp_tools,
        declarations: declarations.store(),
        digest: Some(digest(secret.expose_secret()).0),
    });
    let made = made.await;
    if made.is_err() || app.cluster.is_shared() {
        // In a cluster the node that owns the session makes its own connections.
        app.mcp.close(id).await;
    }
    made?;
    Ok(opened(id, &secret, &profile, &provider))
}

pub(super) async fn join(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let client = app.auth.client(&headers).await?;
    body::require_json(&headers)?;
    let declared = parse_join(&body::read(body, app.config.max_body).await?)?;
    let id: SessionId = id.parse().map_err(|_| SessionId::absent())?;
    let absent = |error| if matches!(error, Error::NotFound) { SessionId::absent() } else { error.into() };
    let row = app.log.row(id).await.map_err(absent)?;
    if row.state != log::State::Open {
        return Err(Problem::session_already(row.state.public_name()));
    }
    let record = app.log.record(id, client.key).await.map_err(absent)?;
    if record.profile != client.profile {
        return Err(Problem::profile_mismatch());
    }
    let profile = app.accounts().profile(record.profile).await;
    let (profile, provider) = usable(&app, client.key, record.profile, profile, &declared).await?;
    let declarations = declared.check(&profile.fields.allowed_tools)?;
    let secret = Kind::Session.generate()?;
    let event = fresh_event(client.key, &SessionJoin(introduction(&declared, &declarations)));
    let side = Side::Join { declarations: declarations.store(), digest: digest(secret.expose_secret()).0 };
    app.log.append_free(id, client.key, vec![event], side).await.map_err(|error| match error {
        Error::NotOpen(state) => Problem::session_already(state),
        error => error.into(),
    })?;
    Ok(opened(id, &secret, &profile, &provider))
}

pub(super) async fn participants(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (session, _) = authenticated(&app, &headers, &id).await?;
    let drivers = app.log.drivers(session).await?;
    Ok(Json(json!({"drivers": drivers})).into_response())
}

pub(super) async fn events(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let (session, _) = authenticated(&app, &headers, &id).await?;
    Ok(crate::http::event_page::page(&app.log, session, Page::of(&uri)?).await?)
}

pub(super) async fn close(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (id, key) = authenticated(&app, &headers, &id).await?;
    session::close::close(&app, id, key, "client_close").await.map_err(|error| match error {
        Error::NotOpen(state) => Problem::session_already(state),
        error => error.into(),
    })?;
    Ok(Json(json!({"session_id": id, "state": "closed"})).into_response())
}

/// The session of a path and the client behind the request's key; a key of another session is refused.
pub(super) async fn authenticated(app: &App, headers: &HeaderMap, id: &str) -> Result<(SessionId, KeyId), Problem> {
    // No session has the id of all zeros, so every key is refused for a text that is not an id, as for an unknown
    // session.
    let session = id.parse().unwrap_or(SessionId([0; 16]));
    Ok((session, app.auth.session(headers, session).await?))
}

/// The profile and its primary provider. If one is missing, a failed session that says so is recorded for audit.
async fn usable(
    app: &App,
    key: KeyId,
    id: ProfileId,
    profile: Result<Profile, Error>,
    declared: &Declared,
) -> Result<(Profile, Entry), Problem> {
    let profile = match profile {
        Ok(profile) => profile,
        Err(Error::NotFound) => {
            audit(app, key, id, declared, SessionError::profile_unavailable()).await?;
            return Err(Problem::profile_of_key_deleted());
        }
        Err(error) => return Err(error.into()),
    };
    let name = &profile.fields.primary_provider;
    match app.providers.entry(name).cloned() {
        Some(provider) => Ok((profile, provider)),
        None => {
            tracing::error!(
                profile = profile.fields.name,
                provider = name,
                "the profile's primary provider is not configured"
            );
            let detail = format!("the primary provider '{name}' is not configured on this server");
            audit(app, key, id, declared, SessionError::primary_provider_unavailable(name, &detail)).await?;
            Err(Problem::primary_provider_unavailable(detail))
        }
    }
}

async fn audit(
    app: &App,
    key: KeyId,
    profile: ProfileId,
    declared: &Declared,
    error: SessionError,
) -> Result<(), Problem> {
    let session = NewSession {
        id: SessionId(coordinator::fresh_id()),
        profile,
        key,
        state: log::State::Error,
        client_version: declared.client_version.clone(),
        compaction: Compaction::default(),
        mcp_tools: Vec::new(),
        declarations: Declarations::default().store(),
        digest: None,
        event: fresh_event(key, &error),
    };
    app.log.create(session).await?;
    Ok(())
}

/// Connects to the profile's MCP servers for the new session, and lists their tools.
async fn mcp_tools(app: &App, session: SessionId, profile: &Profile) -> Vec<McpTool> {
    let servers = profile.fields.mcp_servers.iter().filter_map(|name| {
        let server = app.config.mcp_servers.iter().find(|server| server.name == *name);
        if server.is_none() {
            tracing::error!(
                profile = profile.fields.name,
                server = name,
                "an MCP server of the profile is not configured; skipped"
            );
        }
        server
    });
    app.mcp.tools(session, &servers.collect::<Vec<_>>()).await
}

/// What `session.open` and `session.join` say of the client and its tools.
fn introduction(declared: &Declared, declarations: &Declarations) -> SessionOpen {
    SessionOpen {
        client_version: declared.client_version.clone(),
        sandbox_tools: declarations.sandbox_tools.iter().map(|tool| tool.name.clone()).collect(),
        subagent_tools: declarations.subagent_tools.iter().map(|tool| tool.name.clone()).collect(),
        tools: declarations.tools.iter().map(|tool| tool.name.clone()).collect(),
    }
}

/// The answer to an open or a join. No other answer holds the session key. Of the profile and its provider it shows
/// only what clients may know.
fn opened(id: SessionId, secret: &SecretString, profile: &Profile, provider: &Entry) -> Response {
    let answer = json!({
        "session_id": id,
        "session_key": secret.expose_secret(),
        "profile": {
            "id": profile.id,
            "name": profile.fields.name,
            "allowed_tools": profile.fields.allowed_tools,
            "mcp_servers": profile.fields.mcp_servers,
            "provider": {"provider": provider.wire, "model": provider.model},
        },
    });
    (StatusCode::CREATED, [("cache-control", "no-store")], Json(answer)).into_response()
}
