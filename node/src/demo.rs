//! The demo model of `baesrv dev`: a small server that speaks Anthropic's wire format, so that a first start needs no
//! API key and no network, and still runs the real provider code.
//!
//! [`answer`] decides what it answers, as a pure function of the request, so that a repeated attempt gets the same
//! answer. It is as strict about the form of a conversation as Anthropic's API. This module does the HTTP and the
//! delays.

mod answer;
mod arguments;
mod conversation;
mod memory;
mod plan;

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(crate) use answer::{Answer, answer};

const BODY_LIMIT: usize = 64 << 20;

/// Serves `POST /v1/messages` until `stop` is cancelled. Answers that are being delayed at that time become 503.
pub(crate) async fn serve(listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
    let app = Router::new()
        .route("/v1/messages", post(messages))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(stop.clone());
    let listener = listener.tap_io(|socket| {
        // If this fails, the connection is slower and still works.
        let _ = socket.set_nodelay(true);
    });
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn messages(State(stop): State<CancellationToken>, body: Bytes) -> Response {
    let Answer { delay, status, body } = match serde_json::from_slice::<Value>(&body) {
        Ok(request) => answer(&request),
        Err(error) => Answer::refusal(400, "invalid_request_error", &format!("the request is not JSON: {error}")),
    };
    if !delay.is_zero() && stop.run_until_cancelled(tokio::time::sleep(delay)).await.is_none() {
        return respond(Answer::refusal(503, "api_error", "the demo model is stopping"));
    }
    respond(Answer { delay: Duration::ZERO, status, body })
}

fn respond(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, "application/json")], answer.body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn post(url: &str, body: String) -> (u16, Value) {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let answer = reqwest::Client::new().post(url).body(body).send().await.unwrap();
        (answer.status().as_u16(), serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap())
    }

    #[tokio::test]
    async fn it_serves_until_it_is_stopped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/messages", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, stop.clone()));

        let asked =
            json!({"model": "demo", "max_tokens": 100, "messages": [{"role": "user", "content": "good morning"}]});
        let (status, answer) = post(&url, asked.to_string()).await;
        assert_eq!((status, &answer["type"], &answer["stop_reason"]), (200, &json!("message"), &json!("end_turn")));
        assert!(answer["usage"]["input_tokens"].as_u64().unwrap() > 0);

        assert_eq!(post(&url, "{".to_owned()).await.0, 400);

        // A slow answer does not hold up the stop.
        let slow = json!({"model": "demo", "messages": [{"role": "user", "content": "/slow 500 hello"}]});
        let waiting = tokio::spawn(async move { post(&url, slow.to_string()).await });
        tokio::task::yield_now().await;
        stop.cancel();
        // Either it was accepted and ends with 503, or the connection came too late and was refused.
        if let Ok((status, _)) = waiting.await {
            assert_eq!(status, 503);
        }
        serving.await.unwrap().unwrap();
    }
}
