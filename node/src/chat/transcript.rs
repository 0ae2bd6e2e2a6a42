//! What this client knows of the session, and the lines that it prints for each event.
//!
//! One event can arrive in several ways (in the stream of the client's own call, in the subscription, in a call's
//! result, in a page of the log), so event ids are remembered and each event is rendered once. A message that was typed
//! in this terminal is on the screen already and is not rendered at all.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::api::Event;
use super::message_text;
use super::tools::{Call, Tools};

/// Event ids that are remembered, so that an event is rendered once; more than can be in flight at a time.
const MAX_REMEMBERED: usize = 20_000;
/// Characters of a tool's input or output that are printed.
const MAX_COMPACT: usize = 300;

/// What a line is about, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    User,
    Model,
    Tool,
    Note,
    Error,
}

/// A line, or a paragraph, to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) kind: LineKind,
    /// Whose words the text is; `None` for the client's own notes.
    pub(super) name: Option<String>,
    pub(super) text: String,
}

/// A turn that waits for a client's tool results.
#[derive(Clone, Debug)]
struct Pause {
    owner: Option<String>,
    content: Value,
}

#[derive(Default)]
pub(super) struct Transcript {
    /// The id of this client's key, once the log has shown it.
    own_key: Option<String>,
    /// Ids of the events that were rendered, and the order in which they are forgotten.
    seen: HashSet<String>,
    order: VecDeque<String>,
    /// Messages typed here whose event has not arrived yet.
    pending_messages: Vec<String>,
    /// The text that the model's last answer had beside its tool calls. A turn that pauses then repeats it in its
    /// message.
    printed_with_calls: Option<String>,
    /// Names of the tools that were called and have not answered, by the call's id.
    tools: HashMap<String, String>,
    /// The next message of the model is the summary of a compaction.
    summary_follows: bool,
    pause: Option<Pause>,
    /// Tool uses that have their results, whoever gave them.
    answered: HashSet<String>,
    running: bool,
    ended: bool,
    last_answer: Option<String>,
}

impl Transcript {
    /// The lines that an event adds to the screen; none if it was rendered before.
    pub(super) fn render(&mut self, event: &Event) -> Vec<Line> {
        if !self.remember(&event.id) {
            return Vec::new();
        }
        match event.event_type.as_str() {
            // Nothing in their payloads is for people, and they can be large: a provider request is a whole
            // conversation.
            "provider.request" | "mcp.request" | "mcp.response" | "sandbox.request" | "sandbox.response" => Vec::new(),
            kind => self.render_payload(kind, event.client_key_id.as_deref(), &event.payload()),
        }
    }

    fn render_payload(&mut self, kind: &str, key: Option<&str>, payload: &Value) -> Vec<Line> {
        let line = match kind {
            "client.message.send" => self.client_message(key, payload),
            "server.message.send" => self.server_message(key, payload),
            "provider.response" => self.provider_response(payload),
            "tool.call" => self.tool_call(payload),
            "tool.result" => Some(self.tool_result(payload)),
            "session.open" | "session.join" => self.entry(kind, key),
            "session.close" => {
                self.ended = true;
                let why = if payload["reason"] == "client_key_revoked" {
                    "its key was revoked"
                } else {
                    "a client closed it"
                };
                Some(Line::note(format!("The session is closed: {why}.")))
            }
            "session.error" => {
                let reason = payload["reason"].as_str().unwrap_or_default();
                if message_text::ends_session(reason) {
                    self.ended = true;
                    self.running = false;
                }
                if reason == "driver_turn_abandoned" {
                    self.pause = None;
                }
                message_text::of_error(payload).map(Line::error)
            }
            other => message_text::of_lifecycle(other, payload).map(|text| {
                if other.ends_with(".error") || other.ends_with(".failed") {
                    Line::error(text)
                } else {
                    Line::note(text)
                }
            }),
        };
        line.into_iter().collect()
    }

    fn client_message(&mut self, key: Option<&str>, payload: &Value) -> Option<Line> {
        self.running = true;
        self.pause = None;
        let blocks = payload["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        self.answered.extend(blocks.iter().filter_map(|block| block["tool_use_id"].as_str()).map(str::to_owned));
        let text = texts(&payload["content"])?;
        if let Some(place) = self.pending_messages.iter().position(|sent| *sent == text) {
            self.pending_messages.remove(place);
            return None;
        }
        let name = match key {
            Some(key) if self.own_key.as_deref() == Some(key) => "you".to_owned(),
            Some(key) => message_text::name(key),
            None => "somebody".to_owned(),
        };
        Some(Line::of_speaker(LineKind::User, name, &text))
    }

    fn server_message(&mut self, key: Option<&str>, payload: &Value) -> Option<Line> {
        match payload["synthetic"].as_str() {
            Some("compaction_preamble") => {
                self.summary_follows = true;
                return None;
            }
            Some(_) => return None,
            None => {}
        }
        let content = &payload["content"];
        let text = texts(content);
        if std::mem::take(&mut self.summary_follows) {
            return text.map(|text| Line::note(format!("Summary: {}", compact(&text))));
        }
        self.running = false;
        let paused = content.as_array().is_some_and(|blocks| blocks.iter().any(|block| block["dispatch"] == "client"));
        self.pause = paused.then(|| Pause { owner: key.map(str::to_owned), content: content.clone() });
        let text = text?;
        self.last_answer = Some(text.clone());
        (self.printed_with_calls.take().as_ref() != Some(&text))
            .then(|| Line::of_speaker(LineKind::Model, "model".to_owned(), &text))
    }

    /// A failed attempt, or the text beside tool calls: in a turn that does not pause it is in no message.
    fn provider_response(&mut self, payload: &Value) -> Option<Line> {
        if payload["ok"] == Value::Bool(false) {
            return Some(Line::error(message_text::of_failed_attempt(payload)));
        }
        let body = &payload["body"];
        let choice = &body["choices"][0];
        let calls = body["stop_reason"] == "tool_use" || choice["finish_reason"] == "tool_calls";
        if !calls || payload["purpose"] == "compaction" {
            return None;
        }
        let text = texts(&body["content"]).or_else(|| texts(&choice["message"]["content"]))?;
        self.printed_with_calls = Some(text.clone());
        Some(Line::of_speaker(LineKind::Model, "model".to_owned(), &text))
    }

    fn tool_call(&mut self, payload: &Value) -> Option<Line> {
        let (id, name) = (payload["id"].as_str()?, payload["name"].as_str()?);
        self.tools.insert(id.to_owned(), name.to_owned());
        let place = match (payload["dispatch"].as_str(), payload["server_name"].as_str()) {
            (Some("client"), _) => "client".to_owned(),
            (Some("mcp"), Some(server)) => format!("MCP server {server}"),
            (Some(other), _) => other.to_owned(),
            (None, _) => "server".to_owned(),
        };
        let text = format!("→ {name} {} [{place}]", compact(&payload["input"].to_string()));
        Some(Line { kind: LineKind::Tool, name: None, text: clean(&text) })
    }

    fn tool_result(&mut self, payload: &Value) -> Line {
        let id = payload["tool_use_id"].as_str().unwrap_or_default();
        self.answered.insert(id.to_owned());
        let name = self.tools.remove(id).unwrap_or_else(|| "tool".to_owned());
        let text = texts(&payload["content"]).unwrap_or_else(|| match &payload["content"] {
            Value::Null => String::new(),
            content => content.to_string(),
        });
        let failed = payload["is_error"] == Value::Bool(true);
        let text = format!("← {name}{}: {}", if failed { " failed" } else { "" }, compact(&text));
        Line { kind: if failed { LineKind::Error } else { LineKind::Tool }, name: None, text: clean(&text) }
    }

    fn entry(&self, kind: &str, key: Option<&str>) -> Option<Line> {
        let key = key.filter(|key| self.own_key.as_deref() != Some(key))?;
        let what = if kind == "session.open" { "opened" } else { "joined" };
        Some(Line::note(format!("{} {what} the session.", message_text::name(key))))
    }

    fn remember(&mut self, id: &str) -> bool {
        if !self.seen.insert(id.to_owned()) {
            return false;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }

    pub(super) fn set_own_key(&mut self, key_id: &str) {
        self.own_key = Some(key_id.to_owned());
    }

    /// Notes a text that was typed here and is being sent.
    pub(super) fn add_pending_message(&mut self, text: &str) {
        self.pending_messages.push(text.to_owned());
    }

    /// Called when the call that sent the message has ended.
    pub(super) fn clear_pending_messages(&mut self) {
        self.pending_messages.clear();
    }

    /// Whether the session can take no more messages.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether a turn is running, according to the events seen so far.
    pub(super) fn running(&self) -> bool {
        self.running
    }

    pub(super) fn last_answer(&self) -> Option<&str> {
        self.last_answer.as_deref()
    }

    /// Whether one of these calls has its result already.
    pub(super) fn answered(&self, calls: &[Call]) -> bool {
        calls.iter().any(|call| self.answered.contains(&call.id))
    }

    /// The calls with which a turn waits for this client.
    pub(super) fn waiting_calls(&self, tools: &Tools) -> Vec<Call> {
        match &self.pause {
            Some(pause) if pause.owner.is_some() && pause.owner == self.own_key => Call::ours(&pause.content, tools),
            Some(_) | None => Vec::new(),
        }
    }

    /// Whose answer a paused turn waits for, when it is somebody else's.
    pub(super) fn waits_for(&self) -> Option<&str> {
        let owner = self.pause.as_ref()?.owner.as_deref()?;
        (self.own_key.as_deref() != Some(owner)).then_some(owner)
    }
}

impl Line {
    pub(super) fn note(text: String) -> Line {
        Line { kind: LineKind::Note, name: None, text: clean(&text) }
    }

    pub(super) fn error(text: String) -> Line {
        Line { kind: LineKind::Error, name: None, text: clean(&text) }
    }

    pub(super) fn of_speaker(kind: LineKind, name: String, text: &str) -> Line {
        Line { kind, name: Some(name), text: clean(text) }
    }
}

/// The text of a message's content, which is a string or a list of blocks; `None` if it has none.
pub(super) fn texts(content: &Value) -> Option<String> {
    let text = match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    };
    (!text.trim().is_empty()).then_some(text)
}

/// The text on one line of bounded length.
pub(super) fn compact(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_COMPACT) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Makes control characters visible: texts of other clients and of models must not send commands to this terminal.
fn clean(text: &str) -> String {
    let visible = |character: char| {
        if character.is_control() && !matches!(character, '\n' | '\t') { '\u{fffd}' } else { character }
    };
    text.chars().map(visible).collect()
}

#[cfg(test)]
mod tests;
