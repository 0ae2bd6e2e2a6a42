//! OpenAI's chat format: `POST {base_url}/v1/chat/completions` (docs/api.md 5.1), translated from and to the product's
//! blocks.
//!
//! - Texts of one message are joined with a line break, on the JSON text itself, so every escape survives.
//! - `tool_use` becomes an entry of `tool_calls` whose `arguments` is the input's JSON text; `tool_result` becomes a
//!   message of role `tool` whose content is its text. The format has no place for `is_error`, so an error result's
//!   text starts with `[error] `. Results come before what else the user message says, as the format demands.
//! - An image of a user becomes an `image_url`. An image of a tool result follows the results in a user message, because a
//!   result is a text.
//! - The model's own thinking is left out. In the place of every other block that the format cannot express stands a text
//!   that says so. An assistant message of which nothing is left is left out; a user message stays, empty, because
//!   somebody's turn was there.
//! - The output budget is `max_completion_tokens` for the vendor's own host and `max_tokens` elsewhere, unless the
//!   configuration says otherwise (docs/api.md 5.8).

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

/// Where the vendor wants the output budget as `max_completion_tokens`.
const VENDOR: &str = "https://api.openai.com";

/// The body of the HTTP request: model, output budget, messages, and tools if there are any. `budget` is the name of the
/// budget's member, if the configuration says it.
pub fn body(request: &Request, budget: Option<&str>) -> String {
    let vendor = request.base_url == VENDOR || request.base_url.starts_with("https://api.openai.com/");
    let budget = budget.unwrap_or(if vendor { "max_completion_tokens" } else { "max_tokens" });
    let size: usize = request.messages.iter().map(|m| m.content.get().len() * 5 / 4 + 64).sum();
    let mut text = String::with_capacity(size + request.tools.get().len() * 5 / 4 + 128);
    let model = json::encode(&request.model);
    let _ = write!(text, r#"{{"model":{model},{}:{},"messages":["#, json::encode(budget), request.max_tokens);
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
    let (mut said, mut images) = (Parts::default(), Parts::default());
    let mut results = false;
    each_block(message, &mut said, |kind, block, said| match kind {
        "tool_result" => {
            let Some(id) = block.get("tool_use_id").filter(|id| is_string(id)) else { return };
            let content = result_text(block, id, &mut images);
            let _ = write!(list.next(), r#"{{"role":"tool","tool_call_id":{id},"content":"{content}"}}"#);
            results = true;
        }
        "image" => said.image(block),
        kind => said.note(kind),
    });
    images.append(said);
    if !images.list.is_empty() || !results {
        let _ = write!(list.next(), r#"{{"role":"user","content":{}}}"#, images.content());
    }
}

fn assistant(message: &Message, list: &mut List<'_>) {
    let mut said = Parts::default();
    let mut calls = String::new();
    let mut call_list = List::begin(&mut calls);
    each_block(message, &mut said, |kind, block, said| match kind {
        "tool_use" => {
            let (id, name) =
                (block.get("id").filter(|id| is_string(id)), block.get("name").filter(|name| is_string(name)));
            let (Some(id), Some(name)) = (id, name) else { return };
            let arguments = json::encode(block.get("input").map_or("{}", RawValue::get));
            let _ = write!(
                call_list.next(),
                r#"{{"id":{id},"type":"function","function":{{"name":{name},"arguments":{arguments}}}}}"#
            );
        }
        "thinking" | "redacted_thinking" => {}
        kind => said.note(kind),
    });
    let text = said.text();
    if text.is_empty() && calls.is_empty() {
        return;
    }
    let out = list.next();
    out.push_str(r#"{"role":"assistant","content":"#);
    if text.is_empty() {
        out.push_str("null");
    } else {
        let _ = write!(out, r#""{text}""#);
    }
    if !calls.is_empty() {
        let _ = write!(out, r#","tool_calls":[{calls}]"#);
    }
    out.push('}');
}

/// What a message says beside its tools.
#[derive(Default)]
struct Parts {
    list: Vec<Part>,
}

enum Part {
    /// The inside of a JSON string.
    Text(String),
    /// The JSON string of a URL.
    Image(String),
}

impl Parts {
    fn add(&mut self, string: &RawValue) {
        self.list.push(Part::Text(inside(string).to_owned()));
    }

    /// Takes any value, a string as its text and everything else as its JSON.
    fn add_any(&mut self, value: &RawValue) {
        if is_string(value) { self.add(value) } else { self.add(&json::encode(value.get())) }
    }

    fn note(&mut self, kind: &str) {
        self.add(&json::encode(&format!("[content of type {kind:?}, which this model is not shown]")));
    }

    fn image(&mut self, block: &Object<'_>) {
        match image_url(block) {
            Some(url) => self.list.push(Part::Image(url)),
            None => self.note("image"),
        }
    }

    fn append(&mut self, mut other: Parts) {
        self.list.append(&mut other.list);
    }

    /// The inside of a JSON string: all texts, on lines of their own.
    fn text(&self) -> String {
        let texts = self.list.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Image(_) => None,
        });
        texts.collect::<Vec<_>>().join("\\n")
    }

    /// The `content` of a message: a string, or a list if there is an image.
    fn content(&self) -> String {
        if self.list.iter().all(|part| matches!(part, Part::Text(_))) {
            return format!(r#""{}""#, self.text());
        }
        let parts = self.list.iter().map(|part| match part {
            Part::Text(text) => format!(r#"{{"type":"text","text":"{text}"}}"#),
            Part::Image(url) => format!(r#"{{"type":"image_url","image_url":{{"url":{url}}}}}"#),
        });
        format!("[{}]", parts.collect::<Vec<_>>().join(","))
    }
}

/// The JSON string of an image block's URL, with the image in it if the block holds that.
fn image_url(block: &Object<'_>) -> Option<String> {
    let source = block.get("source").and_then(Object::parse)?;
    match source.str("type").as_deref() {
        Some("url") => source.get("url").filter(|url| is_string(url)).map(|url| url.get().to_owned()),
        Some("base64") => {
            let (kind, data) =
                (source.get("media_type").filter(|k| is_string(k))?, source.get("data").filter(|d| is_string(d))?);
            Some(format!(r#""data:{};base64,{}""#, inside(kind), inside(data)))
        }
        _ => None,
    }
}

fn inside(string: &RawValue) -> &str {
    string.get().strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or_default()
}

/// Collects the texts of a message and hands its other blocks on, in their order.
fn each_block(message: &Message, said: &mut Parts, mut other: impl FnMut(&str, &Object<'_>, &mut Parts)) {
    let Some(blocks) = json::array(&message.content) else {
        return said.add_any(&message.content);
    };
    for block in blocks {
        let Some(block) = Object::parse(block) else { continue };
        match block.str("type").as_deref() {
            Some("text") => block.get("text").filter(|t| is_string(t)).into_iter().for_each(|t| said.add(t)),
            Some(kind) => other(kind, &block, said),
            None => {}
        }
    }
}

/// The inside of the JSON string that a tool result becomes. Its images go to `images`, under the id of the tool use.
fn result_text(block: &Object<'_>, id: &RawValue, images: &mut Parts) -> String {
    let mut said = Parts::default();
    match block.get("content") {
        None => {}
        Some(content) if content.get() == "null" => {}
        Some(content) => match json::array(content) {
            None => said.add_any(content),
            Some(parts) => {
                for part in parts.into_iter().filter_map(Object::parse) {
                    match part.str("type").as_deref() {
                        Some("text") => part.get("text").filter(|t| is_string(t)).into_iter().for_each(|t| said.add(t)),
                        Some("image") => {
                            let place = format!("[image of the tool result {}]", json::string(id).unwrap_or_default());
                            let place = json::encode(&place);
                            said.add(&place);
                            images.add(&place);
                            images.image(&part);
                        }
                        Some(kind) => said.note(kind),
                        None => {}
                    }
                }
            }
        },
    }
    let mut text = said.text();
    if block.get("is_error").is_some_and(|flag| flag.get() == "true") {
        text.insert_str(0, ERROR_PREFIX);
    }
    text
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
        let text = Wire::OpenAi.body(
            &Request {
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
            },
            None,
        );
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
                    r#"[{"type":"text","text":"and"},{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"1"},{"type":"audio"},{"type":"text","text":"2"}]},{"type":"text","text":"so"}]"#,
                ),
            ],
            "[]",
        );
        assert_eq!(
            got,
            [
                r#"{"role":"user","content":"h\u00e9\ud800"},"#,
                r#"{"role":"assistant","content":"a\nb\n","tool_calls":[{"id":"t1","type":"function","function":{"name":"n","arguments":"{\"b\":1.10,\"a\":\"\\u00e9\"}"}}]},"#,
                r#"{"role":"tool","tool_call_id":"t1","content":"1\n[content of type \"audio\", which this model is not shown]\n2"},"#,
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
    fn what_the_format_cannot_say_is_named() {
        let only_calls = r#"[{"type":"tool_use","id":"t","name":"n"}]"#;
        assert_eq!(
            sent(&[(Role::Assistant, only_calls), (Role::Assistant, r#"[{"type":"thinking"}]"#)], "[]"),
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"t","type":"function","function":{"name":"n","arguments":"{}"}}]}]"#
        );
        for kind in ["image", "document"] {
            assert_eq!(
                sent(&[(Role::User, &format!(r#"[{{"type":"{kind}"}}]"#))], "[]"),
                format!(
                    r#"{{"role":"user","content":"[content of type \"{kind}\", which this model is not shown]"}}]"#
                )
            );
        }
    }

    #[test]
    fn images_are_shown() {
        let url = r#"{"type":"image","source":{"type":"url","url":"http://x/a.png"}}"#;
        let data = r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGk="}}"#;
        let (shown_url, shown_data) = (
            r#"{"type":"image_url","image_url":{"url":"http://x/a.png"}}"#,
            r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}}"#,
        );
        assert_eq!(
            sent(&[(Role::User, &format!(r#"[{{"type":"text","text":"see"}},{url},{data}]"#))], "[]"),
            format!(r#"{{"role":"user","content":[{{"type":"text","text":"see"}},{shown_url},{shown_data}]}}]"#)
        );
        let result = format!(
            r#"[{{"type":"tool_result","tool_use_id":"t1","content":[{data}]}},{{"type":"text","text":"so"}}]"#
        );
        let place = "[image of the tool result t1]";
        assert_eq!(
            sent(&[(Role::User, &result)], "[]"),
            [
                format!(r#"{{"role":"tool","tool_call_id":"t1","content":"{place}"}},"#),
                format!(r#"{{"role":"user","content":[{{"type":"text","text":"{place}"}},{shown_data},{{"type":"text","text":"so"}}]}}]"#),
            ]
            .concat()
        );
    }

    #[test]
    fn the_budget_has_the_name_that_the_host_takes() {
        let request = |base_url: &str| Request {
            attempt: 0,
            kind: Kind::Primary,
            entry: "main".into(),
            wire: Wire::OpenAi,
            base_url: base_url.into(),
            model: "m".into(),
            max_tokens: 7,
            messages: Vec::new(),
            tools: json::parse("[]").unwrap(),
            normalized: None,
            compaction: false,
        };
        for (url, named, field) in [
            ("https://api.openai.com", None, "max_completion_tokens"),
            ("https://api.openai.com/eu", None, "max_completion_tokens"),
            ("https://api.openai.com.example.org", None, "max_tokens"),
            ("http://localhost:11434", None, "max_tokens"),
            ("https://api.openai.com", Some("max_tokens"), "max_tokens"),
        ] {
            let body = Wire::OpenAi.body(&request(url), named);
            assert_eq!(body, format!(r#"{{"model":"m","{field}":7,"messages":[]}}"#), "{url}");
        }
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
