//! The connection to Redis: one shared multiplexed connection for commands, made again when it breaks, through Sentinel
//! where the URL says so; and dedicated ones for blocking reads.
//!
//! A command that timed out may have been applied, so every script is idempotent and is repeated once on a new connection.

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, FromRedisValue, IntoConnectionInfo};
use redis::{RedisError, RedisResult, ScriptInvocation};
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

/// The shared connection, and when the last attempt to make one failed.
#[derive(Default)]
struct Shared {
    connection: Option<MultiplexedConnection>,
    failed: Option<Instant>,
}

/// The link.
pub(super) struct Link {
    target: Target,
    shared: Mutex<Shared>,
    up: AtomicBool,
}

impl Link {
    /// A link to `redis://`, `rediss://` or `sentinel://[user:password@]host:port[,host:port…]/service[/db]`
    /// (`sentinels://` for TLS to the servers). Connects at the first use.
    pub fn new(url: &str) -> RedisResult<Self> {
        let target = match url.split_once("://") {
            Some(("sentinel", rest)) => Target::Sentinel(Box::new(Mutex::new(sentinel(rest, false)?))),
            Some(("sentinels", rest)) => Target::Sentinel(Box::new(Mutex::new(sentinel(rest, true)?))),
            _ => Target::Direct(Box::new(Client::open(url)?)),
        };
        Ok(Self { target, shared: Mutex::default(), up: AtomicBool::new(false) })
    }

    /// Whether the last exchange succeeded.
    pub fn up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    async fn connect(&self, response_timeout: Duration) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(response_timeout));
        match &self.target {
            Target::Direct(client) => client.get_multiplexed_async_connection_with_config(&config).await,
            Target::Sentinel(client) => {
                let find = async { client.lock().await.get_async_connection_with_config(&config).await };
                tokio::time::timeout(2 * TIMEOUT, find).await.unwrap_or_else(|_| {
                    Err(RedisError::from((ErrorKind::Io, "no Sentinel named a reachable server in time")))
                })
            }
        }
    }

    async fn shared(&self) -> RedisResult<MultiplexedConnection> {
        let asked = Instant::now();
        let mut shared = self.shared.lock().await;
        if let Some(connection) = shared.connection.as_ref() {
            return Ok(connection.clone());
        }
        // Whoever waited for another's attempt shares its failure: they do not try one after the other.
        if shared.failed.is_some_and(|failed| failed > asked) {
            return Err(RedisError::from((ErrorKind::Io, "no connection could be made")));
        }
        match self.connect(TIMEOUT).await {
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

    /// A connection of its own, for reads that block up to `block`.
    pub async fn dedicated(&self, block: Duration) -> RedisResult<MultiplexedConnection> {
        self.connect(block + BLOCKING_SLACK).await
    }

    /// Runs an idempotent script; once more when the connection turned out to be broken.
    pub async fn run<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> RedisResult<T> {
        match self.once(script).await {
            Err(error) if broken(&error) && !error.is_timeout() => self.once(script).await,
            result => result,
        }
    }

    /// Which run of the server this is: another one may have lost what the last one knew.
    pub async fn run_id(&self) -> RedisResult<String> {
        let mut connection = self.shared().await?;
        let info: RedisResult<redis::InfoDict> = redis::cmd("INFO").arg("server").query_async(&mut connection).await;
        let info = self.noted(info).await?;
        Ok(info.get("run_id").unwrap_or_default())
    }

    /// What the server does when its memory is full; empty where it does not say.
    pub async fn policy(&self) -> RedisResult<String> {
        let mut connection = self.shared().await?;
        let info: RedisResult<redis::InfoDict> = redis::cmd("INFO").arg("memory").query_async(&mut connection).await;
        Ok(self.noted(info).await?.get("maxmemory_policy").unwrap_or_default())
    }

    async fn once<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> RedisResult<T> {
        let mut connection = self.shared().await?;
        let result = script.invoke_async(&mut connection).await;
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

/// Whether another connection is needed; a replica that was the master is one of the reasons.
fn broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || matches!(error.code(), Some("READONLY" | "LOADING" | "MASTERDOWN"))
}

fn sentinel(rest: &str, tls: bool) -> RedisResult<SentinelClient> {
    let wrong =
        || RedisError::from((ErrorKind::InvalidClientConfig, "sentinel://[user:password@]host:port,…/service[/db]"));
    let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
    let (hosts, service) = rest.split_once('/').ok_or_else(wrong)?;
    let (service, db) = service.split_once('/').map_or((service, None), |(service, db)| (service, Some(db)));
    let mut sentinels: Vec<ConnectionAddr> = Vec::new();
    for host in hosts.split(',') {
        sentinels.push(format!("redis://{host}").into_connection_info()?.addr().clone());
    }
    let mut builder = SentinelClientBuilder::new(sentinels, service, SentinelServerType::Master)?;
    if let Some(login) = login {
        let (user, password) = login.split_once(':').ok_or_else(wrong)?;
        if !user.is_empty() {
            builder = builder.set_client_to_redis_username(user);
        }
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(db) = db {
        builder = builder.set_client_to_redis_db(db.parse().map_err(|_| wrong())?);
    }
    if tls {
        builder = builder.set_client_to_redis_tls_mode(redis::TlsMode::Secure);
    }
    builder.build()
}
