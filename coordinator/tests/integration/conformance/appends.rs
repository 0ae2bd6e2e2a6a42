//! What an append demands, and what it leaves.

use crate::world::{World, ended, event, going_on, opening, says};
use coordinator::Error;
use engine::event::EventType;
use engine::gate::{Gate, GateFound};
use engine::ids::CallId;
use engine::outcome::Outcome;

pub async fn an_old_owner_writes_nothing(world: &World) {
    let (session, key) = world.session().await;
    let old = world.own(session).await.epoch;
    let open = opening(session, old, key, GateFound::Free);
    world.log.append(open.clone()).await.unwrap();
    let new = world.own(session).await.epoch;
    assert_eq!(new, old + 1);
    let stale = going_on(&open, None);
    assert!(matches!(world.log.append(stale.clone()).await, Err(Error::Fenced)));
    assert!(matches!(world.log.append(opening(session, old, key, GateFound::Free)).await, Err(Error::Fenced)));
    assert_eq!(world.contiguous(session).await.len(), 2);
    let mut carried_on = stale;
    carried_on.epoch = new;
    world.log.append(carried_on).await.unwrap();
    assert_eq!(world.contiguous(session).await.len(), 3);
}

pub async fn a_call_goes_on_only_as_itself(world: &World) {
    let (session, key) = world.session().await;
    let epoch = world.own(session).await.epoch;
    let open = opening(session, epoch, key, GateFound::Free);
    let other = opening(session, epoch, key, GateFound::Free);
    assert!(matches!(world.log.append(going_on(&open, None)).await, Err(Error::Refused)), "not opened yet");
    world.log.append(open.clone()).await.unwrap();
    assert!(matches!(world.log.append(going_on(&other, None)).await, Err(Error::Refused)), "another call");
    world.log.append(going_on(&open, Some(ended()))).await.unwrap();
    assert!(matches!(world.log.append(going_on(&open, None)).await, Err(Error::Refused)), "it is over");
    assert_eq!(world.contiguous(session).await.len(), 3);
}

pub async fn a_call_is_recorded_with_its_end(world: &World) {
    let (session, key) = world.session().await;
    let epoch = world.own(session).await.epoch;
    let open = opening(session, epoch, key, GateFound::Free);
    assert!(world.log.call(open.call).await.unwrap().is_none());
    let committed = world.log.append(open.clone()).await.unwrap();
    assert_eq!((committed[0].number, committed[0].call), (2, Some(open.call)));
    let record = world.log.call(open.call).await.unwrap().unwrap();
    assert_eq!((record.first, record.ended), (2, None));
    assert!(
        matches!(world.log.row(session).await.unwrap().gate, Gate::Running { call, takeovers: 0 } if call == open.call)
    );

    world.free(session, key, vec![event(key, EventType::SandboxRunning)]).await.unwrap();
    let last = world.log.append(going_on(&open, Some(ended()))).await.unwrap();
    let record = world.log.call(open.call).await.unwrap().unwrap();
    assert_eq!((record.first, record.ended), (2, Some((last[0].number, Outcome::Unavailable))));
    assert!(matches!(world.log.row(session).await.unwrap().gate, Gate::Free));

    let mut both = opening(session, epoch, key, GateFound::Free);
    both.end = Some(ended());
    world.log.append(both.clone()).await.unwrap();
    let record = world.log.call(both.call).await.unwrap().unwrap();
    assert_eq!(record.traceparent, None);
    assert_eq!((record.first, record.ended), (5, Some((5, Outcome::Unavailable))), "opened and ended in one append");

    let calls: Vec<_> = world.events(session).await.iter().map(|event| event.call).collect();
    assert_eq!(calls, [None, Some(open.call), None, Some(open.call), Some(both.call)]);
}

pub async fn an_idempotency_key_opens_one_call(world: &World) {
    let (session, key) = world.session().await;
    let epoch = world.own(session).await.epoch;
    let keyed = |digest: u8| {
        let mut open = opening(session, epoch, key, GateFound::Free);
        open.end = Some(ended());
        let row = open.open.as_mut().unwrap();
        row.idempotency = Some(("once".into(), [digest; 32]));
        row.traceparent = Some("00-trace".into());
        open
    };
    let first = keyed(1);
    world.log.append(first.clone()).await.unwrap();
    assert!(matches!(world.log.append(keyed(1)).await, Err(Error::Duplicate)));
    assert!(matches!(world.log.append(keyed(2)).await, Err(Error::Duplicate)));
    assert_eq!(world.contiguous(session).await.len(), 2, "nothing of the losers");
    let found = world.log.call_by_key(session, key, "once").await.unwrap().unwrap();
    assert_eq!((found.id, found.params_digest), (first.call, Some(vec![1; 32])));
    assert_eq!(found.traceparent.as_deref(), Some("00-trace"));
    assert!(world.log.call_by_key(session, key, "twice").await.unwrap().is_none());
    let other = world.key(world.profile().await).await;
    assert!(world.log.call_by_key(session, other, "once").await.unwrap().is_none(), "a key is its client's own");
}

/// An append fails as a whole: its first event is not there when its second cannot be.
pub async fn a_refused_append_leaves_nothing_behind(world: &World) {
    let (session, key) = world.session().await;
    let epoch = world.own(session).await.epoch;
    let taken = event(key, EventType::SandboxRunning);
    world.free(session, key, vec![taken.clone()]).await.unwrap();

    let mut open = opening(session, epoch, key, GateFound::Free);
    open.events.push(taken.clone());
    assert!(matches!(world.log.append(open.clone()).await, Err(Error::Duplicate)));
    assert!(world.log.call(open.call).await.unwrap().is_none());
    assert!(matches!(world.log.row(session).await.unwrap().gate, Gate::Free));
    let fresh = event(key, EventType::SandboxRunning);
    let free = world.free(session, key, vec![fresh, taken]).await;
    assert!(matches!(free, Err(Error::Duplicate)), "{free:?}");
    assert_eq!(world.contiguous(session).await.len(), 2);

    let mut again = open;
    again.events.pop();
    again.call = CallId(coordinator::fresh_id());
    world.log.append(again).await.unwrap();
    assert_eq!(world.contiguous(session).await.len(), 3);
}

/// docs/api.md 1.4: text as it came, whatever numbers, order of keys, or characters it has.
pub async fn payloads_come_back_as_they_were(world: &World) {
    let (session, key) = world.session().await;
    let epoch = world.own(session).await.epoch;
    let payload =
        r#"{"z":1.0,"a":1e400,"z":12345678901234567890.10,"n":"\u0000\ud83d\ude00 ünï ' \" \\","e":[],"q":"😀"}"#;
    let mut open = opening(session, epoch, key, GateFound::Free);
    open.events = vec![says(key, payload), event(key, EventType::ToolCall)];
    let committed = world.log.append(open).await.unwrap();
    let read = world.events(session).await;
    assert_eq!(read[1].event.payload.text(), payload);
    for (committed, read) in committed.iter().zip(&read[1..]) {
        assert_eq!(committed.view(), read.view(), "what is published is what is read");
        assert_eq!(committed.event.from_client, read.event.from_client);
    }
    assert!(read[1].event.from_client && !read[2].event.from_client);
}
