//! Tests of authentication: how tokens are read from headers, who is let in, what is remembered for a second, and when
//! a revocation takes effect.

use super::*;
use crate::secret::visible_prefix;
use coordinator::Db;
use coordinator::accounts::{ClientKey, ProfileFields};
use secrecy::{ExposeSecret, SecretString};
use std::path::PathBuf;

struct Place {
    dir: PathBuf,
    db: Db,
    accounts: Accounts,
    auth: Auth,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Place {
    async fn new() -> (Self, ClientKey, SecretString) {
        let dir = std::env::temp_dir().join(format!("bae-auth-{}", uuid::Uuid::now_v7().simple()));
        let db = Db::open(&dir.join("bae.db")).await.unwrap();
        let accounts = Accounts::new(db.clone());
        let fields = ProfileFields {
            name: "a".into(),
            primary_provider: "main".into(),
            fallback_providers: vec![],
            mcp_servers: vec![],
            allowed_tools: vec![],
            available_sandboxes: vec![],
        };
        let profile = accounts.create_profile(fields).await.unwrap().id;
        let secret = Kind::Client.generate().unwrap();
        let made = accounts.create_key("k".into(), visible_prefix(&secret), digest(secret.expose_secret()), profile);
        let key = made.await.unwrap();
        (Self { dir, db, auth: Auth::new(accounts.clone()), accounts }, key, secret)
    }
}

fn headers(value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, value.parse().unwrap());
    headers
}

#[test]
fn tokens_are_found_in_headers() {
    let cases = [
        ("Bearer abc", Some("abc")),
        ("bearer abc", Some("abc")),
        ("Bearer  abc ", Some("abc")),
        ("BEARER abc", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("", None),
        ("Basic abc", None),
        ("abc", None),
    ];
    for (value, token) in cases {
        assert_eq!(bearer(&headers(value)), token, "{value}");
    }
    assert_eq!(bearer(&HeaderMap::new()), None);
}

#[tokio::test]
async fn only_the_key_itself_opens() {
    let (place, key, secret) = Place::new().await;
    let client = place.auth.client(&headers(&format!("Bearer {}", secret.expose_secret()))).await.unwrap();
    assert_eq!((client.key, client.profile), (key.id, key.profile));

    let other = Kind::Client.generate().unwrap();
    for bad in [other.expose_secret(), "bae_x", "x", &secret.expose_secret()[..51]] {
        let problem = place.auth.client(&headers(&format!("Bearer {bad}"))).await.unwrap_err();
        assert_eq!((problem.status().as_u16(), problem.detail()), (401, "invalid or revoked client key"), "{bad}");
    }
    let problem = place.auth.client(&HeaderMap::new()).await.unwrap_err();
    assert_eq!(problem.slug(), "unauthorized");
    let as_session =
        place.auth.session(&headers(&format!("Bearer {}", secret.expose_secret())), SessionId([1; 16])).await;
    assert_eq!(as_session.unwrap_err().detail(), "invalid or revoked session key");
}

#[tokio::test]
async fn what_cannot_be_decided_is_no_refusal() {
    let (place, _, secret) = Place::new().await;
    place.db.close().await;
    let problem = place.auth.client(&headers(&format!("Bearer {}", secret.expose_secret()))).await.unwrap_err();
    assert_eq!((problem.status().as_u16(), problem.slug()), (503, "unavailable"));
    // What cannot be a key needs no database.
    assert_eq!(place.auth.client(&headers("Bearer x")).await.unwrap_err().status().as_u16(), 401);
}

#[tokio::test]
async fn a_revoked_key_is_refused_at_once_where_it_was_revoked_and_soon_elsewhere() {
    let (place, key, secret) = Place::new().await;
    let shown = headers(&format!("Bearer {}", secret.expose_secret()));
    let other_node = Auth::new(place.accounts.clone());
    place.auth.client(&shown).await.unwrap();
    other_node.client(&shown).await.unwrap();

    let auth = place.auth.clone();
    place.accounts.revoke_key(key.id, move || auth.forget(key.id)).await.unwrap();
    let revoked_at = Instant::now();
    assert_eq!(place.auth.client(&shown).await.unwrap_err().status().as_u16(), 401);
    while other_node.client(&shown).await.is_ok() {
        assert!(revoked_at.elapsed() < Duration::from_millis(1500), "still served");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_was_looked_up_before_a_revocation_is_not_remembered() {
    let (place, key, secret) = Place::new().await;
    let digest = digest(secret.expose_secret());
    let (asked, before) = (Instant::now(), place.auth.memory().revocations);
    let found = Principal::Client(place.accounts.client(digest).await.unwrap().unwrap());
    place.auth.forget(key.id);
    place.auth.remember_unless_revoked(digest, found, asked, before);
    assert!(place.auth.memory().recall(&digest, asked).is_none());
    let now = place.auth.memory().revocations;
    place.auth.remember_unless_revoked(digest, found, asked, now);
    assert!(place.auth.memory().recall(&digest, asked).is_some());
}

#[test]
fn memory_is_bounded_and_forgets_after_a_second() {
    let mut memory = Memory::default();
    let client = Principal::Client(Client { key: KeyId([1; 16]), profile: engine::ids::ProfileId([2; 16]) });
    let start = Instant::now();
    for number in 0..REMEMBERED as u32 + 10 {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        memory.remember(Digest(bytes), client, start);
        assert!(memory.principals.len() <= REMEMBERED);
    }
    memory.remember(Digest([7; 32]), client, start);
    assert!(memory.recall(&Digest([7; 32]), start + FRESH / 2).is_some());
    assert!(memory.recall(&Digest([7; 32]), start + FRESH).is_none());
    assert!(memory.recall(&Digest([7; 32]), start).is_none(), "dropped when it was found old");
}

#[tokio::test]
async fn uses_are_written_by_the_task() {
    let (place, _, secret) = Place::new().await;
    let stop = CancellationToken::new();
    let auth = place.auth.clone();
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { auth.write_uses(stop).await }
    });
    place.auth.client(&headers(&format!("Bearer {}", secret.expose_secret()))).await.unwrap();
    stop.cancel();
    task.await.unwrap();
    assert!(place.accounts.keys(None, 50).await.unwrap().0[0].last_used_at.is_some());
}
