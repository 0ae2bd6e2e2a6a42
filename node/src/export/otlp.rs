//! The exporters that speak to a collector.

use crate::config::{Config, Protocol, resolve};
use anyhow::Context;
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig};
use secrecy::ExposeSecret;
use std::collections::HashMap;
use std::time::Duration;

/// How long a collector may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The exporter of metrics.
pub(super) fn metrics(config: &Config) -> anyhow::Result<MetricExporter> {
    let endpoint = config.telemetry.otlp_endpoint.as_deref().unwrap_or_default();
    let exporter = match config.telemetry.otlp_protocol {
        Protocol::Grpc => {
            let builder = MetricExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(TIMEOUT);
            let builder = builder.with_metadata(metadata(config)?);
            if is_tls(endpoint) { builder.with_tls_config(tls()).build() } else { builder.build() }
        }
        Protocol::Http => {
            let builder = MetricExporter::builder().with_http().with_endpoint(path(endpoint, "v1/metrics"));
            builder.with_timeout(TIMEOUT).with_headers(headers(config)?).build()
        }
    };
    Ok(exporter?)
}

/// The exporter of spans.
pub(super) fn spans(config: &Config) -> anyhow::Result<SpanExporter> {
    let endpoint = config.telemetry.otlp_endpoint.as_deref().unwrap_or_default();
    let exporter = match config.telemetry.otlp_protocol {
        Protocol::Grpc => {
            let builder = SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(TIMEOUT);
            let builder = builder.with_metadata(metadata(config)?);
            if is_tls(endpoint) { builder.with_tls_config(tls()).build() } else { builder.build() }
        }
        Protocol::Http => {
            let builder = SpanExporter::builder().with_http().with_endpoint(path(endpoint, "v1/traces"));
            builder.with_timeout(TIMEOUT).with_headers(headers(config)?).build()
        }
    };
    Ok(exporter?)
}

fn is_tls(endpoint: &str) -> bool {
    endpoint.starts_with("https://")
}

fn tls() -> ClientTlsConfig {
    ClientTlsConfig::new().with_webpki_roots()
}

/// The URL of one signal: the endpoint is that of the collector.
fn path(endpoint: &str, signal: &str) -> String {
    format!("{}/{signal}", endpoint.trim_end_matches('/'))
}

/// The configured headers, with their placeholders replaced.
fn headers(config: &Config) -> anyhow::Result<HashMap<String, String>> {
    let resolved = config.telemetry.otlp_headers.iter().map(|(name, value)| {
        let value = resolve(value.expose_secret(), config.environment.as_ref());
        let value = value.with_context(|| format!("the header {name} of otlp_headers cannot be sent"))?;
        Ok((name.clone(), value.expose_secret().to_owned()))
    });
    resolved.collect()
}

fn metadata(config: &Config) -> anyhow::Result<MetadataMap> {
    let mut map = http::HeaderMap::new();
    for (name, value) in headers(config)? {
        let mut value = http::HeaderValue::try_from(value)
            .map_err(|_| anyhow::anyhow!("the header {name} of otlp_headers cannot be sent"))?;
        value.set_sensitive(true);
        map.insert(http::HeaderName::try_from(&name)?, value);
    }
    Ok(MetadataMap::from_headers(map))
}
