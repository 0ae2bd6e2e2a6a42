//! One connection to one server: making it, listing tools, calling them, closing it.
//!
//! A connection that is dropped closes gracefully in a task of [`Connector::closing`], for which the shutdown waits.
//! Nothing is retried here: a [`Fault`] tells the caller whether the connection can still be used, and whether the
//! request may have run.

use super::server::{Resolve, ServerConfig, Transport, resolve_headers};
use super::stdio::Process;
use super::wire::EndReason;
use super::{McpTool, Settings, http, lock, sse};
use engine::json::{Object, Raw, encode};
use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest, ErrorCode, Implementation,
    JsonObject, PaginatedRequestParams, ProtocolVersion, RequestMetaObject, ServerResult,
};
use rmcp::service::{ClientInitializeError, Peer, PeerRequestOptions, RunningService, ServiceError, serve_client};
use rmcp::transport::DynamicTransportError;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The most tools, pages and bytes of one server's list that are used; the rest is ignored.
const MAX_TOOLS: usize = 1000;
const MAX_PAGES: usize = 100;
const MAX_LIST: usize = 4 * 1024 * 1024;
/// The most bytes of a text from a server or a library in an error.
const MAX_ERROR_TEXT: usize = 2000;
const NOT_MCP: &str = "the answer to initialize is not an MCP answer";
/// How long closing a connection may take. After that nobody waits for it any more.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);

/// Why a server could not be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// This request was refused; the connection can still be used.
    #[error("{0}")]
    Refused(String),
    /// The connection cannot be used any more; the request may have run.
    #[error("{0}")]
    Lost(String),
    /// The connection cannot be used any more; the request did not run and can be repeated on a new one.
    #[error("{0}")]
    Unsent(String),
}

/// A tool's answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) result: Raw,
    pub(super) is_error: bool,
}

/// Makes connections.
pub(super) struct Connector {
    pub(super) settings: Settings,
    pub(super) resolve: Resolve,
    pub(super) http: reqwest::Client,
    /// The tasks that close dropped connections.
    pub(super) closing: TaskTracker,
}

impl Connector {
    /// Connects and initializes within the timeout.
    pub(super) async fn connect(&self, server: &ServerConfig) -> Result<Connection, Fault> {
        let limit = self.settings.connect_timeout;
        match timeout(limit, Box::pin(self.open(server))).await {
            Ok(result) => result.map_err(|error| Fault::Lost(format!("cannot connect: {error}"))),
            Err(_) => Err(Fault::Lost(format!("cannot connect: no answer within {limit:?}"))),
        }
    }

    async fn open(&self, server: &ServerConfig) -> Result<Connection, String> {
        let end_reason = EndReason::default();
        let stop = CancellationToken::new();
        // Also ends the HTTP requests of an attempt that times out.
        let guard = stop.clone().drop_guard();
        let identity = Implementation::new("baesrv", env!("CARGO_PKG_VERSION"));
        let client = ClientConfig::new(ClientCapabilities::default(), identity)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE);
        let settings = &self.settings;
        let result = match &server.transport {
            Transport::Stdio { command, args, env } => {
                let process = Process::spawn(command, args, env, settings, end_reason.clone())
                    .map_err(|error| format!("'{command}' cannot be started: {error}"))?;
                Box::pin(serve_client(client, process)).await
            }
            Transport::Http { url, headers } => {
                let headers = resolve_headers(headers, &self.resolve)?;
                Box::pin(serve_client(client, http::transport(&self.http, url, &headers, settings, stop))).await
            }
            Transport::Sse { url, headers } => {
                let headers = resolve_headers(headers, &self.resolve)?;
                let (url, max_message) = (url.clone(), settings.max_message);
                let worker = sse::Client {
                    client: self.http.clone(),
                    url,
                    headers,
                    max_message,
                    end_reason: end_reason.clone(),
                };
                Box::pin(serve_client(client, worker)).await
            }
        };
        let service = result.map_err(|error| explain_start(error, &end_reason))?;
        Ok(Connection {
            peer: service.peer().clone(),
            service: Mutex::new(Some((service, guard))),
            end_reason,
            closing: self.closing.clone(),
        })
    }
}

type Service = RunningService<RoleClient, ClientConfig>;

/// An initialized connection.
pub(super) struct Connection {
    peer: Peer<RoleClient>,
    service: Mutex<Option<(Service, DropGuard)>>,
    end_reason: EndReason,
    closing: TaskTracker,
}

impl Connection {
    /// Whether the connection can still be used, as far as is known.
    pub(super) fn is_live(&self) -> bool {
        self.end_reason.get().is_none() && !self.peer.is_transport_closed() && lock(&self.service).is_some()
    }

    /// All pages of the server's tools, up to the limits.
    pub(super) async fn tools(&self, server: &str) -> Result<Vec<McpTool>, Fault> {
        let mut offered = Vec::new();
        let mut bytes = 0;
        let mut cursor = None;
        for page in 0..MAX_PAGES {
            let params = (page > 0).then(|| PaginatedRequestParams::default().with_cursor(cursor.take()));
            let list = match self.peer.list_tools(params).await {
                Ok(list) => list,
                Err(ServiceError::McpError(error)) if error.code == ErrorCode::METHOD_NOT_FOUND && page == 0 => {
                    return Ok(offered);
                }
                Err(error) => return Err(self.fault(error)),
            };
            for tool in list.tools.into_iter().filter(|tool| !tool.name.is_empty()) {
                let description = tool.description.map(Cow::into_owned);
                let input_schema = encode(&*tool.input_schema);
                bytes += tool.name.len() + description.as_ref().map_or(0, String::len) + input_schema.get().len();
                if offered.len() == MAX_TOOLS || bytes > MAX_LIST {
                    tracing::error!(
                        server,
                        "MCP server offers too many tools, only the first are used: at most {MAX_TOOLS} of {MAX_LIST} bytes"
                    );
                    return Ok(offered);
                }
                offered.push(McpTool {
                    server: server.to_owned(),
                    name: tool.name.into_owned(),
                    description,
                    input_schema,
                });
            }
            cursor = list.next_cursor;
            if cursor.is_none() {
                return Ok(offered);
            }
        }
        tracing::error!(server, "MCP server lists tools without end, only the first {MAX_PAGES} pages are used");
        Ok(offered)
    }

    /// Makes one `tools/call` request.
    pub(super) async fn call(
        &self,
        tool: &str,
        input: &RawValue,
        trace: Option<&str>,
        limit: Duration,
    ) -> Result<Reply, Fault> {
        let mut params = CallToolRequestParams::new(tool.to_owned());
        params.arguments = serde_json::from_str::<Option<JsonObject>>(input.get())
            .map_err(|_| Fault::Refused("the tool's input is not a JSON object".to_owned()))?;
        let mut options = PeerRequestOptions::no_options();
        if let Some(trace) = trace {
            let mut meta = RequestMetaObject::new();
            meta.set_traceparent(trace);
            options = options.with_meta(meta);
        }
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let exchange = async { self.peer.send_request_with_option(request, options).await?.await_response().await };
        match timeout(limit, exchange).await {
            Ok(Ok(result)) => reply(&result),
            Ok(Err(error)) => Err(self.fault(error)),
            Err(_) => Err(Fault::Lost(format!("no answer within {limit:?}"))),
        }
        .map_err(|fault| match fault {
            Fault::Lost(text) => Fault::Lost(format!("{text}; the call may have run")),
            fault @ (Fault::Refused(_) | Fault::Unsent(_)) => fault,
        })
    }

    fn fault(&self, error: ServiceError) -> Fault {
        match error {
            ServiceError::McpError(error) => Fault::Refused(truncated(&error.message)),
            ServiceError::TransportSend(error) if is_unsent(&error) => Fault::Unsent(explain_transport(&error)),
            ServiceError::TransportSend(error) => Fault::Lost(explain_transport(&error)),
            ServiceError::TransportClosed => {
                let reason = self.end_reason.get().unwrap_or("the connection closed");
                Fault::Lost(format!("no answer: {reason}"))
            }
            ServiceError::Cancelled { .. } => Fault::Refused("the call was cancelled".to_owned()),
            other => Fault::Lost(truncated(&other.to_string())),
        }
    }

    /// Closes the connection, gracefully if the server cooperates.
    pub(super) async fn close(&self) {
        let service = lock(&self.service).take();
        if let Some((service, guard)) = service {
            end(service, guard).await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let service = lock(&self.service).take();
        if let Some((service, guard)) = service
            && tokio::runtime::Handle::try_current().is_ok()
        {
            self.closing.spawn(end(service, guard));
        }
    }
}

async fn end(mut service: Service, guard: DropGuard) {
    // An error means that the library's task panicked, which the panic hook has reported. The connection is closed
    // either way.
    let _ = service.close_with_timeout(CLOSE_TIMEOUT).await;
    drop(guard);
}

/// The answer as JSON. Content of a type that the library does not know stays as it is.
fn reply(result: &ServerResult) -> Result<Reply, Fault> {
    let empty = match result {
        ServerResult::InputRequiredResult(_) => {
            return Err(Fault::Refused("the tool asks for input, which is not supported here".to_owned()));
        }
        ServerResult::CreateTaskResult(_) => {
            return Err(Fault::Refused("the tool runs as a task, which is not supported here".to_owned()));
        }
        ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_) => true,
        _ => false,
    };
    let result = encode(result);
    let object = Object::parse(&result).unwrap_or_default();
    let known = ["content", "structuredContent", "isError"].iter().any(|member| object.get(member).is_some());
    if !known && !empty {
        return Err(Fault::Lost("the answer is not the result of a tool".to_owned()));
    }
    let is_error = object.get("isError").is_some_and(|flag| flag.get() == "true");
    Ok(Reply { is_error, result })
}

fn explain_start(error: ClientInitializeError, end_reason: &EndReason) -> String {
    match error {
        ClientInitializeError::JsonRpcError(error) => format!("initialize was refused: {}", truncated(&error.message)),
        ClientInitializeError::TransportError { error, .. } => match end_reason.get() {
            Some(reason) => reason.to_owned(),
            None => match error.error.downcast_ref() {
                // The text is the status, then the body. This error is logged, so the body is left out.
                Some(http::HttpError::UnexpectedServerResponse(text)) if text.starts_with("HTTP ") => {
                    text.split(": ").next().unwrap_or_default().to_owned()
                }
                Some(http::HttpError::UnexpectedServerResponse(_)) => NOT_MCP.to_owned(),
                _ => explain_transport(&error),
            },
        },
        ClientInitializeError::ConnectionClosed(_) => {
            end_reason.get().unwrap_or("the connection closed during initialize").to_owned()
        }
        // The texts of the other errors contain the whole message.
        _ => NOT_MCP.to_owned(),
    }
}

/// Whether it is certain that the message reached no session of the server.
fn is_unsent(error: &DynamicTransportError) -> bool {
    let http = matches!(error.error.downcast_ref(), Some(http::HttpError::Client(error)) if error.is_connect());
    http || matches!(error.error.downcast_ref(), Some(sse::Error::Forgotten | sse::Error::Unreachable(_)))
}

fn explain_transport(error: &DynamicTransportError) -> String {
    match error.error.downcast_ref() {
        Some(http::HttpError::Client(error)) => http::describe(error),
        Some(other) => truncated(&other.to_string()),
        None => truncated(&error.error.to_string()),
    }
}

fn truncated(text: &str) -> String {
    if text.len() <= MAX_ERROR_TEXT {
        text.to_owned()
    } else {
        format!("{}…", &text[..text.floor_char_boundary(MAX_ERROR_TEXT)])
    }
}
