//! The session as this client has seen it, and how each event reads.
//!
//! Events reach the client on several ways (its own call, the subscription, a result, the log); each is told once. What the
//! person typed here is on the screen already, so it is not told again.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::api::Event;
use super::sentence;
use super::tools::{Call, Tools};

/// Ids that are remembered against telling an event twice; more than can be on their way at once.
const REMEMBERED: usize = 20_000;
const TOLD: usize = 300;

/// Who or what a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    Person,
    Model,
    Tool,
    Note,
    Trouble,
}

/// A line, or a paragraph, for the person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub voice: Voice,
    /// Who speaks, when somebody does.
    pub name: Option<String>,
    pub text: String,
}

/// A turn that waits for a client's tool results.
#[derive(Clone, Debug)]
struct Pause {
    owner: Option<String>,
    content: Value,
}

#[derive(Default)]
pub struct Transcript {
    /// This client's key id, once the log has told it.
    me: Option<String>,
    seen: HashSet<String>,
    order: VecDeque<String>,
    /// Messages typed here whose event has not come yet.
    sent: Vec<String>,
    /// What the model said with server-side tool calls; a paused turn says it again.
    said: Option<String>,
    tools: HashMap<String, String>,
    summary_follows: bool,
    pause: Option<Pause>,
    /// Tool uses that have their results, whoever gave them.
    answered: HashSet<String>,
    running: bool,
    over: bool,
    last_words: Option<String>,
}

impl Transcript {
    /// What an event adds to the screen; nothing when it was told before.
    pub fn tell(&mut self, event: &Event) -> Vec<Line> {
        if !self.remember(&event.id) {
            return Vec::new();
        }
        match event.event_type.as_str() {
            // Nothing in them is for people, and they hold whole conversations.
            "provider.request" | "mcp.request" | "mcp.response" | "sandbox.request" | "sandbox.response" => Vec::new(),
            kind => self.tell_payload(kind, event.client_key_id.as_deref(), &event.payload()),
        }
    }

    fn tell_payload(&mut self, kind: &str, key: Option<&str>, payload: &Value) -> Vec<Line> {
        let told = match kind {
            "client.message.send" => self.heard(key, payload),
            "server.message.send" => self.spoken(key, payload),
            "provider.response" => self.provided(payload),
            "tool.call" => self.called(payload),
            "tool.result" => Some(self.returned(payload)),
            "session.open" | "session.join" => self.entered(kind, key),
            "session.close" => {
                self.over = true;
                let why = if payload["reason"] == "client_key_revoked" {
                    "its key was revoked"
                } else {
                    "a client closed it"
                };
                Some(Line::note(format!("The session is closed: {why}.")))
            }
            "session.error" => {
                let reason = payload["reason"].as_str().unwrap_or_default();
                if sentence::ends_session(reason) {
                    self.over = true;
                    self.running = false;
                }
                if reason == "driver_turn_abandoned" {
                    self.pause = None;
                }
                sentence::of_error(payload).map(Line::trouble)
            }
            other => sentence::of_lifecycle(other, payload).map(|text| {
                if other.ends_with(".error") || other.ends_with(".failed") {
                    Line::trouble(text)
                } else {
                    Line::note(text)
                }
            }),
        };
        told.into_iter().collect()
    }

    fn heard(&mut self, key: Option<&str>, payload: &Value) -> Option<Line> {
        self.running = true;
        self.pause = None;
        let blocks = payload["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        self.answered.extend(blocks.iter().filter_map(|block| block["tool_use_id"].as_str()).map(str::to_owned));
        let text = texts(&payload["content"])?;
        if let Some(place) = self.sent.iter().position(|sent| *sent == text) {
            self.sent.remove(place);
            return None;
        }
        let name = match key {
            Some(key) if self.me.as_deref() == Some(key) => "you".to_owned(),
            Some(key) => sentence::name(key),
            None => "somebody".to_owned(),
        };
        Some(Line::said(Voice::Person, name, &text))
    }

    fn spoken(&mut self, key: Option<&str>, payload: &Value) -> Option<Line> {
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
        self.last_words = Some(text.clone());
        (self.said.take().as_ref() != Some(&text)).then(|| Line::said(Voice::Model, "model".to_owned(), &text))
    }

    /// A failed attempt; or words that come with tool calls, which a turn without a pause says nowhere else.
    fn provided(&mut self, payload: &Value) -> Option<Line> {
        if payload["ok"] == Value::Bool(false) {
            return Some(Line::trouble(sentence::of_failed_attempt(payload)));
        }
        let body = &payload["body"];
        let choice = &body["choices"][0];
        let calls = body["stop_reason"] == "tool_use" || choice["finish_reason"] == "tool_calls";
        if !calls || payload["purpose"] == "compaction" {
            return None;
        }
        let text = texts(&body["content"]).or_else(|| texts(&choice["message"]["content"]))?;
        self.said = Some(text.clone());
        Some(Line::said(Voice::Model, "model".to_owned(), &text))
    }

    fn called(&mut self, payload: &Value) -> Option<Line> {
        let (id, name) = (payload["id"].as_str()?, payload["name"].as_str()?);
        self.tools.insert(id.to_owned(), name.to_owned());
        let place = match (payload["dispatch"].as_str(), payload["server_name"].as_str()) {
            (Some("client"), _) => "client".to_owned(),
            (Some("mcp"), Some(server)) => format!("MCP server {server}"),
            (Some(other), _) => other.to_owned(),
            (None, _) => "server".to_owned(),
        };
        let text = format!("→ {name} {} [{place}]", compact(&payload["input"].to_string()));
        Some(Line { voice: Voice::Tool, name: None, text: clean(&text) })
    }

    fn returned(&mut self, payload: &Value) -> Line {
        let id = payload["tool_use_id"].as_str().unwrap_or_default();
        self.answered.insert(id.to_owned());
        let name = self.tools.remove(id).unwrap_or_else(|| "tool".to_owned());
        let text = texts(&payload["content"]).unwrap_or_else(|| match &payload["content"] {
            Value::Null => String::new(),
            content => content.to_string(),
        });
        let failed = payload["is_error"] == Value::Bool(true);
        let text = format!("← {name}{}: {}", if failed { " failed" } else { "" }, compact(&text));
        Line { voice: if failed { Voice::Trouble } else { Voice::Tool }, name: None, text: clean(&text) }
    }

    fn entered(&self, kind: &str, key: Option<&str>) -> Option<Line> {
        let key = key.filter(|key| self.me.as_deref() != Some(key))?;
        let what = if kind == "session.open" { "opened" } else { "joined" };
        Some(Line::note(format!("{} {what} the session.", sentence::name(key))))
    }

    fn remember(&mut self, id: &str) -> bool {
        if !self.seen.insert(id.to_owned()) {
            return false;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }

    pub fn know_me(&mut self, key_id: &str) {
        self.me = Some(key_id.to_owned());
    }

    /// This text was typed here and is being sent.
    pub fn expect(&mut self, text: &str) {
        self.sent.push(text.to_owned());
    }

    /// Nothing is on its way any more.
    pub fn expect_nothing(&mut self) {
        self.sent.clear();
    }

    /// Whether the session can take no more messages.
    pub fn over(&self) -> bool {
        self.over
    }

    /// Whether a turn is at work, as far as the events told.
    pub fn running(&self) -> bool {
        self.running
    }

    pub fn last_words(&self) -> Option<&str> {
        self.last_words.as_deref()
    }

    /// Whether one of these calls has its result already.
    pub fn answered(&self, calls: &[Call]) -> bool {
        calls.iter().any(|call| self.answered.contains(&call.id))
    }

    /// The calls with which a turn waits for this client.
    pub fn waiting_calls(&self, tools: &Tools) -> Vec<Call> {
        match &self.pause {
            Some(pause) if pause.owner.is_some() && pause.owner == self.me => Call::ours(&pause.content, tools),
            Some(_) | None => Vec::new(),
        }
    }

    /// Whose answer a paused turn waits for, when it is somebody else's.
    pub fn waits_for(&self) -> Option<&str> {
        let owner = self.pause.as_ref()?.owner.as_deref()?;
        (self.me.as_deref() != Some(owner)).then_some(owner)
    }
}

impl Line {
    pub fn note(text: String) -> Line {
        Line { voice: Voice::Note, name: None, text: clean(&text) }
    }

    pub fn trouble(text: String) -> Line {
        Line { voice: Voice::Trouble, name: None, text: clean(&text) }
    }

    pub fn said(voice: Voice, name: String, text: &str) -> Line {
        Line { voice, name: Some(name), text: clean(text) }
    }
}

/// The text blocks of a content, or the content that is a text.
pub fn texts(content: &Value) -> Option<String> {
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

/// One line of bounded length.
pub fn compact(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(TOLD) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Others' words must not steer this terminal: control characters are made visible.
fn clean(text: &str) -> String {
    let shown = |character: char| {
        if character.is_control() && !matches!(character, '\n' | '\t') { '\u{fffd}' } else { character }
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests;
