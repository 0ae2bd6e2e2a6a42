//! Starting and ending the one sandbox of a session (docs/api.md 9, 13.6, 13.7).

use super::{NO_DRIVER, keep_busy};
use crate::app::App;
use crate::telemetry::metrics::metrics;
use coordinator::Error;
use coordinator::log::{Sandbox, SandboxChange, SandboxState};
use engine::event::NewEvent;
use engine::event::payload::{
    Dispatched, EventPayload, RemoteSandboxRunning, RemoteSandboxStop, RemoteSandboxStopped, SandboxError, SandboxStart,
};
use engine::ids::{EventId, KeyId, ProfileId, SandboxId, SessionId};
use engine::time::UnixMillis;
use opentelemetry::KeyValue;
use sandbox::{Sandboxes, Spec};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long closing a session waits for sandboxes that other nodes are stopping.
const WAIT_FOR_OTHERS: Duration = Duration::from_secs(5);
/// The time between two checks during that wait.
const LOOK: Duration = Duration::from_millis(50);

/// Why a sandbox was not started.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// The session has a sandbox already.
    AlreadyRunning,
    /// The driver did not start it, for this reason. The log says so.
    Failed(String),
    /// The session is not open, or the database failed.
    Database(Error),
}

/// A sandbox that runs.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) id: SandboxId,
    /// When the log said that it runs. None if that could not be written yet.
    pub(crate) at: Option<UnixMillis>,
}

/// Why a sandbox was not stopped.
#[derive(Debug)]
pub(crate) enum NotStopped {
    /// The session has no running sandbox.
    NotRunning,
    /// The driver did not remove it, for this reason. The log says so, and the session has no sandbox any more.
    Failed(String),
    /// The database failed.
    Database(Error),
}

/// Starts the session's sandbox. The start is completed even if the caller stops waiting.
///
/// # Errors
/// See [`NotStarted`].
pub(crate) async fn start(
    app: &Arc<App>,
    session: SessionId,
    key: KeyId,
    profile: ProfileId,
    image: String,
) -> Result<Started, NotStarted> {
    let id = SandboxId(coordinator::fresh_id());
    let sandbox = Sandbox { id, session, key, image, state: SandboxState::Starting, reason: None };
    let begun = event(key, &SandboxStart { dispatch: Dispatched::Remote, image: sandbox.image.clone() });
    let Some(driver) = app.sandboxes.clone() else {
        let events = vec![begun, error(&sandbox, "start", NO_DRIVER)];
        let appended = app.log.append_free(session, key, events, coordinator::log::Side::Nothing).await;
        return Err(appended.map_or_else(NotStarted::Database, |_| NotStarted::Failed(NO_DRIVER.to_owned())));
    };
    let change = SandboxChange::Start { key, image: sandbox.image.clone() };
    match app.log.change_sandbox(session, id, change, vec![begun]).await {
        Ok(_) => {}
        Err(Error::Duplicate) => return Err(NotStarted::AlreadyRunning),
        Err(error) => return Err(NotStarted::Database(error)),
    }
    let app = Arc::clone(app);
    let starting = app.clone().tasks.spawn(async move { finish_start(&app, &driver, &sandbox, profile).await });
    starting.await.unwrap_or(Err(NotStarted::Database(Error::Unknown)))
}

/// Creates the container of a sandbox whose row says that it is starting, or uses the container if it exists already.
///
/// # Errors
/// See [`NotStarted`].
pub(super) async fn finish_start(
    app: &App,
    driver: &Sandboxes,
    sandbox: &Sandbox,
    profile: ProfileId,
) -> Result<Started, NotStarted> {
    let spec = Spec {
        id: sandbox.id.to_string(),
        image: sandbox.image.clone(),
        session: sandbox.session.to_string(),
        profile: profile.to_string(),
    };
    let made = keep_busy(|| app.log.keep_sandbox_busy(sandbox.id), driver.start(&spec));
    let begun = Instant::now();
    let made = made.await;
    let outcome = KeyValue::new("outcome", if made.is_ok() { "ok" } else { "error" });
    metrics().sandbox_start.record(begun.elapsed(), &[outcome]);
    if let Err(failure) = made {
        remove(driver, sandbox.id).await;
        let detail = failure.to_string();
        let events = vec![error(sandbox, "start", &detail)];
        end(app, sandbox, SandboxState::Starting, events).await.map_err(NotStarted::Database)?;
        return Err(NotStarted::Failed(detail));
    }
    let running =
        RemoteSandboxRunning { dispatch: Dispatched::Remote, image: sandbox.image.clone(), sandbox_id: sandbox.id };
    let events = vec![event(sandbox.key, &running)];
    match app.log.change_sandbox(sandbox.session, sandbox.id, SandboxChange::Running, events).await {
        Ok(committed) => Ok(Started { id: sandbox.id, at: committed.first().map(|event| event.created_at) }),
        // The session was closed or has failed while the container was created. Nobody else knows the container.
        Err(Error::PreconditionFailed) => {
            remove(driver, sandbox.id).await;
            Err(NotStarted::Database(Error::NotOpen("closed")))
        }
        Err(error @ Error::NotOpen(_)) => {
            remove(driver, sandbox.id).await;
            end(app, sandbox, SandboxState::Starting, Vec::new()).await.map_err(NotStarted::Database)?;
            Err(NotStarted::Database(error))
        }
        Err(error) => {
            tracing::warn!(sandbox = %sandbox.id, error = %error, "that a sandbox runs could not be noted; it is tried again");
            Ok(Started { id: sandbox.id, at: None })
        }
    }
}

/// Stops the session's sandbox for a client or an operator, who may name the sandbox to stop. It is removed even if the
/// caller stops waiting.
///
/// # Errors
/// See [`NotStopped`].
pub(crate) async fn stop(
    app: &Arc<App>,
    session: SessionId,
    by: KeyId,
    named: Option<SandboxId>,
) -> Result<Sandbox, NotStopped> {
    let Some(driver) = app.sandboxes.clone() else { return Err(NotStopped::NotRunning) };
    let sandbox = running(app, session).await.map_err(NotStopped::Database)?;
    let sandbox = sandbox.filter(|sandbox| named.is_none_or(|id| id == sandbox.id)).ok_or(NotStopped::NotRunning)?;
    let Some(sandbox) = begin_stop(app, sandbox, Some(by), "explicit").await.map_err(NotStopped::Database)? else {
        return Err(NotStopped::NotRunning);
    };
    let app = Arc::clone(app);
    let stopping = app.clone().tasks.spawn(async move {
        finish_stop(&app, &driver, &sandbox).await?;
        Ok(sandbox)
    });
    stopping.await.unwrap_or(Err(NotStopped::Database(Error::Unknown)))
}

/// The session's running sandbox, if it has one.
pub(super) async fn running(app: &App, session: SessionId) -> Result<Option<Sandbox>, Error> {
    let sandboxes = app.log.sandboxes_of(session).await?;
    Ok(sandboxes.into_iter().find(|sandbox| sandbox.state == SandboxState::Running))
}

/// Records that a running sandbox is being stopped, by a client or with its session. None if it does not run any more.
async fn begin_stop(
    app: &App,
    sandbox: Sandbox,
    by: Option<KeyId>,
    reason: &'static str,
) -> Result<Option<Sandbox>, Error> {
    let sandbox = Sandbox { state: SandboxState::Stopping, reason: Some(reason.to_owned()), ..sandbox };
    let change = SandboxChange::Stop { reason };
    let events = vec![event(by.unwrap_or(sandbox.key), &stop_payload(&sandbox))];
    match app.log.change_sandbox(sandbox.session, sandbox.id, change, events).await {
        Ok(_) => Ok(Some(sandbox)),
        Err(Error::PreconditionFailed) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the container of a sandbox whose row says that it is stopping.
///
/// # Errors
/// `Failed` when the container could not be removed. The row is deleted all the same, and the reconciler removes the
/// container.
pub(super) async fn finish_stop(app: &App, driver: &Sandboxes, sandbox: &Sandbox) -> Result<(), NotStopped> {
    let removed = keep_busy(|| app.log.keep_sandbox_busy(sandbox.id), driver.stop(&sandbox.id.to_string())).await;
    let last = match &removed {
        Ok(()) => event(sandbox.key, &RemoteSandboxStopped(stop_payload(sandbox))),
        Err(failure) => error(sandbox, "stop", &failure.to_string()),
    };
    end(app, sandbox, SandboxState::Stopping, vec![last]).await.map_err(NotStopped::Database)?;
    removed.map_err(|failure| NotStopped::Failed(failure.to_string()))
}

/// Ends the sandboxes of a session that is being closed, and reports it in the session's log. Waits for those that
/// another node is stopping.
///
/// # Errors
/// When the database fails.
pub(crate) async fn close(app: &App, session: SessionId) -> Result<(), Error> {
    let Some(driver) = &app.sandboxes else { return Ok(()) };
    let deadline = tokio::time::Instant::now() + WAIT_FOR_OTHERS;
    loop {
        let mut look_again = false;
        for sandbox in app.log.sandboxes_of(session).await? {
            match sandbox.state {
                SandboxState::Starting => {
                    let events = vec![error(&sandbox, "start", "the session was closed while the sandbox was started")];
                    end(app, &sandbox, SandboxState::Starting, events).await?;
                    remove(driver, sandbox.id).await;
                    // It may have become running just before.
                    look_again = true;
                }
                SandboxState::Running => match begin_stop(app, sandbox, None, "session_close").await? {
                    Some(sandbox) => match finish_stop(app, driver, &sandbox).await {
                        Ok(()) | Err(NotStopped::NotRunning | NotStopped::Failed(_)) => {}
                        Err(NotStopped::Database(error)) => return Err(error),
                    },
                    None => look_again = true,
                },
                SandboxState::Stopping => look_again = true,
            }
        }
        if !look_again || tokio::time::Instant::now() >= deadline {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Ends the sandboxes of a session that has failed or is closed. Its log accepts no more events.
///
/// # Errors
/// When the database fails.
pub(crate) async fn discard(app: &App, session: SessionId) -> Result<(), Error> {
    let Some(driver) = &app.sandboxes else { return Ok(()) };
    for sandbox in app.log.sandboxes_of(session).await? {
        end(app, &sandbox, sandbox.state, Vec::new()).await?;
        remove(driver, sandbox.id).await;
    }
    Ok(())
}

/// Records that a running sandbox has ended by itself or was removed by somebody else, and why.
///
/// # Errors
/// When the database fails.
pub(super) async fn lost(app: &App, driver: &Sandboxes, sandbox: &Sandbox, detail: &str) -> Result<(), Error> {
    end(app, sandbox, SandboxState::Running, vec![error(sandbox, "exec", detail)]).await?;
    remove_later(app, driver, sandbox.id);
    Ok(())
}

/// Deletes the row of a sandbox. It is no error if another node has done so already, or if the session has ended and
/// accepts no events.
async fn end(app: &App, sandbox: &Sandbox, from: SandboxState, events: Vec<NewEvent>) -> Result<(), Error> {
    let gone = SandboxChange::Gone(from);
    let silently = match app.log.change_sandbox(sandbox.session, sandbox.id, gone.clone(), events).await {
        Err(Error::NotOpen(_)) => app.log.change_sandbox(sandbox.session, sandbox.id, gone, Vec::new()).await,
        done => done,
    };
    match silently {
        Ok(_) | Err(Error::PreconditionFailed) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes a container that no row names any more. If that fails, the reconciler removes it later.
pub(super) async fn remove(driver: &Sandboxes, id: impl std::fmt::Display) {
    if let Err(error) = driver.stop(&id.to_string()).await {
        tracing::warn!(%id, error = %error, "a container is left for the reconciler");
    }
}

/// Removes a container that no row names any more, and that nobody waits for. A pod whose machine is lost can stay for as
/// long as nobody tells the cluster about the machine.
pub(super) fn remove_later(app: &App, driver: &Sandboxes, id: impl std::fmt::Display + Send + Sync + 'static) {
    let (driver, stop) = (driver.clone(), app.stop.clone());
    app.tasks.spawn(async move { stop.run_until_cancelled(remove(&driver, id)).await });
}

fn stop_payload(sandbox: &Sandbox) -> RemoteSandboxStop {
    RemoteSandboxStop {
        dispatch: Dispatched::Remote,
        image: sandbox.image.clone(),
        reason: sandbox.reason.clone().unwrap_or_default(),
        sandbox_id: sandbox.id,
    }
}

/// The `session.sandbox.error` of the server's own sandbox. It shows no id if the start has failed, because nobody
/// could use that id.
pub(super) fn error(sandbox: &Sandbox, phase: &str, detail: &str) -> NewEvent {
    let payload = SandboxError {
        container_id: None,
        detail: Some(detail.to_owned()),
        dispatch: Dispatched::Remote,
        image: Some(sandbox.image.clone()),
        phase: Some(phase.to_owned()),
        sandbox_id: (phase != "start").then_some(sandbox.id),
        unsandboxed: false,
    };
    event(sandbox.key, &payload)
}

pub(super) fn event(key: KeyId, payload: &impl EventPayload) -> NewEvent {
    NewEvent::of(EventId(coordinator::fresh_id()), key, payload)
}
