//! OpenAI's answers as blocks (docs/api.md 5.1, 5.6; F14).

use crate::json::{self, Object, Raw};
use crate::provider::{Answer, ToolUses, Usage, invalid, is_string, tokens};
use serde_json::value::RawValue;
use std::collections::HashSet;

/// Reads the body of a response as blocks: the text, a refusal as text, then the tool uses. The input of a tool use is
/// the JSON text of `arguments`, unchanged except for line breaks between its tokens.
///
/// Missing, null or blank `arguments` mean a call without arguments, `{}`; some gateways send an object instead of its
/// text. Other arguments are broken. An answer that the token limit cut off may end in an incomplete tool call, so its last
/// call is dropped, and also others whose arguments are broken (F14).
///
/// # Errors
/// `invalid answer: …` with the reason, if the answer cannot be used.
pub fn answer(body: &RawValue) -> Result<Answer, String> {
    let body = Object::parse(body).ok_or_else(|| invalid("the body is not an object"))?;
    let choices = body.get("choices").and_then(json::array);
    let choice = choices.and_then(|choices| choices.first().copied().and_then(Object::parse));
    let choice = choice.ok_or_else(|| invalid("`choices` holds no object"))?;
    let message = choice.get("message").and_then(Object::parse);
    let message = message.ok_or_else(|| invalid("the choice has no object `message`"))?;
    let cut = choice.str("finish_reason").as_deref() == Some("length");
    let mut blocks = Vec::new();
    for key in ["content", "refusal"] {
        match present(&message, key) {
            None => {}
            Some(parts) if parts.get().starts_with('[') => blocks.extend(texts_of(parts)),
            Some(text) if !is_string(text) => return Err(invalid(format_args!("`{key}` is not a string"))),
            Some(text) if json::string(text).is_some_and(|text| text.trim().is_empty()) => {}
            Some(text) => blocks.push(json::built(format!(r#"{{"type":"text","text":{text}}}"#))),
        }
    }
    let calls = match present(&message, "tool_calls") {
        None => Vec::new(),
        Some(calls) => json::array(calls).ok_or_else(|| invalid("`tool_calls` is not an array"))?,
    };
    let whole = calls.len().saturating_sub(usize::from(cut));
    let (mut seen, mut broken) = (ToolUses::default(), HashSet::new());
    for (i, call) in calls.into_iter().take(whole).enumerate() {
        match tool_use(i, call, &mut seen)? {
            (_, _, true) if cut => {}
            (id, block, is_broken) => {
                blocks.push(block);
                if is_broken {
                    broken.insert(id);
                }
            }
        }
    }
    Ok(Answer { blocks, broken, truncated: cut.then_some("finish_reason length"), usage: usage(&body) })
}

/// The member, unless it is null.
fn present<'a>(object: &Object<'a>, key: &str) -> Option<&'a RawValue> {
    object.get(key).filter(|value| value.get() != "null")
}

/// The texts of a content that came as a list of parts.
fn texts_of(parts: &RawValue) -> Vec<Raw> {
    let parts = json::array(parts).unwrap_or_default().into_iter().filter_map(Object::parse);
    let texts = parts.filter_map(|part| part.get("text").filter(|text| is_string(text)));
    let said = texts.filter(|text| json::string(text).is_none_or(|text| !text.trim().is_empty()));
    said.map(|text| json::built(format!(r#"{{"type":"text","text":{text}}}"#))).collect()
}

/// The id and the block of a tool call, and whether its arguments are broken.
fn tool_use(i: usize, call: &RawValue, seen: &mut ToolUses) -> Result<(String, Raw, bool), String> {
    let call = Object::parse(call).ok_or_else(|| invalid(format_args!("tool call {i} is not an object")))?;
    let function = call.get("function").and_then(Object::parse);
    let function = function.ok_or_else(|| invalid(format_args!("tool call {i} has no object `function`")))?;
    let arguments = match present(&function, "arguments") {
        None => Some(json::built("{}".into())),
        Some(text) if is_string(text) => json::string(text).and_then(|text| arguments_object(&text)),
        Some(value) => arguments_object(value.get()),
    };
    let id = seen.check("tool call", i, call.str("id").as_deref(), function.str("name").as_deref())?;
    let (sent_id, name) = (json::encode(&id), json::encode(&function.str("name")));
    let broken = arguments.is_none();
    let input = arguments.unwrap_or_else(|| json::built("{}".into()));
    Ok((id, json::built(format!(r#"{{"type":"tool_use","id":{sent_id},"name":{name},"input":{input}}}"#)), broken))
}

/// The text of the arguments as one line of JSON, if they are an object.
fn arguments_object(text: &str) -> Option<Raw> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    // The text is parsed before line breaks are removed, because one inside a string makes it invalid.
    let raw = json::parse(text).ok().filter(|raw| raw.get().starts_with('{'))?;
    match json::one_line(raw.get()) {
        std::borrow::Cow::Borrowed(_) => Some(raw),
        std::borrow::Cow::Owned(line) => Some(json::built(line)),
    }
}

fn usage(body: &Object<'_>) -> Option<Usage> {
    let usage = Object::parse(body.get("usage")?)?;
    Some(Usage { input_tokens: tokens(&usage, "prompt_tokens")?, output_tokens: tokens(&usage, "completion_tokens")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &str, finish: &str) -> Result<Answer, String> {
        let text = format!(r#"{{"choices":[{{"message":{message},"finish_reason":"{finish}"}}]}}"#);
        answer(&json::parse(&text).unwrap())
    }

    fn call(id: &str, arguments: &str) -> String {
        let arguments = json::encode(arguments);
        format!(r#"{{"id":"{id}","type":"function","function":{{"name":"t","arguments":{arguments}}}}}"#)
    }

    fn texts(answer: &Answer) -> Vec<&str> {
        answer.blocks.iter().map(|block| block.get()).collect()
    }

    #[test]
    fn answers_become_blocks() {
        let message = format!(
            r#"{{"content":"h\u00e9","refusal":"no","tool_calls":[{},{}]}}"#,
            call("a", "{\n \"b\" : 1.10,\"a\":\"\\u00e9\"}"),
            call("b", "")
        );
        let got = read(&message, "tool_calls").unwrap();
        assert_eq!(
            texts(&got),
            [
                r#"{"type":"text","text":"h\u00e9"}"#,
                r#"{"type":"text","text":"no"}"#,
                r#"{"type":"tool_use","id":"a","name":"t","input":{ "b" : 1.10,"a":"\u00e9"}}"#,
                r#"{"type":"tool_use","id":"b","name":"t","input":{}}"#,
            ]
        );
        assert_eq!(got.truncated, None);
        for empty in [r#"{"content":null,"tool_calls":null}"#, r#"{"content":"","refusal":null}"#, "{}"] {
            assert!(read(empty, "stop").unwrap().blocks.is_empty(), "{empty}");
        }
    }

    #[test]
    fn half_received_calls_are_dropped() {
        let message = format!(
            r#"{{"tool_calls":[{},{},{},{{"id":"d"}}]}}"#,
            call("a", "{}"),
            call("b", "{\"x\":"),
            call("c", "[]")
        );
        let got = read(&message, "length").unwrap();
        assert_eq!(texts(&got), [r#"{"type":"tool_use","id":"a","name":"t","input":{}}"#]);
        assert_eq!(got.truncated, Some("finish_reason length"));
        let whole = format!(r#"{{"tool_calls":[{}]}}"#, call("a", "{}"));
        assert!(read(&whole, "length").unwrap().blocks.is_empty());
    }

    #[test]
    fn tool_calls_get_what_they_lack() {
        for (function, id, input, broken) in [
            (r#""arguments":{"a":1.10}"#, "", r#"{"a":1.10}"#, false),
            (r#""arguments":null"#, r#""id":null,"#, "{}", false),
            (r#""arguments":"SECRET""#, r#""id":"","#, "{}", true),
            (r#""arguments":"{\"a\":\"line\nbreak\"}""#, "", "{}", true),
            (r#""arguments":"[1]""#, "", "{}", true),
            (r#""arguments":7"#, "", "{}", true),
        ] {
            let got =
                read(&format!(r#"{{"tool_calls":[{{{id}"function":{{"name":"t",{function}}}}}]}}"#), "stop").unwrap();
            let block = format!(r#"{{"type":"tool_use","id":"call_0","name":"t","input":{input}}}"#);
            assert_eq!((texts(&got), got.broken.contains("call_0")), (vec![block.as_str()], broken), "{function}");
        }
    }

    #[test]
    fn content_may_be_a_list_of_parts() {
        let content =
            r#"[{"type":"text","text":"a"},{"type":"text","text":" "},{"type":"thinking"},{"type":"text","text":"b"}]"#;
        let got = read(&format!(r#"{{"content":{content}}}"#), "stop").unwrap();
        assert_eq!(texts(&got), [r#"{"type":"text","text":"a"}"#, r#"{"type":"text","text":"b"}"#]);
    }

    #[test]
    fn unusable_answers_are_refused_without_quoting_them() {
        let calls = |calls: &str| format!(r#"{{"tool_calls":[{calls}]}}"#);
        for (message, why) in [
            ("\"SECRET\"".to_owned(), "the choice has no object `message`"),
            (r#"{"content":{"a":"SECRET"}}"#.into(), "`content` is not a string"),
            (r#"{"tool_calls":{"a":"SECRET"}}"#.into(), "`tool_calls` is not an array"),
            (calls("1"), "tool call 0 is not an object"),
            (calls(r#"{"id":"SECRET"}"#), "tool call 0 has no object `function`"),
            (calls(r#"{"id":"SECRET","function":{}}"#), "tool call 0 has no string `name`"),
            (calls(&format!("{},{}", call("S", "{}"), call("S", "{}"))), "tool call 1 repeats the `id` of another one"),
        ] {
            assert_eq!(read(&message, "stop").unwrap_err(), format!("invalid answer: {why}"), "{message}");
        }
        for body in ["{}", r#"{"choices":[]}"#, r#"{"choices":["SECRET"]}"#, r#"{"error":{"message":"SECRET"}}"#] {
            assert_eq!(answer(&json::parse(body).unwrap()).unwrap_err(), "invalid answer: `choices` holds no object");
        }
    }

    #[test]
    fn usage_is_whole_or_nothing() {
        for (usage, expected) in [
            (r#"{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}"#, Some((5, 7))),
            (r#"{"prompt_tokens":5}"#, None),
            (r#"{"prompt_tokens":5,"completion_tokens":1e3}"#, None),
            ("null", None),
        ] {
            let body = format!(r#"{{"choices":[{{"message":{{}}}}],"usage":{usage}}}"#);
            let got = answer(&json::parse(&body).unwrap()).unwrap().usage;
            assert_eq!(got.map(|u| (u.input_tokens, u.output_tokens)), expected, "{usage}");
        }
    }
}
