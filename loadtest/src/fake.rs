//! A small server of the session API for this crate's own tests. Each message is one call of the provider, every tool
//! is the client's, and one turn can be made to fail.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) const KEY: &str = "bae_test";

#[derive(Clone)]
struct Fake {
    provider: String,
    /// The messages so far. There is one conversation, whatever the session.
    messages: Arc<Mutex<Vec<Value>>>,
    refused_turn: Option<usize>,
}

/// Serves until the test ends. The turn with the number `refused_turn`, counted from 1, is answered with an error
/// frame.
pub(crate) async fn start(provider: String, refused_turn: Option<usize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new()
        .route("/api/v1/sessions", post(open))
        .route("/api/v1/sessions/{id}", delete(|| async { axum::Json(json!({"state": "closed"})) }))
        .route("/api/v1/sessions/{id}/events", get(|| async { axum::Json(json!({"items": [{}], "next_cursor": "1"})) }))
        .route("/api/v1/sessions/{id}/rpc", post(rpc))
        .with_state(Fake { provider, messages: Arc::default(), refused_turn });
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    url
}

async fn open(headers: HeaderMap) -> Response {
    if headers[header::AUTHORIZATION] != format!("Bearer {KEY}") {
        let problem = json!({"type": "unauthorized", "title": "Unauthorized", "status": 401, "detail": "no"});
        return (StatusCode::UNAUTHORIZED, axum::Json(problem)).into_response();
    }
    let opened = json!({"session_id": "ses_1", "session_key": "bae_ses_1", "profile": {}});
    (StatusCode::CREATED, axum::Json(opened)).into_response()
}

async fn rpc(State(fake): State<Fake>, Path(_): Path<String>, body: String) -> String {
    let request: Value = serde_json::from_str(&body).unwrap();
    if request["method"] == "session.registerDriver" {
        return frame(json!({"result": {"registered": true}}));
    }
    let messages = {
        let mut messages = fake.messages.lock().unwrap();
        messages.push(request["params"]["message"].clone());
        if fake.refused_turn == Some(messages.len().div_ceil(2)) {
            messages.push(json!({"role": "assistant", "content": "refused"}));
            return frame(json!({"error": {"code": -32603, "message": "Internal error"}}));
        }
        messages.clone()
    };
    let asked = json!({"model": "m", "max_tokens": 1, "messages": messages}).to_string();
    let answer =
        reqwest::Client::new().post(format!("{}/v1/messages", fake.provider)).body(asked).send().await.unwrap();
    let mut answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    for block in answer["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            block["dispatch"] = json!("client");
        }
    }
    let message = json!({"role": "assistant", "content": answer["content"]});
    fake.messages.lock().unwrap().push(message.clone());
    let event = json!({"jsonrpc": "2.0", "method": "session.event", "params": {"event_type": "server.message.send"}});
    format!("\n{event}\n{}", frame(json!({"result": {"message": message, "events": []}})))
}

fn frame(mut frame: Value) -> String {
    frame["jsonrpc"] = json!("2.0");
    frame["id"] = json!(1);
    format!("{frame}\n")
}
