//! Two drivers send, pause, answer, give up, compact, report and hang up at random, while the server is killed now and
//! then. Afterwards the log must be valid, every tool call must have its result, and the session must serve both
//! drivers.

use fastrand::Rng;
use serde_json::{Value, json};
use std::time::Duration;
use tests::client::{Session, of_type, types};
use tests::fixture::{Fixture, Plan};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp, Outcome};
use tests::poll::{DEADLINE, until};
use tests::provider::Answer;

/// A random answer of any kind except final failures, which would end the session.
fn answer(rng: &mut Rng, number: usize) -> Answer {
    let id = |part: &str| format!("tu_{number}{part}");
    match rng.u64(..10) {
        0 | 1 => Answer::tools(&[(&id("c"), "clock", json!({"n": number}))]),
        2 | 3 => Answer::tools(&[(&id("m"), "ls", json!({"n": number}))]),
        4 => Answer::tools(&[(&id("m"), "ls", json!({})), (&id("c"), "clock", json!({}))]),
        5 => Answer::tools(&[
            (&id("c"), "clock", json!({})),
            (&id("x"), "nobody", json!({})),
            (&id("d"), "clock", json!({})),
        ]),
        6 => Answer::text("").truncated(),
        7 => Answer::text(&format!("long {number}")).usage(3000, number as u64),
        _ => Answer::text(&format!("text {number}")),
    }
}

/// Sends a call and waits for its answer for at most `time_limit`. Any outcome is accepted. Returns the last line.
async fn call(session: &Session, method: &str, params: Value, time_limit: Duration) -> Option<Value> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let whole = async {
        loop {
            let request = session.api().request("POST", &session.path("/rpc"));
            let request = request.header("authorization", format!("Bearer {}", session.key)).body(body.clone());
            match request.send().await {
                Ok(answer) => return answer.text().await.ok(),
                // The server is being restarted, so the request is sent again, until `time_limit` has passed.
                Err(error) if error.is_connect() => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(_) => return None,
            }
        }
    };
    let text = tokio::time::timeout(time_limit, whole).await.ok()??;
    serde_json::from_str(text.lines().last()?).ok()
}

/// The client tool uses that a result asks for.
fn asked(last: Option<&Value>) -> Vec<Value> {
    let blocks = last.and_then(|last| last["result"]["message"]["content"].as_array());
    let ours = blocks.into_iter().flatten().filter(|block| block["dispatch"] == "client");
    ours.map(|block| json!({"type": "tool_result", "tool_use_id": block["id"], "content": "done"})).collect()
}

/// Makes sixty random calls as one driver.
async fn drive(session: &Session, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut open: Vec<Value> = Vec::new();
    for number in 0..60 {
        let time_limit = Duration::from_millis(match rng.u64(..4) {
            0 => rng.u64(..30),
            _ => 4000,
        });
        match rng.u64(..12) {
            0 => drop(call(session, "session.compact", json!({}), time_limit).await),
            1 => {
                let report = json!({"state": "running", "image": format!("{number}")});
                call(session, "session.reportLocalSandbox", report, time_limit).await;
            }
            2 => drop(
                call(session, "session.updateClientTools", json!({"tools": [tests::fixture::clock()]}), time_limit)
                    .await,
            ),
            3..8 if !open.is_empty() => {
                let params = json!({"message": {"content": open}});
                open = asked(call(session, "session.sendMessage", params, time_limit).await.as_ref());
            }
            _ => {
                let params = json!({"message": {"content": format!("{seed}-{number}")}});
                open = asked(call(session, "session.sendMessage", params, time_limit).await.as_ref());
            }
        }
    }
}

async fn random_operations(seed: u64) {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let plan = Plan::default().mcp(&mcp).env("BAE_TURN_TIMEOUT", "1").env("BAE_MAX_TURN_ITERATIONS", "1000");
    let mut fixture = plan.start().await;
    let mut rng = Rng::with_seed(seed);
    for number in 0..800 {
        fixture.provider.push(answer(&mut rng, number));
    }
    for _ in 0..120 {
        mcp.push(match rng.u64(..4) {
            0 => Outcome::IsError("no".to_owned()),
            1 => Outcome::HangUp,
            _ => Outcome::Text("listing".to_owned()),
        });
    }
    let body = json!({"tools": [tests::fixture::clock()], "compaction": {"mode": "auto", "size": 2000}});
    let first = fixture.driver_with(body).await;
    let second = fixture.second(&first).await;
    let (one, two) = (first.clone(), second.clone());
    let drivers = tokio::spawn(async move {
        tokio::join!(drive(&one, seed ^ 1), drive(&two, seed ^ 2));
    });
    let mut kills = 0;
    while !drivers.is_finished() {
        // The sleep makes the moment of the kill random; nothing waits for it.
        tokio::time::sleep(Duration::from_millis(100 + rng.u64(..600))).await;
        if kills < 8 {
            fixture.server.crash().await;
            kills += 1;
        }
    }
    drivers.await.unwrap();
    assert!(kills >= 2, "only {kills} kills");
    check_both_served(&fixture, &first, &second).await;
}

/// Checks that both drivers are served again and that every call and every tool use in the log has its end.
async fn check_both_served(fixture: &Fixture, first: &Session, second: &Session) {
    let state = fixture.admin.state(&first.id).await;
    if state == "open" {
        for session in [first, second] {
            until(DEADLINE, "an ordinary message's answer", async || {
                let params = json!({"message": {"content": "settle"}});
                let last = call(session, "session.sendMessage", params, DEADLINE).await;
                // If the model uses a tool once more, the next plain message gives that up.
                match (last.as_ref().and_then(|last| last.get("result")), asked(last.as_ref()).is_empty()) {
                    (Some(_), true) => Ok(()),
                    _ => Err(last),
                }
            })
            .await;
        }
    }
    let events = first.events().await;
    // The session may have ended only because a driver's tool results met another pause than the one they were meant
    // for.
    let last = events.last().unwrap();
    let merge = last["payload"]["reason"] == "tool_result_merge_invalid";
    assert!(state == "open" || merge, "{state}: {last}\n{:?}", types(&events));
    assert_all_paired(&fixture.provider);
    if state == "open" {
        assert_eq!(of_type(&events, "tool.call").len(), of_type(&events, "tool.result").len(), "{:?}", types(&events));
        let begun = of_type(&events, "client.message.send").len();
        assert!(
            of_type(&events, "server.message.send").len() >= begun,
            "every message was answered: {:?}",
            types(&events)
        );
    }
    assert_eq!(of_type(&events, "provider.request").len(), of_type(&events, "provider.response").len());
    assert_eq!(of_type(&events, "mcp.request").len(), of_type(&events, "mcp.response").len());
}

/// The same, but the session is closed by DELETE meanwhile, in some runs with a kill at about the same time.
async fn ended(seed: u64) {
    let mcp = Mcp::start("files", Kind::Stdio, &["ls"]).await;
    let mut fixture = Plan::default().mcp(&mcp).env("BAE_TURN_TIMEOUT", "1").start().await;
    let mut rng = Rng::with_seed(seed);
    for number in 0..400 {
        fixture.provider.push(answer(&mut rng, number));
    }
    let first = fixture.driver().await;
    let second = fixture.second(&first).await;
    let watcher = tokio::spawn(first.subscribe(None).await.finish());
    let (one, two) = (first.clone(), second.clone());
    let drivers = tokio::spawn(async move {
        tokio::join!(drive(&one, seed ^ 1), drive(&two, seed ^ 2));
    });
    // The two sleeps here make the moments of the DELETE and of the kill random; nothing waits for them.
    tokio::time::sleep(Duration::from_millis(rng.u64(..400))).await;
    let request =
        first.api().request("DELETE", &first.path("")).header("authorization", format!("Bearer {}", first.key));
    let deleting = tokio::spawn(request.send());
    if rng.u64(..2) == 0 {
        tokio::time::sleep(Duration::from_millis(rng.u64(..40))).await;
        fixture.server.crash().await;
    }
    let _ = deleting.await.unwrap();
    until(DEADLINE, "the session's end", async || {
        let reply = first.delete().await;
        let types = first.types().await;
        if reply.status == 409 && types.last().unwrap() == "session.close" { Ok(()) } else { Err((reply, types)) }
    })
    .await;
    drivers.await.unwrap();
    watcher.await.unwrap();
    let events = first.events().await;
    assert_eq!(of_type(&events, "session.close").len(), 1, "{:?}", types(&events));
    assert_eq!(events.last().unwrap()["event_type"], "session.close", "{:?}", types(&events));
    assert_eq!(fixture.admin.state(&first.id).await, "closed");
    fixture.server_lives().await;
}

#[tokio::test]
async fn ended_in_the_middle() {
    for seed in 0..6 {
        ended(seed).await;
    }
}

#[tokio::test]
async fn of_seed_1() {
    random_operations(1).await;
}

#[tokio::test]
async fn of_seed_2() {
    random_operations(2).await;
}

#[tokio::test]
async fn of_seed_3() {
    random_operations(3).await;
}
