//! A bare HTTP server that the same client calls on the same machine. No server of the API can be faster than it.
//!
//! `POST /?answer=N` reads its body and answers N bytes. The report uses it to say what one exchange costs on this
//! machine, and what it costs only to move the bytes of a turn.

use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query};
use axum::routing::post;
use axum::serve::ListenerExt;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client::http_client;
use crate::stats::Latency;

const BODY_LIMIT: usize = 1 << 30;
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The running server, which stops when this is dropped.
pub(crate) struct Echo {
    url: String,
    http: reqwest::Client,
    _stop: DropGuard,
}

/// The sizes of a request and its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    pub request_bytes: usize,
    pub answer_bytes: usize,
}

#[derive(Deserialize)]
struct Asked {
    answer: usize,
}

impl Echo {
    pub(crate) async fn start() -> anyhow::Result<Echo> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the echo server cannot listen")?;
        let url = format!("http://{}/", listener.local_addr()?);
        let listener = listener.tap_io(|socket| {
            let _ = socket.set_nodelay(true);
        });
        let app = Router::new().route("/", post(answer)).layer(DefaultBodyLimit::max(BODY_LIMIT));
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        tokio::spawn(async move {
            tokio::select! {
                ended = axum::serve(listener, app) => drop(ended),
                () = stopped => {}
            }
        });
        Ok(Echo { url, http: http_client(CALL_TIMEOUT)?, _stop: stop.drop_guard() })
    }

    /// Measures `calls` exchanges of each of `callers`. The callers run at the same time, each one's exchanges one
    /// after the other.
    pub(crate) async fn measure(&self, callers: u32, calls: u32, exchange: Exchange) -> anyhow::Result<Latency> {
        let mut running = JoinSet::new();
        for _ in 0..callers {
            let http = self.http.clone();
            let url = format!("{}?answer={}", self.url, exchange.answer_bytes);
            let body = Bytes::from(vec![b'x'; exchange.request_bytes]);
            running.spawn(async move {
                let mut latency = Latency::new();
                for _ in 0..calls {
                    let begin = Instant::now();
                    let answer = http.post(&url).body(body.clone()).send().await?.error_for_status()?.bytes().await?;
                    latency.record(begin.elapsed());
                    anyhow::ensure!(answer.len() == exchange.answer_bytes, "the echo server answered {}", answer.len());
                }
                Ok(latency)
            });
        }
        let mut all = Latency::new();
        while let Some(caller) = running.join_next().await {
            all.merge(&caller??);
        }
        Ok(all)
    }
}

async fn answer(Query(asked): Query<Asked>, body: Bytes) -> Bytes {
    // An answer of the same size is the body itself, so that nothing is allocated.
    if body.len() == asked.answer { body } else { Bytes::from(vec![b'x'; asked.answer]) }
}
