//! A small MCP server for tests, which answers over both HTTP transports.

use super::super::{ServerConfig, Transport};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use futures_util::stream;
use secrecy::SecretString;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc::UnboundedSender;

/// A running server with its sessions and the counts of what it was asked.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) port: u16,
    pub(super) initialized: AtomicUsize,
    pub(super) listed: AtomicUsize,
    pub(super) called: AtomicUsize,
    /// How many requests the client gave up.
    pub(super) abandoned: Arc<AtomicUsize>,
    /// How many sessions the client ended.
    pub(super) deleted: AtomicUsize,
    /// The event streams of the older transport by session. Removing one ends it.
    pub(super) streams: Mutex<HashMap<String, UnboundedSender<String>>>,
    pub(super) sessions: Mutex<HashSet<String>>,
    pub(super) headers: Mutex<Vec<HeaderMap>>,
    pub(super) answers: Answers,
}

/// In what a server differs from the usual one.
#[derive(Default)]
pub(super) struct Answers {
    /// The names of more tools to offer.
    pub(super) extra: Vec<String>,
    pub(super) silent_initialize: bool,
    /// Whether POST requests are answered with event streams.
    pub(super) stream: bool,
    pub(super) endpoint: Option<String>,
}

pub(super) enum Answer {
    Json(Value),
    Nothing,
    Hang,
    Garbage,
    Cut,
}

impl Peer {
    pub(super) async fn start(answers: Answers) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = Arc::new(Self { port: listener.local_addr().unwrap().port(), answers, ..Self::default() });
        let app = Router::new()
            .route("/mcp", any(streamable))
            .route("/sse", get(events))
            .route("/messages", post(message))
            .route("/moved", any(|| async { (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "/mcp")]) }))
            .route("/away", any(away))
            .with_state(peer.clone());
        // The task ends with the runtime of the test.
        tokio::spawn(async move { axum::serve(listener, app).await });
        peer
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(super) fn http(&self, name: &str) -> ServerConfig {
        self.http_at(name, "/mcp")
    }

    pub(super) fn http_at(&self, name: &str, path: &str) -> ServerConfig {
        let headers = BTreeMap::from([("X-Key".to_owned(), SecretString::from("${KEY}"))]);
        ServerConfig { name: name.to_owned(), transport: Transport::Http { url: self.url(path), headers } }
    }

    pub(super) fn sse(&self, name: &str) -> ServerConfig {
        let headers = BTreeMap::from([("X-Key".to_owned(), SecretString::from("${KEY}"))]);
        ServerConfig { name: name.to_owned(), transport: Transport::Sse { url: self.url("/sse"), headers } }
    }

    pub(super) fn count(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }

    fn answer(&self, request: &Value) -> Answer {
        let Some(id) = request.get("id") else { return Answer::Nothing };
        let params = &request["params"];
        let result = match request["method"].as_str().unwrap_or_default() {
            "initialize" if self.answers.silent_initialize => return Answer::Hang,
            "initialize" => {
                assert_eq!(params["protocolVersion"], "2025-11-25", "the newest version with this handshake");
                self.initialized.fetch_add(1, Ordering::SeqCst);
                json!({"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                       "serverInfo": {"name": "peer", "version": "1"}})
            }
            "tools/list" => {
                self.listed.fetch_add(1, Ordering::SeqCst);
                self.page(params["cursor"].as_str())
            }
            "tools/call" => {
                self.called.fetch_add(1, Ordering::SeqCst);
                match params["name"].as_str().unwrap_or_default() {
                    "echo" => json!({"content": [{"type": "text", "text": params.to_string()}]}),
                    "fail" => json!({"content": [{"type": "text", "text": "no such row"}], "isError": true}),
                    "odd" => json!({"content": [{"type": "hologram", "x": 1}]}),
                    "other" => json!({"roots": []}),
                    "hang" => return Answer::Hang,
                    "garbage" => return Answer::Garbage,
                    "cut" => return Answer::Cut,
                    _ => {
                        let error = json!({"code": -32602, "message": "Unknown tool"});
                        return Answer::Json(json!({"jsonrpc": "2.0", "id": id, "error": error}));
                    }
                }
            }
            _ => json!({}),
        };
        Answer::Json(json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }

    fn page(&self, cursor: Option<&str>) -> Value {
        let tool = |name: &str| {
            json!({"name": name, "description": format!("does {name}"),
                   "inputSchema": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9_007_199_254_740_993_u64}}}})
        };
        match cursor {
            None => json!({"tools": [tool("echo"), tool("fail")], "nextCursor": "2"}),
            Some(_) => json!({"tools": self.answers.extra.iter().map(|name| tool(name)).collect::<Vec<_>>()}),
        }
    }
}

struct Abandoned(Arc<AtomicUsize>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Shared = State<Arc<Peer>>;

async fn streamable(State(peer): Shared, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    let session = headers.get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
    peer.headers.lock().unwrap().push(headers);
    if method == Method::DELETE {
        peer.deleted.fetch_add(1, Ordering::SeqCst);
        return StatusCode::NO_CONTENT.into_response();
    }
    if method != Method::POST {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    if session.as_ref().is_some_and(|id| !peer.sessions.lock().unwrap().contains(id)) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let request: Value = serde_json::from_slice(&body).unwrap();
    match peer.answer(&request) {
        Answer::Json(answer) => {
            let mut response = match peer.answers.stream {
                true => event_stream(format!(": hi\n\nevent: message\ndata: {answer}\n\n")),
                false => axum::Json(answer).into_response(),
            };
            if request["method"] == "initialize" {
                let id = format!("s{}", Peer::count(&peer.initialized));
                peer.sessions.lock().unwrap().insert(id.clone());
                response.headers_mut().insert("mcp-session-id", id.parse().unwrap());
            }
            response
        }
        Answer::Nothing => StatusCode::ACCEPTED.into_response(),
        Answer::Hang => {
            let _counted_when_dropped = Abandoned(peer.abandoned.clone());
            std::future::pending().await
        }
        Answer::Cut => event_stream(": bye\n\n"),
        Answer::Garbage => ([(header::CONTENT_TYPE, "application/json")], "<html>oops</html>").into_response(),
    }
}

async fn away(State(peer): Shared) -> impl IntoResponse {
    // The same server under another host name counts as another origin.
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, format!("http://localhost:{}/mcp", peer.port))])
}

async fn events(State(peer): Shared, headers: HeaderMap) -> Response {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<String>();
    let id = {
        peer.headers.lock().unwrap().push(headers);
        let mut streams = peer.streams.lock().unwrap();
        let id = format!("e{}", Peer::count(&peer.initialized));
        let endpoint = peer.answers.endpoint.clone().unwrap_or_else(|| format!("/messages?session={id}"));
        sender.send(format!(": hello\r\nevent: endpoint\r\ndata: {endpoint}\r\n\r\n")).unwrap();
        streams.insert(id.clone(), sender);
        id
    };
    peer.sessions.lock().unwrap().insert(id);
    let body = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|event| (Ok::<_, std::convert::Infallible>(event), receiver))
    });
    event_stream(Body::from_stream(body))
}

fn event_stream(body: impl IntoResponse) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    response
}

async fn message(
    State(peer): Shared,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    peer.headers.lock().unwrap().push(headers);
    let id = &query["session"];
    if !peer.sessions.lock().unwrap().contains(id) {
        return StatusCode::NOT_FOUND;
    }
    let event = match peer.answer(&serde_json::from_slice(&body).unwrap()) {
        Answer::Json(answer) => format!("event: message\ndata: {answer}\n\n"),
        Answer::Garbage => "event: message\ndata: <html>oops</html>\n\n".to_owned(),
        Answer::Nothing | Answer::Hang | Answer::Cut => return StatusCode::ACCEPTED,
    };
    if let Some(stream) = peer.streams.lock().unwrap().get(id) {
        let _ = stream.send(event);
    }
    StatusCode::ACCEPTED
}
