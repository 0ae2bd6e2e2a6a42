//! Many who write at once.

use crate::fixture::{Fixture, ended, event, going_on, opening, says, within};
use engine::event::EventType;
use engine::gate::GateFound;
use engine::ids::EventId;
use std::collections::HashSet;

/// F7: a turn and twenty writers of reports in one session.
pub(super) async fn numbers_have_no_hole_under_twenty_writers(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let mut writers = Vec::new();
    for _ in 0..20 {
        let log = fixture.log.clone();
        writers.push(tokio::spawn(async move {
            let mut written = Vec::new();
            for size in [1, 2, 3, 1, 2, 3, 1, 2] {
                let events: Vec<_> = (0..size).map(|_| event(key, EventType::SandboxRunning)).collect();
                let done = log.append_free(session, key, events, coordinator::log::Side::Nothing).await;
                written.push(done.expect("a report").iter().map(|e| (e.number, e.event.id)).collect::<Vec<_>>());
            }
            written
        }));
    }
    let open = opening(session, epoch, key, GateFound::Free);
    let mut written = Vec::new();
    let mut next = open.clone();
    for step in 0..30 {
        let done = within("a turn's append", fixture.log.append(next)).await.expect("the turn is not disturbed");
        written.push(done.iter().map(|e| (e.number, e.event.id)).collect::<Vec<_>>());
        next = going_on(&open, if step == 28 { Some(ended()) } else { None });
    }
    for writer in writers {
        written.extend(within("a writer", writer).await.expect("a writer"));
    }
    let log = fixture.contiguous(session).await;
    assert_eq!(log.len(), 1 + 30 + 20 * 15);
    assert_eq!(log.iter().collect::<HashSet<_>>().len(), log.len(), "an event twice");
    for append in written {
        for pair in append.windows(2) {
            assert_eq!(pair[0].0.next(), pair[1].0, "an append is not torn apart");
        }
        for (number, id) in append {
            assert_eq!(log[number.previous().0 as usize], id, "an event stands where its writer was told");
        }
    }
}

/// The write that was begun is applied and published, although nobody waits for it.
pub(super) async fn a_caller_that_leaves_stops_nothing(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let (mut reader, _) = coordinator::reader::Reader::open(&fixture.log, session, async {}).await.unwrap();
    let mut ids: Vec<EventId> = Vec::new();
    for _ in 0..20 {
        let report = event(key, EventType::SandboxRunning);
        ids.push(report.id);
        let mut write = Box::pin(fixture.free(session, key, vec![report]));
        // Polled once, so that it was begun.
        let begun = futures_util::poll!(write.as_mut());
        drop(write);
        assert!(begun.is_pending(), "an append that waits for nothing");
    }
    let mut seen = Vec::new();
    while seen.len() < ids.len() {
        let head = reader.head();
        for shown in reader.read(head.number).await.unwrap() {
            seen.push(shown.event.event.id);
        }
        if seen.len() < ids.len() && reader.head() == head {
            within("what is published", reader.moved(head)).await;
        }
    }
    seen.sort();
    ids.sort();
    assert_eq!(seen, ids);
    assert_eq!(fixture.contiguous(session).await.len(), 21);
}

/// Appends of different sessions, some of which are refused, do not get into each other's way.
pub(super) async fn many_sessions_are_written_at_once(fixture: &Fixture) {
    let mut turns = Vec::new();
    for number in 0..30 {
        let (session, key) = fixture.session().await;
        let epoch = fixture.own(session).await.epoch;
        let stale = number % 5 == 0;
        if stale {
            fixture.own(session).await;
        }
        let log = fixture.log.clone();
        let turn = tokio::spawn(async move {
            let open = opening(session, epoch, key, GateFound::Free);
            let mut next = open.clone();
            for step in 0..10 {
                next.events.push(says(key, &format!(r#"{{"step":{step}}}"#)));
                let done = log.append(next).await;
                if stale {
                    assert!(matches!(done, Err(coordinator::Error::Fenced)), "{done:?}");
                    return;
                }
                done.expect("an append");
                next = going_on(&open, if step == 8 { Some(ended()) } else { None });
            }
        });
        turns.push((session, stale, turn));
    }
    for (session, stale, turn) in turns {
        within("a turn", turn).await.expect("a turn");
        assert_eq!(fixture.contiguous(session).await.len(), if stale { 1 } else { 21 });
    }
}
