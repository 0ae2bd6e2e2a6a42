//! What the transports of our own share: reading one message, and remembering why a connection ended.

use rmcp::model::ServerJsonRpcMessage;
use std::sync::{Arc, OnceLock};

/// Messages that cannot be read are skipped, because servers print banners; so many of them end the connection.
pub(super) const MAX_JUNK: usize = 1000;

/// One JSON-RPC message, or nothing if the text is something else.
pub(super) fn parse(text: &[u8]) -> Option<ServerJsonRpcMessage> {
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    serde_json::from_slice(text).inspect_err(|_| tracing::debug!(bytes = text.len(), "not an MCP message")).ok()
}

/// Set once, with the reason, when the transport of a connection has ended. Known before the calls that wait on the
/// connection fail, so that no new call starts on it.
#[derive(Debug, Clone, Default)]
pub(super) struct Ended(Arc<OnceLock<String>>);

impl Ended {
    pub(super) fn record(&self, reason: impl Into<String>) {
        let _first_wins = self.0.set(reason.into());
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}
