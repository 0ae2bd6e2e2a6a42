//! `[telemetry]`: which traces and metrics are exported, and to which collector. Parsed and checked here.

use super::Usage;
use super::registry::check_url;
use crate::telemetry::{Naming, metrics};
use secrecy::SecretString;
use serde::Deserialize;
use std::collections::BTreeMap;

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
    /// How the collector is spoken to. Default: by the endpoint.
    pub(crate) otlp_protocol: Protocol,
    /// Which names of the GenAI conventions are used. Default `v0.1`.
    pub(crate) naming: Naming,
    /// `[telemetry.traces] enabled`: whether traces are exported. Default true.
    pub(crate) traces: bool,
    /// `[telemetry.metrics] enabled`: whether metrics are exported. Default true.
    pub(crate) metrics: bool,
    /// `[telemetry.metrics] disabled`: metrics that are not exported.
    pub(crate) disabled_metrics: Vec<String>,
}

/// How a collector is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Protocol {
    /// OTLP over gRPC.
    #[serde(rename = "grpc")]
    Grpc,
    /// OTLP over HTTP, with protobuf bodies.
    #[serde(rename = "http/protobuf")]
    Http,
}

impl Protocol {
    /// The protocol of an endpoint for which none is set: HTTP where the URL has the usual port of OTLP over HTTP or a
    /// path, else gRPC.
    fn of(endpoint: Option<&str>) -> Self {
        let uri = endpoint.and_then(|endpoint| endpoint.parse::<http::Uri>().ok());
        match uri {
            Some(uri) if uri.port_u16() == Some(4318) || !uri.path().trim_matches('/').is_empty() => Protocol::Http,
            Some(_) | None => Protocol::Grpc,
        }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Table {
    enabled: bool,
    otlp_endpoint: Option<String>,
    otlp_headers: BTreeMap<String, SecretString>,
    sample_ratio: f64,
    service_name: String,
    otlp_protocol: Option<Protocol>,
    genai_semconv: Naming,
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
            otlp_protocol: None,
            genai_semconv: Naming::default(),
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
            if !metrics::all().any(|known| known.name == name) {
                let known: Vec<_> = metrics::all().map(|known| known.name).collect();
                return Err(Usage::new(format!(
                    "[telemetry.metrics] disabled: unknown metric \"{name}\"; known are {}",
                    known.join(", ")
                )));
            }
        }
        let endpoint = self.otlp_endpoint;
        Ok(Telemetry {
            enabled: self.enabled,
            otlp_endpoint: endpoint.clone(),
            otlp_headers: self.otlp_headers,
            sample_ratio: self.sample_ratio,
            service_name: self.service_name,
            otlp_protocol: self.otlp_protocol.unwrap_or_else(|| Protocol::of(endpoint.as_deref())),
            naming: self.genai_semconv,
            traces: self.traces.enabled,
            metrics: self.metrics.enabled,
            disabled_metrics: self.metrics.disabled,
        })
    }
}
