//! Sessions' rows: made, joined, owned, closed.

use super::append::{Inserted, insert};
use super::{Id, Log, now, read_json};
use crate::Error;
use engine::event::{Event, EventType, NewEvent};
use engine::ids::{CallId, EventId, KeyId, ProfileId, SessionId};
use engine::open::Compaction;
use engine::toolbox::McpTool;
use engine::tools::Declarations;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use std::sync::Arc;

/// Version of the internal forms this program writes and the newest it reads.
const VERSION: i64 = 1;

/// Whether a session takes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It does.
    Open,
    /// It is being closed; shown as closed.
    Closing,
    /// It was closed.
    Closed,
    /// It has failed.
    Error,
}

impl State {
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "open" => Ok(State::Open),
            "closing" => Ok(State::Closing),
            "closed" => Ok(State::Closed),
            "error" => Ok(State::Error),
            other => Err(Error::Unreadable(format!("unknown session state {other:?}; a newer version wrote it"))),
        }
    }

    /// The word clients see.
    pub fn shown(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Closing | State::Closed => "closed",
            State::Error => "error",
        }
    }
}

/// Whether a call runs, or holds the gate while its client works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The gate is free.
    Idle,
    /// This call runs; so many owners were lost since its last append.
    Running(CallId, u32),
    /// The gate is kept for this client, for so many milliseconds more by the database's clock (negative: expired).
    Paused(KeyId, i64),
}

/// A session's row as its owner needs it.
#[derive(Debug, Clone)]
pub struct Row {
    /// Whether it takes calls.
    pub state: State,
    /// The newest owner's.
    pub epoch: i64,
    /// Number of the newest event.
    pub head: u64,
    /// What its gate looks like.
    pub phase: Phase,
}

/// What the checks before the gate need to know.
#[derive(Debug, Clone, Copy)]
pub struct Admission {
    /// Whether it takes calls.
    pub state: State,
    /// Whether the caller is a registered driver.
    pub driver: bool,
}

/// What a turn of a client needs beside the log.
#[derive(Debug, Clone)]
pub struct Record {
    /// The profile.
    pub profile: ProfileId,
    /// Its name.
    pub profile_name: String,
    /// Whether it was deleted.
    pub deleted: bool,
    /// Name of the primary provider.
    pub primary: String,
    /// Names of the fallbacks.
    pub fallbacks: Vec<String>,
    /// Images it allows.
    pub available_sandboxes: Vec<String>,
    /// Client tools it allows.
    pub allowed_tools: Vec<String>,
    /// What the client declared.
    pub declarations: Declarations,
    /// The session's MCP tools.
    pub mcp_tools: Vec<McpTool>,
    /// The session's setting.
    pub compaction: Compaction,
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

const ROW: &str = concat!(
    "SELECT state, epoch, head, phase, call, owner, deadline, takeovers, version, ",
    now!(),
    " AS now FROM sessions WHERE id = $1"
);
const TAKE: &str = concat!(
    "UPDATE sessions SET epoch = epoch + 1, takeovers = takeovers + (phase = 'running' AND handed_over = 0), handed_over = 0 \
     WHERE id = $1 AND epoch = $2 AND state = 'open' \
     RETURNING state, epoch, head, phase, call, owner, deadline, takeovers, version, ",
    now!(),
    " AS now"
);
const RECORD: &str = "SELECT s.profile, s.compaction, s.mcp_tools, c.declarations, p.name, p.primary_provider, \
     p.fallback_providers, p.allowed_tools, p.available_sandboxes, p.deleted_at \
     FROM sessions s JOIN profiles p ON p.id = s.profile \
     LEFT JOIN clients c ON c.session = s.id AND c.client_key = $2 WHERE s.id = $1";

impl Row {
    fn read(row: &SqliteRow) -> Result<Self, Error> {
        let version: i64 = row.try_get("version")?;
        if version > VERSION {
            return Err(Error::Unreadable(format!("session version {version}; this program reads up to {VERSION}")));
        }
        let (head, takeovers, now): (i64, i64, i64) =
            (row.try_get("head")?, row.try_get("takeovers")?, row.try_get("now")?);
        let phase = match row.try_get("phase")? {
            "running" => Phase::Running(CallId::read(row, "call")?, takeovers as u32),
            "paused" => Phase::Paused(KeyId::read(row, "owner")?, row.try_get::<i64, _>("deadline")? - now),
            _ => Phase::Idle,
        };
        Ok(Self { state: State::parse(row.try_get("state")?)?, epoch: row.try_get("epoch")?, head: head as u64, phase })
    }
}

impl Log {
    /// Makes a session with its first event.
    ///
    /// # Errors
    /// `Unavailable` with nothing applied.
    pub async fn create(&self, session: NewSession) -> Result<Vec<Arc<Event>>, Error> {
        self.db.write(move |c| Box::pin(async move { create(c, &session).await }), |_: &Vec<Arc<Event>>| ()).await
    }

    /// The session's row.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn row(&self, session: SessionId) -> Result<Row, Error> {
        let row = sqlx::query(ROW).bind(session.0.as_slice()).fetch_optional(self.db.reader()).await?;
        Row::read(&row.ok_or(Error::NotFound)?)
    }

    /// What the checks before the gate need.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn admission(&self, session: SessionId, key: KeyId) -> Result<Admission, Error> {
        let row = sqlx::query(
            "SELECT s.state, c.driver_since FROM sessions s \
             LEFT JOIN clients c ON c.session = s.id AND c.client_key = $2 WHERE s.id = $1",
        )
        .bind(session.0.as_slice())
        .bind(key.0.as_slice())
        .fetch_optional(self.db.reader())
        .await?
        .ok_or(Error::NotFound)?;
        let driver = row.try_get::<Option<i64>, _>("driver_since")?.is_some();
        Ok(Admission { state: State::parse(row.try_get("state")?)?, driver })
    }

    /// What a turn of that client needs.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn record(&self, session: SessionId, key: KeyId) -> Result<Record, Error> {
        let row = sqlx::query(RECORD)
            .bind(session.0.as_slice())
            .bind(key.0.as_slice())
            .fetch_optional(self.db.reader())
            .await?
            .ok_or(Error::NotFound)?;
        let list = |column: &str| read_json::<Vec<String>>(column, row.try_get(column)?);
        let declarations: Option<&str> = row.try_get("declarations")?;
        let declarations = declarations.map(Declarations::load).transpose();
        Ok(Record {
            profile: ProfileId::read(&row, "profile")?,
            profile_name: row.try_get("name")?,
            deleted: row.try_get::<Option<i64>, _>("deleted_at")?.is_some(),
            primary: row.try_get("primary_provider")?,
            fallbacks: list("fallback_providers")?,
            available_sandboxes: list("available_sandboxes")?,
            allowed_tools: list("allowed_tools")?,
            declarations: declarations.map_err(|error| Error::Unreadable(error.to_string()))?.unwrap_or_default(),
            mcp_tools: read_json("mcp_tools", row.try_get("mcp_tools")?)?,
            compaction: read_json("compaction", row.try_get("compaction")?)?,
        })
    }

    /// Client keys that drive the session, sorted.
    ///
    /// # Errors
    /// The database's.
    pub async fn drivers(&self, session: SessionId) -> Result<Vec<KeyId>, Error> {
        let rows = sqlx::query(
            "SELECT c.client_key FROM clients c JOIN client_keys k ON k.id = c.client_key \
             WHERE c.session = $1 AND c.driver_since IS NOT NULL AND k.revoked_at IS NULL ORDER BY c.client_key",
        )
        .bind(session.0.as_slice())
        .fetch_all(self.db.reader())
        .await?;
        rows.iter().map(|row| KeyId::read(row, "client_key")).collect()
    }

    /// Replaces what a client declared.
    ///
    /// # Errors
    /// `NotOpen`; `Unavailable` with nothing applied.
    pub async fn declare(&self, session: SessionId, key: KeyId, declarations: String) -> Result<(), Error> {
        self.db
            .write(
                move |c| {
                    Box::pin(async move {
                        let done = sqlx::query(
                            "UPDATE clients SET declarations = $3 WHERE session = $1 AND client_key = $2 \
                             AND EXISTS (SELECT 1 FROM sessions WHERE id = $1 AND state = 'open')",
                        )
                        .bind(session.0.as_slice())
                        .bind(key.0.as_slice())
                        .bind(declarations)
                        .execute(&mut *c)
                        .await?;
                        match done.rows_affected() {
                            0 => Err(Error::NotOpen(state(c, session).await?.shown())),
                            _ => Ok(()),
                        }
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
    pub async fn take(&self, session: SessionId, seen: i64) -> Result<Row, Error> {
        self.db
            .write(
                move |c| {
                    Box::pin(async move {
                        let row =
                            sqlx::query(TAKE).bind(session.0.as_slice()).bind(seen).fetch_optional(&mut *c).await?;
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
    pub async fn hand_over(&self, session: SessionId, epoch: i64) -> Result<(), Error> {
        self.db
            .write(
                move |c| {
                    Box::pin(async move {
                        sqlx::query("UPDATE sessions SET handed_over = 1 WHERE id = $1 AND epoch = $2")
                            .bind(session.0.as_slice())
                            .bind(epoch)
                            .execute(&mut *c)
                            .await?;
                        Ok(())
                    })
                },
                |()| (),
            )
            .await
    }

    /// The first step of closing: from here on nothing starts and the old owner is fenced off (architecture, I9).
    ///
    /// # Errors
    /// `NotOpen` when it is closed, closing or failed already.
    pub async fn begin_close(&self, session: SessionId, by: KeyId, reason: &'static str) -> Result<(), Error> {
        self.db
            .write(
                move |c| {
                    Box::pin(async move {
                        let done = sqlx::query(
                            "UPDATE sessions SET state = 'closing', epoch = epoch + 1, closing_by = $2, closing_reason = $3 \
                             WHERE id = $1 AND state = 'open'",
                        )
                        .bind(session.0.as_slice())
                        .bind(by.0.as_slice())
                        .bind(reason)
                        .execute(&mut *c)
                        .await?;
                        match done.rows_affected() {
                            0 => Err(Error::NotOpen(state(c, session).await?.shown())),
                            _ => Ok(()),
                        }
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
                move |events: &Vec<Arc<Event>>| feeds.publish(session, events, true, None),
            )
            .await
            .map(drop)
    }

    /// Sessions with a running call or an unfinished closing: what a node that starts has to carry on.
    ///
    /// # Errors
    /// The database's.
    pub async fn unfinished(&self) -> Result<Vec<(SessionId, State)>, Error> {
        let rows = sqlx::query("SELECT id, state FROM sessions WHERE phase = 'running' OR state = 'closing'")
            .fetch_all(self.db.reader())
            .await?;
        rows.iter().map(|row| Ok((SessionId::read(row, "id")?, State::parse(row.try_get("state")?)?))).collect()
    }

    /// What a revoked key leaves behind: its pauses count as expired from now on. Returns the open sessions it had a key
    /// for, and whether an active key of another client remains on each.
    ///
    /// # Errors
    /// `Unavailable` with nothing applied.
    pub async fn forsake(&self, key: KeyId) -> Result<Vec<(SessionId, bool)>, Error> {
        self.db.write(move |c| Box::pin(async move { forsake(c, key).await }), |_| ()).await
    }
}

async fn state(c: &mut SqliteConnection, session: SessionId) -> Result<State, Error> {
    let row = sqlx::query("SELECT state FROM sessions WHERE id = $1")
        .bind(session.0.as_slice())
        .fetch_optional(c)
        .await?
        .ok_or(Error::NotFound)?;
    State::parse(row.try_get("state")?)
}

async fn create(c: &mut SqliteConnection, new: &NewSession) -> Result<Vec<Arc<Event>>, Error> {
    let row = sqlx::query(concat!(
        "INSERT INTO sessions (id, profile, state, head, version, client_version, compaction, mcp_tools, created_at) \
         VALUES ($1, $2, $3, 1, $4, $5, $6, $7, ",
        now!(),
        ") RETURNING created_at"
    ))
    .bind(new.id.0.as_slice())
    .bind(new.profile.0.as_slice())
    .bind(new.state.shown())
    .bind(VERSION)
    .bind(&new.client_version)
    .bind(engine::json::encode(&new.compaction).get())
    .bind(engine::json::encode(&new.mcp_tools).get())
    .fetch_one(&mut *c)
    .await?;
    let now = row.try_get("created_at")?;
    if let Some(digest) = &new.digest {
        add_client(c, new.id, new.key, &new.declarations, digest, now).await?;
    }
    let to = Inserted { session: new.id, epoch: None, call: None, first: 1, now };
    insert(c, to, std::slice::from_ref(&new.event), None).await
}

/// A client comes in: its declarations replace what it had declared before, its earlier session keys stay valid.
pub(super) async fn add_client(
    c: &mut SqliteConnection,
    session: SessionId,
    key: KeyId,
    declarations: &str,
    digest: &[u8; 32],
    now: i64,
) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO clients (session, client_key, declarations) VALUES ($1, $2, $3) \
         ON CONFLICT (session, client_key) DO UPDATE SET declarations = excluded.declarations",
    )
    .bind(session.0.as_slice())
    .bind(key.0.as_slice())
    .bind(declarations)
    .execute(&mut *c)
    .await?;
    sqlx::query("INSERT INTO session_keys (digest, session, client_key, created_at) VALUES ($1, $2, $3, $4)")
        .bind(digest.as_slice())
        .bind(session.0.as_slice())
        .bind(key.0.as_slice())
        .bind(now)
        .execute(c)
        .await?;
    Ok(())
}

async fn finish_close(c: &mut SqliteConnection, session: SessionId, id: EventId) -> Result<Vec<Arc<Event>>, Error> {
    let row = sqlx::query(concat!(
        "UPDATE sessions SET state = 'closed', phase = 'idle', owner = NULL, deadline = NULL, head = head + 1, closed_at = ",
        now!(),
        " WHERE id = $1 AND state = 'closing' RETURNING head, closed_at, closing_by, closing_reason"
    ))
    .bind(session.0.as_slice())
    .fetch_optional(&mut *c)
    .await?;
    let Some(row) = row else { return Ok(Vec::new()) };
    let reason: String = row.try_get("closing_reason")?;
    let key = KeyId::read(&row, "closing_by")?;
    let event = NewEvent::new(id, key, EventType::SessionClose, &serde_json::json!({"reason": reason}));
    let (head, now) = (row.try_get("head")?, row.try_get("closed_at")?);
    let to = Inserted { session, epoch: None, call: None, first: head, now };
    insert(c, to, &[event], None).await
}

async fn forsake(c: &mut SqliteConnection, key: KeyId) -> Result<Vec<(SessionId, bool)>, Error> {
    sqlx::query("UPDATE sessions SET deadline = 0 WHERE phase = 'paused' AND owner = $1 AND state = 'open'")
        .bind(key.0.as_slice())
        .execute(&mut *c)
        .await?;
    let rows = sqlx::query(
        "SELECT DISTINCT s.id, EXISTS (SELECT 1 FROM session_keys o JOIN client_keys k ON k.id = o.client_key \
         WHERE o.session = s.id AND k.revoked_at IS NULL AND k.id <> $1) AS shared \
         FROM session_keys mine JOIN sessions s ON s.id = mine.session WHERE mine.client_key = $1 AND s.state = 'open'",
    )
    .bind(key.0.as_slice())
    .fetch_all(c)
    .await?;
    rows.iter().map(|row| Ok((SessionId::read(row, "id")?, row.try_get("shared")?))).collect()
}
