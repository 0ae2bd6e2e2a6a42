//! A model provider that answers from a script, in either wire format, and keeps every request as it came.
//!
//! The format follows the path that was asked for, so one script serves both. A scripted answer can be *held*: the test
//! learns that the request has arrived, and the answer waits until the test lets go.

use crate::http1::{Conn, Request, Serving, serve};
use crate::poll::within;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// One answer.
#[derive(Debug, Clone)]
pub enum Answer {
    /// A well-formed answer of these blocks.
    Message { blocks: Vec<Value>, stop: Stop, usage: Option<(u64, u64)> },
    /// Any status and body.
    Raw { status: u16, headers: Vec<(String, String)>, body: Vec<u8> },
    /// Hangs up before a byte of the answer.
    HangUp,
    /// Announces a longer body than it sends, then hangs up.
    CutBody,
    /// A well-formed answer of these blocks, but its last byte never comes.
    CutMessage(Vec<Value>),
    /// Sends the head and then a byte every 100 ms for as long as anyone listens.
    Drip,
}

/// Why the model stopped, in Anthropic's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    EndTurn,
    ToolUse,
    MaxTokens,
}

impl Answer {
    /// A final text with a usage of (10, 5).
    pub fn text(text: &str) -> Self {
        Self::Message { blocks: vec![json!({"type": "text", "text": text})], stop: Stop::EndTurn, usage: Some((10, 5)) }
    }

    /// Asks for tools: `(id, name, input)` each.
    pub fn tools(uses: &[(&str, &str, Value)]) -> Self {
        let block = |(id, name, input): &(&str, &str, Value)| json!({"type": "tool_use", "id": id, "name": name, "input": input});
        Self::Message { blocks: uses.iter().map(block).collect(), stop: Stop::ToolUse, usage: Some((10, 5)) }
    }

    /// These blocks, as a final answer.
    pub fn blocks(blocks: Value) -> Self {
        let Value::Array(blocks) = blocks else { panic!("blocks are an array") };
        let wants_tools = blocks.iter().any(|b| b["type"] == "tool_use");
        Self::Message { blocks, stop: if wants_tools { Stop::ToolUse } else { Stop::EndTurn }, usage: Some((10, 5)) }
    }

    /// The same with another usage.
    pub fn usage(self, input: u64, output: u64) -> Self {
        match self {
            Self::Message { blocks, stop, .. } => Self::Message { blocks, stop, usage: Some((input, output)) },
            other => other,
        }
    }

    /// The same with no usage reported.
    pub fn without_usage(self) -> Self {
        match self {
            Self::Message { blocks, stop, .. } => Self::Message { blocks, stop, usage: None },
            other => other,
        }
    }

    /// The same, cut off by the output budget.
    pub fn truncated(self) -> Self {
        match self {
            Self::Message { blocks, usage, .. } => Self::Message { blocks, stop: Stop::MaxTokens, usage },
            other => other,
        }
    }

    /// An error status with the vendors' kind of body.
    pub fn status(status: u16) -> Self {
        let body =
            json!({"type": "error", "error": {"type": "mock_error", "message": format!("mock status {status}")}});
        Self::Raw { status, headers: Vec::new(), body: body.to_string().into_bytes() }
    }

    /// 200 with this body.
    pub fn raw(body: &str) -> Self {
        Self::Raw { status: 200, headers: Vec::new(), body: body.as_bytes().to_vec() }
    }

    /// The same with one more header.
    pub fn header(self, name: &str, value: &str) -> Self {
        match self {
            Self::Raw { status, mut headers, body } => {
                headers.push((name.to_owned(), value.to_owned()));
                Self::Raw { status, headers, body }
            }
            other => other,
        }
    }

    /// Writes it in either format.
    pub(crate) async fn send(self, openai: bool, model: &str, conn: &mut Conn) {
        match self {
            Self::Message { blocks, stop, usage } => {
                let body = if openai {
                    chat_completion(model, &blocks, stop, usage)
                } else {
                    message(model, &blocks, stop, usage)
                };
                conn.reply(200, &[("content-type", "application/json")], body.to_string().as_bytes()).await;
            }
            Self::Raw { status, headers, body } => {
                let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                conn.reply(status, &headers, &body).await;
            }
            Self::HangUp => {}
            Self::CutBody => {
                conn.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"id\":\"msg",
                )
                .await;
            }
            Self::CutMessage(blocks) => {
                let body = message(model, &blocks, Stop::ToolUse, Some((10, 5))).to_string();
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                conn.write(head.as_bytes()).await;
                conn.write(&body.as_bytes()[..body.len() - 1]).await;
            }
            Self::Drip => {
                conn.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
                    .await;
                // The slowness is what this answer is for; nothing waits for it to pass.
                while conn.write(b"1\r\n \r\n").await {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

#[derive(Debug)]
struct Step {
    answer: Answer,
    hold: Option<Hold>,
}

#[derive(Debug)]
struct Hold {
    arrived: watch::Sender<bool>,
    released: watch::Receiver<bool>,
    gone: watch::Sender<bool>,
}

/// The test's end of a held answer. Dropping it lets go.
#[derive(Debug)]
pub struct Held {
    arrived: watch::Receiver<bool>,
    release: watch::Sender<bool>,
    gone: watch::Receiver<bool>,
}

impl Held {
    /// Waits for the request.
    pub async fn arrived(&mut self) {
        within("a held provider request", self.arrived.wait_for(|yes| *yes)).await.expect("the mock provider runs");
    }

    /// Whether the request is there.
    pub fn has_arrived(&self) -> bool {
        *self.arrived.borrow()
    }

    /// Lets the answer go.
    pub fn release(&self) {
        let _ = self.release.send(true);
    }

    /// Waits until the asker has hung up.
    pub async fn abandoned(&mut self) {
        within("the asker's hanging up", self.gone.wait_for(|yes| *yes)).await.expect("the mock provider runs");
    }
}

#[derive(Debug)]
struct State {
    script: Mutex<VecDeque<Step>>,
    otherwise: Mutex<Answer>,
    requests: Mutex<Vec<Request>>,
}

/// The mock.
#[derive(Debug)]
pub struct Provider {
    state: Arc<State>,
    serving: Serving,
}

impl Provider {
    /// Starts one whose unscripted answer is the text `ok`.
    pub async fn start() -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST).await
    }

    /// The same, reached at that address of this machine.
    pub async fn start_at(address: Ipv4Addr) -> Self {
        let state = Arc::new(State {
            script: Mutex::default(),
            otherwise: Mutex::new(Answer::text("ok")),
            requests: Mutex::default(),
        });
        let shared = state.clone();
        let serving = serve((address, 0).into(), move |request, conn| answer(shared.clone(), request, conn)).await;
        Self { state, serving }
    }

    /// What goes into `base_url`.
    pub fn url(&self) -> String {
        format!("http://{}", self.serving.addr)
    }

    /// Adds an answer to the script.
    pub fn push(&self, answer: Answer) {
        self.state.script.lock().unwrap().push_back(Step { answer, hold: None });
    }

    /// Adds several.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        answers.into_iter().for_each(|answer| self.push(answer));
    }

    /// Adds an answer that waits for the test.
    pub fn hold(&self, answer: Answer) -> Held {
        let (arrived, arrived_rx) = watch::channel(false);
        let (release, released) = watch::channel(false);
        let (gone, gone_rx) = watch::channel(false);
        self.state.script.lock().unwrap().push_back(Step { answer, hold: Some(Hold { arrived, released, gone }) });
        Held { arrived: arrived_rx, release, gone: gone_rx }
    }

    /// What is answered when the script is at its end.
    pub fn otherwise(&self, answer: Answer) {
        *self.state.otherwise.lock().unwrap() = answer;
    }

    /// Everything asked so far.
    pub fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    /// The last request's body, parsed.
    pub fn last(&self) -> Value {
        self.state.requests.lock().unwrap().last().expect("a provider request").json()
    }

    /// How many scripted answers are left.
    pub fn left(&self) -> usize {
        self.state.script.lock().unwrap().len()
    }
}

async fn answer(state: Arc<State>, request: Request, mut conn: Conn) {
    let openai = request.path.ends_with("/chat/completions");
    let known = openai || request.path.ends_with("/v1/messages");
    // Tests send what a parser may refuse; the mock takes it all the same.
    let parsed: Option<Value> = serde_json::from_slice(&request.body).ok();
    let model = parsed.and_then(|body| body["model"].as_str().map(str::to_owned)).unwrap_or_default();
    state.requests.lock().unwrap().push(request);
    if !known {
        conn.reply(404, &[], b"no such path").await;
        return;
    }
    let step = state.script.lock().unwrap().pop_front();
    let step = step.unwrap_or_else(|| Step { answer: state.otherwise.lock().unwrap().clone(), hold: None });
    if let Some(mut hold) = step.hold {
        let _ = hold.arrived.send(true);
        tokio::select! {
            _ = hold.released.wait_for(|yes| *yes) => {}
            () = conn.closed() => {
                let _ = hold.gone.send(true);
                return;
            }
        }
    }
    step.answer.send(openai, &model, &mut conn).await;
}

fn message(model: &str, blocks: &[Value], stop: Stop, usage: Option<(u64, u64)>) -> Value {
    let stop = match stop {
        Stop::EndTurn => "end_turn",
        Stop::ToolUse => "tool_use",
        Stop::MaxTokens => "max_tokens",
    };
    let mut body = json!({
        "id": "msg_mock", "type": "message", "role": "assistant", "model": model,
        "content": blocks, "stop_reason": stop, "stop_sequence": null,
    });
    if let Some((input, output)) = usage {
        body["usage"] = json!({"input_tokens": input, "output_tokens": output});
    }
    body
}

fn chat_completion(model: &str, blocks: &[Value], stop: Stop, usage: Option<(u64, u64)>) -> Value {
    let stop = match stop {
        Stop::EndTurn => "stop",
        Stop::ToolUse => "tool_calls",
        Stop::MaxTokens => "length",
    };
    let text: Vec<&str> = blocks.iter().filter_map(|b| b["text"].as_str()).collect();
    let calls: Vec<Value> = blocks
        .iter()
        .filter(|b| b["type"] == "tool_use")
        .map(|b| json!({"id": b["id"], "type": "function", "function": {"name": b["name"], "arguments": b["input"].to_string()}}))
        .collect();
    let mut answer =
        json!({"role": "assistant", "content": if text.is_empty() { Value::Null } else { json!(text.concat()) }});
    if !calls.is_empty() {
        answer["tool_calls"] = json!(calls);
    }
    let mut body = json!({
        "id": "chatcmpl-mock", "object": "chat.completion", "created": 0, "model": model,
        "choices": [{"index": 0, "message": answer, "finish_reason": stop}],
    });
    if let Some((input, output)) = usage {
        body["usage"] = json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output});
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(provider: &Provider, path: &str) -> reqwest::Result<String> {
        let request = reqwest::Client::new().post(format!("{}{path}", provider.url())).body(r#"{"model":"m"}"#);
        request.send().await?.error_for_status()?.text().await
    }

    #[tokio::test]
    async fn the_script_in_both_formats() {
        let provider = Provider::start().await;
        provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
        provider.push(Answer::tools(&[("tu_1", "clock", json!({}))]));
        let anthropic: Value = serde_json::from_str(&ask(&provider, "/v1/messages").await.unwrap()).unwrap();
        assert_eq!(
            (&anthropic["stop_reason"], &anthropic["content"][0]["name"]),
            (&json!("tool_use"), &json!("clock"))
        );
        let openai: Value = serde_json::from_str(&ask(&provider, "/v1/chat/completions").await.unwrap()).unwrap();
        assert_eq!(openai["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{}");
        provider.script([Answer::HangUp, Answer::CutBody, Answer::status(529)]);
        for _ in 0..3 {
            assert!(ask(&provider, "/v1/messages").await.is_err());
        }
        assert!(ask(&provider, "/v1/messages").await.unwrap().contains("\"ok\""));
        assert_eq!(provider.requests().len(), 6);
    }

    #[tokio::test]
    async fn a_held_answer_waits_and_notices_the_askers_end() {
        let provider = Provider::start().await;
        let mut held = provider.hold(Answer::text("late"));
        assert!(!held.has_arrived());
        let ((), answer) = tokio::join!(
            async {
                held.arrived().await;
                held.release();
            },
            ask(&provider, "/v1/messages")
        );
        assert!(answer.unwrap().contains("late"));
        let mut held = provider.hold(Answer::text("never"));
        tokio::select! {
            _ = ask(&provider, "/v1/messages") => panic!("a held answer came"),
            () = held.arrived() => {}
        }
        held.abandoned().await;
    }
}
