//! The rows of the sandboxes that the server runs: the session and the state of each.
//!
//! A sandbox is starting, running, stopping, and then its row is deleted. Each change is one write together with the
//! events that report it, and it applies only in the state that it starts from. When two nodes try the same change, one
//! succeeds, and the other is refused and nothing of its write is applied. The container itself is created or removed
//! between two changes, by the node that made the first one. Meanwhile that node keeps the row busy. When it stops
//! doing so, another node may claim the row and carry on.

use super::append::sqlite::{During, append_events};
use super::{Id, Log, of_word};
use crate::Error;
use crate::db::sql::{self, Connection, Sql, millis, sql};
use crate::feed::LogStatus;
use engine::event::{Event, NewEvent};
use engine::ids::{KeyId, SandboxId, SessionId};
use std::sync::Arc;
use std::time::Duration;

/// How long a row belongs to the node that works on it, after that node has last renewed its claim.
pub const BUSY: Duration = Duration::from_secs(15);

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    /// Its container is being created.
    Starting,
    /// Commands can be run in it.
    Running,
    /// Its container is being removed.
    Stopping,
}

impl SandboxState {
    const ALL: [Self; 3] = [Self::Starting, Self::Running, Self::Stopping];

    /// The text that is stored and that the admin API shows.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
        }
    }

    fn parse(text: &str) -> Result<Self, Error> {
        of_word("sandbox state", &Self::ALL, Self::as_str, text)
    }
}

/// The row of a sandbox.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// Its id. Its container is named by it.
    pub id: SandboxId,
    /// The session it belongs to.
    pub session: SessionId,
    /// The client that started it.
    pub key: KeyId,
    /// Its image.
    pub image: String,
    /// Its state.
    pub state: SandboxState,
    /// Why it is being stopped.
    pub reason: Option<String>,
}

/// A change of a sandbox's state.
#[derive(Debug, Clone)]
pub enum SandboxChange {
    /// The sandbox is about to be started. Refused with `Duplicate` while another one of the session starts or runs.
    Start {
        /// The client that starts it.
        key: KeyId,
        /// The image from which it is started.
        image: String,
    },
    /// It was starting and is running now.
    Running,
    /// It was running and is about to be stopped.
    Stop {
        /// The reason, for the events.
        reason: &'static str,
    },
    /// It was in this state and does not exist any more.
    Gone(SandboxState),
}

const INSERT: Sql = sql!(
    "INSERT INTO sandboxes (id, session, client_key, image, state, busy_until, created_at) \
     VALUES ($1, $2, $3, $4, 'starting', ",
    now,
    " + $5, ",
    now,
    ")"
);
const RUNNING: Sql = sql!("UPDATE sandboxes SET state = 'running' WHERE id = $1 AND state = 'starting'");
const STOP: Sql = sql!(
    "UPDATE sandboxes SET state = 'stopping', reason = $2, busy_until = ",
    now,
    " + $3 WHERE id = $1 AND state = 'running'"
);
const GONE: Sql = sql!("DELETE FROM sandboxes WHERE id = $1 AND state = $2");
const OF_SESSION: Sql = sql!(
    "SELECT id, session, client_key, image, state, reason FROM sandboxes WHERE session = $1 ORDER BY created_at, id"
);
const ALL: Sql = sql!("SELECT id, session, client_key, image, state, reason FROM sandboxes ORDER BY created_at, id");
/// Sandboxes that some node has to deal with: a change was left unfinished, or their session has ended.
const UNATTENDED: Sql = sql!(
    "SELECT b.id, b.session, b.client_key, b.image, b.state, b.reason FROM sandboxes b JOIN sessions s ON s.id = b.session \
     WHERE b.busy_until < ",
    now,
    " AND (b.state <> 'running' OR s.state IN ('closed', 'error')) ORDER BY b.busy_until LIMIT 100"
);
const KEEP_BUSY: Sql = sql!("UPDATE sandboxes SET busy_until = ", now, " + $2 WHERE id = $1");
const CLAIM: Sql = sql!("UPDATE sandboxes SET busy_until = ", now, " + $2 WHERE id = $1 AND busy_until < ", now);

impl Sandbox {
    fn read(row: &sql::Row) -> Result<Self, Error> {
        Ok(Self {
            id: SandboxId::read(row, "id")?,
            session: SessionId::read(row, "session")?,
            key: KeyId::read(row, "client_key")?,
            image: row.get("image")?,
            state: SandboxState::parse(row.get("state")?)?,
            reason: row.get("reason")?,
        })
    }
}

impl Log {
    /// Changes a sandbox's state and appends the events that report it, if there are any. Returns the events as
    /// committed.
    ///
    /// # Errors
    /// `PreconditionFailed` when the sandbox is not in the state that the change starts from; `Duplicate` when the
    /// session has another sandbox; `NotOpen` when events cannot be appended (a start needs an open session, the other
    /// changes are also possible while it is being closed); or an error of the database.
    pub async fn change_sandbox(
        &self,
        session: SessionId,
        id: SandboxId,
        change: SandboxChange,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Arc<Event>>, Error> {
        let feeds = Arc::clone(&self.feeds);
        let publish = move |events: &Vec<Arc<Event>>| feeds.publish(session, events, LogStatus::Open, None);
        self.db
            .write(
                move |c| {
                    Box::pin(async move {
                        let during = match change {
                            SandboxChange::Start { .. } => During::Open,
                            SandboxChange::Running | SandboxChange::Stop { .. } | SandboxChange::Gone(_) => {
                                During::OpenOrClosing
                            }
                        };
                        let committed = append_events(c, session, &events, during).await?;
                        apply(c, session, id, change).await?;
                        Ok(committed)
                    })
                },
                publish,
            )
            .await
    }

    /// The sandboxes of a session, in the order in which they were started. At most one of them starts or runs.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandboxes_of(&self, session: SessionId) -> Result<Vec<Sandbox>, Error> {
        let rows = self.db.read(&OF_SESSION).bind(session.0.as_slice()).all().await?;
        rows.iter().map(Sandbox::read).collect()
    }

    /// All sandboxes, in the order in which they were started.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sandboxes(&self) -> Result<Vec<Sandbox>, Error> {
        self.db.read(&ALL).all().await?.iter().map(Sandbox::read).collect()
    }

    /// Sandboxes of which a node left a change unfinished, or whose session has ended: at most 100, the oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn unattended_sandboxes(&self) -> Result<Vec<Sandbox>, Error> {
        self.db.read(&UNATTENDED).all().await?.iter().map(Sandbox::read).collect()
    }

    /// Renews this node's claim on a sandbox's row for [`BUSY`].
    ///
    /// # Errors
    /// When the database fails.
    pub async fn keep_sandbox_busy(&self, id: SandboxId) -> Result<(), Error> {
        self.db.execute(&KEEP_BUSY, move |q| q.bind(id.0.to_vec()).bind(millis(BUSY))).await.map(drop)
    }

    /// Claims a sandbox that no node works on. Returns whether this node has claimed it, for [`BUSY`].
    ///
    /// # Errors
    /// When the database fails.
    pub async fn claim_sandbox(&self, id: SandboxId) -> Result<bool, Error> {
        Ok(self.db.execute(&CLAIM, move |q| q.bind(id.0.to_vec()).bind(millis(BUSY))).await? > 0)
    }
}

async fn apply(c: &mut Connection, session: SessionId, id: SandboxId, change: SandboxChange) -> Result<(), Error> {
    let changed = match change {
        SandboxChange::Start { key, image } => {
            c.query(&INSERT)
                .bind(id.0.as_slice())
                .bind(session.0.as_slice())
                .bind(key.0.as_slice())
                .bind(image)
                .bind(millis(BUSY))
                .execute()
                .await?
        }
        SandboxChange::Running => c.query(&RUNNING).bind(id.0.as_slice()).execute().await?,
        SandboxChange::Stop { reason } => {
            c.query(&STOP).bind(id.0.as_slice()).bind(reason).bind(millis(BUSY)).execute().await?
        }
        SandboxChange::Gone(from) => c.query(&GONE).bind(id.0.as_slice()).bind(from.as_str()).execute().await?,
    };
    if changed == 0 { Err(Error::PreconditionFailed) } else { Ok(()) }
}
