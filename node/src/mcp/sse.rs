//! The older HTTP+SSE transport of MCP (protocol version 2024-11-05).
//!
//! Hand-written, because `rmcp` has removed its client for this transport and servers that speak nothing else are still
//! in use. `rmcp` does the rest: this is one of its workers, and `sse-stream` reads the events. The file can go when
//! the configuration no longer accepts `transport = "sse"`, or when a maintained library offers such a client with
//! bounds on the size of a message.
//!
//! A GET opens an event stream. Its first event, `endpoint`, says where messages are POSTed; the answers come as
//! `message` events. The endpoint must be of the stream's origin, because the configured headers go there too. When the
//! stream ends so does the connection: the session on the server cannot be resumed.

use super::http::describe;
use super::wire::{EndReason, MAX_MALFORMED, parse};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesUnordered};
use futures_util::{FutureExt, StreamExt};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use reqwest::{StatusCode, Url};
use rmcp::RoleClient;
use rmcp::transport::worker::{Worker, WorkerContext, WorkerQuitReason, WorkerSendRequest};
use sse_stream::{Sse, SseStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most concurrent POST requests of one connection; further messages wait.
const MAX_POSTS: usize = 16;

/// What the transport fails with.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0}")]
    Request(String),
    /// No TCP connection could be made, so the message did not run.
    #[error("{0}")]
    Unreachable(String),
    #[error("HTTP {0}")]
    Status(StatusCode),
    /// The server does not know the session, so the message did not run.
    #[error("HTTP 404: the server has forgotten the session")]
    Forgotten,
    #[error("it answered with something else than an event stream")]
    NotAStream,
    #[error("its event stream ended before it named an endpoint")]
    NoEndpoint,
    #[error("the endpoint it named is not of the same origin")]
    ForeignEndpoint,
    #[error("the connection is closed")]
    Closed,
}

/// An event stream that cannot be read on.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Request(String),
    #[error("an event of more than {0} bytes")]
    TooLarge(usize),
}

/// The transport, before it runs.
pub(super) struct Client {
    pub(super) client: reqwest::Client,
    pub(super) url: String,
    pub(super) headers: HeaderMap,
    pub(super) max_message: usize,
    pub(super) end_reason: EndReason,
}

struct Events {
    stream: BoxStream<'static, Result<Sse, sse_stream::Error>>,
    /// Bytes received since the last event, which limits the size of one event.
    pending: Arc<AtomicUsize>,
}

impl Events {
    fn new(bytes: impl futures_util::Stream<Item = reqwest::Result<Bytes>> + Send + 'static, limit: usize) -> Self {
        let pending = Arc::new(AtomicUsize::new(0));
        let counter = pending.clone();
        let bounded = bytes.map(move |chunk| {
            let chunk = chunk.map_err(|error| Broken::Request(describe(&error)))?;
            if counter.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len() > limit {
                return Err(Broken::TooLarge(limit));
            }
            Ok(chunk)
        });
        Self { stream: SseStream::from_bytes_stream(bounded).boxed(), pending }
    }

    async fn next(&mut self) -> Option<Result<Sse, sse_stream::Error>> {
        let event = self.stream.next().await;
        self.pending.store(0, Ordering::Relaxed);
        event
    }
}

impl Client {
    async fn open(&self) -> Result<(Events, Url), Error> {
        let request = self.client.get(&self.url).headers(self.headers.clone()).header(ACCEPT, "text/event-stream");
        let response = request.send().await.map_err(|error| Error::Request(describe(&error)))?;
        if !response.status().is_success() {
            return Err(Error::Status(response.status()));
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.to_ascii_lowercase().starts_with("text/event-stream") {
            return Err(Error::NotAStream);
        }
        let base = response.url().clone();
        let mut events = Events::new(response.bytes_stream(), self.max_message);
        while let Some(event) = events.next().await {
            let event = event.map_err(|error| Error::Request(format!("its event stream broke: {error}")))?;
            if event.event.as_deref() == Some("endpoint") {
                let endpoint = base.join(event.data.unwrap_or_default().trim()).map_err(|_| Error::ForeignEndpoint)?;
                let same = endpoint.origin() == base.origin();
                return if same { Ok((events, endpoint)) } else { Err(Error::ForeignEndpoint) };
            }
        }
        Err(Error::NoEndpoint)
    }

    fn post(&self, endpoint: &Url, mut message: WorkerSendRequest<Self>) -> BoxFuture<'static, ()> {
        let request = self.client.post(endpoint.clone()).headers(self.headers.clone()).json(&message.message);
        async move {
            let sent = tokio::select! {
                sent = request.send() => sent,
                () = message.responder.closed() => return,
            };
            let result = match sent {
                Ok(response) if response.status().is_success() => Ok(()),
                Ok(response) if response.status() == StatusCode::NOT_FOUND => Err(Error::Forgotten),
                Ok(response) => Err(Error::Status(response.status())),
                Err(error) if error.is_connect() => Err(Error::Unreachable(describe(&error))),
                Err(error) => Err(Error::Request(describe(&error))),
            };
            // This fails if the caller no longer waits.
            let _ = message.responder.send(result);
        }
        .boxed()
    }

    async fn exchange(&self, context: &mut WorkerContext<Self>) -> Result<(), WorkerQuitReason<Error>> {
        let (mut events, endpoint) = match self.open().await {
            Ok(opened) => opened,
            Err(error) => {
                // The error is the answer to the first message.
                self.end_reason.record(error.to_string());
                let first = context.recv_from_handler().await?;
                let _ = first.responder.send(Err(error));
                return Err(WorkerQuitReason::TransportClosed);
            }
        };
        let mut posts = FuturesUnordered::new();
        let mut malformed = 0;
        loop {
            tokio::select! {
                message = context.recv_from_handler(), if posts.len() < MAX_POSTS => {
                    posts.push(self.post(&endpoint, message?));
                }
                Some(()) = posts.next(), if !posts.is_empty() => {}
                event = events.next() => match event {
                    Some(Ok(event)) if event.event.as_deref().is_none_or(|kind| kind == "message") => {
                        match event.data.as_deref().and_then(|data| parse(data.as_bytes())) {
                            Some(message) => context.send_to_handler(message).await?,
                            None => malformed += 1,
                        }
                        if malformed > MAX_MALFORMED {
                            self.end_reason.record(format!("it sent over {MAX_MALFORMED} events that are not MCP messages"));
                            return Err(WorkerQuitReason::TransportClosed);
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        self.end_reason.record(format!("its event stream broke: {error}"));
                        return Err(WorkerQuitReason::TransportClosed);
                    }
                    None => {
                        self.end_reason.record("its event stream ended");
                        return Err(WorkerQuitReason::TransportClosed);
                    }
                }
            }
        }
    }
}

impl Worker for Client {
    type Error = Error;
    type Role = RoleClient;

    fn err_closed() -> Error {
        Error::Closed
    }

    fn err_join(_: tokio::task::JoinError) -> Error {
        Error::Closed
    }

    async fn run(self, mut context: WorkerContext<Self>) -> Result<(), WorkerQuitReason<Error>> {
        let stop = context.cancellation_token.clone();
        tokio::select! {
            () = stop.cancelled() => Err(WorkerQuitReason::Cancelled),
            result = self.exchange(&mut context) => result,
        }
    }
}
