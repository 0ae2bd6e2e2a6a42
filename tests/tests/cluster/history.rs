//! F14, F16: what stands between a tool use and its result, and what a long conversation costs, over several nodes.

use serde_json::{Value, json};
use tests::checker::Log;
use tests::client::Session;
use tests::cluster::{Cluster, Plan, of_type, said};
use tests::history::assert_all_paired;
use tests::mcp::{Kind, Mcp, Outcome};
use tests::poll;
use tests::provider::{Answer, Provider};

/// The rules of a record whose requests went to two providers.
async fn check(cluster: &Cluster, spare: &Provider, session: &Session) -> Log {
    let log = cluster.log(session).await;
    let mut asked = cluster.provider.requests();
    asked.extend(spare.requests());
    assert_eq!((log.violations(), log.compare_asked(&asked)), (Vec::new(), Vec::new()), "{log:#?}");
    assert_all_paired(&cluster.provider);
    if !spare.requests().is_empty() {
        assert_all_paired(spare);
    }
    log
}

/// The results that a provider was sent last, as (id, whether an error, text).
fn results(provider: &Provider) -> Vec<(String, bool, String)> {
    let messages = provider.last()["messages"].clone();
    let last = messages.as_array().expect("messages").last().expect("a message")["content"].clone();
    let results = last.as_array().into_iter().flatten().filter(|block| block["type"] == "tool_result");
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    results.map(|r| (text(&r["tool_use_id"]), r["is_error"] == true, r["content"].to_string())).collect()
}

/// F14: in one conversation, each on another node than the step before: the owner killed in a tool call of a mixed
/// round, a client that leaves before a pause, a tool that takes too long, a fallback between a use and its result, a
/// compaction over an unanswered pause. Every request pairs every use with exactly one result.
#[tokio::test]
async fn whatever_comes_between() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let spare = Provider::start().await;
    let plan = Plan::default().mcp(&mcp).fallback("spare", &spare);
    let mut cluster = plan.env("BAE_TURN_TIMEOUT", "4").env("BAE_MCP_TIMEOUT", "3").start().await;
    let session = cluster.driver().await;
    cluster.at(&session, 0).send("warm").await.text();

    // The owner dies in the server's part of a mixed round; the pause is reached, and answered, elsewhere.
    let owner = cluster.owner(&session, 0).await;
    let asked = cluster.other(&[owner]);
    let third = cluster.other(&[owner, asked]);
    let second = cluster.second(&session, asked).await;
    let mixed = [("tu_1", "ls", json!({"n": 1})), ("tu_2", "clock", json!({})), ("tu_3", "ls", json!({"n": 3}))];
    cluster.provider.push(Answer::tools(&mixed));
    let mut held = mcp.hold(Outcome::Text("lost".to_owned()));
    let running = cluster.at(&session, asked).start_send("crash").await;
    held.arrived().await;
    assert_eq!(cluster.last(&session).await, "mcp.request");
    cluster.nodes[owner].server.kill9();
    running.finish().await.result();
    assert_eq!(cluster.at(&session, third).answer(&[("tu_2", "noon")]).await.text(), "ok");
    let sent = results(&cluster.provider);
    assert_eq!(
        sent.iter().map(|(id, error, _)| (id.as_str(), *error)).collect::<Vec<_>>(),
        [("tu_1", true), ("tu_2", false), ("tu_3", false)]
    );
    assert!(sent[0].2.contains("unknown"), "{sent:?}");
    check(&cluster, &spare, &session).await;
    cluster.nodes[owner].start().await;

    // The client leaves before its pause is reached; on another node it is answered all the same.
    let mut held = cluster.provider.hold(Answer::tools(&[("tu_4", "clock", json!({}))]));
    let leaving = cluster.at(&session, third).start_send("leaves").await;
    held.arrived().await;
    drop(leaving);
    held.release();
    cluster.until(&session, poll::DEADLINE, "the pause", |log| log.phase == "paused").await;
    assert_eq!(cluster.at(&session, owner).answer(&[("tu_4", "one")]).await.text(), "ok");
    assert_eq!(results(&cluster.provider)[0].0, "tu_4");

    // A tool that takes too long.
    cluster.provider.push(Answer::tools(&[("tu_5", "ls", json!({})), ("tu_6", "ls", json!({}))]));
    let slow = mcp.hold(Outcome::Text("too late".to_owned()));
    assert_eq!(cluster.at(&session, asked).send("slow").await.text(), "ok");
    slow.release();
    let sent: Vec<_> = results(&cluster.provider).into_iter().map(|(id, error, _)| (id, error)).collect();
    assert_eq!(sent, [("tu_5".to_owned(), true), ("tu_6".to_owned(), false)]);

    // Another provider is given the results of what the first one asked for, and asks in turn.
    cluster
        .provider
        .script([Answer::tools(&[("tu_7", "ls", json!({})), ("tu_8", "clock", json!({}))]), Answer::status(500)]);
    spare.push(Answer::tools(&[("tu_9", "clock", json!({})), ("tu_10", "ls", json!({}))]));
    cluster.at(&session, owner).send("falls back").await.result();
    cluster.at(&session, third).answer(&[("tu_8", "two")]).await.result();
    assert_eq!(results(&spare).iter().map(|(id, ..)| id.as_str()).collect::<Vec<_>>(), ["tu_7", "tu_8"]);
    assert_eq!(cluster.at(&session, asked).answer(&[("tu_9", "three")]).await.text(), "ok");
    assert_eq!(results(&cluster.provider).iter().map(|(id, ..)| id.as_str()).collect::<Vec<_>>(), ["tu_9", "tu_10"]);
    check(&cluster, &spare, &session).await;

    // A pause whose client is gone, its owner dead; a compaction takes it over, and the conversation goes on behind it.
    cluster.provider.push(Answer::tools(&[("tu_11", "ls", json!({})), ("tu_12", "clock", json!({}))]));
    cluster.at(&session, third).send("abandoned").await.result();
    let owner = cluster.owner(&session, third).await;
    cluster.nodes[owner].server.kill9();
    let other = cluster.other(&[owner]);
    cluster.provider.push(Answer::text("a summary"));
    poll::until(poll::DEADLINE, "the pause's expiry", async || {
        let outcome = cluster.at(&second, other).rpc("session.compact", json!({})).await;
        let last = outcome.frames.last().cloned().unwrap_or_default();
        if last["result"]["event_type"] == "session.compaction.completed" { Ok(()) } else { Err(last) }
    })
    .await;
    cluster.provider.push(Answer::tools(&[("tu_13", "ls", json!({}))]));
    let last = cluster.other(&[owner, other]);
    assert_eq!(cluster.at(&session, last).send("after it all").await.text(), "ok");
    let log = check(&cluster, &spare, &session).await;
    assert_eq!(said(&log), ["warm", "crash", "leaves", "slow", "falls back", "abandoned", "after it all"]);
    let calls: Vec<&Value> = of_type(&log, "tool.call").iter().map(|call| &call["id"]).collect();
    let mut answered: Vec<&Value> = of_type(&log, "tool.result").iter().map(|result| &result["tool_use_id"]).collect();
    assert_eq!(calls.len(), 13);
    answered.sort_by_key(|id| calls.iter().position(|call| call == id));
    assert_eq!(answered, calls, "each once");
    // The dead owner's first call was not run again; the slow one was given up.
    assert_eq!(mcp.calls().len(), 8, "{:?}", mcp.calls());
}

/// F14: an answer that breaks off in a tool use is dropped: nothing runs, nothing is answered, whoever is asked next.
/// Also when the owner dies while it comes.
#[tokio::test]
async fn a_half_received_tool_use() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let spare = Provider::start().await;
    spare.otherwise(Answer::text("from the spare"));
    let mut cluster = Plan::default().mcp(&mcp).fallback("spare", &spare).start().await;
    let session = cluster.driver().await;
    let half = |id: &str, name: &str| {
        Answer::CutMessage(vec![json!({"type": "tool_use", "id": id, "name": name, "input": {"half": true}})])
    };
    for (node, name) in [(0, "ls"), (1, "clock"), (2, "ls")] {
        cluster.provider.push(half(&format!("tu_half_{node}"), name));
        let outcome = cluster.at(&session, node).send(format!("node {node}")).await;
        assert_eq!(outcome.text(), "from the spare");
    }
    let owner = cluster.owner(&session, 0).await;
    let asked = cluster.other(&[owner]);
    let mut held = cluster.provider.hold(half("tu_half_3", "ls"));
    let running = cluster.at(&session, asked).start_send("crash").await;
    held.arrived().await;
    cluster.nodes[owner].server.kill9();
    held.release();
    assert_eq!(running.finish().await.text(), "ok");
    let log = check(&cluster, &spare, &session).await;
    assert!(of_type(&log, "tool.call").is_empty() && of_type(&log, "tool.result").is_empty(), "{:?}", log.types());
    assert!(mcp.calls().is_empty());
    let broken = of_type(&log, "provider.response").iter().filter(|response| response["ok"] == false).count();
    assert_eq!(broken, 3, "each attempt is in the log");
    for request in cluster.provider.requests().iter().chain(&spare.requests()) {
        assert!(!request.text().contains("tu_half"), "{}", request.text());
    }
}

/// What the nodes' statements about events and calls have cost since the last look: how many, and their rows.
async fn cost(cluster: &Cluster) -> (i64, i64) {
    let sql = "SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(rows), 0)::bigint FROM pg_stat_statements \
               WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) \
               AND (query LIKE '%events%' OR query LIKE '%calls%') AND query NOT LIKE '%pg_stat_statements%'";
    let cost = sqlx::query_as(sql).fetch_one(&cluster.pool).await.unwrap();
    sqlx::query("SELECT pg_stat_statements_reset()").execute(&cluster.pool).await.unwrap();
    cost
}

/// F16: five hundred turns, through the three nodes in turn. The log grows by the turn, and a late turn asks no more of
/// the database than an early one, on the owner and elsewhere.
#[tokio::test]
async fn five_hundred_turns() {
    const TURNS: i64 = 500;
    let cluster = Plan::default().own_postgres().start().await;
    let session = cluster.driver().await;
    sqlx::query("CREATE EXTENSION pg_stat_statements").execute(&cluster.pool).await.unwrap();
    let (mut early, mut late) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for turn in 0..TURNS {
        let node = (turn % 3) as usize;
        let costs = match turn {
            9..18 => Some(&mut early),
            _ if (TURNS - 18..TURNS - 9).contains(&turn) => Some(&mut late),
            _ => None,
        };
        if costs.is_some() {
            cost(&cluster).await;
        }
        // Events are not read: an answer holds all that the provider was sent, as docs/api.md 13.2 says.
        let mut frames = cluster.at(&session, node).start_send(format!("turn {turn}")).await;
        while frames.line().await.is_some() {}
        if let Some(costs) = costs {
            costs[node].push(cost(&cluster).await);
        }
    }
    // A turn whose signals come late looks once more; its neighbours tell what it costs.
    for (node, (early, late)) in early.iter().zip(&late).enumerate() {
        let (most, least) = (early.iter().map(|cost| cost.1).max(), late.iter().map(|cost| cost.1).min());
        assert!(least <= most, "node {node}, rows: {early:?}, later {late:?}");
        let (most, least) = (early.iter().map(|cost| cost.0).max(), late.iter().map(|cost| cost.0).min());
        assert!(least <= most, "node {node}, statements: {early:?}, later {late:?}");
    }
    let log = cluster.check(&session).await;
    assert_eq!(said(&log).len() as i64, TURNS);
    let sizes: Vec<i64> = sqlx::query_scalar(
        "SELECT sum(octet_length(payload))::bigint FROM events WHERE session = decode($1, 'hex') AND number > 2 \
         GROUP BY (number - 3) / $2 ORDER BY (number - 3) / $2",
    )
    .bind(session.id.trim_start_matches("ses_"))
    .bind(TURNS * 4 / 2)
    .fetch_all(&cluster.pool)
    .await
    .unwrap();
    assert!(sizes.len() == 2 && sizes[1] * 10 <= sizes[0] * 12, "bytes of each half: {sizes:?}");
}
