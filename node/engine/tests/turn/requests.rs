//! What providers are shown: a second, plainer reading of docs/api.md 4, and the pairing of tool uses with results
//! (F14).

use crate::fixture::Fixture;
use crate::peers::SCHEMA;
use crate::read::{Fields, array, blocks, list, quoted};
use crate::script::Script;
use engine::event::{Event, EventType, Payload};
use engine::history::PREAMBLE;
use engine::json;
use engine::open::Compaction;
use engine::provider::Wire;
use engine::request::Request;
use engine::turn::Opening;

/// A message: role and content.
type Said = (String, String);

/// Index of the newest completed compaction's preamble; of the start if there is none, or its reference is broken.
pub(crate) fn start(log: &[Event]) -> usize {
    let newest = log.iter().rev().find(|e| e.event.kind == EventType::CompactionCompleted);
    let preamble = newest.map(|e| Fields::payload(e).str("preamble_event_id"));
    preamble.and_then(|id| log.iter().position(|e| e.event.id.to_string() == id)).unwrap_or(0)
}

/// Usage sum of the newest answer that is no compaction's.
pub(crate) fn usage(log: &[Event]) -> Option<u64> {
    let responses = log.iter().rev().filter(|e| e.event.kind == EventType::ProviderResponse).map(Fields::payload);
    let newest = responses.into_iter().find(|r| r.bool("ok") && !r.has("purpose"))?;
    let usage = Fields::maybe(newest.raw("usage")).filter(|_| newest.raw("usage") != "null")?;
    Some(usage.number("input_tokens")? + usage.number("output_tokens")?)
}

/// A round of tool uses: its blocks, its uses (id, whether the client's), the server's results.
#[derive(Default)]
struct Round {
    content: Vec<String>,
    uses: Vec<(String, bool)>,
    results: Vec<Option<String>>,
}

/// What the log says so far, before normalisation.
pub(crate) fn history(log: &[Event]) -> Vec<Said> {
    let mut said: Vec<Said> = Vec::new();
    let mut round: Option<Round> = None;
    for event in log[start(log)..].iter().filter(|e| e.call.is_some()) {
        if matches!(event.event.payload, Payload::Request(_)) {
            continue;
        }
        let payload = Fields::payload(event);
        match event.event.kind {
            EventType::ClientMessage => {
                round = None;
                said.push((payload.str("role"), payload.raw("content").to_owned()));
            }
            EventType::ServerMessage
                if payload.has("synthetic") && payload.is("synthetic", "abandoned_tool_results") =>
            {
                let open = round.take().expect("results of a pause");
                let mut made = payload.list("content").into_iter();
                let all = open.results.into_iter().map(|own| own.or_else(|| made.next()).expect("a result"));
                said.push(("user".into(), array(&all.collect::<Vec<_>>())));
                assert_eq!(made.next(), None, "more made-up results than open uses");
            }
            EventType::ServerMessage => said.push((payload.str("role"), strip(payload.raw("content")))),
            EventType::ProviderResponse if payload.bool("ok") && !payload.has("purpose") => {
                let wire = if payload.is("provider", "openai") { Wire::OpenAi } else { Wire::Anthropic };
                let answer = wire.answer(&json::parse(payload.raw("body")).unwrap()).expect("logged as ok");
                let content: Vec<String> = answer.blocks.iter().map(|block| block.get().to_owned()).collect();
                round = Some(Round { content, ..Round::default() });
            }
            EventType::ToolCall => {
                let open = round.as_mut().expect("an answer");
                open.uses.push((payload.str("id"), payload.is("dispatch", "client")));
                open.results.push(None);
            }
            EventType::ToolResult => {
                let Some(open) = &mut round else { continue };
                let place = open.uses.iter().position(|(id, _)| payload.is("tool_use_id", id)).expect("a use");
                open.results[place] = Some(block(&payload));
                if open.results.iter().all(Option::is_some) {
                    let open = round.take().expect("open");
                    said.push(("assistant".into(), strip(&array(&open.content))));
                    said.push(("user".into(), array(&open.results.into_iter().flatten().collect::<Vec<_>>())));
                }
            }
            _ => {}
        }
    }
    said.retain(|(_, content)| content != "[]" && content != "\"\"");
    said.into_iter().map(|(role, content)| (role, with_output(&content))).collect()
}

/// An error without content is sent as one that says so.
fn with_output(content: &str) -> String {
    let mut out = content.to_owned();
    for block in blocks(content) {
        let result = Fields::of(&block);
        let failed = result.is("type", "tool_result") && result.has("is_error") && result.bool("is_error");
        let empty = !result.has("content") || result.raw("content") == "[]";
        if failed && empty {
            let rest = block.replacen(r#","content":[]"#, "", 1);
            let rest = rest.strip_suffix('}').expect("an object");
            out = out.replace(&block, &format!(r#"{rest},"content":"(no output)"}}"#));
        }
    }
    out
}

/// The messages with the ids of tool uses replaced by numbers, because an id that the history has already is replaced.
/// A member that is replaced stands at the end of its object, so the numbers stand behind the message.
fn numbered(messages: &[String]) -> Vec<String> {
    let mut asked: Vec<String> = Vec::new();
    let mut out = Vec::new();
    for (i, message) in messages.iter().enumerate() {
        let (mut text, mut numbers) = (message.clone(), String::new());
        let used = uses(message);
        for (key, ids, at) in [("tool_use_id", &asked, i.saturating_sub(1)), ("id", &used, i)] {
            for (place, id) in ids.iter().enumerate() {
                let (first, last) = (format!(r#""{key}":{id},"#), format!(r#","{key}":{id}"#));
                let known = text.contains(&last) || text.contains(&first);
                text = text.replacen(&last, "", 1).replacen(&first, "", 1);
                numbers.push_str(&format!(" {key} {at}.{place} {known}"));
            }
        }
        asked = used;
        out.push(text + &numbers);
    }
    out
}

/// The ids of the tool uses of a message, as they are written.
fn uses(message: &str) -> Vec<String> {
    let blocks = blocks(Fields::of(message).raw("content")).into_iter().map(|block| Fields::of(&block));
    blocks.filter(|block| block.is("type", "tool_use")).map(|block| block.raw("id").to_owned()).collect()
}

fn ids_are_used_once(messages: &[String]) {
    let mut all: Vec<String> = messages.iter().flat_map(|message| uses(message)).collect();
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "an id is used twice in {messages:?}");
}

/// The block of a result the server made.
pub(crate) fn block(result: &Fields) -> String {
    let error = if result.bool("is_error") { r#","is_error":true"# } else { "" };
    let (id, content) = (result.raw("tool_use_id"), result.raw("content"));
    format!(r#"{{"type":"tool_result","tool_use_id":{id},"content":{content}{error}}}"#)
}

/// Without what only the product's own side sees, as the peers of these tests write it.
fn strip(content: &str) -> String {
    let mut text = content.replace(r#","caller":{"type":"direct"}"#, "").replace(r#""dispatch":"model","#, "");
    for dispatch in ["client", "mcp", "sandbox", "subagent"] {
        text = text.replace(&format!(r#","dispatch":"{dispatch}""#), "");
    }
    text
}

/// Starts with a user and alternates; what was changed, as the event says it.
fn normalise(said: Vec<Said>) -> (Vec<Said>, Option<String>) {
    let mut out: Vec<Said> = Vec::new();
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let prepended = said.first().is_some_and(|(role, _)| role == "assistant");
    if prepended {
        out.push(("user".into(), quoted(PREAMBLE)));
    }
    for (i, (role, content)) in said.iter().enumerate() {
        if i > 0 && said[i - 1].0 == *role {
            let last = out.last_mut().expect("a message before");
            last.1 = array(&[blocks(&last.1), blocks(content)].concat());
            match runs.last_mut().filter(|run| run.contains(&(i - 1))) {
                Some(run) => run.push(i),
                None => runs.push(vec![i - 1, i]),
            }
        } else {
            out.push((role.clone(), content.clone()));
        }
    }
    let prefix = if prepended { vec![r#""prepended_user":true"#.to_owned()] } else { vec![] };
    let merged = if runs.is_empty() { vec![] } else { vec![format!(r#""merged":{}"#, serde_json::json!(runs))] };
    let members = [prefix, merged].concat();
    (out, (!members.is_empty()).then(|| format!("{{{}}}", members.join(","))))
}

/// Everything that must hold of a request when it is sent.
pub(crate) fn check(fixture: &Fixture<'_>, request: &Request) {
    let at =
        fixture.log.iter().rposition(|e| e.event.kind == EventType::ProviderRequest).expect("logged before it is sent");
    let Payload::Request(logged) = &fixture.log[at].event.payload else { panic!("a request's payload") };
    let text = request.payload();
    assert_eq!(logged.payload(), text, "what is sent is not what is logged");
    if !fixture.plan.looks {
        return;
    }
    let payload = Fields::of(&text);
    pairs(&payload.list("messages"));

    let mut said = history(&fixture.log[..at]);
    let messages = payload.list("messages");
    if request.compaction {
        assert_eq!(payload.raw("tools"), "[]");
        assert!(request.max_tokens >= 4096);
        let last = Fields::of(messages.last().expect("an instruction")).raw("content").to_owned();
        let last = blocks(&last).last().map(|block| Fields::of(block).raw("text").to_owned()).expect("a block");
        match prompt(fixture.script, &fixture.calls.last().expect("a call").opening) {
            Some(prompt) => assert_eq!(last, quoted(prompt)),
            None => assert!(last.contains("Summarize this conversation"), "{last}"),
        }
        said.push(("user".into(), last));
    }
    let (expected, normalized) = normalise(said);
    let expected: Vec<String> =
        expected.iter().map(|(role, content)| format!(r#"{{"role":"{role}","content":{content}}}"#)).collect();
    for (sent, expected) in numbered(&messages).iter().zip(numbered(&expected)) {
        assert_eq!(*sent, expected);
    }
    assert_eq!(messages.len(), expected.len());
    ids_are_used_once(&messages);
    assert_eq!(payload.has("normalized").then(|| payload.raw("normalized").to_owned()), normalized);
    passes(request, &payload);
}

fn prompt<'a>(script: &'a Script, opening: &'a Opening) -> Option<&'a str> {
    match (opening, &script.compaction) {
        (Opening::Compact(Some(prompt)), _) => Some(prompt),
        (Opening::Compact(None), Compaction::Client { prompt }) => prompt.as_deref(),
        _ => None,
    }
}

/// Starts with a user, alternates, and every tool use has exactly one result in the message that follows.
fn pairs(messages: &[String]) {
    let mut asked: Vec<String> = Vec::new();
    for (i, message) in messages.iter().enumerate() {
        let message = Fields::of(message);
        assert_eq!(message.names(), ["content", "role"]);
        assert!(message.is("role", if i % 2 == 0 { "user" } else { "assistant" }), "{messages:?}");
        let ids = |kind: &str, id: &str| -> Vec<String> {
            let blocks = blocks(message.raw("content")).into_iter().map(|block| Fields::of(&block));
            let blocks = blocks.filter(|block| block.is("type", kind));
            blocks
                .map(|block| {
                    assert!(kind != "tool_use" || !(block.has("dispatch") || block.has("caller")), "{messages:?}");
                    block.str(id)
                })
                .collect()
        };
        let mut results = ids("tool_result", "tool_use_id");
        results.sort();
        assert_eq!(asked, results, "uses and results do not pair in {messages:?}");
        asked = ids("tool_use", "id");
        asked.sort();
        assert!(i % 2 == 1 || asked.is_empty(), "a user's tool use in {messages:?}");
        assert!(asked.windows(2).all(|two| two[0] != two[1]), "two uses with one id in {messages:?}");
    }
    assert_eq!(asked, Vec::<String>::new(), "uses without results at the end of {messages:?}");
}

/// The tools offered, and their schemas as declared.
pub(crate) fn offers(request: &Request, names: &[&str]) {
    let tools: Vec<Fields> = list(request.tools.get()).iter().map(|tool| Fields::of(tool)).collect();
    assert_eq!(tools.iter().map(|tool| tool.str("name")).collect::<Vec<_>>(), names);
    let schemas = tools.iter().filter(|tool| tool.raw("input_schema") == SCHEMA).count();
    let bare = usize::from(names.contains(&"sub") && names.contains(&"c1"));
    assert_eq!(schemas, names.len() - bare, "a schema was changed: {tools:?}");
}

/// Texts reach the provider's body as they are.
fn passes(request: &Request, payload: &Fields) {
    let body = request.wire.body(request, None);
    let sent = Fields::of(&body);
    if request.wire == Wire::Anthropic {
        assert_eq!(sent.raw("messages"), payload.raw("messages"));
        assert_eq!(sent.raw("tools"), payload.raw("tools"));
        return;
    }
    let inside = |string: &str| string[1..string.len() - 1].to_owned();
    let holds = |text: &str| assert!(body.contains(text), "{text} is not in {body}");
    for tool in payload.list("tools") {
        holds(Fields::of(&tool).raw("input_schema"));
    }
    let messages = payload.list("messages").into_iter().map(|message| Fields::of(&message));
    for block in messages.flat_map(|message| blocks(message.raw("content"))) {
        let block = Fields::of(&block);
        if block.is("type", "text") {
            holds(&inside(block.raw("text")));
        } else if block.is("type", "tool_use") {
            holds(&quoted(block.raw("input")));
        } else if block.is("type", "tool_result") && block.has("content") && block.raw("content").starts_with('"') {
            holds(&inside(block.raw("content")));
        }
    }
}
