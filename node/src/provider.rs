//! Calls model providers over HTTP: sends the request that the engine has built and returns the answer for it.
//!
//! Transient failures are retried inside the attempt (docs/api.md 5.4), within the time of the configured entry. API
//! keys are resolved just before the request and are in no error. Redirects are not followed, so that a key goes to the
//! configured host only.

use crate::config::{Config, Environment, Provider, resolve};
use crate::telemetry::model::{ModelLabels, Outcome, Usage};
use crate::telemetry::{Naming, spans};
use backon::BackoffBuilder;
use bytes::Bytes;
use engine::json;
use engine::provider::{Entry, Wire, transient_status};
use engine::request::Request;
use engine::turn::Reply;
use futures_util::StreamExt;
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use secrecy::{ExposeSecret, SecretString};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
use tracing::Instrument;

/// The time to connect to a provider's host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of an answer.
const MAX_ANSWER: usize = 32 << 20;
/// The shortest and the longest pause between retries. A `retry-after` may make a pause longer.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));

/// The configured providers.
pub(crate) struct Providers {
    http: reqwest::Client,
    entries: HashMap<String, Provider>,
    environment: Arc<dyn Environment>,
    labels: HashMap<String, ModelLabels>,
    naming: Naming,
    /// Whether anybody reads metrics or spans.
    measured: bool,
}

/// Why one HTTP request failed.
struct Fault {
    reply: Reply,
    /// `Some` if the request may be retried, with the time that the provider asked to wait.
    retry: Option<Option<Duration>>,
}

impl Providers {
    /// The providers of a configuration.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(crate) fn new(config: &Config) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .build()?;
        let entries = config.providers.iter().map(|provider| (provider.entry.name.clone(), provider.clone())).collect();
        let labels = config.providers.iter().map(|Provider { entry, .. }| {
            (entry.name.clone(), ModelLabels::new(entry.wire, &entry.model, config.telemetry.naming))
        });
        Ok(Self {
            http,
            entries,
            environment: Arc::clone(&config.environment),
            labels: labels.collect(),
            naming: config.telemetry.naming,
            measured: config.has_metrics() || config.has_traces(),
        })
    }

    /// The entry of that name.
    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name).map(|provider| &provider.entry)
    }

    /// Makes an attempt, retries included. It ends within the entry's timeout, whatever the provider does.
    /// Returns what it used, too, as far as the answer says and somebody wants to know.
    pub(crate) async fn attempt(&self, request: &Request) -> (Reply, Usage) {
        let (begun, span) = (Instant::now(), spans::provider(request));
        let (reply, outcome) = Box::pin(self.attempt_until_known(request)).instrument(span.clone()).await;
        if !self.measured {
            return (reply, Usage::default());
        }
        let usage = reply.body.as_ref().map_or_else(Usage::default, |body| Usage::of(request.wire, body));
        let error = error_type(outcome, &reply);
        if let Some(labels) = self.labels.get(&request.entry) {
            labels.ended(outcome, begun.elapsed(), error, usage);
        }
        spans::provider_answered(&span, reply.status, outcome, error, usage, self.naming);
        (reply, usage)
    }

    async fn attempt_until_known(&self, request: &Request) -> (Reply, Outcome) {
        let Some(provider) = self.entries.get(&request.entry) else {
            return failed(format!("the provider entry '{}' is not configured any more", request.entry));
        };
        let token = match resolve(provider.auth_token.expose_secret(), self.environment.as_ref()) {
            Ok(token) => token,
            Err(error) => return failed(error.to_string()),
        };
        let headers = match headers(request.wire, &token) {
            Some(headers) => headers,
            None => return failed("the auth_token cannot be sent in a header".into()),
        };
        let url = format!("{}{}", request.base_url, request.wire.path());
        let body = Bytes::from(request.wire.body(request, provider.max_tokens_field.as_deref()));
        let deadline = Instant::now() + provider.timeout;
        let mut pauses = backon::ExponentialBuilder::new()
            .with_min_delay(BACKOFF.0)
            .with_max_delay(BACKOFF.1)
            .with_max_times(provider.max_retries as usize)
            .with_jitter()
            .build();
        loop {
            let exchange = self.exchange(request.wire, &url, &headers, body.clone());
            let exchange = tokio::time::timeout_at(deadline, exchange);
            let fault = match exchange.await {
                Err(_) => {
                    let (reply, _) = failed(format!("no answer within {} s", provider.timeout.as_secs()));
                    return (reply, Outcome::Timeout);
                }
                Ok(Ok(reply)) => return (reply, Outcome::Ok),
                Ok(Err(fault)) => fault,
            };
            let (Some(asked), Some(pause)) = (fault.retry, pauses.next()) else { return (fault.reply, Outcome::Error) };
            let pause = asked.unwrap_or_default().max(pause);
            if Instant::now() + pause >= deadline {
                return (fault.reply, Outcome::Error);
            }
            if let Some(labels) = self.labels.get(&request.entry) {
                labels.retried();
            }
            tracing::debug!(entry = request.entry, status = fault.reply.status, "provider attempt is retried");
            tokio::time::sleep(pause).await;
        }
    }

    async fn exchange(&self, wire: Wire, url: &str, headers: &HeaderMap, body: Bytes) -> Result<Reply, Fault> {
        let response = self
            .http
            .post(url)
            .headers(headers.clone())
            .body(body)
            .send()
            .await
            .map_err(|e| connection_failure(None, e))?;
        let status = response.status();
        let retry_after =
            response.headers().get(RETRY_AFTER).and_then(|value| wait(value, response.headers().get(DATE)));
        let mut bytes = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| connection_failure(Some(status.as_u16()), error))?;
            if bytes.len() + chunk.len() > MAX_ANSWER {
                let error = format!("the answer is over {MAX_ANSWER} bytes");
                let reply = Reply { status: Some(status.as_u16()), body: None, error: Some(error) };
                return Err(Fault { reply, retry: None });
            }
            bytes.extend_from_slice(&chunk);
        }
        // Invalid UTF-8 becomes U+FFFD.
        let body = json::read(String::from_utf8_lossy(&bytes).as_bytes()).ok();
        if status.is_success() {
            let failure = body.as_deref().and_then(|body| wire.failure(body));
            let Some(failure) = failure else {
                return Ok(Reply { status: Some(status.as_u16()), body, error: None });
            };
            let error = Some("the answer says that the request failed".to_owned());
            let reply = Reply { status: Some(status.as_u16()), body, error };
            return Err(Fault { reply, retry: failure.transient.then_some(retry_after) });
        }
        let transient = transient_status(status.as_u16());
        let reply = Reply { status: Some(status.as_u16()), body, error: Some(status_text(status)) };
        Err(Fault { reply, retry: transient.then_some(retry_after) })
    }
}

/// `HTTP 503 Service Unavailable`, or `HTTP 529` where the number has no name.
fn status_text(status: reqwest::StatusCode) -> String {
    let name = status.canonical_reason().map_or_else(String::new, |name| format!(" {name}"));
    format!("HTTP {}{name}", status.as_u16())
}

fn failed(error: String) -> (Reply, Outcome) {
    (Reply { status: None, body: None, error: Some(error) }, Outcome::Error)
}

/// Why an attempt failed, as a word of a closed set: `timeout`, the status as a number, or `_OTHER`.
fn error_type(outcome: Outcome, reply: &Reply) -> Option<&'static str> {
    let status = |status| reqwest::StatusCode::from_u16(status).ok().filter(|status| !status.is_success());
    match outcome {
        Outcome::Ok => None,
        Outcome::Timeout => Some("timeout"),
        Outcome::Error => Some(match reply.status.and_then(status).map(|status| status.as_u16()) {
            Some(400) => "400",
            Some(401) => "401",
            Some(403) => "403",
            Some(404) => "404",
            Some(408) => "408",
            Some(413) => "413",
            Some(429) => "429",
            Some(500) => "500",
            Some(502) => "502",
            Some(503) => "503",
            Some(504) => "504",
            Some(529) => "529",
            Some(_) | None => "_OTHER",
        }),
    }
}

/// A failure of the connection, which may be retried.
fn connection_failure(status: Option<u16>, error: reqwest::Error) -> Fault {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    Fault { reply: Reply { status, body: None, error: Some(text) }, retry: Some(None) }
}

fn headers(wire: Wire, token: &SecretString) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let secret = |text: &str| {
        let mut value = HeaderValue::from_str(text).ok()?;
        value.set_sensitive(true);
        Some(value)
    };
    match wire {
        Wire::Anthropic => {
            headers.insert("x-api-key", secret(token.expose_secret())?);
            headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
        }
        Wire::OpenAi => {
            headers.insert(reqwest::header::AUTHORIZATION, secret(&format!("Bearer {}", token.expose_secret()))?);
        }
    }
    Some(headers)
}

/// The longest time that a provider's `retry-after` is taken for. A longer one ends the attempt all the same, and every
/// sum with it stays within what the clock can express.
const MAX_WAIT: Duration = Duration::from_secs(366 * 24 * 3600);

/// The time that `retry-after` asks for. It is in seconds, or a date; a date is compared with the answer's own `date`,
/// because the provider's clock may differ from ours.
fn wait(value: &HeaderValue, date: Option<&HeaderValue>) -> Option<Duration> {
    let parse = |value: &HeaderValue| httpdate::parse_http_date(value.to_str().ok()?.trim()).ok();
    match value.to_str().ok()?.trim().parse::<f64>() {
        Ok(seconds) if seconds > MAX_WAIT.as_secs_f64() => Some(MAX_WAIT),
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => {
            let now = date.and_then(parse).unwrap_or_else(SystemTime::now);
            Some(parse(value)?.duration_since(now).unwrap_or_default().min(MAX_WAIT))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let date = HeaderValue::from_static("Sun, 06 Nov 1994 08:49:30 GMT");
        let wait = |text: &'static str| wait(&HeaderValue::from_static(text), Some(&date));
        assert_eq!(wait("3"), Some(Duration::from_secs(3)));
        assert_eq!(wait("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(7)));
        assert_eq!(wait("-1"), None);
        assert_eq!(wait("9223372036854775807"), Some(MAX_WAIT));
        assert_eq!(wait("inf"), Some(MAX_WAIT));
        assert_eq!(wait("NaN"), None);
        assert_eq!(wait("soon"), None);
        let past = HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(super::wait(&past, None), Some(Duration::ZERO));
    }
}
