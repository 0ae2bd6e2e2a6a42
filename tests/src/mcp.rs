//! MCP servers that do as the test says, over streamable HTTP, the older SSE transport, and standard input/output.
//!
//! One [`Responder`] answers for all three transports: it holds the tools, a script for the next calls, and a record of
//! what was called. An unscripted call answers with its arguments as text.

mod transport;

use crate::poll::within;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// How the next `tools/call` ends.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// One text block.
    Text(String),
    /// One text block, after a while.
    Late(Duration, String),
    /// This `result`, as it is.
    Result(Value),
    /// This line instead of a JSON-RPC message (for HTTP: the body).
    Garbage(Vec<u8>),
    /// A text result with `isError`.
    IsError(String),
    /// A JSON-RPC error.
    RpcError(i64, String),
    /// The connection (or process) ends without an answer.
    HangUp,
}

#[derive(Debug)]
struct Step {
    outcome: Outcome,
    hold: Option<(watch::Sender<bool>, watch::Receiver<bool>)>,
}

/// The test's end of a held call. Dropping it lets go.
#[derive(Debug)]
pub struct Held {
    arrived: watch::Receiver<bool>,
    release: watch::Sender<bool>,
}

impl Held {
    /// Waits for the call.
    pub async fn arrived(&mut self) {
        within("a held MCP call", self.arrived.wait_for(|yes| *yes)).await.expect("the mock MCP server runs");
    }

    /// Lets the answer go.
    pub fn release(&self) {
        let _ = self.release.send(true);
    }
}

/// What an MCP server answers, whatever it is reached through.
#[derive(Debug)]
pub struct Responder {
    tools: Mutex<Vec<Value>>,
    script: Mutex<VecDeque<Step>>,
    calls: Mutex<Vec<Value>>,
    opened: Mutex<usize>,
    /// The `authorization` header of the last HTTP request.
    authorization: Mutex<Option<String>>,
    /// The headers of all HTTP requests.
    headers: Mutex<Vec<(String, String)>>,
    /// The sessions that HTTP knows; others get 404.
    sessions: Mutex<Vec<String>>,
    hang_up: broadcast::Sender<()>,
    refusing: Mutex<bool>,
}

/// Which transport a mock speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Http,
    Sse,
    Stdio,
    /// A process that ignores both the end of its input and SIGTERM.
    StubbornStdio,
}

/// A running mock MCP server.
#[derive(Debug)]
pub struct Mcp {
    /// Its name in the configuration.
    pub name: String,
    kind: Kind,
    responder: Arc<Responder>,
    serving: transport::Serving,
}

impl Mcp {
    /// Starts one that offers `tools` (names).
    pub async fn start(name: &str, kind: Kind, tools: &[&str]) -> Self {
        let responder = Arc::new(Responder {
            tools: Mutex::default(),
            script: Mutex::default(),
            calls: Mutex::default(),
            opened: Mutex::default(),
            authorization: Mutex::default(),
            headers: Mutex::default(),
            sessions: Mutex::default(),
            hang_up: broadcast::channel(4).0,
            refusing: Mutex::default(),
        });
        let serving = transport::serve(kind, responder.clone()).await;
        let mcp = Self { name: name.to_owned(), kind, responder, serving };
        mcp.offer(tools);
        mcp
    }

    /// Its `[[mcp.servers]]` table.
    pub fn toml(&self) -> String {
        let (name, addr) = (&self.name, self.serving.addr());
        match self.kind {
            Kind::Http => {
                format!("[[mcp.servers]]\nname = \"{name}\"\ntransport = \"http\"\nurl = \"http://{addr}/mcp\"\n")
            }
            Kind::Sse => {
                format!("[[mcp.servers]]\nname = \"{name}\"\ntransport = \"sse\"\nurl = \"http://{addr}/sse\"\n")
            }
            Kind::Stdio => format!(
                "[[mcp.servers]]\nname = \"{name}\"\ntransport = \"stdio\"\ncommand = {}\nargs = [\"{addr}\"]\n",
                stdio_program()
            ),
            Kind::StubbornStdio => format!(
                "[[mcp.servers]]\nname = \"{name}\"\ntransport = \"stdio\"\ncommand = \"sh\"\n\
                 args = [\"-c\", \"trap '' TERM; exec \\\"$0\\\" \\\"$1\\\" --stubborn\", {}, \"{addr}\"]\n",
                stdio_program()
            ),
        }
    }

    /// Replaces the tools offered from now on.
    pub fn offer(&self, tools: &[&str]) {
        let tool = |name: &&str| json!({"name": name, "description": format!("mock tool {name}"), "inputSchema": {"type": "object", "properties": {}}});
        *self.responder.tools.lock().unwrap() = tools.iter().map(tool).collect();
    }

    /// Scripts the next call.
    pub fn push(&self, outcome: Outcome) {
        self.responder.script.lock().unwrap().push_back(Step { outcome, hold: None });
    }

    /// Scripts the next call to wait for the test.
    pub fn hold(&self, outcome: Outcome) -> Held {
        let (arrived, arrived_rx) = watch::channel(false);
        let (release, released) = watch::channel(false);
        self.responder.script.lock().unwrap().push_back(Step { outcome, hold: Some((arrived, released)) });
        Held { arrived: arrived_rx, release }
    }

    /// The `params` of every call so far.
    pub fn calls(&self) -> Vec<Value> {
        self.responder.calls.lock().unwrap().clone()
    }

    /// How many clients have initialised.
    pub fn opened(&self) -> usize {
        *self.responder.opened.lock().unwrap()
    }

    /// Stdio: the processes that were started for it and have not ended.
    pub fn processes(&self) -> Vec<u32> {
        let address = self.serving.addr().to_string();
        let runs = |pid: &u32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == address.as_bytes())
        };
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(runs).collect()
    }

    /// HTTP: the `authorization` header of the last request.
    pub fn authorization(&self) -> Option<String> {
        self.responder.authorization.lock().unwrap().clone()
    }

    /// HTTP: the headers of all requests so far.
    pub fn headers(&self) -> Vec<(String, String)> {
        self.responder.headers.lock().unwrap().clone()
    }

    /// HTTP: forgets every session, so that the next request gets 404.
    pub fn forget_sessions(&self) {
        self.responder.sessions.lock().unwrap().clear();
    }

    /// Ends every open connection; a stdio process exits.
    pub fn hang_up(&self) {
        let _ = self.responder.hang_up.send(());
    }

    /// Whether new connections are refused (hung up at once).
    pub fn refuse(&self, refusing: bool) {
        *self.responder.refusing.lock().unwrap() = refusing;
    }
}

/// The path of the pipe program as a TOML string.
fn stdio_program() -> Value {
    json!(crate::program::program("mcp_stdio").to_str().expect("a path in UTF-8"))
}

/// What goes back over the transport.
#[derive(Debug)]
enum Effect {
    Nothing,
    Reply(Value),
    Garbage(Vec<u8>),
    HangUp,
}

impl Responder {
    fn is_refusing(&self) -> bool {
        *self.refusing.lock().unwrap()
    }

    async fn respond(&self, message: &Value) -> Effect {
        let id = &message["id"];
        let result = |result: Value| Effect::Reply(json!({"jsonrpc": "2.0", "id": id, "result": result}));
        match message["method"].as_str() {
            Some("initialize") => {
                *self.opened.lock().unwrap() += 1;
                result(json!({
                    "protocolVersion": message["params"]["protocolVersion"],
                    "capabilities": {"tools": {"listChanged": true}},
                    "serverInfo": {"name": "mock", "version": "1"},
                }))
            }
            Some("ping") => result(json!({})),
            Some("tools/list") => result(json!({"tools": *self.tools.lock().unwrap()})),
            Some("tools/call") => self.call(message).await,
            Some(_) if id.is_null() => Effect::Nothing,
            Some(other) => Effect::Reply(
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": format!("no method {other}")}}),
            ),
            None => Effect::Nothing,
        }
    }

    async fn call(&self, message: &Value) -> Effect {
        let id = &message["id"];
        let params = &message["params"];
        self.calls.lock().unwrap().push(params.clone());
        let step = self.script.lock().unwrap().pop_front();
        let outcome = match step {
            None => Outcome::Text(format!("{} {}", params["name"].as_str().unwrap_or("?"), params["arguments"])),
            Some(Step { outcome, hold: None }) => outcome,
            Some(Step { outcome, hold: Some((arrived, mut released)) }) => {
                let _ = arrived.send(true);
                let _ = released.wait_for(|yes| *yes).await;
                outcome
            }
        };
        let content = |text: &str| json!([{"type": "text", "text": text}]);
        let result = match outcome {
            Outcome::Late(after, text) => {
                // The tool is slow on purpose; nothing is synchronised by this.
                tokio::time::sleep(after).await;
                json!({"content": content(&text)})
            }
            Outcome::Text(text) => json!({"content": content(&text)}),
            Outcome::IsError(text) => json!({"content": content(&text), "isError": true}),
            Outcome::Result(value) => value,
            Outcome::RpcError(code, text) => {
                return Effect::Reply(json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}));
            }
            Outcome::Garbage(bytes) => return Effect::Garbage(bytes),
            Outcome::HangUp => return Effect::HangUp,
        };
        Effect::Reply(json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    /// The pipe program and the responder behind it, spoken to as a stdio client does.
    #[tokio::test]
    async fn the_stdio_pipe_answers_and_hangs_up() {
        let mcp = Mcp::start("files", Kind::Stdio, &["ls"]).await;
        let mut child = tokio::process::Command::new(crate::program::program("mcp_stdio"))
            .arg(mcp.serving.addr().to_string())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}\n").await.unwrap();
        let line = within("an answer", lines.next_line()).await.unwrap().unwrap();
        assert!(line.contains("mock tool ls"), "{line}");
        mcp.hang_up();
        assert!(within("the process's end", child.wait()).await.unwrap().success());
    }

    #[tokio::test]
    async fn http_sessions_and_held_calls() {
        let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
        let http = reqwest::Client::new();
        let url = format!("http://{}/mcp", mcp.serving.addr());
        let post = |session: Option<String>, body: Value| {
            let mut request = http.post(&url).header("content-type", "application/json").body(body.to_string());
            if let Some(session) = session {
                request = request.header("mcp-session-id", session);
            }
            request.send()
        };
        let call =
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "ls", "arguments": {}}});
        assert_eq!(post(None, call.clone()).await.unwrap().status(), 404);
        let opened =
            post(None, json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})).await.unwrap();
        let session = opened.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let mut held = mcp.hold(Outcome::Text("in the end".to_owned()));
        let answer = tokio::spawn(post(Some(session.clone()), call.clone()));
        held.arrived().await;
        held.release();
        assert!(answer.await.unwrap().unwrap().text().await.unwrap().contains("in the end"));
        mcp.forget_sessions();
        assert_eq!(post(Some(session), call).await.unwrap().status(), 404);
        assert_eq!(mcp.calls().len(), 1);
    }
}
