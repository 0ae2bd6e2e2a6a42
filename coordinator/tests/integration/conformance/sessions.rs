//! Sessions' rows: taken, counted, closed, joined.

use crate::fixture::{Fixture, ended, event, going_on, new_session, opening};
use coordinator::Error;
use coordinator::feed::{Feeds, LogStatus};
use coordinator::log::{Epoch, Log, PurgeReason, Side, State};
use coordinator::reader::Reader;
use engine::event::{EventNumber, EventType};
use engine::gate::{End, Gate, GateAfter, GateFound};
use engine::ids::{EventId, SessionId};
use engine::outcome::Outcome;
use std::sync::Arc;
use std::time::Duration;

pub(super) async fn of_two_that_take_one_wins(fixture: &Fixture) {
    let (session, _) = fixture.session().await;
    let seen = fixture.log.row(session).await.unwrap().epoch;
    let tries: Vec<_> = (0..8)
        .map(|_| {
            let log = fixture.log.clone();
            tokio::spawn(async move { log.take(session, seen).await })
        })
        .collect();
    let mut won = Vec::new();
    for attempt in tries {
        match attempt.await.unwrap() {
            Ok(row) => won.push(row.epoch),
            Err(error) => assert!(matches!(error, Error::Fenced), "{error:?}"),
        }
    }
    assert_eq!(won, [seen.next()]);
    assert_eq!(fixture.log.row(session).await.unwrap().epoch, seen.next());
}

pub(super) async fn crash_takeovers_are_counted(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let open = opening(session, epoch, key, GateFound::Free);
    fixture.log.append(open.clone()).await.unwrap();
    assert_eq!(fixture.log.unfinished().await.unwrap(), [(session, State::Open)]);
    let takeovers = |row: coordinator::log::Row| match row.gate {
        Gate::Running { call, takeovers } if call == open.call => takeovers,
        other => panic!("{other:?}"),
    };
    assert_eq!(takeovers(fixture.own(session).await), 1);
    let row = fixture.own(session).await;
    let epoch = row.epoch;
    assert_eq!(takeovers(row), 2);
    fixture.log.hand_over(session, epoch).await.unwrap();
    let row = fixture.own(session).await;
    let epoch = row.epoch;
    assert_eq!(takeovers(row), 2, "given away on purpose");
    assert_eq!(takeovers(fixture.own(session).await), 3, "that holds once");
    let mut next = going_on(&open, None);
    next.epoch = epoch.next();
    fixture.log.append(next.clone()).await.unwrap();
    assert_eq!(takeovers(fixture.log.row(session).await.unwrap()), 0, "since its last append");
    let mut last = going_on(&open, Some(ended()));
    last.epoch = next.epoch;
    fixture.log.append(last).await.unwrap();
    assert!(matches!(fixture.own(session).await.gate, Gate::Free));
    assert!(fixture.log.unfinished().await.unwrap().is_empty());
}

pub(super) async fn closing_has_two_steps_and_one_end(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let open = opening(session, epoch, key, GateFound::Free);
    fixture.log.append(open.clone()).await.unwrap();
    fixture.log.begin_close(session, key, "client_close").await.unwrap();
    let row = fixture.log.row(session).await.unwrap();
    assert_eq!((row.state, row.epoch), (State::Closing, epoch.next()));
    assert_eq!(fixture.log.unfinished().await.unwrap(), [(session, State::Closing)]);

    let report = || vec![event(key, EventType::SandboxRunning)];
    assert!(matches!(fixture.log.append(going_on(&open, Some(ended()))).await, Err(Error::NotOpen("closed"))));
    assert!(matches!(fixture.free(session, key, report()).await, Err(Error::NotOpen("closed"))));
    assert!(matches!(fixture.log.take(session, row.epoch).await, Err(Error::Fenced)));
    assert!(matches!(fixture.log.declare(session, key, "{}".into()).await, Err(Error::NotOpen("closed"))));
    let again = fixture.log.begin_close(session, key, "client_close").await;
    assert!(matches!(again, Err(Error::NotOpen("closed"))), "{again:?}");

    let end = EventId(coordinator::fresh_id());
    fixture.log.finish_close(session, end).await.unwrap();
    fixture.log.finish_close(session, EventId(coordinator::fresh_id())).await.expect("does nothing");
    let ids = fixture.contiguous(session).await;
    assert_eq!((ids.len(), ids.last()), (3, Some(&end)));
    let events = fixture.events(session).await;
    assert_eq!(events[2].event.payload.text(), r#"{"reason":"client_close"}"#);
    assert_eq!((events[2].event.kind, events[2].event.key), (EventType::SessionClose, key));
    assert_eq!(fixture.log.row(session).await.unwrap().state, State::Closed);
    assert!(fixture.log.unfinished().await.unwrap().is_empty());
    assert!(matches!(fixture.free(session, key, report()).await, Err(Error::NotOpen("closed"))));
}

/// Two nodes finish a closing; the slower one's watchers have not been told of the last event.
pub(super) async fn a_closing_that_another_finished_ends_no_stream_early(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    fixture.log.begin_close(session, key, "client_close").await.unwrap();
    let slower = Log::new(fixture.db.clone(), Arc::new(Feeds::default()));
    let (reader, row) = Reader::open(&slower, session, async {}).await.unwrap();
    fixture.log.finish_close(session, EventId(coordinator::fresh_id())).await.unwrap();
    slower.finish_close(session, EventId(coordinator::fresh_id())).await.expect("does nothing");
    let head = reader.head();
    assert!(head.status == LogStatus::Open || head.number > row.head, "it ends before session.close: {head:?}");
}

pub(super) async fn a_failed_session_takes_nothing(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let open = opening(session, epoch, key, GateFound::Free);
    fixture.log.append(open.clone()).await.unwrap();
    fixture
        .log
        .append(going_on(&open, Some(End { outcome: Outcome::Unavailable, gate: GateAfter::Failed })))
        .await
        .unwrap();
    let row = fixture.log.row(session).await.unwrap();
    assert_eq!(row.state, State::Error);
    assert!(matches!(row.gate, Gate::Free));
    let opened = fixture.log.append(opening(session, epoch, key, GateFound::Free)).await;
    assert!(matches!(opened, Err(Error::NotOpen("error"))), "{opened:?}");
    let closed = fixture.log.begin_close(session, key, "client_close").await;
    assert!(matches!(closed, Err(Error::NotOpen("error"))), "{closed:?}");
    assert!(matches!(fixture.log.take(session, epoch).await, Err(Error::Fenced)));
}

pub(super) async fn clients_join_and_register(fixture: &Fixture) {
    let profile = fixture.profile().await;
    let (opener, joiner) = (fixture.key(profile).await, fixture.key(profile).await);
    let session = fixture.session_of(profile, opener, State::Open).await;
    let admitted = async |key| fixture.log.admission(session, key).await.unwrap().driver;
    assert!(!admitted(opener).await && !admitted(joiner).await);
    assert!(fixture.log.drivers(session).await.unwrap().is_empty());

    let declarations = engine::tools::Declarations::default().store();
    let join = |digest| Side::Join { declarations: declarations.clone(), digest };
    let joined = event(joiner, EventType::SessionJoin);
    let events = fixture.log.append_free(session, joiner, vec![joined], join([5; 32])).await.unwrap();
    assert_eq!(events[0].number, EventNumber(2));
    let secret = coordinator::accounts::Digest([5; 32]);
    assert_eq!(fixture.accounts.session_client(secret).await.unwrap().unwrap().key, joiner);
    let again =
        fixture.log.append_free(session, joiner, vec![event(joiner, EventType::SessionJoin)], join([5; 32])).await;
    assert!(matches!(again, Err(Error::Duplicate)), "{again:?}");

    let register = async |key| {
        let registered = vec![event(key, EventType::DriverRegister)];
        fixture.log.append_free(session, key, registered, Side::Register).await.unwrap().len()
    };
    assert_eq!(register(joiner).await, 1);
    assert_eq!(register(joiner).await, 0, "registered already");
    assert_eq!(register(opener).await, 1);
    assert!(admitted(opener).await && admitted(joiner).await);
    let mut drivers = vec![opener, joiner];
    drivers.sort();
    assert_eq!(fixture.log.drivers(session).await.unwrap(), drivers);
    fixture.accounts.revoke_key(joiner, || {}).await.unwrap();
    assert_eq!(fixture.log.drivers(session).await.unwrap(), [opener]);
    assert_eq!(fixture.contiguous(session).await.len(), 4);

    fixture.log.declare(session, opener, declarations).await.unwrap();
    let record = fixture.log.record(session, opener).await.unwrap();
    assert_eq!((record.profile, record.deleted, record.primary.as_str()), (profile, false, "main"));
    assert_eq!(record.fallbacks, ["second"]);
}

pub(super) async fn an_unknown_session_is_not_found(fixture: &Fixture) {
    let (_, key) = fixture.session().await;
    let unknown = SessionId(coordinator::fresh_id());
    assert!(matches!(fixture.log.row(unknown).await, Err(Error::NotFound)));
    assert!(matches!(fixture.log.admission(unknown, key).await, Err(Error::NotFound)));
    assert!(matches!(fixture.log.record(unknown, key).await, Err(Error::NotFound)));
    assert!(matches!(fixture.free(unknown, key, Vec::new()).await, Err(Error::NotFound)));
    assert!(matches!(
        fixture.log.append(opening(unknown, Epoch::UNOWNED.next(), key, GateFound::Free)).await,
        Err(Error::NotFound)
    ));
    assert!(matches!(fixture.log.begin_close(unknown, key, "client_close").await, Err(Error::NotFound)));
    assert!(fixture.log.page(unknown, EventNumber::START, 10).await.unwrap().events.is_empty());
    let twice = new_session(fixture.profile().await, key, State::Open);
    let mut copy = new_session(twice.profile, key, State::Open);
    copy.id = twice.id;
    fixture.log.create(twice).await.unwrap();
    assert!(matches!(fixture.log.create(copy).await, Err(Error::Duplicate)));
}

pub(super) async fn only_ended_sessions_are_removed(fixture: &Fixture) {
    let (open, key) = fixture.session().await;
    let (closed, closer) = fixture.session().await;
    let profile = fixture.profile().await;
    let failed = fixture.session_of(profile, key, State::Error).await;
    fixture.log.begin_close(closed, closer, "client_close").await.unwrap();
    let purge = async |session| fixture.log.purge(session, PurgeReason::Admin).await;
    assert!(matches!(purge(open).await, Err(Error::PreconditionFailed)));
    assert!(matches!(purge(closed).await, Err(Error::PreconditionFailed)), "it is still being closed");
    fixture.log.finish_close(closed, EventId(coordinator::fresh_id())).await.unwrap();

    assert!(fixture.log.ended_before(Duration::from_secs(3600)).await.unwrap().is_empty());
    let old = fixture.log.ended_before(Duration::ZERO).await.unwrap();
    assert_eq!(old, [closed, failed], "by the age of a failed session's last event, too");
    for session in [closed, failed] {
        purge(session).await.unwrap();
        assert!(matches!(fixture.log.row(session).await, Err(Error::NotFound)));
        assert!(fixture.events(session).await.is_empty());
        assert!(matches!(purge(session).await, Err(Error::NotFound)));
    }
    assert!(!fixture.events(open).await.is_empty(), "of others nothing is removed");
}
