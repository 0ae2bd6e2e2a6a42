#![allow(clippy::unwrap_used)]

use super::*;
use crate::fresh_id;
use engine::ids::{KeyId, ProfileId, SessionId};
use std::path::PathBuf;

/// A database file of this test alone, removed at its end.
struct Place {
    dir: PathBuf,
    db: Db,
    accounts: Accounts,
}

impl Place {
    async fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("bae-accounts-{}", uuid::Uuid::now_v7().simple()));
        let db = Db::open(&dir.join("bae.db")).await.unwrap();
        Self { dir, accounts: Accounts::new(db.clone()), db }
    }

    /// Puts a session row in, and a key of it.
    async fn session(&self, profile: ProfileId, state: &'static str) -> SessionId {
        let id = SessionId(fresh_id());
        let insert = "INSERT INTO sessions (id, profile, state, compaction, mcp_tools, client_version, created_at) \
                      VALUES ($1, $2, $3, '{}', '[]', '1.0', 7)";
        self.db
            .write(
                move |c| {
                    Box::pin(async move {
                        sqlx::query(insert).bind(id.0.to_vec()).bind(profile.0.to_vec()).bind(state).execute(c).await?;
                        Ok(())
                    })
                },
                |()| {},
            )
            .await
            .unwrap();
        id
    }

    async fn session_key(&self, digest: Digest, session: SessionId, key: KeyId) -> Result<(), Error> {
        self.db
            .write(move |c| Box::pin(async move { insert_session_key(c, digest, session, key).await }), |()| {})
            .await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn fields(name: &str) -> ProfileFields {
    ProfileFields {
        name: name.into(),
        primary_provider: "main".into(),
        fallback_providers: vec!["second".into()],
        mcp_servers: vec![],
        allowed_tools: vec!["clock \"ünïcode\"".into()],
        available_sandboxes: vec!["image:1".into()],
    }
}

fn digest(byte: u8) -> Digest {
    Digest([byte; 32])
}

async fn key(place: &Place, profile: ProfileId, byte: u8) -> ClientKey {
    place.accounts.create_key("k".into(), "bae_1234".into(), digest(byte), profile).await.unwrap()
}

#[tokio::test]
async fn profiles_are_made_read_replaced_and_deleted() {
    let place = Place::new().await;
    let accounts = &place.accounts;
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

#[tokio::test]
async fn a_profile_with_active_keys_cannot_be_deleted() {
    let place = Place::new().await;
    let profile = place.accounts.create_profile(fields("a")).await.unwrap().id;
    let made = key(&place, profile, 1).await;
    assert!(matches!(place.accounts.delete_profile(profile).await, Err(Error::Refused)));
    place.accounts.revoke_key(made.id, || {}).await.unwrap();
    place.accounts.delete_profile(profile).await.unwrap();
    let refused = place.accounts.create_key("k".into(), "bae_1234".into(), digest(2), profile).await;
    assert!(matches!(refused, Err(Error::NotFound)));
}

#[tokio::test]
async fn lists_go_page_by_page_without_gap_or_repetition() {
    let place = Place::new().await;
    let mut made = Vec::new();
    for number in 0..7 {
        made.push(place.accounts.create_profile(fields(&format!("p{number}"))).await.unwrap().id);
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let (profiles, next) = place.accounts.profiles(after, 3).await.unwrap();
        assert!(profiles.len() <= 3);
        seen.extend(profiles.iter().map(|p| p.id));
        match next {
            Some(_) => after = next,
            None => break,
        }
    }
    assert_eq!(seen, made);
    // A last page that is exactly full has no next one.
    assert_eq!(place.accounts.profiles(None, 7).await.unwrap().1, None);
}

#[tokio::test]
async fn a_revoked_key_takes_its_session_keys_along() {
    let place = Place::new().await;
    let accounts = &place.accounts;
    let profile = accounts.create_profile(fields("a")).await.unwrap().id;
    let (first, second) = (key(&place, profile, 1).await, key(&place, profile, 2).await);
    let session = place.session(profile, "open").await;
    place.session_key(digest(11), session, first.id).await.unwrap();
    place.session_key(digest(12), session, second.id).await.unwrap();

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
    assert_eq!(accounts.keys(None, 50).await.unwrap(), (vec![second], None));

    assert_eq!(accounts.revoke_key(first.id, || {}).await.unwrap(), Revoked::Before);
    assert!(matches!(accounts.revoke_key(KeyId(fresh_id()), || {}).await, Err(Error::NotFound)));
    assert!(matches!(place.session_key(digest(13), session, first.id).await, Err(Error::Refused)));
}

#[tokio::test]
async fn use_is_noted_at_most_once_a_minute() {
    let place = Place::new().await;
    let profile = place.accounts.create_profile(fields("a")).await.unwrap().id;
    let made = key(&place, profile, 1).await;
    let used = async || place.accounts.keys(None, 50).await.unwrap().0[0].last_used_at;
    assert_eq!(used().await, None);
    place.accounts.keys_used(vec![made.id]).await.unwrap();
    let first = used().await.unwrap();
    assert!(first >= made.created_at);

    let back = async |by: i64| {
        let earlier = "UPDATE client_keys SET last_used_at = last_used_at - $1";
        let moved = place.accounts.write(move |c| {
            Box::pin(async move {
                sqlx::query(earlier).bind(by).execute(c).await?;
                Ok(())
            })
        });
        moved.await.unwrap();
    };
    back(30_000).await;
    place.accounts.keys_used(vec![made.id]).await.unwrap();
    assert_eq!(used().await, Some(first - 30_000), "within the minute");
    back(30_000).await;
    place.accounts.keys_used(vec![made.id]).await.unwrap();
    assert!(used().await.unwrap() >= first, "after it");
}

#[tokio::test]
async fn one_admin_key_is_made_however_many_try() {
    let place = Place::new().await;
    assert_eq!(place.accounts.admin_key().await.unwrap(), None);
    let tries = (1..=8).map(|byte| {
        let accounts = place.accounts.clone();
        tokio::spawn(async move { (byte, accounts.set_first_admin_key(digest(byte)).await.unwrap()) })
    });
    let mut winners = Vec::new();
    for attempt in tries.collect::<Vec<_>>() {
        let (byte, won) = attempt.await.unwrap();
        winners.extend(won.then_some(byte));
    }
    let [winner] = winners[..] else { panic!("winners: {winners:?}") };
    assert_eq!(place.accounts.admin_key().await.unwrap(), Some(digest(winner)));
    place.accounts.replace_admin_key(digest(9)).await.unwrap();
    assert_eq!(place.accounts.admin_key().await.unwrap(), Some(digest(9)));
}

#[tokio::test]
async fn a_closing_session_is_listed_as_closed() {
    let place = Place::new().await;
    let profile = place.accounts.create_profile(fields("a")).await.unwrap().id;
    let mut made = Vec::new();
    for state in ["open", "closing", "closed", "error", "closing", "open"] {
        made.push(place.session(profile, state).await);
    }
    let ids = async |state: Option<State>, limit| {
        let (sessions, next) = place.accounts.sessions(state, None, limit).await.unwrap();
        for session in &sessions {
            assert!(state.is_none_or(|s| s == session.state));
            assert_eq!((session.client_version.as_deref(), session.created_at), (Some("1.0"), 7));
        }
        (sessions.iter().map(|s| s.id).collect::<Vec<_>>(), next)
    };
    assert_eq!(ids(None, 50).await, (made.clone(), None));
    assert_eq!(ids(Some(State::Open), 50).await.0, [made[0], made[5]]);
    assert_eq!(ids(Some(State::Error), 50).await.0, [made[3]]);
    assert_eq!(ids(Some(State::Closed), 50).await.0, [made[1], made[2], made[4]]);
    assert_eq!(ids(Some(State::Closed), 2).await, (vec![made[1], made[2]], Some(made[2])));
}
