//! The connection to Redis: one shared multiplexed connection for commands, made again when it breaks, through Sentinel
//! where the URL says so; and dedicated ones for blocking reads.
//!
//! A command that timed out may have been applied, so every script is idempotent and is repeated once on a new connection.
//! Each script is told, as its last key, which run of the server it reaches: another run may have lost what the last one knew.

use super::Settings;
use super::endpoint::Endpoint;
use deadpool_redis::{Manager, Pool, PoolError, Runtime, Timeouts};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, FromRedisValue, RedisError, RedisResult, ScriptInvocation};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// To connect, and for the answer to one command.
const TIMEOUT: Duration = Duration::from_secs(2);
/// A blocking read has no answer for this long at most, and then a little.
const BLOCKING_SLACK: Duration = Duration::from_secs(3);

/// The shared connection with the name of the run it leads to, and when the last attempt to make one failed.
#[derive(Default)]
struct Shared {
    connection: Option<(MultiplexedConnection, String)>,
    failed: Option<Instant>,
}

/// The connection to Redis, made at the first use and again when it breaks.
pub(super) struct Connection {
    endpoint: Endpoint,
    prefix: String,
    shared: Mutex<Shared>,
    up: AtomicBool,
    /// Why there was no connection, as it was logged: told once, not at every attempt.
    told: std::sync::Mutex<String>,
}

impl Connection {
    /// The connection to the server that the settings name. Connects at the first use.
    ///
    /// # Errors
    /// What is wrong with the settings, without what may be secret in them.
    pub(super) fn new(settings: &Settings) -> Result<Self, String> {
        Ok(Self {
            endpoint: Endpoint::new(settings)?,
            prefix: settings.prefix.clone(),
            shared: Mutex::default(),
            up: AtomicBool::new(false),
            told: std::sync::Mutex::default(),
        })
    }

    /// Whether the last exchange succeeded.
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

    /// Runs an idempotent script; once more when the connection turned out to be broken.
    pub(super) async fn run<T: FromRedisValue>(&self, mut script: ScriptInvocation<'_>) -> RedisResult<T> {
        match self.once(&mut script).await {
            Err(error) if broken(&error) && !error.is_timeout() => self.once(&mut script).await,
            result => result,
        }
    }

    /// What the server does when its memory is full; empty where it does not say.
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
