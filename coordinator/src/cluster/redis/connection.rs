//! The connections to Redis: one that all commands share, made again when it breaks, and dedicated ones for blocking
//! reads. Where the URL names Sentinels, they are asked which server to connect to.
//!
//! A command whose connection broke may have been applied, so every script has the same effect when it is repeated, and
//! is repeated once on a new connection. The last key of each script names the run of the server that it was sent to. A
//! server with another run id may have lost what was written before; the script notices that (`scripts`).

use super::Settings;
use super::endpoint::Endpoint;
use crate::metrics::metrics;
use deadpool_redis::{Manager, Pool, PoolError, Runtime, Timeouts};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, FromRedisValue, RedisError, RedisResult, ScriptInvocation};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long connecting may take, and how long the answer to one command.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How much later than its own end a blocking read may be answered.
const BLOCKING_SLACK: Duration = Duration::from_secs(3);

/// The shared connection with the key that names the run of its server, and when the last attempt to connect failed.
#[derive(Default)]
struct Shared {
    connection: Option<(MultiplexedConnection, String)>,
    failed: Option<Instant>,
}

/// The connections to Redis, made at the first use and again when they break.
pub(super) struct Connection {
    endpoint: Endpoint,
    prefix: String,
    shared: Mutex<Shared>,
    up: AtomicBool,
    /// The last reason that was logged for having no connection, so that it is logged once and not at every attempt.
    /// Empty when there is a connection.
    told: std::sync::Mutex<String>,
}

impl Connection {
    /// Prepares connections to the server that the settings name. Connects at the first use.
    ///
    /// # Errors
    /// Says what is wrong with the settings, without repeating anything secret.
    pub(super) fn new(settings: &Settings) -> Result<Self, String> {
        Ok(Self {
            endpoint: Endpoint::new(settings)?,
            prefix: settings.prefix.clone(),
            shared: Mutex::default(),
            up: AtomicBool::new(false),
            told: std::sync::Mutex::default(),
        })
    }

    /// Whether the last command was answered.
    pub(super) fn up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    async fn connect(&self, response_timeout: Duration) -> RedisResult<MultiplexedConnection> {
        let config = config(response_timeout);
        let made =
            async { self.endpoint.server().await?.get_multiplexed_async_connection_with_config(&config).await }.await;
        self.tell(made.as_ref().err());
        made
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
        // All tasks that waited while one of them tried to connect share its failure, instead of trying one after
        // another.
        if shared.failed.is_some_and(|failed| failed > asked) {
            return Err(RedisError::from((ErrorKind::Io, "no connection could be made")));
        }
        let made = async {
            let mut connection = self.connect(TIMEOUT).await?;
            let run = run_id(&mut connection).await?;
            Ok((connection, format!("{}run:{run}", self.prefix)))
        };
        // Boxed because this future is large and rarely needed, but is part of the future of every script call.
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

    /// Makes a dedicated connection for reads that block for up to `block`. It never goes back to the pool it comes
    /// from, because a read that still blocks on it would keep its next user waiting.
    pub(super) async fn dedicated(&self, block: Duration) -> RedisResult<MultiplexedConnection> {
        let server = self.endpoint.server().await?;
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

    /// Runs a script that may be repeated. Repeats it once if the connection turns out to be broken.
    pub(super) async fn run<T: FromRedisValue>(&self, mut script: ScriptInvocation<'_>) -> RedisResult<T> {
        match self.once(&mut script).await {
            Err(error) if broken(&error) && !error.is_timeout() => self.once(&mut script).await,
            result => result,
        }
    }

    /// The server's `maxmemory-policy`: what it does when its memory is full. Empty if it does not say.
    pub(super) async fn policy(&self) -> RedisResult<String> {
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
        let asked = Instant::now();
        let result = script.key(run).invoke_async(&mut connection).await;
        metrics().redis_duration.since(asked);
        self.noted(result).await
    }

    /// Records whether Redis answers, and drops a connection that broke.
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

/// The settings of a connection. The `redis` crate waits 500 ms for an answer by default, which is too short here.
fn config(response_timeout: Duration) -> AsyncConnectionConfig {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(TIMEOUT));
    config.set_response_timeout(Some(response_timeout))
}

/// The id of the server's run. Empty if an ACL forbids the question; the scripts then still notice a server without
/// data.
async fn run_id(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    let info: RedisResult<redis::InfoDict> = redis::cmd("INFO").arg("server").query_async(connection).await;
    match info {
        Ok(info) => Ok(info.get("run_id").unwrap_or_default()),
        Err(error) if broken(&error) => Err(error),
        Err(_) => Ok(String::new()),
    }
}

/// Whether a new connection is needed after this error. It is when this one broke, and when its server cannot take
/// writes, for example because it is now a replica.
fn broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || matches!(error.code(), Some("READONLY" | "LOADING" | "MASTERDOWN"))
}
