//! The scrape port: `GET /metrics` in the text format of Prometheus (version 0.0.4).
//!
//! A reader of its own asks the same instruments that the push to a collector reads. The text is written here because
//! the exporter crate for Prometheus would name `bae.sessions.total` `bae_sessions_total_total`. Dots of names become
//! underscores, seconds get the suffix `_seconds`, counters the suffix `_total`.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use opentelemetry::KeyValue;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, ManualReader, Pipeline, Temporality};
use std::fmt::{Display, Write};
use std::sync::{Arc, Weak};
use std::time::Duration;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Reads the instruments when somebody asks. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Reader(Arc<ManualReader>);

impl MetricReader for Reader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}

/// The port's routes.
pub(super) fn router(reader: Reader) -> Router {
    Router::new().route("/metrics", get(move || async move { answer(&reader) }))
}

fn answer(reader: &Reader) -> Response {
    let mut metrics = ResourceMetrics::default();
    if let Err(error) = reader.collect(&mut metrics) {
        tracing::warn!(%error, "the metrics could not be read");
        return http::StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    ([(CONTENT_TYPE, TEXT)], text(&metrics)).into_response()
}

fn text(metrics: &ResourceMetrics) -> String {
    let mut text = String::with_capacity(16 << 10);
    for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
        match metric.data() {
            AggregatedMetrics::F64(data) => write_metric(&mut text, metric, data),
            AggregatedMetrics::U64(data) => write_metric(&mut text, metric, data),
            AggregatedMetrics::I64(data) => write_metric(&mut text, metric, data),
        }
    }
    text
}

fn write_metric<T: Display + Copy>(text: &mut String, metric: &Metric, data: &MetricData<T>) {
    let (kind, suffix) = match data {
        MetricData::Gauge(_) => ("gauge", ""),
        MetricData::Sum(sum) if sum.is_monotonic() => ("counter", "_total"),
        MetricData::Sum(_) => ("gauge", ""),
        MetricData::Histogram(_) => ("histogram", ""),
        // No instrument of the program is one.
        MetricData::ExponentialHistogram(_) => return,
    };
    let name = name(metric.name(), metric.unit(), suffix);
    let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", escaped(metric.description(), false));
    match data {
        MetricData::Gauge(gauge) => {
            gauge.data_points().for_each(|point| line(text, &name, point.attributes(), None, point.value()));
        }
        MetricData::Sum(sum) => {
            sum.data_points().for_each(|point| line(text, &name, point.attributes(), None, point.value()));
        }
        MetricData::Histogram(histogram) => {
            for point in histogram.data_points() {
                let bounds = point.bounds().map(|bound| bound.to_string()).chain(["+Inf".to_owned()]);
                let mut below = 0;
                for (bound, count) in bounds.zip(point.bucket_counts()) {
                    below += count;
                    line(text, &format!("{name}_bucket"), point.attributes(), Some(&bound), below);
                }
                line(text, &format!("{name}_sum"), point.attributes(), None, point.sum());
                line(text, &format!("{name}_count"), point.attributes(), None, point.count());
            }
        }
        MetricData::ExponentialHistogram(_) => {}
    }
}

fn name(name: &str, unit: &str, suffix: &str) -> String {
    let mut name = name.replace('.', "_");
    for suffix in [if unit == "s" { "_seconds" } else { "" }, suffix] {
        if !name.ends_with(suffix) {
            name.push_str(suffix);
        }
    }
    name
}

/// One line: `name{label="value",le="bound"} value`.
fn line<'a>(
    text: &mut String,
    name: &str,
    labels: impl Iterator<Item = &'a KeyValue>,
    bound: Option<&str>,
    value: impl Display,
) {
    text.push_str(name);
    let labels = labels.map(|label| (label.key.as_str().replace('.', "_"), label.value.as_str()));
    let bound = bound.map(|bound| ("le".to_owned(), bound.into()));
    let mut separator = '{';
    for (label, value) in labels.chain(bound) {
        let _ = write!(text, "{separator}{label}=\"{}\"", escaped(&value, true));
        separator = ',';
    }
    if separator == ',' {
        text.push('}');
    }
    let _ = writeln!(text, " {value}");
}

fn escaped(text: &str, quoted: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quoted { text.replace('"', "\\\"") } else { text }
}
