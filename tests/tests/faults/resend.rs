//! F9, S5: a POST whose answer was lost is sent again with its idempotency key.

use tests::fixture::Fixture;
use tests::provider::Answer;

#[tokio::test]
async fn while_the_turn_runs() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::text("once"));
    let first = session.start_once("hello", "k").await;
    held.arrived().await;
    drop(first);
    let (again, third) = (session.start_once("hello", "k").await, session.start_once("hello", "k").await);
    held.release();
    let (again, third) = (again.finish().await, third.finish().await);
    assert_eq!(again.text(), "once");
    assert_eq!(again.result(), third.result());
    assert_eq!(again.live().len(), 3, "the whole turn, not only what came after the resend");
    assert_eq!((session.said().await.len(), fixture.provider.requests().len()), (1, 1));
}

#[tokio::test]
async fn after_the_turn_and_over_a_restart() {
    let mut fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let mut held = fixture.provider.hold(Answer::text("never sent"));
    let first = session.start_once("hello", "k").await;
    held.arrived().await;
    fixture.server.kill9();
    drop(first);
    let mut resumed = fixture.provider.hold(Answer::text("once"));
    fixture.server.restart().await;
    resumed.arrived().await;
    let waiting = session.start_once("hello", "k").await;
    resumed.release();
    let waited = waiting.finish().await;
    assert_eq!(waited.text(), "once");
    fixture.server.crash().await;
    let later = session.start_once("hello", "k").await.finish().await;
    assert_eq!(later.result(), waited.result());
    assert_eq!((session.said().await.len(), fixture.provider.requests().len()), (1, 2));
}

/// S5: a call still waits and its first client has left. The call keeps its place, and the client that sent it again
/// gets the answer.
#[tokio::test]
async fn while_the_call_waits() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    let mut held = fixture.provider.hold(Answer::text("a"));
    fixture.provider.script(["b", "c"].map(Answer::text));
    let running = session.start_send("first").await;
    held.arrived().await;
    let lost = second.start_once("second", "k").await;
    let third = session.start_send("third").await;
    let resent = second.start_once("second", "k").await;
    drop(lost);
    held.release();
    assert_eq!(running.finish().await.text(), "a");
    assert_eq!(resent.finish().await.text(), "b");
    assert_eq!(third.finish().await.text(), "c");
    assert_eq!(session.said().await, ["first", "second", "third"]);
}

/// A waiting call is dropped when the last of its clients has left, and can be made again.
#[tokio::test]
async fn when_nobody_waits_any_more() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    let second = fixture.second(&session).await;
    let mut held = fixture.provider.hold(Answer::text("a"));
    let running = session.start_send("first").await;
    held.arrived().await;
    let one = second.start_once("second", "k").await;
    let two = second.start_once("second", "k").await;
    drop((one, two));
    held.release();
    running.finish().await;
    assert_eq!(session.send("third").await.text(), "ok");
    assert_eq!(session.said().await, ["first", "third"]);
    assert_eq!(second.start_once("second", "k").await.finish().await.text(), "ok");
    assert_eq!(session.said().await, ["first", "third", "second"]);
}

/// The outcome of a call can be fetched later, whatever has become of the session since.
#[tokio::test]
async fn after_the_sessions_end() {
    let fixture = Fixture::start().await;
    let session = fixture.driver().await;
    fixture.provider.otherwise(Answer::status(400));
    let failed = session.start_once("fails", "k").await.finish().await;
    assert_eq!(fixture.admin.state(&session.id).await, "error");
    assert_eq!(session.start_once("fails", "k").await.finish().await.result(), failed.result());
    fixture.provider.otherwise(Answer::text("fine"));
    let session = fixture.driver().await;
    let answered = session.start_once("works", "k").await.finish().await;
    session.delete().await.expect(200);
    assert_eq!(session.start_once("works", "k").await.finish().await.result(), answered.result());
    let closed = (-32000, "session is closed, not open".to_owned());
    assert_eq!(session.start_once("new", "other").await.finish().await.error(), closed);
}
