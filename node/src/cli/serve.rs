//! `baesrv serve` and `baesrv migrate`: load the configuration, open the database and, for `serve`, run the node.

use super::signals;
use super::terminal::Failure;
use crate::admin::key;
use crate::config::{Config, Database, Flags, ProcessEnvironment, Usage, unknown_variables};
use crate::export;
use crate::lifecycle::{self, Ports};
use crate::listen::Certificate;
use crate::logging;
use coordinator::accounts::Accounts;
use coordinator::{Db, Error, PostgresSettings};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Flags of `serve`. Everything else is set in the environment or the configuration file.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// The client port [BAE_ADDR; default 0.0.0.0:8080]
    #[arg(long, value_name = "IP:PORT")]
    addr: Option<String>,
    /// The admin port [BAE_ADMIN_ADDR; default 127.0.0.1:8081]
    #[arg(long, value_name = "IP:PORT")]
    admin_addr: Option<String>,
    /// The port on which Prometheus reads the metrics, or off [BAE_METRICS_ADDR; default off]
    #[arg(long, value_name = "IP:PORT")]
    metrics_addr: Option<String>,
    /// Where a made admin key is written [BAE_ADMIN_KEY_FILE; default admin.key beside the database]
    #[arg(long, value_name = "PATH")]
    admin_key_file: Option<String>,
    /// Make a new admin key, write it to the file and forget the old one
    #[arg(long)]
    rotate_admin_key: bool,
    /// Let everybody who reaches the admin port in
    #[arg(long)]
    dangerously_disable_admin_auth: bool,
}

/// Flags of `migrate`.
#[derive(clap::Args)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct Common {
    /// The configuration file, TOML [BAE_CONFIG]
    #[arg(long, value_name = "PATH")]
    config: Option<String>,
    /// The database, sqlite:PATH or postgres://USER@HOST/NAME [BAE_DATABASE_URL; default sqlite:bae.db]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// What is logged [BAE_LOG; default info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// text or json [BAE_LOG_FORMAT; default text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

impl Common {
    fn flags(self) -> Flags {
        let values = [
            ("config", self.config),
            ("database_url", self.database_url),
            ("log", self.log),
            ("log_format", self.log_format),
        ];
        Flags { values: given(values), ..Flags::default() }
    }
}

/// The flags with a value that were given, by setting.
pub(super) fn given(
    values: impl IntoIterator<Item = (&'static str, Option<String>)>,
) -> std::collections::BTreeMap<&'static str, String> {
    values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

impl Args {
    fn flags(self) -> Flags {
        let mut flags = self.common.flags();
        flags.values.extend(given([
            ("addr", self.addr),
            ("admin_addr", self.admin_addr),
            ("admin_key_file", self.admin_key_file),
            ("metrics_addr", self.metrics_addr),
        ]));
        flags.rotate_admin_key = self.rotate_admin_key;
        flags.disable_admin_auth = self.dangerously_disable_admin_auth;
        flags
    }
}

pub(super) async fn serve(args: Args) -> Result<(), Failure> {
    let config = Config::load(&args.flags(), Arc::new(ProcessEnvironment))?;
    let export = export::start(&config)?;
    logging::start(&config, export.tracer());
    for line in unknown_variables(config.environment.as_ref()) {
        tracing::warn!("{line}");
    }
    allow_open_files();
    let stop = signals::stop()?;
    let ports = bind(&config).await?;
    let db = open(&config).await?;
    key::prepare(&config, &Accounts::new(db.clone())).await.map_err(|error| Failure::Runtime(error.to_string()))?;
    Ok(Box::pin(lifecycle::run(config, db, ports, export, stop)).await?)
}

pub(super) async fn migrate(args: MigrateArgs) -> Result<(), Failure> {
    let config = Config::load(&args.common.flags(), Arc::new(ProcessEnvironment))?;
    logging::start(&config, None);
    let db = open(&config).await?;
    db.close().await;
    tracing::info!(database = %config.database, "the schema is up to date");
    Ok(())
}

/// Raises the limit of open files as far as the system allows. Every connection needs one, and the usual limit is 1024.
pub(super) fn allow_open_files() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(error = %error, "the limit of open files could not be raised"),
    }
}

/// Opens the database and brings its schema up to date. Without Redis it is locked for this node alone, so that a
/// second node on the same database is refused.
pub(super) async fn open(config: &Config) -> Result<Db, Error> {
    match &config.database {
        Database::Sqlite(path) => Db::open(path).await,
        Database::Postgres(url) => {
            let mut settings = PostgresSettings::new(url.clone());
            settings.max_connections = config.database_connections;
            let db = Db::connect(&settings).await?;
            if config.redis.is_none() {
                db.lock_single_node().await?;
            }
            Ok(db)
        }
    }
}

/// Binds the ports.
pub(super) async fn bind(config: &Config) -> Result<Ports, Failure> {
    if config.addr == config.admin_addr && config.addr.port() != 0 {
        let text = format!("both ports are {}; give --admin-addr another", config.addr);
        return Err(Usage::new(text).into());
    }
    let metrics = match config.metrics_addr {
        Some(addr) => Some(listen(addr, "--metrics-addr").await?),
        None => None,
    };
    let certificate = match &config.tls {
        Some(files) => Some(
            Certificate::load(&files.cert, &files.key)
                .map_err(|error| Usage::new(format!("BAE_TLS_CERT and BAE_TLS_KEY: {error}")))?,
        ),
        None => None,
    };
    let client = listen(config.addr, "--addr").await?;
    Ok(Ports { client, admin: listen(config.admin_addr, "--admin-addr").await?, metrics, certificate })
}

async fn listen(addr: SocketAddr, flag: &str) -> Result<TcpListener, Failure> {
    let refuse = |error| {
        Failure::Runtime(format!("cannot listen on {addr}: {error}; stop what uses it, or give {flag} another"))
    };
    TcpListener::bind(addr).await.map_err(refuse)
}
