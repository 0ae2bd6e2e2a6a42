//! What an append demands, and what it leaves.

use crate::fixture::{Fixture, ended, event, going_on, opening, says};
use coordinator::Error;
use engine::event::{EventNumber, EventType};
use engine::gate::{Gate, GateFound};
use engine::ids::CallId;
use engine::outcome::Outcome;

pub(super) async fn an_old_owner_writes_nothing(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let old = fixture.own(session).await.epoch;
    let open = opening(session, old, key, GateFound::Free);
    fixture.log.append(open.clone()).await.unwrap();
    let new = fixture.own(session).await.epoch;
    assert_eq!(new, old.next());
    let stale = going_on(&open, None);
    assert!(matches!(fixture.log.append(stale.clone()).await, Err(Error::Fenced)));
    assert!(matches!(fixture.log.append(opening(session, old, key, GateFound::Free)).await, Err(Error::Fenced)));
    assert_eq!(fixture.contiguous(session).await.len(), 2);
    let mut carried_on = stale;
    carried_on.epoch = new;
    fixture.log.append(carried_on).await.unwrap();
    assert_eq!(fixture.contiguous(session).await.len(), 3);
}

pub(super) async fn a_call_goes_on_only_as_itself(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let open = opening(session, epoch, key, GateFound::Free);
    let other = opening(session, epoch, key, GateFound::Free);
    assert!(
        matches!(fixture.log.append(going_on(&open, None)).await, Err(Error::PreconditionFailed)),
        "not opened yet"
    );
    fixture.log.append(open.clone()).await.unwrap();
    assert!(matches!(fixture.log.append(going_on(&other, None)).await, Err(Error::PreconditionFailed)), "another call");
    fixture.log.append(going_on(&open, Some(ended()))).await.unwrap();
    assert!(matches!(fixture.log.append(going_on(&open, None)).await, Err(Error::PreconditionFailed)), "it is over");
    assert_eq!(fixture.contiguous(session).await.len(), 3);
}

pub(super) async fn a_call_is_recorded_with_its_end(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let open = opening(session, epoch, key, GateFound::Free);
    assert!(fixture.log.call(open.call).await.unwrap().is_none());
    let committed = fixture.log.append(open.clone()).await.unwrap();
    assert_eq!((committed[0].number, committed[0].call), (EventNumber(2), Some(open.call)));
    let record = fixture.log.call(open.call).await.unwrap().unwrap();
    assert_eq!((record.first, record.ended), (EventNumber(2), None));
    assert!(
        matches!(fixture.log.row(session).await.unwrap().gate, Gate::Running { call, takeovers: 0 } if call == open.call)
    );

    fixture.free(session, key, vec![event(key, EventType::SandboxRunning)]).await.unwrap();
    let last = fixture.log.append(going_on(&open, Some(ended()))).await.unwrap();
    let record = fixture.log.call(open.call).await.unwrap().unwrap();
    assert_eq!((record.first, record.ended), (EventNumber(2), Some((last[0].number, Outcome::Unavailable))));
    assert!(matches!(fixture.log.row(session).await.unwrap().gate, Gate::Free));

    let mut both = opening(session, epoch, key, GateFound::Free);
    both.end = Some(ended());
    fixture.log.append(both.clone()).await.unwrap();
    let record = fixture.log.call(both.call).await.unwrap().unwrap();
    assert_eq!(record.traceparent, None);
    let (five, outcome) = (EventNumber(5), Outcome::Unavailable);
    assert_eq!((record.first, record.ended), (five, Some((five, outcome))), "opened and ended in one append");

    let calls: Vec<_> = fixture.events(session).await.iter().map(|event| event.call).collect();
    assert_eq!(calls, [None, Some(open.call), None, Some(open.call), Some(both.call)]);
}

pub(super) async fn an_idempotency_key_opens_one_call(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let keyed = |digest: u8| {
        let mut open = opening(session, epoch, key, GateFound::Free);
        open.end = Some(ended());
        let row = open.open.as_mut().unwrap();
        row.idempotency = Some(("once".into(), [digest; 32]));
        row.traceparent = Some("00-trace".into());
        open
    };
    let first = keyed(1);
    fixture.log.append(first.clone()).await.unwrap();
    assert!(matches!(fixture.log.append(keyed(1)).await, Err(Error::Duplicate)));
    assert!(matches!(fixture.log.append(keyed(2)).await, Err(Error::Duplicate)));
    assert_eq!(fixture.contiguous(session).await.len(), 2, "nothing of the losers");
    let found = fixture.log.call_by_key(session, key, "once").await.unwrap().unwrap();
    assert_eq!((found.id, found.params_digest), (first.call, Some(vec![1; 32])));
    assert_eq!(found.traceparent.as_deref(), Some("00-trace"));
    assert!(fixture.log.call_by_key(session, key, "twice").await.unwrap().is_none());
    let other = fixture.key(fixture.profile().await).await;
    assert!(fixture.log.call_by_key(session, other, "once").await.unwrap().is_none(), "a key is its client's own");
}

/// An append fails as a whole: its first event is not there when its second cannot be.
pub(super) async fn a_refused_append_leaves_nothing_behind(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let taken = event(key, EventType::SandboxRunning);
    fixture.free(session, key, vec![taken.clone()]).await.unwrap();

    let mut open = opening(session, epoch, key, GateFound::Free);
    open.events.push(taken.clone());
    assert!(matches!(fixture.log.append(open.clone()).await, Err(Error::Duplicate)));
    assert!(fixture.log.call(open.call).await.unwrap().is_none());
    assert!(matches!(fixture.log.row(session).await.unwrap().gate, Gate::Free));
    let fresh = event(key, EventType::SandboxRunning);
    let free = fixture.free(session, key, vec![fresh, taken]).await;
    assert!(matches!(free, Err(Error::Duplicate)), "{free:?}");
    assert_eq!(fixture.contiguous(session).await.len(), 2);

    let mut again = open;
    again.events.pop();
    again.call = CallId(coordinator::fresh_id());
    fixture.log.append(again).await.unwrap();
    assert_eq!(fixture.contiguous(session).await.len(), 3);
}

/// docs/api.md 1.4: text as it came, whatever numbers, order of keys, or characters it has.
pub(super) async fn payloads_come_back_as_they_were(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let payload =
        r#"{"z":1.0,"a":1e400,"z":12345678901234567890.10,"n":"\u0000\ud83d\ude00 ünï ' \" \\","e":[],"q":"😀"}"#;
    let mut open = opening(session, epoch, key, GateFound::Free);
    open.events = vec![says(key, payload), event(key, EventType::ToolCall)];
    let committed = fixture.log.append(open).await.unwrap();
    let read = fixture.events(session).await;
    assert_eq!(read[1].event.payload.text(), payload);
    for (committed, read) in committed.iter().zip(&read[1..]) {
        assert_eq!(committed.view(), read.view(), "what is published is what is read");
        assert_eq!(committed.event.from_client, read.event.from_client);
    }
    assert!(read[1].event.from_client && !read[2].event.from_client);
}
