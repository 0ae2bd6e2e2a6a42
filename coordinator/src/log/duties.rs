//! Duties, which one node of the cluster does at a time, and the id of the deployment.
//!
//! A duty is a lease in the database, which expires by the database's clock. It only saves work: the database checks
//! every step that is done under it, so two nodes that both believe to have the duty do no harm.

use super::Log;
use crate::Error;
use crate::db::sql::{Sql, millis, sql};
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
    /// Takes a duty for this node, or keeps it. Returns whether the node has the duty now, for this time.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn take_duty(&self, name: &'static str, node: &str, time: Duration) -> Result<bool, Error> {
        let node = node.to_owned();
        let taken = self.db.execute(&TAKE, move |q| q.bind(name).bind(node).bind(millis(time)));
        Ok(taken.await? > 0)
    }

    /// The id of this deployment, which is everything that shares this database, in hexadecimal digits. It is made at
    /// the first call.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn deployment(&self) -> Result<String, Error> {
        let id = crate::fresh_id();
        self.db.execute(&NAME, move |q| q.bind(id.to_vec())).await?;
        let row = self.db.read(&DEPLOYMENT).one().await?;
        let id: &[u8] = row.get("id")?;
        Ok(crate::hex(id))
    }
}
