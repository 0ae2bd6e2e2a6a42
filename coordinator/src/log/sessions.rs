//! Sessions' rows, read.

use super::{Epoch, Id, Log, gate_columns, of_word, read_json};
use crate::Error;
use crate::db::sql::{self, Sql, sql};
use crate::feed::LogStatus;
use engine::event::EventNumber;
use engine::gate::Gate;
use engine::ids::{KeyId, ProfileId, SessionId};
use engine::open::Compaction;
use engine::toolbox::McpTool;
use engine::tools::Declarations;

/// Version of the internal forms this program writes and the newest it reads.
pub(super) const VERSION: i64 = 1;

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
    const ALL: [Self; 4] = [State::Open, State::Closing, State::Closed, State::Error];

    /// The state with this stored form.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        of_word("session state", &Self::ALL, Self::stored, text)
    }

    /// Its stored form, in the column `state`.
    pub(super) fn stored(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Closing => "closing",
            State::Closed => "closed",
            State::Error => "error",
        }
    }

    /// The word that clients see. They see a session that is being closed as closed.
    pub fn public_name(self) -> &'static str {
        match self {
            State::Closing => State::Closed.stored(),
            State::Open | State::Closed | State::Error => self.stored(),
        }
    }

    /// Whether more events may come to the log of a session in this state.
    pub(crate) fn log_status(self) -> LogStatus {
        match self {
            State::Open | State::Closing => LogStatus::Open,
            State::Closed | State::Error => LogStatus::Ended,
        }
    }
}

/// A session's row as its owner needs it.
#[derive(Debug, Clone)]
pub struct Row {
    /// Whether it takes calls.
    pub state: State,
    /// The newest owner's.
    pub epoch: Epoch,
    /// Number of the newest event.
    pub head: EventNumber,
    /// Its gate, by the database's clock.
    pub gate: Gate,
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
    /// Subagents of the session whose end was not reported to the model yet.
    pub tracked_subagents: usize,
    /// Those of them that have not ended.
    pub running_subagents: usize,
}

const ROW: Sql = sql!(
    "SELECT state, epoch, head, phase, call, owner, deadline, takeovers, version, ",
    now,
    " AS now FROM sessions WHERE id = $1"
);
const RECORD: Sql = sql!(
    "SELECT s.profile, s.compaction, s.mcp_tools, c.declarations, p.name, p.primary_provider, \
     p.fallback_providers, p.allowed_tools, p.available_sandboxes, p.deleted_at, \
     (SELECT count(*) FROM subagents a WHERE a.session = s.id) AS tracked_subagents, \
     (SELECT count(*) FROM subagents a WHERE a.session = s.id AND a.state IN ('starting', 'running')) AS running_subagents \
     FROM sessions s JOIN profiles p ON p.id = s.profile \
     LEFT JOIN clients c ON c.session = s.id AND c.client_key = $2 WHERE s.id = $1"
);
const ADMISSION: Sql = sql!(
    "SELECT s.state, c.driver_since FROM sessions s \
     LEFT JOIN clients c ON c.session = s.id AND c.client_key = $2 WHERE s.id = $1"
);
const DRIVERS: Sql = sql!(
    "SELECT c.client_key FROM clients c JOIN client_keys k ON k.id = c.client_key \
     WHERE c.session = $1 AND c.driver_since IS NOT NULL AND k.revoked_at IS NULL ORDER BY c.client_key"
);
const UNFINISHED: Sql = sql!("SELECT id, state FROM sessions WHERE phase = 'running' OR state = 'closing'");

impl Row {
    pub(super) fn read(row: &sql::Row) -> Result<Self, Error> {
        let version: i64 = row.get("version")?;
        if version > VERSION {
            return Err(Error::Unreadable(format!("session version {version}; this program reads up to {VERSION}")));
        }
        let head = EventNumber(row.get("head")?);
        let gate = gate_columns::read(row)?;
        Ok(Self { state: State::parse(row.get("state")?)?, epoch: row.get("epoch")?, head, gate })
    }
}

impl Log {
    /// The session's row.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn row(&self, session: SessionId) -> Result<Row, Error> {
        let row = self.db.read(&ROW).bind(session.0.as_slice()).optional().await?;
        Row::read(&row.ok_or(Error::NotFound)?)
    }

    /// What the checks before the gate need.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn admission(&self, session: SessionId, key: KeyId) -> Result<Admission, Error> {
        let row = self
            .db
            .read(&ADMISSION)
            .bind(session.0.as_slice())
            .bind(key.0.as_slice())
            .optional()
            .await?
            .ok_or(Error::NotFound)?;
        let driver = row.get::<Option<i64>>("driver_since")?.is_some();
        Ok(Admission { state: State::parse(row.get("state")?)?, driver })
    }

    /// What a turn of that client needs.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn record(&self, session: SessionId, key: KeyId) -> Result<Record, Error> {
        let row = self
            .db
            .read(&RECORD)
            .bind(session.0.as_slice())
            .bind(key.0.as_slice())
            .optional()
            .await?
            .ok_or(Error::NotFound)?;
        let list = |column: &str| read_json::<Vec<String>>(column, row.get(column)?);
        let declarations: Option<&str> = row.get("declarations")?;
        let declarations = declarations.map(Declarations::load).transpose();
        Ok(Record {
            profile: ProfileId::read(&row, "profile")?,
            profile_name: row.get("name")?,
            deleted: row.get::<Option<i64>>("deleted_at")?.is_some(),
            primary: row.get("primary_provider")?,
            fallbacks: list("fallback_providers")?,
            available_sandboxes: list("available_sandboxes")?,
            allowed_tools: list("allowed_tools")?,
            declarations: declarations.map_err(|error| Error::Unreadable(error.to_string()))?.unwrap_or_default(),
            mcp_tools: read_json("mcp_tools", row.get("mcp_tools")?)?,
            compaction: read_json("compaction", row.get("compaction")?)?,
            tracked_subagents: row.get::<i64>("tracked_subagents")? as usize,
            running_subagents: row.get::<i64>("running_subagents")? as usize,
        })
    }

    /// Client keys that drive the session, sorted.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn drivers(&self, session: SessionId) -> Result<Vec<KeyId>, Error> {
        let rows = self.db.read(&DRIVERS).bind(session.0.as_slice()).all().await?;
        rows.iter().map(|row| KeyId::read(row, "client_key")).collect()
    }

    /// Sessions with a running call or an unfinished closing: what a node that starts has to carry on.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn unfinished(&self) -> Result<Vec<(SessionId, State)>, Error> {
        let rows = self.db.read(&UNFINISHED).all().await?;
        rows.iter().map(|row| Ok((SessionId::read(row, "id")?, State::parse(row.get("state")?)?))).collect()
    }
}
