//! Who may open a call while the gate is free, kept, or kept too long.

use crate::fixture::{Fixture, ended, going_on, opening, until};
use coordinator::Error;
use coordinator::log::{Epoch, RemainingClients};
use engine::gate::{End, Gate, GateAfter, GateFound, Pause};
use engine::ids::{KeyId, SessionId};
use engine::outcome::Outcome;
use std::time::Duration;

async fn refused(fixture: &Fixture, session: SessionId, epoch: Epoch, key: KeyId, gate: GateFound) {
    let done = fixture.log.append(opening(session, epoch, key, gate)).await;
    assert!(matches!(done, Err(Error::PreconditionFailed)), "{gate:?}: {done:?}");
}

/// A session whose gate its opener keeps for that long.
async fn paused(fixture: &Fixture, time: Duration) -> (SessionId, KeyId, KeyId, Epoch) {
    let (session, owner) = fixture.session().await;
    let other = fixture.key(fixture.profile().await).await;
    let epoch = fixture.own(session).await.epoch;
    let open = opening(session, epoch, owner, GateFound::Free);
    fixture.log.append(open.clone()).await.unwrap();
    fixture
        .log
        .append(going_on(&open, Some(End { outcome: Outcome::Unavailable, gate: GateAfter::Paused(time) })))
        .await
        .unwrap();
    (session, owner, other, epoch)
}

pub(super) async fn a_free_gate_opens_once(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    refused(fixture, session, epoch, key, GateFound::OwnPause).await;
    refused(fixture, session, epoch, key, GateFound::ExpiredPause).await;
    let open = opening(session, epoch, key, GateFound::Free);
    fixture.log.append(open.clone()).await.unwrap();
    for gate in [GateFound::Free, GateFound::OwnPause, GateFound::ExpiredPause] {
        refused(fixture, session, epoch, key, gate).await;
    }
    fixture.log.append(going_on(&open, Some(ended()))).await.unwrap();
    fixture.log.append(opening(session, epoch, key, GateFound::Free)).await.unwrap();
    assert_eq!(fixture.contiguous(session).await.len(), 4);
}

/// Expiry is judged with the database's clock, in the append that opens the next call.
pub(super) async fn a_pause_is_its_owners_until_it_expires(fixture: &Fixture) {
    let (session, owner, other, epoch) = paused(fixture, Duration::from_secs(60)).await;
    let phase = fixture.log.row(session).await.unwrap().gate;
    assert!(
        matches!(phase, Gate::Paused(pause) if pause.owner == owner && (30..=60).contains(&pause.left.as_secs())),
        "{phase:?}"
    );
    refused(fixture, session, epoch, other, GateFound::Free).await;
    refused(fixture, session, epoch, other, GateFound::OwnPause).await;
    refused(fixture, session, epoch, other, GateFound::ExpiredPause).await;
    fixture.log.append(opening(session, epoch, owner, GateFound::OwnPause)).await.unwrap();

    let (session, owner, other, epoch) = paused(fixture, Duration::from_millis(300)).await;
    let opened = until("the pause expires", async || {
        let left = fixture.log.row(session).await.map(|row| row.gate);
        match fixture.log.append(opening(session, epoch, other, GateFound::ExpiredPause)).await {
            Ok(events) => Ok((left.unwrap(), events)),
            Err(Error::PreconditionFailed) => Err(left),
            Err(error) => panic!("{error:?}"),
        }
    });
    let (before, _) = opened.await;
    assert!(
        matches!(before, Gate::Paused(pause) if pause.owner == owner && pause.left <= Duration::from_millis(50)),
        "{before:?}"
    );
    refused(fixture, session, epoch, owner, GateFound::OwnPause).await;

    let (session, owner, _, epoch) = paused(fixture, Duration::ZERO).await;
    fixture
        .log
        .append(opening(session, epoch, owner, GateFound::OwnPause))
        .await
        .expect("an owner's answer comes in time until then");
}

pub(super) async fn a_revoked_keys_pause_is_over(fixture: &Fixture) {
    let (session, owner, other, epoch) = paused(fixture, Duration::from_secs(60)).await;
    let alone = fixture.log.expire_pauses_of(owner).await.unwrap();
    assert_eq!(alone, [(session, RemainingClients::None)], "no other client has a key for it");
    assert!(matches!(fixture.log.row(session).await.unwrap().gate, Gate::Paused(Pause { left: Duration::ZERO, .. })));
    fixture.log.append(opening(session, epoch, other, GateFound::ExpiredPause)).await.unwrap();

    let (second, third) =
        (fixture.session_of(fixture.profile().await, owner, coordinator::log::State::Open).await, other);
    let side = coordinator::log::Side::Join { declarations: "{}".into(), digest: [7; 32] };
    fixture.log.append_free(second, third, Vec::new(), side).await.unwrap();
    let mut left = fixture.log.expire_pauses_of(owner).await.unwrap();
    left.sort();
    let mut expected = vec![(session, RemainingClients::None), (second, RemainingClients::Some)];
    expected.sort();
    assert_eq!(left, expected);
}
