//! Who a request is from: the bearer token, looked up by its digest, before any body is read.
//!
//! What was found is remembered for a second at most, so a key revoked on another node stops here within it. A revocation on
//! this node is noticed at once: [`Auth::forget`] also keeps a lookup that is under way from being remembered.

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

/// How long what was found may be served, from before the database was asked.
const FRESH: Duration = Duration::from_secs(1);
/// Principals that are remembered at most.
const REMEMBERED: usize = 10_000;
/// How often a key's use is written.
const USE_STEP: Duration = Duration::from_secs(60);

/// Authentication on the client port. Clones share their memory.
#[derive(Clone)]
pub(crate) struct Auth {
    accounts: Accounts,
    memory: Arc<Mutex<Memory>>,
    used: Arc<Notify>,
}

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
    principals: HashMap<Digest, (Principal, Instant)>,
    /// Moves with every revocation: what was looked up before it may be outdated.
    revocations: u64,
    /// Keys whose use is still to be written, and when the others' was.
    to_write: HashSet<KeyId>,
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

    /// Notes a use. Whether it has to be written.
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

    /// The client key that a request shows.
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

    /// The client key behind the session key that a request shows, if it is for this session.
    ///
    /// # Errors
    /// `unauthorized`; `unavailable` when it cannot be decided.
    pub(crate) async fn session(&self, headers: &HeaderMap, session: SessionId) -> Result<KeyId, Problem> {
        let client = self.any_session(headers).await?;
        if client.session == session { Ok(client.key) } else { Err(Problem::invalid_session_key()) }
    }

    /// The session key that a request shows, whatever session it is for: to refuse requests for malformed session ids alike.
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

    /// Drops all that is remembered of a client key. To be called right after the commit of its revocation.
    pub(crate) fn forget(&self, key: KeyId) {
        let mut memory = self.memory();
        memory.revocations += 1;
        memory.principals.retain(|_, (principal, _)| principal.key() != key);
        memory.to_write.remove(&key);
    }

    /// Writes when keys were used, each at most once a minute, until the stop; then once more.
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

    /// Remembers what a lookup found, unless a key was revoked since it began: it might be that one.
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
        // Nothing in here can be left half-done by a panic.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The token of `Authorization: Bearer <token>`; `bearer` is accepted too. None for an absent or empty one.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let token = value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer "))?.trim();
    (!token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests;
