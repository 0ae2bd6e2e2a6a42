//! The database file, for faults that no peer can cause and for reading the log while no server runs.
//!
//! With `checker::rows`, which reads Postgres, the only place of this crate that knows table and column names.

use crate::server::Server;
use sqlx::AssertSqlSafe;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use std::time::Duration;

/// A server's SQLite file, opened beside it.
#[derive(Debug)]
pub struct Database(SqlitePool);

impl Database {
    /// Opens it.
    pub async fn open(server: &Server) -> Self {
        let options = SqliteConnectOptions::new().filename(server.database_path()).busy_timeout(Duration::from_secs(5));
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await;
        Self(pool.expect("the server's database"))
    }

    async fn execute(&self, sql: String) -> u64 {
        let shown = sql.clone();
        let done = sqlx::query(AssertSqlSafe(sql)).execute(&self.0).await;
        done.unwrap_or_else(|error| panic!("{shown}: {error}")).rows_affected()
    }

    /// A session's log: the types in order.
    pub async fn types(&self, session: &str) -> Vec<String> {
        let sql = format!("SELECT kind FROM events WHERE session = {} ORDER BY number", blob(session));
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&self.0).await.expect("a session's events")
    }

    /// How many sessions have rows in this table.
    pub async fn sessions_in(&self, table: &'static str) -> i64 {
        let sql = format!("SELECT count(DISTINCT session) FROM {table}");
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.0).await.expect("a number")
    }

    /// A session's row says that it is being closed.
    pub async fn is_closing(&self, session: &str) -> bool {
        let sql = format!("SELECT state = 'closing' FROM sessions WHERE id = {}", blob(session));
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.0).await.expect("a session's row")
    }

    /// Milliseconds until the session's pause expires, by the database's clock; negative when it has expired.
    pub async fn pause_left(&self, session: &str) -> i64 {
        let now = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";
        let sql = format!("SELECT deadline - {now} FROM sessions WHERE id = {}", blob(session));
        let left: Option<i64> =
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.0).await.expect("a session's row");
        left.expect("a pause")
    }

    /// Deletes a profile although keys use it.
    pub async fn delete_profile(&self, profile: &str) {
        let sql = format!("UPDATE profiles SET deleted_at = updated_at WHERE id = {}", blob(profile));
        assert_eq!(self.execute(sql).await, 1, "no profile {profile}");
    }

    /// Makes every insert of an event of this type fail until undone.
    pub async fn fail_inserts(self, kind: &str) -> Fault {
        let sql = format!(
            "CREATE TRIGGER injected_fault BEFORE INSERT ON events WHEN NEW.kind = '{kind}' \
             BEGIN SELECT RAISE(ABORT, 'injected fault'); END"
        );
        self.execute(sql).await;
        Fault { database: self, undo: vec!["DROP TRIGGER injected_fault".to_owned()] }
    }

    /// Holds the write lock until undone, as a backup or an administrator's transaction would.
    pub async fn lock(self) -> Fault {
        self.execute("BEGIN IMMEDIATE".to_owned()).await;
        Fault { database: self, undo: vec!["ROLLBACK".to_owned()] }
    }

    /// Takes the keys away, so that nobody can be authenticated, until undone.
    pub async fn hide_keys(self) -> Fault {
        let mut undo = Vec::new();
        for table in ["client_keys", "session_keys"] {
            self.execute(format!("ALTER TABLE {table} RENAME TO hidden_{table}")).await;
            undo.push(format!("ALTER TABLE hidden_{table} RENAME TO {table}"));
        }
        Fault { database: self, undo }
    }

    /// Size of the database in bytes, without free pages.
    pub async fn size(&self) -> u64 {
        let size: i64 = sqlx::query_scalar(
            "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()",
        )
        .fetch_one(&self.0)
        .await
        .expect("the database's size");
        size as u64
    }
}

/// A fault that lasts until it is undone.
#[derive(Debug)]
pub struct Fault {
    database: Database,
    undo: Vec<String>,
}

impl Fault {
    /// Removes the fault.
    pub async fn undo(self) {
        for sql in self.undo {
            self.database.execute(sql).await;
        }
    }
}

fn blob(id: &str) -> String {
    let hex = id.split_once('_').map(|(_, hex)| hex).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    format!("x'{}'", hex.unwrap_or_else(|| panic!("not an id: {id}")))
}
