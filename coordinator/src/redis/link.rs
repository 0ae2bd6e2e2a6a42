//! The connection to Redis: one shared multiplexed connection for commands, made again when it breaks, through Sentinel
//! where the URL says so; and dedicated ones for blocking reads.
//!
//! A command that timed out may have been applied, so every script is idempotent and is repeated once on a new connection.
//! Each script is told, as its last key, which run of the server it reaches: another run may have lost what the last one knew.

use super::Settings;
use deadpool_redis::{Manager, Pool, PoolError, Runtime, Timeouts};
use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, FromRedisValue, IntoConnectionInfo};
use redis::{RedisError, RedisResult, ScriptInvocation, TlsCertificates};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// To connect, and for the answer to one command.
const TIMEOUT: Duration = Duration::from_secs(2);
/// A blocking read has no answer for this long at most, and then a little.
const BLOCKING_SLACK: Duration = Duration::from_secs(3);

/// Where Redis is.
enum Target {
    Direct(Box<Client>),
    Sentinel(Box<Mutex<SentinelClient>>),
}

/// The shared connection with the name of the run it leads to, and when the last attempt to make one failed.
#[derive(Default)]
struct Shared {
    connection: Option<(MultiplexedConnection, String)>,
    failed: Option<Instant>,
}

/// The link.
pub(super) struct Link {
    target: Target,
    prefix: String,
    shared: Mutex<Shared>,
    up: AtomicBool,
    /// Why there was no connection, as it was logged: told once, not at every attempt.
    told: std::sync::Mutex<String>,
}

impl Link {
    /// A link to what the settings name. Connects at the first use.
    ///
    /// # Errors
    /// What is wrong with the settings, without what may be secret in them.
    pub fn new(settings: &Settings) -> Result<Self, String> {
        let url = secrecy::ExposeSecret::expose_secret(&settings.url);
        let tls = ["rediss://", "sentinels://"].iter().any(|scheme| url.starts_with(scheme));
        let certificates = match &settings.ca {
            None => None,
            Some(_) if !tls => return Err("BAE_REDIS_CA is for rediss:// and sentinels:// in BAE_REDIS_URL".into()),
            Some(path) => Some(authority(path)?),
        };
        let unusable = |error: RedisError| match &settings.ca {
            Some(_) if error.is_io_error() => format!("BAE_REDIS_CA cannot be used: {error}"),
            _ => format!("BAE_REDIS_URL cannot be used: {}", error.category()),
        };
        let target = match (url.split_once("://"), certificates) {
            (Some(("sentinel" | "sentinels", rest)), certificates) => {
                sentinel(rest, tls, certificates).map(|client| Target::Sentinel(Box::new(Mutex::new(client))))
            }
            (_, None) => Client::open(url).map(|client| Target::Direct(Box::new(client))),
            (_, Some(certificates)) => {
                Client::build_with_tls(url, certificates).map(|client| Target::Direct(Box::new(client)))
            }
        };
        Ok(Self {
            target: target.map_err(unusable)?,
            prefix: settings.prefix.clone(),
            shared: Mutex::default(),
            up: AtomicBool::new(false),
            told: std::sync::Mutex::default(),
        })
    }

    /// Whether the last exchange succeeded.
    pub fn up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    async fn connect(&self, response_timeout: Duration) -> RedisResult<MultiplexedConnection> {
        let config = config(response_timeout);
        let made = async { self.server().await?.get_multiplexed_async_connection_with_config(&config).await }.await;
        self.tell(made.as_ref().err());
        made
    }

    /// The server that takes commands now.
    async fn server(&self) -> RedisResult<Client> {
        match &self.target {
            Target::Direct(client) => Ok(Client::clone(client)),
            Target::Sentinel(client) => {
                let find = async { client.lock().await.async_get_client().await };
                tokio::time::timeout(2 * TIMEOUT, find)
                    .await
                    .unwrap_or_else(|_| Err(RedisError::from((ErrorKind::Io, "no Sentinel named a server in time"))))
            }
        }
    }

    /// Logs why there is no connection, or that there is one again.
    fn tell(&self, error: Option<&RedisError>) {
        let now = error.map(ToString::to_string).unwrap_or_default();
        let mut told = super::locked(&self.told);
        if *told != now {
            match error {
                Some(error) => tracing::warn!(%error, "redis cannot be reached"),
                None => tracing::info!("redis is reached again"),
            }
            *told = now;
        }
    }

    async fn shared(&self) -> RedisResult<(MultiplexedConnection, String)> {
        let asked = Instant::now();
        let mut shared = self.shared.lock().await;
        if let Some(connection) = shared.connection.as_ref() {
            return Ok(connection.clone());
        }
        // Whoever waited for another's attempt shares its failure: they do not try one after the other.
        if shared.failed.is_some_and(|failed| failed > asked) {
            return Err(RedisError::from((ErrorKind::Io, "no connection could be made")));
        }
        let made = async {
            let mut connection = self.connect(TIMEOUT).await?;
            let run = run_id(&mut connection).await?;
            Ok((connection, format!("{}run:{run}", self.prefix)))
        };
        // Boxed, because it is rare and large, and every call of a script may have to wait for it.
        match Box::pin(made).await {
            Ok(connection) => {
                shared.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                self.up.store(false, Ordering::Relaxed);
                shared.failed = Some(Instant::now());
                Err(error)
            }
        }
    }

    /// A connection of its own, for reads that block up to `block`. It is taken out of its pool for good: one that comes back
    /// with a read still blocking on it would keep the next user waiting.
    pub async fn dedicated(&self, block: Duration) -> RedisResult<MultiplexedConnection> {
        let server = self.server().await?;
        let manager = Manager::new_with_config(server.get_connection_info().clone(), config(block + BLOCKING_SLACK))?;
        let timeouts = Timeouts { wait: Some(TIMEOUT), create: Some(2 * TIMEOUT), recycle: Some(TIMEOUT) };
        let pool = Pool::builder(manager).max_size(1).timeouts(timeouts).runtime(Runtime::Tokio1).build();
        let failed = |why: String| RedisError::from((ErrorKind::Io, "no connection for the inbox", why));
        let pool = pool.map_err(|error| failed(error.to_string()))?;
        match pool.get().await {
            Ok(connection) => Ok(deadpool_redis::Connection::take(connection)),
            Err(PoolError::Backend(error)) => Err(error),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Runs an idempotent script; once more when the connection turned out to be broken.
    pub async fn run<T: FromRedisValue>(&self, mut script: ScriptInvocation<'_>) -> RedisResult<T> {
        match self.once(&mut script).await {
            Err(error) if broken(&error) && !error.is_timeout() => self.once(&mut script).await,
            result => result,
        }
    }

    /// What the server does when its memory is full; empty where it does not say.
    pub async fn policy(&self) -> RedisResult<String> {
        let (mut connection, _) = self.shared().await?;
        let info: RedisResult<redis::InfoDict> = redis::cmd("INFO").arg("memory").query_async(&mut connection).await;
        match self.noted(info).await {
            Ok(info) => Ok(info.get("maxmemory_policy").unwrap_or_default()),
            Err(error) if broken(&error) => Err(error),
            Err(_) => Ok(String::new()),
        }
    }

    async fn once<T: FromRedisValue>(&self, script: &mut ScriptInvocation<'_>) -> RedisResult<T> {
        let (mut connection, run) = self.shared().await?;
        let result = script.key(run).invoke_async(&mut connection).await;
        self.noted(result).await
    }

    /// Notes whether Redis is up, and forgets a connection that broke.
    async fn noted<T>(&self, result: RedisResult<T>) -> RedisResult<T> {
        match &result {
            Err(error) if broken(error) => {
                self.up.store(false, Ordering::Relaxed);
                self.shared.lock().await.connection = None;
            }
            Ok(_) | Err(_) => self.up.store(true, Ordering::Relaxed),
        }
        result
    }
}

/// The crate's default of 500 ms for an answer is too short for either use.
fn config(response_timeout: Duration) -> AsyncConnectionConfig {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(TIMEOUT));
    config.set_response_timeout(Some(response_timeout))
}

/// Which run of the server this is. A server that does not let us ask can still be seen to be empty.
async fn run_id(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    let info: RedisResult<redis::InfoDict> = redis::cmd("INFO").arg("server").query_async(connection).await;
    match info {
        Ok(info) => Ok(info.get("run_id").unwrap_or_default()),
        Err(error) if broken(&error) => Err(error),
        Err(_) => Ok(String::new()),
    }
}

/// Whether another connection is needed; a replica that was the master is one of the reasons.
fn broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || matches!(error.code(), Some("READONLY" | "LOADING" | "MASTERDOWN"))
}

/// The certificates of the authority that signs the servers', instead of the public ones.
fn authority(path: &std::path::Path) -> Result<TlsCertificates, String> {
    let read = std::fs::read(path);
    let pem = read.map_err(|error| format!("BAE_REDIS_CA cannot be read: {}: {error}", path.display()))?;
    let one = b"-----BEGIN CERTIFICATE-----";
    if !pem.windows(one.len()).any(|window| window == one) {
        return Err(format!("BAE_REDIS_CA holds no certificate in PEM form: {}", path.display()));
    }
    Ok(TlsCertificates { client_tls: None, root_cert: Some(pem) })
}

/// `[user:password@]host:port[,host:port…]/service[/db][?sentinel=[user:]password]`: the login of the servers in front, that
/// of the Sentinels behind.
fn sentinel(rest: &str, tls: bool, certificates: Option<TlsCertificates>) -> RedisResult<SentinelClient> {
    let form = "sentinel://[user:password@]host:port,…/service[/db][?sentinel=[user:]password]";
    let wrong = || RedisError::from((ErrorKind::InvalidClientConfig, form));
    let (rest, own) = rest.split_once("?sentinel=").map_or((rest, None), |(rest, own)| (rest, Some(own)));
    let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
    let (hosts, service) = rest.split_once('/').ok_or_else(wrong)?;
    let (service, db) = service.split_once('/').map_or((service, None), |(service, db)| (service, Some(db)));
    let mut sentinels: Vec<ConnectionAddr> = Vec::new();
    for host in hosts.split(',') {
        let scheme = if tls { "rediss" } else { "redis" };
        sentinels.push(format!("{scheme}://{host}").into_connection_info()?.addr().clone());
    }
    let mut builder = SentinelClientBuilder::new(sentinels, service, SentinelServerType::Master)?;
    if let Some(login) = login {
        let (user, password) = login.split_once(':').ok_or_else(wrong)?;
        if !user.is_empty() {
            builder = builder.set_client_to_redis_username(user);
        }
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(own) = own {
        let (user, password) = own.split_once(':').unwrap_or(("", own));
        if !user.is_empty() {
            builder = builder.set_client_to_sentinel_username(user);
        }
        builder = builder.set_client_to_sentinel_password(password);
    }
    if let Some(db) = db {
        builder = builder.set_client_to_redis_db(db.parse().map_err(|_| wrong())?);
    }
    if tls {
        builder = builder.set_client_to_redis_tls_mode(redis::TlsMode::Secure);
    }
    if let Some(certificates) = certificates {
        builder = builder.set_client_to_sentinel_certificates(certificates.clone());
        builder = builder.set_client_to_redis_certificates(certificates);
    }
    builder.build()
}
