//! The settings of sandboxes and subagents: where they run, and what each may use.

use super::source::Settings;
use super::{Environment, Usage};
use sandbox::{Limits, Network};
use std::time::Duration;

/// The address of the Docker daemon: `DOCKER_HOST`, or where the daemon of this machine listens.
pub(crate) fn docker_host(environment: &dyn Environment) -> String {
    let host = environment.get("DOCKER_HOST").filter(|host| !host.is_empty());
    host.unwrap_or_else(|| "unix:///var/run/docker.sock".to_owned())
}

/// Where sandboxes and subagents run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SandboxDriver {
    /// Nowhere: starting one fails.
    None,
    /// As containers of a Docker daemon.
    Docker {
        /// `DOCKER_HOST`: its address, `unix://…` or `tcp://…`.
        host: String,
    },
}

/// Everything that can be set of sandboxes.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    /// `BAE_SANDBOX_DRIVER`: `docker` or `none`. Default `none`.
    pub(crate) driver: SandboxDriver,
    /// `BAE_SANDBOX_MEMORY` (bytes, default 1 GiB), `BAE_SANDBOX_CPU` (cores, default 1), `BAE_SANDBOX_PIDS` (default
    /// 512), `BAE_SANDBOX_MAX_AGE` (seconds, default a day), `BAE_SANDBOX_NETWORK` (`on` or `off`, default `off`).
    pub(crate) limits: Limits,
    /// `BAE_SANDBOX_EXEC_TIMEOUT`: seconds that one command may take. Default 120.
    pub(crate) exec_timeout: Duration,
    /// `BAE_SANDBOX_OUTPUT_CAP`: bytes of each output stream of a command that are kept. Default 1 MiB.
    pub(crate) output_cap: usize,
}

const LEAST_MEMORY: u64 = 6 << 20;

impl Sandbox {
    pub(super) fn build(settings: &Settings<'_>, environment: &dyn Environment) -> Result<Self, Usage> {
        let memory = |text: &str| text.parse().ok().filter(|bytes| *bytes >= LEAST_MEMORY);
        let cores = |text: &str| text.parse().ok().filter(|cores| (0.01..=1024.0).contains(cores));
        let network = |text: &str| match text {
            "on" => Some(Network::On),
            "off" => Some(Network::Off),
            _ => None,
        };
        let cores: f64 = settings.parsed("sandbox_cpu", "a number of cores, like 0.5", cores)?.unwrap_or(1.0);
        let limits = Limits {
            memory: settings.parsed("sandbox_memory", "a number of bytes from 6291456 on", memory)?.unwrap_or(1 << 30),
            milli_cpus: (cores * 1000.0).round() as u32,
            pids: settings.count("sandbox_pids", 512)?,
            max_age: settings.seconds("sandbox_max_age", 24 * 3600)?,
            network: settings.parsed("sandbox_network", "on or off", network)?.unwrap_or(Network::Off),
        };
        Ok(Self {
            driver: driver(settings, environment)?,
            limits,
            exec_timeout: settings.seconds("sandbox_exec_timeout", 120)?,
            output_cap: settings.count("sandbox_output_cap", 1 << 20)? as usize,
        })
    }
}

fn driver(settings: &Settings<'_>, environment: &dyn Environment) -> Result<SandboxDriver, Usage> {
    let Some(value) = settings.value("sandbox_driver") else { return Ok(SandboxDriver::None) };
    match value.text.trim() {
        "none" => Ok(SandboxDriver::None),
        "docker" => {
            let host = docker_host(environment);
            if !["unix://", "tcp://", "http://"].iter().any(|scheme| host.starts_with(scheme)) {
                return Err(Usage::new("DOCKER_HOST must be unix://PATH or tcp://HOST:PORT"));
            }
            Ok(SandboxDriver::Docker { host })
        }
        "kubernetes" => {
            Err(value.refuse("is kubernetes, which this version does not have yet; set it to docker or none"))
        }
        other => Err(value.refuse(format!("must be docker, kubernetes or none, not \"{other}\""))),
    }
}
