//! Provider failures, retries and fallbacks.

use super::golden;
use serde_json::{Value, json};
use tests::client::of_type;
use tests::fixture::{Fixture, Plan, provider_toml};
use tests::provider::{Answer, Provider};
use tests::transcript::Transcript;

fn reasons(events: &[Value]) -> Vec<String> {
    of_type(events, "session.error").iter().map(|e| e["payload"]["reason"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_fallback_answers() {
    let spare = Provider::start().await;
    let fixture = Plan::default().fallback("spare", "openai", &spare).start().await;
    fixture.provider.push(Answer::status(400));
    let session = fixture.driver().await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]").replace(&spare.url(), "[spare]");
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "go"}})).await;
    assert_eq!(
        outcome.types(),
        [
            "client.message.send",
            "provider.request",
            "provider.response",
            "session.error",
            "provider.request",
            "provider.response",
            "server.message.send",
        ]
    );
    assert_eq!(reasons(&outcome.events()), ["provider_call_failed"]);
    assert_eq!((fixture.provider.requests().len(), spare.requests().len()), (1, 1), "a bad request is not retried");
    assert_eq!(fixture.admin.state(&session.id).await, "open");
    golden("provider_fallback", t);
}

#[tokio::test]
async fn every_provider_fails() {
    let spare = Provider::start().await;
    let broken = provider_toml("unset", "anthropic", &spare.url(), "").replace("token-unset", "${NOT_SET_ANYWHERE}");
    let open_ended = provider_toml("cut", "anthropic", &spare.url(), "").replace("token-cut", "${NOT_CLOSED");
    let fixture = Plan::default()
        .toml(&broken)
        .toml(&open_ended)
        .fallback("spare", "anthropic", &spare)
        .profile("fallback_providers", json!(["nobody", "unset", "cut", "spare"]))
        .start()
        .await;
    fixture.provider.otherwise(Answer::status(401));
    spare.otherwise(Answer::raw("<html>not json</html>"));
    let session = fixture.driver().await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]").replace(&spare.url(), "[spare]");
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "go"}})).await;
    let events = outcome.events();
    assert_eq!(reasons(&events), ["provider_call_failed", "all_providers_failed"]);
    assert_eq!(events.last().unwrap()["payload"], json!({"reason": "all_providers_failed", "attempts": 4}));
    assert_eq!(outcome.result()["message"]["role"], "assistant");
    assert!(outcome.text().to_lowercase().contains("provider"), "{}", outcome.text());
    assert_eq!(fixture.admin.state(&session.id).await, "error");
    golden("providers_failed", t);
}

/// docs/api.md 5.4: transient faults are retried inside the attempt, with respect for `retry-after`.
#[tokio::test]
async fn retries() {
    let fixture = Plan::default().provider("max_retries = 2").start().await;
    let session = fixture.driver().await;
    for status in [408, 409, 429, 500, 503, 529] {
        fixture.provider.script([Answer::status(status).header("retry-after", "0"), Answer::text("recovered")]);
        let outcome = session.send("go").await;
        assert_eq!(outcome.text(), "recovered", "{status}");
        assert_eq!(of_type(&outcome.events(), "provider.request").len(), 1, "one attempt, whatever it took");
    }
    fixture.provider.script([Answer::HangUp, Answer::CutBody, Answer::text("recovered")]);
    assert_eq!(session.send("go").await.text(), "recovered");
    for status in [400, 401, 403, 404, 422] {
        let session = fixture.driver().await;
        let before = fixture.provider.requests().len();
        fixture.provider.push(Answer::status(status));
        assert_eq!(reasons(&session.send("go").await.events()).last().unwrap(), "all_providers_failed", "{status}");
        assert_eq!(fixture.provider.requests().len(), before + 1, "{status} is not retried");
    }
    let before = fixture.provider.requests().len();
    fixture.provider.otherwise(Answer::status(503).header("retry-after", "0"));
    let session = fixture.driver().await;
    assert_eq!(reasons(&session.send("go").await.events()).last().unwrap(), "all_providers_failed");
    assert_eq!(fixture.provider.requests().len(), before + 3, "the first try and two more");
}

/// D10: a provider that never answers, or only drips, does not hold the gate for ever.
#[tokio::test]
async fn timeouts() {
    let fixture = Plan::default().provider("timeout_secs = 1").start().await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    let mut silent = fixture.provider.hold(Answer::text("too late"));
    let session = fixture.driver().await;
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "go"}})).await;
    assert_eq!(reasons(&outcome.events()).last().unwrap(), "all_providers_failed");
    silent.abandoned().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::Drip);
    let outcome = session.send("go").await;
    assert_eq!(reasons(&outcome.events()).last().unwrap(), "all_providers_failed");
    golden("provider_timeout", t);
}

/// The primary no longer resolves: the server was started again with another configuration.
#[tokio::test]
async fn the_primary_is_gone() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver().await;
    session.send("before").await.text();
    fixture.server.kill9();
    fixture.server.write_config("");
    fixture.server.restart().await;
    let mut t = Transcript::default();
    t.note("a compaction fails and changes nothing");
    let (code, text) = t.rpc(&session, "session.compact", json!({})).await.error();
    assert!(code == -32000 && text.starts_with("compaction failed: provider_config: "), "{code} {text}");
    assert_eq!(fixture.admin.state(&session.id).await, "open");
    t.note("a message fails the session");
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "after"}})).await;
    assert_eq!(reasons(&outcome.events()), ["provider_config"]);
    assert_eq!(outcome.result()["message"]["content"].as_array().unwrap().len(), 1);
    assert_eq!(fixture.admin.state(&session.id).await, "error");
    golden("provider_config", t);
}

/// docs/api.md 5.1, 5.2: a trailing slash of `base_url` is trimmed, a token may stand in the environment, `max_tokens`
/// is the entry's; a compaction asks for at least 4096 (7.1).
#[tokio::test]
async fn the_entry_of_a_provider() {
    let target = Provider::start().await;
    let slashed = provider_toml("slashed", "anthropic", &format!("{}/", target.url()), "max_tokens = 100");
    let large = provider_toml("large", "openai", &target.url(), "max_tokens = 9000");
    let fixture = Plan::default()
        .toml(&slashed.replace("token-slashed", "${SOME_TOKEN}"))
        .toml(&large.replace("token-large", "pre-${SOME_TOKEN}-post"))
        .env("SOME_TOKEN", "from-the-environment")
        .profile("primary_provider", json!("slashed"))
        .start()
        .await;
    let session = fixture.driver().await;
    session.send("hello").await.text();
    session.rpc("session.compact", json!({})).await.result();
    let requests = target.requests();
    assert_eq!(
        (requests[0].path.as_str(), requests[0].header("x-api-key")),
        ("/v1/messages", Some("from-the-environment"))
    );
    assert_eq!((&requests[0].json()["max_tokens"], &requests[1].json()["max_tokens"]), (&json!(100), &json!(4096)));
    assert!(!json!(session.events().await).to_string().contains("from-the-environment"));
    let shown = fixture.admin.get("/admin/v1/providers").await.expect(200).body;
    assert!(shown.contains(&format!("\"{}\"", target.url())), "the effective URL: {shown}");

    let profile =
        fixture.admin.profile(&json!({"name": "large", "primary_provider": "large", "allowed_tools": []})).await;
    let key = fixture.admin.key("large", &profile).await;
    let session = fixture.api.open(&key.secret, &json!({})).await;
    session.register().await;
    session.send("hello").await.text();
    session.rpc("session.compact", json!({})).await.result();
    let requests = target.requests();
    assert_eq!(requests[2].header("authorization"), Some("Bearer pre-from-the-environment-post"));
    let budget = |body: Value| body.get("max_tokens").or_else(|| body.get("max_completion_tokens")).cloned();
    assert_eq!((budget(requests[2].json()), budget(requests[3].json())), (Some(json!(9000)), Some(json!(9000))));
}

/// docs/api.md 5.6: cache reads and cache creation count as input; null when either number is missing.
#[tokio::test]
async fn usage() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    for (usage, expected) in [
        (
            json!({"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 3000, "output_tokens": 7}),
            json!({"input_tokens": 3210, "output_tokens": 7}),
        ),
        (
            json!({"input_tokens": 10, "cache_read_input_tokens": null, "output_tokens": 7}),
            json!({"input_tokens": 10, "output_tokens": 7}),
        ),
        (json!({"input_tokens": 10}), json!(null)),
        (json!({"output_tokens": 10}), json!(null)),
        (json!(null), json!(null)),
    ] {
        let body = json!({"content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn", "usage": usage});
        fixture.provider.push(Answer::raw(&body.to_string()));
        let events = session.send("go").await.events();
        assert_eq!(of_type(&events, "provider.response")[0]["payload"]["usage"], expected, "{usage}");
    }
}
