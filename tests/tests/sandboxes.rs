//! Remote sandboxes and subagents on a real Docker daemon and a real Kubernetes cluster (docs/api.md 6, 8 and 9; F19, F20, F21).
//!
//! What exists is asked of the [`Runtime`] itself: the containers of a session are those that carry the session's id in a label.
//! A node is caught at a step by a [gate](tests::docker::gate) that holds its call of the runtime.

mod commands;
mod crashes;
mod lifecycle;
mod many;
mod outage;
mod runtime;
mod subagents;
mod telemetry;
mod turns;

use runtime::{Runtime, Step, over_both};
use serde_json::{Value, json};
use std::time::Duration;
use tests::client::{Outcome, Session, of_type};
use tests::docker::{BARE_IMAGE, IMAGE};
use tests::fixture::Fixture;

const START: &str = "session.startRemoteSandbox";
const STOP: &str = "session.stopRemoteSandbox";
const EXEC: &str = "session.execRemoteSandbox";
const CANCEL: &str = "session.cancelSubagent";
/// An image that no registry has, and a registry that is not there.
const MISSING_IMAGE: &str = "127.0.0.1:1/nobody/has-this:1";
/// Within this another node finishes what a lost one has begun.
const CARRIED_ON: Duration = Duration::from_secs(30);

/// A shell tool that the server runs by itself.
fn shell_tool() -> Value {
    json!({
        "name": "sh", "description": "Run a command",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    })
}

/// A declaration that launches subagents, with these harnesses: `(name, template, prompt_via, timeout_secs)`.
fn launch_tool(harnesses: &[(&str, &str, &str, Option<u64>)]) -> Value {
    let harness = |(name, template, via, timeout): &(&str, &str, &str, Option<u64>)| {
        let mut harness = json!({"harness": name, "command_template": template, "prompt_via": via});
        if let Some(timeout) = timeout {
            harness["timeout_secs"] = json!(timeout);
        }
        harness
    };
    json!({
        "name": "launch_subagent", "description": "Launch", "input_schema": {"type": "object"}, "image": IMAGE,
        "subagents": harnesses.iter().map(harness).collect::<Vec<_>>(),
    })
}

/// A session of one node with the shell tool, whose client is a driver.
async fn driver(fixture: &Fixture) -> Session {
    fixture.driver_with(json!({"sandbox_tools": [shell_tool()]})).await
}

/// Starts the session's sandbox; returns its id.
async fn start(session: &Session) -> String {
    let outcome = session.rpc(START, json!({"image": IMAGE})).await;
    outcome.result()["sandbox_id"].as_str().expect("an id").to_owned()
}

async fn exec(session: &Session, command: &str) -> Outcome {
    session.rpc(EXEC, json!({"command": command})).await
}

/// Runs a command that succeeds; returns its output.
async fn sh(session: &Session, command: &str) -> String {
    let outcome = exec(session, command).await;
    let result = outcome.result();
    assert_eq!(result["exit_code"], 0, "{result}");
    result["stdout"].as_str().expect("output").to_owned()
}

/// The payloads of the log's events of one type, a shorter name for `session.NAME`.
fn payloads(events: &[Value], name: &str) -> Vec<Value> {
    of_type(events, &format!("session.{name}")).iter().map(|event| event["payload"].clone()).collect()
}

/// The types of the events about sandboxes and subagents, without `session.`.
fn lifecycle_types(events: &[Value]) -> Vec<String> {
    let kinds = tests::client::types(events);
    let about = |kind: &String| {
        let kind = kind.strip_prefix("session.")?;
        (kind.starts_with("sandbox.") || kind.starts_with("subagent.")).then(|| kind.to_owned())
    };
    kinds.iter().filter_map(about).filter(|kind| kind != "sandbox.available").collect()
}

/// The result that the model got for a tool use, in the last request that has it: its text, and whether it is an error.
fn told(provider: &tests::provider::Provider, tool_use: &str) -> (String, bool) {
    let requests = provider.requests();
    let blocks = requests.iter().rev().flat_map(|request| {
        let body = request.json();
        let messages = body["messages"].as_array().expect("messages").clone();
        messages.into_iter().flat_map(|message| message["content"].as_array().cloned().unwrap_or_default())
    });
    let found: Vec<Value> = blocks.filter(|block| block["tool_use_id"] == tool_use).collect();
    let block = found.first().unwrap_or_else(|| panic!("no result of {tool_use} was sent"));
    let text = match &block["content"] {
        Value::String(text) => text.clone(),
        content => {
            assert_eq!(content.as_array().map(Vec::len), Some(1), "one text block: {content}");
            content[0]["text"].as_str().expect("text").to_owned()
        }
    };
    (text, block["is_error"] == true)
}
