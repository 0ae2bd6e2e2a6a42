//! The list of sessions that administrators see. A session that is being closed is listed as closed.

use super::{Accounts, Page, id_bytes, page};
use crate::Error;
use crate::db::sql::{Sql, sql};
use engine::ids::{ProfileId, SessionId};
use engine::time::UnixMillis;
use sqlx::FromRow;

/// A session's state as administrators see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It takes messages.
    Open,
    /// It was closed or is being closed.
    Closed,
    /// It failed.
    Error,
}

impl State {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Closed => "closed",
            State::Error => "error",
        }
    }
}

/// The error for a text that names no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not one of open, closed, error")]
pub struct UnknownState;

impl std::str::FromStr for State {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, UnknownState> {
        [State::Open, State::Closed, State::Error].into_iter().find(|s| s.as_str() == text).ok_or(UnknownState)
    }
}

/// A session as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedSession {
    /// Its id.
    pub id: SessionId,
    /// The profile of the key that opened it.
    pub profile: ProfileId,
    /// Its state.
    pub state: State,
    /// The version that the opening client said it has.
    pub client_version: Option<String>,
    /// Unix milliseconds.
    pub created_at: UnixMillis,
    /// Unix milliseconds.
    pub closed_at: Option<UnixMillis>,
}

#[derive(FromRow)]
struct Row {
    id: Vec<u8>,
    profile: Vec<u8>,
    state: String,
    client_version: Option<String>,
    created_at: i64,
    closed_at: Option<i64>,
}

const ALL: Sql = sql!(
    "SELECT id, profile, state, client_version, created_at, closed_at FROM sessions \
     WHERE id > $1 ORDER BY id LIMIT $2"
);
const OPEN: Sql = sql!(
    "SELECT id, profile, state, client_version, created_at, closed_at FROM sessions \
     WHERE state = 'open' AND id > $1 ORDER BY id LIMIT $2"
);
const FAILED: Sql = sql!(
    "SELECT id, profile, state, client_version, created_at, closed_at FROM sessions \
     WHERE state = 'error' AND id > $1 ORDER BY id LIMIT $2"
);
// Two index scans that are merged. With an IN list the database would have to sort all sessions after the given one.
const CLOSED: Sql = sql!(
    "SELECT id, profile, state, client_version, created_at, closed_at FROM sessions \
     WHERE state = 'closed' AND id > $1 UNION ALL \
     SELECT id, profile, state, client_version, created_at, closed_at FROM sessions \
     WHERE state = 'closing' AND id > $1 ORDER BY id LIMIT $2"
);

impl Accounts {
    /// A page of the sessions, oldest first, beginning after the session `after`. With a `state`, only the sessions in
    /// it.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn sessions(
        &self,
        state: Option<State>,
        after: Option<SessionId>,
        limit: u32,
    ) -> Result<Page<ListedSession, SessionId>, Error> {
        let statement = match state {
            None => &ALL,
            Some(State::Open) => &OPEN,
            Some(State::Closed) => &CLOSED,
            Some(State::Error) => &FAILED,
        };
        let after = after.map(|id| id.0.to_vec()).unwrap_or_default();
        let rows: Vec<Row> = self.db.read(statement).bind(after).bind(i64::from(limit) + 1).all_as().await?;
        let sessions = rows.into_iter().map(Row::session).collect::<Result<_, _>>()?;
        Ok(page(sessions, limit, |session: &ListedSession| session.id))
    }
}

impl Row {
    fn session(self) -> Result<ListedSession, Error> {
        let state = match self.state.as_str() {
            "closing" => State::Closed,
            other => other.parse().map_err(|_| Error::Unreadable("a session's state".into()))?,
        };
        Ok(ListedSession {
            id: SessionId(id_bytes(self.id)?),
            profile: ProfileId(id_bytes(self.profile)?),
            state,
            client_version: self.client_version,
            created_at: UnixMillis(self.created_at),
            closed_at: self.closed_at.map(UnixMillis),
        })
    }
}
