//! The sandboxes and subagents that the server runs: what methods, turns, closings and the reconciler do with them.
//!
//! The database (`coordinator::log`) says which exist, whom they belong to and what their session's log says of them;
//! the driver (the crate `sandbox`) makes and removes containers and pods. Every change of the database comes first or
//! last, never in the middle: a start is noted before its container is made, an end before its container is removed. So
//! whatever a lost node leaves is either named by a row, which another node finishes ([`reconcile`]), or is a container
//! that no row names, which is removed. The handlers of both ports and the sessions call this; it knows neither.

pub(crate) mod command;
pub(crate) mod images;
pub(crate) mod lifecycle;
pub(crate) mod reconcile;
pub(crate) mod subagents;

use crate::config::{Config, SandboxDriver};
use anyhow::Context;
use coordinator::log::{BUSY, Log};
use sandbox::Sandboxes;
use std::time::Duration;

/// What is said wherever a sandbox is wanted and no driver is configured.
pub(crate) const NO_DRIVER: &str = "no sandbox driver is configured";

/// The driver that the configuration names, if it names one. Nothing is asked of the container runtime yet.
///
/// # Errors
/// When the runtime's address or credentials cannot be used, or the database does not tell the deployment's name.
pub(crate) async fn driver(config: &Config, log: &Log) -> anyhow::Result<Option<Sandboxes>> {
    let docker = match &config.sandbox.driver {
        SandboxDriver::None => return Ok(None),
        SandboxDriver::Docker { host } => host,
    };
    let deployment = log.deployment().await.context("the database does not tell the deployment's name")?;
    let settings =
        sandbox::Settings { deployment, limits: config.sandbox.limits.clone(), call_timeout: Duration::from_secs(30) };
    let docker = sandbox::Docker::new(docker, settings).context("the sandbox driver cannot be set up")?;
    Ok(Some(Sandboxes::Docker(docker)))
}

/// Does some work, and says at intervals with `renew` that it is still being done, so that no other node takes it over.
async fn keep_busy<T, R: Future<Output = Result<(), coordinator::Error>>>(
    renew: impl Fn() -> R,
    work: impl Future<Output = T>,
) -> T {
    let renewing = async {
        loop {
            tokio::time::sleep(BUSY / 3).await;
            if let Err(error) = renew().await {
                tracing::debug!(error = %error, "work on a sandbox could not be claimed again");
            }
        }
    };
    tokio::select! {
        done = work => done,
        never = renewing => never,
    }
}
