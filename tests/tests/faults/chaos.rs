//! The server is killed at random moments under load. Afterwards the logs are checked.

use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tests::client::{Session, of_type};
use tests::fixture::Plan;
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp};
use tests::poll::{DEADLINE, until};
use tests::provider::Answer;

/// Sends a message with the same idempotency key until it is answered, as a client with retries does.
async fn insist(session: &Session, key: &str) -> Value {
    until(DEADLINE * 2, "an answer in the end", async || {
        let params = json!({"message": {"content": key}, "idempotency_key": key});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "session.sendMessage", "params": params}).to_string();
        let request = session.api().request("POST", &session.path("/rpc"));
        let request = request.header("authorization", format!("Bearer {}", session.key)).body(body);
        let answer = request.send().await.map_err(|error| error.to_string())?;
        if answer.status() != 200 {
            return Err(format!("{}", answer.status()));
        }
        let text = answer.text().await.map_err(|error| error.to_string())?;
        let last: Value =
            serde_json::from_str(text.lines().last().unwrap_or_default()).map_err(|error| error.to_string())?;
        last.get("result").cloned().ok_or_else(|| last.to_string())
    })
    .await
}

/// I3, I5: every answer that a client got is in the log, and every call ran once, however often the server was killed.
#[tokio::test]
async fn kills_under_load() {
    const SESSIONS: usize = 4;
    const CALLS: usize = 12;
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let mut fixture = Plan::default().mcp(&mcp).env("BAE_MAX_TURN_ITERATIONS", "100").start().await;
    // Every third answer of the provider uses a tool, in whatever session.
    for number in 0..200 {
        fixture.provider.push(match number % 3 {
            0 => Answer::tools(&[(&format!("tu_{number}"), "ls", json!({"n": number}))]),
            _ => Answer::text(&format!("answer {number}")),
        });
    }
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(fixture.driver().await);
    }
    let done = AtomicUsize::new(0);
    let finished = AtomicBool::new(false);
    let clients = async {
        let one = |index: usize| {
            let (session, done) = (&sessions[index], &done);
            async move {
                let mut answers = Vec::new();
                for call in 0..CALLS {
                    answers.push(insist(session, &format!("s{index} c{call}")).await);
                    done.fetch_add(1, Ordering::Relaxed);
                }
                answers
            }
        };
        let answers = futures_util::future::join_all((0..SESSIONS).map(one)).await;
        finished.store(true, Ordering::Relaxed);
        answers
    };
    let server = &mut fixture.server;
    let killer = async {
        let mut rng = fastrand::Rng::with_seed(99);
        let mut kills = 0;
        let mut seen = 0;
        while !finished.load(Ordering::Relaxed) {
            // Kills only after some progress since the last one. The sleep makes the moment random; nothing waits for
            // it.
            let progress = done.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(rng.u64(..40))).await;
            if progress >= seen + 4 && kills < 8 {
                server.crash().await;
                kills += 1;
                seen = progress;
            }
        }
        kills
    };
    let (answers, kills) = tokio::join!(clients, killer);
    assert!(kills >= 5, "only {kills} kills");
    for (index, (session, answers)) in sessions.iter().zip(&answers).enumerate() {
        let events = session.events().await;
        let said: Vec<Value> =
            of_type(&events, "client.message.send").iter().map(|e| e["payload"]["content"].clone()).collect();
        let expected: Vec<Value> = (0..CALLS).map(|call| json!(format!("s{index} c{call}"))).collect();
        assert_eq!(said, expected, "each once, in order");
        let mut rest = events.iter();
        for answer in answers {
            for event in answer["events"].as_array().unwrap() {
                assert!(rest.any(|logged| logged == event), "acknowledged, but not in the log at its place: {event}");
            }
        }
    }
    assert_all_paired(&fixture.provider);
}

/// After a restart many unfinished turns are carried on at the same time, although no client is connected.
#[tokio::test]
async fn everything_unfinished_is_carried_on() {
    let mut fixture = tests::fixture::Fixture::start().await;
    let mut waiting = Vec::new();
    for number in 0..25 {
        let session = fixture.driver().await;
        let mut held = fixture.provider.hold(Answer::text("never sent"));
        let stream = session.start_send(format!("turn {number}")).await;
        held.arrived().await;
        waiting.push((session, held, stream));
    }
    fixture.server.crash().await;
    for (session, _, _) in &waiting {
        session.until_last("server.message.send").await;
    }
    assert_eq!(fixture.provider.requests().len(), 50);
}
