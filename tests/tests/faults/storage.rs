//! F23: the database refuses to write at every step of a turn. Nothing is half written, no other session is disturbed,
//! and the server recovers without a restart.

use serde_json::{Value, json};
use tests::client::{Session, of_type, types};
use tests::fixture::{Fixture, Plan};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp};
use tests::poll::{DEADLINE, until, within};
use tests::provider::Answer;

async fn with_tool_server() -> (Mcp, Fixture) {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    (mcp, fixture)
}

/// Checks that the session serves messages again or has a recorded failure, and that its history is valid in both
/// cases.
async fn recovers(fixture: &Fixture, session: &Session, what: &str) {
    let state = fixture.admin.state(&session.id).await;
    if state == "open" {
        let outcome = within("the next turn", session.send("next")).await;
        assert_eq!(outcome.text(), "ok", "{what}");
    } else {
        let events = session.events().await;
        let last = events.last().unwrap();
        assert_eq!(
            (state.as_str(), &last["event_type"]),
            ("error", &json!("session.error")),
            "{what}: {:?}",
            types(&events)
        );
    }
    assert_all_paired(&fixture.provider);
}

/// Inserts of one type of event are refused for a while, for each type that a turn with one tool round writes. The
/// server's own log output shows that an append was refused: to a client it only looks as if the append had not been
/// made yet.
#[tokio::test]
async fn refused_at_every_step() {
    let (_mcp, fixture) = with_tool_server().await;
    for kind in [
        "provider.request",
        "provider.response",
        "tool.call",
        "mcp.request",
        "mcp.response",
        "tool.result",
        "server.message.send",
    ] {
        let session = fixture.driver().await;
        let other = fixture.driver().await;
        fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({}))]));
        let refusals = || fixture.server.log().matches("injected fault").count();
        let before = refusals();
        let fault = fixture.fail_inserts(kind).await;
        let turn = session.start_send("go").await;
        until(DEADLINE, &format!("the refusal of {kind}"), async || {
            if refusals() > before { Ok(()) } else { Err(session.types().await) }
        })
        .await;
        let stuck = session.types().await;
        assert!(!stuck.iter().any(|written| written == kind), "{kind}: {stuck:?}");
        // Other sessions are not disturbed.
        let report = json!({"state": "running", "image": "x"});
        assert_eq!(other.rpc("session.reportLocalSandbox", report).await.result()["reported"], true, "{kind}");
        fault.undo().await;
        // The caller is answered: with the turn's result, or with an internal error.
        let end = within("the caller's terminal frame", turn.finish()).await;
        let last = end.frames.last().unwrap_or_else(|| panic!("{kind}: no terminal frame"));
        assert!(last.get("result").is_some() || end.error() == (-32603, "Internal error".to_owned()), "{kind}: {last}");
        // The turn that was begun ends without another request.
        let ended = |events: &[Value]| {
            let sent = of_type(events, "client.message.send").len();
            let answered = of_type(events, "server.message.send").len();
            sent == answered || events.last().is_some_and(|event| event["event_type"] == "session.error")
        };
        session.until(&format!("the end of the turn refused at {kind}"), ended).await;
        recovers(&fixture, &session, kind).await;
        // If the turn did not get that far, some of the provider's answers were not used.
        while fixture.provider.left() > 0 {
            fixture.driver().await.send("drain").await;
        }
    }
}

/// When an opening, a join, a registration or a close is refused, nothing has changed.
#[tokio::test]
async fn refused_outside_a_turn() {
    let (_mcp, fixture) = with_tool_server().await;
    let session = fixture.driver().await;
    let before = session.events().await;
    let key = fixture.admin.key("second", &fixture.profile).await;

    let fault = fixture.fail_inserts("session.join").await;
    fixture.api.post(&session.path("/join"), &key.secret, &json!({})).await.problem(500, "internal");
    fault.undo().await;
    let joined = fixture.api.join(&session.id, &key.secret, &json!({})).await;

    let fault = fixture.fail_inserts("session.driver.register").await;
    assert_eq!(joined.rpc("session.registerDriver", json!({})).await.error(), (-32603, "Internal error".to_owned()));
    fault.undo().await;
    let participants = fixture.api.get(&session.path("/participants"), &session.key).await.json();
    assert_eq!(participants["drivers"].as_array().unwrap().len(), 1, "a refused registration is none");
    joined.register().await;

    let fault = fixture.fail_inserts("session.close").await;
    session.delete().await.problem(500, "internal");
    fault.undo().await;
    // The close that was begun is finished by the server, or can be requested again.
    until(DEADLINE, "the session's close", async || {
        session.delete().await;
        let types = session.types().await;
        if types.last().unwrap() == "session.close" { Ok(()) } else { Err(types) }
    })
    .await;
    let events = session.events().await;
    assert_eq!(types(&events[before.len()..]), ["session.join", "session.driver.register", "session.close"]);
}
