//! F10, S14: subscribers that come and go, on any node, in the middle of a burst.

use serde_json::json;
use tests::client::ids;
use tests::cluster::Cluster;

/// Reconnects on random nodes with `since_event_id`: the log's ids, in order, no gap, no double.
#[tokio::test]
async fn reconnects_on_random_nodes() {
    let cluster = Cluster::start().await;
    let session = cluster.driver().await;
    let (writer, closer) = (cluster.at(&session, 1), cluster.at(&session, 2));
    let burst = async {
        for number in 0..80 {
            if number % 10 == 0 {
                writer.send(format!("turn {number}")).await.text();
            } else {
                let report = json!({"state": "running", "image": number.to_string()});
                writer.rpc("session.reportLocalSandbox", report).await.result();
            }
        }
        closer.delete().await.expect(200);
    };
    let first = ids(&cluster.at(&session, 0).events().await)[0].clone();
    let watch = async {
        let mut seen: Vec<String> = vec![first];
        // Any sequence does; this one is the same each time.
        let mut rng = fastrand::Rng::with_seed(12_345);
        loop {
            let params = json!({"since_event_id": seen.last(), "include_client_events": true});
            let mut stream = cluster.at(&session, rng.usize(..3)).start("session.subscribe", params).await;
            for _ in 0..rng.usize(..12) {
                let frame = stream.next().await.expect("another event");
                seen.push(frame["params"]["id"].as_str().unwrap_or_else(|| panic!("{frame}")).to_owned());
                if frame["params"]["event_type"] == "session.close" {
                    return seen;
                }
            }
        }
    };
    let ((), seen) = tokio::join!(burst, watch);
    let log = cluster.check(&session).await;
    assert_eq!(seen.len() as i64, log.head);
    assert_eq!(log.compare_whole_stream(&seen), []);
}
