//! Remote subagents: launching one for a turn, recording its end, cancelling it, and reporting to the model
//! (docs/api.md 8).

use super::lifecycle::{event, remove, remove_later};
use super::{NO_DRIVER, keep_busy};
use crate::app::App;
use crate::telemetry::metrics::metrics;
use coordinator::Error;
use coordinator::log::{NewSubagent, Subagent, SubagentState};
use engine::event::NewEvent;
use engine::event::payload::{Dispatched, SubagentCancelled, SubagentCompleted, SubagentFailed};
use engine::ids::{KeyId, SessionId, SubagentId};
use engine::subagent::{Launch, Left, Report, status};
use opentelemetry::KeyValue;
use sandbox::{Captured, End, Ended, Progress, Sandboxes, Spec, SubagentSpec};
use std::time::Duration;
use tokio::time::Instant;

/// The most bytes of each output stream that are kept (docs/api.md 8.5).
const OUTPUT_CAP: usize = 65_536;
/// How long a cancellation waits for the launch to be completed.
const LAUNCHING: Duration = Duration::from_secs(10);
/// The time between two checks during that wait.
const LOOK: Duration = Duration::from_millis(50);

/// Starts the subagent whose start a turn has logged. Starting it again, even on another node, has no effect if it
/// runs. The error is the detail for the log and for the model.
pub(crate) async fn launch(
    app: &App,
    session: SessionId,
    key: KeyId,
    id: SubagentId,
    launch: &Launch,
) -> Result<(), String> {
    let Some(driver) = &app.sandboxes else { return Err(NO_DRIVER.to_owned()) };
    let database = |error: Error| {
        tracing::error!(subagent = %id, error = %error, "a subagent could not be noted");
        "the database is not available".to_owned()
    };
    let profile = app.log.record(session, key).await.map_err(database)?.profile;
    let new = NewSubagent { id, session, key, harness: launch.harness.clone(), model: launch.model.clone() };
    app.log.add_subagent(new).await.map_err(database)?;
    let container = Spec {
        id: id.to_string(),
        image: launch.image.clone(),
        session: session.to_string(),
        profile: profile.to_string(),
    };
    let spec = SubagentSpec {
        container,
        command: launch.rendered.command.clone(),
        prompt: launch.rendered.stdin.clone().unwrap_or_default().into_bytes(),
        timeout: launch.timeout_secs.map_or(app.config.subagent_timeout, Duration::from_secs),
        output_cap: OUTPUT_CAP,
    };
    let launched = keep_busy(|| app.log.keep_subagent_busy(id), driver.launch(&spec));
    if let Err(failure) = launched.await {
        // What may have been created is removed first, so that nothing runs of which the log says that it has failed.
        remove(driver, id).await;
        app.log.subagent_not_launched(id).await.map_err(database)?;
        return Err(failure.to_string());
    }
    Ok(())
}

/// The answer of the status tool, and the subagents whose end it reports: the append of the answer has to
/// delete their rows. The inner error is the text of an error result.
///
/// # Errors
/// When the database fails.
pub(crate) async fn read_status(
    app: &App,
    session: SessionId,
    asked: Option<&str>,
) -> Result<(Result<String, String>, Vec<SubagentId>), Error> {
    let tracked = app.log.subagents_of(session).await?;
    let reports = tracked.into_iter().map(|Subagent { launched, state, left, .. }| Report {
        subagent_id: launched.id,
        harness: launched.harness,
        model: launched.model,
        status: if state.is_live() { SubagentState::Running.as_str() } else { state.as_str() },
        left,
    });
    Ok(match status(asked, reports.collect()) {
        Ok((text, shown)) => {
            let ended = shown.iter().filter(|report| report.status != SubagentState::Running.as_str());
            (Ok(text), ended.map(|report| report.subagent_id).collect())
        }
        Err(text) => (Err(text), Vec::new()),
    })
}

/// The result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// The subagent was running and has been ended.
    Running,
    /// It had ended already.
    Ended,
    /// The session has no subagent with this id.
    Unknown,
}

/// Cancels a subagent of the session for a client. When this returns, its container is removed.
///
/// # Errors
/// When the database fails; `Unavailable` while the subagent is still being launched.
pub(crate) async fn cancel(app: &App, session: SessionId, by: KeyId, id: SubagentId) -> Result<Cancelled, Error> {
    let Some(driver) = &app.sandboxes else { return Ok(Cancelled::Unknown) };
    let deadline = Instant::now() + LAUNCHING;
    loop {
        let tracked = app.log.subagents_of(session).await?;
        let Some(found) = tracked.into_iter().find(|tracked| tracked.launched.id == id) else {
            return Ok(Cancelled::Unknown);
        };
        match found.state {
            SubagentState::Running => {
                let ended = end_cancelled(app, &found, by, "explicit").await?;
                remove(driver, found.launched.id).await;
                return Ok(ended);
            }
            // Its turn will soon log that it runs or that it has failed, and the event of the cancellation has to
            // follow that.
            SubagentState::Starting if Instant::now() < deadline => tokio::time::sleep(LOOK).await,
            SubagentState::Starting => return Err(Error::CoordinationUnavailable("the launch hangs".to_owned())),
            SubagentState::Completed | SubagentState::Failed | SubagentState::TimedOut | SubagentState::Cancelled => {
                return Ok(Cancelled::Ended);
            }
        }
    }
}

/// Ends the subagents of a session that is being closed, reports it in the session's log, and deletes their rows.
///
/// # Errors
/// When the database fails.
pub(crate) async fn close(app: &App, session: SessionId) -> Result<(), Error> {
    let Some(driver) = &app.sandboxes else { return Ok(()) };
    let tracked = app.log.subagents_of(session).await?;
    if tracked.is_empty() {
        return Ok(());
    }
    for tracked in tracked {
        if tracked.state == SubagentState::Starting {
            app.log.subagent_runs(tracked.launched.id).await?;
        }
        if tracked.state.is_live() {
            end_cancelled(app, &tracked, tracked.launched.key, "session_close").await?;
        }
        remove(driver, tracked.launched.id).await;
    }
    app.log.forget_subagents_of(session).await
}

/// Ends the subagents of a session that has failed or is closed, and deletes their rows. Its log accepts no more
/// events.
///
/// # Errors
/// When the database fails.
pub(crate) async fn discard(app: &App, session: SessionId) -> Result<(), Error> {
    let Some(driver) = &app.sandboxes else { return Ok(()) };
    let tracked = app.log.subagents_of(session).await?;
    if tracked.is_empty() {
        return Ok(());
    }
    app.log.forget_subagents_of(session).await?;
    for tracked in tracked {
        remove_later(app, driver, tracked.launched.id);
    }
    Ok(())
}

async fn end_cancelled(app: &App, found: &Subagent, by: KeyId, reason: &str) -> Result<Cancelled, Error> {
    let left = Left { reason: Some(reason.to_owned()), ..Left::default() };
    let NewSubagent { id, session, .. } = found.launched;
    let told = event(by, &SubagentCancelled(failed(&found.launched, &left)));
    match app.log.end_subagent(session, id, SubagentState::Cancelled, left, told).await {
        Ok(()) => {
            counted("cancelled");
            Ok(Cancelled::Running)
        }
        Err(Error::PreconditionFailed) => Ok(Cancelled::Ended),
        Err(error) => Err(error),
    }
}

/// Records the end of a subagent, if it has ended, and has its container removed.
///
/// # Errors
/// When the database fails.
pub(super) async fn collect(app: &App, driver: &Sandboxes, running: &Subagent) -> Result<(), Error> {
    let NewSubagent { id, session, .. } = running.launched;
    let ended = match driver.collect(&id.to_string(), OUTPUT_CAP).await {
        Ok(Progress::Running | Progress::NotStarted) => return Ok(()),
        Ok(Progress::Ended(ended)) => ended,
        // Its container was removed by somebody else.
        Err(sandbox::Error::Gone(detail)) => {
            Ended { end: End::Died(detail), stdout: Captured::default(), stderr: Captured::default() }
        }
        Err(error) => {
            tracing::warn!(subagent = %id, error = %error, "a subagent could not be looked at");
            return Ok(());
        }
    };
    let (state, left) = outcome(ended);
    let told = told(&running.launched, state, &left);
    match app.log.end_subagent(session, id, state, left, told).await {
        Ok(()) => match state {
            SubagentState::Completed => counted("completed"),
            SubagentState::TimedOut => counted("timeout"),
            _ => counted("failed"),
        },
        Err(Error::PreconditionFailed | Error::NotOpen(_)) => {}
        Err(error) => return Err(error),
    }
    remove_later(app, driver, id);
    Ok(())
}

fn counted(outcome: &'static str) {
    metrics().subagents_ended.add(1, &[KeyValue::new("outcome", outcome)]);
}

/// The state in which a subagent ended by itself, and what it has left.
fn outcome(Ended { end, stdout, stderr }: Ended) -> (SubagentState, Left) {
    let truncated = stdout.dropped > 0 || stderr.dropped > 0;
    let (state, exit_code, reason, detail) = match end {
        End::Exited(0, detail) => (SubagentState::Completed, Some(0), None, detail),
        End::Exited(code, detail) => (SubagentState::Failed, Some(code), Some("nonzero_exit"), detail),
        End::TimedOut => (SubagentState::TimedOut, None, Some("timeout"), None),
        End::Died(detail) => (SubagentState::Failed, None, Some("nonzero_exit"), Some(detail)),
    };
    let reason = reason.map(str::to_owned);
    (state, Left { exit_code, stdout: stdout.text, stderr: stderr.text, truncated, reason, detail })
}

/// The event that reports the end of a subagent that nobody cancelled.
fn told(launched: &NewSubagent, state: SubagentState, left: &Left) -> NewEvent {
    match (state, left.exit_code) {
        (SubagentState::Completed, Some(exit_code)) => event(
            launched.key,
            &SubagentCompleted {
                detail: left.detail.clone(),
                dispatch: Dispatched::Remote,
                exit_code,
                harness: launched.harness.clone(),
                model: launched.model.clone(),
                subagent_id: launched.id.to_string(),
            },
        ),
        _ => event(launched.key, &failed(launched, left)),
    }
}

fn failed(launched: &NewSubagent, left: &Left) -> SubagentFailed {
    SubagentFailed {
        detail: left.detail.clone(),
        dispatch: Dispatched::Remote,
        exit_code: left.exit_code,
        harness: launched.harness.clone(),
        model: launched.model.clone(),
        reason: left.reason.clone(),
        subagent_id: launched.id.to_string(),
    }
}
