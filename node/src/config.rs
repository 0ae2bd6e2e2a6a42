//! The configuration: a flag wins over an environment variable, which wins over the file, which wins over the default.
//!
//! Only this module reads the process's environment. Apart from [`Config::load`], which reads the file, it has no
//! effects: flags, variables and the file's text go in, and a checked [`Config`] or one line that says what to change
//! comes out. Secrets are [`SecretString`] from the moment they are parsed, and no error and no `Debug` shows them.
//!
//! Each setting of [`Config`] without a remark of its own can be given as a flag, as `BAE_<NAME>`, and as `<name>` in
//! the file's `[server]` table.

mod file;
mod placeholder;
mod registry;
mod sandbox;
mod source;
mod telemetry;
#[cfg(test)]
mod tests;
mod unknown;

pub(crate) use placeholder::resolve;
pub(crate) use registry::{Provider, default_base_url};
pub(crate) use sandbox::{Sandbox, SandboxDriver, docker_host};
pub(crate) use source::{Environment, Flags, ProcessEnvironment};
pub(crate) use telemetry::{Protocol, Telemetry};
pub(crate) use unknown::unknown_variables;

use crate::mcp::ServerConfig;
use crate::secret::Kind;
use secrecy::SecretString;
use source::Settings;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A mistake in flags, variables or the file: one line that says what to change. The program exits with code 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(String);

impl Usage {
    /// The error with this text; line breaks in it become spaces.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self(if text.contains('\n') { text.split_whitespace().collect::<Vec<_>>().join(" ") } else { text })
    }
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Whether the admin port asks for the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdminAuth {
    /// Every request needs the key.
    Required,
    /// `--dangerously-disable-admin-auth`: no request needs it.
    Disabled,
}

/// Where the admin key comes from.
#[derive(Debug, Clone)]
pub(crate) enum AdminKey {
    /// `BAE_ADMIN_KEY` holds it.
    Supplied(SecretString),
    /// Generated at the first start and written to the file.
    Made,
    /// `--rotate-admin-key`: a new one is generated and written to the file.
    Rotated,
}

/// Where the data is stored.
#[derive(Clone)]
pub(crate) enum Database {
    /// A file on this machine, for one node.
    Sqlite(PathBuf),
    /// A Postgres server, by its URL, which may hold a password.
    Postgres(SecretString),
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Database::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Database::Postgres(_) => f.write_str("postgres"),
        }
    }
}

/// The PEM files of the TLS ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The certificate, followed by those between it and its authority.
    pub(crate) cert: PathBuf,
    /// Its private key.
    pub(crate) key: PathBuf,
}

/// Everything that can be set.
#[derive(Clone)]
pub(crate) struct Config {
    /// `BAE_ADDR`, `--addr`: the client port. Default `0.0.0.0:8080`.
    pub(crate) addr: SocketAddr,
    /// `BAE_ADMIN_ADDR`, `--admin-addr`: the admin port. Default `127.0.0.1:8081`; another address than loopback is
    /// refused unless `BAE_ADMIN_ALLOW_REMOTE=1`.
    pub(crate) admin_addr: SocketAddr,
    /// `--dangerously-disable-admin-auth`, off.
    pub(crate) admin_auth: AdminAuth,
    /// `BAE_ADMIN_KEY`, `--rotate-admin-key`.
    pub(crate) admin_key: AdminKey,
    /// `BAE_ADMIN_KEY_FILE`, `--admin-key-file`: where a made admin key is written. Default `admin.key` beside the
    /// database.
    pub(crate) admin_key_file: PathBuf,
    /// `BAE_DATABASE_URL`, `--database-url`: `sqlite:PATH` or `postgres://…`. Default `sqlite:bae.db`.
    pub(crate) database: Database,
    /// `BAE_DATABASE_CONNECTIONS`: connections to Postgres at most. Default 10.
    pub(crate) database_connections: u32,
    /// `BAE_REDIS_URL`: the cluster's Redis (`redis://`, `rediss://`, `sentinel://`). Without it, this node is alone.
    /// `BAE_REDIS_CA`: a PEM file with the certificate authority of the Redis server. `BAE_REDIS_PREFIX`: the beginning
    /// of every key in Redis, default `bae:`. `BAE_LEASE`: for how many seconds a node that is lost keeps its sessions,
    /// default 10.
    pub(crate) redis: Option<coordinator::cluster::redis::Settings>,
    /// `BAE_LOG`, `--log`: what is logged, as a filter like `info,node=debug`. Default `info`.
    pub(crate) log: String,
    /// `BAE_LOG_FORMAT`, `--log-format`: `text` or `json`. Default `text`.
    pub(crate) log_format: LogFormat,
    /// `BAE_OTEL_LOG`: which spans are exported, as a filter. Default `info`.
    pub(crate) otel_log: String,
    /// `BAE_METRICS_ADDR`, `--metrics-addr`: the port on which Prometheus reads the metrics. Default: none, which `off`
    /// says too.
    pub(crate) metrics_addr: Option<SocketAddr>,
    /// `BAE_MAX_CONNECTIONS`: connections to the client port at once. Default 50000, or three quarters of the open files
    /// that the system allows the process, if those are fewer.
    pub(crate) max_connections: u32,
    /// `BAE_TLS_CERT` and `BAE_TLS_KEY`: PEM files with the certificate chain and the private key of the client port and
    /// the admin port, which speak plain HTTP without them. An admin port on a loopback address always does.
    pub(crate) tls: Option<TlsFiles>,
    /// `BAE_RETENTION_DAYS`: for how many days sessions that have ended are kept. Default: for ever.
    pub(crate) retention: Option<Duration>,
    /// `BAE_SHUTDOWN_TIMEOUT`: seconds that running turns have to end after a stop signal. Default 30.
    pub(crate) shutdown_timeout: Duration,
    /// `BAE_TURN_TIMEOUT`: seconds that a paused turn waits for its client. Default 120.
    pub(crate) turn_timeout: Duration,
    /// `BAE_MAX_TURN_ITERATIONS`: provider round trips of one turn. Default 8.
    pub(crate) max_turn_iterations: u32,
    /// `BAE_MAX_QUEUED_CALLS`: calls that may wait in one session. Default 1000.
    pub(crate) max_queued_calls: u32,
    /// `BAE_MAX_BODY`: bytes of one request's body. Default 33554432 (32 MiB).
    pub(crate) max_body: usize,
    /// `BAE_STREAM_KEEPALIVE`: seconds of silence after which a stream gets an empty line. Default 0: never.
    pub(crate) stream_keepalive: Option<Duration>,
    /// `BAE_FORWARD_CLIENT_EVENTS`: whether subscriptions show the clients' own events unless they ask otherwise.
    /// Default 0.
    pub(crate) forward_client_events: bool,
    /// Where sandboxes and subagents run.
    pub(crate) sandbox: Sandbox,
    /// `BAE_SUBAGENT_TIMEOUT`: seconds that a subagent may run. Default 600.
    pub(crate) subagent_timeout: Duration,
    /// `BAE_MAX_SUBAGENTS_PER_SESSION`: subagents that run in one session at once. Default 8.
    pub(crate) max_subagents_per_session: u32,
    /// `BAE_MCP_IDLE`: seconds after which an unused connection to an MCP server is closed. Default 1800.
    pub(crate) mcp_idle: Duration,
    /// `BAE_MCP_TIMEOUT`: seconds that one call of an MCP tool may take. Default 120.
    pub(crate) mcp_timeout: Duration,
    /// `[[providers.entries]]`, in the order of the file.
    pub(crate) providers: Vec<Provider>,
    /// `[[mcp.servers]]`, in the order of the file.
    pub(crate) mcp_servers: Vec<ServerConfig>,
    /// `[telemetry]`.
    pub(crate) telemetry: Telemetry,
    /// Where `${NAME}` is looked up.
    pub(crate) environment: Arc<dyn Environment>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("addr", &self.addr).field("admin_addr", &self.admin_addr).finish_non_exhaustive()
    }
}

/// The keys of `[server]`. `BAE_ADMIN_KEY` is not among them, so that the admin key stays out of the file.
const SETTINGS: [&str; 45] = [
    "addr",
    "admin_addr",
    "admin_allow_remote",
    "admin_key_file",
    "database_url",
    "database_connections",
    "redis_url",
    "redis_ca",
    "redis_prefix",
    "lease",
    "log",
    "log_format",
    "otel_log",
    "metrics_addr",
    "shutdown_timeout",
    "turn_timeout",
    "max_turn_iterations",
    "max_queued_calls",
    "max_body",
    "max_connections",
    "tls_cert",
    "tls_key",
    "retention_days",
    "stream_keepalive",
    "forward_client_events",
    "sandbox_driver",
    "sandbox_memory",
    "sandbox_cpu",
    "sandbox_pids",
    "sandbox_max_age",
    "sandbox_network",
    "sandbox_exec_timeout",
    "sandbox_output_cap",
    "sandbox_namespace",
    "sandbox_runtime_class",
    "sandbox_node_selector",
    "sandbox_tolerations",
    "sandbox_pull_secrets",
    "sandbox_pull_policy",
    "sandbox_labels",
    "sandbox_start_timeout",
    "subagent_timeout",
    "max_subagents_per_session",
    "mcp_idle",
    "mcp_timeout",
];

impl Config {
    /// Reads the file that `--config` or `BAE_CONFIG` names, and builds.
    ///
    /// # Errors
    /// What to change.
    pub(crate) fn load(flags: &Flags, environment: Arc<dyn Environment>) -> Result<Self, Usage> {
        let none = BTreeMap::new();
        let named = Settings { flags, environment: environment.as_ref(), file: &none }.text("config");
        let text = named.map(|path| file::read(Path::new(&path))).transpose()?.unwrap_or_default();
        Self::build(flags, environment, &text)
    }

    /// Builds from flags, environment and the file's text.
    ///
    /// # Errors
    /// What to change.
    pub(crate) fn build(flags: &Flags, environment: Arc<dyn Environment>, file: &str) -> Result<Self, Usage> {
        let file = file::parse(file)?;
        let mut table = BTreeMap::new();
        for (name, value) in &file.server {
            if !SETTINGS.contains(&name.as_str()) {
                return Err(Usage::new(format!("[server] {name}: there is no such setting; remove it")));
            }
            table.insert(name.clone(), value.text());
        }
        let settings = Settings { flags, environment: environment.as_ref(), file: &table };
        let database = database(&settings)?;
        let beside = match &database {
            Database::Sqlite(path) => path.with_file_name("admin.key"),
            Database::Postgres(_) => PathBuf::from("admin.key"),
        };
        let redis = redis(&settings, &database)?;
        Ok(Self {
            addr: settings.parsed("addr", ADDRESS, address)?.unwrap_or_else(|| ([0, 0, 0, 0], 8080).into()),
            admin_addr: admin_addr(&settings)?,
            admin_auth: if flags.disable_admin_auth { AdminAuth::Disabled } else { AdminAuth::Required },
            admin_key: admin_key(&settings)?,
            admin_key_file: settings.text("admin_key_file").map_or(beside, PathBuf::from),
            database,
            redis,
            database_connections: settings.count("database_connections", 10)?,
            log: filter(&settings, "log")?,
            log_format: settings.parsed("log_format", "text or json", log_format)?.unwrap_or(LogFormat::Text),
            otel_log: filter(&settings, "otel_log")?,
            metrics_addr: metrics_addr(&settings)?,
            max_connections: settings.count("max_connections", 50_000)?,
            tls: tls(&settings)?,
            retention: settings.days("retention_days")?,
            shutdown_timeout: settings.seconds_or_zero("shutdown_timeout", 30)?,
            turn_timeout: settings.seconds("turn_timeout", 120)?,
            max_turn_iterations: settings.count("max_turn_iterations", 8)?,
            max_queued_calls: settings.count("max_queued_calls", 1000)?,
            max_body: settings.count("max_body", 32 << 20)? as usize,
            stream_keepalive: Some(settings.seconds_or_zero("stream_keepalive", 0)?).filter(|time| !time.is_zero()),
            forward_client_events: settings.switch("forward_client_events")?,
            sandbox: Sandbox::build(&settings, environment.as_ref())?,
            subagent_timeout: settings.seconds("subagent_timeout", 600)?,
            max_subagents_per_session: settings.count("max_subagents_per_session", 8)?,
            mcp_idle: settings.seconds("mcp_idle", 1800)?,
            mcp_timeout: settings.seconds("mcp_timeout", 120)?,
            providers: file.providers.check()?,
            mcp_servers: file.mcp.check()?,
            telemetry: file.telemetry.check()?,
            environment,
        })
    }

    /// Whether anybody reads the metrics of this node.
    pub(crate) fn has_metrics(&self) -> bool {
        self.metrics_addr.is_some() || self.telemetry.enabled && self.telemetry.metrics
    }

    /// Whether spans are exported.
    pub(crate) fn has_traces(&self) -> bool {
        self.telemetry.enabled && self.telemetry.traces
    }

    /// The provider of that name.
    pub(crate) fn provider(&self, name: &str) -> Option<&Provider> {
        self.providers.iter().find(|provider| provider.entry.name == name)
    }
}

const ADDRESS: &str = "IP:PORT, like 127.0.0.1:8080";

fn address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => port.parse().ok().map(|port: u16| ([127, 0, 0, 1], port).into()),
        None => text.parse().ok(),
    }
}

fn admin_addr(settings: &Settings<'_>) -> Result<SocketAddr, Usage> {
    let addr = settings.parsed("admin_addr", ADDRESS, address)?.unwrap_or_else(|| ([127, 0, 0, 1], 8081).into());
    if !addr.ip().to_canonical().is_loopback() && !settings.switch("admin_allow_remote")? {
        return Err(Usage::new(format!(
            "the admin port must not be reachable from elsewhere, and {addr} may be; use a loopback address, or set \
             BAE_ADMIN_ALLOW_REMOTE=1 if the network keeps strangers out"
        )));
    }
    Ok(addr)
}

fn metrics_addr(settings: &Settings<'_>) -> Result<Option<SocketAddr>, Usage> {
    let none_or = |text: &str| if text == "off" { Some(None) } else { address(text).map(Some) };
    Ok(settings.parsed("metrics_addr", "IP:PORT, like 127.0.0.1:9464, or off", none_or)?.flatten())
}

fn tls(settings: &Settings<'_>) -> Result<Option<TlsFiles>, Usage> {
    // An empty path means none: `dev` passes it, so that a variable of the environment has no effect.
    let path = |name| settings.text(name).filter(|text| !text.trim().is_empty()).map(PathBuf::from);
    match (path("tls_cert"), path("tls_key")) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert, key })),
        (Some(_), None) => {
            Err(Usage::new("BAE_TLS_CERT needs BAE_TLS_KEY, the file with the certificate's private key"))
        }
        (None, Some(_)) => Err(Usage::new("BAE_TLS_KEY needs BAE_TLS_CERT, the file with the key's certificate")),
    }
}

fn admin_key(settings: &Settings<'_>) -> Result<AdminKey, Usage> {
    let flags = settings.flags;
    if flags.rotate_admin_key && flags.disable_admin_auth {
        return Err(Usage::new(
            "--rotate-admin-key and --dangerously-disable-admin-auth exclude each other; drop one of them",
        ));
    }
    let supplied = settings.environment.get("BAE_ADMIN_KEY").filter(|text| !text.is_empty());
    match supplied {
        Some(_) if flags.rotate_admin_key => Err(Usage::new(
            "--rotate-admin-key makes a new key, but BAE_ADMIN_KEY supplies one; change BAE_ADMIN_KEY instead, or unset it",
        )),
        Some(key) if !Kind::Admin.matches(key.trim()) => Err(Usage::new(
            "BAE_ADMIN_KEY must be bae_admin_ and 48 digits of lower-case hex; make one with: \
             echo bae_admin_$(openssl rand -hex 24)",
        )),
        Some(key) => Ok(AdminKey::Supplied(key.trim().into())),
        None if flags.rotate_admin_key => Ok(AdminKey::Rotated),
        None => Ok(AdminKey::Made),
    }
}

fn database(settings: &Settings<'_>) -> Result<Database, Usage> {
    let Some(value) = settings.value("database_url") else { return Ok(Database::Sqlite("bae.db".into())) };
    let url = value.text.trim();
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(Database::Postgres(url.into()));
    }
    let path = url.strip_prefix("sqlite:").map(|rest| rest.strip_prefix("//").unwrap_or(rest));
    match path {
        None | Some("") => Err(value.refuse("must be sqlite:PATH, like sqlite:bae.db, or postgres://USER@HOST/NAME")),
        Some(path) if path.contains(":memory:") => {
            Err(value.refuse("must name a file: sessions have to survive a restart; write sqlite:PATH"))
        }
        Some(path) if path.contains('?') => {
            Err(value.refuse("must be sqlite:PATH without parameters; drop the ? part"))
        }
        Some(path) => Ok(Database::Sqlite(path.into())),
    }
}

fn redis(settings: &Settings<'_>, database: &Database) -> Result<Option<coordinator::cluster::redis::Settings>, Usage> {
    // An empty URL means none: `dev` with one node passes it, so that a variable of the environment has no effect.
    let Some(value) = settings.value("redis_url").filter(|value| !value.text.trim().is_empty()) else {
        return Ok(None);
    };
    let known = ["redis://", "rediss://", "sentinel://", "sentinels://"];
    if !known.iter().any(|scheme| value.text.trim().starts_with(scheme)) {
        return Err(value.refuse("must be redis://, rediss://, sentinel:// or sentinels://"));
    }
    if let Database::Sqlite(_) = database {
        return Err(
            value.refuse("makes a cluster, and nodes cannot share a SQLite file; set BAE_DATABASE_URL to Postgres")
        );
    }
    Ok(Some(coordinator::cluster::redis::Settings {
        url: value.text.trim().into(),
        ca: settings.text("redis_ca").map(PathBuf::from),
        prefix: settings.text("redis_prefix").unwrap_or_else(|| "bae:".to_owned()),
        lease: settings.seconds("lease", 10)?,
    }))
}

fn filter(settings: &Settings<'_>, name: &'static str) -> Result<String, Usage> {
    let valid = |text: &str| tracing_subscriber::EnvFilter::try_new(text).ok().map(|_| text.to_owned());
    let filter = settings.parsed(name, "a log filter, like info or info,node=debug", valid)?;
    Ok(filter.unwrap_or_else(|| "info".to_owned()))
}

fn log_format(text: &str) -> Option<LogFormat> {
    match text {
        "text" => Some(LogFormat::Text),
        "json" => Some(LogFormat::Json),
        _ => None,
    }
}
