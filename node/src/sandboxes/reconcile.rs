//! The reconciler: makes the database and the container runtime agree again after nodes or containers were lost.
//!
//! One node of the cluster does it at a time. The database checks every change, so two nodes that do it at once do no
//! harm. The reconciler completes what a lost node has begun, records the end of sandboxes and subagents, and removes
//! containers that no row names. A row is written before its container is created. So a container that is listed first,
//! and then is named by no row, belongs to nobody. It is still removed only when it is found so again after some time.

use super::lifecycle::{NotStarted, NotStopped, discard, finish_start, finish_stop, lost, remove_later};
use super::{images, subagents};
use crate::app::App;
use crate::telemetry::metrics::metrics;
use coordinator::Error;
use coordinator::log::{Sandbox, SandboxState, Subagent, SubagentState};
use sandbox::{Command, Found, Sandboxes};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The time between two passes.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long the node that has the duty may be silent before another one takes the duty.
const DUTY: Duration = Duration::from_secs(10);
/// How long a container has to be without a row before it is removed.
const GRACE: Duration = Duration::from_secs(30);

/// Reconciles until the node stops.
pub(crate) async fn run(app: Arc<App>) {
    let Some(driver) = app.sandboxes.clone() else { return };
    let mut orphans = HashMap::new();
    if let Err(error) = app.log.mark_unknown_images_pending().await {
        tracing::warn!(error = %error, "the images of older profiles stay pending until the next start");
    }
    let mut provisioning: Option<tokio::task::JoinHandle<()>> = None;
    loop {
        let pause = tokio::time::sleep(INTERVAL);
        if app.stop.run_until_cancelled(pause).await.is_none() {
            return;
        }
        match app.log.take_duty("sandboxes", app.cluster.node(), DUTY).await {
            Ok(true) => {}
            Ok(false) => {
                orphans.clear();
                continue;
            }
            Err(error) => {
                tracing::debug!(error = %error, "the duty of reconciling sandboxes could not be asked for");
                continue;
            }
        }
        // Fetching an image may take minutes, for which nothing else waits.
        if provisioning.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
            let (app, driver) = (Arc::clone(&app), driver.clone());
            provisioning = Some(app.clone().tasks.spawn(async move { images::provision_pending(&app, &driver).await }));
        }
        let round = async {
            carry_on(&app, &driver).await?;
            compare(&app, &driver, &mut orphans).await
        };
        if let Some(Err(error)) = app.stop.run_until_cancelled(round).await {
            tracing::warn!(error = %error, "sandboxes could not be reconciled; it is tried again");
        }
    }
}

/// Completes what lost nodes have begun, and ends what belongs to sessions that have ended.
async fn carry_on(app: &Arc<App>, driver: &Sandboxes) -> Result<(), Error> {
    for sandbox in app.log.unattended_sandboxes().await? {
        if !app.log.claim_sandbox(sandbox.id).await? {
            continue;
        }
        tracing::info!(sandbox = %sandbox.id, state = ?sandbox.state, "a sandbox that was left is carried on");
        // A start may have to fetch its image, which takes minutes; nothing else waits for it.
        let (app, driver) = (Arc::clone(app), driver.clone());
        app.clone().tasks.spawn(async move {
            let finished = app.stop.run_until_cancelled(finish(&app, &driver, &sandbox)).await;
            if let Some(Err(error)) = finished {
                tracing::warn!(sandbox = %sandbox.id, error = %error, "a sandbox that was left is carried on later");
            }
        });
    }
    for session in app.log.ended_sessions_with_subagents().await? {
        subagents::discard(app, session).await?;
    }
    Ok(())
}

/// Finishes what a lost node has begun with a sandbox, or removes it after its session.
async fn finish(app: &Arc<App>, driver: &Sandboxes, sandbox: &Sandbox) -> Result<(), Error> {
    match sandbox.state {
        SandboxState::Starting => {
            let profile = app.log.record(sandbox.session, sandbox.key).await?.profile;
            match finish_start(app, driver, sandbox, profile).await {
                Ok(_) | Err(NotStarted::Failed(_) | NotStarted::AlreadyRunning) => Ok(()),
                Err(NotStarted::Database(Error::NotOpen(_))) => Ok(()),
                Err(NotStarted::Database(error)) => Err(error),
            }
        }
        SandboxState::Stopping => match finish_stop(app, driver, sandbox).await {
            Ok(()) | Err(NotStopped::Failed(_) | NotStopped::NotRunning) => Ok(()),
            Err(NotStopped::Database(error)) => Err(error),
        },
        SandboxState::Running => discard(app, sandbox.session).await,
    }
}

/// Compares the rows of the database with the containers that exist.
async fn compare(app: &Arc<App>, driver: &Sandboxes, orphans: &mut HashMap<String, Instant>) -> Result<(), Error> {
    let (sandboxes, live) = (app.log.sandboxes().await?, app.log.live_subagents().await?);
    let found = match driver.list().await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(error = %error, "sandboxes could not be listed");
            return Ok(());
        }
    };
    let running: HashSet<&str> = found.iter().filter(|found| found.running).map(|found| found.id.as_str()).collect();
    for sandbox in &sandboxes {
        if sandbox.state == SandboxState::Running && !running.contains(sandbox.id.to_string().as_str()) {
            vanished(app, driver, sandbox).await?;
        }
    }
    for subagent in &live {
        if !running.contains(subagent.launched.id.to_string().as_str()) {
            ended(app, driver, subagent).await?;
        }
    }
    let named = named_by(&sandboxes, &live);
    let unnamed = found.into_iter().filter(|found| !named.contains(&found.id)).collect();
    remove_orphans(app, driver, unnamed, orphans).await
}

/// The ids of the containers that these rows name.
fn named_by(sandboxes: &[Sandbox], live: &[Subagent]) -> HashSet<String> {
    let sandboxes = sandboxes.iter().map(|sandbox| sandbox.id.to_string());
    sandboxes.chain(live.iter().map(|subagent| subagent.launched.id.to_string())).collect()
}

/// Checks whether a sandbox that should run and was not listed is really gone. If it is, records its end.
async fn vanished(app: &App, driver: &Sandboxes, sandbox: &Sandbox) -> Result<(), Error> {
    let nothing = Command { script: ":".to_owned(), timeout: app.config.sandbox.exec_timeout, output_cap: 0 };
    match driver.exec(&sandbox.id.to_string(), &nothing).await {
        Err(gone @ sandbox::Error::Gone(_)) => lost(app, driver, sandbox, &gone.to_string()).await,
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Deals with a subagent that has a row and was not listed as running: it has ended, or it is being launched.
async fn ended(app: &App, driver: &Sandboxes, subagent: &Subagent) -> Result<(), Error> {
    let launched = &subagent.launched;
    match subagent.state {
        SubagentState::Running => subagents::collect(app, driver, subagent).await,
        // The node that launched it was lost after the log said that it runs. If the log does not say so, the turn's
        // next owner launches it again.
        _ if !subagent.busy && app.log.says_that_it_runs(launched.session, launched.id).await? => {
            app.log.subagent_runs(launched.id).await
        }
        _ => Ok(()),
    }
}

/// Removes the containers that no row names. `unnamed` are those that no row named before they were listed.
async fn remove_orphans(
    app: &App,
    driver: &Sandboxes,
    mut unnamed: Vec<Found>,
    orphans: &mut HashMap<String, Instant>,
) -> Result<(), Error> {
    if !unnamed.is_empty() {
        // The rows are read again, because a row is written before its container is created.
        let named = named_by(&app.log.sandboxes().await?, &app.log.live_subagents().await?);
        unnamed.retain(|found| !named.contains(&found.id));
    }
    orphans.retain(|id, _| unnamed.iter().any(|found| found.id == *id));
    for found in unnamed {
        let since = orphans.entry(found.id.clone()).or_insert_with(Instant::now);
        if since.elapsed() >= GRACE {
            // If it stays, it is tried again after the same time.
            *since = Instant::now();
            tracing::info!(id = found.id, session = found.session, "a container that belongs to no session is removed");
            metrics().sandbox_orphans.add(1, &[]);
            remove_later(app, driver, found.id);
        }
    }
    Ok(())
}
