//! The JSON-RPC envelope of `POST …/rpc` (docs/api.md 2) and its frames.

use crate::json::{self, Object, Raw};
use serde_json::value::RawValue;

macro_rules! methods {
    ($($name:ident = $text:literal,)*) => {
        /// The twelve methods of the API.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Method { $($name,)* }

        impl Method {
            /// The name on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Method::$name => $text,)* }
            }

            fn parse(text: &str) -> Option<Method> {
                match text { $($text => Some(Method::$name),)* _ => None }
            }
        }
    };
}

methods! {
    RegisterDriver = "session.registerDriver",
    SendMessage = "session.sendMessage",
    Compact = "session.compact",
    Subscribe = "session.subscribe",
    Unsubscribe = "session.unsubscribe",
    StartRemoteSandbox = "session.startRemoteSandbox",
    StopRemoteSandbox = "session.stopRemoteSandbox",
    ExecRemoteSandbox = "session.execRemoteSandbox",
    ReportLocalSandbox = "session.reportLocalSandbox",
    ReportLocalSubagent = "session.reportLocalSubagent",
    CancelSubagent = "session.cancelSubagent",
    UpdateClientTools = "session.updateClientTools",
}

const PARSE: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
const INTERNAL: i32 = -32603;
/// The code of every failure that has none of its own.
const FAILED: i32 = -32000;
const DRIVER_NOT_REGISTERED: i32 = -32001;
const SANDBOX_IMAGE_NOT_ALLOWED: i32 = -32011;
const SANDBOX_START_FAILED: i32 = -32012;
const SANDBOX_NOT_RUNNING: i32 = -32013;
const SUBAGENT_NOT_FOUND: i32 = -32014;
const TOOL_NOT_ALLOWED: i32 = -32015;
const TURN_IN_PROGRESS: i32 = -32020;

/// An error object of a frame.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// The code, as docs/api.md lists it.
    pub code: i32,
    /// The exact text that the client gets.
    pub message: String,
    /// Whether trying the same call again later makes sense; told to clients as `data.retryable`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retryable: bool,
}

impl RpcError {
    fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: false }
    }

    /// `-32602`: what is wrong with the params.
    pub fn invalid_params(detail: impl std::fmt::Display) -> Self {
        Self::new(INVALID_PARAMS, format!("Invalid params: {detail}"))
    }

    /// `-32602`: an idempotency key was used again with other params.
    pub fn idempotency_key_reused() -> Self {
        Self::invalid_params("idempotency_key was used before with other params; use a new key for a new message")
    }

    /// `-32001`: the caller must register first.
    pub fn driver_not_registered(method: Method) -> Self {
        Self::new(DRIVER_NOT_REGISTERED, format!("call session.registerDriver before {}", method.as_str()))
    }

    /// `-32000`: the session's state allows no such call.
    pub fn not_open(state: &str) -> Self {
        Self::new(FAILED, format!("session is {state}, not open"))
    }

    /// `-32000`: the profile was deleted under the session.
    pub fn profile_unavailable() -> Self {
        Self::new(FAILED, "profile_unavailable: the profile bound to this session is no longer available")
    }

    /// `-32603`: a failure of ours; the same call may be made again.
    pub fn internal() -> Self {
        Self { code: INTERNAL, message: "Internal error".into(), retryable: true }
    }

    /// `-32000`: the session was deleted while the call waited or ran.
    pub fn session_gone() -> Self {
        Self::new(FAILED, "session no longer exists")
    }

    /// `-32000`: the key that made the call was revoked.
    pub fn client_key_revoked() -> Self {
        Self::new(FAILED, "the client key was revoked")
    }

    /// `-32000`: the session's queue of calls is full; the same call may be made again.
    pub fn too_many_queued_calls() -> Self {
        Self { retryable: true, ..Self::new(FAILED, "too many queued calls") }
    }

    /// `-32000`: a subscriber read too slowly, so its stream ends.
    pub fn lagged() -> Self {
        Self::new(FAILED, "lagged; reconnect with since_event_id")
    }

    /// `-32000`: tool results were sent, but no tool use waits for one.
    pub fn nothing_awaited() -> Self {
        Self::new(
            FAILED,
            "tool result merge invalid: no paused turn is awaiting tool results (it may have timed out and been retired)",
        )
    }

    /// `-32000`: the tool results sent do not fit the tool uses that wait.
    pub fn tool_result_merge_invalid(detail: impl std::fmt::Display) -> Self {
        Self::new(FAILED, format!("tool result merge invalid: {detail}"))
    }

    /// `-32000`: a compaction ended without a summary.
    pub fn compaction_failed(detail: impl std::fmt::Display) -> Self {
        Self::new(FAILED, format!("compaction failed: {detail}"))
    }

    /// `-32011`: the session's profile does not allow the image.
    pub fn sandbox_image_not_allowed(detail: impl std::fmt::Display) -> Self {
        Self::new(SANDBOX_IMAGE_NOT_ALLOWED, format!("sandbox_image_not_allowed: {detail}"))
    }

    /// `-32012`: the sandbox did not start.
    pub fn sandbox_start_failed(detail: impl std::fmt::Display) -> Self {
        Self::new(SANDBOX_START_FAILED, format!("sandbox_start_failed: {detail}"))
    }

    /// `-32013`: the call needs a running sandbox.
    pub fn sandbox_not_running() -> Self {
        let detail = "no remote sandbox is running for this session; call session.startRemoteSandbox first";
        Self::new(SANDBOX_NOT_RUNNING, format!("sandbox_not_running: {detail}"))
    }

    /// `-32000`: the session has a sandbox already.
    pub fn sandbox_already_running() -> Self {
        let detail = "a remote sandbox is already running for this session; call session.stopRemoteSandbox first";
        Self::new(FAILED, detail)
    }

    /// `-32000`: the driver did not remove the sandbox.
    pub fn sandbox_stop_failed(detail: impl std::fmt::Display) -> Self {
        Self::new(FAILED, format!("sandbox stop failed: {detail}"))
    }

    /// `-32000`: a command was not run to its end.
    pub fn sandbox_exec_failed(detail: impl std::fmt::Display) -> Self {
        Self::new(FAILED, format!("sandbox exec failed: {detail}"))
    }

    /// `-32014`: the session tracks no remote subagent of the given id.
    pub fn subagent_not_found() -> Self {
        Self::new(SUBAGENT_NOT_FOUND, "subagent_not_found: this session tracks no remote subagent of that id")
    }

    /// `-32015`: the session's profile does not allow a declared tool.
    pub fn tool_not_allowed(detail: impl std::fmt::Display) -> Self {
        Self::new(TOOL_NOT_ALLOWED, format!("tool_not_allowed: {detail}"))
    }

    /// `-32020`: a compaction was asked for while a turn is paused.
    pub fn turn_in_progress() -> Self {
        Self::new(TURN_IN_PROGRESS, "turn in progress: resolve the paused turn before compacting")
    }

    /// The error object as JSON text.
    pub fn object(&self) -> String {
        let message = json::encode(&self.message);
        let data = if self.retryable { r#","data":{"retryable":true}"# } else { "" };
        format!(r#"{{"code":{},"message":{message}{data}}}"#, self.code)
    }
}

/// A well-formed request.
#[derive(Debug, Clone)]
pub struct Envelope {
    /// The id to repeat in the answer. None for a notification, which gets no terminal frame.
    pub id: Option<Raw>,
    /// The method that is called, or the error for an unknown name.
    pub method: Result<Method, RpcError>,
    /// The params, not parsed yet, because a method checks the caller and the session first.
    pub params: Raw,
}

/// A request that is not a valid call of a method.
#[derive(Debug)]
pub struct Malformed {
    /// The id to repeat in the answer, or `null` if it cannot be read.
    pub id: Raw,
    /// The error to answer.
    pub error: RpcError,
}

/// Reads the body of a request.
///
/// # Errors
/// `-32700` if it is not JSON, `-32600` if it is not a request (docs/api.md 2.1).
pub fn parse(body: &[u8]) -> Result<Envelope, Malformed> {
    let null = || json::encode(&());
    let malformed = |id: Raw, code: i32, message: &str| Malformed { id, error: RpcError::new(code, message) };
    let body = json::read(body).map_err(|_| malformed(null(), PARSE, "Parse error"))?;
    if body.get().starts_with('[') {
        return Err(malformed(null(), INVALID_REQUEST, "Invalid Request: batch requests are not supported"));
    }
    let Some(members) = Object::parse(&body) else {
        return Err(malformed(null(), INVALID_REQUEST, "Invalid Request: the body is not an object"));
    };
    let id = members.get("id");
    if id.is_some_and(|id| !matches!(id.get().as_bytes()[0], b'"' | b'n' | b'-' | b'0'..=b'9')) {
        return Err(malformed(null(), INVALID_REQUEST, "Invalid Request: id must be a string, a number or null"));
    }
    let echo = || id.map_or_else(null, own);
    if members.str("jsonrpc").as_deref() != Some("2.0") {
        return Err(malformed(echo(), INVALID_REQUEST, r#"Invalid Request: jsonrpc must be "2.0""#));
    }
    let Some(method) = members.str("method") else {
        return Err(malformed(echo(), INVALID_REQUEST, "Invalid Request: method must be a string"));
    };
    let method =
        Method::parse(&method).ok_or_else(|| RpcError::new(METHOD_NOT_FOUND, format!("Method not found: {method}")));
    let params = members.get("params").filter(|params| params.get() != "null");
    Ok(Envelope { id: id.map(own), method, params: params.map_or_else(|| json::built("{}".into()), own) })
}

fn own(raw: &RawValue) -> Raw {
    Raw::from(raw.to_owned())
}

/// The terminal frame with this result, which is JSON text.
pub fn result(id: &RawValue, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n")
}

/// The terminal frame with this error.
pub fn error(id: &RawValue, error: &RpcError) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{}}}\n", error.object())
}

/// The frame that ends a stream with an error without being the answer to a call (`lagged`, docs/api.md 2.5).
pub fn ended(error: &RpcError) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"error\":{}}}\n", error.object())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> (String, i32) {
        let malformed = parse(body.as_bytes()).expect_err("malformed");
        (malformed.id.get().to_owned(), malformed.error.code)
    }

    #[test]
    fn envelopes() {
        let ok =
            parse(br#"{"jsonrpc":"2.0","id":1.0,"method":"session.compact","params":{"prompt":null}}"#).expect("ok");
        assert_eq!(ok.id.as_ref().map(|id| id.get()), Some("1.0"));
        assert_eq!(ok.method, Ok(Method::Compact));
        let notification = parse(b"{\"jsonrpc\":\"2.0\",\n\"method\":\"nope\"}").expect("ok");
        assert!(notification.id.is_none());
        assert_eq!(notification.method.map_err(|e| e.message), Err("Method not found: nope".into()));
        assert_eq!(notification.params.get(), "{}");
        assert!(parse(br#"{"jsonrpc":"2.0","id":null,"method":"x"}"#).expect("ok").id.is_some());
    }

    #[test]
    fn malformed_ones() {
        assert_eq!(refused("{"), ("null".into(), -32700));
        assert_eq!(refused("[]"), ("null".into(), -32600));
        assert_eq!(refused("3"), ("null".into(), -32600));
        assert_eq!(refused(r#"{"id":"a","method":"x"}"#), ("\"a\"".into(), -32600));
        assert_eq!(refused(r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#), ("null".into(), -32600));
        assert_eq!(refused(r#"{"jsonrpc":"2.0","id":7,"method":3}"#), ("7".into(), -32600));
        assert_eq!(parse(b"\xff").expect_err("bytes").error.code, -32700);
    }
}
