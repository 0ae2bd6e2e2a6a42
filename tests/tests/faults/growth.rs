//! F16, D13: what a long conversation costs.

use tests::fixture::Fixture;

/// The database grows by the turn, not with the square of the conversation.
#[tokio::test]
async fn the_log_grows_linearly() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let database = fixture.database().await;
    let message = "m".repeat(200);
    let mut sizes = vec![database.size().await];
    for _ in 0..3 {
        for _ in 0..40 {
            // Events are not read: a turn's answer holds all it was sent, as docs/api.md 13.2 says.
            let mut turn = session.start_send(message.as_str()).await;
            turn.until_type("server.message.send").await;
            turn.finish().await;
        }
        sizes.push(database.size().await);
    }
    let grown: Vec<u64> = sizes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // 40 turns of some 1.5 kB of events each; squared growth would triple and quintuple it.
    assert!(grown[2] * 2 <= grown[1] * 3 + 65_536, "{sizes:?}");
    assert!(grown[2] < 40 * 5_000, "{sizes:?}");
    // And readers still get every payload whole.
    let sent = fixture.provider.last()["messages"].clone();
    let events = session.events().await;
    let requests = tests::client::of_type(&events, "provider.request");
    assert_eq!(requests.last().unwrap()["payload"]["messages"], sent);
    assert_eq!(sent.as_array().unwrap().len(), 239);
}
