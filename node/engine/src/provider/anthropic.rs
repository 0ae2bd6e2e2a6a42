//! Anthropic's wire format: `POST {base_url}/v1/messages` (docs/api.md 5.1).
//!
//! The server uses this format itself, so blocks are passed on unchanged in both directions, even those of unknown
//! types. Only what the server relies on is checked.

use super::{Answer, ToolUses, Usage, invalid, is_string, tokens};
use crate::json::{self, Object, Raw};
use crate::request::Request;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::fmt::Write;

/// The body of the HTTP request: model, max_tokens, messages, tools.
pub fn body(request: &Request) -> String {
    let size: usize = request.messages.iter().map(|m| m.content.get().len() + 40).sum();
    let mut text = String::with_capacity(size + request.tools.get().len() + 128);
    let _ =
        write!(text, r#"{{"model":{},"max_tokens":{},"messages":"#, json::encode(&request.model), request.max_tokens);
    request.write_messages(&mut text);
    text.push_str(r#","tools":"#);
    text.push_str(request.tools.get());
    text.push('}');
    text
}

/// Reads the body of a response.
///
/// An answer that the token limit cut off may end in a tool use whose input is incomplete, so a tool use at the end of
/// such an answer is dropped (F14). `model_context_window_exceeded` cuts off in the same way and counts as the same
/// reason.
///
/// # Errors
/// `invalid answer: …` with the reason, if the answer cannot be used.
pub fn answer(body: &RawValue) -> Result<Answer, String> {
    let body = Object::parse(body).ok_or_else(|| invalid("the body is not an object"))?;
    let content = body.get("content").and_then(json::array);
    let mut content = content.ok_or_else(|| invalid("`content` is missing or not an array"))?;
    let cut = matches!(body.str("stop_reason").as_deref(), Some("max_tokens" | "model_context_window_exceeded"));
    if cut && content.last().is_some_and(|block| is_tool_use(block)) {
        content.pop();
    }
    let mut seen = ToolUses::default();
    let mut blocks = Vec::with_capacity(content.len());
    let mut broken = HashSet::new();
    for (i, block) in content.into_iter().enumerate() {
        blocks.push(read_block(i, block, &mut seen, &mut broken)?);
    }
    Ok(Answer { blocks, broken, truncated: cut.then_some("stop_reason max_tokens"), usage: usage(&body) })
}

fn is_tool_use(block: &RawValue) -> bool {
    Object::parse(block).is_some_and(|block| block.str("type").as_deref() == Some("tool_use"))
}

/// The block, unchanged but for the id and the input of a tool use that has none.
fn read_block(i: usize, block: &RawValue, seen: &mut ToolUses, broken: &mut HashSet<String>) -> Result<Raw, String> {
    let Some(members) = Object::parse(block) else {
        return Err(invalid(format_args!("content block {i} is not an object")));
    };
    let Some(kind) = members.str("type") else {
        return Err(invalid(format_args!("content block {i} has no string `type`")));
    };
    match &*kind {
        "text" if !members.get("text").is_some_and(is_string) => {
            Err(invalid(format_args!("text block {i} has no string `text`")))
        }
        "tool_use" => {
            let said = members.str("id");
            let id = seen.check("tool_use block", i, said.as_deref(), members.str("name").as_deref())?;
            let whole = members.get("input").is_some_and(|input| input.get().starts_with('{'));
            if whole && said.is_some_and(|said| said == id) {
                return Ok(Raw::from(block.to_owned()));
            }
            let sent_id = json::encode(&id);
            let empty = json::built("{}".into());
            if whole {
                return Ok(members.with(&[("id", &sent_id)]));
            }
            if members.get("input").is_some_and(|input| input.get() != "null") {
                broken.insert(id);
            }
            Ok(members.with(&[("id", &sent_id), ("input", &empty)]))
        }
        _ => Ok(Raw::from(block.to_owned())),
    }
}

/// Cache reads and cache creation are input too (docs/api.md 5.6); a provider without a cache leaves them out or null.
fn usage(body: &Object<'_>) -> Option<Usage> {
    let usage = Object::parse(body.get("usage")?)?;
    let mut input_tokens = tokens(&usage, "input_tokens")?;
    for key in ["cache_read_input_tokens", "cache_creation_input_tokens"] {
        if usage.get(key).is_some_and(|value| value.get() != "null") {
            input_tokens = input_tokens.saturating_add(tokens(&usage, key)?);
        }
    }
    Some(Usage { input_tokens, output_tokens: tokens(&usage, "output_tokens")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Message, Role};
    use crate::provider::Wire;
    use crate::request::Kind;

    fn read(text: &str) -> Result<Answer, String> {
        answer(&json::parse(text).unwrap())
    }

    fn texts(answer: &Answer) -> Vec<&str> {
        answer.blocks.iter().map(|block| block.get()).collect()
    }

    #[test]
    fn the_body_holds_messages_and_tools_verbatim() {
        let request = Request {
            attempt: 1,
            kind: Kind::Primary,
            entry: "main".into(),
            wire: Wire::Anthropic,
            base_url: "http://x".into(),
            model: "a \"model\"".into(),
            max_tokens: 7,
            messages: vec![Message { role: Role::User, content: json::parse(r#"[ {"n":1.10, "type":"x"}]"#).unwrap() }],
            tools: json::parse(r#"[{"name":"t","input_schema":{"b":1,"a":2}}]"#).unwrap(),
            normalized: None,
            compaction: false,
        };
        assert_eq!(
            Wire::Anthropic.body(&request, None),
            r#"{"model":"a \"model\"","max_tokens":7,"messages":[{"role":"user","content":[ {"n":1.10, "type":"x"}]}],"#
                .to_owned() + r#""tools":[{"name":"t","input_schema":{"b":1,"a":2}}]}"#
        );
    }

    #[test]
    fn blocks_pass_verbatim() {
        let a = r#"{"type":"thinking","signature":"s", "n":12345678901234567890123}"#;
        let b = r#"{"input":{"b":1.10,"a":"\u00e9\ud800"},"name":"t","id":"tu_1","type":"tool_use"}"#;
        let got = read(&format!(r#"{{"content":[{a},{b}],"stop_reason":"tool_use"}}"#)).unwrap();
        assert_eq!(texts(&got), [a, b]);
        assert_eq!((got.truncated, got.usage), (None, None));
        assert!(read(r#"{"content":[]}"#).unwrap().blocks.is_empty());
    }

    #[test]
    fn a_half_received_tool_use_is_dropped() {
        let text = r#"{"type":"text","text":"hm"}"#;
        let whole = r#"{"type":"tool_use","id":"a","name":"t","input":{}}"#;
        let got = read(&format!(
            r#"{{"content":[{text},{whole},{{"type":"tool_use","id":"b"}}],"stop_reason":"max_tokens"}}"#
        ))
        .unwrap();
        assert_eq!(texts(&got), [text, whole]);
        assert_eq!(got.truncated, Some("stop_reason max_tokens"));
        let got = read(&format!(r#"{{"content":[{whole},{text}],"stop_reason":"max_tokens"}}"#)).unwrap();
        assert_eq!(texts(&got), [whole, text], "only a trailing one can be incomplete");
    }

    #[test]
    fn tool_uses_get_what_they_lack() {
        for (members, block, broken) in [
            (r#""name":"t","input":{}"#, r#"{"type":"tool_use","name":"t","input":{},"id":"call_0"}"#, false),
            (r#""id":"","name":"t","input":{}"#, r#"{"type":"tool_use","name":"t","input":{},"id":"call_0"}"#, false),
            (r#""id":"a","name":"t""#, r#"{"type":"tool_use","name":"t","id":"a","input":{}}"#, false),
            (r#""id":"a","name":"t","input":null"#, r#"{"type":"tool_use","name":"t","id":"a","input":{}}"#, false),
            (r#""id":"a","name":"t","input":"{""#, r#"{"type":"tool_use","name":"t","id":"a","input":{}}"#, true),
            (r#""id":"a","name":"t","input":[1]"#, r#"{"type":"tool_use","name":"t","id":"a","input":{}}"#, true),
        ] {
            let got = read(&format!(r#"{{"content":[{{"type":"tool_use",{members}}}]}}"#)).unwrap();
            assert_eq!((texts(&got), got.broken.len()), (vec![block], usize::from(broken)), "{members}");
        }
    }

    #[test]
    fn unusable_answers_are_refused_without_quoting_them() {
        let tool = |members: &str| format!(r#"{{"content":[{{"type":"tool_use",{members}}}]}}"#);
        for (body, why) in [
            ("[]".to_owned(), "the body is not an object"),
            (r#"{"type":"error","error":{"message":"SECRET"}}"#.into(), "`content` is missing or not an array"),
            (r#"{"content":"SECRET"}"#.into(), "`content` is missing or not an array"),
            (r#"{"content":["SECRET"]}"#.into(), "content block 0 is not an object"),
            (r#"{"content":[{"text":"SECRET"}]}"#.into(), "content block 0 has no string `type`"),
            (r#"{"content":[{"type":"text","text":1}]}"#.into(), "text block 0 has no string `text`"),
            (tool(r#""id":"SECRET","input":{}"#), "tool_use block 0 has no string `name`"),
            (
                r#"{"content":[{"type":"tool_use","id":"\u0061","name":"t","input":{}},{"type":"tool_use","id":"a","name":"t","input":{}}]}"#.into(),
                "tool_use block 1 repeats the `id` of another one",
            ),
        ] {
            assert_eq!(read(&body).unwrap_err(), format!("invalid answer: {why}"), "{body}");
        }
    }

    #[test]
    fn usage_is_whole_or_nothing() {
        for (usage, expected) in [
            (r#"{"input_tokens":5,"output_tokens":7}"#, Some((5, 7))),
            (
                r#"{"input_tokens":5,"cache_read_input_tokens":10,"cache_creation_input_tokens":100,"output_tokens":7}"#,
                Some((115, 7)),
            ),
            (r#"{"input_tokens":5,"cache_read_input_tokens":null,"output_tokens":0}"#, Some((5, 0))),
            (r#"{"input_tokens":5}"#, None),
            (r#"{"input_tokens":5.5,"output_tokens":7}"#, None),
            (r#"{"input_tokens":-5,"output_tokens":7}"#, None),
            (r#"{"input_tokens":"5","output_tokens":7}"#, None),
            ("null", None),
        ] {
            let got = read(&format!(r#"{{"content":[],"usage":{usage}}}"#)).unwrap().usage;
            assert_eq!(got.map(|u| (u.input_tokens, u.output_tokens)), expected, "{usage}");
        }
    }
}
