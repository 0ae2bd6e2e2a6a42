//! Profiles: which providers, tools, MCP servers and images the keys of a profile may use.
//!
//! The names of those are stored as they are given. Whether they exist in the configuration is checked by the `node`
//! crate.

use super::{Accounts, Page, id_bytes, page};
use crate::db::sql::{Sql, sql};
use crate::{Error, fresh_id};
use engine::ids::ProfileId;
use engine::time::UnixMillis;
use serde::{Deserialize, Serialize};
use sqlx::FromRow;

/// The part of a profile that an administrator sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileFields {
    /// Unique among the profiles that are not deleted.
    pub name: String,
    /// A name in the registry of providers.
    pub primary_provider: String,
    /// Names in the registry of providers, tried in this order.
    pub fallback_providers: Vec<String>,
    /// Names in the registry of MCP servers.
    pub mcp_servers: Vec<String>,
    /// The names of the client tools that clients may declare.
    pub allowed_tools: Vec<String>,
    /// The names of the images that may be started.
    pub available_sandboxes: Vec<String>,
}

/// A profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Its id.
    pub id: ProfileId,
    /// What the administrator has set.
    pub fields: ProfileFields,
    /// Unix milliseconds.
    pub created_at: UnixMillis,
    /// Unix milliseconds.
    pub updated_at: UnixMillis,
}

#[derive(FromRow)]
struct Row {
    id: Vec<u8>,
    name: String,
    primary_provider: String,
    fallback_providers: String,
    mcp_servers: String,
    allowed_tools: String,
    available_sandboxes: String,
    created_at: i64,
    updated_at: i64,
}

const INSERT: Sql = sql!(
    "INSERT INTO profiles (id, name, primary_provider, fallback_providers, mcp_servers, allowed_tools, available_sandboxes, \
     created_at, updated_at) SELECT $1, $2, $3, $4, $5, $6, $7, at, at FROM (SELECT ",
    now,
    " AS at) AS clock RETURNING created_at"
);
const GET: Sql = sql!(
    "SELECT id, name, primary_provider, fallback_providers, mcp_servers, allowed_tools, available_sandboxes, \
     created_at, updated_at FROM profiles WHERE id = $1 AND deleted_at IS NULL"
);
const LIST: Sql = sql!(
    "SELECT id, name, primary_provider, fallback_providers, mcp_servers, allowed_tools, available_sandboxes, \
     created_at, updated_at FROM profiles WHERE deleted_at IS NULL AND id > $1 ORDER BY id LIMIT $2"
);
const REPLACE: Sql = sql!(
    "UPDATE profiles SET name = $2, primary_provider = $3, fallback_providers = $4, mcp_servers = $5, allowed_tools = $6, \
     available_sandboxes = $7, updated_at = ",
    greatest,
    "(",
    now,
    ", updated_at) WHERE id = $1 AND deleted_at IS NULL \
     RETURNING id, name, primary_provider, fallback_providers, mcp_servers, allowed_tools, available_sandboxes, created_at, \
     updated_at"
);
const LOCK: Sql = sql!("SELECT id FROM profiles WHERE id = $1 AND deleted_at IS NULL", for_update);
const DELETE: Sql = sql!(
    "UPDATE profiles SET deleted_at = ",
    now,
    " WHERE id = $1 AND deleted_at IS NULL \
     AND NOT EXISTS (SELECT 1 FROM client_keys WHERE profile = $1 AND revoked_at IS NULL)"
);

impl Accounts {
    /// Creates a profile.
    ///
    /// # Errors
    /// `Duplicate` when another profile has the name.
    pub async fn create_profile(&self, fields: ProfileFields) -> Result<Profile, Error> {
        let id = ProfileId(fresh_id());
        let bound = fields.clone();
        let created_at = self
            .write(move |c| {
                Box::pin(async move {
                    let (created_at,): (i64,) = c
                        .query(&INSERT)
                        .bind(id.0.to_vec())
                        .bind(&bound.name)
                        .bind(&bound.primary_provider)
                        .bind(json_list(&bound.fallback_providers)?)
                        .bind(json_list(&bound.mcp_servers)?)
                        .bind(json_list(&bound.allowed_tools)?)
                        .bind(json_list(&bound.available_sandboxes)?)
                        .one_as()
                        .await?;
                    Ok(UnixMillis(created_at))
                })
            })
            .await?;
        Ok(Profile { id, fields, created_at, updated_at: created_at })
    }

    /// The profile with this id.
    ///
    /// # Errors
    /// `NotFound` when there is none or it was deleted.
    pub async fn profile(&self, id: ProfileId) -> Result<Profile, Error> {
        let row: Row = self.db.read(&GET).bind(id.0.to_vec()).one_as().await?;
        row.profile()
    }

    /// A page of the profiles, oldest first, beginning after the profile `after`.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn profiles(&self, after: Option<ProfileId>, limit: u32) -> Result<Page<Profile, ProfileId>, Error> {
        let after = after.map(|id| id.0.to_vec()).unwrap_or_default();
        let rows: Vec<Row> = self.db.read(&LIST).bind(after).bind(i64::from(limit) + 1).all_as().await?;
        let profiles = rows.into_iter().map(Row::profile).collect::<Result<_, _>>()?;
        Ok(page(profiles, limit, |profile: &Profile| profile.id))
    }

    /// Replaces everything in a profile that an administrator sets.
    ///
    /// # Errors
    /// `NotFound`, or `Duplicate` when another profile has the name.
    pub async fn replace_profile(&self, id: ProfileId, fields: ProfileFields) -> Result<Profile, Error> {
        self.write(move |c| {
            Box::pin(async move {
                let row: Row = c
                    .query(&REPLACE)
                    .bind(id.0.to_vec())
                    .bind(&fields.name)
                    .bind(&fields.primary_provider)
                    .bind(json_list(&fields.fallback_providers)?)
                    .bind(json_list(&fields.mcp_servers)?)
                    .bind(json_list(&fields.allowed_tools)?)
                    .bind(json_list(&fields.available_sandboxes)?)
                    .one_as()
                    .await?;
                row.profile()
            })
        })
        .await
    }

    /// Deletes a profile. Its name can be used again.
    ///
    /// # Errors
    /// `NotFound`, or `PreconditionFailed` while the profile has active client keys.
    pub async fn delete_profile(&self, id: ProfileId) -> Result<(), Error> {
        self.db
            .write(
                move |c| {
                    Box::pin(async move {
                        // The row is locked first, so that a key that is created at the same time is seen.
                        c.query(&LOCK).bind(id.0.to_vec()).one().await?;
                        let done = c.query(&DELETE).bind(id.0.to_vec()).execute().await?;
                        if done == 1 { Ok(()) } else { Err(Error::PreconditionFailed) }
                    })
                },
                |()| (),
            )
            .await
    }
}

fn json_list(list: &[String]) -> Result<String, Error> {
    serde_json::to_string(list).map_err(|e| Error::Unreadable(e.to_string()))
}

impl Row {
    fn profile(self) -> Result<Profile, Error> {
        let list = |text: &str| {
            serde_json::from_str(text).map_err(|_| Error::Unreadable("a list of a profile is not a list".into()))
        };
        Ok(Profile {
            id: ProfileId(id_bytes(self.id)?),
            fields: ProfileFields {
                name: self.name,
                primary_provider: self.primary_provider,
                fallback_providers: list(&self.fallback_providers)?,
                mcp_servers: list(&self.mcp_servers)?,
                allowed_tools: list(&self.allowed_tools)?,
                available_sandboxes: list(&self.available_sandboxes)?,
            },
            created_at: UnixMillis(self.created_at),
            updated_at: UnixMillis(self.updated_at),
        })
    }
}
