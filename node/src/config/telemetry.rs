//! `[telemetry]`: which traces and metrics are exported, and to which collector. Parsed and checked here.

use super::Usage;
use super::registry::check_url;
use secrecy::SecretString;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Every metric that can be switched off by name.
pub(crate) const METRICS: [&str; 15] = [
    "bae.sessions.open",
    "bae.sessions.total",
    "bae.events.total",
    "bae.profiles.count",
    "bae.keys.count",
    "bae.mcp.sessions.live",
    "bae.turns.pending",
    "bae.sandboxes.live",
    "bae.subagents.active",
    "bae.drivers.registered",
    "bae.turns.completed",
    "bae.provider.requests",
    "bae.provider.latency",
    "bae.tool.calls",
    "bae.tool.latency",
];

/// The `[telemetry]` table.
#[derive(Debug, Clone)]
pub(crate) struct Telemetry {
    /// Whether anything is exported. Default false.
    pub(crate) enabled: bool,
    /// The collector's URL.
    pub(crate) otlp_endpoint: Option<String>,
    /// Headers of requests to the collector, with `${NAME}` not yet replaced.
    pub(crate) otlp_headers: BTreeMap<String, SecretString>,
    /// The share of traces that is kept, 0 to 1. Default 1.
    pub(crate) sample_ratio: f64,
    /// The name under which this node exports. Default `baesrv`.
    pub(crate) service_name: String,
    /// `[telemetry.traces] enabled`: whether traces are exported. Default true.
    pub(crate) traces: bool,
    /// `[telemetry.metrics] enabled`: whether metrics are exported. Default true.
    pub(crate) metrics: bool,
    /// `[telemetry.metrics] disabled`: metrics that are not exported.
    pub(crate) disabled_metrics: Vec<String>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Table {
    enabled: bool,
    otlp_endpoint: Option<String>,
    otlp_headers: BTreeMap<String, SecretString>,
    sample_ratio: f64,
    service_name: String,
    traces: Traces,
    metrics: Metrics,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            enabled: false,
            otlp_endpoint: None,
            otlp_headers: BTreeMap::new(),
            sample_ratio: 1.0,
            service_name: "baesrv".into(),
            traces: Traces::default(),
            metrics: Metrics::default(),
        }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Traces {
    enabled: bool,
}

impl Default for Traces {
    fn default() -> Self {
        Self { enabled: true }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Metrics {
    enabled: bool,
    disabled: Vec<String>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { enabled: true, disabled: Vec::new() }
    }
}

impl Table {
    pub(super) fn check(self) -> Result<Telemetry, Usage> {
        let refuse = |what: String| Usage::new(format!("[telemetry] {what}"));
        match &self.otlp_endpoint {
            Some(url) => check_url(url).map_err(|what| refuse(format!("otlp_endpoint {what}")))?,
            None if self.enabled => {
                return Err(refuse("otlp_endpoint is missing; set it, or enabled = false".into()));
            }
            None => {}
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return Err(refuse(format!("sample_ratio must be between 0 and 1, not {}", self.sample_ratio)));
        }
        if self.service_name.trim().is_empty() {
            return Err(refuse("service_name must not be blank".into()));
        }
        for header in self.otlp_headers.keys() {
            if http::HeaderName::try_from(header).is_err() {
                return Err(refuse(format!("\"{header}\" in otlp_headers is not a header name")));
            }
        }
        for name in &self.metrics.disabled {
            if !METRICS.contains(&name.as_str()) {
                return Err(Usage::new(format!(
                    "[telemetry.metrics] disabled: unknown metric \"{name}\"; known are {}",
                    METRICS.join(", ")
                )));
            }
        }
        Ok(Telemetry {
            enabled: self.enabled,
            otlp_endpoint: self.otlp_endpoint,
            otlp_headers: self.otlp_headers,
            sample_ratio: self.sample_ratio,
            service_name: self.service_name,
            traces: self.traces.enabled,
            metrics: self.metrics.enabled,
            disabled_metrics: self.metrics.disabled,
        })
    }
}
