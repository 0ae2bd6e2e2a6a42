//! Runs a command in the session's sandbox, for `session.execRemoteSandbox` and for the sandbox tools of a turn.

use super::lifecycle::{error, lost, running};
use crate::app::App;
use crate::telemetry::metrics::metrics;
use crate::telemetry::spans;
use coordinator::Error;
use coordinator::log::{Sandbox, Side};
use engine::event::payload::CommandOutput;
use engine::ids::SessionId;
use opentelemetry::KeyValue;
use sandbox::{Captured, Command};
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;

/// The result of a command.
#[derive(Debug)]
pub(crate) enum Ran {
    /// The command ran to its end.
    Output(Sandbox, CommandOutput),
    /// The session has no running sandbox.
    NotRunning,
    /// The command did not run to its end, for this reason.
    Failed(Sandbox, String),
}

/// Runs a command within the configured limits. `script` is none when a tool's input holds no command, which is an
/// error. The command is ended when the caller stops waiting. If the sandbox turns out to be gone, its row is deleted
/// and the log says why, so that another one can be started.
///
/// # Errors
/// When the database fails.
pub(crate) async fn run(app: &Arc<App>, session: SessionId, script: Option<String>) -> Result<Ran, Error> {
    let Some(driver) = &app.sandboxes else { return Ok(Ran::NotRunning) };
    let Some(sandbox) = running(app, session).await? else { return Ok(Ran::NotRunning) };
    let Some(script) = script else {
        return Ok(Ran::Failed(sandbox, "the tool's input needs a string `command`".to_owned()));
    };
    let (timeout, output_cap) = (app.config.sandbox.exec_timeout, app.config.sandbox.output_cap);
    let command = Command { script, timeout, output_cap };
    let (begun, span) = (Instant::now(), spans::exec(sandbox.id));
    let ran = driver.exec(&sandbox.id.to_string(), &command).instrument(span.clone()).await;
    let outcome = match &ran {
        Ok(output) => {
            span.record("process.exit.code", output.exit_code);
            "ok"
        }
        Err(sandbox::Error::TimedOut(_)) => {
            spans::failed(&span, "timeout");
            "timeout"
        }
        Err(_) => {
            spans::failed(&span, "_OTHER");
            "error"
        }
    };
    metrics().sandbox_exec.record(begun.elapsed(), &[KeyValue::new("outcome", outcome)]);
    Ok(match ran {
        Ok(output) => {
            let exit_code = output.exit_code;
            let output = CommandOutput { stdout: text(output.stdout), stderr: text(output.stderr), exit_code };
            Ran::Output(sandbox, output)
        }
        Err(gone @ sandbox::Error::Gone(_)) => {
            let detail = gone.to_string();
            lost(app, driver, &sandbox, &detail).await?;
            Ran::Failed(sandbox, detail)
        }
        Err(failure) => Ran::Failed(sandbox, failure.to_string()),
    })
}

/// Reports in the log that a command did not run to its end. For commands that belong to no turn. If the sandbox is
/// gone, the log has an event about that already.
///
/// # Errors
/// When the database fails.
pub(crate) async fn log_failure(app: &App, sandbox: &Sandbox, detail: &str) -> Result<(), Error> {
    if running(app, sandbox.session).await?.is_some_and(|found| found.id == sandbox.id) {
        let events = vec![error(sandbox, "exec", detail)];
        app.log.append_free(sandbox.session, sandbox.key, events, Side::Nothing).await?;
    }
    Ok(())
}

/// The text of an output stream. It ends with a note of how much is missing, if something is.
fn text(captured: Captured) -> String {
    let Captured { mut text, dropped } = captured;
    if dropped > 0 {
        text.push_str(&format!("\n[{dropped} more bytes were cut off]\n"));
    }
    text
}
