//! Compaction, manual and automatic.

use super::golden;
use serde_json::{Value, json};
use tests::client::{Session, of_type, types};
use tests::fixture::{Fixture, Plan};
use tests::provider::{Answer, Provider};
use tests::transcript::Transcript;

const PREAMBLE: &str = "The earlier part of this conversation was compacted. A summary follows.";

fn transcript(fixture: &Fixture) -> Transcript {
    Transcript::default().replace(&fixture.provider.url(), "[provider]")
}

async fn talked(fixture: &Fixture) -> Session {
    let session = fixture.driver().await;
    session.send("hello").await.text();
    session
}

#[tokio::test]
async fn by_hand() {
    let fixture = Fixture::start().await;
    let session = talked(&fixture).await;
    let mut watcher = session.subscribe(None).await;
    fixture.provider.push(Answer::text("They said hello.").usage(42, 9));
    let mut t = transcript(&fixture);
    let outcome = t.rpc(&session, "session.compact", json!({"prompt": "Summarize the TODOs."})).await;
    let expected = [
        "session.compaction.started",
        "provider.request",
        "provider.response",
        "server.message.send",
        "server.message.send",
        "session.compaction.completed",
    ];
    assert_eq!(types(&outcome.live()), expected);
    assert_eq!(outcome.result(), outcome.live().last().unwrap(), "the result is the event itself");
    assert_eq!(types(&watcher.until_type("session.compaction.completed").await), expected);
    let live = outcome.live();
    assert_eq!(
        live[0]["payload"],
        json!({"trigger": "client", "reason": "manual", "token_count": 15, "threshold_tokens": null})
    );
    assert_eq!(live[1]["payload"]["purpose"], "compaction");
    assert_eq!(live[1]["payload"]["tools"], json!([]));
    let completed = &live[5]["payload"];
    assert_eq!((&completed["preamble_event_id"], &completed["summary_event_id"]), (&live[3]["id"], &live[4]["id"]));
    assert_eq!((&completed["input_tokens"], &completed["summary_tokens"]), (&json!(42), &json!(9)));
    assert_eq!(completed["compacted_message_count"], 2);

    t.note("one instruction after the history, no tools");
    let asked = fixture.provider.last();
    t.value("request", &asked);
    assert_eq!(asked["max_tokens"], 4096);
    assert_eq!(asked["messages"].as_array().unwrap().last().unwrap()["role"], "user");
    assert!(asked["messages"].to_string().contains("Summarize the TODOs."));

    t.note("the next turn starts from the summary");
    session.send("and now?").await.text();
    let messages = fixture.provider.last()["messages"].clone();
    t.value("messages", &messages);
    assert!(messages[0].to_string().contains(PREAMBLE));
    assert!(
        messages.to_string().contains("They said hello.") && !messages.to_string().contains("\"hello\""),
        "{messages}"
    );
    golden("compact", t);
}

/// Precedence: the call's prompt, the session's, the built-in one.
#[tokio::test]
async fn prompts() {
    let fixture = Fixture::start().await;
    let with_prompt =
        fixture.driver_with(json!({"compaction": {"mode": "client", "prompt": "The session's prompt."}})).await;
    let auto = fixture.driver_with(json!({"compaction": {"mode": "auto", "size": 100000}})).await;
    let instruction = async |session: &Session, params: Value| {
        session.send("x").await.text();
        session.rpc("session.compact", params).await.result();
        let messages = fixture.provider.last()["messages"].clone();
        messages.as_array().unwrap().last().unwrap()["content"].to_string()
    };
    assert!(instruction(&with_prompt, json!({})).await.contains("The session's prompt."));
    assert!(instruction(&with_prompt, json!({"prompt": null})).await.contains("The session's prompt."));
    let own = instruction(&with_prompt, json!({"prompt": "The call's prompt."})).await;
    assert!(own.contains("The call's prompt.") && !own.contains("The session's prompt."), "{own}");
    assert!(instruction(&auto, json!({"prompt": "The call's prompt."})).await.contains("The call's prompt."));
    let built_in = instruction(&auto, json!({})).await;
    assert!(!built_in.contains("prompt.") && built_in.len() > 20, "{built_in}");
}

#[tokio::test]
async fn errors_in_order() {
    let fixture = Plan::default().env("BAE_TURN_TIMEOUT", "600").start().await;
    let mut t = transcript(&fixture);
    let session = fixture.api.open(&fixture.key.secret, &json!({"tools": [tests::fixture::clock()]})).await;
    let bad = json!({"prompt": 7});
    let not_registered = (-32001, "call session.registerDriver before session.compact".to_owned());
    assert_eq!(t.rpc(&session, "session.compact", bad.clone()).await.error(), not_registered);
    session.register().await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    session.send("pause").await;
    let (code, text) = t.rpc(&session, "session.compact", bad.clone()).await.error();
    assert!(code == -32602 && text.starts_with("Invalid params: "), "params before the pause: {code} {text}");
    let blocked = (-32020, "turn in progress: resolve the paused turn before compacting".to_owned());
    assert_eq!(t.rpc(&session, "session.compact", json!({})).await.error(), blocked);
    let second = fixture.second(&session).await;
    assert_eq!(t.rpc(&second, "session.compact", json!({})).await.error(), blocked);
    session.delete().await.expect(200);
    assert_eq!(
        t.rpc(&session, "session.compact", bad).await.error(),
        (-32000, "session is closed, not open".to_owned())
    );
    golden("compact_errors", t);
}

#[tokio::test]
async fn the_profile_is_deleted() {
    let fixture = Fixture::start().await;
    let session = talked(&fixture).await;
    fixture.lose_profile(&fixture.profile).await;
    let mut t = transcript(&fixture);
    let expected = "profile_unavailable: the profile bound to this session is no longer available";
    assert_eq!(t.rpc(&session, "session.compact", json!({})).await.error(), (-32000, expected.to_owned()));
    assert_eq!(
        fixture.admin.state(&session.id).await,
        "open",
        "nothing in a compaction moves the session to error (7.6)"
    );
    golden("compact_profile_unavailable", t);
}

#[tokio::test]
async fn failed_attempts() {
    for (name, plan, truncated) in [
        ("compact_failed", Plan::default(), "summary truncated: stop_reason max_tokens"),
        ("compact_failed_openai", Plan::default().openai(), "summary truncated: finish_reason length"),
    ] {
        let spare = Provider::start().await;
        let kind = if name.ends_with("openai") { "openai" } else { "anthropic" };
        let fixture = plan.fallback("spare", kind, &spare).start().await;
        let session = talked(&fixture).await;
        let mut t = transcript(&fixture).replace(&spare.url(), "[spare]");
        let failed = |detail: &str| (-32000, format!("compaction failed: {detail}"));

        t.note("truncated: no fallback is asked");
        fixture.provider.push(Answer::text("half a summ").truncated());
        assert_eq!(t.rpc(&session, "session.compact", json!({})).await.error(), failed(truncated));
        t.note("empty");
        fixture.provider.push(Answer::text(" \n "));
        assert_eq!(t.rpc(&session, "session.compact", json!({})).await.error(), failed("empty summary"));
        assert_eq!(spare.requests().len(), 0);
        t.note("all fail: provider events only (7.6)");
        fixture.provider.push(Answer::status(400));
        spare.push(Answer::status(400));
        let outcome = t.rpc(&session, "session.compact", json!({})).await;
        assert_eq!(outcome.error(), failed("all 2 providers failed"));
        assert_eq!(
            types(&outcome.live()),
            [
                "session.compaction.started",
                "provider.request",
                "provider.response",
                "provider.request",
                "provider.response"
            ]
        );
        t.note("a fallback's summary counts");
        fixture.provider.push(Answer::status(400));
        assert_eq!(
            t.rpc(&session, "session.compact", json!({})).await.result()["event_type"],
            "session.compaction.completed"
        );
        assert_eq!(session.send("still here").await.text(), "ok");
        golden(name, t);
    }
}

#[tokio::test]
async fn a_refused_write() {
    let fixture = Fixture::start().await;
    let session = talked(&fixture).await;
    let mut t = transcript(&fixture);
    let fault = fixture.fail_inserts("session.compaction.completed").await;
    let outcome = t.rpc(&session, "session.compact", json!({})).await;
    assert_eq!(outcome.error(), (-32603, "Internal error".to_owned()));
    let events = session.events().await;
    assert_eq!(
        of_type(&events, "server.message.send").len(),
        1,
        "preamble, summary and completed are one append: {:?}",
        types(&events)
    );
    fault.undo().await;
    assert_eq!(fixture.admin.state(&session.id).await, "open");
    t.rpc(&session, "session.compact", json!({})).await.result();
    golden("compact_store_failed", t);
}

/// docs/api.md 7.3: the attempt runs inside the turn, before its result.
#[tokio::test]
async fn automatic() {
    let fixture = Fixture::start().await;
    let session = fixture.driver_with(json!({"compaction": {"mode": "auto", "size": 1000}})).await;
    let mut t = transcript(&fixture);
    fixture.provider.push(Answer::text("at the limit").usage(900, 100));
    assert_eq!(session.send("one").await.types().len(), 4, "1,000 does not exceed 1,000");
    fixture.provider.push(Answer::text("unknown usage").without_usage());
    assert_eq!(session.send("two").await.types().len(), 4);
    fixture.provider.script([Answer::text("over it").usage(900, 101), Answer::text("The summary.").usage(1001, 7)]);
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "three"}})).await;
    assert_eq!(outcome.text(), "over it");
    assert_eq!(
        outcome.types()[4..],
        [
            "session.compaction.started",
            "provider.request",
            "provider.response",
            "server.message.send",
            "server.message.send",
            "session.compaction.completed",
        ]
    );
    let events = outcome.events();
    let started =
        json!({"trigger": "auto", "reason": "token_threshold", "token_count": 1001, "threshold_tokens": 1000});
    assert_eq!(events[4]["payload"], started);
    session.send("four").await.text();
    let messages = fixture.provider.last()["messages"].clone();
    assert!(messages.to_string().contains("The summary.") && !messages.to_string().contains("over it"), "{messages}");
    golden("compact_auto", t);
}

/// docs/api.md 7.4: after a failed automatic attempt, none until another turn completed and the count grew; over a
/// restart.
#[tokio::test]
async fn backoff() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver_with(json!({"compaction": {"mode": "auto", "size": 1000}})).await;
    let mut t = transcript(&fixture);
    fixture.provider.script([Answer::text("a").usage(2000, 0), Answer::text(" ")]);
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "one"}})).await;
    assert_eq!(outcome.text(), "a", "a failed attempt does not fail the turn");
    assert_eq!(outcome.types()[4..], ["session.compaction.started", "provider.request", "provider.response"]);
    fixture.provider.push(Answer::text("b").usage(2000, 0));
    assert_eq!(session.send("not more than last time").await.types().len(), 4);
    fixture.server.crash().await;
    fixture.provider.push(Answer::text("b").usage(2000, 0));
    assert_eq!(session.send("nor after a restart").await.types().len(), 4);
    fixture.provider.script([Answer::text("c").usage(2001, 0), Answer::text("summary")]);
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "more"}})).await;
    let events = outcome.events();
    assert_eq!(events[4]["payload"]["reason"], "retry_after_failure");
    assert_eq!(events.last().unwrap()["event_type"], "session.compaction.completed");
    fixture.provider.script([Answer::text("d").usage(1500, 0), Answer::text("summary")]);
    let events = session.send("success clears it").await.events();
    assert_eq!(events[4]["payload"]["reason"], "token_threshold");
    golden("compact_backoff", t);
}

#[tokio::test]
async fn an_automatic_attempt_that_cannot_be_stored() {
    let fixture = Fixture::start().await;
    let session = fixture.driver_with(json!({"compaction": {"mode": "auto", "size": 1000}})).await;
    let mut t = transcript(&fixture);
    let fault = fixture.fail_inserts("session.compaction.completed").await;
    fixture.provider.script([Answer::text("the answer").usage(2000, 0), Answer::text("summary")]);
    let outcome = t.rpc(&session, "session.sendMessage", json!({"message": {"content": "go"}})).await;
    assert_eq!(outcome.text(), "the answer", "the turn still succeeds");
    assert_eq!(outcome.events().last().unwrap()["payload"]["reason"], "compaction_store_failed");
    assert_eq!(fixture.admin.state(&session.id).await, "open");
    fault.undo().await;
    session.send("next").await.text();
    golden("compact_auto_store_failed", t);
}

/// S8: a compact reclaims an expired pause of a mixed turn.
#[tokio::test]
async fn reclaiming_an_expired_pause() {
    let mcp = tests::mcp::Mcp::start("files", tests::mcp::Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).env("BAE_TURN_TIMEOUT", "1").start().await;
    let session = fixture.driver().await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({})), ("tu_2", "ls", json!({}))]));
    session.send("pause").await;
    let second = fixture.second(&session).await;
    let mut t = transcript(&fixture);
    let outcome = tests::poll::until(tests::poll::DEADLINE, "the pause's expiry", async || {
        let outcome = second.rpc("session.compact", json!({})).await;
        if outcome.frames.len() == 1 { Err(outcome) } else { Ok(outcome) }
    })
    .await;
    t.frames(&outcome);
    assert_eq!(
        types(&outcome.live())[..4],
        ["session.error", "server.message.send", "tool.result", "session.compaction.started"]
    );
    let live = outcome.live();
    assert_eq!(live[1]["payload"]["synthetic"], "abandoned_tool_results");
    assert_eq!(live[1]["payload"]["role"], "user");
    assert_eq!(outcome.result()["event_type"], "session.compaction.completed");
    let asked = fixture.provider.last()["messages"].clone();
    t.value("the compaction's messages pair every tool use", &asked);
    tests::history::assert_paired(&asked);
    golden("compact_reclaims", t);
}
