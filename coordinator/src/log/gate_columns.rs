//! How a session's gate is stored in its row: the columns `phase`, `state`, `call`, `owner`, `deadline` and
//! `takeovers`.
//!
//! Only this module turns the columns into a [`Gate`], and the end of a call into the values of the columns. The
//! statements in `append` compare the same columns with the gate that an opening call expects
//! ([`engine::gate::GateFound`]).

use super::{Id, State};
use crate::Error;
use crate::db::sql::Row;
use engine::gate::{End, Gate, GateAfter, Pause};
use engine::ids::{CallId, KeyId};
use engine::time::UnixMillis;
use std::time::Duration;

const FREE: &str = "idle";
const RUNNING: &str = "running";
const PAUSED: &str = "paused";

/// What an append writes into the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GateColumns {
    pub phase: &'static str,
    pub state: State,
    /// For how long a pause keeps the gate. It is added to the database's clock, and the client key that the gate is
    /// kept for is written too.
    pub pause: Option<Duration>,
}

impl GateColumns {
    /// What an append with this end writes. An append without an end leaves its call running.
    pub(super) fn after(end: Option<&End>) -> Self {
        let (phase, state, pause) = match end.map(|end| end.gate) {
            None => (RUNNING, State::Open, None),
            Some(GateAfter::Free) => (FREE, State::Open, None),
            Some(GateAfter::Paused(time)) => (PAUSED, State::Open, Some(time)),
            Some(GateAfter::Failed) => (FREE, State::Error, None),
        };
        Self { phase, state, pause }
    }
}

/// The gate of a row that was read together with the database's clock (`now`).
pub(super) fn read(row: &Row) -> Result<Gate, Error> {
    Ok(match row.get("phase")? {
        RUNNING => Gate::Running { call: CallId::read(row, "call")?, takeovers: row.get::<i64>("takeovers")? as u32 },
        PAUSED => {
            let (deadline, now) = (UnixMillis(row.get("deadline")?), UnixMillis(row.get("now")?));
            Gate::Paused(Pause { owner: KeyId::read(row, "owner")?, left: deadline.saturating_since(now) })
        }
        FREE => Gate::Free,
        phase => return Err(Error::Unreadable(format!("unknown session phase {phase:?}; a newer version wrote it"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::outcome::Outcome;
    use sqlx::Connection as _;

    #[test]
    fn each_end_has_its_columns() {
        let time = Duration::from_millis(1500);
        let table = [
            (None, ("running", State::Open, None)),
            (Some(GateAfter::Free), ("idle", State::Open, None)),
            (Some(GateAfter::Paused(time)), ("paused", State::Open, Some(time))),
            (Some(GateAfter::Failed), ("idle", State::Error, None)),
        ];
        for (gate, (phase, state, pause)) in table {
            let end = gate.map(|gate| End { outcome: Outcome::Unavailable, gate });
            assert_eq!(GateColumns::after(end.as_ref()), GateColumns { phase, state, pause });
        }
    }

    async fn read_from(columns: &str) -> Result<Gate, Error> {
        let mut database = sqlx::SqliteConnection::connect("sqlite::memory:").await.expect("a database");
        let sql = sqlx::AssertSqlSafe(format!("SELECT {columns}"));
        read(&Row::Sqlite(sqlx::query(sql).fetch_one(&mut database).await.expect("a row")))
    }

    #[tokio::test]
    async fn rows_are_read_or_refused() {
        let (id, text) = ([7; 16], "x'07070707070707070707070707070707'");
        let paused = |deadline: i64| format!("'paused' AS phase, {text} AS owner, {deadline} AS deadline, 1000 AS now");
        let pause = |left| Gate::Paused(Pause { owner: KeyId(id), left: Duration::from_millis(left) });
        let running = format!("'running' AS phase, {text} AS call, 3 AS takeovers");
        let table = [
            ("'idle' AS phase".to_owned(), Gate::Free),
            (running, Gate::Running { call: CallId(id), takeovers: 3 }),
            (paused(1500), pause(500)),
            (paused(900), pause(0)),
        ];
        for (columns, gate) in table {
            assert_eq!(read_from(&columns).await.expect(&columns), gate);
        }
        let unknown = read_from("'waiting' AS phase").await;
        assert!(matches!(&unknown, Err(Error::Unreadable(why)) if why.contains("\"waiting\"")), "{unknown:?}");
        let ownerless = read_from("'paused' AS phase, NULL AS owner, 1 AS deadline, 1 AS now").await;
        assert!(matches!(&ownerless, Err(Error::Unreadable(_))), "{ownerless:?}");
    }
}
