//! What is measured of a call that runs: how long it takes and how much of that is the product's own, how it ends, and
//! its tool calls. [`super::drive`] reports, and decides nothing by it.

use crate::app::App;
use crate::telemetry::metrics::metrics;
use crate::telemetry::model::Usage;
use crate::telemetry::spans;
use engine::event::{Event, EventType, Payload};
use engine::gate::{End, GateAfter, GateFound};
use engine::json::Object;
use engine::outcome::Outcome;
use engine::round::Dispatch;
use opentelemetry::KeyValue;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Span;

/// The course of a call on this node.
pub(super) struct Course {
    begun: Instant,
    /// The time of providers and tools.
    outside: Duration,
    span: Span,
    input_tokens: u64,
    output_tokens: u64,
}

impl Course {
    pub(super) fn begin(span: Span) -> Self {
        Self { begun: Instant::now(), outside: Duration::ZERO, span, input_tokens: 0, output_tokens: 0 }
    }

    /// A provider that was asked then has answered, or could not.
    pub(super) fn asked(&mut self, since: Instant, usage: Usage) {
        self.outside += since.elapsed();
        self.input_tokens = self.input_tokens.saturating_add(usage.input.unwrap_or(0));
        self.output_tokens = self.output_tokens.saturating_add(usage.output.unwrap_or(0));
    }

    /// A tool that was called then has answered, or could not.
    pub(super) fn tool(&mut self, span: &Span, kind: Dispatch, since: Instant, succeeded: bool) {
        let time = since.elapsed();
        self.outside += time;
        if !succeeded {
            spans::failed(span, "tool_error");
        }
        metrics().tool_latency.record(time, &[KeyValue::new("kind", kind.as_str())]);
        tool_ended(kind, succeeded);
    }

    /// The call has ended, or pauses.
    pub(super) fn ended(self, end: &End) {
        let time = self.begun.elapsed();
        metrics().turn_duration.record(time, &[]);
        metrics().turn_overhead.record(time.saturating_sub(self.outside), &[]);
        self.span.record("gen_ai.usage.input_tokens", self.input_tokens.cast_signed());
        self.span.record("gen_ai.usage.output_tokens", self.output_tokens.cast_signed());
        let outcome = match (end.gate, &end.outcome) {
            (GateAfter::Paused(_), _) => "paused",
            (GateAfter::Free, Outcome::Message(_) | Outcome::Compacted(_)) => "ok",
            (GateAfter::Failed, _) | (GateAfter::Free, Outcome::Unavailable | Outcome::Error(_)) => "failed",
        };
        ended(&self.span, outcome);
    }
}

/// Counts the end of a call.
pub(super) fn ended(span: &Span, outcome: &'static str) {
    span.record("bae.outcome", outcome);
    if outcome == "failed" {
        spans::failed(span, outcome);
    }
    metrics().turns_completed.add(1, &[KeyValue::new("outcome", outcome)]);
}

/// A call has opened: counts the pause that it took over, or the results that its client sent.
pub(super) fn opened(app: &App, found: GateFound, committed: &[Arc<Event>]) {
    match found {
        GateFound::Free => {}
        GateFound::ExpiredPause => ended(&Span::none(), "abandoned"),
        // The results are read only where somebody reads the metrics, because they may be long.
        GateFound::OwnPause if app.config.has_metrics() => {
            for event in committed.iter().map(|committed| &committed.event) {
                if let (EventType::ToolResult, true, Payload::Json(result)) =
                    (event.kind, event.from_client, &event.payload)
                {
                    let failed = Object::parse(result).and_then(|result| result.get("is_error"));
                    tool_ended(Dispatch::Client, failed.is_none_or(|failed| failed.get() != "true"));
                }
            }
        }
        GateFound::OwnPause => {}
    }
}

fn tool_ended(kind: Dispatch, succeeded: bool) {
    let outcome = if succeeded { "ok" } else { "error" };
    metrics().tool_calls.add(1, &[KeyValue::new("kind", kind.as_str()), KeyValue::new("outcome", outcome)]);
}
