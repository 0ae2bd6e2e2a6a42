//! Metrics and spans: what a collector gets over OTLP, what the scrape port answers, and what must never be in either.

mod collectors;
mod dashboards;
mod metrics;
mod secrets;
mod takeover;
mod traces;

use serde_json::{Value, json};
use tests::client::{Reply, Session};

/// The trace context that a caller sends: its trace, its span, and the whole header.
pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
pub(crate) const PARENT: &str = "00f067aa0ba902b7";

pub(crate) fn traceparent() -> String {
    format!("00-{TRACE}-{PARENT}-01")
}

/// Sends a message with a `traceparent` header and reads the whole answer.
pub(crate) async fn send_traced(session: &Session, content: Value, traceparent: &str) -> Reply {
    let request = session
        .api()
        .request("POST", &session.path("/rpc"))
        .header("authorization", format!("Bearer {}", session.key))
        .header("traceparent", traceparent);
    let params = json!({"message": {"content": content}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "session.sendMessage", "params": params});
    session.api().send(request.body(body.to_string())).await.expect(200)
}

/// The names in a table of docs/telemetry.md whose rows begin with this cell, by the column.
pub(crate) fn documented(begins: &str, column: usize) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/telemetry.md");
    let page = std::fs::read_to_string(page).expect("docs/telemetry.md");
    let rows = page.lines().filter(|line| line.starts_with(begins));
    let cells = rows.filter_map(|row| row.split('|').nth(column).map(str::to_owned));
    cells
        .flat_map(|cell| cell.split(", ").map(|name| name.trim().trim_matches('`').to_owned()).collect::<Vec<_>>())
        .collect()
}
