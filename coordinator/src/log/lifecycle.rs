//! Sessions' rows, written: made, joined, owned, closed.

use super::append::sqlite::{Inserted, insert};
use super::clients::add_client;
use super::sessions::VERSION;
use super::{Epoch, Id, Log, Row, State};
use crate::Error;
use crate::db::sql::{self, Connection, Sql, sql};
use crate::feed::LogStatus;
use engine::event::payload::SessionClose;
use engine::event::{Event, NewEvent};
use engine::ids::{EventId, KeyId, ProfileId, SessionId};
use engine::open::Compaction;
use engine::toolbox::McpTool;
use std::sync::Arc;

/// Whether clients with an active key remain in a session after a client key was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemainingClients {
    /// Nobody can use the session any more.
    None,
    /// At least one other client can.
    Some,
}

/// A session to be made.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Its id.
    pub id: SessionId,
    /// Its profile.
    pub profile: ProfileId,
    /// Who opens it.
    pub key: KeyId,
    /// `Open`, or `Error` for one that only records why it could not be opened.
    pub state: State,
    /// The client's version.
    pub client_version: Option<String>,
    /// The session's setting.
    pub compaction: Compaction,
    /// What its MCP servers offer.
    pub mcp_tools: Vec<McpTool>,
    /// Stored declarations of the opener.
    pub declarations: String,
    /// Digest of the opener's session key; none where none is issued.
    pub digest: Option<[u8; 32]>,
    /// The first event.
    pub event: NewEvent,
}

const TAKE: Sql = sql!(
    "UPDATE sessions SET epoch = epoch + 1, \
     takeovers = takeovers + CASE WHEN phase = 'running' AND handed_over = 0 THEN 1 ELSE 0 END, handed_over = 0 \
     WHERE id = $1 AND epoch = $2 AND state = 'open' \
     RETURNING state, epoch, head, phase, call, owner, deadline, takeovers, version, ",
    now,
    " AS now"
);
const DECLARE: Sql = sql!(
    "UPDATE clients SET declarations = $3 WHERE session = $1 AND client_key = $2 \
     AND EXISTS (SELECT 1 FROM sessions WHERE id = $1 AND state = 'open')"
);
const HAND_OVER: Sql = sql!("UPDATE sessions SET handed_over = 1 WHERE id = $1 AND epoch = $2");
const BEGIN_CLOSE: Sql = sql!(
    "UPDATE sessions SET state = 'closing', epoch = epoch + 1, closing_by = $2, closing_reason = $3 \
     WHERE id = $1 AND state = 'open'"
);
const FINISH_CLOSE: Sql = sql!(
    "UPDATE sessions SET state = 'closed', phase = 'idle', owner = NULL, deadline = NULL, head = head + 1, closed_at = ",
    now,
    " WHERE id = $1 AND state = 'closing' RETURNING head, closed_at, closing_by, closing_reason"
);
const STATE: Sql = sql!("SELECT state FROM sessions WHERE id = $1");
const CREATE: Sql = sql!(
    "INSERT INTO sessions (id, profile, state, head, version, client_version, compaction, mcp_tools, created_at) \
     VALUES ($1, $2, $3, 1, $4, $5, $6, $7, ",
    now,
    ") RETURNING created_at"
);
const EXPIRE: Sql = sql!("UPDATE sessions SET deadline = 0 WHERE phase = 'paused' AND owner = $1 AND state = 'open'");
const LEFT_BEHIND: Sql = sql!(
    "SELECT DISTINCT s.id, EXISTS (SELECT 1 FROM session_keys o JOIN client_keys k ON k.id = o.client_key \
     WHERE o.session = s.id AND k.revoked_at IS NULL AND k.id <> $1) AS shared \
     FROM session_keys mine JOIN sessions s ON s.id = mine.session WHERE mine.client_key = $1 AND s.state = 'open'"
);

impl Log {
    /// Makes a session with its first event.
    ///
    /// # Errors
    /// `Unavailable` with nothing applied.
    pub async fn create(&self, session: NewSession) -> Result<Vec<Arc<Event>>, Error> {
        self.db.write(move |c| Box::pin(async move { create(c, &session).await }), |_: &Vec<Arc<Event>>| ()).await
    }

    /// Replaces what a client declared.
    ///
    /// # Errors
    /// `NotOpen`; `Unavailable` with nothing applied.
    pub async fn declare(&self, session: SessionId, key: KeyId, declarations: String) -> Result<(), Error> {
        self.db
            .write_one(
                move |c| {
                    Box::pin(async move {
                        let done = c
                            .query(&DECLARE)
                            .bind(session.0.as_slice())
                            .bind(key.0.as_slice())
                            .bind(declarations)
                            .execute()
                            .await?;
                        was_open(c, session, done).await
                    })
                },
                |()| (),
            )
            .await
    }

    /// Becomes the session's owner: the epoch moves on, if it is still the one seen.
    ///
    /// # Errors
    /// `Fenced` when somebody else was faster or the session is not open any more.
    pub async fn take(&self, session: SessionId, seen: Epoch) -> Result<Row, Error> {
        self.db
            .write_one(
                move |c| {
                    Box::pin(async move {
                        let row = c.query(&TAKE).bind(session.0.as_slice()).bind(seen).optional().await?;
                        Row::read(&row.ok_or(Error::Fenced)?)
                    })
                },
                |_| (),
            )
            .await
    }

    /// The owner leaves the running call to the next one on purpose: that takeover will not count as a crash.
    ///
    /// # Errors
    /// `Unavailable` with nothing applied.
    pub async fn hand_over(&self, session: SessionId, epoch: Epoch) -> Result<(), Error> {
        self.db
            .write_one(
                move |c| {
                    Box::pin(async move {
                        c.query(&HAND_OVER).bind(session.0.as_slice()).bind(epoch).execute().await?;
                        Ok(())
                    })
                },
                |()| (),
            )
            .await
    }

    /// The first step of closing: from here on nothing starts and the old owner is fenced off (ARCHITECTURE.md, I9).
    ///
    /// # Errors
    /// `NotOpen` when it is closed, closing or failed already.
    pub async fn begin_close(&self, session: SessionId, by: KeyId, reason: &'static str) -> Result<(), Error> {
        self.db
            .write_one(
                move |c| {
                    Box::pin(async move {
                        let done = c
                            .query(&BEGIN_CLOSE)
                            .bind(session.0.as_slice())
                            .bind(by.0.as_slice())
                            .bind(reason)
                            .execute()
                            .await?;
                        was_open(c, session, done).await
                    })
                },
                |()| (),
            )
            .await
    }

    /// The last step of closing: `session.close` ends the log. Does nothing if that was done already.
    ///
    /// # Errors
    /// `Unavailable` with nothing applied.
    pub async fn finish_close(&self, session: SessionId, event: EventId) -> Result<(), Error> {
        let feeds = Arc::clone(&self.feeds);
        self.db
            .write(
                move |c| Box::pin(async move { finish_close(c, session, event).await }),
                move |events: &Vec<Arc<Event>>| {
                    // Whoever did it tells of the end, and of the event: a stream that learns of the end alone stops before it.
                    if !events.is_empty() {
                        feeds.publish(session, events, LogStatus::Ended, None);
                    }
                },
            )
            .await
            .map(drop)
    }

    /// Lets the pauses of a revoked client key count as expired from now on. Returns the open sessions that the client has a
    /// session key for, and who remains in each.
    ///
    /// # Errors
    /// `Unavailable` with nothing applied.
    pub async fn expire_pauses_of(&self, key: KeyId) -> Result<Vec<(SessionId, RemainingClients)>, Error> {
        self.db.write(move |c| Box::pin(async move { expire_pauses_of(c, key).await }), |_| ()).await
    }
}

/// Fails unless a statement that asks for an open session has changed a row.
async fn was_open(c: &mut Connection, session: SessionId, changed: u64) -> Result<(), Error> {
    match changed {
        0 => Err(Error::NotOpen(state(c, session).await?.public_name())),
        _ => Ok(()),
    }
}

async fn state(c: &mut Connection, session: SessionId) -> Result<State, Error> {
    let row = c.query(&STATE).bind(session.0.as_slice()).optional().await?.ok_or(Error::NotFound)?;
    State::parse(row.get("state")?)
}

async fn create(c: &mut Connection, new: &NewSession) -> Result<Vec<Arc<Event>>, Error> {
    let row = c
        .query(&CREATE)
        .bind(new.id.0.as_slice())
        .bind(new.profile.0.as_slice())
        .bind(new.state.stored())
        .bind(VERSION)
        .bind(&new.client_version)
        .bind(engine::json::encode(&new.compaction).get())
        .bind(engine::json::encode(&new.mcp_tools).get())
        .one()
        .await?;
    let now = row.get("created_at")?;
    if let Some(digest) = &new.digest {
        add_client(c, new.id, new.key, &new.declarations, digest, now).await?;
    }
    let to = Inserted { session: new.id, epoch: None, call: None, first: 1, now };
    insert(c, to, std::slice::from_ref(&new.event), None).await
}

async fn finish_close(c: &mut Connection, session: SessionId, id: EventId) -> Result<Vec<Arc<Event>>, Error> {
    let row = c.query(&FINISH_CLOSE).bind(session.0.as_slice()).optional().await?;
    let Some(row) = row else { return Ok(Vec::new()) };
    let reason: String = row.get("closing_reason")?;
    let key = KeyId::read(&row, "closing_by")?;
    let event = NewEvent::of(id, key, &SessionClose { reason });
    let (head, now) = (row.get("head")?, row.get("closed_at")?);
    let to = Inserted { session, epoch: None, call: None, first: head, now };
    insert(c, to, &[event], None).await
}

async fn expire_pauses_of(c: &mut Connection, key: KeyId) -> Result<Vec<(SessionId, RemainingClients)>, Error> {
    c.query(&EXPIRE).bind(key.0.as_slice()).execute().await?;
    let rows = c.query(&LEFT_BEHIND).bind(key.0.as_slice()).all().await?;
    let affected = |row: &sql::Row| {
        let remaining = if row.get("shared")? { RemainingClients::Some } else { RemainingClients::None };
        Ok((SessionId::read(row, "id")?, remaining))
    };
    rows.iter().map(affected).collect()
}
