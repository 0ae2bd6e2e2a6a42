//! Nodes that die in the middle of something that concerns a container (F20, F21). Each is caught by a gate before the runtime,
//! so the step is known; another node finishes what it left.

use super::{
    CARRIED_ON, IMAGE, START, STOP, exec, launch_tool, lifecycle_types, payloads, sh, shell_tool, start, told,
};
use super::{Runtime, Step, over_both};
use serde_json::{Value, json};
use std::time::Duration;
use tests::admin::Admin;
use tests::client::{Session, of_type};
use tests::cluster::Cluster;
use tests::docker::gate::{Gate, Point};
use tests::poll;
use tests::provider::Answer;

over_both!(
    killed_while_starting_and_stopping,
    killed_during_a_command_of_the_model,
    killed_while_a_subagent_runs,
    killed_while_launching,
    killed_while_collecting,
    closed_while_starting,
    closed_while_launching,
);

async fn gated(runtime: &Runtime) -> (Gate, Cluster) {
    let (gate, through) = runtime.gated().await;
    let cluster = through.cluster_plan().start().await;
    images_are_known(&cluster.nodes[0].admin()).await;
    (gate, cluster)
}

/// Waits until the images of profiles were looked for, so that whatever is asked of the runtime from now on is about something else.
async fn images_are_known(admin: &Admin) {
    poll::until(poll::DEADLINE, "the images are looked for", async || {
        let reply = admin.get("/admin/v1/sandbox-status").await.expect(200).json();
        if reply.to_string().contains("pending") { Err(reply) } else { Ok(()) }
    })
    .await;
}

async fn open(cluster: &Cluster, node: usize, body: Value) -> Session {
    let session = cluster.nodes[node].api().open(&cluster.key.secret, &body).await;
    session.register().await;
    session
}

/// Waits until the log's events about sandboxes and subagents are these, as another node shows them.
async fn until_lifecycle(session: &Session, limit: Duration, expected: &[&str]) -> Vec<Value> {
    poll::until(limit, &format!("{expected:?}"), async || {
        let events = session.events().await;
        let kinds = lifecycle_types(&events);
        if kinds == expected { Ok(events) } else { Err(kinds) }
    })
    .await
}

/// The node dies before a container is made, after it was made and started, before one is removed, and after that.
async fn killed_while_starting_and_stopping(runtime: Runtime) {
    let (gate, mut cluster) = gated(&runtime).await;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(cluster.driver().await);
    }
    let (ending, other) = (2..4, cluster.at(&sessions[0], 1).api().clone());
    let mut ids = Vec::new();
    for session in &sessions[ending.clone()] {
        ids.push(start(&cluster.at(session, 1)).await);
    }
    let points = [
        (Step::Create, Point::Before, START),
        (Step::Run, Point::After, START),
        (Step::Remove, Point::Before, STOP),
        (Step::Remove, Point::After, STOP),
    ];
    let (mut calls, mut helds) = (tokio::task::JoinSet::new(), Vec::new());
    for (session, (step, point, rpc)) in sessions.iter().zip(points) {
        let mut held = runtime.hold(&gate, step, point);
        let params = if rpc == START { json!({"image": IMAGE}) } else { json!({}) };
        let session = session.clone();
        let own = session.id.clone();
        calls.spawn(async move { session.try_start(rpc, params).await?.next().await.ok_or_else(String::new) });
        held.arrived().await;
        if point == Point::After {
            runtime.until(&own, usize::from(rpc == START), poll::DEADLINE).await;
        }
        helds.push(held);
    }
    cluster.nodes[0].server.kill9();
    for session in &sessions[..2] {
        let session = session.on(&other);
        until_lifecycle(&session, CARRIED_ON, &["sandbox.start", "sandbox.running"]).await;
        assert_eq!(runtime.of(&session.id).await.len(), 1);
        let (code, _) = session.rpc(START, json!({"image": IMAGE})).await.error();
        assert_eq!(code, -32000);
        assert_eq!(sh(&session, "echo works").await, "works\n");
    }
    for session in &sessions[ending] {
        let session = session.on(&other);
        let all = ["sandbox.start", "sandbox.running", "sandbox.stop", "sandbox.stopped"];
        until_lifecycle(&session, CARRIED_ON, &all).await;
        assert_eq!(runtime.of(&session.id).await, []);
        assert_eq!(exec(&session, "true").await.error().0, -32013);
        start(&session).await;
    }
    for session in &sessions {
        let session = session.on(&other);
        session.delete().await.expect(200);
        assert_eq!(runtime.of(&session.id).await, []);
        cluster.check(&session).await;
    }
}

/// The owner dies while the model's command runs: the turn goes on elsewhere with an error result, the command is ended, and
/// the same container serves the next one.
async fn killed_during_a_command_of_the_model(runtime: Runtime) {
    let mut cluster = runtime.cluster_plan().start().await;
    let session = open(&cluster, 0, json!({"sandbox_tools": [shell_tool()]})).await;
    session.send("warm").await.text();
    let owner = cluster.owner(&session, 0).await;
    let session = cluster.at(&session, cluster.other(&[owner]));
    let id = start(&session).await;
    cluster.provider.push(Answer::tools(&[("tu_1", "sh", json!({"command": "touch /tmp/runs; sleep 4321"}))]));
    let running = session.start_send("run it").await;
    poll::until(poll::DEADLINE, "the command runs", async || {
        let found = exec(&session, "ls /tmp/runs").await.result().clone();
        if found["exit_code"] == 0 { Ok(()) } else { Err(found) }
    })
    .await;
    assert_eq!(cluster.last(&session).await, "sandbox.request");
    cluster.nodes[owner].server.kill9();
    let outcome = running.finish().await;
    assert_eq!(outcome.text(), "ok");
    let events = outcome.events();
    let responses = of_type(&events, "sandbox.response");
    assert_eq!(responses.len(), 1);
    let error = responses[0]["payload"]["error"].as_str().unwrap();
    assert_eq!(responses[0]["payload"]["ok"], false);
    assert_eq!(told(&cluster.provider, "tu_1"), (format!("sandbox error: {error}"), true));
    cluster.provider.push(Answer::tools(&[("tu_2", "sh", json!({"command": "ls /tmp/runs"}))]));
    session.send("again").await.text();
    assert_eq!(told(&cluster.provider, "tu_2"), ("/tmp/runs\n".to_owned(), false));
    let events = session.events().await;
    let last = of_type(&events, "sandbox.response").last().unwrap()["payload"].clone();
    assert_eq!(last["sandbox_id"], id.as_str(), "the same one");
    poll::until(poll::DEADLINE, "the command's end", async || {
        let left = sh(&session, "ps | grep 'sleep 4321' | grep -v grep || true").await;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    assert_eq!(runtime.of(&session.id).await.len(), 1);
    session.delete().await.expect(200);
    assert_eq!(runtime.of(&session.id).await, []);
    cluster.check(&session).await;
}

fn waiting() -> Value {
    json!({"subagent_tools": [launch_tool(&[(
        "wait", "cat; until [ -e /tmp/go ]; do sleep 0.1; done; echo done", "stdin", None,
    )])]})
}

fn launch(tool_use: &str) -> Answer {
    Answer::tools(&[(tool_use, "launch_subagent", json!({"harness": "wait", "model": "m", "prompt": "p"}))])
}

/// A subagent outlives the node that launched it; its end is told once, and its output by whoever is asked.
async fn killed_while_a_subagent_runs(runtime: Runtime) {
    let mut cluster = runtime.cluster_plan().start().await;
    let session = open(&cluster, 0, waiting()).await;
    cluster.provider.push(launch("tu_1"));
    session.send("launch").await.text();
    let started: Value = serde_json::from_str(&told(&cluster.provider, "tu_1").0).unwrap();
    let id = started["subagent_id"].as_str().unwrap();
    let owner = cluster.owner(&session, 0).await;
    cluster.nodes[owner].server.kill9();
    let session = cluster.at(&session, cluster.other(&[owner]));
    runtime.touch(&runtime.container(id).await, "/tmp/go").await;
    let all = ["subagent.start", "subagent.running", "subagent.completed"];
    until_lifecycle(&session, CARRIED_ON, &all).await;
    runtime.until(&session.id, 0, poll::DEADLINE).await;
    // The dead one comes back, and nobody tells it again.
    cluster.nodes[owner].start().await;
    cluster.provider.push(Answer::tools(&[("tu_2", "remote_subagent_status", json!({}))]));
    session.send("status").await.text();
    let report: Value = serde_json::from_str(&told(&cluster.provider, "tu_2").0).unwrap();
    assert_eq!(report["subagents"][0]["stdout"], "pdone\n", "{report}");
    assert_eq!(lifecycle_types(&session.events().await), all);
    session.delete().await.expect(200);
    cluster.check(&session).await;
}

/// The owner dies in the middle of a launch: the next owner launches the same subagent, once.
async fn killed_while_launching(runtime: Runtime) {
    let (gate, mut cluster) = gated(&runtime).await;
    let points = [
        (Step::Create, Point::Before),
        (Step::Create, Point::After),
        (Step::Prompt, Point::Before),
        (Step::Run, Point::After),
    ];
    for (step, point) in points {
        let session = open(&cluster, 0, waiting()).await;
        session.send("warm").await.text();
        let owner = cluster.owner(&session, 0).await;
        let asked = cluster.other(&[owner]);
        let session = cluster.at(&session, asked);
        cluster.provider.push(launch("tu_1"));
        let mut held = runtime.hold(&gate, step, point);
        let running = session.start_send("launch").await;
        held.arrived().await;
        if step != Step::Create || point == Point::After {
            runtime.until(&session.id, 1, poll::DEADLINE).await;
        }
        assert_eq!(cluster.last(&session).await, "session.subagent.start");
        cluster.nodes[owner].server.kill9();
        let outcome = running.finish().await;
        assert_eq!(outcome.text(), "ok", "{step:?} {point:?}");
        let (text, is_error) = told(&cluster.provider, "tu_1");
        assert!(!is_error, "{step:?} {point:?}: {text}");
        let events = session.events().await;
        assert_eq!(lifecycle_types(&events), ["subagent.start", "subagent.running"]);
        let (begun, runs) = (payloads(&events, "subagent.start"), payloads(&events, "subagent.running"));
        assert_eq!(begun, runs);
        assert_eq!(runtime.of(&session.id).await.len(), 1, "{step:?} {point:?}");
        let id = begun[0]["subagent_id"].as_str().unwrap();
        runtime.touch(&runtime.container(id).await, "/tmp/go").await;
        let all = ["subagent.start", "subagent.running", "subagent.completed"];
        until_lifecycle(&session, CARRIED_ON, &all).await;
        drop(held);
        session.delete().await.expect(200);
        assert_eq!(runtime.of(&session.id).await, []);
        // The provider was asked by other sessions too, so only the record is looked at.
        assert_eq!(cluster.log(&session).await.violations(), []);
        cluster.nodes[owner].start().await;
    }
}

/// A node alone dies while it collects a result, and after it was told: the next process tells it, once, and nothing is left.
async fn killed_while_collecting(runtime: Runtime) {
    let (gate, through) = runtime.gated().await;
    let mut fixture = through.plan().start().await;
    images_are_known(&fixture.admin).await;
    for step in [Step::Collect, Step::Remove] {
        let session = fixture.driver_with(waiting()).await;
        fixture.provider.push(launch("tu_1"));
        session.send("launch").await.text();
        let events = session.events().await;
        let id = payloads(&events, "subagent.start")[0]["subagent_id"].as_str().unwrap().to_owned();
        let mut held = runtime.hold(&gate, step, Point::Before);
        runtime.touch(&runtime.container(&id).await, "/tmp/go").await;
        held.arrived().await;
        fixture.server.crash().await;
        let all = ["subagent.start", "subagent.running", "subagent.completed"];
        until_lifecycle(&session, CARRIED_ON, &all).await;
        // What was noted as ended and is still there is found as an orphan, 30 s later.
        runtime.until(&session.id, 0, Duration::from_secs(60)).await;
        assert_eq!(lifecycle_types(&session.events().await), all);
        drop(held);
    }
}

/// A session is closed while its sandbox starts, at either end of that: nothing is left, and nothing follows its close.
async fn closed_while_starting(runtime: Runtime) {
    let (gate, cluster) = gated(&runtime).await;
    for (step, point) in [(Step::Create, Point::Before), (Step::Create, Point::After), (Step::Run, Point::After)] {
        let session = cluster.driver().await;
        let mut held = runtime.hold(&gate, step, point);
        let starting = session.start(START, json!({"image": IMAGE}));
        let closing = async {
            held.arrived().await;
            cluster.at(&session, 1).delete().await.expect(200);
            held.release();
        };
        let (starting, ()) = tokio::join!(async { starting.await.finish().await }, closing);
        let (code, text) = starting.error();
        assert!(matches!(code, -32000 | -32012), "{code} {text}");
        runtime.until(&session.id, 0, CARRIED_ON).await;
        let events = session_events(&cluster, &session).await;
        assert_eq!(tests::client::types(&events).last().unwrap(), "session.close");
        assert!(payloads(&events, "sandbox.running").is_empty(), "{step:?} {point:?}");
        cluster.check(&session).await;
    }
}

/// A session is closed while its turn launches a subagent: the subagent is cancelled, and nothing is left.
async fn closed_while_launching(runtime: Runtime) {
    let (gate, cluster) = gated(&runtime).await;
    for (step, point) in [(Step::Create, Point::Before), (Step::Create, Point::After), (Step::Run, Point::After)] {
        let session = open(&cluster, 0, waiting()).await;
        cluster.provider.push(launch("tu_1"));
        let mut held = runtime.hold(&gate, step, point);
        let _running = session.start_send("launch").await;
        held.arrived().await;
        cluster.at(&session, 1).delete().await.expect(200);
        held.release();
        runtime.until(&session.id, 0, Duration::from_secs(60)).await;
        let events = session_events(&cluster, &session).await;
        let kinds = lifecycle_types(&events);
        assert_eq!(tests::client::types(&events).last().unwrap(), "session.close");
        assert_eq!(kinds.first().unwrap(), "subagent.start");
        let ended =
            kinds.iter().filter(|kind| ["subagent.cancelled", "subagent.failed"].contains(&kind.as_str())).count();
        assert_eq!(ended, 1, "{step:?} {point:?}: one terminal event: {kinds:?}");
        assert_eq!(cluster.log(&session).await.violations(), []);
    }
}

async fn session_events(cluster: &Cluster, session: &Session) -> Vec<Value> {
    cluster.nodes[2].admin().events(&session.id).await
}
