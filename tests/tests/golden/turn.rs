//! `session.registerDriver` and plain turns of `session.sendMessage`.

use super::golden;
use serde_json::{Value, json};
use tests::client::{of_type, types};
use tests::fixture::{Fixture, Plan};
use tests::provider::Answer;
use tests::transcript::Transcript;

#[tokio::test]
async fn registering() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut watcher = session.subscribe(None).await;
    let mut t = Transcript::default();
    t.rpc(&session, "session.registerDriver", json!({})).await;
    t.note("idempotent, also over another session key of the same client key");
    t.rpc(&session, "session.registerDriver", json!({})).await;
    let again = fixture.api.join(&session.id, &fixture.key.secret, &json!({})).await;
    t.rpc(&again, "session.registerDriver", json!({})).await;
    assert_eq!(session.types().await, ["session.open", "session.driver.register", "session.join"]);
    t.note("a watcher sees it live");
    t.next(&mut watcher, 2).await;
    golden("register", t);
}

#[tokio::test]
async fn a_simple_turn() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::text("It is currently 18:26 UTC."));
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    let message = json!({"message": {"role": "user", "content": "What time is it?"}});
    let outcome = t.rpc(&session, "session.sendMessage", message).await;
    assert_eq!(
        outcome.types(),
        ["client.message.send", "provider.request", "provider.response", "server.message.send"]
    );
    assert_eq!(types(&outcome.live()), ["provider.request", "provider.response", "server.message.send"]);
    assert_eq!(
        outcome.result()["message"],
        json!({"role": "assistant", "content": [{"type": "text", "text": "It is currently 18:26 UTC."}]})
    );

    t.note("what the provider was sent: exactly what was logged, and the vendor's headers");
    let request = &fixture.provider.requests()[0];
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v1/messages"));
    assert_eq!(
        (request.header("x-api-key"), request.header("anthropic-version")),
        (Some("token-main"), Some("2023-06-01"))
    );
    let body = request.json();
    t.value("body", &body);
    let logged = &of_type(&outcome.events(), "provider.request")[0]["payload"].clone();
    for field in ["model", "max_tokens", "messages", "tools"] {
        assert_eq!(body[field], logged[field], "{field}");
    }

    t.note("role defaults to user; blocks pass through");
    let blocks = json!([{"type": "text", "text": "And\u{0} \u{1F600}?"}, {"type": "image", "source": {"type": "base64", "data": "QQ=="}}]);
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": blocks}})).await;
    assert_eq!(outcome.text(), "ok");
    assert_eq!(
        fixture.provider.last()["messages"],
        json!([
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": [{"type": "text", "text": "It is currently 18:26 UTC."}]},
            {"role": "user", "content": blocks},
        ])
    );
    golden("turn", t);
}

#[tokio::test]
async fn errors_in_order() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut t = Transcript::default();
    t.note("driver first: before state and params, and never registered on the way");
    let not_registered = (-32001, "call session.registerDriver before session.sendMessage".to_owned());
    assert_eq!(t.rpc(&session, "session.sendMessage", json!({})).await.error(), not_registered);
    t.note("params");
    session.register().await;
    for message in [
        json!(null),
        json!("x"),
        json!({}),
        json!({"role": "user"}),
        json!({"content": null}),
        json!({"content": 1}),
        json!({"content": {}}),
        json!({"content": ["x"]}),
        json!({"content": ""}),
        json!({"content": []}),
        json!({"content": [{"text": "no type"}]}),
        json!({"role": 1, "content": "x"}),
        json!({"content": [{"type": "tool_use", "id": "t", "name": "clock", "input": {}}]}),
    ] {
        let (code, text) = t.rpc(&session, "session.sendMessage", json!({"message": message})).await.error();
        assert!(code == -32602 && text.starts_with("Invalid params: "), "{message}: {code} {text}");
    }
    assert_eq!(t.rpc(&session, "session.sendMessage", json!({})).await.error().0, -32602);
    assert_eq!(session.types().await, ["session.open", "session.driver.register"], "nothing was recorded");
    t.note("state before params");
    session.delete().await.expect(200);
    let closed = (-32000, "session is closed, not open".to_owned());
    assert_eq!(t.rpc(&session, "session.sendMessage", json!({})).await.error(), closed);
    t.note("driver before state");
    let other = fixture.api.open(&fixture.key.secret, &json!({})).await;
    other.delete().await.expect(200);
    assert_eq!(t.rpc(&other, "session.sendMessage", json!({})).await.error(), not_registered);
    assert_eq!(fixture.provider.requests().len(), 0);
    golden("send_errors", t);
}

/// docs/api.md 3.2: the profile is read again once the gate is held.
#[tokio::test]
async fn the_profile_is_deleted() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    session.send("before").await.text();
    fixture.lose_profile(&fixture.profile).await;
    let mut t = Transcript::default();
    let expected = "profile_unavailable: the profile bound to this session is no longer available";
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "after"}})).await;
    assert_eq!(outcome.error(), (-32000, expected.to_owned()));
    let events = session.events().await;
    t.value("the log's end", &events[events.len() - 1]);
    assert_eq!(events.last().unwrap()["payload"]["reason"], "profile_unavailable");
    assert_eq!(fixture.admin.state(&session.id).await, "error");
    golden("send_profile_unavailable", t);
}

/// docs/api.md 3.8: the cap on provider round trips.
#[tokio::test]
async fn the_round_cap() {
    let mcp = tests::mcp::Mcp::start("files", tests::mcp::Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).env("BAE_MAX_TURN_ITERATIONS", "2").start().await;
    fixture.provider.script((0..3).map(|n| Answer::tools(&[(&format!("tu_{n}"), "ls", json!({"n": n}))])));
    let session = fixture.driver().await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "loop"}})).await;
    assert_eq!(fixture.provider.requests().len(), 2);
    let events = outcome.events();
    let last = events.last().unwrap();
    assert_eq!(
        (&last["event_type"], &last["payload"]),
        (&json!("session.error"), &json!({"reason": "loop_limit", "max_iterations": 2}))
    );
    let message: &Value = &outcome.result()["message"];
    assert_eq!((&message["role"], message["content"].as_array().unwrap().len()), (&json!("assistant"), 1));
    assert_eq!(fixture.admin.state(&session.id).await, "error");
    golden("loop_limit", t);
}

/// `idempotency_key` (ARCHITECTURE.md, I5): a retry returns the first call's turn; other params are refused.
#[tokio::test]
async fn idempotency_keys() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    let params = json!({"message": {"content": "once"}, "idempotency_key": "k1"});
    let first = session.rpc("session.sendMessage", params.clone()).await;
    let again = t.rpc(&session, "session.sendMessage", params).await;
    assert_eq!(again.result(), first.result());
    assert_eq!(fixture.provider.requests().len(), 1);
    let other = json!({"message": {"content": "another"}, "idempotency_key": "k1"});
    assert_eq!(t.rpc(&session, "session.sendMessage", other).await.error().0, -32602);
    let wrong = json!({"message": {"content": "x"}, "idempotency_key": 7});
    assert_eq!(t.rpc(&session, "session.sendMessage", wrong).await.error().0, -32602);
    t.note("another client's key of the same name is another key");
    let second = fixture.second(&session).await;
    second.rpc("session.sendMessage", json!({"message": {"content": "mine"}, "idempotency_key": "k1"})).await.text();
    assert_eq!(fixture.provider.requests().len(), 2);
    golden("idempotency", t);
}

/// docs/api.md 4.3: a history that does not begin with `user` and alternate is normalised for Anthropic, and the change
/// is recorded.
#[tokio::test]
async fn a_history_that_has_to_be_normalised() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    let message = json!({"message": {"role": "assistant", "content": "I begin."}});
    let outcome = t.rpc(&session, "session.sendMessage", message).await;
    let normalized = of_type(&outcome.events(), "provider.request")[0]["payload"]["normalized"].clone();
    assert_eq!(normalized, json!({"prepended_user": true}));
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "Go on."}})).await;
    let request = of_type(&outcome.events(), "provider.request")[0]["payload"].clone();
    assert_eq!(request["normalized"]["prepended_user"], true);
    assert!(request["normalized"]["merged"].is_array(), "{request}");
    assert_eq!(request["messages"], fixture.provider.last()["messages"], "logged is exactly what is sent");
    tests::history::assert_all_paired(&fixture.provider);
    golden("normalized", t);
}
