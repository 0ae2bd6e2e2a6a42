//! `session.subscribe` and `session.unsubscribe`.

use super::golden;
use serde_json::json;
use tests::client::{ids, types};
use tests::fixture::{Fixture, Plan};
use tests::provider::Answer;
use tests::transcript::Transcript;

#[tokio::test]
async fn live_replay_and_the_filter() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut t = Transcript::default().replace(&fixture.provider.url(), "[provider]");
    let mut live = session.subscribe(None).await;
    fixture.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    session.send("pause").await;
    session.answer(&[("tu_1", "now")]).await.text();
    t.note("live: no client.message.send, no tool.result of a client");
    let events = live.until_type("server.message.send").await;
    assert_eq!(types(&events), ["provider.request", "provider.response", "tool.call", "server.message.send"]);
    let events = live.until_type("server.message.send").await;
    assert_eq!(types(&events), ["provider.request", "provider.response", "server.message.send"]);

    t.note("a replay holds everything after the event, then goes on live and filtered");
    let log = session.events().await;
    let since = log[1]["id"].as_str().unwrap();
    let mut replay = session.subscribe(Some(since)).await;
    let mut seen = Vec::new();
    while seen.len() < log.len() - 2 {
        seen.push(replay.next().await.unwrap()["params"].clone());
    }
    assert_eq!(seen, log[2..]);
    session.send("more").await.text();
    assert_eq!(
        types(&replay.until_type("server.message.send").await),
        ["provider.request", "provider.response", "server.message.send"]
    );

    t.note("with include_client_events the others' messages come too (docs/api.md 3.9)");
    let mut all = session.start("session.subscribe", json!({"include_client_events": true})).await;
    session.send("third").await.text();
    t.next(&mut all, 4).await;
    golden("subscribe", t);
}

/// Client libraries start with an id that the session does not hold (docs/api.md 3.9).
#[tokio::test]
async fn an_unknown_id_replays_the_whole_log() {
    let fixture = Fixture::start().await;
    let (session, other) = (fixture.driver().await, fixture.driver().await);
    session.send("hello").await.text();
    let (log, elsewhere) = (session.events().await, other.events().await);
    let unknown = "evt_00000000000000000000000000000000";
    for since in ["", "nonsense", unknown, elsewhere[0]["id"].as_str().unwrap()] {
        let mut replay = session.subscribe(Some(since)).await;
        for event in &log {
            assert_eq!(&replay.next().await.unwrap()["params"], event, "{since:?}");
        }
    }
}

#[tokio::test]
async fn client_events_by_default() {
    let fixture = Plan::default().env("BAE_FORWARD_CLIENT_EVENTS", "1").start().await;
    let session = fixture.driver().await;
    let mut watcher = session.subscribe(None).await;
    session.send("hello").await.text();
    assert_eq!(watcher.next_type().await, "client.message.send");
}

#[tokio::test]
async fn params_and_registration() {
    let fixture = Fixture::start().await;
    let session = fixture.api.open(&fixture.key.secret, &json!({})).await;
    let mut t = Transcript::default();
    for params in [json!({"since_event_id": 7}), json!({"include_client_events": "yes"})] {
        let (code, text) = t.rpc(&session, "session.subscribe", params).await.error();
        assert!(code == -32602 && text.starts_with("Invalid params: "), "{code} {text}");
    }
    t.note("an observer never registers, and nothing is logged when it subscribes");
    let _watcher = session.subscribe(None).await;
    assert_eq!(session.types().await, ["session.open"]);
    golden("subscribe_params", t);
}

#[tokio::test]
async fn unsubscribing_ends_every_subscription() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let other = fixture.driver().await;
    let mut kept = other.subscribe(None).await;
    let second = fixture.second(&session).await;
    let (first_stream, second_stream) = (session.subscribe(None).await, second.subscribe(None).await);
    let mut t = Transcript::default();
    let outcome = t.rpc(&second, "session.unsubscribe", json!({})).await;
    assert_eq!(*outcome.result(), json!({"unsubscribed": true}));
    for stream in [first_stream, second_stream] {
        let rest = stream.finish().await;
        assert!(rest.frames.iter().all(|frame| frame.get("error").is_none()), "{rest:?}");
    }
    t.note("with nothing to end");
    assert_eq!(t.rpc(&session, "session.unsubscribe", json!({})).await.result()["unsubscribed"], true);
    t.note("another session's streams go on");
    other.send("hello").await.text();
    assert_eq!(kept.next_type().await, "provider.request");
    golden("unsubscribe", t);
}

/// D3: `session.close` reaches watchers, last; then the stream ends. On an ended session: replay, then the end.
#[tokio::test]
async fn the_end_of_a_session() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let live = session.subscribe(None).await;
    session.delete().await.expect(200);
    let seen = live.finish().await;
    let mut t = Transcript::default();
    t.frames(&seen);
    assert_eq!(types(&seen.live()), ["session.close"]);
    let log = session.events().await;
    let replay = session.subscribe(Some(log[0]["id"].as_str().unwrap())).await.finish().await;
    assert_eq!(ids(&replay.live()), ids(&log[1..]));
    assert_eq!(session.subscribe(None).await.finish().await.live().len(), 0);

    t.note("a session that failed");
    fixture.provider.otherwise(Answer::status(400));
    let session = fixture.driver().await;
    let live = session.subscribe(None).await;
    session.send("fail").await;
    assert_eq!(types(&live.finish().await.live()).last().unwrap(), "session.error");
    let log = session.events().await;
    let replay = session.subscribe(Some(log[0]["id"].as_str().unwrap())).await.finish().await;
    assert_eq!(ids(&replay.live()), ids(&log[1..]));
    golden("subscribe_end", t);
}

/// docs/api.md 2.7: an empty line on a stream that has been silent that long.
#[tokio::test]
async fn keep_alive_lines() {
    let fixture = Plan::default().env("BAE_STREAM_KEEPALIVE", "1").start().await;
    let session = fixture.driver().await;
    let mut idle = session.subscribe(None).await;
    let held = fixture.provider.hold(Answer::text("slow"));
    let mut turn = session.start_send("go").await;
    for stream in [&mut idle, &mut turn] {
        let mut empty = 0;
        while empty < 1 {
            let line = tests::poll::within("a keep-alive line", stream.line()).await.expect("the stream goes on");
            empty += usize::from(line.is_empty());
        }
    }
    held.release();
    assert_eq!(turn.finish().await.text(), "slow");
}
