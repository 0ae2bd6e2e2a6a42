//! No secret and no text of a conversation leaves in a span, a metric, a label or a log line, whatever the filters say.

use super::{send_traced, traceparent};
use serde_json::json;
use tests::cluster;
use tests::collector::Collector;
use tests::fixture::Plan;
use tests::mcp::{Kind, Mcp, Outcome};
use tests::ports::Port;
use tests::provider::Answer;
use tests::server::ADMIN_KEY;

/// Fails if one of these is in a text.
fn assert_none(secrets: &[&str], what: &str, text: &str) {
    for secret in secrets {
        let around = text.find(secret).map(|at| {
            &text
                [text.floor_char_boundary(at.saturating_sub(300))..text.floor_char_boundary((at + 100).min(text.len()))]
        });
        assert_eq!(around, None, "{secret} is in the {what}");
    }
}

#[tokio::test]
async fn nothing_that_was_said_and_no_key() {
    for kind in [Kind::Http, Kind::Sse, Kind::Stdio] {
        let collector = Collector::start().await;
        let mcp = Mcp::start("files", kind, &["ls"]).await;
        let port = Port::reserve();
        let mut plan = Plan::default().mcp(&mcp);
        if kind != Kind::Stdio {
            plan =
                plan.toml("headers = { Authorization = \"Bearer ${MCP_TOKEN}\" }").env("MCP_TOKEN", "said-mcp-token");
        }
        let headers = "otlp_headers = { x-collector = \"${COLLECTOR_TOKEN}\" }";
        let telemetry = if kind == Kind::Sse { collector.http_toml(headers) } else { collector.grpc_toml(headers) };
        let plan = plan
            .toml(&telemetry)
            .env("COLLECTOR_TOKEN", "said-collector-token")
            .env("BAE_METRICS_ADDR", &format!("127.0.0.1:{}", port.number))
            .env("BAE_LOG", "trace")
            .env("BAE_LOG_FORMAT", "json")
            .env("BAE_OTEL_LOG", "trace");
        let mut fixture = plan.start().await;
        let session = fixture.driver().await;
        mcp.push(Outcome::Text("said-tool-output".to_owned()));
        fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({"path": "said-tool-input"}))]));
        fixture.provider.push(Answer::text("said-answer"));
        send_traced(&session, json!("said-message"), &traceparent()).await;
        fixture.provider.push(Answer::tools(&[("tu_2", "clock", json!({"zone": "said-client-input"}))]));
        session.send("said-again").await;
        session.answer(&[("tu_2", "said-client-output")]).await.text();
        mcp.push(Outcome::IsError("said-tool-error".to_owned()));
        fixture.provider.push(Answer::tools(&[("tu_3", "ls", json!({"path": "said-more-input"}))]));
        session.send("said-once-more").await.text();
        fixture.provider.push(Answer::Raw {
            status: 400,
            headers: Vec::new(),
            body: br#"{"error":{"message":"said-provider-body"}}"#.to_vec(),
        });
        session.send("said-last").await;
        let events = serde_json::to_string(&session.events().await).expect("events");
        let url = format!("http://127.0.0.1:{}/metrics", port.number);
        let scraped = fixture.server.http().get(url).send().await.expect("metrics").text().await.expect("a text");
        fixture.server.terminate();
        fixture.server.ended().await;

        let (log, exported) = (fixture.server.log(), collector.printed());
        assert!(log.contains("\"level\":\"DEBUG\"") && exported.contains("invoke_agent"), "nothing to look at");
        let sent = collector
            .headers()
            .into_iter()
            .any(|(name, value)| name == "x-collector" && value == "said-collector-token");
        assert!(sent, "the collector's header");
        let client_key = fixture.key.secret.as_str();
        let keys = ["token-main", ADMIN_KEY, client_key, session.key.as_str()];
        for (what, text) in [("log", &log), ("spans and metrics", &exported), ("scraped text", &scraped)] {
            assert_none(&keys, &format!("{what} ({kind:?})"), text);
            assert_none(&["said-"], &format!("{what} ({kind:?})"), text);
        }
        assert_none(&keys, "events", &events);
        assert_none(&["said-mcp-token", "said-collector-token"], "events", &events);
    }
}

/// The same over Redis and Postgres, where a call goes from one node to another.
#[tokio::test]
async fn nothing_on_its_way_between_nodes() {
    let collector = Collector::start().await;
    let plan = cluster::Plan::default().nodes(2).toml(&collector.grpc_toml(""));
    let plan = plan.env("BAE_LOG", "trace").env("BAE_OTEL_LOG", "trace");
    let mut cluster = plan.start().await;
    let (session, owner) = cluster.owned_session().await;
    let at = cluster.at(&session, 1 - owner);
    cluster.provider.push(Answer::text("said-answer"));
    at.send("said-message").await.text();
    cluster.provider.push(Answer::tools(&[("tu_2", "clock", json!({"zone": "said-client-input"}))]));
    at.send("said-again").await;
    at.answer(&[("tu_2", "said-client-output")]).await.text();
    for node in &mut cluster.nodes {
        node.server.terminate();
        node.server.ended().await;
    }
    let secrets = ["said-", "token-main", ADMIN_KEY, cluster.key.secret.as_str(), session.key.as_str()];
    for node in &cluster.nodes {
        assert_none(&secrets, "log", &node.server.log());
    }
    assert_none(&secrets, "spans and metrics", &collector.printed());
}
