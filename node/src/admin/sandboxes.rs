//! The sandboxes and running subagents of all sessions: showing and ending them.

use crate::app::App;
use crate::http::pagination::Items;
use crate::http::path_id::{Id, Named};
use crate::http::problem::Problem;
use crate::sandboxes::lifecycle::{self, NotStopped};
use crate::sandboxes::subagents::{self, Cancelled};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use coordinator::log::{Sandbox, Subagent};
use engine::ids::{SandboxId, SessionId, SubagentId};
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
pub(super) struct SandboxView {
    sandbox_id: SandboxId,
    session_id: SessionId,
    image: String,
    state: &'static str,
}

#[derive(Serialize)]
pub(super) struct SubagentView {
    subagent_id: SubagentId,
    session_id: SessionId,
    harness: String,
    model: String,
}

/// Every sandbox, whether it starts, runs or is being stopped, in the order in which they were started.
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<Items<SandboxView>>, Problem> {
    let view = |sandbox: Sandbox| SandboxView {
        sandbox_id: sandbox.id,
        session_id: sandbox.session,
        image: sandbox.image,
        state: sandbox.state.as_str(),
    };
    Ok(Json(Items::whole(app.log.sandboxes().await?.into_iter().map(view).collect())))
}

/// Stops a sandbox that runs, as its session's driver would.
pub(super) async fn stop(State(app): State<Arc<App>>, Id(id): Id<SandboxId>) -> Result<StatusCode, Problem> {
    let sandboxes = app.log.sandboxes().await?;
    let sandbox = sandboxes.into_iter().find(|sandbox| sandbox.id == id).ok_or_else(SandboxId::absent)?;
    match lifecycle::stop(&app, sandbox.session, sandbox.key, Some(id)).await {
        Ok(_) => Ok(StatusCode::NO_CONTENT),
        Err(NotStopped::NotRunning) => Err(SandboxId::absent()),
        Err(NotStopped::Failed(detail)) => Err(Problem::sandbox_stop_failed(detail)),
        Err(NotStopped::Database(error)) => Err(error.into()),
    }
}

/// Every subagent that runs, by id.
pub(super) async fn list_subagents(State(app): State<Arc<App>>) -> Result<Json<Items<SubagentView>>, Problem> {
    let view = |Subagent { launched, .. }: Subagent| SubagentView {
        subagent_id: launched.id,
        session_id: launched.session,
        harness: launched.harness,
        model: launched.model,
    };
    Ok(Json(Items::whole(app.log.live_subagents().await?.into_iter().map(view).collect())))
}

/// Cancels a subagent that runs, as its session's driver would.
pub(super) async fn cancel(State(app): State<Arc<App>>, Id(id): Id<SubagentId>) -> Result<StatusCode, Problem> {
    let live = app.log.live_subagents().await?;
    let found = live.into_iter().find(|subagent| subagent.launched.id == id).ok_or_else(SubagentId::absent)?;
    match subagents::cancel(&app, found.launched.session, found.launched.key, id).await? {
        Cancelled::Running | Cancelled::Ended => Ok(StatusCode::NO_CONTENT),
        Cancelled::Unknown => Err(SubagentId::absent()),
    }
}
