//! Faults that the database causes: locked rows, a full disk, refused connections.

use super::{Cluster, admin_sql};
use crate::client::Session;
use crate::poll;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

/// A part of the statement that makes a node a session's owner. No other statement contains it.
pub const TAKES: &str = "SET epoch = epoch + 1, takeovers";

/// A lock on a session's row, held until this is dropped or released.
#[derive(Debug)]
pub struct Lock(PgConnection);

impl Lock {
    /// Releases the lock.
    pub async fn release(mut self) {
        self.0.execute("COMMIT").await.expect("the end of a transaction");
    }
}

impl Cluster {
    /// Locks a session's row, as a slow transaction would: appends and takeovers wait, readers do not.
    pub async fn lock(&self, session: &Session) -> Lock {
        let url = format!("{}/{}", self.base, self.database);
        let mut connection = PgConnection::connect(&url).await.expect("the database");
        connection.execute("BEGIN").await.expect("a transaction");
        let row = format!("SELECT 1 FROM sessions WHERE id = {} FOR UPDATE", bytes(&session.id));
        connection.fetch_one(AssertSqlSafe(row)).await.expect("the session's row");
        Lock(connection)
    }

    /// Waits until exactly this number of statements wait for a lock.
    pub async fn waiting_for_lock(&self, number: i64) {
        let count =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        poll::until(poll::DEADLINE, "statements that wait for a lock", async || {
            let waiting: i64 = sqlx::query_scalar(count).fetch_one(&self.pool).await.expect("the server's activity");
            if waiting == number { Ok(()) } else { Err(waiting) }
        })
        .await;
    }

    /// Milliseconds until the session's pause expires, by the database's clock.
    pub async fn pause_left(&self, session: &Session) -> i64 {
        let left = format!(
            "SELECT deadline - (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM sessions WHERE id = {}",
            bytes(&session.id)
        );
        let left: Option<i64> = sqlx::query_scalar(AssertSqlSafe(left)).fetch_one(&self.pool).await.expect("a row");
        left.expect("a pause")
    }

    /// From now on no event of this type, or of any, can be inserted, as on a full disk.
    pub async fn fill_disk(&self, kind: Option<&str>) {
        let only = kind.map_or_else(String::new, |kind| format!("WHEN (NEW.kind = '{kind}')"));
        let function = "CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
            RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$";
        let trigger = format!(
            "CREATE TRIGGER full_disk BEFORE INSERT ON events FOR EACH ROW {only} EXECUTE FUNCTION full_disk()"
        );
        self.pool.execute(function).await.expect("a function");
        self.pool.execute(AssertSqlSafe(trigger)).await.expect("a trigger");
    }

    /// Ends [`Cluster::fill_disk`].
    pub async fn free_disk(&self) {
        self.pool.execute("DROP TRIGGER full_disk ON events").await.expect("the trigger dropped");
    }

    /// Ends the connections of all nodes and refuses new ones, as after a fail-over to a server that has no free
    /// connections.
    pub async fn refuse_connections(&self) {
        admin_sql(&self.base, &format!("ALTER ROLE {} CONNECTION LIMIT 0", self.role())).await;
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'", self.role());
        admin_sql(&self.base, &end).await;
    }

    /// Ends [`Cluster::refuse_connections`].
    pub async fn allow_connections(&self) {
        admin_sql(&self.base, &format!("ALTER ROLE {} CONNECTION LIMIT -1", self.role())).await;
    }

    fn role(&self) -> &str {
        self.role.as_deref().expect("a plan with a role")
    }
}

fn bytes(id: &str) -> String {
    let hex = id.split_once('_').map(|(_, hex)| hex).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    format!("decode('{}', 'hex')", hex.unwrap_or_else(|| panic!("not an id: {id}")))
}
