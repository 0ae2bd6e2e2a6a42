//! F18: MCP servers that die, answer garbage, forget the session, or change their tools.

use serde_json::json;
use tests::client::of_type;
use tests::fixture::{Fixture, Plan};
use tests::mcp::{Kind, Mcp, Outcome};
use tests::provider::Answer;

/// Runs a turn whose answer uses the tool `ls`. Returns whether the tool's result was an error.
async fn round(fixture: &Fixture, session: &tests::client::Session) -> bool {
    fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({}))]));
    let outcome = session.send("go").await;
    assert_eq!(outcome.text(), "ok", "the turn goes on whatever the tool does");
    let events = outcome.events();
    let (response, result) = (of_type(&events, "mcp.response"), of_type(&events, "tool.result"));
    assert_eq!((response.len(), result.len()), (1, 1));
    let error = result[0]["payload"]["is_error"] == true;
    assert_eq!(response[0]["payload"]["ok"], !error);
    error
}

#[tokio::test]
async fn an_error_result_and_then_it_works_again() {
    for kind in [Kind::Http, Kind::Sse, Kind::Stdio] {
        let mcp = Mcp::start("files", kind, &["ls"]).await;
        let fixture = Plan::default().mcp(&mcp).start().await;
        let session = fixture.driver().await;
        assert!(!round(&fixture, &session).await, "{kind:?}");
        for outcome in [
            Outcome::IsError("no".to_owned()),
            Outcome::RpcError(-32000, "broken".to_owned()),
            Outcome::Garbage(b"this is no JSON".to_vec()),
            Outcome::HangUp,
        ] {
            // Over stdio and SSE a line of garbage cannot be matched to a call, so the tool server hangs up after it.
            let shown = format!("{kind:?} {outcome:?}");
            if kind != Kind::Http && matches!(outcome, Outcome::Garbage(_)) {
                continue;
            }
            mcp.push(outcome);
            assert!(round(&fixture, &session).await, "{shown}");
            assert!(!round(&fixture, &session).await, "after {shown}");
        }
        tests::history::assert_all_paired(&fixture.provider);
    }
}

/// A server dies between two calls, refuses connections for a while, and comes back.
#[tokio::test]
async fn it_dies_between_calls() {
    for kind in [Kind::Http, Kind::Sse, Kind::Stdio] {
        let mcp = Mcp::start("files", kind, &["ls"]).await;
        let fixture = Plan::default().mcp(&mcp).start().await;
        let session = fixture.driver().await;
        assert!(!round(&fixture, &session).await);
        mcp.refuse(true);
        mcp.hang_up();
        assert!(round(&fixture, &session).await, "{kind:?}");
        mcp.refuse(false);
        assert!(!round(&fixture, &session).await, "{kind:?} reconnects");
    }
}

/// A server answers that it does not know the MCP session (HTTP 404). A new one is made, and the call, which did not
/// run, is repeated or fails visibly.
#[tokio::test]
async fn it_forgets_the_session() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    round(&fixture, &session).await;
    mcp.forget_sessions();
    round(&fixture, &session).await;
    assert!(!round(&fixture, &session).await);
    assert_eq!(mcp.opened(), 2);
}

/// After a takeover the model is offered the same tools, even if their server is down or has changed.
#[tokio::test]
async fn the_tools_stay_the_sessions() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let mut fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    session.send("before").await.text();
    let tools = fixture.provider.last()["tools"].clone();
    mcp.offer(&["other"]);
    mcp.refuse(true);
    fixture.server.crash().await;
    session.send("after").await.text();
    assert_eq!(fixture.provider.last()["tools"], tools);
    assert!(round(&fixture, &session).await, "down: an error result");
    mcp.refuse(false);
    round(&fixture, &session).await;
    session.send("and then").await.text();
    assert_eq!(fixture.provider.last()["tools"], tools);
}

/// A session is created although one of its tool servers cannot be reached; that server's tools are missing.
#[tokio::test]
async fn it_is_down_at_the_start() {
    for kind in [Kind::Http, Kind::Sse, Kind::Stdio] {
        let mcp = Mcp::start("files", kind, &["ls"]).await;
        mcp.refuse(true);
        let fixture = Plan::default().mcp(&mcp).start().await;
        let session = fixture.driver().await;
        assert_eq!(session.send("hello").await.text(), "ok", "{kind:?}");
        assert_eq!(fixture.provider.last()["tools"].as_array().unwrap().len(), 1, "only the client's own");
    }
}

/// A tool that hangs gets an error result after the configured time, the turn goes on, and the next call works.
#[tokio::test]
async fn it_hangs() {
    for kind in [Kind::Http, Kind::Sse, Kind::Stdio] {
        let mcp = Mcp::start("files", kind, &["ls"]).await;
        let fixture = Plan::default().mcp(&mcp).env("BAE_MCP_TIMEOUT", "1").start().await;
        let session = fixture.driver().await;
        let _held = mcp.hold(Outcome::Text("too late".to_owned()));
        assert!(round(&fixture, &session).await, "{kind:?}");
        assert!(!round(&fixture, &session).await, "{kind:?}: the next call");
        tests::history::assert_all_paired(&fixture.provider);
    }
}
