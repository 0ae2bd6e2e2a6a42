//! Profiles, keys, and what they open.

use crate::fixture::{Fixture, event, fields};
use coordinator::accounts::{Client, ClientKey, Digest, Revoked, SessionClient, State};
use coordinator::log::{self, Side};
use coordinator::{Error, fresh_id};
use engine::event::EventType;
use engine::ids::{EventId, KeyId, ProfileId, SessionId};
use engine::time::UnixMillis;

fn digest(byte: u8) -> Digest {
    Digest([byte; 32])
}

async fn key(fixture: &Fixture, profile: ProfileId, byte: u8) -> ClientKey {
    fixture.accounts.create_key("k".into(), "bae_1234".into(), digest(byte), profile).await.unwrap()
}

/// Gives a client a session key.
async fn join(fixture: &Fixture, session: SessionId, key: KeyId, byte: u8) {
    let side = Side::Join { declarations: "{}".into(), digest: [byte; 32] };
    fixture.log.append_free(session, key, vec![event(key, EventType::SessionJoin)], side).await.unwrap();
}

pub(super) async fn profiles_are_made_read_replaced_and_deleted(fixture: &Fixture) {
    let accounts = &fixture.accounts;
    let made = accounts.create_profile(fields("a")).await.unwrap();
    assert_eq!(accounts.profile(made.id).await.unwrap(), made);
    assert!(matches!(accounts.create_profile(fields("a")).await, Err(Error::Duplicate)));

    let other = accounts.create_profile(fields("b")).await.unwrap();
    assert!(matches!(accounts.replace_profile(other.id, fields("a")).await, Err(Error::Duplicate)));
    let mut changed = fields("b2");
    changed.allowed_tools = vec![];
    let replaced = accounts.replace_profile(other.id, changed.clone()).await.unwrap();
    assert_eq!((replaced.fields.clone(), replaced.created_at), (changed, other.created_at));
    assert!(replaced.updated_at >= other.updated_at);
    assert_eq!(accounts.profile(other.id).await.unwrap(), replaced);

    let unknown = ProfileId(fresh_id());
    assert!(matches!(accounts.profile(unknown).await, Err(Error::NotFound)));
    assert!(matches!(accounts.replace_profile(unknown, fields("c")).await, Err(Error::NotFound)));
    assert!(matches!(accounts.delete_profile(unknown).await, Err(Error::NotFound)));

    accounts.delete_profile(made.id).await.unwrap();
    assert!(matches!(accounts.profile(made.id).await, Err(Error::NotFound)));
    assert!(matches!(accounts.delete_profile(made.id).await, Err(Error::NotFound)));
    assert_eq!(accounts.profiles(None, 50).await.unwrap(), (vec![replaced], None));
    // D11: the name of a deleted profile is free.
    accounts.create_profile(fields("a")).await.unwrap();
}

pub(super) async fn a_profile_with_active_keys_cannot_be_deleted(fixture: &Fixture) {
    let profile = fixture.accounts.create_profile(fields("a")).await.unwrap().id;
    let made = key(fixture, profile, 1).await;
    assert!(matches!(fixture.accounts.delete_profile(profile).await, Err(Error::PreconditionFailed)));
    fixture.accounts.revoke_key(made.id, || {}).await.unwrap();
    fixture.accounts.delete_profile(profile).await.unwrap();
    let refused = fixture.accounts.create_key("k".into(), "bae_1234".into(), digest(2), profile).await;
    assert!(matches!(refused, Err(Error::NotFound)));
}

pub(super) async fn lists_go_page_by_page_without_gap_or_repetition(fixture: &Fixture) {
    let mut made = Vec::new();
    for number in 0..7 {
        made.push(fixture.accounts.create_profile(fields(&format!("p{number}"))).await.unwrap().id);
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let (profiles, next) = fixture.accounts.profiles(after, 3).await.unwrap();
        assert!(profiles.len() <= 3);
        seen.extend(profiles.iter().map(|p| p.id));
        match next {
            Some(_) => after = next,
            None => break,
        }
    }
    assert_eq!(seen, made);
    // A last page that is exactly full has no next one.
    assert_eq!(fixture.accounts.profiles(None, 7).await.unwrap().1, None);
}

pub(super) async fn a_revoked_key_takes_its_session_keys_along(fixture: &Fixture) {
    let accounts = &fixture.accounts;
    let profile = accounts.create_profile(fields("a")).await.unwrap().id;
    let (first, second) = (key(fixture, profile, 1).await, key(fixture, profile, 2).await);
    let third = key(fixture, profile, 3).await;
    let session = fixture.session_of(profile, third.id, log::State::Open).await;
    join(fixture, session, first.id, 11).await;
    join(fixture, session, second.id, 12).await;

    assert_eq!(accounts.client(digest(1)).await.unwrap(), Some(Client { key: first.id, profile }));
    assert_eq!(accounts.client(digest(11)).await.unwrap(), None, "a session key is no client key");
    assert_eq!(accounts.session_client(digest(11)).await.unwrap(), Some(SessionClient { session, key: first.id }));
    assert_eq!(accounts.session_client(digest(1)).await.unwrap(), None, "a client key is no session key");

    let (told, heard) = std::sync::mpsc::channel();
    let revoked = accounts.revoke_key(first.id, move || told.send(()).unwrap()).await.unwrap();
    assert_eq!(revoked, Revoked::Now);
    heard.try_recv().unwrap();
    assert_eq!(accounts.client(digest(1)).await.unwrap(), None);
    assert_eq!(accounts.session_client(digest(11)).await.unwrap(), None);
    assert!(accounts.session_client(digest(12)).await.unwrap().is_some(), "another key's session key stays");
    assert_eq!(accounts.keys(None, 50).await.unwrap(), (vec![second, third], None));

    assert_eq!(accounts.revoke_key(first.id, || {}).await.unwrap(), Revoked::Before);
    assert!(matches!(accounts.revoke_key(KeyId(fresh_id()), || {}).await, Err(Error::NotFound)));
}

pub(super) async fn use_is_noted_at_most_once_a_minute(fixture: &Fixture) {
    let profile = fixture.accounts.create_profile(fields("a")).await.unwrap().id;
    let made = key(fixture, profile, 1).await;
    let used = async || fixture.accounts.keys(None, 50).await.unwrap().0[0].last_used_at;
    assert_eq!(used().await, None);
    fixture.accounts.keys_used(vec![made.id]).await.unwrap();
    let first = used().await.unwrap();
    assert!(first >= made.created_at);

    let back = async |by: i64| fixture.raw(&format!("UPDATE client_keys SET last_used_at = last_used_at - {by}")).await;
    back(30_000).await;
    fixture.accounts.keys_used(vec![made.id]).await.unwrap();
    assert_eq!(used().await, Some(UnixMillis(first.0 - 30_000)), "within the minute");
    back(30_000).await;
    fixture.accounts.keys_used(vec![made.id]).await.unwrap();
    assert!(used().await.unwrap() >= first, "after it");
}

pub(super) async fn one_admin_key_is_made_however_many_try(fixture: &Fixture) {
    assert_eq!(fixture.accounts.admin_key().await.unwrap(), None);
    let tries = (1..=8).map(|byte| {
        let accounts = fixture.accounts.clone();
        tokio::spawn(async move { (byte, accounts.set_first_admin_key(digest(byte)).await.unwrap()) })
    });
    let mut winners = Vec::new();
    for attempt in tries.collect::<Vec<_>>() {
        let (byte, won) = attempt.await.unwrap();
        winners.extend(won.then_some(byte));
    }
    let [winner] = winners[..] else { panic!("winners: {winners:?}") };
    assert_eq!(fixture.accounts.admin_key().await.unwrap(), Some(digest(winner)));
    fixture.accounts.replace_admin_key(digest(9)).await.unwrap();
    assert_eq!(fixture.accounts.admin_key().await.unwrap(), Some(digest(9)));
}

pub(super) async fn a_closing_session_is_listed_as_closed(fixture: &Fixture) {
    let profile = fixture.profile().await;
    let key = fixture.key(profile).await;
    let mut made = Vec::new();
    for state in ["open", "closing", "closed", "error", "closing", "open"] {
        let first = if state == "error" { log::State::Error } else { log::State::Open };
        let session = fixture.session_of(profile, key, first).await;
        if state.starts_with("clos") {
            fixture.log.begin_close(session, key, "client_close").await.unwrap();
        }
        if state == "closed" {
            fixture.log.finish_close(session, EventId(fresh_id())).await.unwrap();
        }
        made.push(session);
    }
    let ids = async |state: Option<State>, limit| {
        let (sessions, next) = fixture.accounts.sessions(state, None, limit).await.unwrap();
        for session in &sessions {
            assert!(state.is_none_or(|s| s == session.state));
            assert_eq!((session.client_version.as_deref(), session.profile), (Some("1.0"), profile));
            assert_eq!(session.closed_at.is_some(), session.id == made[2]);
        }
        (sessions.iter().map(|s| s.id).collect::<Vec<_>>(), next)
    };
    assert_eq!(ids(None, 50).await, (made.clone(), None));
    assert_eq!(ids(Some(State::Open), 50).await.0, [made[0], made[5]]);
    assert_eq!(ids(Some(State::Error), 50).await.0, [made[3]]);
    assert_eq!(ids(Some(State::Closed), 50).await.0, [made[1], made[2], made[4]]);
    assert_eq!(ids(Some(State::Closed), 2).await, (vec![made[1], made[2]], Some(made[2])));
}

/// However the two meet: afterwards there is no active key of a deleted profile.
pub(super) async fn no_key_is_made_for_a_profile_that_is_just_deleted(fixture: &Fixture) {
    for round in 0..20 {
        let profile = fixture.profile().await;
        let accounts = fixture.accounts.clone();
        let deletes = tokio::spawn(async move { accounts.delete_profile(profile).await });
        let made = fixture.accounts.create_key("k".into(), "bae_1234".into(), digest(100 + round), profile).await;
        let deleted = deletes.await.unwrap();
        match (&made, &deleted) {
            (Ok(_), Err(Error::PreconditionFailed)) | (Err(Error::NotFound), Ok(())) => {}
            both => panic!("{both:?}"),
        }
    }
}
