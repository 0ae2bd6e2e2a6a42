//! Redis and Postgres for `baesrv dev --nodes`: those that the environment names, or installed ones started in the
//! folder.

use crate::cli::terminal::Failure;
use crate::config::{Environment, Usage};
use secrecy::SecretString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How long a started server may take until it accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How often that is tried.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The servers that a cluster needs. Those that were started here are killed when this is dropped.
pub(super) struct Services {
    pub(crate) redis_url: SecretString,
    pub(crate) database_url: SecretString,
    _started: Vec<Child>,
}

/// Takes the URLs of both from the environment, or starts them.
///
/// # Errors
/// What is missing, and what to set instead.
pub(super) async fn start(environment: &dyn Environment, data: &Path) -> Result<Services, Failure> {
    let mut started = Vec::new();
    let given = |name: &str| environment.get(name).filter(|text| !text.is_empty());
    let redis_url = match given("BAE_REDIS_URL") {
        Some(url) => url.into(),
        None => redis(data, &mut started).await?,
    };
    let database_url = match given("BAE_DATABASE_URL").filter(|url| url.starts_with("postgres")) {
        Some(url) => url.into(),
        None => postgres(environment, data, &mut started).await?,
    };
    Ok(Services { redis_url, database_url, _started: started })
}

async fn redis(data: &Path, started: &mut Vec<Child>) -> Result<SecretString, Failure> {
    let port = free_port()?;
    let folder = subfolder(data, "redis")?;
    let mut server = Command::new("redis-server");
    server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(&folder);
    let missing = "redis-server is not installed; install it, or set BAE_REDIS_URL to a running one";
    started.push(spawn(server, &folder.join("log"), missing)?);
    listening(port, "redis-server", &folder.join("log")).await?;
    Ok(format!("redis://127.0.0.1:{port}").into())
}

async fn postgres(
    environment: &dyn Environment,
    data: &Path,
    started: &mut Vec<Child>,
) -> Result<SecretString, Failure> {
    if std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0) {
        return Err(Usage::new(
            "Postgres refuses to run as root; set BAE_DATABASE_URL to a running one, or be another user",
        )
        .into());
    }
    let programs = programs(environment).ok_or_else(|| {
        Usage::new(
            "Postgres is not installed; install it (Debian: postgresql), or set BAE_DATABASE_URL to a running one",
        )
    })?;
    let folder =
        std::path::absolute(subfolder(data, "postgres")?).map_err(|error| Failure::Runtime(error.to_string()))?;
    let (cluster, log) = (folder.join("data"), folder.join("log"));
    if !cluster.join("PG_VERSION").exists() {
        let mut init = Command::new(programs.join("initdb"));
        init.args(["--username=bae", "--auth=trust", "--encoding=UTF8", "--pgdata"]).arg(&cluster);
        let ended = spawn(init, &log, "initdb cannot be started")?.wait().await;
        if !ended.is_ok_and(|status| status.success()) {
            return Err(Failure::Runtime(format!("initdb failed; {} says why", log.display())));
        }
    }
    let port = free_port()?;
    let mut server = Command::new(programs.join("postgres"));
    server.arg("-D").arg(&cluster).args(["-p", &port.to_string()]);
    server.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    started.push(spawn(server, &log, "postgres cannot be started")?);
    listening(port, "postgres", &log).await?;
    Ok(format!("postgres://bae@127.0.0.1:{port}/postgres").into())
}

/// The folder that holds Postgres's programs: one of `PATH`, or the newest version where Debian installs them.
fn programs(environment: &dyn Environment) -> Option<PathBuf> {
    let path = environment.get("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut debian: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    debian.sort();
    folders.extend(debian.into_iter().rev());
    folders.into_iter().find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
}

fn subfolder(data: &Path, name: &str) -> Result<PathBuf, Failure> {
    let folder = data.join(name);
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::Runtime(format!("cannot make the folder {}: {error}", folder.display())))?;
    Ok(folder)
}

/// Starts a program whose output goes to a log file. It is killed when its handle is dropped.
pub(super) fn spawn(mut command: Command, log: &Path, missing: &str) -> Result<Child, Failure> {
    let refuse = |error: std::io::Error| Failure::Runtime(format!("{missing} ({error})"));
    let file = std::fs::File::options().create(true).append(true).open(log).map_err(refuse)?;
    let copy = file.try_clone().map_err(refuse)?;
    command.stdin(Stdio::null()).stdout(Stdio::from(copy)).stderr(Stdio::from(file)).kill_on_drop(true);
    // In a process group of its own, because the terminal sends Ctrl-C to the whole group: `dev` stops the others in
    // order.
    command.process_group(0).spawn().map_err(refuse)
}

/// A loopback port that is free at this moment.
pub(super) fn free_port() -> Result<u16, Failure> {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    port.map(|addr| addr.port()).map_err(|error| Failure::Runtime(format!("no loopback port is free: {error}")))
}

/// Waits until the port accepts connections.
pub(super) async fn listening(port: u16, what: &str, log: &Path) -> Result<(), Failure> {
    let deadline = Instant::now() + START_TIMEOUT;
    while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        if Instant::now() >= deadline {
            return Err(Failure::Runtime(format!("{what} did not start; {} says why", log.display())));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
