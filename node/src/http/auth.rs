//! Authentication on the client port: it finds the client key behind the bearer token of a request.
//!
//! Owns a cache of the keys that were looked up lately, and the list of keys whose last use has to be written. Handlers
//! ask before they read a body. An entry of the cache is valid for one second, counted from before the database was
//! asked, so a key that was revoked on another node is refused here within a second. A revocation made on this node
//! takes effect at once: [`Auth::forget`] drops the key's entries, and it keeps the result of a lookup that is under
//! way out of the cache.

use crate::http::problem::Problem;
use crate::secret::{Digest, Kind, digest};
use axum::http::{HeaderMap, header};
use coordinator::accounts::{Accounts, Client, SessionClient};
use engine::ids::{KeyId, SessionId};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long an entry of the cache is valid, counted from before the database was asked.
const FRESH: Duration = Duration::from_secs(1);
/// Entries of each table of the cache at most.
const REMEMBERED: usize = 10_000;
/// The last use of one key is written at most this often.
const USE_STEP: Duration = Duration::from_secs(60);

/// Authentication on the client port. Clones share one cache.
#[derive(Clone)]
pub(crate) struct Auth {
    accounts: Accounts,
    memory: Arc<Mutex<Memory>>,
    used: Arc<Notify>,
}

/// Who a token belongs to.
#[derive(Debug, Clone, Copy)]
enum Principal {
    Client(Client),
    Session(SessionClient),
}

impl Principal {
    fn key(self) -> KeyId {
        match self {
            Principal::Client(client) => client.key,
            Principal::Session(client) => client.key,
        }
    }
}

#[derive(Default)]
struct Memory {
    /// What was found for a token's digest, and when the lookup began.
    principals: HashMap<Digest, (Principal, Instant)>,
    /// Counts revocations. A lookup that began at another count may have found a key that is revoked now.
    revocations: u64,
    /// Keys whose last use still has to be written to the database.
    to_write: HashSet<KeyId>,
    /// When the last use of a key was noted for writing.
    written: HashMap<KeyId, Instant>,
}

impl Memory {
    fn recall(&mut self, digest: &Digest, now: Instant) -> Option<Principal> {
        let (principal, asked) = *self.principals.get(digest)?;
        if now.duration_since(asked) < FRESH {
            return Some(principal);
        }
        self.principals.remove(digest);
        None
    }

    fn remember(&mut self, digest: Digest, principal: Principal, asked: Instant) {
        if self.principals.len() >= REMEMBERED {
            self.principals.retain(|_, (_, asked)| asked.elapsed() < FRESH);
        }
        if self.principals.len() >= REMEMBERED {
            self.principals.clear();
        }
        self.principals.insert(digest, (principal, asked));
    }

    /// Notes that a key was used. Returns whether its use has to be written now.
    fn note(&mut self, key: KeyId, now: Instant) -> bool {
        if self.written.get(&key).is_some_and(|at| now.duration_since(*at) < USE_STEP) {
            return false;
        }
        if self.written.len() >= REMEMBERED {
            self.written.retain(|_, at| now.duration_since(*at) < USE_STEP);
        }
        if self.written.len() >= REMEMBERED {
            self.written.clear();
        }
        self.written.insert(key, now);
        self.to_write.insert(key)
    }
}

impl Auth {
    /// Authentication against these accounts.
    pub(crate) fn new(accounts: Accounts) -> Self {
        Self { accounts, memory: Arc::default(), used: Arc::default() }
    }

    /// The client key in a request's headers.
    ///
    /// # Errors
    /// `unauthorized`; `unavailable` when it cannot be decided.
    pub(crate) async fn client(&self, headers: &HeaderMap) -> Result<Client, Problem> {
        let token = bearer(headers).ok_or_else(|| Problem::missing_key("<key>"))?;
        if Kind::Client.matches(token)
            && let Some(Principal::Client(client)) = self.principal(Kind::Client, digest(token)).await?
        {
            return Ok(client);
        }
        Err(Problem::invalid_client_key())
    }

    /// The client key behind the session key in a request's headers. A key of another session is refused.
    ///
    /// # Errors
    /// `unauthorized`; `unavailable` when it cannot be decided.
    pub(crate) async fn session(&self, headers: &HeaderMap, session: SessionId) -> Result<KeyId, Problem> {
        let client = self.any_session(headers).await?;
        if client.session == session { Ok(client.key) } else { Err(Problem::invalid_session_key()) }
    }

    /// The session and the client key behind the session key in a request's headers.
    ///
    /// # Errors
    /// `unauthorized`; `unavailable` when it cannot be decided.
    pub(crate) async fn any_session(&self, headers: &HeaderMap) -> Result<SessionClient, Problem> {
        let token = bearer(headers).ok_or_else(|| Problem::missing_key("<key>"))?;
        if Kind::Session.matches(token)
            && let Some(Principal::Session(client)) = self.principal(Kind::Session, digest(token)).await?
        {
            return Ok(client);
        }
        Err(Problem::invalid_session_key())
    }

    /// Removes a client key from the cache. Must be called right after its revocation was committed.
    pub(crate) fn forget(&self, key: KeyId) {
        let mut memory = self.memory();
        memory.revocations += 1;
        memory.principals.retain(|_, (principal, _)| principal.key() != key);
        memory.to_write.remove(&key);
    }

    /// Writes to the database when keys were last used, until `stop`, and once more then. One task of the node runs it.
    pub(crate) async fn write_uses(&self, stop: CancellationToken) {
        loop {
            let stopped = tokio::select! {
                () = self.used.notified() => false,
                () = stop.cancelled() => true,
            };
            let keys: Vec<KeyId> = self.memory().to_write.drain().collect();
            if !keys.is_empty()
                && let Err(error) = self.accounts.keys_used(keys).await
            {
                tracing::warn!(error = %error, "the time of a key's last use was not written");
            }
            if stopped {
                return;
            }
        }
    }

    async fn principal(&self, kind: Kind, digest: Digest) -> Result<Option<Principal>, Problem> {
        let asked = Instant::now();
        let revocations = {
            let mut memory = self.memory();
            if let Some(principal) = memory.recall(&digest, asked) {
                self.note(&mut memory, principal.key(), asked);
                return Ok(Some(principal));
            }
            memory.revocations
        };
        let found = match kind {
            Kind::Client => self.accounts.client(digest).await?.map(Principal::Client),
            Kind::Session => self.accounts.session_client(digest).await?.map(Principal::Session),
            Kind::Admin => None,
        };
        if let Some(principal) = found {
            self.remember_unless_revoked(digest, principal, asked, revocations);
        }
        Ok(found)
    }

    /// Puts the result of a lookup into the cache, unless a key was revoked since it began: it might be this one.
    fn remember_unless_revoked(&self, digest: Digest, principal: Principal, asked: Instant, revocations: u64) {
        let mut memory = self.memory();
        if memory.revocations == revocations {
            memory.remember(digest, principal, asked);
        }
        self.note(&mut memory, principal.key(), asked);
    }

    fn note(&self, memory: &mut Memory, key: KeyId, now: Instant) {
        if memory.note(key, now) {
            self.used.notify_one();
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // No change to it takes several steps, so a panic cannot have left it inconsistent.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The token of `Authorization: Bearer <token>`, or of the same with `bearer`; none if it is absent or empty.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let token = value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer "))?.trim();
    (!token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests;
