//! Collectors that are down, hang or answer errors: no turn waits for them, and neither does the end of the node for long.

use std::time::{Duration, Instant};
use tests::collector::{Behaviour, Collector};
use tests::fixture::Plan;

/// What the end of a node may take with nothing running, in which the wait for the collector is 3 s.
const END: Duration = Duration::from_secs(8);

async fn turns_and_end(telemetry: &str, what: &str) {
    let plan = Plan::default().toml(telemetry).toml("[telemetry.metrics]\nenabled = true");
    let mut fixture = plan.start().await;
    let session = fixture.driver().await;
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(session.send("hello").await.text(), "ok", "{what}");
    }
    let time = begun.elapsed();
    assert!(time < Duration::from_secs(10), "{what}: 20 turns took {time:?}");
    let stopped = Instant::now();
    fixture.server.terminate();
    assert!(fixture.server.ended().await.success(), "{what}");
    let time = stopped.elapsed();
    assert!(time < END, "{what}: the node took {time:?} to end");
}

#[tokio::test]
async fn a_collector_that_is_down() {
    for protocol in ["grpc", "http/protobuf"] {
        // Nobody listens on port 1.
        let telemetry = format!(
            "[telemetry]\nenabled = true\notlp_endpoint = \"http://127.0.0.1:1\"\notlp_protocol = \"{protocol}\""
        );
        turns_and_end(&telemetry, protocol).await;
    }
}

#[tokio::test]
async fn a_collector_that_hangs_or_fails() {
    for behaviour in [Behaviour::Hang, Behaviour::Fail] {
        let collector = Collector::start().await;
        collector.behave(behaviour);
        turns_and_end(&collector.grpc_toml(""), &format!("{behaviour:?} over gRPC")).await;
        turns_and_end(&collector.http_toml(""), &format!("{behaviour:?} over HTTP")).await;
        assert!(collector.asked() > 0, "the collector was never asked");
    }
}
