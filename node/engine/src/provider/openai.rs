//! OpenAI's chat format: `POST {base_url}/v1/chat/completions` (docs/api.md 5.1), translated from and to the product's
//! blocks.
//!
//! - Texts of one message are joined with a line break, on the JSON text itself, so every escape survives.
//! - `tool_use` becomes an entry of `tool_calls` whose `arguments` is the input's JSON text; `tool_result` becomes a
//!   message of role `tool` whose content is its text. The format has no place for `is_error`, so an error result's
//!   text starts with `[error] `. Results come before what else the user message says, as the format demands.
//! - Blocks that the format cannot express are dropped. An assistant message of which nothing is left is left out; a
//!   user message stays, empty, because somebody's turn was there.

mod answer;

use super::is_string;
use crate::json::{self, Object};
use crate::message::{Message, Role};
use crate::request::Request;
use serde_json::value::RawValue;
use std::fmt::Write;

pub use answer::answer;

/// The beginning of a tool result's text that tells the model that it is an error.
pub const ERROR_PREFIX: &str = "[error] ";

/// The body of the HTTP request: model, max_tokens, messages, and tools if there are any.
pub fn body(request: &Request) -> String {
    let size: usize = request.messages.iter().map(|m| m.content.get().len() * 5 / 4 + 64).sum();
    let mut text = String::with_capacity(size + request.tools.get().len() * 5 / 4 + 128);
    let _ =
        write!(text, r#"{{"model":{},"max_tokens":{},"messages":["#, json::encode(&request.model), request.max_tokens);
    let mut list = List::begin(&mut text);
    for message in &request.messages {
        match message.role {
            Role::User => user(message, &mut list),
            Role::Assistant => assistant(message, &mut list),
        }
    }
    text.push(']');
    tools(&request.tools, &mut text);
    text.push('}');
    text
}

/// Elements of a JSON array, separated.
struct List<'a> {
    text: &'a mut String,
    empty: bool,
}

impl<'a> List<'a> {
    fn begin(text: &'a mut String) -> Self {
        Self { text, empty: true }
    }

    fn next(&mut self) -> &mut String {
        if !std::mem::replace(&mut self.empty, false) {
            self.text.push(',');
        }
        self.text
    }
}

fn user(message: &Message, list: &mut List<'_>) {
    let mut text = Text::default();
    let mut results = false;
    each_block(message, &mut text, |kind, block| {
        if kind == "tool_result"
            && let Some(id) = block.get("tool_use_id").filter(|id| is_string(id))
        {
            let content = result_text(block);
            let _ = write!(list.next(), r#"{{"role":"tool","tool_call_id":{id},"content":"{content}"}}"#);
            results = true;
        }
    });
    if text.any || !results {
        let _ = write!(list.next(), r#"{{"role":"user","content":"{}"}}"#, text.inner);
    }
}

fn assistant(message: &Message, list: &mut List<'_>) {
    let mut text = Text::default();
    let mut calls = String::new();
    let mut call_list = List::begin(&mut calls);
    each_block(message, &mut text, |kind, block| {
        if kind == "tool_use"
            && let Some(id) = block.get("id").filter(|id| is_string(id))
            && let Some(name) = block.get("name").filter(|name| is_string(name))
        {
            let arguments = json::encode(block.get("input").map_or("{}", RawValue::get));
            let _ = write!(
                call_list.next(),
                r#"{{"id":{id},"type":"function","function":{{"name":{name},"arguments":{arguments}}}}}"#
            );
        }
    });
    if text.inner.is_empty() && calls.is_empty() {
        return;
    }
    let out = list.next();
    out.push_str(r#"{"role":"assistant","content":"#);
    if text.inner.is_empty() {
        out.push_str("null");
    } else {
        let _ = write!(out, r#""{}""#, text.inner);
    }
    if !calls.is_empty() {
        let _ = write!(out, r#","tool_calls":[{calls}]"#);
    }
    out.push('}');
}

/// The inside of a JSON string, joined from the insides of several.
#[derive(Default)]
struct Text {
    inner: String,
    any: bool,
}

impl Text {
    fn add(&mut self, string: &RawValue) {
        if std::mem::replace(&mut self.any, true) {
            self.inner.push_str("\\n");
        }
        self.inner.push_str(inside(string));
    }

    /// Takes any value, a string as its text and everything else as its JSON.
    fn add_any(&mut self, value: &RawValue) {
        if is_string(value) { self.add(value) } else { self.add(&json::encode(value.get())) }
    }
}

fn inside(string: &RawValue) -> &str {
    string.get().strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or_default()
}

/// Collects the texts of a message and hands its other blocks on, in their order.
fn each_block(message: &Message, text: &mut Text, mut other: impl FnMut(&str, &Object<'_>)) {
    let Some(blocks) = json::array(&message.content) else {
        return text.add_any(&message.content);
    };
    for block in blocks {
        let Some(block) = Object::parse(block) else { continue };
        match block.str("type").as_deref() {
            Some("text") => block.get("text").filter(|t| is_string(t)).into_iter().for_each(|t| text.add(t)),
            Some(kind) => other(kind, &block),
            None => {}
        }
    }
}

/// The inside of the JSON string that a tool result becomes.
fn result_text(block: &Object<'_>) -> String {
    let mut text = Text::default();
    match block.get("content") {
        None => {}
        Some(content) if content.get() == "null" => {}
        Some(content) => match json::array(content) {
            None => text.add_any(content),
            Some(parts) => {
                for part in parts.into_iter().filter_map(Object::parse) {
                    if part.str("type").as_deref() == Some("text")
                        && let Some(string) = part.get("text").filter(|t| is_string(t))
                    {
                        text.add(string);
                    }
                }
            }
        },
    }
    if block.get("is_error").is_some_and(|flag| flag.get() == "true") {
        text.inner.insert_str(0, ERROR_PREFIX);
    }
    text.inner
}

fn tools(offered: &RawValue, text: &mut String) {
    let offered = json::array(offered).unwrap_or_default();
    let offered: Vec<_> = offered.into_iter().filter_map(Object::parse).collect();
    if offered.is_empty() {
        return;
    }
    text.push_str(r#","tools":["#);
    let mut list = List::begin(text);
    for tool in &offered {
        let out = list.next();
        out.push_str(r#"{"type":"function","function":{"#);
        let mut members = List::begin(out);
        for (from, to) in [("name", "name"), ("description", "description"), ("input_schema", "parameters")] {
            if let Some(value) = tool.get(from) {
                let _ = write!(members.next(), r#""{to}":{value}"#);
            }
        }
        out.push_str("}}");
    }
    text.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Wire;
    use crate::request::Kind;

    fn sent(messages: &[(Role, &str)], tools: &str) -> String {
        let text = Wire::OpenAi.body(&Request {
            attempt: 1,
            kind: Kind::Primary,
            entry: "main".into(),
            wire: Wire::OpenAi,
            base_url: "http://x".into(),
            model: "m".into(),
            max_tokens: 7,
            messages: messages
                .iter()
                .map(|(role, content)| Message { role: *role, content: json::parse(content).unwrap() })
                .collect(),
            tools: json::parse(tools).unwrap(),
            normalized: None,
            compaction: false,
        });
        json::parse(&text).unwrap();
        let rest = text.strip_prefix(r#"{"model":"m","max_tokens":7,"messages":["#).unwrap();
        rest.strip_suffix('}').unwrap().to_owned()
    }

    #[test]
    fn a_tool_round_is_translated() {
        let got = sent(
            &[
                (Role::User, r#""h\u00e9\ud800""#),
                (
                    Role::Assistant,
                    r#"[{"type":"thinking","thinking":"x"},{"type":"text","text":"a"},{"type":"tool_use","id":"t1","name":"n","input":{"b":1.10,"a":"\u00e9"}},{"type":"text","text":"b\n"}]"#,
                ),
                (
                    Role::User,
                    r#"[{"type":"text","text":"and"},{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"1"},{"type":"image"},{"type":"text","text":"2"}]},{"type":"text","text":"so"}]"#,
                ),
            ],
            "[]",
        );
        assert_eq!(
            got,
            [
                r#"{"role":"user","content":"h\u00e9\ud800"},"#,
                r#"{"role":"assistant","content":"a\nb\n","tool_calls":[{"id":"t1","type":"function","function":{"name":"n","arguments":"{\"b\":1.10,\"a\":\"\\u00e9\"}"}}]},"#,
                r#"{"role":"tool","tool_call_id":"t1","content":"1\n2"},"#,
                r#"{"role":"user","content":"and\nso"}]"#,
            ]
            .concat()
        );
    }

    #[test]
    fn results_keep_their_errors_and_their_shape() {
        let result = |members: &str| {
            sent(&[(Role::User, &format!(r#"[{{"type":"tool_result","tool_use_id":"t"{members}}}]"#))], "[]")
        };
        for (members, content) in [
            (r#","content":"x\"y""#, r#"x\"y"#),
            (r#","content":"boom","is_error":true"#, "[error] boom"),
            (r#","content":"fine","is_error":false"#, "fine"),
            (r#","is_error":true"#, "[error] "),
            (r#","content":null"#, ""),
            (r#","content":{"a":1}"#, r#"{\"a\":1}"#),
        ] {
            assert_eq!(result(members), format!(r#"{{"role":"tool","tool_call_id":"t","content":"{content}"}}]"#));
        }
    }

    #[test]
    fn what_the_format_cannot_say_is_left_out() {
        let only_calls = r#"[{"type":"tool_use","id":"t","name":"n"}]"#;
        assert_eq!(
            sent(&[(Role::Assistant, only_calls), (Role::Assistant, r#"[{"type":"thinking"}]"#)], "[]"),
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"t","type":"function","function":{"name":"n","arguments":"{}"}}]}]"#
        );
        assert_eq!(sent(&[(Role::User, r#"[{"type":"image"}]"#)], "[]"), r#"{"role":"user","content":""}]"#);
    }

    #[test]
    fn tools_become_functions() {
        assert_eq!(
            sent(
                &[],
                r#"[{"name":"a","description":"d","input_schema":{"z":1,"a":2}},{"name":"b","input_schema":{}}]"#
            ),
            r#"],"tools":[{"type":"function","function":{"name":"a","description":"d","parameters":{"z":1,"a":2}}},{"type":"function","function":{"name":"b","parameters":{}}}]"#
        );
    }
}
