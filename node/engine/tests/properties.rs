//! Properties of everything that reads what others wrote: client bodies, content blocks, provider bodies, templates.
//!
//! The normal run tries 2,000 cases of each; a long one is
//! `PROPTEST_CASES=200000 cargo test -p engine --test properties`.

#![allow(clippy::unwrap_used)]

use engine::json::{self, Object, Raw};
use engine::message::{Message, Role};
use engine::open::{parse_join, parse_open};
use engine::provider::Wire;
use engine::request::{Kind, Request};
use engine::subagent::{Room, launch, template};
use engine::tools::Declarations;
use engine::tools::subagent::{PromptVia, SubagentTool};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;
use std::collections::HashSet;

fn config() -> ProptestConfig {
    let long = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if long { default } else { ProptestConfig { cases: 2_000, ..default } }
}

/// A word that no error about a provider's answer may repeat.
const SECRET: &str = "SECRET";

/// Member names that the parsers look at, and some that they do not.
const KEYS: &[&str] = &[
    "type",
    "text",
    "id",
    "name",
    "input",
    "content",
    "tool_use_id",
    "is_error",
    "stop_reason",
    "finish_reason",
    "usage",
    "input_tokens",
    "output_tokens",
    "prompt_tokens",
    "completion_tokens",
    "choices",
    "message",
    "tool_calls",
    "function",
    "arguments",
    "refusal",
    "tools",
    "sandbox_tools",
    "subagent_tools",
    "compaction",
    "mode",
    "size",
    "prompt",
    "image",
    "subagents",
    "harness",
    "command_template",
    "prompt_via",
    "timeout_secs",
    "description",
    "input_schema",
    "required",
    "properties",
    "command",
    "client_version",
    "model",
    "cache_read_input_tokens",
    "x",
    "dispatch",
    "ty\\u0070e",
    "\\ud800",
];

/// JSON texts of values without parts, ordinary ones and the ones that break things.
const SCALARS: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1000",
    "999",
    "1.10",
    "1e999",
    "-0",
    "12345678901234567890123",
    "\"\"",
    "\" \"",
    "\"text\"",
    "\"tool_use\"",
    "\"tool_result\"",
    "\"thinking\"",
    "\"max_tokens\"",
    "\"length\"",
    "\"auto\"",
    "\"client\"",
    "\"stdin\"",
    "\"arg\"",
    "\"string\"",
    "\"command\"",
    "\"remote_subagent_status\"",
    "\"SECRET\"",
    "\"a\"",
    "\"b\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\\n\\\"\\\\\"",
    "\"é🙂\"",
    "\"{\\\"a\\\":1}\"",
    "\"{\\n\\\"a\\\" : [] }\"",
    "\"{\\\"a\\\"\"",
    "\"c {model}\"",
    "\"c ${model} {prompt} {x}\"",
    "{}",
    "[]",
];

/// Any JSON text, often of a shape that gets far into the parsers.
fn any_json() -> impl Strategy<Value = String> {
    let key = select(KEYS);
    select(SCALARS).prop_map(str::to_owned).prop_recursive(5, 48, 6, move |inner| {
        let space = select(&["", "", "", " ", "\n", "\r\n\t"][..]);
        let members = proptest::collection::vec((key.clone(), inner.clone()), 0..6);
        prop_oneof![
            (members, space).prop_map(|(members, space)| {
                let members: Vec<_> = members.iter().map(|(k, v)| format!("\"{k}\":{space}{v}")).collect();
                format!("{{{}{space}}}", members.join(","))
            }),
            proptest::collection::vec(inner, 0..5).prop_map(|elements| format!("[{}]", elements.join(","))),
        ]
    })
}

/// A JSON object on one line.
fn any_object() -> impl Strategy<Value = String> {
    (select(KEYS), any_json()).prop_map(|(key, value)| json::one_line(&format!("{{\"{key}\": {value}}}")).into_owned())
}

const BODIES: &[&str] = &[
    r#"{"client_version":"1","tools":[{"name":"a","description":"d","input_schema":{"type":"object"}}],"sandbox_tools":[{"name":"b","input_schema":{"properties":{"command":{"type":"string"}},"required":["command"]}}],"subagent_tools":[{"name":"c","image":"i","subagents":[{"harness":"h","command_template":"x {model}","prompt_via":"stdin","timeout_secs":5}]}],"compaction":{"mode":"auto","size":5000}}"#,
    r#"{"tools":[{"name":"a"}],"compaction":{"mode":"client","prompt":"p"}}"#,
    r#"{"content":[{"type":"text","text":"SECRET"},{"type":"tool_use","id":"a","name":"n","input":{"k":1.10}}],"stop_reason":"max_tokens","usage":{"input_tokens":1,"cache_read_input_tokens":null,"output_tokens":2}}"#,
    r#"{"choices":[{"message":{"content":"SECRET","refusal":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"n","arguments":"{\"k\":1.10}"}},{"id":"b","function":{"name":"n","arguments":""}}]},"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
    r#"[{"type":"text","text":"t"},{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"r"},{"type":"image"}],"is_error":true},{"type":"tool_use","id":"a","name":"n","input":{}}]"#,
    r#"{"harness":"claude","model":"m","prompt":"p"}"#,
];

/// One of the bodies above, damaged: a stretch replaced with some other text or value.
fn damaged() -> impl Strategy<Value = String> {
    let patch = prop_oneof![select(SCALARS).prop_map(str::to_owned), "[\\x00-\\x7fé]{0,3}", any_json()];
    (select(BODIES), proptest::collection::vec((any::<prop::sample::Index>(), 0..12_usize, patch), 0..4)).prop_map(
        |(body, patches)| {
            let mut text: Vec<char> = body.chars().collect();
            for (at, len, patch) in patches {
                let at = at.index(text.len() + 1);
                let end = (at + len).min(text.len());
                text.splice(at..end, patch.chars());
            }
            text.into_iter().collect()
        },
    )
}

/// One of the bodies above with one of its values exchanged for another, so that it stays JSON.
fn exchanged() -> impl Strategy<Value = String> {
    let value = prop_oneof![2 => select(SCALARS).prop_map(str::to_owned), 1 => any_json()];
    (select(BODIES), any::<prop::sample::Index>(), value).prop_map(|(body, at, value)| {
        let starts: Vec<_> = body.match_indices("\":").map(|(i, _)| i + 2).collect();
        let start = starts[at.index(starts.len())];
        let mut old = serde_json::Deserializer::from_str(&body[start..]).into_iter::<serde::de::IgnoredAny>();
        let _ = old.next();
        format!("{}{value}{}", &body[..start], &body[start + old.byte_offset()..])
    })
}

/// A provider's body in either format whose tool uses are mostly whole.
fn answer_body() -> impl Strategy<Value = String> {
    let input = prop_oneof![
        6 => Just("{}".to_owned()),
        3 => Just("{\n\"k\": [1.10]\r\n}".to_owned()),
        1 => any_json(),
        1 => select(&["", " ", "{\"k\"", "[]", "null"][..]).prop_map(str::to_owned),
    ];
    let uses = proptest::collection::vec((select(&["a", "b", "c", "d", "e", "f"][..]), input), 0..4);
    (uses, any::<bool>(), any::<bool>()).prop_map(|(uses, openai, cut)| {
        let uses: Vec<_> = uses
            .iter()
            .map(|(id, input)| {
                if openai {
                    let input = json::encode(input);
                    format!(r#"{{"id":"{id}","function":{{"name":"n","arguments":{input}}}}}"#)
                } else {
                    let input = if json::parse(input).is_ok() { input } else { "1" };
                    format!(r#"{{"type":"tool_use","id":"{id}","name":"n","input":{input}}}"#)
                }
            })
            .collect();
        let uses = uses.join(",");
        if openai {
            let finish = if cut { "length" } else { "tool_calls" };
            format!(
                r#"{{"choices":[{{"message":{{"content":"t","tool_calls":[{uses}]}},"finish_reason":"{finish}"}}]}}"#
            )
        } else {
            format!(r#"{{"content":[{uses}],"stop_reason":"{}"}}"#, if cut { "max_tokens" } else { "tool_use" })
        }
    })
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => any_json().prop_map(String::into_bytes),
        4 => exchanged().prop_map(String::into_bytes),
        4 => damaged().prop_map(String::into_bytes),
        4 => answer_body().prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..64),
    ]
}

fn request(wire: Wire, messages: Vec<Message>, tools: Raw) -> Request {
    Request {
        attempt: 1,
        kind: Kind::Primary,
        entry: "main".into(),
        wire,
        base_url: "http://x".into(),
        model: "m".into(),
        max_tokens: 1,
        messages,
        tools,
        normalized: None,
        compaction: false,
    }
}

fn subagent_tool() -> SubagentTool {
    serde_json::from_str(
        r#"{"name":"l","image":"i","subagents":[{"harness":"claude","command_template":"c {model} {prompt}","prompt_via":"arg"},
            {"harness":"a","command_template":"c {model}","prompt_via":"stdin"}]}"#,
    )
    .unwrap()
}

fn check_client_body(bytes: &[u8]) -> Result<(), TestCaseError> {
    for declared in [parse_open(bytes).map(|open| open.declared), parse_join(bytes)] {
        let declared = match declared {
            Ok(declared) => declared,
            Err(refusal) => {
                prop_assert!(matches!(refusal, engine::open::Refusal::BadRequest(_)), "{refusal:?}");
                continue;
            }
        };
        if let Ok(declarations) = declared.check(&["a".into(), "b".into(), "text".into()]) {
            let stored = declarations.store();
            prop_assert!(!stored.contains(['\n', '\r']));
            prop_assert_eq!(&Declarations::load(&stored).unwrap().store(), &stored);
            let offered: Vec<Raw> = declarations.each().map(|tool| tool.offered()).collect();
            let offered = json::join(offered.iter().map(|tool| &**tool));
            check_request(Vec::new(), &offered)?;
        }
    }
    Ok(())
}

/// Whatever the history, both formats send one line of JSON.
fn check_request(messages: Vec<Message>, tools: &Raw) -> Result<(), TestCaseError> {
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let body = wire.body(&request(wire, messages.clone(), Raw::clone(tools)), None);
        prop_assert!(json::parse(&body).is_ok(), "{}", body);
        prop_assert!(!body.contains(['\n', '\r']), "{}", body);
    }
    Ok(())
}

fn check_answer(raw: &Raw) -> Result<(), TestCaseError> {
    for wire in [Wire::Anthropic, Wire::OpenAi] {
        let answer = match wire.answer(raw) {
            Ok(answer) => answer,
            Err(text) => {
                prop_assert!(text.starts_with("invalid answer: ") && text.len() < 100, "{}", text);
                prop_assert!(!text.contains(SECRET), "{}", text);
                continue;
            }
        };
        let mut ids = HashSet::new();
        for block in &answer.blocks {
            let block = Object::parse(block).unwrap();
            if block.str("type").unwrap() == "tool_use" {
                prop_assert!(ids.insert(block.str("id").unwrap().into_owned()));
                let object = block.get("input").unwrap().get().starts_with('{');
                prop_assert!(block.str("name").is_some() && object);
            }
        }
        let content = json::join(answer.blocks.iter().map(|block| &**block));
        check_request(vec![Message { role: Role::Assistant, content }], &json::built("[]".into()))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    /// Whatever arrives, nothing panics, and what is accepted is whole.
    #[test]
    fn parsers_hold(bytes in any_bytes()) {
        let text = String::from_utf8_lossy(&bytes);
        check_client_body(&bytes).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        if let Ok(whole) = json::parse(&text) {
            let raw = json::parse(&json::one_line(whole.get())).unwrap();
            check_answer(&raw).map_err(|error| TestCaseError::fail(format!("{error}: {raw}")))?;
            let both = [Role::User, Role::Assistant].map(|role| Message { role, content: Raw::clone(&raw) });
            check_request(both.to_vec(), &raw)?;
            let images = ["i".to_owned()];
            for running in [0, 1] {
                let room = Room { available_sandboxes: &images, running, max: 1 };
                let launched = launch(&raw, &subagent_tool(), room);
                prop_assert!(running == 0 || launched.is_err());
            }
        }
        let rebuilt: String = template::pieces(&text).iter().map(|piece| match piece {
            template::Piece::Text(text) | template::Piece::Unknown(text) | template::Piece::Expansion(text) => text,
            template::Piece::Model => "{model}",
            template::Piece::Prompt => "{prompt}",
        }).collect();
        prop_assert_eq!(rebuilt, text);
    }

    /// Tool arguments keep their text both ways.
    #[test]
    fn arguments_pass_verbatim(input in any_object()) {
        let block = format!(r#"{{"type":"tool_use","id":"t","name":"n","input":{input}}}"#);
        let content = json::parse(&format!("[{block}]")).unwrap();
        let sent = Wire::OpenAi.body(&request(Wire::OpenAi, vec![Message { role: Role::Assistant, content }], json::built("[]".into())), None);
        let sent: Value = serde_json::from_str(&sent).unwrap();
        let call = &sent["messages"][0]["tool_calls"][0];
        prop_assert_eq!(call["function"]["arguments"].as_str().unwrap(), &input);
        let back = json::parse(&format!(r#"{{"choices":[{{"message":{{"tool_calls":[{call}]}}}}]}}"#)).unwrap();
        let answer = Wire::OpenAi.answer(&back).unwrap();
        prop_assert_eq!(answer.blocks[0].get(), &block);
    }

    /// Blocks of an Anthropic answer, and messages and tools of a request to it, keep their text.
    #[test]
    fn anthropic_is_verbatim(values in proptest::collection::vec(any_object(), 0..4)) {
        let blocks: Vec<_> = values.iter().map(|value| format!(r#"{{"type":"odd","value":{value}}}"#)).collect();
        let content = format!("[{}]", blocks.join(","));
        let answer = Wire::Anthropic.answer(&json::parse(&format!(r#"{{"content":{content}}}"#)).unwrap()).unwrap();
        prop_assert_eq!(answer.blocks.iter().map(|block| block.get()).collect::<Vec<_>>(), blocks);
        let raw = json::parse(&content).unwrap();
        let message = Message { role: Role::User, content: Raw::clone(&raw) };
        prop_assert_eq!(
            Wire::Anthropic.body(&request(Wire::Anthropic, vec![message], raw), None),
            format!(r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":{content}}}],"tools":{content}}}"#)
        );
    }

    /// In OpenAI's format the answers to a message's tool calls follow it at once, each call with exactly one.
    #[test]
    fn tool_uses_stay_paired(rounds in proptest::collection::vec(round(), 1..5)) {
        let mut messages = Vec::new();
        for (n, (blocks, order)) in rounds.iter().enumerate() {
            let uses: Vec<_> = blocks.iter().enumerate().filter(|(_, block)| block.is_none()).map(|(i, _)| i).collect();
            let assistant: Vec<_> = blocks.iter().enumerate().map(|(i, block)| block.clone().unwrap_or_else(|| {
                format!(r#"{{"type":"tool_use","id":"t{n}_{i}","name":"n","input":{{"i":{i}}}}}"#)
            })).collect();
            let mut user: Vec<_> = uses.iter().map(|i| {
                format!(r#"{{"type":"tool_result","tool_use_id":"t{n}_{i}","content":"r{i}","is_error":{}}}"#, i % 2 == 0)
            }).collect();
            for (at, block) in order {
                user.insert(at.index(user.len() + 1), block.clone());
            }
            for (role, blocks) in [(Role::Assistant, assistant), (Role::User, user)] {
                messages.push(Message { role, content: json::parse(&format!("[{}]", blocks.join(","))).unwrap() });
            }
        }
        let body = Wire::OpenAi.body(&request(Wire::OpenAi, messages, json::built("[]".into())), None);
        let body: Value = serde_json::from_str(&body).unwrap();
        prop_assert!(body.get("tools").is_none());
        let mut open: Vec<String> = Vec::new();
        let mut answered = 0;
        for message in body["messages"].as_array().unwrap() {
            if message["role"] == "tool" {
                let id = message["tool_call_id"].as_str().unwrap();
                let at = open.iter().position(|open| open == id);
                prop_assert!(at.is_some(), "{} answers nothing", id);
                open.remove(at.unwrap());
                let i: usize = id.rsplit('_').next().unwrap().parse().unwrap();
                let expected = if i.is_multiple_of(2) { format!("[error] r{i}") } else { format!("r{i}") };
                prop_assert_eq!(message["content"].as_str().unwrap(), expected);
                answered += 1;
            } else {
                prop_assert!(open.is_empty(), "unanswered before {}", message);
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    open.push(call["id"].as_str().unwrap().to_owned());
                }
            }
        }
        prop_assert!(open.is_empty());
        prop_assert_eq!(answered, rounds.iter().flat_map(|(blocks, _)| blocks).filter(|block| block.is_none()).count());
    }

    /// A shell takes what is filled in as one word, the very text.
    #[test]
    fn quoting_reads_back(model in "[a'\\\\\"$`{} \\nmodelprompt]{0,12}", prompt in any::<String>()) {
        let got = template::render("{model} {prompt}", &model, &prompt, PromptVia::Arg);
        prop_assert_eq!(words(&got.command), vec![model.clone(), prompt.clone()]);
        let got = template::render("{model}", &model, &prompt, PromptVia::Stdin);
        prop_assert_eq!(words(&got.command), vec![model]);
        prop_assert_eq!(got.stdin, Some(prompt));
    }
}

/// An assistant's blocks, `None` for a tool use, and what the user's message has besides the results, with its places.
fn round() -> impl Strategy<Value = (Vec<Option<String>>, Vec<(prop::sample::Index, String)>)> {
    let other =
        select(&[r#"{"type":"text","text":"t"}"#, r#"{"type":"thinking","thinking":"x"}"#, r#"{"type":"image"}"#][..])
            .prop_map(str::to_owned);
    let blocks = proptest::collection::vec(prop_oneof![Just(None), other.clone().prop_map(Some)], 0..6);
    (blocks, proptest::collection::vec((any::<prop::sample::Index>(), other), 0..3))
}

/// Words of a POSIX shell, as far as quoting makes them: single quotes and escaped quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut chars = command.chars();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        let word = words.last_mut().unwrap();
        match (quoted, c) {
            (_, '\'') => quoted = !quoted,
            (true, c) => word.push(c),
            (false, '\\') => word.push(chars.next().unwrap()),
            (false, ' ') => words.push(String::new()),
            (false, c) => panic!("{c:?} outside of quotes"),
        }
    }
    assert!(!quoted);
    words
}

/// Depth and length are the provider's and the client's business: nothing here recurses with them (F15).
#[test]
fn depth_and_length_pass() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 20));
    for input in [deep, long] {
        let body = format!(r#"{{"x":{input},"tools":[{{"name":"a","y":{input},"input_schema":{input}}}]}}"#);
        let declarations = parse_open(body.as_bytes()).unwrap().declared.check(&["a".into()]).unwrap();
        assert_eq!(
            Declarations::load(&declarations.store()).unwrap().tools[0].input_schema.as_ref().unwrap().get(),
            input
        );
        let block = format!(r#"{{"type":"tool_use","id":"t","name":"n","input":{input}}}"#);
        let call = format!(r#"{{"id":"t","function":{{"name":"n","arguments":{}}}}}"#, json::encode(&input));
        for (wire, body) in [
            (Wire::Anthropic, format!(r#"{{"x":{input},"content":[{block}]}}"#)),
            (Wire::OpenAi, format!(r#"{{"x":{input},"choices":[{{"message":{{"tool_calls":[{call}]}}}}]}}"#)),
        ] {
            let answer = wire.answer(&json::parse(&body).unwrap()).unwrap();
            assert_eq!(answer.blocks[0].get(), block);
            let message = Message { role: Role::Assistant, content: json::join(answer.blocks.iter().map(|b| &**b)) };
            assert!(wire.body(&request(wire, vec![message], json::built("[]".into())), None).len() > input.len());
        }
    }
}
