//! Another node carries a turn on: its span is in the same trace and leads to the first one.

use super::{PARENT, TRACE, send_traced, traceparent};
use serde_json::json;
use tests::cluster::Plan;
use tests::collector::Collector;
use tests::provider::Answer;

#[tokio::test]
async fn the_next_owner_links_to_the_first() {
    let collector = Collector::start().await;
    let mut cluster = Plan::default().toml(&collector.grpc_toml("")).start().await;
    let (session, owner) = cluster.owned_session().await;
    let asked = cluster.other(&[owner]);
    let mut held = cluster.provider.hold(Answer::text("never sent"));
    let (at, header) = (cluster.at(&session, asked), traceparent());
    let running = tokio::spawn(async move { send_traced(&at, json!("hello"), &header).await });
    held.arrived().await;
    cluster.nodes[owner].server.kill9();
    running.await.expect("an answer");

    let second =
        collector.until("the span of the next owner", |span| span.trace == TRACE && span.what() == "turn").await;
    let request = collector.until("the request's span", |span| span.trace == TRACE && span.what() == "request").await;
    assert_eq!((request.parent.as_str(), second.parent.as_str()), (PARENT, request.id.as_str()));
    assert_ne!(second.instance, "");
    assert_eq!(
        (second.attributes["bae.takeover"].clone(), &second.attributes["bae.outcome"]),
        (json!(true), &json!("ok"))
    );
    let call = second.attributes["bae.call.id"].as_str().expect("the call's id");
    let first = call[call.len() - 16..].to_owned();
    assert_eq!(second.links, [(TRACE.to_owned(), first.clone())], "the first owner's span follows from the call");
    assert_ne!(second.id, first);
    let asked: Vec<_> = collector.trace(TRACE).into_iter().filter(|span| span.what() == "provider").collect();
    assert_eq!((asked.len(), asked[0].parent.as_str()), (1, second.id.as_str()), "the killed node sent nothing");

    // What the nodes count of each other.
    for node in cluster.nodes.iter_mut().enumerate().filter(|(number, _)| *number != owner).map(|(_, node)| node) {
        node.server.terminate();
        node.server.ended().await;
    }
    let sum = |name: &str| collector.points(name).iter().map(|(_, value)| value).sum::<f64>();
    assert_eq!(sum("bae.lease.takeovers"), 1.0);
    assert!(sum("bae.lease.acquisitions") >= 1.0 && sum("bae.redis.duration") > 0.0);
    // Whether an event crosses from one node to another here depends on which of them takes the session.
    assert!(sum("bae.inbox.frames") > 0.0, "{:?}", collector.metrics());
    assert_eq!(collector.points("bae.redis.up").iter().map(|(_, up)| *up).collect::<Vec<_>>(), [1.0, 1.0]);
}
