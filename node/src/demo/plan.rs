//! Finds out which tools a message asks for, and in which rounds: "use X and Y" is one round of two calls, "X, then Y"
//! is two rounds, and "X three times" is three.
//!
//! A message asks for a tool if it contains the tool's name, or if it is a question or an order and contains at least
//! half of the words of the name.

use super::conversation::Tool;

/// The most repetitions. It is more than the rounds that a server allows in a turn, so that one can see its limit work.
const MOST_TIMES: usize = 20;

/// Words that say nothing about which tool is meant.
const COMMON: [&str; 10] = ["get", "set", "run", "do", "the", "tool", "mcp", "server", "my", "to"];

/// Words that make a sentence an order or a question.
const ASKING: [&str; 29] = [
    "use", "call", "run", "please", "what", "what's", "which", "who", "when", "where", "how", "tell", "ask", "get",
    "show", "give", "list", "read", "write", "find", "search", "look", "fetch", "check", "try", "start", "launch",
    "do", "make",
];

/// One call of a tool, and the words that asked for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call<'a> {
    pub(crate) tool: &'a Tool,
    /// The part of the message that belongs to this call: what follows the tool's name, if the message contains it.
    pub(crate) words: String,
}

/// The rounds that `text` asks for; empty when it asks for none.
pub(crate) fn rounds<'a>(text: &str, tools: &'a [Tool]) -> Vec<Vec<Call<'a>>> {
    let mut rounds = Vec::new();
    for segment in segments(text) {
        let (times, segment) = times(&segment);
        let mut calls = named(&segment, tools);
        if calls.is_empty() {
            calls.extend(hinted(&segment, tools));
        }
        if calls.is_empty() && any_tool(&segment) {
            calls.extend(tools.first().map(|tool| Call { tool, words: segment.clone() }));
        }
        if !calls.is_empty() {
            rounds.extend(std::iter::repeat_n(calls, times));
        }
    }
    rounds
}

/// Whether a message asks to use a tool, so that the model must say that there is none.
pub(crate) fn orders_a_tool(text: &str) -> bool {
    let words = words(text);
    let first = words.iter().find(|word| *word != "please").map(String::as_str);
    matches!(first, Some("use" | "call" | "run")) && words.len() > 1
}

/// The text cut at every "then".
fn segments(text: &str) -> Vec<String> {
    let mut segments = vec![Vec::new()];
    for token in text.split_whitespace() {
        if matches!(bare(token).as_str(), "then" | "afterwards") {
            segments.push(Vec::new());
        } else if let Some(segment) = segments.last_mut() {
            segment.push(token);
        }
    }
    segments.iter().map(|tokens| tokens.join(" ")).collect()
}

/// How often a segment is to be repeated, and the segment without the words that say so.
fn times(segment: &str) -> (usize, String) {
    let tokens: Vec<&str> = segment.split_whitespace().collect();
    for (place, token) in tokens.iter().enumerate() {
        let token = bare(token);
        let (times, used) = match token.as_str() {
            "twice" => (Some(2), 1),
            "once" => (Some(1), 1),
            "times" => continue,
            number if tokens.get(place + 1).is_some_and(|next| bare(next) == "times") => (count(number), 2),
            _ => continue,
        };
        if let Some(times) = times {
            let rest: Vec<&str> = tokens[..place].iter().chain(&tokens[place + used..]).copied().collect();
            return (times.clamp(1, MOST_TIMES), rest.join(" "));
        }
    }
    (1, segment.to_owned())
}

fn count(word: &str) -> Option<usize> {
    const NUMBERS: [&str; 10] = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    NUMBERS.iter().position(|number| *number == word).map(|place| place + 1).or_else(|| word.parse().ok())
}

/// The tools whose names the segment contains, in the order of the names.
fn named<'a>(segment: &str, tools: &'a [Tool]) -> Vec<Call<'a>> {
    let lower = segment.to_lowercase();
    let mut found: Vec<(usize, usize, &Tool)> = Vec::new();
    for tool in tools {
        let name = tool.name.to_lowercase();
        let spaced = name.replace(['_', '-'], " ");
        if let Some((start, length)) = position(&lower, &name).or_else(|| position(&lower, &spaced)) {
            found.push((start, start + length, tool));
        }
    }
    // "read" does not count where it is part of "read file".
    let within = |(start, end, _): &(usize, usize, &Tool)| {
        found.iter().any(|(from, to, _)| from <= start && end <= to && end - start < to - from)
    };
    let mut calls: Vec<_> = found.iter().filter(|mention| !within(mention)).copied().collect();
    calls.sort_by_key(|(start, _, _)| *start);
    let starts: Vec<usize> = calls.iter().map(|(start, _, _)| *start).collect();
    calls
        .iter()
        .enumerate()
        .map(|(place, (_, end, tool))| {
            // Lower case can change the length of text that is not ASCII; then the whole segment is taken.
            let until = starts.get(place + 1).copied().unwrap_or(segment.len());
            let words = match (segment.get(*end..until), segment.get(..starts[0])) {
                _ if lower.len() != segment.len() => segment,
                // "say hello with echo": nothing follows the name, so the words before it are taken.
                (Some(after), Some(before)) if after.trim().len() < 2 => before,
                (Some(after), _) => after,
                (None, _) => segment,
            };
            Call { tool, words: words.to_owned() }
        })
        .collect()
}

/// Where `name` stands in `text` as a word of its own.
fn position(text: &str, name: &str) -> Option<(usize, usize)> {
    let inside = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(name).map(|(start, name)| (start, name.len())).find(|(start, length)| {
        let before = text[..*start].chars().next_back();
        let after = text[start + length..].chars().next();
        !before.is_some_and(inside) && !after.is_some_and(inside)
    })
}

/// The tool whose name the segment fits best, if it is a question or an order.
fn hinted<'a>(segment: &str, tools: &'a [Tool]) -> Option<Call<'a>> {
    let said = words(segment);
    if !segment.contains('?') && !said.iter().any(|word| ASKING.contains(&word.as_str())) {
        return None;
    }
    let mut best: Option<(f64, &Tool)> = None;
    for tool in tools {
        let mut parts = name_words(&tool.name);
        if parts.iter().any(|part| !COMMON.contains(&part.as_str())) {
            parts.retain(|part| !COMMON.contains(&part.as_str()));
        }
        let present = parts.iter().filter(|part| said.iter().any(|word| same(part, word))).count();
        let score = present as f64 / parts.len().max(1) as f64;
        if score >= 0.5 && best.is_none_or(|(found, _)| score > found) {
            best = Some((score, tool));
        }
    }
    best.map(|(_, tool)| Call { tool, words: segment.to_owned() })
}

fn any_tool(segment: &str) -> bool {
    let said = words(segment);
    let order = said.iter().any(|word| matches!(word.as_str(), "use" | "call" | "try" | "run"));
    order && said.windows(2).any(|pair| matches!(pair[0].as_str(), "a" | "any" | "some") && pair[1].starts_with("tool"))
}

fn same(part: &str, word: &str) -> bool {
    part == word
        || part.strip_suffix('s') == Some(word)
        || word.strip_suffix('s') == Some(part)
        || (part == "time" && matches!(word, "clock" | "date" | "day" | "o'clock"))
}

/// The words of a tool's name, which may be in snake case, kebab case or camel case.
fn name_words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = None;
    for character in name.chars() {
        let joint = !character.is_alphanumeric();
        let hump = character.is_uppercase() && before.is_some_and(char::is_lowercase);
        if joint || hump {
            words.push(String::new());
        }
        if let (false, Some(word)) = (joint, words.last_mut()) {
            word.extend(character.to_lowercase());
        }
        before = Some(character);
    }
    words.retain(|word| !word.is_empty());
    words
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(bare).filter(|word| !word.is_empty()).collect()
}

/// A word without the punctuation around it, in lower case.
fn bare(token: &str) -> String {
    token.trim_matches(|character: char| !character.is_alphanumeric()).to_lowercase()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn planned(text: &str, names: &[&str]) -> Vec<Vec<String>> {
        let tools: Vec<Tool> =
            names.iter().map(|name| Tool { name: (*name).to_owned(), schema: Value::Null }).collect();
        let rounds = rounds(text, &tools);
        rounds.iter().map(|round| round.iter().map(|call| call.tool.name.clone()).collect()).collect()
    }

    #[test]
    fn tools_are_recognised() {
        let tools = ["get_current_time", "ask_user", "listDirectory", "read", "read_file", "echo"];
        let cases: [(&str, &[&[&str]]); 17] = [
            ("What time is it?", &[&["get_current_time"]]),
            ("what's the time", &[&["get_current_time"]]),
            ("please tell me the current time", &[&["get_current_time"]]),
            ("which day is it?", &[&["get_current_time"]]),
            ("ask me my favourite colour", &[&["ask_user"]]),
            ("use get current time", &[&["get_current_time"]]),
            ("call ask_user and get_current_time", &[&["ask_user", "get_current_time"]]),
            ("use ask_user then get_current_time", &[&["ask_user"], &["get_current_time"]]),
            ("use echo, then ask_user, and then echo", &[&["echo"], &["ask_user"], &["echo"]]),
            ("use echo three times", &[&["echo"], &["echo"], &["echo"]]),
            ("use echo twice then ask_user", &[&["echo"], &["echo"], &["ask_user"]]),
            ("list the directory /tmp", &[&["listDirectory"]]),
            ("use read file on a.txt", &[&["read_file"]]),
            ("use a tool", &[&["get_current_time"]]),
            ("I had a good time", &[]),
            ("echoes of the past", &[]),
            ("I said it three times", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(planned(text, &tools), expected, "{text}");
        }
    }

    #[test]
    fn nothing_is_planned_without_tools() {
        assert_eq!(planned("use a tool, then what time is it?", &[]), [[""; 0]; 0]);
        assert!(orders_a_tool("Please use frobnicate"));
        assert!(!orders_a_tool("how do I use it"));
    }

    #[test]
    fn times_are_bounded() {
        assert_eq!(planned("use echo 1000 times", &["echo"]).len(), MOST_TIMES);
        assert_eq!(planned("use echo 0 times", &["echo"]).len(), 1);
    }

    #[test]
    fn each_call_has_its_own_words() {
        let tools = ["echo", "add"].map(|name| Tool { name: name.to_owned(), schema: Value::Null });
        let rounds = rounds("use echo with hello and add 2 and 3", &tools);
        let words: Vec<&str> = rounds[0].iter().map(|call| call.words.trim()).collect();
        assert_eq!(words, ["with hello and", "2 and 3"]);
        assert_eq!(super::rounds("say hello with echo", &tools)[0][0].words, "say hello with ");
        assert_eq!(super::rounds("echo", &tools)[0][0].words, "");
    }
}
