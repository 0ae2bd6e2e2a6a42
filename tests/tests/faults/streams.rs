//! F8, F10, F12, D1–D4, D9: sockets that are cut, readers that stop, subscribers that come and go.

use serde_json::{Value, json};
use tests::client::{Session, ids, of_type, types};
use tests::fixture::{Fixture, Plan};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp};
use tests::poll::{DEADLINE, until};
use tests::provider::Answer;

/// F8: the socket is cut at every point of a turn; the turn ends normally in the log, once.
#[tokio::test]
async fn cut_at_every_frame() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let script = || [Answer::tools(&[("tu_1", "ls", json!({}))]), Answer::text("done")];
    let session = fixture.driver().await;
    fixture.provider.script(script());
    let frames = session.send("go").await.frames.len();
    let expected = session.types().await;
    // Its first frame proves that the turn has started; what leaves earlier may be dropped (`queue`, S9).
    for cut in 1..frames {
        let session = fixture.driver().await;
        fixture.provider.script(script());
        let mut turn = session.start_send("go").await;
        for _ in 0..cut {
            turn.next().await.unwrap();
        }
        drop(turn);
        session.until_last("server.message.send").await;
        assert_eq!(session.types().await, expected, "cut after {cut} frames");
        assert_eq!(session.send("next").await.text(), "ok");
    }
    assert_all_paired(&fixture.provider);
}

/// D4: the client leaves during a provider call whose answer asks for a client tool: the pause is recorded all the
/// same.
#[tokio::test]
async fn leaving_before_a_pause() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::tools(&[("tu_1", "clock", json!({}))]));
    let turn = session.start_send("time?").await;
    held.arrived().await;
    drop(turn);
    held.release();
    let events = session.until_last("server.message.send").await;
    assert_eq!(events.last().unwrap()["payload"]["content"][0]["dispatch"], "client");
    assert_eq!(session.answer(&[("tu_1", "now")]).await.text(), "ok");
    assert_all_paired(&fixture.provider);
}

/// F10: reconnecting with `since_event_id` at random points of a burst: the log's ids, in order, no gap, no duplicate.
#[tokio::test]
async fn reconnecting_in_a_burst() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let first = session.events().await.last().unwrap()["id"].as_str().unwrap().to_owned();
    let reports = async {
        for number in 0..150 {
            if number % 10 == 0 {
                session.send(format!("turn {number}")).await.text();
            } else {
                let report = json!({"state": "running", "image": number.to_string()});
                session.rpc("session.reportLocalSandbox", report).await.result();
            }
        }
        session.delete().await.expect(200);
    };
    let watch = async {
        let mut seen: Vec<String> = Vec::new();
        let mut rng = fastrand::Rng::with_seed(12_345);
        loop {
            let count = rng.usize(..12);
            let since = seen.last().unwrap_or(&first).clone();
            let params = json!({"since_event_id": since, "include_client_events": true});
            let mut stream = session.start("session.subscribe", params).await;
            for _ in 0..count {
                let Some(frame) = stream.next().await else { return seen };
                seen.push(frame["params"]["id"].as_str().unwrap_or_else(|| panic!("{frame}")).to_owned());
                if frame["params"]["event_type"] == "session.close" {
                    return seen;
                }
            }
        }
    };
    let ((), seen) = tokio::join!(reports, watch);
    let log = session.events().await;
    assert_eq!(seen, ids(&log[2..]));
}

/// S14 on one node: a subscription that begins in the middle of a burst has no gap and no double at the seam.
#[tokio::test]
async fn subscribing_in_a_burst() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let first = session.events().await[1]["id"].as_str().unwrap().to_owned();
    let (progress, watched) = tokio::sync::watch::channel(0);
    let reports = async {
        for number in 0..90 {
            let report = json!({"state": "running", "image": number.to_string()});
            session.rpc("session.reportLocalSandbox", report).await.result();
            progress.send(number).unwrap();
        }
        session.delete().await.expect(200);
    };
    let watchers = futures_util::future::join_all((0..10).map(|watcher| {
        let (session, first, mut watched) = (&session, &first, watched.clone());
        async move {
            watched.wait_for(|number| *number >= watcher * 8).await.unwrap();
            session.subscribe(Some(first)).await.finish().await.live()
        }
    }));
    let ((), seen) = tokio::join!(reports, watchers);
    let log = ids(&session.events().await[2..]);
    for events in seen {
        assert_eq!(ids(&events), log);
    }
}

/// F12: a reader that stops reading: memory stays flat, its stream ends with `lagged`, nobody else notices.
#[tokio::test]
async fn a_reader_that_stops() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut stopped = session.subscribe(None).await;
    let reader = session.subscribe(None).await;
    let detail = "x".repeat(512 << 10);
    let report = async |count: usize| {
        for _ in 0..count {
            let report = json!({"state": "error", "image": "x", "detail": detail});
            session.rpc("session.reportLocalSandbox", report).await.result();
        }
    };
    let reading = tokio::spawn(reader.finish());
    report(20).await;
    let before = fixture.server.resident();
    report(60).await;
    let grown = fixture.server.resident().saturating_sub(before);
    assert!(grown < 24 << 20, "30 MiB of events were published, and the server grew by {} MiB", grown >> 20);
    assert_eq!(session.send("a turn").await.text(), "ok");
    session.delete().await.expect(200);
    let others = reading.await.unwrap();
    assert_eq!(others.live().len(), 80 + 3 + 1, "the one who reads gets everything");
    let mut last = Value::Null;
    while let Some(frame) = stopped.next().await {
        last = frame;
    }
    let lagged =
        json!({"jsonrpc": "2.0", "error": {"code": -32000, "message": "lagged; reconnect with since_event_id"}});
    assert_eq!(last, lagged, "and no id member");
    let mut t = tests::transcript::Transcript::default();
    t.value("the last frame", &last);
    crate::golden::golden("lagged", t);
}

/// docs/api.md 2.5: only live subscriptions lag; a replay and a call's own stream come at the reader's pace.
#[tokio::test]
async fn slow_readers_of_logs_do_not_lag() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let detail = "x".repeat(512 << 10);
    for _ in 0..40 {
        let report = json!({"state": "error", "image": "x", "detail": detail});
        session.rpc("session.reportLocalSandbox", report).await.result();
    }
    let log = session.events().await;
    let mut replay = session.subscribe(Some(log[0]["id"].as_str().unwrap())).await;
    // A turn whose single events are big, not read while it runs.
    let text = "y".repeat(2 << 20);
    fixture.provider.push(Answer::text(&text));
    let turn = session.start_send(text.clone()).await;
    session.until_last("server.message.send").await;
    let log = session.events().await;
    let mut seen = Vec::new();
    while seen.len() < log.len() - 2 {
        let frame = replay.next().await.unwrap();
        seen.push(frame["params"]["id"].as_str().unwrap_or_else(|| panic!("{frame}")).to_owned());
    }
    let filtered: Vec<String> = ids(&log[1..])
        .into_iter()
        .zip(&log[1..])
        .filter(|(_, e)| e["event_type"] != "client.message.send")
        .map(|(id, _)| id)
        .collect();
    assert_eq!(seen, filtered);
    assert_eq!(turn.finish().await.text(), text);
}

/// D9: idle subscribers that disconnect are noticed at once, not at the session's next event.
#[tokio::test]
async fn idle_subscribers_leave() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", fixture.server.pid())).unwrap().count();
    let before = descriptors();
    let streams = futures_util::future::join_all((0..200).map(|_| session.subscribe(None))).await;
    assert!(descriptors() >= before + 200);
    drop(streams);
    until(DEADLINE, "the server's closing its ends", async || {
        let now = descriptors();
        if now <= before + 5 { Ok(()) } else { Err(now) }
    })
    .await;
}

/// D1: authentication costs microseconds, and no more after many joins. Counted in CPU time, which load does not
/// stretch.
#[tokio::test]
async fn authentication_is_cheap() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let cpu = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", fixture.server.pid())).unwrap();
        let fields: Vec<u64> =
            stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2).map(|n| n.parse().unwrap()).collect();
        fields.iter().sum::<u64>()
    };
    for _ in 0..30 {
        fixture.api.join(&session.id, &fixture.key.secret, &json!({})).await;
    }
    let before = cpu();
    for _ in 0..200 {
        fixture.api.get(&session.path("/participants"), &session.key).await.expect(200);
    }
    let ticks = cpu() - before;
    assert!(ticks < 400, "200 authenticated requests cost {ticks} clock ticks (of 10 ms) of CPU");
}

/// D2: small frames are not held back for the peer's delayed acknowledgement. The fastest of many turns tells: with the
/// defect every one takes 40 ms between its first and last frame.
#[tokio::test]
async fn small_frames_are_sent_at_once() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut fastest = std::time::Duration::MAX;
    for _ in 0..30 {
        let mut turn = session.start_send("hello").await;
        turn.next().await.unwrap();
        let start = std::time::Instant::now();
        turn.finish().await.text();
        fastest = fastest.min(start.elapsed());
    }
    assert!(fastest < std::time::Duration::from_millis(35), "{fastest:?}");
}

/// Two watchers and the caller see the same events of a turn, in the log's order.
#[tokio::test]
async fn everybody_sees_the_same() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let fixture = Plan::default().mcp(&mcp).start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    let (mut one, mut two) = (session.subscribe(None).await, second.subscribe(None).await);
    fixture.provider.push(Answer::tools(&[("tu_1", "ls", json!({})), ("tu_2", "ls", json!({}))]));
    let turn = session.send("go").await;
    let live = turn.live();
    assert_eq!(one.until_type("server.message.send").await, live);
    assert_eq!(two.until_type("server.message.send").await, live);
    assert_eq!(turn.events()[1..], live[..]);
    assert_eq!(ids(&turn.events()), ids(&log_of_last_turn(&session).await));
    assert!(of_type(&live, "client.message.send").is_empty());
    assert_eq!(types(&live)[0], "provider.request");
}

async fn log_of_last_turn(session: &Session) -> Vec<Value> {
    let events = session.events().await;
    let start = events.iter().rposition(|event| event["event_type"] == "client.message.send").unwrap();
    events[start..].to_vec()
}
