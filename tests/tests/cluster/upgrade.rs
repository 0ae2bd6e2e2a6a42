//! A rolling upgrade: nodes of the version before and of this one side by side (S15, I10).

use serde_json::json;
use tests::checker::Accepted;
use tests::client::ids;
use tests::cluster::{Cluster, Plan, of_type};
use tests::history::assert_paired;
use tests::mcp::{Kind, Mcp};
use tests::poll;
use tests::program::previous;
use tests::provider::{Answer, Held};

/// Which build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Build {
    Old,
    New,
}

/// A long turn of many tool rounds, whose next question is always held.
struct LongTurn {
    round: usize,
    held: Held,
}

fn round(number: usize) -> Answer {
    Answer::tools(&[(&format!("tu_{number}"), "ls", json!({"round": number}))])
}

impl LongTurn {
    /// Lets one round go, and holds the next.
    async fn go_on(&mut self, cluster: &Cluster) {
        let next = cluster.provider.hold(round(self.round + 1));
        self.held.arrived().await;
        self.held.release();
        self.held = next;
        self.round += 1;
        self.held.arrived().await;
    }

    /// Takes the node that owns it away: another asks again, the question is held again, and a round follows.
    async fn leave(&mut self, cluster: &mut Cluster, node: usize) {
        self.held.arrived().await;
        let again = cluster.provider.hold(round(self.round));
        leave(cluster, node).await;
        self.held = again;
        self.held.arrived().await;
        self.go_on(cluster).await;
    }
}

/// Drains a node.
async fn leave(cluster: &mut Cluster, node: usize) {
    cluster.nodes[node].server.terminate();
    assert!(cluster.nodes[node].server.ended().await.success());
}

/// Starts a node that has left, as a build.
async fn enter(cluster: &mut Cluster, node: usize, build: Build) {
    match build {
        Build::Old => cluster.nodes[node].server.set_program(previous()),
        Build::New => cluster.nodes[node].server.unset_program(),
    }
    cluster.nodes[node].start().await;
    let runs = std::fs::read_link(format!("/proc/{}/exe", cluster.nodes[node].server.pid())).expect("the program");
    assert_eq!(
        runs == previous().canonicalize().expect("its path"),
        build == Build::Old,
        "{build:?}: {}",
        runs.display()
    );
}

/// S15: three old nodes become three new ones, one after the other, under a long turn, a pause, and calls that wait. In
/// the middle the turn goes from a new node to an old one and back.
#[tokio::test]
async fn an_upgrade_under_a_long_turn() {
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let old = tokio::task::spawn_blocking(previous).await.expect("the version before");
    let plan = Plan::default().mcp(&mcp).program(old).env("BAE_SHUTDOWN_TIMEOUT", "1");
    let mut cluster = plan.env("BAE_MAX_TURN_ITERATIONS", "30").start().await;
    let [long, paused] = [cluster.driver().await, cluster.driver().await];
    let warm = cluster.at(&long, 0).start_once("warm", "key-warm").await.finish().await;
    cluster.provider.push(Answer::tools(&[("tu_ls", "ls", json!({})), ("tu_clock", "clock", json!({}))]));
    let pause = cluster.at(&paused, 1).start_once("pause", "key-pause").await.finish().await;
    let other = cluster.second(&paused, 2).await;
    let behind = cluster.at(&other, 0).start_once("behind", "key-behind").await;
    let asked = cluster.provider.requests().len();
    let mut turn = LongTurn { round: 0, held: cluster.provider.hold(round(0)) };
    let running = cluster.at(&long, 2).start_once("work", "key-work").await;
    turn.held.arrived().await;
    let queued =
        [cluster.at(&long, 0).start_once("A", "key-A").await, cluster.at(&long, 1).start_once("B", "key-B").await];
    turn.go_on(&cluster).await;
    let mut seen = ids(&cluster.at(&long, 0).events().await);
    // Resumed on the next node whenever its own goes, by the last id it saw.
    let follow = |cluster: &Cluster, node: usize, since: &str| {
        let at = cluster.at(&long, node);
        let params = json!({"since_event_id": since, "include_client_events": true});
        async move { at.start("session.subscribe", params).await }
    };

    // All but the owner are replaced, then the owner: the turn goes from old to new.
    let owner = cluster.owner(&long, 0).await;
    let others = [cluster.other(&[owner]), cluster.other(&[owner, cluster.other(&[owner])])];
    let mut stream = follow(&cluster, owner, seen.last().unwrap()).await;
    for node in others {
        leave(&mut cluster, node).await;
        enter(&mut cluster, node, Build::New).await;
        turn.go_on(&cluster).await;
        seen.extend(ids(&stream.until_type("mcp.response").await));
    }
    // Theirs went with their nodes: they are sent again, to nodes that live.
    drop((running, queued, behind));
    let work = cluster.at(&long, others[0]).start_once("work", "key-work").await;
    let queued = [
        cluster.at(&long, others[0]).start_once("A", "key-A").await,
        cluster.at(&long, others[1]).start_once("B", "key-B").await,
    ];
    let behind = cluster.at(&other, others[1]).start_once("behind", "key-behind").await;
    turn.leave(&mut cluster, owner).await;
    let new = cluster.owner(&long, others[0]).await;
    assert_ne!(new, owner);
    drop(stream);

    // An old node comes once more, and the new ones go: from new to old.
    enter(&mut cluster, owner, Build::Old).await;
    let mut stream = follow(&cluster, owner, seen.last().unwrap()).await;
    let idle = cluster.other(&[owner, new]);
    leave(&mut cluster, idle).await;
    turn.leave(&mut cluster, new).await;
    assert_eq!(cluster.owner(&long, owner).await, owner, "an old node goes on with what a new one began");
    drop((work, queued, behind));

    // And back again.
    for node in [idle, new] {
        enter(&mut cluster, node, Build::New).await;
    }
    // A page of old and new events, from either.
    assert_eq!(cluster.at(&long, owner).events().await, cluster.at(&long, idle).events().await);
    let head = cluster.log(&long).await.events.last().unwrap().id.clone();
    while seen.last() != Some(&head) {
        let event = stream.next().await.expect("another event");
        seen.push(event["params"]["id"].as_str().unwrap_or_else(|| panic!("{event}")).to_owned());
    }
    let work = cluster.at(&long, idle).start_once("work", "key-work").await;
    let queued =
        [cluster.at(&long, idle).start_once("A", "key-A").await, cluster.at(&long, new).start_once("B", "key-B").await];
    let behind = cluster.at(&other, new).start_once("behind", "key-behind").await;
    drop(stream);
    turn.leave(&mut cluster, owner).await;
    enter(&mut cluster, owner, Build::New).await;
    let mut stream = follow(&cluster, owner, seen.last().unwrap()).await;

    // The turn ends, the pause is answered, and what waited is served.
    cluster.provider.push(Answer::text("done"));
    turn.held.release();
    let rounds = turn.round + 1;
    let work = work.finish().await;
    assert_eq!(work.text(), "done");
    for frames in queued {
        assert_eq!(frames.finish().await.text(), "ok");
    }
    assert_eq!(cluster.at(&paused, owner).answer(&[("tu_clock", "noon")]).await.text(), "ok");
    assert_eq!(behind.finish().await.text(), "ok");
    // What old nodes had answered, new ones know.
    for (session, text, key, known) in [
        (&long, "warm", "key-warm", &warm),
        (&long, "work", "key-work", &work),
        (&paused, "pause", "key-pause", &pause),
    ] {
        for node in 0..3 {
            let resent = cluster.at(session, node).start_once(text, key).await.finish().await;
            assert_eq!(resent.result(), known.result(), "{text} on {node}");
        }
        let changed = cluster.at(session, 0).start_once("other words", key).await.finish().await;
        assert_eq!(changed.error().0, -32602);
    }
    let log = cluster.log(&long).await;
    let last = log.events.last().unwrap().id.clone();
    while seen.last() != Some(&last) {
        let event = stream.next().await.expect("another event");
        seen.push(event["params"]["id"].as_str().unwrap_or_else(|| panic!("{event}")).to_owned());
    }
    assert_eq!((log.compare_whole_stream(&seen), seen.len() as i64), (Vec::new(), log.head));
    assert_eq!(log.violations(), []);
    assert_eq!(log.compare_accepted(&["warm", "work", "A", "B"].map(Accepted::new)), []);
    assert_eq!((of_type(&log, "tool.result").len(), of_type(&log, "session.error").len()), (rounds, 0));
    assert_eq!(mcp.calls().len(), rounds + 1, "each tool ran once");
    let after = cluster.log(&paused).await;
    assert_eq!(after.violations(), []);
    assert_eq!(tests::cluster::said(&after), ["pause", "behind"]);
    assert_eq!(of_type(&after, "tool.result").len(), 2);
    // Three hand-overs asked a question again, nothing else did.
    let recorded = of_type(&log, "provider.request").len() + of_type(&after, "provider.request").len();
    assert_eq!(cluster.provider.requests().len(), recorded + 3);
    assert_eq!(asked, 2);
    for request in cluster.provider.requests() {
        assert_paired(&request.json()["messages"]);
    }
    poll::until(poll::DEADLINE, "only new nodes", async || {
        let nodes = cluster.nodes[0].admin().get("/admin/v1/nodes").await.expect(200).json();
        let names: Vec<&str> = nodes["items"].as_array().unwrap().iter().filter_map(|n| n["node"].as_str()).collect();
        let all = cluster.nodes.iter().all(|node| names.contains(&node.name.as_str()));
        if all && names.len() == 3 { Ok(()) } else { Err(nodes.clone()) }
    })
    .await;
}
