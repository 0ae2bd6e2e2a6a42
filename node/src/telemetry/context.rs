//! Trace context (W3C): what comes in with requests, what is stored with a call, and what goes out to MCP servers.
//!
//! The span of a turn has an id that follows from the call, so that whoever carries the turn on can link its own span to
//! it with nothing stored but the call's `traceparent`: the span's id is the second half of the call's id, which is
//! random. Where no trace context is stored, the trace's id is the call's.

use axum::http::HeaderMap;
use engine::ids::CallId;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use std::cell::Cell;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The request's `traceparent`, if it is valid. Another one is never an error (docs/api.md 2.6).
pub(crate) fn received(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    parse(text).map(|_| text)
}

/// The context that a `traceparent` names.
pub(crate) fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let known = version != "00" || parts.next().is_none();
    if !known || !hex(version, 2) || version == "ff" || !hex(trace, 32) || !hex(span, 16) || !hex(flags, 2) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & TraceFlags::SAMPLED.to_u8());
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::NONE)).filter(SpanContext::is_valid)
}

/// The `traceparent` of the current span. None outside of spans, and where spans are not exported.
pub(crate) fn current() -> Option<String> {
    opentelemetry::Context::map_current(|context| text(context.span().span_context()))
}

/// The ids of the current span's trace and of the span itself, for log lines.
pub(crate) fn current_ids() -> Option<(TraceId, SpanId)> {
    opentelemetry::Context::map_current(|context| {
        let span = context.span();
        let context = span.span_context();
        context.is_valid().then(|| (context.trace_id(), context.span_id()))
    })
}

fn text(context: &SpanContext) -> Option<String> {
    let flags = context.trace_flags().to_u8();
    context.is_valid().then(|| format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id()))
}

/// Makes a span the child of a span of another process.
pub(super) fn under(span: &Span, parent: Option<SpanContext>) {
    if let Some(parent) = parent {
        // It fails where the span is not exported, and then there is nothing to do.
        let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(parent));
    }
}

/// Starts the span of a turn under the call's own id.
pub(super) fn start_turn(span: &Span, call: CallId) {
    NEXT.set(Some((TraceId::from_bytes(call.0), turn_id(call))));
    let _started = span.context();
    NEXT.set(None);
}

/// Links the span of a turn that is carried on to the span of its first owner.
pub(super) fn link_turn(span: &Span, call: CallId, parent: Option<SpanContext>) {
    let trace = parent.as_ref().map_or_else(|| TraceId::from_bytes(call.0), SpanContext::trace_id);
    let flags = parent.map_or(TraceFlags::SAMPLED, |parent| parent.trace_flags());
    span.add_link(SpanContext::new(trace, turn_id(call), flags, true, TraceState::NONE));
}

fn turn_id(call: CallId) -> SpanId {
    let [.., a, b, c, d, e, f, g, h] = call.0;
    SpanId::from_bytes([a, b, c, d, e, f, g, h])
}

thread_local! {
    /// The ids of the span that this thread starts next, if they are given.
    static NEXT: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Makes random ids, except where a turn's span is started.
#[derive(Debug, Default)]
pub(crate) struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        NEXT.get().map_or_else(|| self.0.new_trace_id(), |(trace, _)| trace)
    }

    fn new_span_id(&self) -> SpanId {
        NEXT.get().map_or_else(|| self.0.new_span_id(), |(_, span)| span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_valid_ones_count() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_static(text));
            received(&headers).is_some()
        };
        assert!(of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        assert!(of("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later"));
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        ] {
            assert!(!of(bad), "{bad}");
        }
    }

    #[test]
    fn what_was_read_is_written_the_same() {
        let known = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(parse(known).as_ref().and_then(text).as_deref(), Some(known));
    }
}
