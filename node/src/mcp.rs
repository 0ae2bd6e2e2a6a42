//! Tools of MCP servers: this node's client side.
//!
//! A session's servers are connected when it is created, and their tools are listed once; the list is kept with the
//! session, so it survives restarts and a server that changes its tools. Connections are not kept: they are live only on
//! this node, one for each session and server, and a call makes a new one when there is none (after a restart, a death, an
//! idle close). A call that may have run is never repeated; whatever goes wrong becomes a text that the model can react to.
//!
//! Results, inputs and schemas pass through the typed messages of `rmcp`. Texts and integers of 64 bits survive as they
//! are; other numbers in the form of a double; members of objects are sorted, unknown members of known content are lost.
//!
//! Nothing here logs inputs, outputs, headers or URLs. The libraries do, so [`UNSAFE_TARGETS`] must stay off.

mod connection;
mod content;
mod http;
mod pool;
mod server;
mod sse;
mod stdio;
#[cfg(test)]
mod tests;
mod wire;

pub use content::{MAX_TEXT, content_blocks, error_blocks};
pub use server::{Resolve, ServerConfig, Transport};

use connection::{Connection, Dialer, Fault, Reply};
use engine::ids::SessionId;
use engine::json::Raw;
use engine::toolbox::McpTool;
use futures_util::future::join_all;
use pool::Pool;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The variables of the node's environment that a stdio server is given, if they are set; for [`Settings::environment`].
pub const INHERITED: [&str; 10] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// Log and span targets of the libraries in use that print messages or a child's environment. They must be off in every
/// filter, whatever level is asked for.
pub const UNSAFE_TARGETS: [&str; 3] = ["rmcp", "process_wrap", "sse_stream"];

/// How long the end of the node waits for connections to close.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// The bounds.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Live connections of the node, over all sessions. At the bound the longest idle one makes room.
    pub max_connections: usize,
    /// A connection that is not used for so long is closed.
    pub idle: Duration,
    /// To connect, initialise and list tools.
    pub connect_timeout: Duration,
    /// For one call.
    pub call_timeout: Duration,
    /// How long a stdio server may take to exit after its input closed, and again after SIGTERM.
    pub close_grace: Duration,
    /// Bytes of one message from a server.
    pub max_message: usize,
    /// What every stdio server finds in its environment beside its own `env`: the [`INHERITED`] variables.
    pub environment: Vec<(OsString, OsString)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_connections: 256,
            idle: Duration::from_secs(30 * 60),
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(120),
            close_grace: Duration::from_secs(2),
            max_message: 8 * 1024 * 1024,
            environment: Vec::new(),
        }
    }
}

/// What became of a call.
#[derive(Debug, Clone)]
pub enum CallOutcome {
    /// The tool has answered.
    Ok {
        /// The `CallToolResult`.
        result: Raw,
        /// Its `isError`.
        is_error: bool,
    },
    /// There is no answer, for this reason.
    Failed {
        /// For the `mcp.response` event, and by [`error_blocks`] for the model.
        error: String,
    },
}

/// The MCP client of a node. Clones are handles of the same.
#[derive(Clone)]
pub struct Mcp {
    inner: Arc<Inner>,
}

struct Inner {
    dialer: Dialer,
    pool: Arc<Pool>,
    sweeper: TaskTracker,
    /// Stops the sweeper when the last handle is dropped, too.
    stop: Mutex<Option<DropGuard>>,
}

impl Mcp {
    /// Starts the task that closes idle connections, so a runtime must be running. Fails if there is no TLS.
    pub fn new(settings: Settings, resolve: Resolve) -> Result<Self, reqwest::Error> {
        let http = http::client(&settings)?;
        let pool = Arc::new(Pool::new(settings.max_connections));
        let stop = CancellationToken::new();
        let sweeper = TaskTracker::new();
        sweeper.spawn(sweep(pool.clone(), settings.idle, stop.clone()));
        sweeper.close();
        let dialer = Dialer { settings, resolve, http, closing: TaskTracker::new() };
        Ok(Self { inner: Arc::new(Inner { dialer, pool, sweeper, stop: Mutex::new(Some(stop.drop_guard())) }) })
    }

    /// Connects all servers of a new session at once and returns their tools, in the order of the servers. A server that
    /// fails is logged and skipped; of two tools of one name the first counts.
    pub async fn tools(&self, session: SessionId, servers: &[&ServerConfig]) -> Vec<McpTool> {
        let mut distinct: Vec<&ServerConfig> = Vec::with_capacity(servers.len());
        for server in servers {
            if !distinct.iter().any(|known| known.name == server.name) {
                distinct.push(server);
            }
        }
        let lists = join_all(distinct.iter().map(|server| self.offered(session, server))).await;
        let mut owners = HashMap::new();
        let mut offered = Vec::new();
        for (server, list) in distinct.iter().zip(lists) {
            match list {
                Ok(list) => offered.extend(list.into_iter().filter(|tool| {
                    let owner = owners.get(&tool.name).copied();
                    match owner {
                        Some(used) => {
                            let (tool, skipped) = (&tool.name, &server.name);
                            tracing::error!(%session, tool, used, skipped, "MCP tool offered twice");
                        }
                        None => {
                            owners.insert(tool.name.clone(), server.name.as_str());
                        }
                    }
                    owner.is_none()
                })),
                Err(error) => tracing::error!(%session, server = server.name, %error, "MCP server skipped"),
            }
        }
        offered
    }

    async fn offered(&self, session: SessionId, server: &ServerConfig) -> Result<Vec<McpTool>, Fault> {
        let Inner { dialer, pool, .. } = &*self.inner;
        let lease = pool.lease(session, &server.name)?;
        let limit = dialer.settings.connect_timeout;
        let mut made = None;
        let listing = async {
            let connection = made.insert(lease.connection(dialer, server).await?);
            connection.tools(&server.name).await
        };
        let result = match tokio::time::timeout(limit, Box::pin(listing)).await {
            Ok(result) => result,
            Err(_) => Err(Fault::Lost(format!("tools are not listed within {limit:?}"))),
        };
        if let (Err(_), Some(connection)) = (&result, &made) {
            lease.discard(connection);
        }
        result
    }

    /// Calls a tool, connecting first if need be. `trace` is a `traceparent` for the server.
    pub async fn call(
        &self,
        session: SessionId,
        server: &ServerConfig,
        tool: &str,
        input: &RawValue,
        trace: Option<&str>,
    ) -> CallOutcome {
        match self.attempt(session, server, tool, input, trace).await {
            Ok(Reply { result, is_error }) => CallOutcome::Ok { result, is_error },
            Err(error) => CallOutcome::Failed { error: format!("server '{}': {error}", server.name) },
        }
    }

    async fn attempt(
        &self,
        session: SessionId,
        server: &ServerConfig,
        tool: &str,
        input: &RawValue,
        trace: Option<&str>,
    ) -> Result<Reply, Fault> {
        let Inner { dialer, pool, .. } = &*self.inner;
        let lease = pool.lease(session, &server.name)?;
        let mut repeat = true;
        loop {
            let connection = Box::pin(lease.connection(dialer, server)).await?;
            let fault = match Box::pin(connection.call(tool, input, trace, dialer.settings.call_timeout)).await {
                Ok(reply) => return Ok(reply),
                Err(fault) => fault,
            };
            match fault {
                Fault::Refused(_) => return Err(fault),
                Fault::Unsent(_) if repeat => repeat = false,
                Fault::Unsent(_) | Fault::Lost(_) => {
                    lease.discard(&connection);
                    return Err(fault);
                }
            }
            lease.discard(&connection);
        }
    }

    /// Ends all connections of a session and waits until they are closed. The session must not call any more.
    pub async fn close(&self, session: SessionId) {
        close_all(self.inner.pool.take(session)).await;
    }

    /// Ends all connections and the task; later calls fail.
    pub async fn shutdown(&self) {
        drop(lock(&self.inner.stop).take());
        self.inner.sweeper.wait().await;
        close_all(self.inner.pool.close()).await;
        let closing = &self.inner.dialer.closing;
        closing.close();
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, closing.wait()).await.is_err() {
            tracing::warn!(connections = closing.len(), "MCP connections did not close in time");
        }
    }

    /// Whether a server of the session is connected here: what such a connection remembers cannot move to another node.
    pub fn connected(&self, session: SessionId) -> bool {
        self.inner.pool.connected(session)
    }

    /// How many connections are live.
    pub fn live(&self) -> usize {
        self.inner.pool.live()
    }
}

async fn close_all(connections: Vec<Arc<Connection>>) {
    join_all(connections.iter().map(|connection| connection.close())).await;
}

async fn sweep(pool: Arc<Pool>, idle: Duration, stop: CancellationToken) {
    let pause = (idle / 10).clamp(Duration::from_millis(10), Duration::from_secs(60));
    while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        pool.sweep(idle);
    }
}

/// A panic elsewhere must not make connections unreachable; no invariant spans a lock here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
