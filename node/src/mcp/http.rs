//! The streamable HTTP transport: that of `rmcp`, over an HTTP client with limits.
//!
//! A redirect is followed only within the origin and only if it keeps method and body, so that headers with secrets
//! never reach another host. Every request ends when its connection is closed, also while the transport of `rmcp` waits
//! for an answer and does not react to anything else. Errors never hold the URL, which may hold a key.

use super::Settings;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{StatusCode, redirect};
use rmcp::model::{ClientJsonRpcMessage, GetMeta};
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
    StreamableHttpError, StreamableHttpPostResponse, StreamableHttpResponseLimits,
};
use sse_stream::Sse;
use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What the transport fails with.
pub(super) type HttpError = StreamableHttpError<reqwest::Error>;

/// The header of a request that carries trace context, as its `params._meta` does.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const MAX_REDIRECTS: usize = 5;
/// The most bytes of the body of an error answer, which becomes part of a text for the model.
const MAX_ERROR_BODY: usize = 4 * 1024;

/// The HTTP client for all servers of both HTTP transports. Connecting and calling have timeouts elsewhere, so it has
/// none for whole requests.
pub(super) fn client(settings: &Settings) -> Result<reqwest::Client, reqwest::Error> {
    let redirects = redirect::Policy::custom(|attempt| {
        let keeps_body = matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        let same_origin = attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
        if keeps_body && same_origin && attempt.previous().len() <= MAX_REDIRECTS {
            attempt.follow()
        } else {
            attempt.stop()
        }
    });
    reqwest::Client::builder()
        .user_agent(concat!("baesrv/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(settings.connect_timeout)
        .redirect(redirects)
        // No connections are kept: one whose last body was not read to its end stalls the next request, and calls are
        // rare.
        .pool_max_idle_per_host(0)
        .tcp_keepalive(Duration::from_secs(30))
        .build()
}

/// What went wrong with a request, without its URL.
pub(super) fn describe(error: &reqwest::Error) -> String {
    // Only the outermost error prints the URL, and the innermost says why.
    let mut cause = error.source();
    while let Some(inner) = cause.and_then(|cause| cause.source()) {
        cause = Some(inner);
    }
    match cause {
        Some(cause) if error.is_connect() => cause.to_string(),
        Some(cause) => format!("the request failed: {cause}"),
        None => "the request failed".to_owned(),
    }
}

/// The transport of one connection. It ends when `stop` is cancelled.
pub(super) fn transport(
    client: &reqwest::Client,
    url: &str,
    headers: &HeaderMap,
    settings: &Settings,
    stop: CancellationToken,
) -> StreamableHttpClientTransport<BoundedClient> {
    let mut retry = ExponentialBackoff::default();
    retry.max_times = Some(8);
    retry.max_delay = Some(Duration::from_secs(30));
    let headers = headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(headers)
        .max_sse_event_size(settings.max_message)
        .max_json_response_size(settings.max_message)
        .max_error_response_size(MAX_ERROR_BODY)
        .reinit_on_expired_session(true);
    config.retry_config = Arc::new(retry);
    StreamableHttpClientTransport::with_client(BoundedClient { client: client.clone(), stop }, config)
}

/// The HTTP client of one connection: every request and stream ends when `stop` is cancelled.
#[derive(Clone)]
pub(super) struct BoundedClient {
    client: reqwest::Client,
    stop: CancellationToken,
}

impl BoundedClient {
    async fn bounded<T>(&self, exchange: impl Future<Output = Result<T, HttpError>>) -> Result<T, HttpError> {
        tokio::select! {
            () = self.stop.cancelled() => Err(StreamableHttpError::TransportChannelClosed),
            result = exchange => result.map_err(|error| match error {
                StreamableHttpError::Client(error) => StreamableHttpError::Client(error.without_url()),
                other => other,
            }),
        }
    }

    fn bounded_stream(&self, events: Events) -> Events {
        events.take_until(self.stop.clone().cancelled_owned()).boxed()
    }
}

type Events = BoxStream<'static, Result<Sse, SseError>>;

impl StreamableHttpClient for BoundedClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, auth, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let mut headers = headers;
        if let ClientJsonRpcMessage::Request(request) = &message
            && let Some(trace) = request.request.get_meta().get_traceparent()
            && let Ok(trace) = HeaderValue::from_str(trace)
        {
            headers.insert(TRACEPARENT, trace);
        }
        let exchange = self.client.post_message_with_response_limits(uri, message, session, auth, headers, limits);
        Ok(match self.bounded(exchange).await? {
            StreamableHttpPostResponse::Sse(events, id) => {
                StreamableHttpPostResponse::Sse(self.bounded_stream(events), id)
            }
            other => other,
        })
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpError> {
        // Not bound to `stop`: this is part of closing a connection, and the transport limits its time.
        self.client.delete_session(uri, session, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, HttpError> {
        let limit = StreamableHttpResponseLimits::default().max_sse_event_size;
        self.get_stream_with_max_sse_event_size(uri, session, last_event, auth, headers, limit).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        limit: usize,
    ) -> Result<Events, HttpError> {
        let exchange = self.client.get_stream_with_max_sse_event_size(uri, session, last_event, auth, headers, limit);
        self.bounded(exchange).await.map(|events| self.bounded_stream(events))
    }
}
