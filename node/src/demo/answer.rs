//! Decides what the demo model answers, as a pure function of the request.
//!
//! In a message, `/slow N` delays every answer of the turn by N seconds (time to kill the server in the middle of it),
//! and `/fail` makes the model unavailable.

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::arguments;
use super::conversation::{Conversation, ToolAnswer};
use super::memory::{asks_for_summary, shortened, summary};
use super::plan::{Call, orders_a_tool, rounds, words};

/// The longest delay that `/slow` accepts, in seconds.
const MAX_DELAY: u64 = 600;
const QUOTED: usize = 300;
const RESULT: usize = 2000;

/// An HTTP answer, and how long to wait before it is given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) delay: Duration,
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn refusal(status: u16, kind: &str, message: &str) -> Answer {
        let body = json!({"type": "error", "error": {"type": kind, "message": message}});
        Answer { delay: Duration::ZERO, status, body }
    }
}

/// What the model says and the tools it wants.
struct Reply<'a> {
    text: String,
    calls: Vec<Call<'a>>,
}

/// Answers a request of `POST /v1/messages`.
pub(crate) fn answer(request: &Value) -> Answer {
    let mut conversation = match Conversation::read(request) {
        Ok(conversation) => conversation,
        Err(refusal) => return Answer::refusal(400, "invalid_request_error", &refusal),
    };
    let commands = Commands::take(&mut conversation);
    if commands.fail {
        return Answer { delay: commands.delay, ..Answer::refusal(529, "overloaded_error", "Overloaded") };
    }
    let Reply { text, calls } = reply(&conversation);

    let asked = request.to_string();
    let digest = hex::encode(Sha256::digest(asked.as_bytes()));
    let mut content = vec![json!({"type": "text", "text": text})];
    for (place, call) in calls.iter().enumerate() {
        // The id is derived from the request: a repeated attempt gets the same one, and every other request another
        // one.
        let id = format!("toolu_{}{place:02}", &digest[..24]);
        let input = arguments::fill(&call.tool.schema, &call.words);
        content.push(json!({"type": "tool_use", "id": id, "name": call.tool.name, "input": input}));
    }
    let content = Value::Array(content);
    let body = json!({
        "id": format!("msg_{}", &digest[..24]),
        "type": "message",
        "role": "assistant",
        "model": conversation.model,
        "stop_reason": if calls.is_empty() { "end_turn" } else { "tool_use" },
        "stop_sequence": null,
        "usage": {"input_tokens": tokens(&asked), "output_tokens": tokens(&content.to_string())},
        "content": content,
    });
    Answer { delay: commands.delay, status: 200, body }
}

/// An estimate of the number of tokens: one for every four bytes.
fn tokens(text: &str) -> usize {
    text.len().div_ceil(4)
}

/// The `/slow` and `/fail` commands in a message.
struct Commands {
    delay: Duration,
    fail: bool,
}

impl Commands {
    /// Returns the commands of the current statement, and removes those of all statements.
    fn take(conversation: &mut Conversation) -> Commands {
        let mut commands = Commands { delay: Duration::ZERO, fail: false };
        let last = conversation.statements.len().saturating_sub(1);
        for (place, statement) in conversation.statements.iter_mut().enumerate() {
            if !statement.contains("/slow") && !statement.contains("/fail") {
                continue;
            }
            let mut kept = Vec::new();
            let mut tokens = statement.split_whitespace().peekable();
            while let Some(token) = tokens.next() {
                match token {
                    "/fail" => commands.fail |= place == last,
                    "/slow" => {
                        let seconds = tokens.peek().and_then(|next| next.parse::<u64>().ok());
                        if seconds.is_some() {
                            tokens.next();
                        }
                        if place == last {
                            commands.delay = Duration::from_secs(seconds.unwrap_or(5).min(MAX_DELAY));
                        }
                    }
                    _ => kept.push(token),
                }
            }
            *statement = kept.join(" ");
        }
        commands
    }
}

fn reply(conversation: &Conversation) -> Reply<'_> {
    let said = conversation.said();
    let compaction = conversation.tools.is_empty() && asks_for_summary(said);
    if conversation.rounds == 0
        && !compaction
        && let Some(text) = remembered(conversation).or_else(|| introduced(conversation))
    {
        return spoken(text);
    }
    let rounds = rounds(said, &conversation.tools);
    // Compactions ask for a summary, and offer no tools. A user can ask for one as well.
    if rounds.is_empty() && conversation.results.is_empty() && asks_for_summary(said) {
        return spoken(summary(conversation));
    }
    if let Some(calls) = rounds.get(conversation.rounds) {
        let names: Vec<&str> = calls.iter().map(|call| call.tool.name.as_str()).collect();
        let names = names.join(" and ");
        let text = match rounds.len() {
            1 => format!("I call {names}."),
            total => format!("Step {} of {total}: I call {names}.", conversation.rounds + 1),
        };
        return Reply { text, calls: calls.clone() };
    }
    if !conversation.results.is_empty() {
        return spoken(reported(&conversation.results));
    }
    if orders_a_tool(said) {
        return spoken(format!("I have no such tool. {}", offered(conversation)));
    }
    spoken(echoed(conversation))
}

fn spoken<'a>(text: String) -> Reply<'a> {
    Reply { text, calls: Vec::new() }
}

/// Answers to questions about what was said.
fn remembered(conversation: &Conversation) -> Option<String> {
    let said = conversation.said().to_lowercase();
    let before = &conversation.statements[..conversation.statements.len().saturating_sub(1)];
    let asked = ["did i say", "did i tell", "did i ask", "did i write", "i said", "did we talk", "do you remember"]
        .iter()
        .any(|question| said.contains(question));
    if said.contains("my name") && said.contains('?') || said.contains("who am i") {
        let named = before.iter().rev().find_map(|statement| name_in(statement));
        return Some(named.map_or_else(
            || "You have not told me your name.".to_owned(),
            |name| format!("Your name is {name}; you told me."),
        ));
    }
    if said.contains("how many messages") {
        return Some(format!("You have sent {} messages, this one included.", conversation.statements.len()));
    }
    if !asked {
        return None;
    }
    let (Some(first), Some(last)) = (before.first(), before.last()) else {
        return Some("Nothing yet: this is your first message in this conversation.".to_owned());
    };
    Some(if ["first", "beginning", "start"].iter().any(|word| said.contains(word)) {
        format!("The first thing you said was: {}", shortened(first, QUOTED))
    } else if ["before", "last", "previous", "just"].iter().any(|word| said.contains(word)) {
        format!("Before this you said: {}", shortened(last, QUOTED))
    } else {
        let all: Vec<String> =
            before.iter().enumerate().map(|(place, text)| format!("{}. {}", place + 1, shortened(text, 100))).collect();
        format!("So far you said:\n{}", all.join("\n"))
    })
}

/// The name in "my name is Ann".
fn name_in(statement: &str) -> Option<String> {
    let start = statement.to_lowercase().find("my name is ")? + "my name is ".len();
    let name =
        statement.get(start..)?.split(|character: char| !character.is_alphanumeric() && character != '-').next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Greetings, and questions about the model itself.
fn introduced(conversation: &Conversation) -> Option<String> {
    let said = words(conversation.said());
    let said: Vec<&str> = said.iter().map(String::as_str).collect();
    let greeting = matches!(said.as_slice(), ["hello" | "hi" | "hey"] | ["hello" | "hi" | "hey", _]);
    let help = matches!(said.as_slice(), ["help"] | ["what", "can", "you", "do"] | ["who", "are", "you"]);
    let tools = said.contains(&"tools") && (said.contains(&"which") || said.contains(&"what"));
    if tools {
        return Some(offered(conversation));
    }
    (greeting || help).then(|| {
        format!(
            "{}I am the demo model inside this server; I need no key and no network. I repeat what you say, I remember it \
             (\"what did I say first?\"), and I call tools when you ask for them (\"use X, then Y\", \"three times\"). {} \
             \"/slow 20\" in a message makes me slow, which is the moment to kill the server and see the turn go on; \
             \"/fail\" makes me unavailable.",
            if greeting { "Hello! " } else { "" },
            offered(conversation)
        )
    })
}

fn offered(conversation: &Conversation) -> String {
    let names: Vec<&str> = conversation.tools.iter().map(|tool| tool.name.as_str()).collect();
    if names.is_empty() {
        "No tools are offered to me here.".to_owned()
    } else {
        format!("I was offered: {}.", names.join(", "))
    }
}

fn reported(results: &[ToolAnswer]) -> String {
    let outcome = |result: &ToolAnswer| match (shortened(&result.text, RESULT), result.failed) {
        (text, true) => format!("it failed: {text}"),
        (text, false) if text.is_empty() => "(nothing)".to_owned(),
        (text, false) => text,
    };
    match results {
        [one] if one.failed => format!("The tool {} failed: {}", one.tool, shortened(&one.text, RESULT)),
        [one] => format!("The tool answered: {}", outcome(one)),
        several => {
            let lines: Vec<String> =
                several.iter().map(|result| format!("- {}: {}", result.tool, outcome(result))).collect();
            format!("The tools answered:\n{}", lines.join("\n"))
        }
    }
}

fn echoed(conversation: &Conversation) -> String {
    let said = shortened(conversation.said(), QUOTED);
    let before = &conversation.statements[..conversation.statements.len().saturating_sub(1)];
    match before {
        [] => format!("You said: \"{said}\". It is the first message of our conversation."),
        [only] => format!("You said: \"{said}\". I remember one message before it: \"{}\".", shortened(only, 100)),
        [.., last] => format!(
            "You said: \"{said}\". I remember {} messages before it; the last was \"{}\".",
            before.len(),
            shortened(last, 100)
        ),
    }
}

#[cfg(test)]
mod tests;
