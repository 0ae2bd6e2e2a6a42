//! The reference, docs/telemetry.md, made from the catalogues. After a change of one:
//! `BAE_WRITE_REFERENCE=1 cargo test -p node reference`.

use super::{metrics, spans};
use std::fmt::Write;
use std::path::Path;

const HEAD: &str = "\
# Telemetry

What a server tells of itself: its metrics and its spans. This page is made from the catalogues in the code
(`coordinator/src/metrics.rs`, `node/src/telemetry`), and a test keeps it so. How to switch it on is in
[settings.md](settings.md#telemetry).

No metric, span, attribute or log line holds a key, a token, a message, the input or output of a tool, or the body of a
provider's answer. Labels of metrics are small closed sets: no ids of sessions or clients, and no names of tools.

## Metrics

They go to a collector (OTLP), to whoever reads the scrape port, or to both. On the scrape port dots are underscores,
seconds end in `_seconds` and counters in `_total`: `bae.turn.duration` is `bae_turn_duration_seconds`.
`[telemetry.metrics] disabled` switches each off by its name.

Gauges of the cluster are counted in the database every 15 seconds, by one node at a time; the others do not report them, so
take the greatest. All else is of one node. `error.type` is `timeout`, a status like `429`, `tool_error`, `refused` or
`_OTHER`, and absent where there was no error.

| name | kind | unit | labels | meaning |
|---|---|---|---|---|
";

const SPANS: &str = "
## Spans

They go to the collector. `BAE_OTEL_LOG` is the filter of what is exported, by target, like `info,bae::request=off`. What a
trace's first span decides by `sample_ratio` holds for the whole trace, in every node; a caller who sends a `traceparent` has
decided already.

A call is stored with the trace context of the request that brought it, so that its turn is in one trace whichever node runs
it. The span of a turn has the last 16 hexadecimal digits of the call's id as its id, and where the call has no trace context,
the call's id is the trace's. `tracestate` is not kept. JSON log lines within a span have its ids as `trace_id` and `span_id`.

| target | name | kind | attributes | what it covers |
|---|---|---|---|---|
";

fn code(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut all: Vec<_> = metrics::all().collect();
    all.sort_by_key(|metric| metric.name);
    for metric in all {
        let (kind, unit, labels) = (metric.kind.as_str(), metric.unit, code(metric.labels));
        let _ = writeln!(page, "| `{}` | {kind} | {unit} | {labels} | {} |", metric.name, metric.meaning);
    }
    page.push_str(SPANS);
    for span in spans::SPANS {
        let (attributes, meaning) = (code(span.attributes), span.meaning);
        let _ = writeln!(page, "| `{}` | `{}` | {} | {attributes} | {meaning} |", span.target, span.name, span.kind);
    }
    page
}

#[test]
fn the_reference_is_that_of_the_catalogues() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/telemetry.md");
    if std::env::var_os("BAE_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, page()).expect("the reference is written");
    }
    let written = std::fs::read_to_string(&path).expect("docs/telemetry.md");
    assert!(written == page(), "docs/telemetry.md is not that of the catalogues: BAE_WRITE_REFERENCE=1 writes it");
}

#[test]
fn every_metric_is_named_once() {
    let mut names: Vec<_> = metrics::all().map(|metric| metric.name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}
