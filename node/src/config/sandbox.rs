//! The settings of sandboxes and subagents: where they run, and what each may use.

use super::source::Settings;
use super::{Environment, Usage};
use sandbox::{Limits, Network, PodSettings, PullPolicy, Toleration};
use std::collections::BTreeMap;
use std::path::PathBuf;
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
    /// As pods of the Kubernetes cluster that `KUBECONFIG` names, or that this node runs in.
    Kubernetes {
        /// `KUBECONFIG`, if it is set.
        kubeconfig: Option<PathBuf>,
        /// How pods are made.
        pods: Box<PodSettings>,
    },
}

/// Everything that can be set of sandboxes.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    /// `BAE_SANDBOX_DRIVER`: `docker`, `kubernetes` or `none`. Default `none`. Of pods: `BAE_SANDBOX_NAMESPACE`,
    /// `BAE_SANDBOX_RUNTIME_CLASS`, `BAE_SANDBOX_NODE_SELECTOR`, `BAE_SANDBOX_TOLERATIONS`, `BAE_SANDBOX_PULL_SECRETS`,
    /// `BAE_SANDBOX_PULL_POLICY`, `BAE_SANDBOX_LABELS`, `BAE_SANDBOX_START_TIMEOUT`.
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
            let kubeconfig = environment.get("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
            Ok(SandboxDriver::Kubernetes { kubeconfig, pods: Box::new(pods(settings)?) })
        }
        other => Err(value.refuse(format!("must be docker, kubernetes or none, not \"{other}\""))),
    }
}

/// How pods are made. What is not set has the driver's default.
fn pods(settings: &Settings<'_>) -> Result<PodSettings, Usage> {
    let defaults = PodSettings::default();
    let policy = |text: &str| match text {
        "Always" => Some(PullPolicy::Always),
        "IfNotPresent" => Some(PullPolicy::IfNotPresent),
        "Never" => Some(PullPolicy::Never),
        _ => None,
    };
    let pairs = "names with values, like pool=sandboxes,zone=a";
    Ok(PodSettings {
        namespace: settings.text("sandbox_namespace"),
        runtime_class: settings.text("sandbox_runtime_class"),
        node_selector: settings.parsed("sandbox_node_selector", pairs, labels)?.unwrap_or_default(),
        labels: settings.parsed("sandbox_labels", pairs, labels)?.unwrap_or_default(),
        tolerations: settings
            .parsed("sandbox_tolerations", "taints, like sandboxes=only:NoSchedule", tolerations)?
            .unwrap_or_default(),
        pull_secrets: settings.text("sandbox_pull_secrets").map_or_else(Vec::new, |text| list(&text)),
        pull_policy: settings
            .parsed("sandbox_pull_policy", "Always, IfNotPresent or Never", policy)?
            .unwrap_or(defaults.pull_policy),
        start_timeout: settings.seconds("sandbox_start_timeout", defaults.start_timeout.as_secs())?,
        ..defaults
    })
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn labels(text: &str) -> Option<BTreeMap<String, String>> {
    let pair = |part: String| {
        let (name, value) = part.split_once('=')?;
        (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
    };
    list(text).into_iter().map(pair).collect()
}

/// Each is `KEY[=VALUE][:EFFECT]`.
fn tolerations(text: &str) -> Option<Vec<Toleration>> {
    let one = |part: String| {
        let (taint, effect) =
            part.split_once(':').map_or((part.as_str(), None), |(taint, effect)| (taint, Some(effect)));
        if effect.is_some_and(|effect| !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect)) {
            return None;
        }
        let (key, value) = taint.split_once('=').map_or((taint, None), |(key, value)| (key, Some(value)));
        let (key, value) = ((!key.is_empty()).then(|| key.to_owned()), value.map(str::to_owned));
        Some(Toleration { key, value, effect: effect.map(str::to_owned) })
    };
    list(text).into_iter().map(one).collect()
}
