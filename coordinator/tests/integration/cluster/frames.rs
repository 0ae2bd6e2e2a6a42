//! What nodes tell each other.

use crate::cluster::test_cluster::{TestCluster, message, told};
use crate::fixture::{until, within};
use coordinator::cluster::{Progress, Signal};
use coordinator::reader::Reader;
use engine::event::{EventNumber, EventType};
use engine::rpc::RpcError;

async fn says(test: &TestCluster, node: usize, times: usize) {
    let events = (0..times).map(|_| crate::fixture::event(test.key, EventType::ToolResult)).collect();
    let side = coordinator::log::Side::Nothing;
    test.nodes[node].log.append_free(test.session, test.key, events, side).await.expect("appended");
}

/// Reads up to that number: each number once, in order.
async fn reads(reader: &mut Reader, last: EventNumber) {
    while reader.seen() < last {
        let (before, head) = (reader.seen(), reader.head());
        let events = within("a read", reader.read(head.number)).await.expect("read");
        let numbers: Vec<_> = events.iter().map(|shown| shown.event.number).collect();
        assert_eq!(numbers, (1..=numbers.len()).map(|n| before.plus(n)).collect::<Vec<_>>());
        if reader.seen() < last && reader.seen() >= head.number {
            within(&format!("news after {}", reader.seen()), reader.moved(head)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_elsewhere_get_everything_once() {
    let test = TestCluster::redis(3).await;
    let (mut early, row) = test.nodes[1].open_reader(test.session).await.expect("watched");
    // Writers on all nodes, so that frames come in any order; one subscription begins in the middle.
    let writers = futures_util::future::join_all((0..3).map(|node| {
        let test = &test;
        async move {
            for n in 1..=20 {
                says(test, node, 1 + n % 3).await;
            }
        }
    }));
    let late = async {
        within("the burst has begun", early.moved(early.head())).await;
        test.nodes[2].open_reader(test.session).await.expect("watched")
    };
    let (_, (mut late, from)) = tokio::join!(writers, late);
    let head = test.fixture.log.row(test.session).await.expect("a row").head;
    assert!(from.head >= row.head && head >= row.head.plus(60));
    reads(&mut early, head).await;
    reads(&mut late, head).await;
    test.end().await;
}

/// The inbox is lost: the database is compared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn news_that_were_lost_are_found() {
    let test = TestCluster::alone(2).await;
    let (mut reader, row) = test.nodes[1].open_reader(test.session).await.expect("watched");
    test.flush().await;
    says(&test, 0, 3).await;
    reads(&mut reader, row.head.plus(3)).await;
    test.server.as_ref().unwrap().signal("STOP");
    says(&test, 0, 3).await;
    reads(&mut reader, row.head.plus(6)).await;
    test.server.as_ref().unwrap().signal("CONT");
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_events_are_read_from_the_database() {
    let test = TestCluster::redis(2).await;
    let (mut reader, row) = test.nodes[1].open_reader(test.session).await.expect("watched");
    let large = crate::fixture::says(test.key, &format!("{{\"content\":\"{}\"}}", "x".repeat(200_000)));
    let side = coordinator::log::Side::Nothing;
    test.nodes[0].log.append_free(test.session, test.key, vec![large], side).await.expect("appended");
    reads(&mut reader, row.head.plus(1)).await;
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_reaches_the_watching_nodes() {
    let test = TestCluster::redis(2).await;
    let (mut reader, _) = test.nodes[1].open_reader(test.session).await.expect("watched");
    let before = reader.head();
    test.nodes[0].cluster.cut(test.session);
    within("the cut", reader.moved(before)).await;
    assert_eq!(reader.head().cuts, 1);
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_reaches_every_node() {
    let mut test = TestCluster::redis(2).await;
    let error = RpcError::client_key_revoked();
    let mut theirs = test.enqueue(1, &message(test.key)).await;
    let lease = test.lease(1).await;
    test.nodes[0].cluster.revoked(test.key, &error).await;
    let signals = test.nodes[1].signals.as_mut().expect("a node of a cluster");
    let signal = within("a signal", signals.recv()).await.expect("a node that listens");
    assert_eq!(signal, Signal::Revoked(test.key));
    test.nodes[1].cluster.forget(test.key, &error);
    told(&mut theirs, |p| *p == Progress::Refused(error.clone())).await;
    until("nobody waits", async || if lease.wanted().await { Err(()) } else { Ok(()) }).await;
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_nodes_frames_are_left_alone() {
    let mut test = TestCluster::redis(2).await;
    test.nodes[1].cluster.ensure_owner(test.session).await;
    let lease = test.lease(1).await;
    let inbox = format!("{}inbox:{}", test.prefix, test.nodes[1].name);
    let mut raw = test.raw().await;
    for frame in [
        format!("{{\"v\":2,\"frame\":{{\"Stop\":\"{}\"}}}}", test.session),
        "{\"v\":1,\"frame\":{\"New\":1}}".into(),
        "?".into(),
    ] {
        let _: String =
            redis::cmd("XADD").arg(&inbox).arg("*").arg("f").arg(frame).query_async(&mut raw).await.unwrap();
    }
    let wake = format!("{{\"v\":1,\"frame\":{{\"Wake\":\"{}\"}}}}", test.session);
    let _: String = redis::cmd("XADD").arg(&inbox).arg("*").arg("f").arg(wake).query_async(&mut raw).await.unwrap();
    within("what is known is obeyed", lease.woken()).await;
    assert!(!lease.stop.is_cancelled());
    test.end().await;
}
