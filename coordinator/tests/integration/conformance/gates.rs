//! Who may open a call while the gate is free, kept, or kept too long.

use crate::world::{World, ended, going_on, opening, until};
use coordinator::Error;
use engine::gate::{End, Gate, GateAfter, GateFound, Pause};
use engine::ids::{KeyId, SessionId};
use engine::outcome::Outcome;
use std::time::Duration;

async fn refused(world: &World, session: SessionId, epoch: i64, key: KeyId, gate: GateFound) {
    let done = world.log.append(opening(session, epoch, key, gate)).await;
    assert!(matches!(done, Err(Error::Refused)), "{gate:?}: {done:?}");
}

/// A session whose gate its opener keeps for that long.
async fn paused(world: &World, time: Duration) -> (SessionId, KeyId, KeyId, i64) {
    let (session, owner) = world.session().await;
    let other = world.key(world.profile().await).await;
    let epoch = world.own(session).await.epoch;
    let open = opening(session, epoch, owner, GateFound::Free);
    world.log.append(open.clone()).await.unwrap();
    world
        .log
        .append(going_on(&open, Some(End { outcome: Outcome::Unavailable, gate: GateAfter::Paused(time) })))
        .await
        .unwrap();
    (session, owner, other, epoch)
}

pub async fn a_free_gate_opens_once(world: &World) {
    let (session, key) = world.session().await;
    let epoch = world.own(session).await.epoch;
    refused(world, session, epoch, key, GateFound::OwnPause).await;
    refused(world, session, epoch, key, GateFound::ExpiredPause).await;
    let open = opening(session, epoch, key, GateFound::Free);
    world.log.append(open.clone()).await.unwrap();
    for gate in [GateFound::Free, GateFound::OwnPause, GateFound::ExpiredPause] {
        refused(world, session, epoch, key, gate).await;
    }
    world.log.append(going_on(&open, Some(ended()))).await.unwrap();
    world.log.append(opening(session, epoch, key, GateFound::Free)).await.unwrap();
    assert_eq!(world.contiguous(session).await.len(), 4);
}

/// Expiry is judged with the database's clock, in the append that opens the next call.
pub async fn a_pause_is_its_owners_until_it_expires(world: &World) {
    let (session, owner, other, epoch) = paused(world, Duration::from_secs(60)).await;
    let phase = world.log.row(session).await.unwrap().gate;
    assert!(
        matches!(phase, Gate::Paused(pause) if pause.owner == owner && (30..=60).contains(&pause.left.as_secs())),
        "{phase:?}"
    );
    refused(world, session, epoch, other, GateFound::Free).await;
    refused(world, session, epoch, other, GateFound::OwnPause).await;
    refused(world, session, epoch, other, GateFound::ExpiredPause).await;
    world.log.append(opening(session, epoch, owner, GateFound::OwnPause)).await.unwrap();

    let (session, owner, other, epoch) = paused(world, Duration::from_millis(300)).await;
    let opened = until("the pause expires", async || {
        let left = world.log.row(session).await.map(|row| row.gate);
        match world.log.append(opening(session, epoch, other, GateFound::ExpiredPause)).await {
            Ok(events) => Ok((left.unwrap(), events)),
            Err(Error::Refused) => Err(left),
            Err(error) => panic!("{error:?}"),
        }
    });
    let (before, _) = opened.await;
    assert!(
        matches!(before, Gate::Paused(pause) if pause.owner == owner && pause.left <= Duration::from_millis(50)),
        "{before:?}"
    );
    refused(world, session, epoch, owner, GateFound::OwnPause).await;

    let (session, owner, _, epoch) = paused(world, Duration::ZERO).await;
    world
        .log
        .append(opening(session, epoch, owner, GateFound::OwnPause))
        .await
        .expect("an owner's answer comes in time until then");
}

pub async fn a_revoked_keys_pause_is_over(world: &World) {
    let (session, owner, other, epoch) = paused(world, Duration::from_secs(60)).await;
    let alone = world.log.forsake(owner).await.unwrap();
    assert_eq!(alone, [(session, false)], "no other client has a key for it");
    assert!(matches!(world.log.row(session).await.unwrap().gate, Gate::Paused(Pause { left: Duration::ZERO, .. })));
    world.log.append(opening(session, epoch, other, GateFound::ExpiredPause)).await.unwrap();

    let (second, third) = (world.session_of(world.profile().await, owner, coordinator::log::State::Open).await, other);
    let side = coordinator::log::Side::Join { declarations: "{}".into(), digest: [7; 32] };
    world.log.append_free(second, third, Vec::new(), side).await.unwrap();
    let mut left = world.log.forsake(owner).await.unwrap();
    left.sort();
    let mut expected = vec![(session, false), (second, true)];
    expected.sort();
    assert_eq!(left, expected);
}
