//! Writes to the rows of sessions that are not appends of a turn: a session is created, a client changes its
//! declarations, an owner takes or hands over the session, a session is closed.
//!
//! Closing is two writes with the stopping of the running turn between them (ARCHITECTURE.md, I9). Taking a session and
//! beginning to close it both move the epoch, so that what an earlier owner still sends is refused (I1). The owners and
//! the API handlers of the `node` crate call this through [`Log`].

use super::append::sqlite::{Inserted, insert};
use super::clients::add_client;
use super::sessions::VERSION;
use super::{Epoch, Id, Log, Row, State};
use crate::Error;
use crate::db::sql::{self, Connection, Sql, sql};
use crate::feed::LogStatus;
use crate::metrics::metrics;
use engine::event::payload::SessionClose;
use engine::event::{Event, EventNumber, NewEvent};
use engine::ids::{EventId, KeyId, ProfileId, SessionId};
use engine::open::Compaction;
use engine::time::UnixMillis;
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

/// A session that is to be created.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Its id.
    pub id: SessionId,
    /// Its profile.
    pub profile: ProfileId,
    /// The client key that opens it.
    pub key: KeyId,
    /// `Open`, or `Error` for one that only records why it could not be opened.
    pub state: State,
    /// The version that the client says it has.
    pub client_version: Option<String>,
    /// When its history is compacted.
    pub compaction: Compaction,
    /// The tools that its MCP servers offer.
    pub mcp_tools: Vec<McpTool>,
    /// The opening client's declarations in their stored form.
    pub declarations: String,
    /// The digest of the opening client's session key. None if no key is issued.
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
    /// Creates a session with its first event, which is returned as it was committed.
    ///
    /// # Errors
    /// `Unavailable` when nothing was applied.
    pub async fn create(&self, session: NewSession) -> Result<Vec<Arc<Event>>, Error> {
        let opened = u64::from(session.state == State::Open);
        let count = move |events: &Vec<Arc<Event>>| {
            metrics().sessions.add(opened, &[]);
            metrics().committed(events);
        };
        self.db.write(move |c| Box::pin(async move { create(c, &session).await }), count).await
    }

    /// Replaces the declarations of a client.
    ///
    /// # Errors
    /// `NotOpen` when the session is not open; `Unavailable` when nothing was applied.
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

    /// Makes the caller the session's owner: moves the epoch by one, if it is still `seen`. Returns the row with the
    /// new epoch.
    ///
    /// # Errors
    /// `Fenced` when another owner was faster or the session is not open any more.
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

    /// Records that the owner leaves its running call to the next owner on purpose, so that the takeover does not count
    /// as a crash.
    ///
    /// # Errors
    /// `Unavailable` when nothing was applied.
    pub async fn hand_over(&self, session: SessionId, epoch: Epoch) -> Result<(), Error> {
        self.db.execute(&HAND_OVER, move |q| q.bind(session.0.to_vec()).bind(epoch)).await.map(drop)
    }

    /// The first step of closing: from here on no call starts, and the owner's appends are refused (ARCHITECTURE.md,
    /// I9).
    ///
    /// # Errors
    /// `NotOpen` when the session is closed, being closed or failed already.
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

    /// The last step of closing: appends `session.close`, the last event of the log. Does nothing if that was done
    /// already.
    ///
    /// # Errors
    /// `Unavailable` when nothing was applied.
    pub async fn finish_close(&self, session: SessionId, event: EventId) -> Result<(), Error> {
        let feeds = Arc::clone(&self.feeds);
        self.db
            .write(
                move |c| Box::pin(async move { finish_close(c, session, event).await }),
                move |events: &Vec<Arc<Event>>| {
                    // Only the write that appended the event publishes the end, together with the event. A stream that
                    // was told of the end alone would stop before the event.
                    if !events.is_empty() {
                        feeds.publish(session, events, LogStatus::Ended, None);
                    }
                },
            )
            .await
            .map(drop)
    }

    /// Lets the pauses of a revoked client key expire now. Returns the open sessions that the client has a session key
    /// for, and for each whether other clients remain in it.
    ///
    /// # Errors
    /// `Unavailable` when nothing was applied.
    pub async fn expire_pauses_of(&self, key: KeyId) -> Result<Vec<(SessionId, RemainingClients)>, Error> {
        self.db.write(move |c| Box::pin(async move { expire_pauses_of(c, key).await }), |_| ()).await
    }
}

/// Fails with `NotOpen` if a statement that changes only open sessions has changed no row.
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
    let now = UnixMillis(row.get("created_at")?);
    if let Some(digest) = &new.digest {
        add_client(c, new.id, new.key, &new.declarations, digest, now).await?;
    }
    let to = Inserted { session: new.id, epoch: None, call: None, first: EventNumber(1), now };
    insert(c, to, std::slice::from_ref(&new.event), None).await
}

async fn finish_close(c: &mut Connection, session: SessionId, id: EventId) -> Result<Vec<Arc<Event>>, Error> {
    let row = c.query(&FINISH_CLOSE).bind(session.0.as_slice()).optional().await?;
    let Some(row) = row else { return Ok(Vec::new()) };
    let reason: String = row.get("closing_reason")?;
    let key = KeyId::read(&row, "closing_by")?;
    let event = NewEvent::of(id, key, &SessionClose { reason });
    let (head, now) = (EventNumber(row.get("head")?), UnixMillis(row.get("closed_at")?));
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
