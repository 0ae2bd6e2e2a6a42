//! Whether the images that profiles name can be started (docs/api.md 9.1), kept where every node sees it.
//!
//! A profile that is made or replaced marks its images `pending`. Some node then claims each, makes it usable and notes
//! what came of it.

use super::Log;
use super::sandboxes::BUSY_MS;
use crate::Error;
use crate::db::sql::{Sql, sql};
use std::collections::HashMap;

/// Whether an image can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageState {
    /// That is being found out.
    Pending,
    /// It can.
    Available,
    /// It cannot.
    Error,
}

impl ImageState {
    const ALL: [Self; 3] = [Self::Pending, Self::Available, Self::Error];

    /// The word in events, in the admin API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Available => "available",
            Self::Error => "error",
        }
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let unknown = || Error::Unreadable(format!("unknown image status {text:?}; a newer version wrote it"));
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(unknown)
    }
}

/// What is known of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageStatus {
    /// Whether it can be started.
    pub state: ImageState,
    /// Why not.
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
    /// Has it found out again whether these images can be started.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn mark_images_pending(&self, names: &[String]) -> Result<(), Error> {
        let names = list(names);
        self.db
            .write_one(move |c| Box::pin(async move { c.query(&MARK).bind(names).execute().await.map(drop) }), |()| ())
            .await
    }

    /// Has it found out whether the images of profiles can be started of which nothing is known: those of profiles that
    /// were made while no sandbox driver was configured. It reads all profiles.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn mark_unknown_images_pending(&self) -> Result<(), Error> {
        self.db.write_one(|c| Box::pin(async move { c.query(&MARK_UNKNOWN).execute().await.map(drop) }), |()| ()).await
    }

    /// What is known of these images. One that was never marked is not in the answer.
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

    /// Claims a pending image that no node works on, for [`BUSY`](super::BUSY). None if there is none, or another node
    /// was faster.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn claim_image(&self) -> Result<Option<String>, Error> {
        let Some(row) = self.db.read(&NEXT).optional().await? else { return Ok(None) };
        let name: String = row.get("name")?;
        Ok((self.image_update(&CLAIM, name.clone()).await? > 0).then_some(name))
    }

    /// Keeps an image claimed, [`BUSY`](super::BUSY) from now on.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn keep_image_busy(&self, name: &str) -> Result<(), Error> {
        self.image_update(&KEEP_BUSY, name.to_owned()).await.map(drop)
    }

    /// Notes whether a pending image can be started.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn note_image(&self, name: &str, status: ImageStatus) -> Result<(), Error> {
        let name = name.to_owned();
        self.db
            .write_one(
                move |c| {
                    Box::pin(async move {
                        let note = c.query(&NOTE).bind(name).bind(status.state.as_str()).bind(status.detail);
                        note.execute().await.map(drop)
                    })
                },
                |()| (),
            )
            .await
    }

    async fn image_update(&self, update: &'static Sql, name: String) -> Result<u64, Error> {
        self.db
            .write_one(
                move |c| Box::pin(async move { c.query(update).bind(name).bind(BUSY_MS).execute().await }),
                |_| (),
            )
            .await
    }
}
