//! Log lines, on standard error, as text or JSON, filtered by `BAE_LOG`; and the spans that are exported, filtered by
//! `BAE_OTEL_LOG`. The commands that serve start it once.
//!
//! Some libraries log message contents or headers. Those lines are dropped whatever the filter says. Exported are the
//! spans of the program alone, and no log lines: what the exporters log does not reach them. JSON lines within an exported
//! span name it and its trace.

use crate::config::{Config, LogFormat};
use crate::mcp::UNSAFE_TARGETS;
use crate::telemetry::{context, spans};
use opentelemetry_sdk::trace::SdkTracer;
use std::fmt;
use std::io::IsTerminal;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::fmt::format::{Format, Json, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Starts logging for this process, and the export of spans if there is a tracer. A second call changes nothing.
pub(crate) fn start(config: &Config, tracer: Option<SdkTracer>) {
    // The filters were checked with the configuration.
    let filter = |text: &str| EnvFilter::try_new(text).unwrap_or_default();
    let exported = tracer.map(|tracer| {
        tracing_opentelemetry::layer()
            .with_location(false)
            .with_threads(false)
            .with_level(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_tracer(tracer)
            .with_filter(filter_fn(exported).and(filter(&config.otel_log)))
    });
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match config.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines
            .fmt_fields(JsonFields::new())
            .event_format(Traced(Format::default().json().flatten_event(true)))
            .boxed(),
    };
    let lines = lines.with_filter(filter_fn(harmless).and(filter(&config.log)));
    let _ = tracing_subscriber::registry().with(exported).with(lines).try_init();
}

/// Whether it is a span of the program.
fn exported(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with(spans::TARGETS)
}

/// Whether a line may be logged. The MCP library logs messages and environments, and the HTTP libraries log headers at
/// their finest level. Notices of Postgres, about tables that exist already, are dropped because they tell nothing.
fn harmless(metadata: &Metadata<'_>) -> bool {
    let krate = metadata.target().split("::").next().unwrap_or_default();
    match krate {
        krate if UNSAFE_TARGETS.contains(&krate) => false,
        // Spans that are exported are not shown in lines.
        "bae" => !metadata.is_span(),
        // The clients of container runtimes log what they send, commands and their input too.
        krate if krate == "bollard" || krate.starts_with("kube") || krate.contains("tungstenite") => {
            *metadata.level() <= Level::INFO
        }
        "sqlx" if metadata.target() == "sqlx::postgres::notice" => *metadata.level() <= Level::WARN,
        // What they say of what they could not send.
        krate if krate.starts_with("opentelemetry") => *metadata.level() <= Level::WARN,
        "h2" | "hyper" | "hyper_util" | "reqwest" | "rustls" | "tonic" => *metadata.level() <= Level::DEBUG,
        _ => true,
    }
}

/// JSON lines that end with the ids of the current span and its trace, where there is one.
struct Traced(Format<Json>);

impl<S> FormatEvent<S, JsonFields> for Traced
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some((trace, span)) = context::current_ids() else {
            return self.0.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        match line.trim_end().strip_suffix('}') {
            Some(begun) => writeln!(writer, r#"{begun},"trace_id":"{trace}","span_id":"{span}"}}"#),
            None => writer.write_str(&line),
        }
    }
}
