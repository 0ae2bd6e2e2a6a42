//! A client of the session API that measures how long each call takes.
//!
//! The time of a call begins before the request is written and ends with the stream of the answer. Frames are parsed
//! after that, so that the work of this program on long answers is not measured.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::StreamExt;
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::marker::Marker;
use crate::provider::TOOL;

/// Why a call failed. The report counts failures by the text of this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There was no connection, or it broke.
    Connection(String),
    /// The answer did not come in time.
    Timeout,
    /// The request was refused with this status and type of problem.
    Status { status: u16, problem: String },
    /// The stream contained an error frame.
    Frame { code: i64, message: String },
    /// The stream ended without a terminal frame.
    Cut,
    /// The answer is not one of this API.
    Unreadable(String),
    /// The answer did not come from the built-in provider: a provider call failed, or the server calls another
    /// provider.
    NotFromProvider,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connection(detail) => write!(f, "connection: {detail}"),
            Failure::Timeout => f.write_str("no answer in time"),
            Failure::Status { status, problem } => write!(f, "HTTP {status} {problem}"),
            Failure::Frame { code, message } => write!(f, "error {code}: {message}"),
            Failure::Cut => f.write_str("stream ended without a terminal frame"),
            Failure::Unreadable(detail) => write!(f, "unreadable answer: {detail}"),
            Failure::NotFromProvider => {
                f.write_str("answered without the built-in provider (is the profile's provider set to its address?)")
            }
        }
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Failure {
        if error.is_timeout() {
            return Failure::Timeout;
        }
        // The innermost cause is the clearest, and it contains no address, so that equal failures are counted together.
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        Failure::Connection(cause.to_string())
    }
}

/// A server of the API, or several nodes of one cluster, and the client key to use there.
#[derive(Clone)]
pub(crate) struct Api {
    http: reqwest::Client,
    bases: Vec<String>,
    /// Counts the requests, to choose the next address.
    turn: Arc<AtomicUsize>,
    key: String,
}

/// An open session with this client registered as a driver.
pub(crate) struct Session {
    api: Api,
    pub id: String,
    key: String,
}

/// One timed call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    pub whole: Duration,
    /// The time until the first byte of the stream.
    pub first: Duration,
    pub stream_bytes: u64,
    pub terminal_bytes: u64,
}

impl Api {
    /// A client whose requests go to each of `urls` in turn.
    pub(crate) fn new(urls: &[String], key: &str, timeout: Duration) -> anyhow::Result<Api> {
        let bases: Vec<_> = urls.iter().map(|url| format!("{}/api/v1/sessions", url.trim_end_matches('/'))).collect();
        anyhow::ensure!(!bases.is_empty(), "the address of a server is needed: --url");
        Ok(Api { http: http_client(timeout)?, bases, turn: Arc::default(), key: key.to_owned() })
    }

    fn base(&self) -> &str {
        &self.bases[self.turn.fetch_add(1, Ordering::Relaxed) % self.bases.len()]
    }

    /// Opens a session and registers as its driver.
    pub(crate) async fn open(&self, rounds: u32) -> Result<Session, Failure> {
        let tools = if rounds > 0 {
            json!([{
                "name": TOOL,
                "description": "Returns its text",
                "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            }])
        } else {
            json!([])
        };
        let body = json!({"client_version": concat!("loadtest/", env!("CARGO_PKG_VERSION")), "tools": tools});
        let response = self.http.post(self.base()).bearer_auth(&self.key).json(&body).send().await?;
        let opened: Opened = parse(&accepted(response).await?)?;
        let session = Session { api: self.clone(), id: opened.session_id, key: opened.session_key };
        session.call("session.registerDriver", &json!({})).await?;
        Ok(session)
    }
}

impl Session {
    /// Makes one whole turn: sends the message and, in every round in which the provider uses the client's tool, its
    /// result.
    pub(crate) async fn turn(&self, marker: Marker, message_bytes: usize) -> Result<Timing, Failure> {
        let mut content = Value::String(marker.message(message_bytes));
        let mut total = Timing::default();
        loop {
            let params = json!({"message": {"role": "user", "content": content}});
            let (timing, result) = self.call("session.sendMessage", &params).await?;
            if total.first.is_zero() {
                total.first = timing.first;
            }
            total.whole += timing.whole;
            total.stream_bytes += timing.stream_bytes;
            total.terminal_bytes = timing.terminal_bytes;
            let answer: Answer = parse(result.get().as_bytes())?;
            let results: Vec<Value> = answer.message.content.iter().filter_map(Block::result).collect();
            if results.is_empty() {
                return Ok(total);
            }
            content = Value::Array(results);
        }
    }

    /// Makes one `GET events?limit=1` and returns its time.
    pub(crate) async fn first_event(&self) -> Result<Duration, Failure> {
        let url = format!("{}/{}/events?limit=1", self.api.base(), self.id);
        let begin = Instant::now();
        let response = self.api.http.get(url).bearer_auth(&self.key).send().await?;
        let body = accepted(response).await?;
        let whole = begin.elapsed();
        let page: Page = parse(&body)?;
        match page.items.len() {
            1 => Ok(whole),
            found => Err(Failure::Unreadable(format!("{found} events instead of one"))),
        }
    }

    pub(crate) async fn close(&self) -> Result<(), Failure> {
        let url = format!("{}/{}", self.api.base(), self.id);
        accepted(self.api.http.delete(url).bearer_auth(&self.key).send().await?).await?;
        Ok(())
    }

    async fn call(&self, method: &str, params: &Value) -> Result<(Timing, Box<RawValue>), Failure> {
        let url = format!("{}/{}/rpc", self.api.base(), self.id);
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let request =
            self.api.http.post(url).bearer_auth(&self.key).header(CONTENT_TYPE, "application/json").body(body);
        let begin = Instant::now();
        let response = request.send().await?;
        if !response.status().is_success() {
            accepted(response).await?;
            return Err(Failure::Cut);
        }
        let mut timing = Timing::default();
        let mut received = Vec::new();
        let mut stream = response.bytes_stream();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk?;
            if received.is_empty() {
                timing.first = begin.elapsed();
            }
            received.extend_from_slice(&chunk);
        }
        timing.whole = begin.elapsed();
        timing.stream_bytes = received.len() as u64;
        let (bytes, result) = terminal(&received)?;
        timing.terminal_bytes = bytes;
        Ok((timing, result))
    }
}

/// An HTTP client that sends small packets at once and keeps one connection open for each caller.
pub(crate) fn http_client(timeout: Duration) -> anyhow::Result<reqwest::Client> {
    reqwest::Client::builder()
        .tcp_nodelay(true)
        .no_proxy()
        .connect_timeout(Duration::from_secs(10))
        .timeout(timeout)
        .pool_max_idle_per_host(usize::MAX)
        .build()
        .context("the HTTP client cannot be set up")
}

/// The size and the result of the terminal frame, which is the last line of the answer. The other lines are not parsed.
fn terminal(stream: &[u8]) -> Result<(u64, Box<RawValue>), Failure> {
    let last = stream.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).ok_or(Failure::Cut)?;
    let frame: Frame = parse(last)?;
    if let Some(error) = frame.error {
        return Err(Failure::Frame { code: error.code, message: error.message });
    }
    match (frame.id, frame.result) {
        (Some(_), Some(result)) => Ok((last.len() as u64, result)),
        (None, _) | (_, None) => Err(Failure::Cut),
    }
}

async fn accepted(response: reqwest::Response) -> Result<bytes::Bytes, Failure> {
    let status = response.status();
    let body = response.bytes().await?;
    if status.is_success() {
        return Ok(body);
    }
    let problem = serde_json::from_slice::<Problem>(&body).map(|problem| problem.kind).unwrap_or_default();
    Err(Failure::Status { status: status.as_u16(), problem })
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::Unreadable(error.to_string()))
}

#[derive(Deserialize)]
struct Problem {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Opened {
    session_id: String,
    session_key: String,
}

#[derive(Deserialize)]
struct Page {
    items: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Frame {
    id: Option<i64>,
    result: Option<Box<RawValue>>,
    error: Option<FrameError>,
}

#[derive(Deserialize)]
struct FrameError {
    code: i64,
    message: String,
}

#[derive(Deserialize)]
struct Answer {
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    content: Vec<Block>,
}

#[derive(Deserialize)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    dispatch: String,
    #[serde(default)]
    input: Value,
}

impl Block {
    /// The tool's result to send, if the block is a use of the client's tool.
    fn result(&self) -> Option<Value> {
        (self.kind == "tool_use" && self.dispatch == "client")
            .then(|| json!({"type": "tool_result", "tool_use_id": self.id, "content": self.input["text"]}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terminal_frame_is_the_last_line() {
        let stream = b"{\"jsonrpc\":\"2.0\",\"method\":\"session.event\",\"params\":{}}\n\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":1.10}}\n\n";
        let (bytes, result) = terminal(stream).unwrap();
        assert_eq!((bytes, result.get()), (44, "{\"a\":1.10}"));
    }

    #[test]
    fn a_stream_without_a_result_is_a_failure() {
        assert_eq!(terminal(b"").unwrap_err(), Failure::Cut);
        let cut = b"{\"jsonrpc\":\"2.0\",\"method\":\"session.event\",\"params\":{}}\n";
        assert_eq!(terminal(cut).unwrap_err(), Failure::Cut);
        let refused =
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,\"message\":\"session is error, not open\"}}\n";
        let failure = Failure::Frame { code: -32000, message: "session is error, not open".to_owned() };
        assert_eq!(terminal(refused).unwrap_err(), failure);
    }
}
