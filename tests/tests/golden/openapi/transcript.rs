//! The REST exchanges of the committed transcripts, with labels turned back into values of their shape.

use serde_json::Value;
use std::iter::Peekable;
use std::path::Path;
use std::str::Lines;

/// A request and its answer.
#[derive(Debug)]
pub(super) struct Exchange {
    pub method: String,
    pub path: String,
    pub sent: Option<Value>,
    pub status: u16,
    /// Null for an empty body.
    pub answer: Value,
}

/// The exchanges of all transcripts, with the name of each one's file.
pub(super) fn all() -> Vec<(String, Exchange)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        all.extend(read(&text).into_iter().map(|exchange| (name.clone(), exchange)));
    }
    all
}

fn read(text: &str) -> Vec<Exchange> {
    let mut lines = text.lines().peekable();
    let mut exchanges = Vec::new();
    while let Some(line) = lines.next() {
        let Some((method, path)) = request(line) else { continue };
        let sent = body(&mut lines);
        let Some(status) = lines.peek().and_then(|line| line.strip_prefix("< ")?.get(..3)?.parse().ok()) else {
            continue;
        };
        lines.next();
        let answer = body(&mut lines).unwrap_or(Value::Null);
        exchanges.push(Exchange { method: method.to_owned(), path: value(path), sent, status, answer });
    }
    exchanges
}

/// `> POST /api/v1/sessions ([client secret:1])`, or a note in words that begins in the same way.
fn request(line: &str) -> Option<(&str, &str)> {
    let (method, rest) = line.strip_prefix("> ").or_else(|| line.strip_prefix("# "))?.split_once(' ')?;
    let method = ["GET", "POST", "PUT", "DELETE", "PATCH"].into_iter().find(|known| *known == method)?;
    let path = rest.split([' ', ',']).next().filter(|path| path.starts_with('/'))?;
    Some((method, path))
}

/// The indented lines that follow.
fn body(lines: &mut Peekable<Lines<'_>>) -> Option<Value> {
    let mut text = String::new();
    while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
        text.push_str(line);
    }
    (!text.is_empty()).then(|| serde_json::from_str(&value(&text)).unwrap())
}

/// Transcripts have labels in the place of ids, secrets and times; here any value of their shape does.
fn value(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, label)) = rest.split_once('[') {
        out.push_str(before);
        let shape = label.split_once(']').and_then(|(label, after)| Some((shape(label)?, after)));
        match shape {
            Some((value, after)) => {
                out.push_str(&value);
                rest = after;
            }
            None => {
                out.push('[');
                rest = label;
            }
        }
    }
    out + rest
}

fn shape(label: &str) -> Option<String> {
    if label == "time" {
        return Some("2026-07-06T18:26:10.000Z".into());
    }
    if label.starts_with("prefix of client secret:") {
        return Some("bae_1a2b".into());
    }
    let (kind, number) = label.split_once(':')?;
    let number: u64 = number.parse().ok()?;
    match kind {
        "ses" | "evt" | "key" | "pro" | "sba" => Some(format!("{kind}_{number:032x}")),
        "client secret" => Some(format!("bae_{number:048x}")),
        "session secret" => Some(format!("bae_ses_{number:048x}")),
        "admin secret" => Some(format!("bae_admin_{number:048x}")),
        _ => None,
    }
}
