//! The session's peers: what clients declare and send, what providers and tools answer. Texts that a careless pass
//! would change are in all of it: number texts, escapes, spaces, key order.

use crate::script::{Answer, Block, Mcp};
use engine::event::payload::CommandOutput;
use engine::ids::SandboxId;
use engine::json::{self, Raw};
use engine::provider::{Entry, Wire};
use engine::round::{Dispatch, ToolUse};
use engine::toolbox::{McpTool, Toolbox};
use engine::tools::Declarations;
use engine::turn::{McpReply, Reply, SandboxReply};
use std::fmt::Write;

/// Blocks and strings of clients' messages.
pub(crate) const MESSAGES: [&str; 4] = [
    r#""hello""#,
    r#""caf\u00e9 \u0000 \ud83d\ude00 \/""#,
    r#"[{"type":"text","text":"look"},{"type":"image","z":1.10,"a":12345678901234567890123,"e":1e400}]"#,
    r#"[{"type": "text", "text": "spaced \u00e9", "b": 1.0, "a": [ ]}]"#,
];

/// Members of client results, after type and id.
pub(crate) const RESULTS: [&str; 4] = [
    r#","content":"ok \u0000""#,
    r#","content":[{"type":"text","text":"r\u00e9"},{"type":"text","text":"j","n":1.10,"big":12345678901234567890123}]"#,
    "",
    r#","is_error":true,"content":[],"extra":{"b":1.10,"a":null}"#,
];

const TEXTS: [&str; 4] = [r#""answer""#, r#""\u00e9\n\u0000 \"quoted\"""#, r#""a\/b""#, r#""1.10""#];

const INPUTS: [&str; 5] = [
    "{}",
    r#"{"z":1.10,"a":12345678901234567890123,"s":"\u00e9\u0000","a":{"n":1e400}}"#,
    r#"{ "command" : "ls \u002d" }"#,
    r#"{"harness":"claude","model":"m\u0020'","prompt":"do \u00e9"}"#,
    r#"{"harness":"claude","model":"m","prompt":"p"}"#,
];

const CONTENTS: [&str; 4] = [
    r#"[{"type":"text","text":"done \u00e9"}]"#,
    r#"[{"type":"text","text":"j","n":1.10,"big":12345678901234567890123}]"#,
    "[]",
    r#""plain \u0000""#,
];

/// A schema whose text no careless pass leaves alone.
pub(crate) const SCHEMA: &str =
    r#"{"type":"object","z":1.10,"properties":{"command":{"type":"string"}},"required":["command"],"a":1e400}"#;

/// The tools of one client at one time.
pub(crate) fn toolbox(variant: usize) -> Toolbox {
    let tool = |name: &str| format!(r#"{{"name":"{name}","input_schema":{SCHEMA}}}"#);
    let subagents = r#"{"name":"sub","image":"img","subagents":[{"harness":"claude","command_template":"c {model}","prompt_via":"stdin"}]}"#;
    let (tools, sandbox, subagents) = match variant {
        0 => (vec!["c1", "c2"], vec!["run"], subagents),
        1 => (vec!["c1", "run"], vec![], subagents),
        // A client's own tool hides an MCP server's and a subagent's.
        2 => (vec!["c2", "m1", "sub"], vec!["run"], subagents),
        _ => (vec![], vec![], ""),
    };
    let list = |names: Vec<&str>| names.into_iter().map(tool).collect::<Vec<_>>().join(",");
    let text = format!(
        r#"{{"v":1,"tools":[{}],"sandbox_tools":[{}],"subagent_tools":[{subagents}]}}"#,
        list(tools),
        list(sandbox)
    );
    let declared = Declarations::load(&text).unwrap_or_else(|error| panic!("{error}"));
    let schema = json::parse(SCHEMA).unwrap();
    let mcp = ["m1", "m2"].map(|name| McpTool {
        server: "srv".into(),
        name: name.into(),
        description: None,
        input_schema: schema.clone(),
    });
    Toolbox::new(declared, &mcp, 0)
}

/// The names of those tools, as a model must be offered them.
pub(crate) fn offered(variant: usize) -> &'static [&'static str] {
    match variant {
        0 => &["c1", "c2", "run", "sub", "m1", "m2"],
        1 => &["c1", "run", "sub", "m1", "m2"],
        2 => &["c2", "m1", "sub", "run", "m2"],
        _ => &["m1", "m2"],
    }
}

/// The profile's providers.
pub(crate) fn entries(wires: &[Wire]) -> Vec<Entry> {
    let entry = |(i, wire): (usize, &Wire)| Entry {
        name: format!("p{i}"),
        wire: *wire,
        base_url: format!("http://p{i}"),
        model: format!("model-{i}"),
        max_tokens: if i == 1 { 9_000 } else { 100 },
    };
    wires.iter().enumerate().map(entry).collect()
}

/// What a provider of that format makes of an answer; `ask` numbers the round trips of the session.
pub(crate) fn reply(answer: &Answer, wire: Wire, ask: usize) -> Reply {
    let body = |text: String| Some(json::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}")));
    match answer {
        Answer::Blocks(blocks, usage) => {
            Reply { status: Some(200), body: body(answer_body(blocks, *usage, false, wire, ask)), error: None }
        }
        Answer::Cut(blocks, usage) => {
            Reply { status: Some(200), body: body(answer_body(blocks, *usage, true, wire, ask)), error: None }
        }
        Answer::Garbage => Reply { status: Some(200), body: body(r#"{"weird":1.10}"#.into()), error: None },
        Answer::NotJson => Reply { status: Some(200), body: None, error: None },
        Answer::Fails(status) => Reply {
            status: *status,
            body: status.and_then(|_| body(r#"{"error":{"type":"x"}}"#.into())),
            error: Some("provider \"failed\"".into()),
        },
    }
}

fn answer_body(blocks: &[Block], usage: Option<u64>, cut: bool, wire: Wire, ask: usize) -> String {
    let id = |i: usize, reused: bool| if reused { format!("tu_same_{i}") } else { format!("tu_{ask}_{i}") };
    match wire {
        Wire::Anthropic => {
            let mut content: Vec<String> = blocks
                .iter()
                .enumerate()
                .map(|(i, block)| match block {
                    Block::Text(t) => format!(r#"{{"type": "text", "text": {}}}"#, TEXTS[*t]),
                    Block::Other => r#"{"type":"thinking","n":1.10,"dispatch":"kept"}"#.to_owned(),
                    Block::Use { tool, input, reused } => format!(
                        r#"{{"dispatch":"model","type":"tool_use","id":"{}","name":"{tool}","input":{},"caller":{{"type":"direct"}}}}"#,
                        id(i, *reused),
                        INPUTS[*input]
                    ),
                })
                .collect();
            if cut {
                content.push(r#"{"type":"tool_use","id":"tu_half","name":"c1","input":{}}"#.to_owned());
            }
            let usage = usage.map_or_else(|| "null".to_owned(), |total| {
                format!(
                    r#"{{"input_tokens":{},"cache_read_input_tokens":3,"cache_creation_input_tokens":2,"output_tokens":7}}"#,
                    total - 12
                )
            });
            let stop = if cut { "max_tokens" } else { "end_turn" };
            format!(
                "{{\n \"content\":[{}],\r\n\"stop_reason\":\"{stop}\",\"usage\":{usage},\"cost\":1.10}}",
                content.join(" ,")
            )
        }
        Wire::OpenAi => {
            let (mut text, mut calls) = (String::from("null"), Vec::new());
            for (i, block) in blocks.iter().enumerate() {
                match block {
                    Block::Text(t) => text = TEXTS[*t].to_owned(),
                    Block::Other => {}
                    Block::Use { tool, input, reused } => calls.push(call(&id(i, *reused), tool, INPUTS[*input])),
                }
            }
            if cut {
                calls.push(call("tu_half", "c1", "{\"a\":"));
            }
            let mut members = format!(r#""role":"assistant","content":{text}"#);
            if !calls.is_empty() {
                let _ = write!(members, r#","tool_calls":[{}]"#, calls.join(","));
            }
            let usage = usage.map_or_else(
                || "null".to_owned(),
                |total| format!(r#"{{"prompt_tokens":{},"completion_tokens":7,"total_tokens":{total}}}"#, total - 7),
            );
            let finish = if cut { "length" } else { "stop" };
            format!(r#"{{"choices":[{{"message":{{{members}}},"finish_reason":"{finish}"}}],"usage":{usage}}}"#)
        }
    }
}

fn call(id: &str, tool: &str, input: &str) -> String {
    let arguments = crate::read::quoted(input);
    format!(r#"{{"id":"{id}","type":"function","function":{{"name":"{tool}","arguments":{arguments}}}}}"#)
}

/// What an MCP server answers.
pub(crate) fn mcp_reply(outcome: Mcp) -> McpReply {
    let raw = |text: &str| -> Raw { json::parse(text).unwrap() };
    match outcome {
        Mcp::Works(i) => McpReply::Result {
            result: raw(&format!(r#"{{"content":{},"n":1.10}}"#, CONTENTS[i])),
            is_error: false,
            content: raw(CONTENTS[i]),
        },
        Mcp::SaysError => McpReply::Result {
            result: raw(r#"{"isError":true,"content":[]}"#),
            is_error: true,
            content: raw(r#"[{"type":"text","text":"no such file"}]"#),
        },
        Mcp::Fails => McpReply::Failed("the server went away".into()),
    }
}

/// What came of a command in the session's sandbox, where an MCP tool would have answered so.
pub(crate) fn sandbox_reply(outcome: Mcp) -> SandboxReply {
    let sandbox = SandboxId([8; 16]);
    let ran = |stdout: &str, stderr: &str, exit_code| {
        let (stdout, stderr) = (stdout.to_owned(), stderr.to_owned());
        SandboxReply::Ran(sandbox, CommandOutput { stdout, stderr, exit_code })
    };
    match outcome {
        Mcp::Works(0) => SandboxReply::NotRunning,
        Mcp::Works(i) => ran(CONTENTS[i], "", 0),
        Mcp::SaysError => ran("some \0", "no such \"file\"\n", 2),
        Mcp::Fails => SandboxReply::Failed(sandbox, "it took longer than 60 s".into()),
    }
}

/// A client's result for one of its uses.
pub(crate) fn result(id: &str, variant: usize) -> String {
    format!(r#"{{"type":"tool_result","tool_use_id":{}{}}}"#, crate::read::quoted(id), RESULTS[variant % RESULTS.len()])
}

/// Whether the client runs it.
pub(crate) fn is_client(one: &ToolUse) -> bool {
    one.dispatch == Dispatch::Client
}
