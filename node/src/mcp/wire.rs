//! What the stdio and SSE transports share: parsing one message, and recording why a connection ended.

use rmcp::model::ServerJsonRpcMessage;
use std::sync::{Arc, OnceLock};

/// A connection skips messages that are not MCP, because some servers print a greeting. It ends after more than this
/// many.
pub(super) const MAX_MALFORMED: usize = 1000;

/// Parses one JSON-RPC message; `None` if the text is something else.
pub(super) fn parse(text: &[u8]) -> Option<ServerJsonRpcMessage> {
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    serde_json::from_slice(text).inspect_err(|_| tracing::debug!(bytes = text.len(), "not an MCP message")).ok()
}

/// Why the transport of a connection has ended; empty while it runs. The transport sets it once, before the calls that
/// wait for an answer fail, so that no new call starts on the connection.
#[derive(Debug, Clone, Default)]
pub(super) struct EndReason(Arc<OnceLock<String>>);

impl EndReason {
    pub(super) fn record(&self, reason: impl Into<String>) {
        let _first_wins = self.0.set(reason.into());
    }

    pub(super) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}
