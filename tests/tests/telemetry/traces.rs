//! The spans of a turn: their tree, their attributes, the context that comes in and goes out.

use super::{PARENT, TRACE, documented, send_traced, traceparent};
use serde_json::json;
use tests::collector::{Collector, Span};
use tests::fixture::Plan;
use tests::mcp::{Kind, Mcp};
use tests::provider::Answer;

fn only<'a>(spans: &'a [Span], what: &str) -> &'a Span {
    let found: Vec<&Span> = spans.iter().filter(|span| span.what() == what).collect();
    assert_eq!(found.len(), 1, "{what}: {spans:#?}");
    found[0]
}

/// Both protocols: a turn with a tool of an MCP server is one trace, that of the caller.
#[tokio::test]
async fn a_turn_is_one_trace() {
    for http in [false, true] {
        let collector = Collector::start().await;
        let telemetry = if http { collector.http_toml("") } else { collector.grpc_toml("") };
        let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
        let mut fixture = Plan::default().mcp(&mcp).toml(&telemetry).start().await;
        let session = fixture.driver().await;
        fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({"path": "/"}))]));
        send_traced(&session, json!("hello"), &traceparent()).await;
        fixture.server.terminate();
        assert!(fixture.server.ended().await.success());

        let trace = collector.trace(TRACE);
        let (request, turn) = (only(&trace, "request"), only(&trace, "turn"));
        assert_eq!((request.parent.as_str(), request.kind), (PARENT, "server"));
        assert_eq!(request.name, "POST /api/v1/sessions/{id}/rpc");
        assert_eq!(request.attributes["http.response.status_code"], 200);
        assert_eq!((turn.parent.as_str(), turn.name.as_str()), (request.id.as_str(), "invoke_agent main"));
        assert_eq!(turn.attributes["gen_ai.conversation.id"], session.id.as_str());
        assert_eq!(turn.attributes["bae.outcome"], "ok");
        assert_eq!(turn.attributes["gen_ai.usage.input_tokens"], 20);
        let call = turn.attributes["bae.call.id"].as_str().unwrap();
        assert!(call.ends_with(&turn.id), "the span of a turn has the end of the call's id: {call} {}", turn.id);
        let asked: Vec<&Span> = trace.iter().filter(|span| span.what() == "provider").collect();
        assert_eq!(asked.len(), 2);
        for span in asked {
            assert_eq!(
                (span.parent.as_str(), span.kind, span.name.as_str()),
                (turn.id.as_str(), "client", "chat mock-main")
            );
            assert_eq!(span.attributes["gen_ai.usage.output_tokens"], 5);
            assert_eq!(span.attributes["server.address"], "127.0.0.1");
            let reasons = span.attributes["gen_ai.response.finish_reasons"].to_string();
            assert!(reasons.contains("end_turn") || reasons.contains("tool_use"), "{reasons}");
        }
        let (tool, called) = (only(&trace, "tool"), only(&trace, "mcp"));
        assert_eq!((tool.parent.as_str(), tool.name.as_str()), (turn.id.as_str(), "execute_tool ls"));
        assert_eq!((called.parent.as_str(), called.name.as_str()), (tool.id.as_str(), "tools/call ls"));
        assert_eq!(called.attributes["mcp.method.name"], "tools/call");
        assert!(trace.iter().all(|span| !span.failed && span.links.is_empty()), "{trace:#?}");

        let sent = format!("00-{TRACE}-{}-01", called.id);
        assert_eq!(mcp.calls()[0]["_meta"]["traceparent"], sent.as_str());
        assert!(mcp.headers().contains(&("traceparent".to_owned(), sent)), "{:?}", mcp.headers());
        for request in fixture.provider.requests() {
            assert!(request.headers.iter().all(|(name, _)| !name.starts_with("trace")), "{:?}", request.headers);
        }
        // What opened the session is a trace of its own.
        let all = collector.spans();
        let opened = only(&all, "session");
        let list = all.iter().find(|span| span.name == "tools/list").expect("the tools were listed");
        assert_eq!((list.parent.as_str(), list.trace.as_str()), (opened.id.as_str(), opened.trace.as_str()));
        for span in &all {
            let known = documented(&format!("| `bae::{}` ", span.what()), 4);
            for name in span.attributes.keys() {
                assert!(known.contains(name), "{name} of {} is not in docs/telemetry.md: {known:?}", span.what());
            }
        }
    }
}

/// A failure is seen in the spans, without its text; what the caller decided not to sample is not exported; the filter
/// leaves spans out.
#[tokio::test]
async fn failures_sampling_and_the_filter() {
    let collector = Collector::start().await;
    let plan = Plan::default().toml(&collector.grpc_toml("genai_semconv = \"both\""));
    let mut fixture = plan.env("BAE_OTEL_LOG", "info,bae::request=off").start().await;
    let session = fixture.driver().await;
    send_traced(&session, json!("not sampled"), &format!("00-{TRACE}-{PARENT}-00")).await;
    fixture.provider.push(Answer::status(529));
    let failed = traceparent().replace("4bf92f", "5bf92f");
    send_traced(&session, json!("fails"), &failed).await;
    fixture.server.terminate();
    fixture.server.ended().await;
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.what() != "request"), "{spans:#?}");
    assert_eq!(collector.trace(TRACE).len(), 0);
    let trace = collector.trace(&failed[3..35]);
    let (turn, asked) = (only(&trace, "turn"), only(&trace, "provider"));
    assert_eq!(
        (turn.parent.as_str(), turn.failed, turn.attributes["bae.outcome"].as_str()),
        (PARENT, true, Some("failed"))
    );
    assert_eq!((asked.failed, asked.attributes["error.type"].as_str()), (true, Some("529")));
    assert!(!collector.printed().contains("mock status"), "a text of the provider was exported");
}

/// A node that samples nothing exports what its callers sample.
#[tokio::test]
async fn callers_decide_first() {
    let collector = Collector::start().await;
    let mut fixture = Plan::default().toml(&collector.grpc_toml("sample_ratio = 0")).start().await;
    let session = fixture.driver().await;
    session.send("hello").await.text();
    send_traced(&session, json!("hello"), &traceparent()).await;
    fixture.server.terminate();
    fixture.server.ended().await;
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:#?}");
    assert_eq!(only(&spans, "turn").attributes["bae.outcome"], "ok");
}

/// JSON log lines name the span that they belong to.
#[tokio::test]
async fn log_lines_name_their_span() {
    let collector = Collector::start().await;
    let plan = Plan::default().toml(&collector.grpc_toml("")).provider("max_retries = 1");
    let plan = plan.env("BAE_LOG", "info,node::provider=debug").env("BAE_LOG_FORMAT", "json");
    let mut fixture = plan.start().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::status(529));
    send_traced(&session, json!("hello"), &traceparent()).await;
    fixture.server.terminate();
    fixture.server.ended().await;
    let asked = collector.trace(TRACE).into_iter().find(|span| span.what() == "provider").expect("a provider span");
    let log = fixture.server.log();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON lines"));
    let line = lines.into_iter().find(|line| line["message"] == "provider attempt is retried").expect("a line");
    assert_eq!((line["trace_id"].as_str(), line["span_id"].as_str()), (Some(TRACE), Some(asked.id.as_str())));
}
