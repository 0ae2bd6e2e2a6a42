//! The metrics of a turn, pushed and scraped.

use super::documented;
use serde_json::json;
use std::io::Write;
use std::process::{Command, Stdio};
use tests::collector::{Attributes, Collector};
use tests::fixture::{Fixture, Plan};
use tests::mcp::{Kind, Mcp};
use tests::poll;
use tests::ports::Port;
use tests::provider::Answer;

/// A turn with a tool of an MCP server, one with a tool of the client, and one that fails.
async fn turns(fixture: &Fixture) {
    let session = fixture.driver().await;
    fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({"path": "/"}))]));
    session.send("files?").await.text();
    fixture.provider.push(Answer::tools(&[("tu_2", "clock", json!({}))]));
    session.send("the time?").await;
    session.answer(&[("tu_2", "noon")]).await.text();
    fixture.provider.push(Answer::status(529));
    session.send("fails").await;
}

fn of<'a>(points: &'a [(Attributes, f64)], labels: &[(&str, &str)]) -> Option<&'a f64> {
    let wanted = |(attributes, _): &&(Attributes, f64)| {
        labels.iter().all(|(name, value)| attributes.get(*name).is_some_and(|found| found == value))
    };
    points.iter().find(wanted).map(|(_, value)| value)
}

async fn scraped(fixture: &Fixture, port: &Port) -> String {
    let url = format!("http://127.0.0.1:{}/metrics", port.number);
    let answer = fixture.server.http().get(url).send().await.expect("the scrape port");
    assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    answer.text().await.expect("a text")
}

/// What Prometheus's own tool has against a text.
fn promtool(text: &str) -> Vec<String> {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (Debian: apt-get install prometheus)");
    child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("a text for promtool");
    let output = child.wait_with_output().expect("promtool ends");
    String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn pushed_and_scraped() {
    let collector = Collector::start().await;
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let port = Port::reserve();
    let plan = Plan::default().mcp(&mcp).toml(&collector.grpc_toml(
        "genai_semconv = \"both\"\n[telemetry.metrics]\ndisabled = [\"bae.tool.latency\", \"bae.sessions.owned\"]",
    ));
    let mut fixture = plan.env("BAE_METRICS_ADDR", &format!("127.0.0.1:{}", port.number)).start().await;
    turns(&fixture).await;
    let text = scraped(&fixture, &port).await;
    for line in [
        "bae_sessions_total 1",
        "bae_events_total{type=\"tool.result\"} 2",
        "bae_turns_completed_total{outcome=\"ok\"} 2",
        "bae_turns_completed_total{outcome=\"paused\"} 1",
        "bae_turns_completed_total{outcome=\"failed\"} 1",
        "bae_provider_requests_total{model=\"mock-main\",outcome=\"error\",provider=\"anthropic\"} 1",
        "bae_tool_calls_total{kind=\"mcp\",outcome=\"ok\"} 1",
        "bae_tool_calls_total{kind=\"client\",outcome=\"ok\"} 1",
        "bae_turn_duration_seconds_count 4",
        "bae_turn_duration_seconds_bucket{le=\"+Inf\"} 4",
        "bae_http_requests_total{port=\"client\",route=\"/api/v1/sessions\",status=\"201\"} 1",
        "bae_turns_running 0",
        "bae_mcp_sessions_live 0",
    ] {
        let sorted = |line: &str| {
            line.replace(['{', '}'], ",").split(',').map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
        };
        assert!(text.lines().any(|found| sorted(found) == sorted(line)), "{line} is not in\n{text}");
    }
    // The two names are of the contract; a gauge of Prometheus should end otherwise.
    let remarks = promtool(&text);
    let known = ["bae_keys_count ", "bae_profiles_count "];
    assert!(remarks.iter().all(|remark| known.iter().any(|name| remark.starts_with(name))), "{remarks:#?}");

    fixture.server.terminate();
    fixture.server.ended().await;
    let completed = collector.points("bae.turns.completed");
    assert_eq!(of(&completed, &[("outcome", "ok")]), Some(&2.0), "{completed:?}");
    let tokens = collector.points("gen_ai.client.inference.usage.input_tokens");
    assert_eq!(of(&tokens, &[("gen_ai.request.model", "mock-main")]), Some(&40.0), "{tokens:?}");
    let tokens = collector.points("gen_ai.client.token.usage");
    assert_eq!(of(&tokens, &[("gen_ai.token.type", "output")]), Some(&4.0), "{tokens:?}");
    let inferences = collector.points("gen_ai.client.inference.duration");
    assert_eq!(of(&inferences, &[("error.type", "529")]), None.or(Some(&1.0)), "{inferences:?}");
    let operations = collector.points("mcp.client.operation.duration");
    assert_eq!(of(&operations, &[("mcp.method.name", "tools/call")]), Some(&1.0), "{operations:?}");
    for name in ["bae.tool.latency", "bae.sessions.owned"] {
        assert!(collector.points(name).is_empty(), "{name} is disabled");
        assert!(!text.contains(&name.replace('.', "_")), "{name} is disabled");
    }
    // Every name and label is documented.
    for name in collector.metrics() {
        let labels = documented(&format!("| `{name}` "), 4);
        assert!(!labels.is_empty(), "{name} is not in docs/telemetry.md");
        for (attributes, _) in collector.points(&name) {
            assert!(attributes.keys().all(|label| labels.contains(label)), "{name}: {attributes:?}, {labels:?}");
        }
    }
}

/// The scrape port needs no `[telemetry]`; the gauges of the cluster are counted.
#[tokio::test]
async fn scraped_alone() {
    let port = Port::reserve();
    let addr = format!("127.0.0.1:{}", port.number);
    let fixture = Plan::default().env("BAE_METRICS_ADDR", &addr).start().await;
    fixture.driver().await.send("hello").await.text();
    let mut text = String::new();
    poll::until(poll::DEADLINE, "the gauges of the cluster", async || {
        text = scraped(&fixture, &port).await;
        let counted = ["bae_profiles_count ", "bae_keys_count ", "bae_sessions_open ", "bae_drivers_registered "];
        if counted.iter().all(|name| text.contains(&format!("\n{name}"))) { Ok(()) } else { Err(text.clone()) }
    })
    .await;
    assert!(promtool(&text).len() <= 2);
    let other = fixture.server.http().get(format!("http://{addr}/")).send().await.expect("an answer");
    assert_eq!(other.status(), 404);
}
