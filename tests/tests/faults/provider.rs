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
        Answer::raw(r#"{"content":[{"type":"tool_use","id":"t","input":{}}],"stop_reason":"tool_use"}"#),
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

/// A tool use whose arguments are broken is answered by the server, and a client is not asked for it (docs/api.md 5.9).
#[tokio::test]
async fn broken_arguments_do_not_end_the_session() {
    let fixture = Plan::default().openai().start().await;
    let session = fixture.driver().await;
    let call = |id: &str, arguments: &str| json!({"id": id, "function": {"name": "clock", "arguments": arguments}});
    let answer = |calls: Value| {
        let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
        Answer::raw(&json!({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).to_string())
    };
    fixture.provider.push(answer(json!([call("a", "{\"x\":")])));
    let outcome = session.send("go").await;
    assert_eq!(outcome.text(), "ok", "the turn goes on");
    let events = outcome.events();
    assert_eq!(of_type(&events, "tool.call")[0]["payload"]["input"], json!({}));
    assert_eq!(of_type(&events, "tool.result")[0]["payload"]["is_error"], json!(true));
    // Beside a whole one: the client is asked for that alone.
    fixture.provider.push(answer(json!([call("b", "[1]"), call("c", "{}")])));
    session.send("again").await;
    assert_eq!(session.answer(&[("c", "now")]).await.text(), "ok");
    let sent = fixture.provider.last();
    let messages = sent["messages"].as_array().unwrap();
    let asked: Vec<_> = messages.iter().flat_map(|said| said["tool_calls"].as_array().into_iter().flatten()).collect();
    let asked: Vec<_> = asked.iter().map(|call| &call["id"]).collect();
    let answered = messages.iter().filter(|said| said["role"] == "tool").map(|said| &said["tool_call_id"]);
    assert_eq!(asked, answered.collect::<Vec<_>>(), "{sent}");
    assert_eq!(asked, ["a", "b", "c"]);
}

/// A status 200 whose body is an error is retried and then falls back like any other failure (docs/api.md 5.4).
#[tokio::test]
async fn errors_in_a_200_are_errors() {
    let fixture = Plan::default().openai().provider("max_retries = 2").start().await;
    let session = fixture.driver().await;
    let failed = [json!({"error": {"message": "busy", "code": 503}}), json!({"choices": []})];
    fixture.provider.script(failed.map(|body| Answer::raw(&body.to_string())));
    assert_eq!(session.send("go").await.text(), "ok", "within two retries");
    fixture.provider.push(Answer::raw(&json!({"error": {"code": "invalid_request_error"}}).to_string()));
    let outcome = session.send("go").await;
    let events = outcome.events();
    let response = &of_type(&events, "provider.response")[0]["payload"];
    assert_eq!((&response["ok"], &response["status"]), (&json!(false), &json!(200)), "{response}");
}

/// What a vendor refuses is repaired on the way out; the log keeps what was said (docs/api.md 5.7).
#[tokio::test]
async fn what_goes_out_is_what_providers_take() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::tools(&[("bad id!", "clock", json!({}))]));
    session.send("go").await;
    let content = json!([{"type": "tool_result", "tool_use_id": "bad id!", "is_error": true, "content": ""}]);
    assert_eq!(session.send(content).await.text(), "ok");
    let sent = fixture.provider.last();
    let result = &sent["messages"][2]["content"][0];
    assert_eq!(result["content"], "(no output)", "{sent}");
    assert_eq!(result["tool_use_id"], sent["messages"][1]["content"][0]["id"]);
    assert!(!result["tool_use_id"].as_str().unwrap().contains(' '), "{sent}");
    let said = session.events().await;
    assert_eq!(of_type(&said, "tool.call")[0]["payload"]["id"], "bad id!");
    let (code, text) = session.send(" \n").await.error();
    assert!(code == -32602 && text.contains("blank"), "{code} {text}");
}
