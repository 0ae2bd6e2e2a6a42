//! The spans and metrics of sandboxes and subagents, and that they hold nothing of what runs in them.

use super::{Runtime, exec, launch_tool, payloads, shell_tool, start};
use serde_json::json;
use std::time::Duration;
use tests::collector::{Collector, Span};
use tests::poll;
use tests::provider::Answer;

#[tokio::test]
async fn commands_and_subagents() {
    let collector = Collector::start().await;
    let plan =
        Runtime::docker().plan().toml(&collector.grpc_toml("")).env("BAE_LOG", "trace").env("BAE_OTEL_LOG", "trace");
    let mut fixture = plan.start().await;
    let tools = json!({
        "sandbox_tools": [shell_tool()],
        "subagent_tools": [launch_tool(&[("coder", "echo said-$0 {{prompt}}", "arg", None)])],
    });
    let session = fixture.driver_with(tools).await;
    let sandbox = start(&session).await;
    exec(&session, "echo said-by-client").await;
    fixture.provider.push(Answer::tools(&[(
        "tu_1",
        "sh",
        json!({"command": "echo said-out; echo said-err >&2; exit 3"}),
    )]));
    session.send("said-message").await.text();
    let input = json!({"harness": "coder", "model": "said-model", "prompt": "said-prompt"});
    fixture.provider.push(Answer::tools(&[("tu_2", "launch_subagent", input)]));
    session.send("said-launch").await.text();
    poll::until(Duration::from_secs(30), "the subagent's end", async || {
        let events = session.events().await;
        let ended = payloads(&events, "subagent.completed").len() + payloads(&events, "subagent.failed").len();
        if ended == 1 { Ok(()) } else { Err(events) }
    })
    .await;
    fixture.server.terminate();
    fixture.server.ended().await;

    let spans = collector.spans();
    let of = |what: &str| -> Vec<&Span> { spans.iter().filter(|span| span.what() == what).collect() };
    let ran = of("sandbox");
    assert_eq!(ran.len(), 2, "{spans:#?}");
    assert!(ran.iter().all(|span| span.attributes["bae.sandbox.id"] == sandbox.as_str()));
    let request = of("request").into_iter().find(|span| span.id == ran[0].parent);
    assert!(request.is_some(), "a client's command belongs to its request");
    assert_eq!(ran[0].attributes["process.exit.code"], 0);
    let tool = of("tool")[0];
    assert_eq!((ran[1].parent.as_str(), &ran[1].attributes["process.exit.code"]), (tool.id.as_str(), &json!(3)));
    assert_eq!((tool.failed, &tool.attributes["bae.tool.kind"]), (true, &json!("sandbox")));
    let launched = of("subagent")[0];
    assert_eq!((launched.name.as_str(), launched.failed), ("invoke_agent coder", false));
    assert!(of("turn").iter().any(|turn| turn.id == launched.parent));
    for (name, labels) in [
        ("bae.sandbox.start", json!({"outcome": "ok"})),
        ("bae.sandbox.exec", json!({"outcome": "ok"})),
        ("bae.tool.calls", json!({"kind": "sandbox", "outcome": "error"})),
        ("bae.tool.calls", json!({"kind": "subagent", "outcome": "ok"})),
        ("bae.subagents.ended", json!({"outcome": "completed"})),
    ] {
        let points = collector.points(name);
        assert!(points.iter().any(|(of, _)| json!(of) == labels), "{name} {labels}: {points:?}");
    }
    for (what, text) in [("log", fixture.server.log()), ("spans and metrics", collector.printed())] {
        let at = text.find("said-").map(|at| &text[text.floor_char_boundary(at.saturating_sub(300))..]);
        assert_eq!(at.map(|around| &around[..around.floor_char_boundary(500)]), None, "what was said is in the {what}");
    }
}
