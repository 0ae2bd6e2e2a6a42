//! Transcripts of what went over the wire, for snapshots.
//!
//! Ids, secrets and times are replaced by labels, but only where their shape is exactly the API's, so a wrong shape
//! shows up in the snapshot; equal values get equal labels, so identity is checked too. Objects are printed with sorted
//! keys (their order is not promised), scalars right behind their key (`"code":-32000`), long values broken over lines.

use crate::client::{Api, Frames, Outcome, Reply, Session};
use serde_json::Value;
use std::collections::HashMap;

/// The transcript so far.
#[derive(Debug, Default)]
pub struct Transcript {
    text: String,
    literals: Vec<(String, String)>,
    labels: Labels,
}

/// Lines up to this width stay whole.
const WIDTH: usize = 150;

impl Transcript {
    /// Replaces a literal, such as a mock's address.
    pub fn replace(mut self, from: &str, to: &str) -> Self {
        self.literals.push((from.to_owned(), to.to_owned()));
        self
    }

    /// A heading.
    pub fn note(&mut self, text: &str) {
        self.text.push('\n');
        self.push(&format!("# {text}"));
    }

    /// Makes a REST call and records both sides.
    pub async fn rest(&mut self, api: &Api, method: &str, path: &str, key: &str, body: Option<Value>) -> Reply {
        let reply = api.call(method, path, key, body.as_ref()).await;
        let auth = if key.is_empty() { String::new() } else { format!(" ({key})") };
        self.push(&format!("> {method} {path}{auth}"));
        if let Some(body) = &body {
            self.json("  ", body);
        }
        self.reply(&reply);
        reply
    }

    /// Sends a prepared request and records both sides.
    pub async fn request(&mut self, api: &Api, what: &str, request: reqwest::RequestBuilder) -> Reply {
        self.push(&format!("> {what}"));
        let reply = api.send(request).await;
        self.reply(&reply);
        reply
    }

    /// Records an answer.
    pub fn reply(&mut self, reply: &Reply) {
        let kind = reply.header("content-type");
        self.push(&format!("< {} {kind}", reply.status));
        if !reply.body.is_empty() {
            match serde_json::from_str(&reply.body) {
                Ok(value) => self.json("  ", &value),
                Err(_) => self.push(&format!("  {}", reply.body)),
            }
        }
    }

    /// Makes an RPC call and records request and frames.
    pub async fn rpc(&mut self, session: &Session, method: &str, params: Value) -> Outcome {
        self.push(&format!("> {method}"));
        self.json("  ", &params);
        let outcome = session.rpc(method, params).await;
        self.frames(&outcome);
        outcome
    }

    /// Posts any body to `/rpc` and records it with the frames.
    pub async fn raw(&mut self, session: &Session, body: &str) -> Outcome {
        self.push(&format!("> {body}"));
        let outcome = session.raw(body.to_owned()).await.finish().await;
        self.frames(&outcome);
        outcome
    }

    /// Records the frames of a finished call. `result.events` is listed by type when every event was just streamed or
    /// is the client's own, so that payloads stand here once.
    pub fn frames(&mut self, outcome: &Outcome) {
        let mut seen = std::collections::HashSet::new();
        for frame in &outcome.frames {
            let mut frame = frame.clone();
            if let Some(id) = frame["params"]["id"].as_str() {
                seen.insert(id.to_owned());
            }
            if let Some(events) =
                frame.get_mut("result").and_then(|r| r.get_mut("events")).and_then(Value::as_array_mut)
            {
                for event in events {
                    let id = event["id"].as_str().unwrap_or("?").to_owned();
                    if seen.contains(&id) {
                        *event = Value::from(format!("{id} {}", event["event_type"].as_str().unwrap_or("?")));
                    }
                }
            }
            self.frame(&frame);
        }
        if outcome.frames.is_empty() {
            self.push("< (nothing)");
        }
    }

    /// Records the next `count` frames of an open stream.
    pub async fn next(&mut self, frames: &mut Frames, count: usize) {
        for _ in 0..count {
            match frames.next().await {
                Some(frame) => self.frame(&frame),
                None => self.push("< (end)"),
            }
        }
    }

    /// Records a value under a heading.
    pub fn value(&mut self, what: &str, value: &Value) {
        self.push(&format!("= {what}"));
        self.json("  ", value);
    }

    /// The finished text.
    pub fn finish(self) -> String {
        self.text
    }

    /// An event notification of exactly the API's shape takes two lines: `event TYPE [id] [key] [session]` and its
    /// payload. Any other frame is printed whole.
    fn frame(&mut self, frame: &Value) {
        let redacted = self.redact_value(frame);
        let params = &redacted["params"];
        let text = |field: &str| params[field].as_str().unwrap_or_default();
        let (kind, id, key, session) = (text("event_type"), text("id"), text("client_key_id"), text("session_id"));
        let well_formed = has_keys(&redacted, &["jsonrpc", "method", "params"])
            && (&redacted["jsonrpc"], &redacted["method"]) == (&Value::from("2.0"), &Value::from("session.event"))
            && has_keys(params, &["client_key_id", "created_at", "event_type", "id", "payload", "session_id"])
            && [(id, "[evt:"), (key, "[key:"), (session, "[ses:")].iter().all(|(text, label)| text.starts_with(label))
            && text("created_at") == "[time]";
        if well_formed {
            self.text.push_str(&format!("< event {kind} {id} {key} {session}\n"));
            self.json("  ", &params["payload"]);
        } else {
            self.json("< ", &redacted);
        }
    }

    fn push(&mut self, line: &str) {
        let line = self.redact(line);
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn json(&mut self, lead: &str, value: &Value) {
        let value = self.redact_value(value);
        let mut out = String::new();
        print(&value, 0, &mut out);
        for (index, line) in out.lines().enumerate() {
            let lead = if index == 0 { lead } else { "  " };
            self.text.push_str(lead);
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    fn redact_value(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.redact(text)),
            Value::Array(items) => items.iter().map(|item| self.redact_value(item)).collect(),
            Value::Object(map) => {
                let one = |(name, value): (&String, &Value)| {
                    let value = match (name.as_str(), value) {
                        ("prefix", Value::String(text)) => Value::String(self.labels.prefix(text)),
                        _ => self.redact_value(value),
                    };
                    (name.clone(), value)
                };
                Value::Object(map.iter().map(one).collect())
            }
            other => other.clone(),
        }
    }

    fn redact(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (from, to) in &self.literals {
            text = text.replace(from, to);
        }
        self.labels.redact(&text)
    }
}

fn has_keys(value: &Value, keys: &[&str]) -> bool {
    value.as_object().is_some_and(|map| map.keys().map(String::as_str).eq(keys.iter().copied()))
}

#[derive(Debug, Default)]
struct Labels {
    known: HashMap<String, String>,
    counts: HashMap<&'static str, usize>,
}

/// Prefix, hex digits, label. Longer prefixes first.
const SHAPES: [(&str, usize, &str); 8] = [
    ("bae_admin_", 48, "admin secret"),
    ("bae_ses_", 48, "session secret"),
    ("bae_", 48, "client secret"),
    ("ses_", 32, "ses"),
    ("evt_", 32, "evt"),
    ("key_", 32, "key"),
    ("pro_", 32, "pro"),
    ("sba_", 32, "sba"),
];

impl Labels {
    fn redact(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        let mut inside_word = false;
        while let Some(next) = rest.chars().next() {
            if !inside_word && let Some((length, label)) = self.shape(rest) {
                out.push_str(&label);
                rest = &rest[length..];
                continue;
            }
            inside_word = next.is_ascii_alphanumeric() || next == '_';
            out.push(next);
            rest = &rest[next.len_utf8()..];
        }
        out
    }

    fn shape(&mut self, text: &str) -> Option<(usize, String)> {
        if is_time(text) {
            return Some((24, "[time]".to_owned()));
        }
        for (prefix, digits, kind) in SHAPES {
            let Some(tail) = text.strip_prefix(prefix) else { continue };
            let hex = tail.bytes().take_while(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b)).count();
            let ends = !tail[hex..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            if hex == digits && ends {
                let length = prefix.len() + digits;
                return Some((length, self.label(&text[..length], kind)));
            }
        }
        None
    }

    fn label(&mut self, value: &str, kind: &'static str) -> String {
        if let Some(label) = self.known.get(value) {
            return label.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let label = format!("[{kind}:{count}]");
        self.known.insert(value.to_owned(), label.clone());
        label
    }

    /// The first eight characters of a client key that was seen before.
    fn prefix(&self, text: &str) -> String {
        let mut of =
            self.known.iter().filter(|(value, _)| text.len() == 8 && value.starts_with(text)).map(|(_, label)| label);
        of.next().map_or_else(
            || format!("{text} (of no key seen)"),
            |label| format!("[prefix of {}]", &label[1..label.len() - 1]),
        )
    }
}

/// `2026-07-06T18:26:10.000Z`
fn is_time(text: &str) -> bool {
    let shape = b"0000-00-00T00:00:00.000Z";
    text.len() >= shape.len()
        && text.bytes().zip(shape).all(|(byte, want)| if *want == b'0' { byte.is_ascii_digit() } else { byte == *want })
}

fn print(value: &Value, depth: usize, out: &mut String) {
    let compact = value.to_string();
    let column = out.len() - out.rfind('\n').map_or(0, |at| at + 1);
    if column + compact.chars().count() <= WIDTH {
        out.push_str(&compact);
        return;
    }
    let pad = "  ".repeat(depth + 1);
    match value {
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "\n" } else { ",\n" });
                out.push_str(&pad);
                print(item, depth + 1, out);
            }
            out.push_str(&format!("\n{}]", "  ".repeat(depth)));
        }
        Value::Object(map) => {
            out.push('{');
            for (index, (name, item)) in map.iter().enumerate() {
                out.push_str(if index == 0 { "\n" } else { ",\n" });
                out.push_str(&format!("{pad}{}:", Value::from(name.as_str())));
                print(item, depth + 1, out);
            }
            out.push_str(&format!("\n{}}}", "  ".repeat(depth)));
        }
        _ => out.push_str(&compact),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_right_shapes_only() {
        let mut transcript = Transcript::default().replace("http://127.0.0.1:4711", "[provider]");
        let id = |kind: &str, digit: &str| format!("{kind}_{}", digit.repeat(32));
        let secret = format!("bae_{}", "1a2b".repeat(12));
        transcript.value(
            "shapes",
            &json!([
                id("evt", "a"), id("evt", "b"), id("evt", "a"), id("evt", "A"), id("evt", "a") + "0",
                secret, {"prefix": "bae_1a2b"}, {"prefix": "bae_ffff"}, "2026-07-06T18:26:10.000Z", "2026-07-06T18:26:10Z",
                "at http://127.0.0.1:4711/v1",
            ]),
        );
        let text = transcript.finish();
        let wrong = [id("evt", "A"), id("evt", "a") + "0"];
        let expected = [
            "[evt:1]",
            "[evt:2]",
            "[evt:1]",
            &wrong[0],
            &wrong[1],
            "[client secret:1]",
            r#"{"prefix":"[prefix of client secret:1]"}"#,
            r#"{"prefix":"bae_ffff (of no key seen)"}"#,
            "[time]",
            "2026-07-06T18:26:10Z",
            "at [provider]/v1",
        ];
        let lines: Vec<&str> =
            text.lines().skip(2).map(|line| line.trim().trim_end_matches(',').trim_matches('"')).collect();
        assert_eq!(lines[..expected.len()], expected);
    }
}
