//! Redis or Postgres gone, emptied, stalled (F1, F2, F11, F22, F23, S4).

use serde_json::{Value, json};
use std::time::Duration;
use tests::checker::Accepted;
use tests::client::{ids, types};
use tests::cluster::{Cluster, Mode, Plan, TAKEOVER, of_type};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp, Outcome};
use tests::provider::Answer;
use tests::services::Service;
use tokio::time::{Instant, sleep_until};

/// S4, F2: Redis is emptied in mid-turn, with A and B waiting; C arrives before anybody has put anything back.
#[tokio::test]
async fn redis_emptied_in_mid_turn() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let cluster = Plan::default().own_redis().mcp(&mcp).start().await;
    let session = cluster.driver().await;
    cluster.provider.push(Answer::tools(&[("tu_1", "ls", json!({})), ("tu_2", "ls", json!({}))]));
    let mut held = mcp.hold(Outcome::Text("listed".to_owned()));
    let running = cluster.at(&session, 0).start_send("running").await;
    held.arrived().await;
    assert_eq!(cluster.last(&session).await, "mcp.request");
    let mut waiting = Vec::new();
    for (node, text) in [(1, "A"), (2, "B")] {
        waiting.push(cluster.at(&session, node).start_send(text).await);
    }
    cluster.redis.as_ref().unwrap().redis_cli(&["FLUSHALL"]);
    waiting.push(cluster.at(&session, 0).start_send("C").await);
    held.release();
    assert_eq!(running.finish().await.text(), "ok");
    for frames in waiting {
        assert_eq!(frames.finish().await.text(), "ok");
    }
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["running", "A", "B", "C"].map(Accepted::new)), []);
    assert!(of_type(&log, "mcp.response").iter().all(|response| response["ok"] == true), "a tool call was fenced off");
    assert_eq!(mcp.calls().len(), 2);
    assert_all_paired(&cluster.provider);
}

/// A pause expires while nothing may be claimed (Redis was replaced a moment ago). Its owner asks again at intervals, and the
/// caller behind it is served in the end.
#[tokio::test]
async fn no_claim_is_repeated_without_a_pause() {
    const PAUSE: Duration = Duration::from_secs(2);
    const WATCHED: Duration = Duration::from_secs(4);
    let plan = Plan::default().own_redis().env("BAE_TURN_TIMEOUT", &PAUSE.as_secs().to_string());
    let cluster = plan.start().await;
    let redis = cluster.redis.as_ref().unwrap();
    let session = cluster.driver().await;
    cluster.provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
    cluster.at(&session, 0).send("pause").await.result();
    let paused = Instant::now();
    let keys = redis.redis_cli(&["--scan"]);
    let world = keys.lines().find(|key| key.ends_with(":world")).unwrap_or_else(|| panic!("no world: {keys}"));
    let settling = world.replace(":world", ":settling");
    redis.redis_cli(&["SET", &settling, "1", "PX", "600000"]);
    let behind = cluster.second(&session, 1).await.start_send("behind").await;
    // The time itself is what is measured, from the moment when the pause is over.
    sleep_until(paused + PAUSE + Duration::from_secs(1)).await;
    let before = scripts(redis);
    sleep_until(paused + PAUSE + Duration::from_secs(1) + WATCHED).await;
    let asked = scripts(redis) - before;
    // Heartbeats, renewals and reconciliations of three nodes are about ten a second.
    assert!(asked < 50 * WATCHED.as_secs(), "{asked} scripts in {WATCHED:?}");
    redis.redis_cli(&["DEL", &settling]);
    assert_eq!(behind.finish().await.text(), "ok");
}

/// How many scripts a Redis has run.
fn scripts(redis: &Service) -> u64 {
    let stats = redis.redis_cli(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).unwrap_or_else(|| panic!("no count of scripts: {stats}"))
}

/// F22: Redis is gone for longer than any lease, then comes back with nothing. The running turn goes on throughout and
/// its watchers see it; what waits goes on by itself; what cannot be accepted is told so.
#[tokio::test]
async fn redis_gone_for_fifteen_seconds() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let mut cluster = Plan::default().own_redis().mcp(&mcp).start().await;
    let session = cluster.driver().await;
    let mut subscription = cluster.at(&session, 2).subscribe(None).await;
    let mut held = cluster.provider.hold(Answer::tools(&[("tu_1", "ls", json!({}))]));
    let mut second = cluster.provider.hold(Answer::text("through it all"));
    let running = cluster.at(&session, 0).start_send("running").await;
    held.arrived().await;
    assert_eq!(cluster.last(&session).await, "provider.request");
    let waiting = [cluster.at(&session, 1).start_send("A").await, cluster.at(&session, 2).start_send("B").await];
    let stopped = Instant::now();
    cluster.redis.as_mut().unwrap().stop();
    held.release();
    second.arrived().await;
    let mut seen = subscription.until_type("tool.result").await;
    let refused = cluster.at(&session, 1).send("refused").await;
    let error = refused.frames.last().unwrap()["error"].clone();
    assert_eq!((&error["code"], &error["data"]["retryable"]), (&json!(-32603), &json!(true)), "{error}");
    // Everything else works without Redis.
    cluster.nodes[1].ready().await;
    assert_eq!(cluster.at(&session, 1).types().await.last().unwrap(), "provider.request");
    // How long it is gone is the point here.
    sleep_until(stopped + Duration::from_secs(15)).await;
    assert_eq!(cluster.log(&session).await.epoch, 1, "nobody took over");
    cluster.redis.as_mut().unwrap().run();
    second.release();
    assert_eq!(running.finish().await.text(), "through it all");
    for frames in waiting {
        assert_eq!(frames.finish().await.text(), "ok");
    }
    assert_eq!(cluster.at(&session, 1).send("after").await.text(), "ok");
    let all = ["running", "A", "B", "after"];
    while seen.iter().filter(|event| event["event_type"] == "server.message.send").count() < all.len() {
        seen.extend(subscription.until_type("server.message.send").await);
    }
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&all.map(Accepted::new)), []);
    assert_eq!(log.compare_stream(&ids(&seen)), []);
    assert_eq!(mcp.calls().len(), 1);
}

/// F22: Redis is gone for a minute under load and comes back with nothing. Turns of many tool rounds run through it
/// without another owner, drivers stay registered, what was accepted goes on by itself and in its order, and what is
/// sent meanwhile, again and again, is recorded once.
#[tokio::test]
async fn redis_gone_for_a_minute_under_load() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let plan = Plan::default().own_redis().mcp(&mcp).env("BAE_MAX_TURN_ITERATIONS", "1000");
    let mut cluster = plan.start().await;
    // Three turns share these, 2 s each: more than the minute.
    let rounds = 105;
    for round in 0..rounds {
        cluster.provider.push(Answer::tools(&[(&format!("tu_{round}"), "ls", json!({"round": round}))]));
        mcp.push(Outcome::Late(Duration::from_secs(2), "a listing".to_owned()));
    }
    let (mut sessions, mut running, mut waiting, mut watching) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for index in 0..3 {
        let session = cluster.driver().await;
        watching.push(cluster.at(&session, (index + 2) % 3).subscribe(None).await);
        running.push(cluster.at(&session, index).start_send("running").await);
        cluster
            .until(&session, tests::poll::DEADLINE, "a tool round", |log| log.types().contains(&"tool.result".into()))
            .await;
        for (node, text) in [(index + 1, "A"), (index + 2, "B")] {
            waiting.push(cluster.at(&session, node % 3).start_send(text).await);
        }
        sessions.push(session);
    }
    let owners = {
        let mut epochs = Vec::new();
        for session in &sessions {
            epochs.push(cluster.log(session).await.epoch);
        }
        epochs
    };
    let stopped = Instant::now();
    cluster.redis.as_mut().unwrap().stop();
    let load = sessions.iter().enumerate().map(|(index, session)| {
        let nodes: Vec<_> = (0..3).map(|node| cluster.at(session, (index + node) % 3)).collect();
        tokio::spawn(async move {
            let params = json!({"message": {"content": "C"}, "idempotency_key": "C"});
            for attempt in 0.. {
                let outcome = nodes[attempt % 3].try_rpc("session.sendMessage", params.clone()).await.unwrap();
                let last = outcome.frames.last().unwrap_or_else(|| panic!("attempt {attempt} broke off"));
                if last.get("result").is_some() {
                    return attempt;
                }
                assert_eq!(last["error"]["data"]["retryable"], true, "{last}");
            }
            unreachable!("attempts have no end")
        })
    });
    let load: Vec<_> = load.collect();
    // How long it is gone is the point here.
    sleep_until(stopped + Duration::from_secs(60)).await;
    for (session, epoch) in sessions.iter().zip(&owners) {
        let log = cluster.log(session).await;
        assert_eq!((log.epoch, log.phase.as_str()), (*epoch, "running"), "{:?}", log.types());
        let drivers = cluster.at(session, 1).api().get(&session.path("/participants"), &session.key).await.expect(200);
        assert_eq!(drivers.json()["drivers"].as_array().map(Vec::len), Some(1), "{}", drivers.body);
    }
    assert!(load.iter().all(|task| !task.is_finished()), "a call was answered while nothing could be accepted");
    cluster.redis.as_mut().unwrap().run();
    for frames in running.into_iter().chain(waiting) {
        assert_eq!(frames.finish().await.text(), "ok");
    }
    for task in load {
        let attempts = task.await.unwrap();
        assert!(attempts > 1, "{attempts}");
    }
    let mut called = 0;
    for ((session, stream), epoch) in sessions.iter().zip(&mut watching).zip(owners) {
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.extend(stream.until_type("server.message.send").await);
        }
        let log = cluster.log(session).await;
        assert_eq!(log.violations(), []);
        assert_eq!(log.compare_accepted(&["running", "A", "B", "C"].map(Accepted::new)), []);
        assert_eq!(log.compare_stream(&ids(&seen)), []);
        assert!(of_type(&log, "session.error").is_empty() && log.state == "open");
        assert!(
            of_type(&log, "mcp.response").iter().all(|response| response["ok"] == true),
            "a tool call was fenced off"
        );
        let first_turn = log.calls[0].last.unwrap();
        let taken_over = log.events.iter().filter(|event| event.number <= first_turn);
        assert!(taken_over.filter_map(|event| event.epoch).all(|at| at == epoch), "the running turn changed its owner");
        called += of_type(&log, "mcp.request").len();
    }
    assert_eq!((called, mcp.calls().len()), (rounds, rounds), "each tool ran once");
}

/// F11: Redis answers nobody for 8 s; subscribers on every node still get everything, once and in order.
#[tokio::test]
async fn redis_paused_under_subscribers() {
    let cluster = Plan::default().own_redis().start().await;
    let session = cluster.driver().await;
    let mut subscriptions = Vec::new();
    for node in 0..3 {
        subscriptions.push(cluster.at(&session, node).subscribe(None).await);
    }
    let mut held = cluster.provider.hold(Answer::text("quietly"));
    let running = cluster.at(&session, 0).start_send("hello").await;
    held.arrived().await;
    cluster.redis.as_ref().unwrap().redis_cli(&["CLIENT", "PAUSE", "8000", "ALL"]);
    held.release();
    for subscription in &mut subscriptions {
        let seen = subscription.until_type("server.message.send").await;
        assert_eq!(types(&seen), ["provider.request", "provider.response", "server.message.send"]);
    }
    assert_eq!(running.finish().await.text(), "quietly");
    assert_eq!(cluster.at(&session, 1).send("after").await.text(), "ok");
    for subscription in &mut subscriptions {
        let seen = subscription.until_type("server.message.send").await;
        assert_eq!(seen.len(), 3, "{:?}", types(&seen));
    }
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["hello", "after"].map(Accepted::new)), []);
}

/// F1: only the owner's way to Redis hangs. Another takes over; the owner, which still reaches database and provider,
/// begins nothing more, also when Redis answers it again.
#[tokio::test]
async fn the_owner_is_cut_off_from_redis() {
    let cluster = Plan::default().proxied().start().await;
    let (session, owner) = cluster.owned_session().await;
    let asked = cluster.other(&[owner]);
    // The old owner is given a tool use to go on with; it must not reach the log.
    let mut held = cluster.provider.hold(Answer::tools(&[("tu_old", "clock", json!({}))]));
    let running = cluster.at(&session, asked).start_send("hello").await;
    held.arrived().await;
    let mut again = cluster.provider.hold(Answer::text("taken over"));
    cluster.nodes[owner].redis.as_ref().unwrap().set(Mode::Stall);
    tokio::time::timeout(TAKEOVER, again.arrived()).await.expect("taken over in time");
    held.release();
    again.release();
    assert_eq!(running.finish().await.text(), "taken over");
    assert_eq!(cluster.at(&session, asked).send("next").await.text(), "ok");
    cluster.nodes[owner].redis.as_ref().unwrap().set(Mode::Pass);
    assert_eq!(cluster.at(&session, owner).send("last").await.text(), "ok");
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["warm", "hello", "next", "last"].map(Accepted::new)), []);
    assert!(of_type(&log, "tool.call").is_empty());
}

/// F23: the owner's database stalls for 6 s while its turn wants to append: the turn goes on afterwards, once.
#[tokio::test]
async fn the_owners_database_stalls() {
    for mode in [Mode::Stall, Mode::Cut] {
        let cluster = Plan::default().proxied().start().await;
        let (session, owner) = cluster.owned_session().await;
        let asked = cluster.other(&[owner]);
        let mut held = cluster.provider.hold(Answer::text("late"));
        let running = cluster.at(&session, asked).start_send("hello").await;
        held.arrived().await;
        cluster.nodes[owner].postgres.as_ref().unwrap().set(mode);
        held.release();
        // How long it lasts is the point here.
        sleep_until(Instant::now() + Duration::from_secs(6)).await;
        cluster.nodes[owner].postgres.as_ref().unwrap().set(Mode::Pass);
        // Its owner's answer, or, if the session was taken over in between, that of a second question.
        let text = running.finish().await.text();
        assert!(["late", "ok"].contains(&text.as_str()), "{mode:?}: {text}");
        assert_eq!(cluster.at(&session, owner).send("next").await.text(), "ok", "{mode:?}");
        let log = cluster.check(&session).await;
        assert_eq!(log.compare_accepted(&["warm", "hello", "next"].map(Accepted::new)), [], "{mode:?}");
    }
}

/// F23: the owner alone loses its way to the database. Callers of other nodes are served by another owner and notice
/// nothing.
#[tokio::test]
async fn an_owner_without_a_database() {
    for mode in [Mode::Cut, Mode::Stall] {
        let cluster = Plan::default().proxied().start().await;
        let (session, owner) = cluster.owned_session().await;
        let asked = cluster.other(&[owner]);
        cluster.nodes[owner].postgres.as_ref().unwrap().set(mode);
        for text in ["A", "B"] {
            assert_eq!(cluster.at(&session, asked).send(text).await.text(), "ok", "{mode:?}");
        }
        assert_ne!(cluster.owner(&session, asked).await, owner, "{mode:?}");
        cluster.nodes[owner].postgres.as_ref().unwrap().set(Mode::Pass);
        cluster.nodes[owner].ready().await;
        assert_eq!(cluster.at(&session, owner).send("C").await.text(), "ok", "{mode:?}");
        let log = cluster.check(&session).await;
        assert_eq!(log.compare_accepted(&["warm", "A", "B", "C"].map(Accepted::new)), [], "{mode:?}");
    }
}

/// F23: Postgres is restarted under load: errors while it is gone, nothing lost of what was answered, nothing twice,
/// and the nodes recover by themselves.
#[tokio::test]
async fn postgres_restarted_under_load() {
    let mut cluster = Plan::default().own_postgres().start().await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(cluster.driver().await);
    }
    let running = tokio::sync::watch::channel(true);
    let load = sessions.iter().enumerate().map(|(index, session)| {
        let at = cluster.at(session, index);
        let mut running = running.1.clone();
        tokio::spawn(async move {
            let (mut answered, mut sent, mut errors) = (Vec::new(), 0, Vec::new());
            while *running.borrow_and_update() {
                let text = format!("{index}-{sent}");
                sent += 1;
                let request = json!({"message": {"content": text}});
                let outcome = at.try_rpc("session.sendMessage", request).await;
                match outcome {
                    Ok(outcome) if outcome.frames.last().is_some_and(|frame| frame.get("result").is_some()) => {
                        answered.push(text);
                    }
                    Ok(outcome) => errors.push(outcome.frames.last().cloned().unwrap_or(Value::Null).to_string()),
                    Err(status) => errors.push(status),
                }
            }
            (answered, errors)
        })
    });
    let load: Vec<_> = load.collect();
    for session in &sessions {
        cluster.until(session, tests::poll::DEADLINE, "some load", |log| log.calls.len() > 2).await;
    }
    cluster.postgres.as_mut().unwrap().stop();
    let gone = Instant::now();
    tests::poll::until(tests::poll::DEADLINE, "readiness off", async || {
        let reply = cluster.nodes[0].api().get("/readyz", "").await;
        if reply.status == 503 { Ok(()) } else { Err(reply.status) }
    })
    .await;
    for node in &cluster.nodes {
        node.api().post("/api/v1/sessions", &cluster.key.secret, &json!({})).await.problem_of(503);
    }
    // Longer than any cache or lease.
    sleep_until(gone + Duration::from_secs(4)).await;
    cluster.postgres.as_mut().unwrap().run();
    for node in &cluster.nodes {
        node.ready().await;
    }
    let back: Vec<usize> = {
        let mut calls = Vec::new();
        for session in &sessions {
            calls.push(cluster.log(session).await.calls.len());
        }
        calls
    };
    for (session, before) in sessions.iter().zip(back) {
        cluster.until(session, tests::poll::DEADLINE, "new calls", |log| log.calls.len() > before + 2).await;
    }
    running.0.send(false).unwrap();
    for (task, session) in load.into_iter().zip(&sessions) {
        let (answered, errors) = task.await.unwrap();
        // A call that had begun may wait for the database's return instead of failing.
        println!("{} answered, {} errors, such as {:?}", answered.len(), errors.len(), errors.first());
        cluster.at(session, 1).send("last").await.text();
        let log = cluster.log(session).await;
        assert_eq!(log.violations(), []);
        let said = tests::cluster::said(&log);
        for text in answered {
            assert_eq!(said.iter().filter(|one| **one == text.as_str()).count(), 1, "{text}");
        }
    }
}

/// Every call while a node is cut off from both servers fails or waits, and works again afterwards.
#[tokio::test]
async fn a_node_cut_off_from_everything() {
    let cluster: Cluster = Plan::default().proxied().start().await;
    let (session, owner) = cluster.owned_session().await;
    let asked = cluster.other(&[owner]);
    let mut held = cluster.provider.hold(Answer::tools(&[("tu_old", "clock", json!({}))]));
    let running = cluster.at(&session, asked).start_send("hello").await;
    held.arrived().await;
    for proxy in [&cluster.nodes[owner].redis, &cluster.nodes[owner].postgres] {
        proxy.as_ref().unwrap().set(Mode::Cut);
    }
    held.release();
    assert_eq!(running.finish().await.text(), "ok");
    for proxy in [&cluster.nodes[owner].redis, &cluster.nodes[owner].postgres] {
        proxy.as_ref().unwrap().set(Mode::Pass);
    }
    cluster.nodes[owner].ready().await;
    assert_eq!(cluster.at(&session, owner).send("next").await.text(), "ok");
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["warm", "hello", "next"].map(Accepted::new)), []);
    assert!(of_type(&log, "tool.call").is_empty());
}

/// F2: Redis is emptied again and again while calls reach every node: no two owners' turns meet in the log.
#[tokio::test]
async fn redis_emptied_again_and_again() {
    let cluster = Plan::default().own_redis().start().await;
    let session = cluster.driver().await;
    let calls = (0..3).map(|node| {
        let (cluster, session) = (&cluster, &session);
        async move {
            for number in 0..5 {
                let at = cluster.at(session, (node + number) % 3);
                assert_eq!(at.send(format!("{node}-{number}")).await.text(), "ok");
            }
        }
    });
    let (over, mut watched) = tokio::sync::watch::channel(false);
    let work = async {
        futures_util::future::join_all(calls).await;
        over.send(true).unwrap();
    };
    let emptying = async {
        for _ in 0..6 {
            cluster.redis.as_ref().unwrap().redis_cli(&["FLUSHALL"]);
            // A rhythm that lets some calls through and hits others at every stage.
            let _ = tokio::time::timeout(Duration::from_millis(700), watched.wait_for(|over| *over)).await;
        }
    };
    tokio::join!(work, emptying);
    let log = cluster.check(&session).await;
    assert_eq!(log.calls.len(), 15);
    assert_eq!(cluster.provider.requests().len(), 15, "a question was asked twice");
    assert_all_paired(&cluster.provider);
}

/// F22: Redis takes no more writes: what runs ends, what cannot be accepted is told so, and all is well once there is
/// room.
#[tokio::test]
async fn redis_out_of_memory() {
    let cluster = Plan::default().own_redis().start().await;
    let session = cluster.driver().await;
    let mut subscription = cluster.at(&session, 2).subscribe(None).await;
    let mut held = cluster.provider.hold(Answer::text("all the same"));
    let running = cluster.at(&session, 0).start_send("running").await;
    held.arrived().await;
    let redis = cluster.redis.as_ref().unwrap();
    redis.redis_cli(&["CONFIG", "SET", "maxmemory", "1"]);
    held.release();
    let refused = cluster.at(&session, 1).send("refused").await;
    let error = refused.frames.last().unwrap()["error"].clone();
    assert_eq!((&error["code"], &error["data"]["retryable"]), (&json!(-32603), &json!(true)), "{error}");
    assert_eq!(running.finish().await.text(), "all the same");
    let mut seen = subscription.until_type("server.message.send").await;
    redis.redis_cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(cluster.at(&session, 1).send("after").await.text(), "ok");
    seen.extend(subscription.until_type("server.message.send").await);
    let log = cluster.check(&session).await;
    assert_eq!(log.compare_accepted(&["running", "after"].map(Accepted::new)), []);
    assert_eq!(log.compare_stream(&ids(&seen)), []);
}
