//! Sessions in every state, their logs and owners, and the nodes of the cluster.

use crate::app::App;
use crate::http::pagination::{Items, Page, pairs};
use crate::http::path_id::{Id, Named};
use crate::http::problem::Problem;
use crate::retention;
use crate::session::close;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use coordinator::Error;
use coordinator::accounts::{self, ListedSession};
use coordinator::log::PurgeReason;
use engine::event::EventNumber;
use engine::ids::{ProfileId, SessionId};
use engine::time::UnixMillis;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
pub(super) struct SessionView {
    id: SessionId,
    profile_id: ProfileId,
    state: &'static str,
    client_version: Option<String>,
    created_at: String,
    closed_at: Option<String>,
}

impl SessionView {
    fn new(session: ListedSession) -> Self {
        Self {
            id: session.id,
            profile_id: session.profile,
            state: session.state.as_str(),
            client_version: session.client_version,
            created_at: session.created_at.rfc3339(),
            closed_at: session.closed_at.map(UnixMillis::rfc3339),
        }
    }
}

pub(super) async fn list(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Items<SessionView>>, Problem> {
    let pairs = pairs(&uri)?;
    let page: Page<SessionId> = Page::of_pairs(&pairs)?;
    let state = pairs.iter().rev().find(|(name, _)| name == "state").map(|(_, value)| value.parse());
    let state =
        state.transpose().map_err(|error: accounts::UnknownState| Problem::invalid_query_value("state", error))?;
    let (sessions, next) = app.accounts().sessions(state, page.cursor, page.limit).await?;
    Ok(Json(Items::new(sessions.into_iter().map(SessionView::new).collect(), next)))
}

/// Closes a session as its own client would, whatever runs in it.
pub(super) async fn close(State(app): State<Arc<App>>, Id(session): Id<SessionId>) -> Result<StatusCode, Problem> {
    let opener = app.log.opened_by(session).await?.ok_or_else(SessionId::absent)?;
    close::close(&app, session, opener, "admin_close").await.map_err(|error| match error {
        Error::NotOpen(state) => Problem::session_already(state),
        error => error.into(),
    })?;
    tracing::info!(session.id = %session, "session closed by an administrator");
    Ok(StatusCode::NO_CONTENT)
}

/// Removes an ended session with its events.
pub(super) async fn purge(State(app): State<Arc<App>>, Id(session): Id<SessionId>) -> Result<StatusCode, Problem> {
    retention::purge(&app, session, PurgeReason::Admin).await.map_err(|error| match error {
        Error::NotFound => SessionId::absent(),
        Error::PreconditionFailed => Problem::session_open(),
        error => error.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn events(
    State(app): State<Arc<App>>,
    Id(session): Id<SessionId>,
    page: Page<EventNumber>,
) -> Result<Response, Problem> {
    let absent = |error| match error {
        Error::NotFound => SessionId::absent(),
        error => error.into(),
    };
    app.log.row(session).await.map_err(absent)?;
    Ok(crate::http::event_page::page(&app.log, session, page).await?)
}

/// The node that owns a session just now; null while no node does.
pub(super) async fn owner(State(app): State<Arc<App>>, Id(session): Id<SessionId>) -> Result<Response, Problem> {
    app.log.row(session).await.map_err(|error| match error {
        Error::NotFound => SessionId::absent(),
        error => error.into(),
    })?;
    let node = app.cluster.owner(session).await?;
    Ok(Json(serde_json::json!({"session_id": session, "node": node})).into_response())
}

#[derive(Serialize)]
struct Node {
    node: String,
    state: &'static str,
    /// Whether this is the node that answers the request.
    asked: bool,
}

/// The nodes of the cluster that are alive.
pub(super) async fn nodes(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let members = app.cluster.nodes().await?;
    let shown = |member: coordinator::cluster::Member| Node {
        node: member.node,
        state: if member.draining { "draining" } else { "ready" },
        asked: member.asked,
    };
    let mut nodes: Vec<Node> = members.into_iter().map(shown).collect();
    nodes.sort_by(|a, b| a.node.cmp(&b.node));
    Ok(Json(serde_json::json!({"items": nodes, "next_cursor": null})).into_response())
}
