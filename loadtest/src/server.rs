//! Starts a server program of this API for one run, with an empty data directory. A profile with the built-in provider,
//! and a client key, are made through the admin API.
//!
//! The server is stopped with a signal, as an operator would stop it, so that the size of its database is that after a
//! clean stop. If the run ends early, it is killed.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::client::http_client;
use crate::marker::random;
use crate::provider::TOOL;

const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(45);
const DATABASE: &str = "loadtest.db";

/// The running server.
pub(crate) struct Server {
    child: Child,
    directory: PathBuf,
    temporary: bool,
    pub url: String,
    pub key: String,
}

#[derive(Deserialize)]
struct Created {
    id: String,
}

#[derive(Deserialize)]
struct CreatedKey {
    key: String,
}

impl Server {
    pub(crate) async fn start(program: &Path, data: Option<&Path>, provider_url: &str) -> anyhow::Result<Server> {
        let (directory, temporary) = match data {
            Some(directory) => (directory.to_owned(), false),
            None => (std::env::temp_dir().join(format!("loadtest-{:016x}", random())), true),
        };
        std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        // The server has its own working directory, in which a relative path would name another place.
        let directory = directory.canonicalize()?;
        let program = program.canonicalize().with_context(|| format!("there is no {}", program.display()))?;
        ensure!(
            !directory.join(DATABASE).exists(),
            "{} holds the database of an earlier run; choose an empty --data",
            directory.display()
        );
        let config = directory.join("baesrv.toml");
        std::fs::write(&config, configuration(provider_url))?;
        let log = File::create(directory.join("server.log"))?;
        let (address, admin_address) = (free_address()?, free_address()?);
        let admin_key = format!("bae_admin_{:016x}{:016x}{:016x}", random(), random(), random());
        let mut command = Command::new(&program);
        command.arg("serve").current_dir(&directory).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Settings in the caller's environment must not change what is measured.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("BAE_")) {
            command.env_remove(name);
        }
        command.env("BAE_ADDR", &address).env("BAE_ADMIN_ADDR", &admin_address).env("BAE_ADMIN_KEY", &admin_key);
        command.env("BAE_CONFIG", &config);
        command.env("BAE_DATABASE_URL", format!("sqlite:{}", directory.join(DATABASE).display()));
        command.env("BAE_LOG", "warn");
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let mut server = Server { child, directory, temporary, url: format!("http://{address}"), key: String::new() };
        server.provision(&format!("http://{admin_address}/admin/v1"), &admin_key).await.with_context(|| {
            format!("{} did not come up; the end of its log:\n{}", program.display(), server.log_tail())
        })?;
        Ok(server)
    }

    /// Waits until the server answers, then makes a profile and a client key.
    async fn provision(&mut self, admin: &str, admin_key: &str) -> anyhow::Result<()> {
        let http = http_client(Duration::from_secs(10))?;
        let health = format!("{}/healthz", self.url);
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}");
            }
            match http.get(&health).send().await {
                Ok(answer) if answer.status().is_success() => break,
                Ok(answer) if Instant::now() > deadline => bail!("{health} still answers {}", answer.status()),
                Err(error) if Instant::now() > deadline => return Err(error).context("it still does not answer"),
                Ok(_) | Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
        let profile = json!({
            "name": "loadtest", "primary_provider": "loadtest", "fallback_providers": [], "mcp_servers": [],
            "allowed_tools": [TOOL], "available_sandboxes": [],
        });
        let profile: Created = post(&http, &format!("{admin}/profiles"), admin_key, &profile).await?;
        let key = json!({"name": "loadtest", "profile_id": profile.id});
        let key: CreatedKey = post(&http, &format!("{admin}/keys"), admin_key, &key).await?;
        self.key = key.key;
        Ok(())
    }

    /// Stops the server and measures the size of its database with its write-ahead log.
    pub(crate) async fn stop(mut self) -> anyhow::Result<Stopped> {
        let pid = self.child.id().context("the server ended before it was told to")?;
        let signalled = Command::new("kill").arg("-TERM").arg(pid.to_string()).status().await;
        ensure!(signalled.context("cannot run kill")?.success(), "cannot signal the server");
        let status = timeout(STOP_LIMIT, self.child.wait()).await.context("the server did not stop in time")??;
        let mut database_bytes = 0;
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(DATABASE) {
                database_bytes += entry.metadata()?.len();
            }
        }
        ensure!(database_bytes > 0, "the server left no {DATABASE} in {}", self.directory.display());
        Ok(Stopped { database_bytes, clean: status.success() })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.directory.join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.temporary {
            // If this fails, files are left in the temporary directory, which does no harm.
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}

/// How a run's server ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopped {
    pub database_bytes: u64,
    /// Whether it ended with status 0.
    pub clean: bool,
}

fn configuration(provider_url: &str) -> String {
    format!(
        "[[providers.entries]]\nname = \"loadtest\"\nprovider = \"anthropic\"\nbase_url = \"{provider_url}\"\n\
         model = \"loadtest\"\nauth_token = \"loadtest\"\n"
    )
}

/// A loopback address that is free now. The server binds it later.
fn free_address() -> anyhow::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

async fn post<T: serde::de::DeserializeOwned>(
    http: &reqwest::Client,
    url: &str,
    key: &str,
    body: &serde_json::Value,
) -> anyhow::Result<T> {
    let answer = http.post(url).bearer_auth(key).json(body).send().await?;
    let status = answer.status();
    let text = answer.text().await?;
    ensure!(status.is_success(), "POST {url} answered {status}: {text}");
    serde_json::from_str(&text).with_context(|| format!("POST {url} answered something else: {text}"))
}
