//! The rows of the remote subagents: the session and the state of each, and the output of those that have ended, until
//! the model has seen it.
//!
//! The turn that launches a subagent logs its start, adds its row, starts its container, and logs that it runs. Its end
//! is one write together with the event that reports it, and only a running subagent can end. So the log reports the
//! end once, even if several nodes notice it or cancel the subagent. Its row is deleted by the append that holds the
//! report for the model ([`super::Append`]).

use super::append::sqlite::{During, append_events};
use super::sandboxes::BUSY;
use super::{Id, Log, of_word};
use crate::Error;
use crate::db::sql::{self, Sql, millis, sql};
use crate::feed::LogStatus;
use engine::event::{Event, NewEvent};
use engine::ids::{KeyId, SessionId, SubagentId};
use engine::subagent::Left;
use std::sync::Arc;

/// The state of a subagent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubagentState {
    /// The log says that it starts, and not yet that it runs.
    Starting,
    /// It runs.
    Running,
    /// It ended with exit code 0.
    Completed,
    /// It ended with another exit code, or its container was lost.
    Failed,
    /// It was ended because it took too long.
    TimedOut,
    /// It was ended by a client, or because its session ended.
    Cancelled,
}

impl SubagentState {
    const ALL: [Self; 6] =
        [Self::Starting, Self::Running, Self::Completed, Self::Failed, Self::TimedOut, Self::Cancelled];

    /// The text that is stored. From `running` on, the status tool shows the same text (docs/api.md 8.6).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it has not ended.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }

    fn parse(text: &str) -> Result<Self, Error> {
        of_word("subagent state", &Self::ALL, Self::as_str, text)
    }
}

/// A subagent that is being launched.
#[derive(Debug, Clone)]
pub struct NewSubagent {
    /// Its id. Its container is named by it.
    pub id: SubagentId,
    /// The session it belongs to.
    pub session: SessionId,
    /// The client in whose turn it is launched.
    pub key: KeyId,
    /// The name of the command-line agent that it runs.
    pub harness: String,
    /// The name of the model that it uses.
    pub model: String,
}

/// The row of a subagent.
#[derive(Debug, Clone)]
pub struct Subagent {
    /// What was launched.
    pub launched: NewSubagent,
    /// Its state.
    pub state: SubagentState,
    /// What it has left, once it has ended.
    pub left: Left,
    /// Whether a node works on it: that node has launched it or deals with its end, and has renewed its claim within
    /// [`BUSY`].
    pub busy: bool,
}

macro_rules! select {
    ($($rest:tt),+) => {
        sql!(
            "SELECT id, session, client_key, harness, model, state, exit_code, stdout, stderr, truncated, reason, detail, \
             busy_until > ",
            now,
            " AS busy FROM subagents WHERE ",
            $($rest),+
        )
    };
}

const ADD: Sql = sql!(
    "INSERT INTO subagents (id, session, client_key, harness, model, state, busy_until, created_at) \
     VALUES ($1, $2, $3, $4, $5, 'starting', ",
    now,
    " + $6, ",
    now,
    ") ON CONFLICT (id) DO NOTHING"
);
const KEEP_BUSY: Sql = sql!("UPDATE subagents SET busy_until = ", now, " + $2 WHERE id = $1");
const RUNS: Sql = sql!("UPDATE subagents SET state = 'running' WHERE id = $1 AND state = 'starting'");
const NOT_LAUNCHED: Sql = sql!("DELETE FROM subagents WHERE id = $1 AND state = 'starting'");
const END: Sql = sql!(
    "UPDATE subagents SET state = $2, exit_code = $3, stdout = $4, stderr = $5, truncated = $6, reason = $7, detail = $8 \
     WHERE id = $1 AND state = 'running'"
);
/// Deletes the row of a subagent whose end is reported to the model; the row of one that has not ended stays.
pub(super) const FORGET: Sql = sql!("DELETE FROM subagents WHERE id = $1 AND state NOT IN ('starting', 'running')");
const FORGET_SESSION: Sql = sql!("DELETE FROM subagents WHERE session = $1");
const OF_SESSION: Sql = select!("session = $1 ORDER BY created_at, id");
const LIVE: Sql = select!("state IN ('starting', 'running') ORDER BY id");
const ENDED_SESSIONS: Sql = sql!(
    "SELECT DISTINCT a.session FROM subagents a JOIN sessions s ON s.id = a.session WHERE s.state IN ('closed', 'error') \
     LIMIT 100"
);
const SAYS_THAT_IT_RUNS: Sql = sql!(
    "SELECT 1 AS one FROM events WHERE session = $1 AND kind = 'session.subagent.running' AND payload LIKE $2 LIMIT 1"
);

impl Subagent {
    fn read(row: &sql::Row) -> Result<Self, Error> {
        Ok(Self {
            launched: NewSubagent {
                id: SubagentId::read(row, "id")?,
                session: SessionId::read(row, "session")?,
                key: KeyId::read(row, "client_key")?,
                harness: row.get("harness")?,
                model: row.get("model")?,
            },
            state: SubagentState::parse(row.get("state")?)?,
            left: Left {
                exit_code: row.get("exit_code")?,
                stdout: row.get("stdout")?,
                stderr: row.get("stderr")?,
                truncated: row.get("truncated")?,
                reason: row.get("reason")?,
                detail: row.get("detail")?,
            },
            busy: row.get("busy")?,
        })
    }
}

impl Log {
    /// Adds the row of a subagent whose start is logged, before its container is created. It is no error if the row
    /// exists.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn add_subagent(&self, new: NewSubagent) -> Result<(), Error> {
        let added = self.db.execute(&ADD, move |q| {
            let q = q.bind(new.id.0.to_vec()).bind(new.session.0.to_vec()).bind(new.key.0.to_vec());
            q.bind(new.harness).bind(new.model).bind(millis(BUSY))
        });
        added.await.map(drop)
    }

    /// Renews the claim of this node, which is launching the subagent, for [`BUSY`].
    ///
    /// # Errors
    /// When the database fails.
    pub async fn keep_subagent_busy(&self, id: SubagentId) -> Result<(), Error> {
        self.db.execute(&KEEP_BUSY, move |q| q.bind(id.0.to_vec()).bind(millis(BUSY))).await.map(drop)
    }

    /// Notes that the log says that the subagent runs. From now on its end may be logged.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn subagent_runs(&self, id: SubagentId) -> Result<(), Error> {
        self.subagent_update(&RUNS, id).await
    }

    /// Deletes the row of a subagent that could not be started and of which nothing is left.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn subagent_not_launched(&self, id: SubagentId) -> Result<(), Error> {
        self.subagent_update(&NOT_LAUNCHED, id).await
    }

    /// Records how a running subagent ended, and appends the event that reports it. `state` is none of the live ones.
    ///
    /// # Errors
    /// `PreconditionFailed` when it does not run, because its end is recorded already or its launch is not complete;
    /// `NotOpen` when the session has ended; or an error of the database.
    pub async fn end_subagent(
        &self,
        session: SessionId,
        id: SubagentId,
        state: SubagentState,
        left: Left,
        event: NewEvent,
    ) -> Result<(), Error> {
        let feeds = Arc::clone(&self.feeds);
        let publish = move |events: &Vec<Arc<Event>>| feeds.publish(session, events, LogStatus::Open, None);
        let written = self.db.write(
            move |c| {
                Box::pin(async move {
                    let committed = append_events(c, session, &[event], During::OpenOrClosing).await?;
                    let ended = c
                        .query(&END)
                        .bind(id.0.as_slice())
                        .bind(state.as_str())
                        .bind(left.exit_code)
                        .bind(left.stdout)
                        .bind(left.stderr)
                        .bind(left.truncated)
                        .bind(left.reason)
                        .bind(left.detail);
                    if ended.execute().await? == 0 { Err(Error::PreconditionFailed) } else { Ok(committed) }
                })
            },
            publish,
        );
        written.await.map(drop)
    }

    /// The subagents of a session whose end was not yet reported to the model, in the order in which they were
    /// launched.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn subagents_of(&self, session: SessionId) -> Result<Vec<Subagent>, Error> {
        let rows = self.db.read(&OF_SESSION).bind(session.0.as_slice()).all().await?;
        rows.iter().map(Subagent::read).collect()
    }

    /// All subagents that have not ended, by id.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn live_subagents(&self) -> Result<Vec<Subagent>, Error> {
        self.db.read(&LIVE).all().await?.iter().map(Subagent::read).collect()
    }

    /// Whether the log says that this subagent runs. This reads the session's events, so it is only for the rare case
    /// that a node was lost between the append that says so and [`Log::subagent_runs`].
    ///
    /// # Errors
    /// When the database fails.
    pub async fn says_that_it_runs(&self, session: SessionId, id: SubagentId) -> Result<bool, Error> {
        let query = self.db.read(&SAYS_THAT_IT_RUNS).bind(session.0.as_slice()).bind(format!("%\"{id}\"%"));
        Ok(query.optional().await?.is_some())
    }

    /// Sessions that have ended and still have rows of subagents: at most 100.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn ended_sessions_with_subagents(&self) -> Result<Vec<SessionId>, Error> {
        let rows = self.db.read(&ENDED_SESSIONS).all().await?;
        rows.iter().map(|row| SessionId::read(row, "session")).collect()
    }

    /// Deletes the rows of all subagents of a session that has ended.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn forget_subagents_of(&self, session: SessionId) -> Result<(), Error> {
        self.db.execute(&FORGET_SESSION, move |q| q.bind(session.0.to_vec())).await.map(drop)
    }

    async fn subagent_update(&self, update: &'static Sql, id: SubagentId) -> Result<(), Error> {
        self.db.execute(update, move |q| q.bind(id.0.to_vec())).await.map(drop)
    }
}
