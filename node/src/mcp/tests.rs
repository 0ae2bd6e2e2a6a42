//! Tests of the MCP client against real servers: HTTP servers in this process, and shell scripts as stdio servers.
//!
//! Each transport has a module; `http` also has the tests of what all transports have in common.

mod http;
mod peer;
mod sse;
mod stdio;

use super::*;
use secrecy::SecretString;
use std::sync::Arc;
use std::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(20);

fn settings() -> Settings {
    Settings { environment: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())], ..Settings::default() }
}

fn mcp(settings: Settings) -> Mcp {
    let resolve: Resolve = Arc::new(|value| match value {
        "${GONE}" => Err("variable GONE is not set".to_owned()),
        value => Ok(SecretString::from(value.replace("${KEY}", "k-1"))),
    });
    Mcp::new(settings, resolve).unwrap()
}

fn session(n: u8) -> SessionId {
    SessionId([n; 16])
}

fn raw(text: &str) -> Raw {
    engine::json::parse(text).unwrap()
}

/// Calls a tool with this input, which must succeed, and returns the JSON of its result.
async fn ok(mcp: &Mcp, session: SessionId, server: &ServerConfig, tool: &str, input: &str) -> serde_json::Value {
    match mcp.call(session, server, tool, &raw(input), None).await {
        CallOutcome::Ok { result, .. } => serde_json::from_str(result.get()).unwrap(),
        CallOutcome::Failed { error } => panic!("{tool} failed: {error}"),
    }
}

/// Calls a tool and returns the text of the first block of its result.
async fn text(mcp: &Mcp, session: SessionId, server: &ServerConfig, tool: &str) -> String {
    ok(mcp, session, server, tool, "{}").await["content"][0]["text"].as_str().unwrap().to_owned()
}

async fn failure(mcp: &Mcp, session: SessionId, server: &ServerConfig, tool: &str) -> String {
    match mcp.call(session, server, tool, &raw("{}"), None).await {
        CallOutcome::Ok { result, .. } => panic!("{tool} answered {result}"),
        CallOutcome::Failed { error } => error,
    }
}

/// Waits until the state meets a condition. If it does not in time, the message of the failure shows the last state.
async fn eventually<T: std::fmt::Debug>(what: &str, mut state: impl FnMut() -> T, holds: impl Fn(&T) -> bool) {
    let start = Instant::now();
    loop {
        let last = state();
        if holds(&last) {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "{what} did not come about; the last state is {last:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn names(offered: &[McpTool]) -> Vec<(&str, &str)> {
    offered.iter().map(|tool| (tool.server.as_str(), tool.name.as_str())).collect()
}
