//! The profile and the client key of `baesrv dev`. The first start creates them; later starts use them again.

use super::OWN_PROVIDERS;
use crate::admin::key::{read_secret, write_secret};
use crate::cli::terminal::Failure;
use crate::secret::{Kind, digest, visible_prefix};
use coordinator::accounts::{Accounts, Profile, ProfileFields};
use engine::ids::ProfileId;
use secrecy::{ExposeSecret, SecretString};
use std::path::Path;

/// The name of the profile and of the key.
const NAME: &str = "dev";

/// The client tools that the profile allows: those of `baesrv chat`, and names that are common in examples.
const TOOLS: [&str; 10] = [
    "get_current_time",
    "ask_user",
    "get_weather",
    "calculate",
    "search",
    "read_file",
    "write_file",
    "list_files",
    "launch_subagent",
    "local_subagent_status",
];

/// Returns the client key in the file, after making sure that the profile exists and asks this provider. A key that is
/// missing or that this database does not know is replaced.
pub(super) async fn prepare(
    accounts: &Accounts,
    file: &Path,
    provider: &str,
    mcp_servers: Vec<String>,
    images: Vec<String>,
) -> Result<SecretString, Failure> {
    let profile = profile(accounts, provider, mcp_servers, images).await?;
    let refuse =
        |error| Failure::Runtime(format!("cannot use {}: {error}; make it writable or move it", file.display()));
    if let Some(secret) = read_secret(file).map_err(refuse)? {
        let known = accounts.client(digest(secret.expose_secret())).await?;
        if known.is_some_and(|client| client.profile == profile) {
            return Ok(secret);
        }
    }
    let random = |error| Failure::Runtime(format!("the operating system gives no random bytes: {error}"));
    let secret = Kind::Client.generate().map_err(random)?;
    let digest = digest(secret.expose_secret());
    accounts.create_key(NAME.to_owned(), visible_prefix(&secret), digest, profile).await?;
    write_secret(file, &secret).map_err(refuse)?;
    Ok(secret)
}

async fn profile(
    accounts: &Accounts,
    provider: &str,
    mcp_servers: Vec<String>,
    images: Vec<String>,
) -> Result<ProfileId, Failure> {
    let Some(found) = find(accounts).await? else {
        let fields = ProfileFields {
            name: NAME.to_owned(),
            primary_provider: provider.to_owned(),
            fallback_providers: Vec::new(),
            mcp_servers,
            allowed_tools: TOOLS.map(str::to_owned).into(),
            available_sandboxes: images,
        };
        return Ok(accounts.create_profile(fields).await?.id);
    };
    // An administrator's changes stay: the provider is replaced only if an earlier start has chosen it.
    let mut fields = found.fields.clone();
    if OWN_PROVIDERS.contains(&fields.primary_provider.as_str()) {
        provider.clone_into(&mut fields.primary_provider);
    }
    for server in mcp_servers {
        if !fields.mcp_servers.contains(&server) {
            fields.mcp_servers.push(server);
        }
    }
    for image in images {
        if !fields.available_sandboxes.contains(&image) {
            fields.available_sandboxes.push(image);
        }
    }
    if fields != found.fields {
        accounts.replace_profile(found.id, fields).await?;
    }
    Ok(found.id)
}

async fn find(accounts: &Accounts) -> Result<Option<Profile>, Failure> {
    let mut after = None;
    loop {
        let (profiles, next) = accounts.profiles(after, 200).await?;
        if let Some(found) = profiles.into_iter().find(|profile| profile.fields.name == NAME) {
            return Ok(Some(found));
        }
        if next.is_none() {
            return Ok(None);
        }
        after = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordinator::Db;

    #[tokio::test]
    async fn later_starts_use_what_the_first_made() {
        let dir = std::env::temp_dir().join(format!("bae-dev-{}", uuid::Uuid::now_v7().simple()));
        let accounts = Accounts::new(Db::open(&dir.join("bae.db")).await.unwrap());
        let file = dir.join("client.key");
        let start = async |provider, mcp: &[&str]| {
            let mcp = mcp.iter().map(|name| (*name).to_owned()).collect();
            let key = prepare(&accounts, &file, provider, mcp, vec!["box:1".into()]).await.unwrap();
            let profiles = accounts.profiles(None, 50).await.unwrap().0;
            let [profile] = &profiles[..] else { panic!("one profile: {profiles:?}") };
            (key.expose_secret().to_owned(), profile.id, profile.fields.clone())
        };
        let (key, id, fields) = start("demo", &[]).await;
        assert!(fields.allowed_tools.contains(&"ask_user".to_owned()));
        assert_eq!(fields.available_sandboxes, ["box:1"]);
        assert_eq!(start("demo", &[]).await, (key.clone(), id, fields));

        let (again, _, fields) = start("openai", &["files"]).await;
        assert_eq!((again, fields.primary_provider.as_str()), (key.clone(), "openai"));
        assert_eq!(fields.mcp_servers, ["files"]);

        // What an administrator chose is left alone.
        accounts.replace_profile(id, ProfileFields { primary_provider: "mine".into(), ..fields }).await.unwrap();
        assert_eq!(start("demo", &[]).await.2.primary_provider, "mine");

        // If the file holds a key of another server, or is missing, this server writes a key of its own.
        std::fs::write(&file, "bae_other").unwrap();
        let (new, ..) = start("demo", &[]).await;
        assert_ne!(new, key);
        assert_eq!(start("demo", &[]).await.0, new);
        let _ = std::fs::remove_dir_all(&dir);
    }
}
