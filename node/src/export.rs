//! Where metrics and spans go: to a collector (OTLP, where `[telemetry]` is enabled), and to whoever reads the scrape port.
//!
//! [`start`] sets up the pipelines, once and before anything is recorded, because instruments are made at their first
//! use and stay bound to the pipeline of that moment. [`Export::shutdown`] sends what is left. What the pipelines
//! themselves log never reaches them, and nothing that goes wrong here costs a turn anything: when a collector does not
//! take what it is sent, it is dropped.

mod gauges;
mod otlp;
mod scrape;

pub(crate) use gauges::observe;

use crate::config::Config;
use crate::telemetry::context::Ids;
use anyhow::Context;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{Aggregation, Instrument, PeriodicReader, SdkMeterProvider, Stream};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider};
use scrape::Reader;
use std::time::Duration;

/// The time between two exports of metrics.
const INTERVAL: Duration = Duration::from_secs(15);
/// How many spans may wait for their export; further ones are dropped.
const QUEUE: usize = 8192;
/// How long the last export may take when the node ends.
const LAST_EXPORT: Duration = Duration::from_secs(3);

/// The pipelines of this process.
pub(crate) struct Export {
    meters: Option<SdkMeterProvider>,
    tracers: Option<SdkTracerProvider>,
    reader: Option<Reader>,
}

/// Sets up what the configuration asks for.
///
/// # Errors
/// When the settings of the collector cannot be used.
pub(crate) fn start(config: &Config) -> anyhow::Result<Export> {
    let telemetry = &config.telemetry;
    let resource = Resource::builder_empty()
        .with_service_name(telemetry.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", hex::encode(coordinator::fresh_id())))
        .build();
    let reader = config.metrics_addr.map(|_| Reader::default());
    let meters = config.has_metrics().then(|| -> anyhow::Result<_> {
        let disabled = telemetry.disabled_metrics.clone();
        let drop = move |instrument: &Instrument| {
            let dropped = disabled.iter().any(|name| name == instrument.name());
            dropped.then(|| Stream::builder().with_aggregation(Aggregation::Drop).build().ok()).flatten()
        };
        let mut meters = SdkMeterProvider::builder().with_resource(resource.clone()).with_view(drop);
        if let Some(reader) = &reader {
            meters = meters.with_reader(reader.clone());
        }
        if telemetry.enabled && telemetry.metrics {
            let exporter = otlp::metrics(config).context("the export of metrics cannot be set up")?;
            meters = meters.with_reader(PeriodicReader::builder(exporter).with_interval(INTERVAL).build());
        }
        let meters = meters.build();
        opentelemetry::global::set_meter_provider(meters.clone());
        Ok(meters)
    });
    let tracers = config.has_traces().then(|| -> anyhow::Result<_> {
        let exporter = otlp::spans(config).context("the export of spans cannot be set up")?;
        let queue = BatchConfigBuilder::default().with_max_queue_size(QUEUE).build();
        Ok(SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(telemetry.sample_ratio))))
            .with_id_generator(Ids::default())
            .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(queue).build())
            .build())
    });
    Ok(Export { meters: meters.transpose()?, tracers: tracers.transpose()?, reader })
}

impl Export {
    /// What makes spans, if they are exported.
    pub(crate) fn tracer(&self) -> Option<SdkTracer> {
        self.tracers.as_ref().map(|tracers| tracers.tracer("bae"))
    }

    /// The routes of the scrape port: none if metrics are not scraped.
    pub(crate) fn router(&self) -> axum::Router {
        self.reader.clone().map(scrape::router).unwrap_or_default()
    }

    /// Sends what is left, for a limited time. Blocking calls of the exporters get a thread of their own, because on a
    /// worker of the runtime they would wait for a task that cannot run meanwhile.
    pub(crate) async fn shutdown(self) {
        let Export { meters, tracers, .. } = self;
        if meters.is_none() && tracers.is_none() {
            return;
        }
        // Both at once, so that they share the time.
        let spans =
            tokio::task::spawn_blocking(move || tracers.map_or(Ok(()), |of| of.shutdown_with_timeout(LAST_EXPORT)));
        let metrics =
            tokio::task::spawn_blocking(move || meters.map_or(Ok(()), |of| of.shutdown_with_timeout(LAST_EXPORT)));
        let last = async {
            for (what, sent) in [("spans", spans.await), ("metrics", metrics.await)] {
                if let Ok(Err(error)) = sent {
                    tracing::warn!(%error, "the last {what} were not exported");
                }
            }
        };
        if tokio::time::timeout(LAST_EXPORT, last).await.is_err() {
            tracing::warn!("the collector did not take the last metrics and spans in time");
        }
    }
}
