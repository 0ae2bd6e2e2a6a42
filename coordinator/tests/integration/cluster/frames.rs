//! What nodes tell each other.

use crate::cluster::cast::{Cast, message, told};
use crate::world::{until, within};
use coordinator::cluster::{Progress, Signal};
use coordinator::reader::Reader;
use engine::event::EventType;
use engine::rpc::RpcError;

async fn says(cast: &Cast, node: usize, times: usize) {
    let events = (0..times).map(|_| crate::world::event(cast.key, EventType::ToolResult)).collect();
    let side = coordinator::log::Side::Nothing;
    cast.nodes[node].log.append_free(cast.session, cast.key, events, side).await.expect("appended");
}

/// Reads up to that number: each number once, in order.
async fn reads(reader: &mut Reader, last: u64) {
    while reader.seen() < last {
        let (before, head) = (reader.seen(), reader.head());
        let events = within("a read", reader.read(head.number)).await.expect("read");
        let numbers: Vec<u64> = events.iter().map(|shown| shown.event.number).collect();
        assert_eq!(numbers, (before + 1..before + 1 + numbers.len() as u64).collect::<Vec<_>>());
        if reader.seen() < last && reader.seen() >= head.number {
            within(&format!("news after {}", reader.seen()), reader.moved(head)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_elsewhere_get_everything_once() {
    let cast = Cast::redis(3).await;
    let (mut early, row) = cast.nodes[1].open_reader(cast.session).await.expect("watched");
    // Writers on all nodes, so that frames come in any order; one subscription begins in the middle.
    let writers = futures_util::future::join_all((0..3).map(|node| {
        let cast = &cast;
        async move {
            for n in 1..=20 {
                says(cast, node, 1 + n % 3).await;
            }
        }
    }));
    let late = async {
        within("the burst has begun", early.moved(early.head())).await;
        cast.nodes[2].open_reader(cast.session).await.expect("watched")
    };
    let (_, (mut late, from)) = tokio::join!(writers, late);
    let head = cast.world.log.row(cast.session).await.expect("a row").head;
    assert!(from.head >= row.head && head >= row.head + 60);
    reads(&mut early, head).await;
    reads(&mut late, head).await;
    cast.end().await;
}

/// The inbox is lost: the database is compared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn news_that_were_lost_are_found() {
    let cast = Cast::alone(2).await;
    let (mut reader, row) = cast.nodes[1].open_reader(cast.session).await.expect("watched");
    cast.flush().await;
    says(&cast, 0, 3).await;
    reads(&mut reader, row.head + 3).await;
    cast.server.as_ref().unwrap().signal("STOP");
    says(&cast, 0, 3).await;
    reads(&mut reader, row.head + 6).await;
    cast.server.as_ref().unwrap().signal("CONT");
    cast.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_events_are_read_from_the_database() {
    let cast = Cast::redis(2).await;
    let (mut reader, row) = cast.nodes[1].open_reader(cast.session).await.expect("watched");
    let large = crate::world::says(cast.key, &format!("{{\"content\":\"{}\"}}", "x".repeat(200_000)));
    let side = coordinator::log::Side::Nothing;
    cast.nodes[0].log.append_free(cast.session, cast.key, vec![large], side).await.expect("appended");
    reads(&mut reader, row.head + 1).await;
    cast.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_reaches_the_watching_nodes() {
    let cast = Cast::redis(2).await;
    let (mut reader, _) = cast.nodes[1].open_reader(cast.session).await.expect("watched");
    let before = reader.head();
    cast.nodes[0].cluster.cut(cast.session);
    within("the cut", reader.moved(before)).await;
    assert_eq!(reader.head().cuts, 1);
    cast.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_reaches_every_node() {
    let mut cast = Cast::redis(2).await;
    let error = RpcError::client_key_revoked();
    let mut theirs = cast.enqueue(1, &message(cast.key)).await;
    let lease = cast.lease(1).await;
    cast.nodes[0].cluster.revoked(cast.key, &error).await;
    let signals = cast.nodes[1].signals.as_mut().expect("a node of a cluster");
    let signal = within("a signal", signals.recv()).await.expect("a node that listens");
    assert_eq!(signal, Signal::Revoked(cast.key));
    cast.nodes[1].cluster.forget(cast.key, &error);
    told(&mut theirs, |p| *p == Progress::Refused(error.clone())).await;
    until("nobody waits", async || if lease.wanted().await { Err(()) } else { Ok(()) }).await;
    cast.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_nodes_frames_are_left_alone() {
    let mut cast = Cast::redis(2).await;
    cast.nodes[1].cluster.adopt(cast.session).await;
    let lease = cast.lease(1).await;
    let inbox = format!("{}inbox:{}", cast.prefix, cast.nodes[1].name);
    let mut raw = cast.raw().await;
    for frame in [
        format!("{{\"v\":2,\"frame\":{{\"Stop\":\"{}\"}}}}", cast.session),
        "{\"v\":1,\"frame\":{\"New\":1}}".into(),
        "?".into(),
    ] {
        let _: String =
            redis::cmd("XADD").arg(&inbox).arg("*").arg("f").arg(frame).query_async(&mut raw).await.unwrap();
    }
    let wake = format!("{{\"v\":1,\"frame\":{{\"Wake\":\"{}\"}}}}", cast.session);
    let _: String = redis::cmd("XADD").arg(&inbox).arg("*").arg("f").arg(wake).query_async(&mut raw).await.unwrap();
    within("what is known is obeyed", lease.woken()).await;
    assert!(!lease.stop.is_cancelled());
    cast.end().await;
}
