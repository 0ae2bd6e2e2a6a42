//! A driver that uses a session as an application would.
//!
//! It sends messages, answers tool uses or leaves them, hangs up now and then, and sends what was not answered again,
//! through any node. It keeps what it sent and what it got for the checker. Where this module sleeps, it is a person's
//! time to think or the pause before a request is repeated; nothing is synchronised by it.

use super::rng::Rng;
use super::session_run::Context;
use super::stats::{Class, Stats};
use crate::checker::{End, Sent};
use crate::client::{Frames, Session, ids};
use crate::fixture::clock;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// If a node does not begin to answer within this time, the request is sent to another one.
const SILENCE: Duration = Duration::from_secs(15);

/// What the caller of a call got.
#[derive(Debug)]
pub(super) struct CallOutput {
    /// The label of the call.
    pub label: String,
    /// The ids of the events in the stream of its last attempt.
    pub live: Vec<String>,
    /// The ids of the events in its result.
    pub result: Vec<String>,
}

/// A driver of one session.
#[derive(Debug)]
pub(super) struct Driver {
    /// The session through each node.
    pub views: Vec<Session>,
    /// The id of its client key.
    pub key: String,
    /// Its name in the run, such as `s1/d2`.
    pub name: String,
    pub rng: Rng,
    pub stats: Arc<Stats>,
    /// How long a request may stay unanswered, in spite of all faults, before the run counts that as wrong.
    pub time_limit: Duration,
    /// Every message that it sent.
    pub sent: Vec<Sent>,
    /// Every result that it got.
    pub shown: Vec<CallOutput>,
    /// Every report that it sent, and whether a node accepted it.
    pub reports: Vec<(String, bool)>,
    number: usize,
    open: Vec<Value>,
    /// Whether the session may be paused for this driver.
    may_hold: bool,
    over: bool,
}

/// How a stream ended.
enum Got {
    Result(Value),
    Error(Value),
    /// It broke.
    Broken,
    /// The driver hung up.
    Left,
}

impl Driver {
    /// A driver that has done nothing yet.
    pub(super) fn new(views: Vec<Session>, key: &str, name: &str, context: &Context) -> Self {
        let (sent, shown, reports, open) = Default::default();
        let (rng, stats, time_limit) = (Rng::new(context.seed, name), context.stats.clone(), context.time_limit);
        let (key, name) = (key.to_owned(), name.to_owned());
        Self {
            views,
            key,
            name,
            rng,
            stats,
            time_limit,
            sent,
            shown,
            reports,
            number: 0,
            open,
            may_hold: false,
            over: false,
        }
    }

    fn view(&mut self) -> (usize, Session) {
        let node = self.rng.below(self.views.len());
        (node, self.views[node].clone())
    }

    fn label(&mut self) -> String {
        self.number += 1;
        format!("[{}/{}]", self.name, self.number)
    }

    /// Registers, with as many requests as that takes within the time limit.
    pub(super) async fn register(&mut self) {
        let end = Instant::now() + self.time_limit;
        while Instant::now() < end {
            let (_, view) = self.view();
            let asked = timeout(SILENCE, view.try_start("session.registerDriver", json!({}))).await;
            if let Ok(Ok(mut frames)) = asked
                && let Got::Result(_) = self.read(&mut frames, &mut Vec::new(), self.time_limit).await
            {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        self.stats.wrong(&self.name, "could not register".to_owned());
        self.over = true;
    }

    /// Acts until it is told to stop, the session has ended, or its key was revoked.
    pub(super) async fn run(mut self, stop: watch::Receiver<bool>) -> Self {
        while !*stop.borrow() && !self.over {
            self.act().await;
            sleep(self.rng.millis(0..400)).await;
        }
        self
    }

    async fn act(&mut self) {
        if !self.open.is_empty() {
            match self.rng.below(100) {
                0..65 => {
                    sleep(self.rng.millis(0..1500)).await;
                    return self.answer().await;
                }
                65..80 => {
                    self.stats.hit(Class::PauseLeft, 1);
                    self.open.clear();
                    return;
                }
                _ => {}
            }
        }
        match self.rng.below(100) {
            0..70 => self.say(true).await,
            70..78 => self.compact().await,
            78..88 => self.report().await,
            88..93 => {
                let (_, view) = self.view();
                let _ = view.try_start("session.updateClientTools", json!({"tools": [clock()]})).await;
            }
            93..97 => self.participants().await,
            _ => {
                let (_, view) = self.view();
                let path = view.path("/events?limit=5");
                let request = view.api().request("GET", &path).header("authorization", format!("Bearer {}", view.key));
                let _ = timeout(SILENCE, request.send()).await;
            }
        }
    }

    /// Sends a message. If `may_leave`, it may hang up before the answer has come.
    pub(super) async fn say(&mut self, may_leave: bool) {
        let label = self.label();
        let time_limit = if may_leave && self.rng.percent(20) { self.rng.millis(0..1500) } else { self.time_limit };
        self.send(json!(label), label, time_limit).await;
    }

    async fn answer(&mut self) {
        let label = self.label();
        let block = |id: &Value| json!({"type": "tool_result", "tool_use_id": id, "content": label});
        let content: Value = self.open.iter().map(block).collect();
        self.send(content, label, self.time_limit).await;
    }

    /// Sends messages until no tool use is left open, so that the session is not paused at the end.
    pub(super) async fn leave_nothing_open(&mut self) {
        for _ in 0..50 {
            self.say(false).await;
            if self.over || self.open.is_empty() {
                return;
            }
        }
        self.stats.wrong(&self.name, "fifty messages, and each asked for a tool".to_owned());
    }

    async fn send(&mut self, content: Value, label: String, time_limit: Duration) {
        // A plain message goes before other calls too, if it gives up a pause of its own key.
        let overtakes = content.is_array() || self.may_hold;
        let params = json!({"message": {"content": content}, "idempotency_key": label});
        self.open.clear();
        let first = Instant::now();
        let mut call = Sent { label: label.clone(), sent: first, accepted: None, overtakes, end: End::Unknown };
        for attempt in 0.. {
            if first.elapsed() > self.time_limit {
                self.stats.wrong(&self.name, format!("{label} has no answer after {attempt} attempts"));
                break;
            }
            let (node, view) = self.view();
            let asked = timeout(SILENCE, view.try_start("session.sendMessage", params.clone())).await;
            let mut frames = match asked {
                Ok(Ok(frames)) => frames,
                Ok(Err(refused)) if refused.starts_with("401") => {
                    self.over = true;
                    break;
                }
                Ok(Err(_)) | Err(_) => {
                    sleep(self.rng.millis(50..200)).await;
                    continue;
                }
            };
            let (accepted, mut live) = (Instant::now(), Vec::new());
            match self.read(&mut frames, &mut live, time_limit).await {
                Got::Left => {
                    self.stats.hit(Class::ClientLeft, usize::from(!live.is_empty()));
                    break;
                }
                Got::Broken => {
                    if first.elapsed() > self.time_limit {
                        let what = format!(
                            "{label}: node {node} was silent for {:?} after {} events",
                            accepted.elapsed(),
                            live.len()
                        );
                        self.stats.wrong(&self.name, what);
                    }
                    sleep(self.rng.millis(50..200)).await;
                }
                Got::Result(result) => {
                    let blocks = result["message"]["content"].as_array().cloned().unwrap_or_default();
                    let ours = blocks.iter().filter(|block| block["dispatch"] == "client");
                    self.open = ours.map(|block| block["id"].clone()).collect();
                    self.stats.count(if self.open.is_empty() { "turns ended" } else { "turns paused" }, 1);
                    let events = result["events"].as_array().cloned().unwrap_or_default();
                    self.shown.push(CallOutput { label, live, result: ids(&events) });
                    let stayed = attempt == 0 && !self.stats.troubled(node, accepted);
                    call.accepted = stayed.then_some(accepted);
                    call.end = End::Answered;
                    break;
                }
                Got::Error(error) => {
                    let text = error["message"].as_str().unwrap_or_default();
                    match error["code"].as_i64() {
                        Some(-32603) => sleep(self.rng.millis(50..200)).await,
                        _ if error["data"]["retryable"] == true => sleep(self.rng.millis(50..200)).await,
                        Some(-32000) if text.starts_with("tool result merge invalid: no paused turn") => {
                            call.end = End::Refused;
                            break;
                        }
                        Some(-32000) if text.ends_with("not open") || text == "the client key was revoked" => {
                            self.over = true;
                            break;
                        }
                        _ => {
                            self.stats.wrong(&self.name, format!("{label} was answered with {error}"));
                            break;
                        }
                    }
                }
            }
        }
        self.may_hold = call.end == End::Unknown || !self.open.is_empty();
        self.sent.push(call);
    }

    async fn read(&mut self, frames: &mut Frames, live: &mut Vec<String>, time_limit: Duration) -> Got {
        let end = tokio::time::Instant::now() + time_limit;
        loop {
            let line = match tokio::time::timeout_at(end, frames.line()).await {
                Err(_) if time_limit == self.time_limit => return Got::Broken,
                Err(_) => return Got::Left,
                Ok(None) => return Got::Broken,
                Ok(Some(line)) if line.is_empty() => continue,
                Ok(Some(line)) => line,
            };
            let Ok(mut frame) = serde_json::from_str::<Value>(&line) else {
                // The line is not complete.
                return Got::Broken;
            };
            if let Some(id) = frame["params"]["id"].as_str() {
                live.push(id.to_owned());
            } else if frame.get("error").is_some() {
                return Got::Error(frame["error"].take());
            } else {
                return Got::Result(frame["result"].take());
            }
        }
    }

    async fn compact(&mut self) {
        let (_, view) = self.view();
        // The prompt names the driver, because nothing else in the request of an empty session's compaction does.
        let params = json!({"prompt": format!("[{}/compact] Sum it up.", self.name)});
        if let Ok(Ok(mut frames)) = timeout(SILENCE, view.try_start("session.compact", params)).await {
            self.open.clear();
            let got = self.read(&mut frames, &mut Vec::new(), self.time_limit).await;
            self.stats.count("compactions", usize::from(matches!(got, Got::Result(_))));
        }
    }

    async fn report(&mut self) {
        let label = self.label();
        let (_, view) = self.view();
        let params = json!({"state": "running", "image": label});
        let mut taken = false;
        if let Ok(Ok(mut frames)) = timeout(SILENCE, view.try_start("session.reportLocalSandbox", params)).await {
            taken = matches!(self.read(&mut frames, &mut Vec::new(), self.time_limit).await, Got::Result(_));
        }
        self.reports.push((label, taken));
    }

    /// Checks that drivers stay registered, whatever happens to nodes and servers.
    async fn participants(&mut self) {
        let (_, view) = self.view();
        let path = view.path("/participants");
        let request = view.api().request("GET", &path).header("authorization", format!("Bearer {}", view.key));
        let Ok(Ok(answer)) = timeout(SILENCE, request.send()).await else { return };
        if answer.status() == 200 {
            let body = answer.text().await.unwrap_or_default();
            if !body.is_empty() && !body.contains(&self.key) {
                self.stats.wrong(&self.name, format!("is no driver any more: {body}"));
            }
        }
    }
}
