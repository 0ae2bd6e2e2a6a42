//! The session API over HTTP, as the rest of the chat client uses it. Failures are sorted by what the caller can do:
//! try again ([`Failure::Lost`]) or tell the person.
//!
//! A turn or a subscription may last for as long as the server likes, so its stream has no deadline; TCP keep-alive
//! notices a dead peer. Every other answer has a deadline.

use std::path::Path;
use std::time::Duration;
use std::{fmt, io};

use crate::client;
use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use reqwest::header::CONTENT_TYPE;
use reqwest::{RequestBuilder, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, Decoder, FramedRead};
use tokio_util::io::StreamReader;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Between TCP keep-alive probes. Two that stay unanswered end the connection.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Bytes of one frame: the result of a turn holds all its events, and their payloads hold whole conversations.
const MAX_FRAME: usize = 1 << 30;
/// Events that one request for a page asks for; the server allows no more.
const PAGE: u32 = 200;

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The server refused the request with a problem document, and would do so again.
    #[error("{}", refusal(*.status, .kind, .detail))]
    Refused { status: u16, kind: String, detail: String },
    /// The call ended with a JSON-RPC error.
    #[error("{message} ({code})")]
    Error { code: i64, message: String },
    /// There was no answer, or only a part of one: another attempt may succeed.
    #[error("{0}")]
    Lost(String),
    /// The answer does not follow the API.
    #[error("the server's answer was not understood: {0}")]
    Unreadable(String),
}

fn refusal(status: u16, kind: &str, detail: &str) -> String {
    match (kind, detail) {
        ("unauthorized", _) => format!("the server does not accept the key: {detail}"),
        ("not_found", _) => "there is no such session".to_owned(),
        ("session_closed", detail) => format!("the session cannot be joined: {detail}"),
        ("profile_mismatch", _) => "the session belongs to another profile than this client key".to_owned(),
        (kind, "") => format!("the server answered {status} {kind}"),
        (_, detail) => detail.to_owned(),
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Failure {
        if error.is_builder() {
            return Failure::Unreadable(format!("the address cannot be used: {error}"));
        }
        if let Some(trouble) = client::tls_trouble(&error) {
            return Failure::Unreadable(trouble);
        }
        if error.is_connect() {
            return Failure::Lost("no server answers".to_owned());
        }
        if error.is_timeout() {
            return Failure::Lost("the server does not answer".to_owned());
        }
        Failure::Lost("the connection was cut".to_owned())
    }
}

/// A server, as seen with a client key.
pub(super) struct Api {
    http: reqwest::Client,
    sessions: String,
    key: SecretString,
}

/// A session, as seen with the session key that this client was given for it.
#[derive(Clone)]
pub(super) struct Session {
    http: reqwest::Client,
    url: String,
    key: SecretString,
}

/// The answer to opening and joining.
#[derive(Deserialize)]
pub(super) struct Opened {
    pub(super) session_id: String,
    session_key: SecretString,
    pub(super) profile: Profile,
}

#[derive(Debug, Deserialize)]
pub(super) struct Profile {
    name: String,
    #[serde(default)]
    pub(super) allowed_tools: Vec<String>,
    provider: Option<Provider>,
}

#[derive(Debug, Deserialize)]
struct Provider {
    provider: String,
    model: String,
}

impl Profile {
    pub(super) fn describe(&self) -> String {
        match &self.provider {
            Some(Provider { provider, model }) => format!("{} ({model} over {provider})", self.name),
            None => self.name.clone(),
        }
    }
}

/// One entry of the session's log. The payload is parsed only where it is shown, because a provider request holds the
/// whole conversation.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Event {
    pub(super) id: String,
    pub(super) client_key_id: Option<String>,
    pub(super) event_type: String,
    payload: Box<RawValue>,
    pub(super) created_at: String,
}

impl Event {
    pub(super) fn payload(&self) -> Value {
        serde_json::from_str(self.payload.get()).unwrap_or(Value::Null)
    }

    pub(super) fn raw_payload(&self) -> &str {
        self.payload.get()
    }
}

#[derive(Deserialize)]
pub(super) struct Page {
    pub(super) items: Vec<Event>,
    pub(super) next_cursor: Option<String>,
}

/// One line of a stream.
#[derive(Debug)]
pub(super) enum Frame {
    Event(Box<Event>),
    Result(Box<RawValue>),
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Api {
    /// A client of the server at `url`, whose certificate may be signed by an authority of the file `ca`.
    ///
    /// # Errors
    /// When the URL or the file cannot be used.
    pub(super) fn new(url: &str, ca: Option<&Path>, key: SecretString) -> anyhow::Result<Api> {
        let parsed = reqwest::Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let Some(parsed) = parsed else { anyhow::bail!("--url must be like http://127.0.0.1:8080") };
        let http = client::builder(&parsed, ca)?
            .connect_timeout(CONNECT_LIMIT)
            .tcp_nodelay(true)
            .tcp_keepalive(KEEPALIVE)
            .tcp_keepalive_interval(KEEPALIVE)
            .tcp_keepalive_retries(2)
            .build()?;
        Ok(Api { http, sessions: format!("{}/api/v1/sessions", url.trim_end_matches('/')), key })
    }

    pub(super) async fn open(&self, tools: &Value) -> Result<Opened, Failure> {
        self.enter(&self.sessions, tools).await
    }

    pub(super) async fn join(&self, session: &str, tools: &Value) -> Result<Opened, Failure> {
        if !session.chars().all(|character| character.is_ascii_alphanumeric() || character == '_') {
            return Err(Failure::Unreadable(format!("{session:?} is no session id")));
        }
        self.enter(&format!("{}/{session}/join", self.sessions), tools).await
    }

    pub(super) fn session(&self, opened: &Opened) -> anyhow::Result<Session> {
        let url = format!("{}/{}", self.sessions, opened.session_id);
        Ok(Session { http: self.http.clone(), url, key: opened.session_key.clone() })
    }

    async fn enter(&self, url: &str, tools: &Value) -> Result<Opened, Failure> {
        let body = json!({"client_version": concat!("baesrv-chat/", env!("CARGO_PKG_VERSION")), "tools": tools, "sandbox_tools": [super::tools::shell()]});
        let request = self.http.post(url).bearer_auth(self.key.expose_secret()).json(&body);
        document(request).await
    }
}

impl Session {
    pub(super) async fn register(&self) -> Result<(), Failure> {
        self.request("session.registerDriver", json!({})).await.map(drop)
    }

    /// A page of the log, oldest first.
    pub(super) async fn events(&self, cursor: Option<&str>) -> Result<Page, Failure> {
        let unusable = |error| Failure::Unreadable(format!("the address cannot be used: {error}"));
        let mut url = reqwest::Url::parse(&format!("{}/events?limit={PAGE}", self.url)).map_err(unusable)?;
        if let Some(cursor) = cursor {
            url.query_pairs_mut().append_pair("cursor", cursor);
        }
        document(self.http.get(url).bearer_auth(self.key.expose_secret())).await
    }

    /// A call that the server answers without running a turn.
    pub(super) async fn request(&self, method: &str, params: Value) -> Result<Box<RawValue>, Failure> {
        let answered = async {
            let mut frames = self.call(method, &params).await?;
            loop {
                if let Frame::Result(result) = frames.next().await? {
                    return Ok(result);
                }
            }
        };
        match tokio::time::timeout(ANSWER_LIMIT, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Lost("the server does not answer".to_owned())),
        }
    }

    /// A call whose frames the caller reads as they arrive.
    pub(super) async fn call(&self, method: &str, params: &Value) -> Result<Frames, Failure> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let request = self.http.post(format!("{}/rpc", self.url)).header(CONTENT_TYPE, "application/json").body(body);
        // The response's head comes at once, however long its stream lasts.
        let sent = tokio::time::timeout(ANSWER_LIMIT, request.bearer_auth(self.key.expose_secret()).send());
        let response = sent.await.map_err(|_| Failure::Lost("the server does not answer".to_owned()))??;
        let response = accepted(response).await?;
        Ok(Frames::new(response.bytes_stream().map(|chunk| chunk.map_err(Failure::from))))
    }
}

/// The frames of one call. `next` may be dropped at any time and called again: no part of a frame is lost.
pub(super) struct Frames {
    lines: FramedRead<StreamReader<BoxStream<'static, io::Result<Bytes>>, Bytes>, Lines>,
}

impl Frames {
    fn new(chunks: impl Stream<Item = Result<Bytes, Failure>> + Send + 'static) -> Frames {
        let chunks = chunks.map(|chunk| chunk.map_err(io::Error::other)).boxed();
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), Vec::new(), MAX_FRAME);
        Frames { lines: FramedRead::new(StreamReader::new(chunks), Lines(codec)) }
    }

    /// The next frame; `None` if the stream stayed open and silent for so long.
    pub(super) async fn next_within(&mut self, silence: Duration) -> Result<Option<Frame>, Failure> {
        match tokio::time::timeout(silence, self.next()).await {
            Ok(frame) => frame.map(Some),
            Err(_) => Ok(None),
        }
    }

    /// The next frame. An end of the stream is `Lost`: the last frame of a call is a result or an error.
    pub(super) async fn next(&mut self) -> Result<Frame, Failure> {
        while let Some(line) = self.lines.next().await {
            let line = line.map_err(|error| match error {
                AnyDelimiterCodecError::MaxChunkLengthExceeded => {
                    Failure::Unreadable("a line without an end".to_owned())
                }
                AnyDelimiterCodecError::Io(error) => {
                    error.downcast().unwrap_or_else(|error| Failure::Lost(error.to_string()))
                }
            })?;
            if let Some(frame) = read(&line)? {
                return Ok(frame);
            }
        }
        Err(Failure::Lost("the stream ended".to_owned()))
    }
}

/// Splits a stream into lines. A last line without its line end is a part of a frame that was cut, so it is left out.
struct Lines(AnyDelimiterCodec);

impl Decoder for Lines {
    type Item = Bytes;
    type Error = AnyDelimiterCodecError;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, AnyDelimiterCodecError> {
        self.0.decode(buffer)
    }

    fn decode_eof(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, AnyDelimiterCodecError> {
        let line = self.0.decode(buffer)?;
        if line.is_none() {
            buffer.clear();
        }
        Ok(line)
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(default, borrow)]
    method: Option<&'a str>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<ErrorObject>,
}

#[derive(Deserialize)]
struct ErrorObject {
    code: i64,
    message: String,
    #[serde(default)]
    data: Value,
}

/// Reads a line. Empty lines only keep the connection alive, and this client needs no notifications but events.
fn read(line: &[u8]) -> Result<Option<Frame>, Failure> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let line: Line<'_> = parse(line)?;
    if let Some(ErrorObject { code, message, data }) = line.error {
        // In both cases the server asks to connect again.
        let again = data["retryable"] == Value::Bool(true) || message.starts_with("lagged");
        return Err(if again { Failure::Lost(message) } else { Failure::Error { code, message } });
    }
    if let Some(result) = line.result {
        return Ok(Some(Frame::Result(result)));
    }
    match (line.method, line.params) {
        (Some("session.event"), Some(params)) => Ok(Some(Frame::Event(parse(params.get().as_bytes())?))),
        (_, _) => Ok(None),
    }
}

async fn document<T: serde::de::DeserializeOwned>(request: RequestBuilder) -> Result<T, Failure> {
    let response = accepted(request.timeout(ANSWER_LIMIT).send().await?).await?;
    parse(&response.bytes().await?)
}

async fn accepted(response: reqwest::Response) -> Result<reqwest::Response, Failure> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Problem {
        r#type: String,
        detail: String,
    }
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let problem: Problem = parse(&response.bytes().await?).unwrap_or_default();
    if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT) {
        return Err(Failure::Lost(format!("the server answered {}", status.as_u16())));
    }
    Err(Failure::Refused { status: status.as_u16(), kind: problem.r#type, detail: problem.detail })
}

fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(json).map_err(|error| Failure::Unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(chunks: &[&str]) -> Frames {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from((*chunk).to_owned()))).collect();
        Frames::new(futures_util::stream::iter(chunks))
    }

    #[tokio::test]
    async fn frames_are_put_together_from_any_chunks() {
        let event = r#"{"jsonrpc":"2.0","method":"session.event","params":{"id":"evt_1","session_id":"ses_1","client_key_id":null,"event_type":"x","payload":{"n":1.10},"created_at":"t"}}"#;
        let (front, back) = event.split_at(30);
        let mut frames = frames(&[
            "\n",
            front,
            back,
            "\n\n{\"jsonrpc\":\"2.0\",\"method\":\"other\"}\n{\"id\":1,\"result\"",
            ":{}}\n",
        ]);
        match frames.next().await.unwrap() {
            Frame::Event(event) => assert_eq!((event.id.as_str(), event.raw_payload()), ("evt_1", r#"{"n":1.10}"#)),
            Frame::Result(result) => panic!("{result}"),
        }
        assert!(matches!(frames.next().await.unwrap(), Frame::Result(_)));
        assert!(matches!(frames.next().await.unwrap_err(), Failure::Lost(_)));
    }

    #[tokio::test]
    async fn a_broken_stream_says_why() {
        let chunks = [Ok(Bytes::from_static(b"{\"id\":1,")), Err(Failure::Lost("the connection was cut".to_owned()))];
        let error = Frames::new(futures_util::stream::iter(chunks)).next().await.unwrap_err();
        assert!(matches!(&error, Failure::Lost(why) if why == "the connection was cut"), "{error:?}");
    }

    #[tokio::test]
    async fn a_cut_frame_is_lost() {
        assert!(matches!(frames(&["{\"id\":1,\"res"]).next().await.unwrap_err(), Failure::Lost(_)));
    }

    #[test]
    fn errors_say_whether_to_come_again() {
        let again = r#"{"id":1,"error":{"code":-32603,"message":"Internal error","data":{"retryable":true}}}"#;
        assert!(matches!(read(again.as_bytes()), Err(Failure::Lost(_))));
        let lagged = r#"{"error":{"code":-32000,"message":"lagged; reconnect with since_event_id"}}"#;
        assert!(matches!(read(lagged.as_bytes()), Err(Failure::Lost(_))));
        let refused = r#"{"id":1,"error":{"code":-32603,"message":"Internal error"}}"#;
        assert!(matches!(read(refused.as_bytes()), Err(Failure::Error { code: -32603, .. })));
    }
}
