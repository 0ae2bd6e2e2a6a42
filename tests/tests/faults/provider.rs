//! F17: providers that misbehave.

use serde_json::{Value, json};
use tests::client::of_type;
use tests::fixture::{Fixture, Plan};
use tests::history::assert_all_paired;
use tests::provider::{Answer, Provider};

/// After an invalid answer the failed attempt is in the log, the fallback is asked, and the session stays usable.
#[tokio::test]
async fn useless_answers_fall_back() {
    let spare = Provider::start().await;
    let fixture = Plan::default().provider("timeout_secs = 1").fallback("spare", "anthropic", &spare).start().await;
    spare.otherwise(Answer::text("from the spare"));
    let session = fixture.driver().await;
    for answer in [
        Answer::status(429),
        Answer::status(529),
        Answer::status(500),
        Answer::HangUp,
        Answer::CutBody,
        Answer::Drip,
        Answer::raw(""),
        Answer::raw("<html>"),
        Answer::raw("[]"),
        Answer::raw("{}"),
        Answer::raw(r#"{"content":"not blocks"}"#),
        Answer::raw(r#"{"content":[7]}"#),
        Answer::raw(r#"{"content":[{"type":"tool_use","name":"clock","input":{}}],"stop_reason":"tool_use"}"#),
    ] {
        let shown = format!("{answer:?}");
        fixture.provider.push(answer);
        let outcome = session.send("go").await;
        assert_eq!(outcome.text(), "from the spare", "{shown}");
        let events = outcome.events();
        let responses: Vec<&Value> =
            of_type(&events, "provider.response").iter().map(|event| &event["payload"]).collect();
        assert_eq!((&responses[0]["ok"], &responses[1]["ok"]), (&json!(false), &json!(true)), "{shown}");
        assert!(responses[0]["error"].as_str().is_some_and(|text| !text.is_empty()), "{shown}: {}", responses[0]);
        assert_eq!((&responses[0]["attempt"], &responses[1]["kind"]), (&json!(0), &json!("fallback")), "{shown}");
        assert_eq!(of_type(&events, "session.error").len(), 1, "{shown}");
        assert_all_paired(&fixture.provider);
    }
    assert_all_paired(&spare);
}

/// Unusual but valid answers are accepted.
#[tokio::test]
async fn odd_answers_are_answers() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let odd = json!([
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "unheard-of", "payload": {"n": 1}},
        {"type": "text", "text": "yes"},
    ]);
    fixture.provider.push(Answer::blocks(odd.clone()));
    let outcome = session.send("go").await;
    assert_eq!(outcome.result()["message"]["content"], odd);
    session.send("next").await.text();
    assert_eq!(fixture.provider.last()["messages"][1]["content"], odd, "and goes back as it came");
    fixture.provider.push(Answer::text("cut o").truncated());
    assert_eq!(session.send("long").await.text(), "cut o");
    // An answer without any content ends the turn, and later requests are valid.
    fixture.provider.push(Answer::blocks(json!([])));
    session.send("empty").await.result();
    assert_eq!(session.send("next").await.text(), "ok");
    assert_all_paired(&fixture.provider);
}

/// A provider cannot be reached.
#[tokio::test]
async fn nobody_listens() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let toml = tests::fixture::provider_toml("dead", "anthropic", &format!("http://{closed}"), "");
    let fixture = Plan::default()
        .toml(&toml)
        .profile("primary_provider", json!("dead"))
        .profile("fallback_providers", json!(["main"]))
        .start()
        .await;
    let session = fixture.driver().await;
    let outcome = session.send("go").await;
    assert_eq!(outcome.text(), "ok");
    let response = of_type(&outcome.events(), "provider.response")[0]["payload"].clone();
    assert_eq!((&response["ok"], &response["status"]), (&json!(false), &Value::Null));
    assert!(!response.to_string().contains("token-dead"), "{response}");
}

/// The log output of the server contains no secrets and no content of messages.
#[tokio::test]
async fn nothing_leaks_into_the_log_file() {
    let fixture = Plan::default().env("BAE_LOG", "debug").start().await;
    let session = fixture.driver().await;
    fixture.provider.script([Answer::text("the-answer-text"), Answer::status(400)]);
    session.send("the-message-text").await.text();
    session.send("the-message-text").await.result();
    let log = fixture.server.log();
    assert!(!log.is_empty());
    for secret in [
        "token-main",
        "the-message-text",
        "the-answer-text",
        &session.key,
        &fixture.key.secret,
        tests::server::ADMIN_KEY,
    ] {
        assert!(!log.contains(secret), "{secret} is in {}", fixture.server.log_path().display());
    }
}
