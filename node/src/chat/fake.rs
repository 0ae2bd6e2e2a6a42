//! A server of the session API for the tests of this client. Each test scripts its turns.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(super) const KEY: &str = "key_00000000000000000000000000001111";

/// How a call ends.
#[derive(Clone)]
pub(super) enum ScriptedTurn {
    /// The model answers with these blocks.
    Blocks(Value),
    /// An error frame.
    Error(i64, &'static str),
    /// Every provider fails.
    ProvidersFail,
}

/// How far the stream of a call gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Connection {
    Whole,
    /// Cut after the events, before the terminal frame.
    Cut,
}

#[derive(Default)]
pub(super) struct FakeState {
    pub(super) allowed: Vec<&'static str>,
    pub(super) turns: VecDeque<ScriptedTurn>,
    pub(super) connections: VecDeque<Connection>,
    pub(super) log: Vec<Value>,
    /// The calls received: method and params.
    pub(super) calls: Vec<(String, Value)>,
    by_key: HashMap<String, (Vec<Value>, Value)>,
}

#[derive(Clone, Default)]
pub(super) struct Fake(pub(super) Arc<Mutex<FakeState>>);

impl Fake {
    pub(super) async fn start(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new()
            .route("/api/v1/sessions", post(open))
            .route("/api/v1/sessions/{id}/join", post(open))
            .route("/api/v1/sessions/{id}/events", get(events))
            .route("/api/v1/sessions/{id}/rpc", post(rpc))
            .with_state(self);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        url
    }

    pub(super) fn with<T>(&self, act: impl FnOnce(&mut FakeState) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }

    /// The params of every call of a method.
    pub(super) fn asked(&self, method: &str) -> Vec<Value> {
        self.with(|state| {
            state.calls.iter().filter(|(name, _)| name == method).map(|(_, params)| params.clone()).collect()
        })
    }
}

impl FakeState {
    pub(super) fn record(&mut self, kind: &str, payload: Value) -> Value {
        let event = json!({
            "id": format!("evt_{}", self.log.len() + 1), "session_id": "ses_1", "client_key_id": KEY,
            "event_type": kind, "payload": payload, "created_at": "2026-07-06T18:26:10.000Z",
        });
        self.log.push(event.clone());
        event
    }

    /// Runs the next scripted turn, once for each idempotency key.
    fn turn(&mut self, params: &Value) -> (Vec<Value>, Value) {
        let key = params["idempotency_key"].as_str().unwrap().to_owned();
        if let Some(known) = self.by_key.get(&key) {
            return known.clone();
        }
        let turn = self.turns.pop_front().expect("no turn is scripted");
        if let ScriptedTurn::Error(code, message) = turn {
            return (Vec::new(), json!({"error": {"code": code, "message": message}}));
        }
        let mut events = vec![self.record("client.message.send", params["message"].clone())];
        let message = match turn {
            ScriptedTurn::Blocks(blocks) => {
                let message = json!({"role": "assistant", "content": blocks});
                events.push(self.record("server.message.send", message.clone()));
                message
            }
            ScriptedTurn::ProvidersFail => {
                let attempt =
                    json!({"ok": false, "provider": "main", "status": null, "error": "refused", "body": null});
                events.push(self.record("provider.response", attempt));
                events.push(self.record("session.error", json!({"reason": "all_providers_failed", "attempts": 1})));
                json!({"role": "assistant", "content": [{"type": "text", "text": "The provider is unavailable."}]})
            }
            ScriptedTurn::Error(..) => unreachable!("answered above"),
        };
        let ended = (events.clone(), json!({"result": {"message": message, "events": events}}));
        self.by_key.insert(key, ended.clone());
        ended
    }
}

async fn open(State(fake): State<Fake>, body: String) -> Response {
    let body: Value = serde_json::from_str(&body).unwrap();
    fake.with(|state| {
        state.calls.push(("open".to_owned(), body.clone()));
        let names = body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap());
        if let Some(name) = names.into_iter().find(|name| !state.allowed.contains(name)) {
            let detail = format!("tool '{name}' is not allowed");
            let problem = json!({"type": "tool_not_allowed", "title": "Forbidden", "status": 403, "detail": detail});
            return (StatusCode::FORBIDDEN, axum::Json(problem)).into_response();
        }
        state.record("session.open", json!({"client_version": null, "tools": []}));
        let profile = json!({"id": "pro_1", "name": "main", "allowed_tools": state.allowed, "mcp_servers": [],
            "provider": {"provider": "anthropic", "model": "demo"}});
        let opened = json!({"session_id": "ses_1", "session_key": "bae_ses_1", "profile": profile});
        (StatusCode::CREATED, axum::Json(opened)).into_response()
    })
}

async fn events(State(fake): State<Fake>) -> axum::Json<Value> {
    axum::Json(json!({"items": fake.with(|state| state.log.clone()), "next_cursor": null}))
}

async fn rpc(State(fake): State<Fake>, body: String) -> Body {
    let request: Value = serde_json::from_str(&body).unwrap();
    let (method, params) = (request["method"].as_str().unwrap().to_owned(), request["params"].clone());
    fake.with(|state| {
        state.calls.push((method.clone(), params.clone()));
        match method.as_str() {
            "session.sendMessage" => {
                let connection = state.connections.pop_front().unwrap_or(Connection::Whole);
                let (events, terminal) = state.turn(&params);
                let shown = events.iter().filter(|event| event["event_type"] != "client.message.send");
                stream(shown.cloned().collect(), (connection == Connection::Whole).then_some(terminal))
            }
            "session.subscribe" => {
                let since = params["since_event_id"].as_str().unwrap_or_default();
                let from = state.log.iter().position(|event| event["id"] == since).map_or(0, |place| place + 1);
                // A subscription to this server ends after two events.
                stream(state.log[from..].iter().take(2).cloned().collect(), None)
            }
            _ => stream(Vec::new(), Some(json!({"result": {}}))),
        }
    })
}

/// A response of event frames and a terminal frame; without that, the connection breaks.
fn stream(events: Vec<Value>, terminal: Option<Value>) -> Body {
    let frame = |event| json!({"jsonrpc": "2.0", "method": "session.event", "params": event}).to_string() + "\n";
    let mut chunks: Vec<std::io::Result<String>> = events.into_iter().map(|event| Ok(frame(event))).collect();
    chunks.push(match terminal {
        Some(mut terminal) => {
            terminal["jsonrpc"] = json!("2.0");
            terminal["id"] = json!(1);
            Ok(terminal.to_string() + "\n")
        }
        None => Err(std::io::Error::other("cut")),
    });
    // The chunks are sent one after another, so that everything before a cut has reached the client.
    let paced = futures_util::stream::iter(chunks).then(async |chunk| {
        if chunk.is_err() {
            tokio::task::yield_now().await;
        }
        chunk
    });
    Body::from_stream(Box::pin(paced))
}
