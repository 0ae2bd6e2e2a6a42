//! Remote sandboxes and subagents on a real Docker daemon (docs/api.md 6, 8 and 9; F19, F20, F21).
//!
//! What exists is asked of the daemon itself: the containers of a session are those that carry the session's id in a label.
//! A node is caught at a step by a [gate](tests::docker::gate) that holds its call of the daemon.

mod commands;
mod crashes;
mod daemon;
mod lifecycle;
mod many;
mod subagents;
mod telemetry;
mod turns;

use bollard::Docker;
use bollard::exec::{CreateExecOptions, StartExecOptions};
use bollard::models::ContainerSummary;
use bollard::query_parameters::{
    InspectContainerOptions, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, TopOptions,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tests::client::{Outcome, Session, of_type};
use tests::docker::{BARE_IMAGE, IMAGE, host};
use tests::fixture::{self, Fixture};
use tests::poll;

const START: &str = "session.startRemoteSandbox";
const STOP: &str = "session.stopRemoteSandbox";
const EXEC: &str = "session.execRemoteSandbox";
const CANCEL: &str = "session.cancelSubagent";
/// An image that no registry has, and a registry that is not there.
const MISSING_IMAGE: &str = "127.0.0.1:1/nobody/has-this:1";
/// Within this another node finishes what a lost one has begun.
const CARRIED_ON: Duration = Duration::from_secs(30);

/// One node on SQLite whose profile has the images.
fn plan() -> fixture::Plan {
    fixture::Plan::default()
        .profile("available_sandboxes", json!([IMAGE, BARE_IMAGE, MISSING_IMAGE]))
        .env("BAE_SANDBOX_DRIVER", "docker")
        .env("DOCKER_HOST", &host())
}

/// Three nodes whose profile has the images.
fn cluster_plan(host: &str) -> tests::cluster::Plan {
    tests::cluster::Plan::default()
        .images(&[IMAGE, BARE_IMAGE])
        .env("BAE_SANDBOX_DRIVER", "docker")
        .env("DOCKER_HOST", host)
}

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

/// The daemon as the tests see it.
struct Daemon(Docker);

impl Daemon {
    fn shared() -> Self {
        Self::at(&host())
    }

    fn at(host: &str) -> Self {
        Self(Docker::connect_with_host(host).expect("the daemon's address"))
    }

    async fn list(&self, filters: &HashMap<String, Vec<String>>) -> Vec<ContainerSummary> {
        let options = ListContainersOptionsBuilder::new().all(true).filters(filters).build();
        self.0.list_containers(Some(options)).await.expect("the daemon lists its containers")
    }

    /// The containers of a session.
    async fn of(&self, session: &str) -> Vec<ContainerSummary> {
        let mut all = self.list(&HashMap::new()).await;
        all.retain(|container| container.labels.iter().flatten().any(|(_, value)| value == session));
        all
    }

    /// The container that is a sandbox or a subagent of this id.
    async fn container(&self, id: &str) -> ContainerSummary {
        let mut all = self.list(&HashMap::new()).await;
        all.retain(|container| container.labels.iter().flatten().any(|(_, value)| value == id));
        assert_eq!(all.len(), 1, "{id}: {all:?}");
        all.remove(0)
    }

    /// Waits until a session has so many containers.
    async fn until(&self, session: &str, count: usize, limit: Duration) {
        poll::until(limit, &format!("{count} containers"), async || {
            let found = self.of(session).await;
            if found.len() == count { Ok(()) } else { Err(found) }
        })
        .await;
    }

    /// Everything that the daemon shows of a container.
    async fn inspect(&self, container: &ContainerSummary) -> String {
        let id = container.id.as_deref().expect("an id");
        let shown = self.0.inspect_container(id, None::<InspectContainerOptions>).await.expect("it is shown");
        let processes = self.0.top_processes(id, None::<TopOptions>).await.expect("its processes");
        format!("{shown:?} {processes:?}")
    }

    /// Removes a container behind the server's back.
    async fn remove(&self, container: &ContainerSummary) {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        self.0.remove_container(container.id.as_deref().expect("an id"), Some(options)).await.expect("it is removed");
    }
}

/// Makes a file in a container, as a sign for what runs there.
async fn touch(daemon: &Daemon, container: &ContainerSummary, path: &str) {
    let options = CreateExecOptions { cmd: Some(vec!["touch", path]), ..CreateExecOptions::default() };
    let id = container.id.as_deref().expect("an id");
    let exec = daemon.0.create_exec(id, options).await.expect("a command").id;
    let detached = StartExecOptions { detach: true, ..StartExecOptions::default() };
    daemon.0.start_exec(&exec, Some(detached)).await.expect("it starts");
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
