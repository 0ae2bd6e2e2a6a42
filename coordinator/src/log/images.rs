//! Whether the images that profiles name can be started (docs/api.md 9.1), stored so that every node knows it.
//!
//! When a profile is made or replaced, its images are marked as `pending`. Some node then claims each of them, makes it
//! available to the container runtime, and notes the result.

use super::sandboxes::BUSY;
use super::{Log, of_word};
use crate::Error;
use crate::db::sql::{Sql, millis, sql};
use std::collections::HashMap;

/// Whether an image can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageState {
    /// This is not known yet; some node has to find out.
    Pending,
    /// It can be started.
    Available,
    /// It cannot be started.
    Error,
}

impl ImageState {
    const ALL: [Self; 3] = [Self::Pending, Self::Available, Self::Error];

    /// The text in events, in the admin API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Available => "available",
            Self::Error => "error",
        }
    }

    fn parse(text: &str) -> Result<Self, Error> {
        of_word("image status", &Self::ALL, Self::as_str, text)
    }
}

/// What is known about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageStatus {
    /// Whether it can be started.
    pub state: ImageState,
    /// Why it cannot be started.
    pub detail: Option<String>,
}

const MARK: Sql = Sql {
    sqlite: "INSERT INTO images (name, status, busy_until) SELECT DISTINCT value, 'pending', 0 FROM json_each($1) WHERE true \
             ON CONFLICT (name) DO UPDATE SET status = 'pending', detail = NULL, busy_until = 0",
    postgres: "INSERT INTO images (name, status, busy_until) \
               SELECT DISTINCT value, 'pending', 0 FROM json_array_elements_text($1::json) ORDER BY value \
               ON CONFLICT (name) DO UPDATE SET status = 'pending', detail = NULL, busy_until = 0",
};
const MARK_UNKNOWN: Sql = Sql {
    sqlite: "INSERT INTO images (name, status, busy_until) \
             SELECT DISTINCT j.value, 'pending', 0 FROM profiles p, json_each(p.available_sandboxes) j \
             WHERE p.deleted_at IS NULL ON CONFLICT (name) DO NOTHING",
    postgres: "INSERT INTO images (name, status, busy_until) \
               SELECT DISTINCT j.value, 'pending', 0 \
               FROM profiles p, json_array_elements_text(p.available_sandboxes::json) AS j(value) \
               WHERE p.deleted_at IS NULL ORDER BY j.value ON CONFLICT (name) DO NOTHING",
};
const STATUSES: Sql = Sql {
    sqlite: "SELECT name, status, detail FROM images WHERE name IN (SELECT value FROM json_each($1))",
    postgres: "SELECT name, status, detail FROM images WHERE name IN (SELECT value FROM json_array_elements_text($1::json))",
};
const NEXT: Sql = sql!(
    "SELECT name FROM images WHERE status = 'pending' AND busy_until < ",
    now,
    " ORDER BY busy_until, name LIMIT 1"
);
const CLAIM: Sql =
    sql!("UPDATE images SET busy_until = ", now, " + $2 WHERE name = $1 AND status = 'pending' AND busy_until < ", now);
const KEEP_BUSY: Sql = sql!("UPDATE images SET busy_until = ", now, " + $2 WHERE name = $1");
const NOTE: Sql = sql!("UPDATE images SET status = $2, detail = $3 WHERE name = $1 AND status = 'pending'");

fn list(names: &[String]) -> String {
    engine::json::encode(names).get().to_owned()
}

impl Log {
    /// Marks these images as pending, so that some node finds out again whether they can be started.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn mark_images_pending(&self, names: &[String]) -> Result<(), Error> {
        let names = list(names);
        self.db.execute(&MARK, move |q| q.bind(names)).await.map(drop)
    }

    /// Marks those images of profiles as pending of which nothing is known, because their profiles were made while no
    /// sandbox driver was configured. This reads all profiles.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn mark_unknown_images_pending(&self) -> Result<(), Error> {
        self.db.execute(&MARK_UNKNOWN, |q| q).await.map(drop)
    }

    /// What is known about these images. The answer leaves out images that were never marked.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn image_statuses(&self, names: &[String]) -> Result<HashMap<String, ImageStatus>, Error> {
        let rows = self.db.read(&STATUSES).bind(list(names)).all().await?;
        let status = |row: &crate::db::sql::Row| {
            let state = ImageState::parse(row.get("status")?)?;
            Ok((row.get("name")?, ImageStatus { state, detail: row.get("detail")? }))
        };
        rows.iter().map(status).collect()
    }

    /// Claims a pending image on which no node works, for [`BUSY`]. None if there is no such image, or
    /// another node has claimed it first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn claim_image(&self) -> Result<Option<String>, Error> {
        let Some(row) = self.db.read(&NEXT).optional().await? else { return Ok(None) };
        let name: String = row.get("name")?;
        Ok((self.image_update(&CLAIM, &name).await? > 0).then_some(name))
    }

    /// Renews this node's claim on an image for [`BUSY`].
    ///
    /// # Errors
    /// When the database fails.
    pub async fn keep_image_busy(&self, name: &str) -> Result<(), Error> {
        self.image_update(&KEEP_BUSY, name).await.map(drop)
    }

    /// Notes whether a pending image can be started.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn note_image(&self, name: &str, status: ImageStatus) -> Result<(), Error> {
        let (name, state) = (name.to_owned(), status.state.as_str());
        self.db.execute(&NOTE, move |q| q.bind(name).bind(state).bind(status.detail)).await.map(drop)
    }

    async fn image_update(&self, update: &'static Sql, name: &str) -> Result<u64, Error> {
        let name = name.to_owned();
        self.db.execute(update, move |q| q.bind(name).bind(millis(BUSY))).await
    }
}
