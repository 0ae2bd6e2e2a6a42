//! The MCP client of a node: lists and calls the tools of MCP servers. Session creation lists them, and the loop that
//! drives turns calls them.
//!
//! When a session is created, its servers are connected and their tools are listed, once. The caller stores the list
//! with the session, so it stays the same after a restart and when a server changes its tools. Connections are not
//! stored: they live on this node only, one for each session and server. A call makes a new one if there is none, which
//! happens after a restart, after a failure, and after an idle connection was closed. A call that may have run is never
//! repeated. Whatever goes wrong becomes a text that the model can react to.
//!
//! Results, inputs and schemas pass through the typed messages of `rmcp`. Texts and 64-bit integers stay as they are,
//! other numbers become doubles, the members of objects are sorted, and unknown members of known content are lost.
//!
//! Nothing here logs inputs, outputs, headers or URLs. The libraries would, so [`UNSAFE_TARGETS`] must stay off.

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

pub(crate) use content::content_blocks;
pub(crate) use server::{Resolve, ServerConfig, Transport};

use crate::telemetry::metrics::metrics;
use crate::telemetry::{context, spans};
use connection::{Connection, Connector, Fault, Reply};
use engine::ids::SessionId;
use engine::json::Raw;
use engine::toolbox::McpTool;
use futures_util::future::join_all;
use opentelemetry::KeyValue;
use pool::Pool;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

/// The variables of the node's environment that a stdio server inherits if they are set; for [`Settings::environment`].
pub(crate) const INHERITED: [&str; 10] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// Log and span targets of libraries that print messages or a child's environment. Every filter must switch them off,
/// whatever level is asked for.
pub(crate) const UNSAFE_TARGETS: [&str; 3] = ["rmcp", "process_wrap", "sse_stream"];

/// How long the shutdown of the node waits for connections to close.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// Limits and timeouts.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The most live connections of the node, over all sessions. At the limit, the one that has been idle longest is
    /// closed.
    pub(crate) max_connections: usize,
    /// A connection that was not used for this long is closed.
    pub(crate) idle: Duration,
    /// The time to connect and initialize, and the time to list tools.
    pub(crate) connect_timeout: Duration,
    /// The time for one call.
    pub(crate) call_timeout: Duration,
    /// How long a stdio server may take to exit after its input was closed, and again after SIGTERM.
    pub(crate) close_grace: Duration,
    /// The most bytes of one message from a server.
    pub(crate) max_message: usize,
    /// The environment of every stdio server, to which its own `env` is added: the [`INHERITED`] variables.
    pub(crate) environment: Vec<(OsString, OsString)>,
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

/// The outcome of a call.
#[derive(Debug, Clone)]
pub(crate) enum CallOutcome {
    /// The tool has answered, perhaps with an error of its own.
    Ok {
        /// The `CallToolResult`.
        result: Raw,
        /// Its `isError`.
        is_error: bool,
    },
    /// There is no answer.
    Failed {
        /// The reason, for the `mcp.response` event and the model.
        error: String,
    },
}

/// The MCP client of a node. Clones share one pool of connections.
#[derive(Clone)]
pub(crate) struct Mcp {
    inner: Arc<Inner>,
}

struct Inner {
    connector: Connector,
    pool: Arc<Pool>,
    sweeper: TaskTracker,
    /// Stops the sweeper, at the latest when the last clone is dropped.
    stop: Mutex<Option<DropGuard>>,
}

impl Mcp {
    /// Starts the task that closes idle connections, so a runtime must be running. Fails if TLS cannot be set up.
    pub(crate) fn new(settings: Settings, resolve: Resolve) -> Result<Self, reqwest::Error> {
        let http = http::client(&settings)?;
        let pool = Arc::new(Pool::new(settings.max_connections));
        let stop = CancellationToken::new();
        let sweeper = TaskTracker::new();
        sweeper.spawn(sweep(pool.clone(), settings.idle, stop.clone()));
        sweeper.close();
        let connector = Connector { settings, resolve, http, closing: TaskTracker::new() };
        Ok(Self { inner: Arc::new(Inner { connector, pool, sweeper, stop: Mutex::new(Some(stop.drop_guard())) }) })
    }

    /// Connects all servers of a new session concurrently and returns their tools, in the order of the servers. A
    /// server that fails is logged and skipped. Of several tools with the same name only the first is used.
    pub(crate) async fn tools(&self, session: SessionId, servers: &[&ServerConfig]) -> Vec<McpTool> {
        let mut distinct: Vec<&ServerConfig> = Vec::with_capacity(servers.len());
        for server in servers {
            if !distinct.iter().any(|known| known.name == server.name) {
                distinct.push(server);
            }
        }
        let list = async |server: &ServerConfig| {
            let (begun, span) = (Instant::now(), spans::mcp(&server.name, server.transport.kind(), None));
            let listed = self.list_tools(session, server).instrument(span.clone()).await;
            measured("tools/list", begun, &span, listed.is_err().then_some("_OTHER"));
            listed
        };
        let lists = join_all(distinct.iter().map(|server| list(server))).await;
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

    async fn list_tools(&self, session: SessionId, server: &ServerConfig) -> Result<Vec<McpTool>, Fault> {
        let Inner { connector, pool, .. } = &*self.inner;
        let lease = pool.lease(session, &server.name)?;
        let limit = connector.settings.connect_timeout;
        let mut made = None;
        let listing = async {
            let connection = made.insert(lease.connection(connector, server).await?);
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

    /// Calls a tool, and connects first if necessary. The server gets the `traceparent` of the call's span, or where
    /// spans are not exported `trace`.
    pub(crate) async fn call(
        &self,
        session: SessionId,
        server: &ServerConfig,
        tool: &str,
        input: &RawValue,
        trace: Option<&str>,
    ) -> CallOutcome {
        let (begun, span) = (Instant::now(), spans::mcp(&server.name, server.transport.kind(), Some(tool)));
        let outcome = self.attempt(session, server, tool, input, trace).instrument(span.clone()).await;
        measured(
            "tools/call",
            begun,
            &span,
            match &outcome {
                Ok(Reply { is_error: false, .. }) => None,
                Ok(Reply { is_error: true, .. }) => Some("tool_error"),
                Err(Fault::Refused(_)) => Some("refused"),
                Err(Fault::Lost(_) | Fault::Unsent(_)) => Some("_OTHER"),
            },
        );
        match outcome {
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
        let Inner { connector, pool, .. } = &*self.inner;
        let lease = pool.lease(session, &server.name)?;
        let own = context::current();
        let trace = own.as_deref().or(trace);
        let mut repeat = true;
        loop {
            let connection = Box::pin(lease.connection(connector, server)).await?;
            let fault = match Box::pin(connection.call(tool, input, trace, connector.settings.call_timeout)).await {
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

    /// Closes all connections of a session and waits until they are closed. The session must not make calls any more.
    pub(crate) async fn close(&self, session: SessionId) {
        close_all(self.inner.pool.take(session)).await;
    }

    /// Stops the sweeper and closes all connections. Later calls fail.
    pub(crate) async fn shutdown(&self) {
        drop(lock(&self.inner.stop).take());
        self.inner.sweeper.wait().await;
        close_all(self.inner.pool.close()).await;
        let closing = &self.inner.connector.closing;
        closing.close();
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, closing.wait()).await.is_err() {
            tracing::warn!(connections = closing.len(), "MCP connections did not close in time");
        }
    }

    /// How many connections are live.
    pub(crate) fn live(&self) -> usize {
        self.inner.pool.live()
    }

    /// Whether a server of the session is connected here. Such a connection may hold state that cannot move to another
    /// node.
    pub(crate) fn connected(&self, session: SessionId) -> bool {
        self.inner.pool.connected(session)
    }
}

/// Records how long a request to a server took, and why it failed if it did.
fn measured(method: &'static str, begun: Instant, span: &Span, error: Option<&'static str>) {
    if let Some(error) = error {
        spans::failed(span, error);
    }
    let method = KeyValue::new("mcp.method.name", method);
    let time = begun.elapsed();
    match error {
        None => metrics().mcp_duration.record(time, &[method]),
        Some(error) => metrics().mcp_duration.record(time, &[method, KeyValue::new("error.type", error)]),
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

/// Locks, also after a panic of another holder: no invariant needs more than one assignment under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
