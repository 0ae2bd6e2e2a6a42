//! The built-in provider. It has Anthropic's wire format, and takes a set time for answers of a set size.
//!
//! It measures how long it had the requests of each turn, from the last byte of a request until its answer is ready.
//! The rest of a turn's time is the server's own share. The time that it takes to send a long conversation to the
//! provider belongs to that share on purpose, so that the share is never reported as smaller than it is.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::marker::{Marker, filler};

/// The name of the client tool that the provider uses in turns with rounds.
pub(crate) const TOOL: &str = "loadtest_echo";

const BODY_LIMIT: usize = 256 << 20;

/// What the provider recorded of one turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub time: Duration,
    pub requests: u32,
    /// The size of the turn's last request.
    pub request_bytes: u64,
}

/// The running provider, which stops when this is dropped.
pub(crate) struct Provider {
    ledger: Arc<Ledger>,
    address: SocketAddr,
    _stop: DropGuard,
}

struct Ledger {
    latency: Duration,
    answer: String,
    turns: Mutex<HashMap<u64, Spent>>,
}

impl Provider {
    pub(crate) async fn start(address: SocketAddr, latency: Duration, answer_bytes: usize) -> anyhow::Result<Provider> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("the built-in provider cannot listen on {address}; choose another --provider-addr")
        })?;
        let address = listener.local_addr()?;
        let mut answer = String::new();
        filler(&mut answer, answer_bytes.max(1) + 1);
        let ledger = Arc::new(Ledger { latency, answer: answer.trim_start().to_owned(), turns: Mutex::default() });
        let app = Router::new()
            .route("/v1/messages", post(messages))
            .layer(DefaultBodyLimit::max(BODY_LIMIT))
            .with_state(Arc::clone(&ledger));
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let listener = listener.tap_io(|socket| {
            let _ = socket.set_nodelay(true);
        });
        tokio::spawn(async move {
            tokio::select! {
                ended = axum::serve(listener, app) => drop(ended),
                () = stopped => {}
            }
        });
        Ok(Provider { ledger, address, _stop: stop.drop_guard() })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Removes and returns what was recorded of a turn. `None` if no request of it arrived.
    pub(crate) fn take(&self, marker: Marker) -> Option<Spent> {
        self.ledger.turns.lock().unwrap_or_else(PoisonError::into_inner).remove(&marker.turn)
    }
}

async fn messages(State(ledger): State<Arc<Ledger>>, body: Bytes) -> Response {
    let begin = Instant::now();
    let Some(marker) = Marker::last_in(&body) else {
        let error = json!({"type": "error", "error": {"type": "invalid_request_error", "message": "no turn marker"}});
        return (StatusCode::BAD_REQUEST, axum::Json(error)).into_response();
    };
    let before = {
        let turns = ledger.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.get(&marker.turn).copied().unwrap_or_default()
    };
    if !ledger.latency.is_zero() {
        tokio::time::sleep(ledger.latency).await;
    }
    let answer = answer(&ledger.answer, marker, before.requests, body.len());
    let mut turns = ledger.turns.lock().unwrap_or_else(PoisonError::into_inner);
    let spent = turns.entry(marker.turn).or_default();
    spent.requests += 1;
    spent.request_bytes = body.len() as u64;
    spent.time += begin.elapsed();
    ([(header::CONTENT_TYPE, "application/json")], answer).into_response()
}

fn answer(text: &str, marker: Marker, round: u32, request_bytes: usize) -> String {
    let (content, stop_reason) = if round < u32::from(marker.rounds) {
        let id = format!("toolu_{:016x}{round:02x}", marker.turn);
        (json!([{"type": "tool_use", "id": id, "name": TOOL, "input": {"text": text}}]), "tool_use")
    } else {
        (json!([{"type": "text", "text": text}]), "end_turn")
    };
    json!({
        "id": format!("msg_{:016x}{round:02x}", marker.turn),
        "type": "message",
        "role": "assistant",
        "model": "loadtest",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": null,
        "usage": {"input_tokens": request_bytes / 4, "output_tokens": text.len() / 4 + 1},
    })
    .to_string()
}
