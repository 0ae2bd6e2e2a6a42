//! The JSON-RPC envelope of `POST …/rpc` (companion 2) and its frames.

use crate::json::{self, Object, Raw};
use serde_json::value::RawValue;

macro_rules! methods {
    ($($name:ident = $text:literal,)*) => {
        /// The twelve methods of the contract.
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

/// An error object of a frame.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// The code of the contract.
    pub code: i32,
    /// The exact message.
    pub message: String,
    /// Whether trying the same call again later makes sense; told to clients as `data.retryable`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retryable: bool,
}

impl RpcError {
    /// An error of that code.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: false }
    }

    /// `-32602`: what is wrong with the params.
    pub fn invalid_params(detail: impl std::fmt::Display) -> Self {
        Self::new(-32602, format!("Invalid params: {detail}"))
    }

    /// `-32001`: the caller must register first.
    pub fn driver_not_registered(method: Method) -> Self {
        Self::new(-32001, format!("call session.registerDriver before {}", method.as_str()))
    }

    /// `-32000`: the session's state allows no such call.
    pub fn not_open(state: &str) -> Self {
        Self::new(-32000, format!("session is {state}, not open"))
    }

    /// `-32000`: the profile was deleted under the session.
    pub fn profile_unavailable() -> Self {
        Self::new(-32000, "profile_unavailable: the profile bound to this session is no longer available")
    }

    /// `-32603`: a failure of ours; the same call may be made again.
    pub fn internal() -> Self {
        Self { code: -32603, message: "Internal error".into(), retryable: true }
    }

    /// The error object.
    pub fn object(&self) -> String {
        let message = json::encode(&self.message);
        let data = if self.retryable { r#","data":{"retryable":true}"# } else { "" };
        format!(r#"{{"code":{},"message":{message}{data}}}"#, self.code)
    }
}

/// A well-formed request.
#[derive(Debug, Clone)]
pub struct Envelope {
    /// The text to echo; none for a notification, which gets no terminal frame.
    pub id: Option<Raw>,
    /// What is called; the error for an unknown name.
    pub method: Result<Method, RpcError>,
    /// Whatever was sent, not looked at yet: a method's own checks come before its params.
    pub params: Raw,
}

/// A request that cannot be answered by a method: the error and the id to answer it under (`null` if unreadable).
#[derive(Debug)]
pub struct Malformed {
    /// The id's text.
    pub id: Raw,
    /// Why.
    pub error: RpcError,
}

/// Reads a body.
///
/// # Errors
/// `-32700` and `-32600` as companion 2.1 says.
pub fn parse(body: &[u8]) -> Result<Envelope, Malformed> {
    let null = || json::encode(&());
    let malformed = |id: Raw, code: i32, message: &str| Malformed { id, error: RpcError::new(code, message) };
    let body = json::read(body).map_err(|_| malformed(null(), -32700, "Parse error"))?;
    if body.get().starts_with('[') {
        return Err(malformed(null(), -32600, "Invalid Request: batch requests are not supported"));
    }
    let Some(members) = Object::parse(&body) else {
        return Err(malformed(null(), -32600, "Invalid Request: the body is not an object"));
    };
    let id = members.get("id");
    if id.is_some_and(|id| !matches!(id.get().as_bytes()[0], b'"' | b'n' | b'-' | b'0'..=b'9')) {
        return Err(malformed(null(), -32600, "Invalid Request: id must be a string, a number or null"));
    }
    let echo = || id.map_or_else(null, own);
    if members.str("jsonrpc").as_deref() != Some("2.0") {
        return Err(malformed(echo(), -32600, r#"Invalid Request: jsonrpc must be "2.0""#));
    }
    let Some(method) = members.str("method") else {
        return Err(malformed(echo(), -32600, "Invalid Request: method must be a string"));
    };
    let method = Method::parse(&method).ok_or_else(|| RpcError::new(-32601, format!("Method not found: {method}")));
    let params = members.get("params").filter(|params| params.get() != "null");
    Ok(Envelope { id: id.map(own), method, params: params.map_or_else(|| json::built("{}".into()), own) })
}

fn own(raw: &RawValue) -> Raw {
    Raw::from(raw.to_owned())
}

/// The terminal frame of a result that fits in memory.
pub fn result(id: &RawValue, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n")
}

/// The terminal frame of an error.
pub fn error(id: &RawValue, error: &RpcError) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{}}}\n", error.object())
}

/// An error that ends a stream without being a call's answer (`lagged`, companion 2.5).
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
