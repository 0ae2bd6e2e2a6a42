//! Work that one node of the cluster does at a time, and the name of the deployment.
//!
//! A duty is a lease in the database, by the database's clock. It only spares the others the work: whatever is done
//! under it is checked by the database once more, so that two nodes that both think they have it do no harm.

use super::Log;
use crate::Error;
use crate::db::sql::{Sql, sql};
use std::time::Duration;

const TAKE: Sql = sql!(
    "INSERT INTO duties (name, node, until) VALUES ($1, $2, ",
    now,
    " + $3) ON CONFLICT (name) DO UPDATE SET node = excluded.node, until = excluded.until \
     WHERE duties.node = excluded.node OR duties.until < ",
    now
);
const NAME: Sql = sql!("INSERT INTO deployment (one, id) VALUES (1, $1) ON CONFLICT (one) DO NOTHING");
const DEPLOYMENT: Sql = sql!("SELECT id FROM deployment");

impl Log {
    /// Takes a duty for that node, or keeps it. Returns whether it is the node's now, for that time.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn take_duty(&self, name: &'static str, node: &str, time: Duration) -> Result<bool, Error> {
        let node = node.to_owned();
        let taken = self.db.write_one(
            move |c| {
                Box::pin(
                    async move { c.query(&TAKE).bind(name).bind(node).bind(time.as_millis() as i64).execute().await },
                )
            },
            |_| (),
        );
        Ok(taken.await? > 0)
    }

    /// What names this deployment, which is everything that shares this database: hexadecimal digits. Made at the first
    /// call.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn deployment(&self) -> Result<String, Error> {
        let id = crate::fresh_id();
        self.db
            .write_one(
                move |c| Box::pin(async move { c.query(&NAME).bind(id.as_slice()).execute().await.map(drop) }),
                |()| (),
            )
            .await?;
        let row = self.db.read(&DEPLOYMENT).one().await?;
        let id: &[u8] = row.get("id")?;
        Ok(crate::hex(id))
    }
}
