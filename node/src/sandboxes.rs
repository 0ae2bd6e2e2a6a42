//! The sandboxes and subagents that the server runs: what methods, turns, the closing of sessions and the reconciler do
//! with them.
//!
//! The database (`coordinator::log`) says which exist, which session each belongs to, and what the session's log has
//! said about it. The driver (the crate `sandbox`) creates and removes containers and pods. A start is recorded before
//! its container is created, and an end before its container is removed. So what a lost node leaves is either named by
//! a row, and another node completes it ([`reconcile`]), or is a container that no row names, and is removed. The
//! handlers of both ports and the sessions call this module, which uses neither.

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

/// How long one call of the container runtime may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What is said wherever a sandbox is wanted and no driver is configured.
pub(crate) const NO_DRIVER: &str = "no sandbox driver is configured";

/// Makes the driver that the configuration names, if it names one. This does not connect to the container runtime.
///
/// # Errors
/// When the runtime's address or credentials cannot be used, or the id of the deployment cannot be read.
pub(crate) async fn driver(config: &Config, log: &Log) -> anyhow::Result<Option<Sandboxes>> {
    if config.sandbox.driver == SandboxDriver::None {
        return Ok(None);
    }
    let settings = sandbox::Settings {
        deployment: log.deployment().await.context("the database does not tell the deployment's name")?,
        limits: config.sandbox.limits.clone(),
        call_timeout: CALL_TIMEOUT,
    };
    let driver = match &config.sandbox.driver {
        SandboxDriver::None => return Ok(None),
        SandboxDriver::Docker { host } => sandbox::Docker::new(host, settings).map(Sandboxes::Docker),
        SandboxDriver::Kubernetes { kubeconfig, pods } => {
            let pods = pods.as_ref().clone();
            sandbox::Kubernetes::new(kubeconfig.as_deref(), settings, pods)
                .await
                .map(Box::new)
                .map(Sandboxes::Kubernetes)
        }
    };
    driver.map(Some).context("the sandbox driver cannot be set up")
}

/// Does some work and calls `renew` at intervals, so that no other node takes over the work.
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
