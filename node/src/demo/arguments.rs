//! Makes a tool's input from its schema and the user's words: every required property gets a value of its type, taken
//! from the words where they contain one.

use serde_json::{Map, Number, Value};

use super::memory::shortened;

const DEEPEST: usize = 6;

/// The input of a tool, for a message that asked for it with `words`.
pub(crate) fn fill(schema: &Value, words: &str) -> Value {
    let mut hints = Hints::of(words);
    match object(schema, &mut hints, 0) {
        Value::Object(object) => Value::Object(object),
        _ => Value::Object(Map::new()),
    }
}

/// The values that the words contain, which are used in their order.
struct Hints<'a> {
    words: &'a str,
    quoted: Vec<String>,
    numbers: Vec<Number>,
    urls: Vec<String>,
    paths: Vec<String>,
    /// The words that remain when those that only lead to them are removed.
    subject: String,
}

impl<'a> Hints<'a> {
    fn of(words: &'a str) -> Hints<'a> {
        let tokens: Vec<&str> = words.split_whitespace().collect();
        let trimmed = |token: &str| token.trim_matches([',', ';', '!', '?', '"', '\'', '`', '(', ')']).to_owned();
        let is_url = |token: &&str| token.contains("://");
        let is_path = |token: &&str| {
            !token.contains("://")
                && (token.contains('/')
                    || token.trim_end_matches('.').rsplit_once('.').is_some_and(|(_, end)| extension(end)))
        };
        let number = |token: &&str| trimmed(token).trim_end_matches('.').parse::<Number>().ok();
        let mut hints = Hints {
            words,
            quoted: quoted(words),
            numbers: tokens.iter().filter_map(number).collect(),
            urls: tokens.iter().copied().filter(is_url).map(trimmed).collect(),
            paths: tokens.iter().copied().filter(is_path).map(trimmed).collect(),
            subject: subject(words),
        };
        // Reversed, because they are popped from the end.
        hints.quoted.reverse();
        hints.numbers.reverse();
        hints.urls.reverse();
        hints.paths.reverse();
        hints
    }

    /// The value that the words give to the property by its name, as in `limit=5`.
    fn named(&self, name: &str) -> Option<&'a str> {
        self.words.split_whitespace().find_map(|token| {
            let (key, value) = token.split_once('=')?;
            (key.eq_ignore_ascii_case(name) && !value.is_empty())
                .then(|| value.trim_matches(['"', '\'', '`', ',', ';']))
        })
    }

    fn text(&mut self) -> String {
        self.quoted.pop().unwrap_or_else(|| {
            let subject = if self.subject.is_empty() { self.words.trim() } else { &self.subject };
            shortened(if subject.is_empty() { "hello" } else { subject }, 500)
        })
    }
}

fn object(schema: &Value, hints: &mut Hints<'_>, depth: usize) -> Value {
    let required: Vec<&str> =
        schema["required"].as_array().map(|names| names.iter().filter_map(Value::as_str).collect()).unwrap_or_default();
    let mut filled = Map::new();
    if let Some(properties) = schema["properties"].as_object() {
        for (name, property) in properties {
            if required.contains(&name.as_str()) || hints.named(name).is_some() {
                filled.insert(name.clone(), value(name, property, hints, depth));
            }
        }
    }
    for name in required {
        if !filled.contains_key(name) {
            filled.insert(name.to_owned(), Value::String(hints.text()));
        }
    }
    Value::Object(filled)
}

fn value(name: &str, schema: &Value, hints: &mut Hints<'_>, depth: usize) -> Value {
    if let Some(only) = schema.get("const") {
        return only.clone();
    }
    if let Some(choices) = schema["enum"].as_array() {
        return choice(choices, hints);
    }
    let named = hints.named(name);
    match kind(schema) {
        "integer" => integer(schema, named.and_then(|text| text.parse().ok()).or_else(|| hints.numbers.pop())),
        "number" => {
            let number = named.and_then(|text| text.parse().ok()).or_else(|| hints.numbers.pop());
            number.map(Value::Number).or_else(|| schema.get("default").cloned()).unwrap_or_else(|| Value::from(1))
        }
        "boolean" => match named {
            Some(text) => Value::Bool(text.eq_ignore_ascii_case("true") || text == "1"),
            None => schema.get("default").cloned().unwrap_or(Value::Bool(true)),
        },
        "array" if depth < DEEPEST => Value::Array(vec![value(name, &schema["items"], hints, depth + 1)]),
        "object" if depth < DEEPEST => object(schema, hints, depth + 1),
        "array" => Value::Array(Vec::new()),
        "object" => Value::Object(Map::new()),
        "null" => Value::Null,
        _ => Value::String(named.map_or_else(|| string(name, schema, hints), str::to_owned)),
    }
}

/// The first type that a schema allows.
fn kind(schema: &Value) -> &str {
    match &schema["type"] {
        Value::String(kind) => kind,
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or("null"),
        _ => {
            let alternatives = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array());
            let first = alternatives.and_then(|all| all.iter().find(|one| one["type"] != "null"));
            match first {
                Some(first) => kind(first),
                None if schema.get("properties").is_some() => "object",
                None => "string",
            }
        }
    }
}

fn choice(choices: &[Value], hints: &Hints<'_>) -> Value {
    let lower = hints.words.to_lowercase();
    let said = choices.iter().find(|one| one.as_str().is_some_and(|text| lower.contains(&text.to_lowercase())));
    said.or_else(|| choices.first()).cloned().unwrap_or(Value::Null)
}

fn integer(schema: &Value, said: Option<Number>) -> Value {
    let said = said.and_then(|number| number.as_i64());
    let default = schema["default"].as_i64();
    let number = said.or(default).unwrap_or(1);
    let least = schema["minimum"].as_i64().unwrap_or(i64::MIN);
    let most = schema["maximum"].as_i64().unwrap_or(i64::MAX);
    Value::from(number.min(most).max(least))
}

fn string(name: &str, schema: &Value, hints: &mut Hints<'_>) -> String {
    let name = name.to_lowercase();
    let is = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let default = schema["default"].as_str().map(str::to_owned);
    match schema["format"].as_str() {
        Some("date-time") => return "2026-01-01T00:00:00Z".to_owned(),
        Some("date") => return "2026-01-01".to_owned(),
        Some("uri") => return hints.urls.pop().unwrap_or_else(|| "https://example.com/".to_owned()),
        Some("email") => return "user@example.com".to_owned(),
        Some(_) | None => {}
    }
    if is(&["url", "uri"]) {
        return hints.urls.pop().or(default).unwrap_or_else(|| "https://example.com/".to_owned());
    }
    if is(&["path", "file", "dir", "folder"]) {
        return hints.paths.pop().or_else(|| hints.quoted.pop()).or(default).unwrap_or_else(|| ".".to_owned());
    }
    if is(&["timezone", "time_zone"]) || name == "tz" {
        return hints.paths.pop().or(default).unwrap_or_else(|| "UTC".to_owned());
    }
    if is(&["command", "script"]) || name == "cmd" {
        let ordered = hints.quoted.pop().or_else(|| Some(hints.subject.clone()).filter(|subject| !subject.is_empty()));
        return ordered.or(default).unwrap_or_else(|| "echo hello".to_owned());
    }
    if is(&["city", "location", "place", "country"]) {
        let place =
            hints.words.split_once(" in ").map(|(_, rest)| rest.trim_end_matches(['?', '.', '!']).trim().to_owned());
        return place.filter(|place| !place.is_empty()).or(default).unwrap_or_else(|| "London".to_owned());
    }
    if let Some(quoted) = hints.quoted.pop() {
        return quoted;
    }
    default.unwrap_or_else(|| if is(&["question"]) { question(&hints.subject) } else { hints.text() })
}

/// The subject as a question that the tool asks a person.
fn question(subject: &str) -> String {
    let subject = subject.trim().trim_end_matches(['.', '!', '?']);
    if subject.is_empty() || subject == "something" {
        return "What would you like me to know?".to_owned();
    }
    // The person who wrote "my name" is the one who is asked, so the question says "your name".
    let subject = subject.strip_prefix("my ").map_or_else(|| subject.to_owned(), |rest| format!("what is your {rest}"));
    let mut characters = subject.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}?", characters.as_str())
}

/// The words without the ones that only lead to them.
fn subject(words: &str) -> String {
    const LEADING: [&str; 27] = [
        "please", "use", "call", "run", "ask", "tell", "tool", "me", "the", "user", "with", "on", "for", "to", "of",
        "about", "that", "saying", "and", "a", "an", "say", "then", "what's", "it", "try", "in",
    ];
    let bare = |token: &str| token.trim_matches([',', ':', ';', '"', '.']).to_lowercase();
    let tokens: Vec<&str> = words.split_whitespace().collect();
    let from = tokens.iter().position(|token| !LEADING.contains(&bare(token).as_str()) && !bare(token).is_empty());
    let Some(from) = from else { return String::new() };
    let mut rest = &tokens[from..];
    while let [shorter @ .., last] = rest {
        if !matches!(bare(last).as_str(), "and" | "then" | "with" | "using" | "") {
            break;
        }
        rest = shorter;
    }
    rest.join(" ").trim_end_matches([',', ';']).to_owned()
}

fn quoted(words: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = words;
    while let Some(start) = rest.find(['"', '`', '“']) {
        let opening = rest[start..].chars().next().unwrap_or('"');
        let closing = if opening == '“' { '”' } else { opening };
        let inside = &rest[start + opening.len_utf8()..];
        let Some(end) = inside.find(closing) else { break };
        found.push(inside[..end].to_owned());
        rest = &inside[end + closing.len_utf8()..];
    }
    found
}

fn extension(end: &str) -> bool {
    (1..=4).contains(&end.len()) && end.chars().all(|character| character.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(name: &str, schema: Value, words: &str) -> Value {
        let schema = json!({"type": "object", "properties": {name: schema}, "required": [name]});
        fill(&schema, words)[name].clone()
    }

    #[test]
    fn values_come_from_the_words() {
        let text = json!({"type": "string"});
        assert_eq!(one("message", text.clone(), "with hello world"), "hello world");
        assert_eq!(one("message", text.clone(), "say \"one two\" now"), "one two");
        assert_eq!(one("question", text.clone(), "ask me my favourite colour"), "What is your favourite colour?");
        assert_eq!(one("question", text.clone(), "ask me something"), "What would you like me to know?");
        assert_eq!(one("question", text.clone(), ""), "What would you like me to know?");
        assert_eq!(one("message", text.clone(), ""), "hello");
        assert_eq!(one("message", text.clone(), "say hi there with "), "hi there");
        assert_eq!(one("path", text.clone(), "on /tmp/a.txt, please"), "/tmp/a.txt");
        assert_eq!(one("path", text.clone(), "list the directory"), ".");
        assert_eq!(one("url", text.clone(), "fetch http://a.example/x?"), "http://a.example/x");
        assert_eq!(one("command", text.clone(), "run `ls -l`"), "ls -l");
        assert_eq!(one("city", text, "what is the weather in New York?"), "New York");
        assert_eq!(one("unit", json!({"enum": ["celsius", "kelvin"]}), "in Kelvin"), "kelvin");
        assert_eq!(one("n", json!({"type": "integer", "minimum": 5}), "3"), 5);
        assert_eq!(one("n", json!({"type": ["null", "integer"]}), "12 of them"), 12);
        assert_eq!(one("x", json!({"type": "number"}), "2.5"), 2.5);
        assert_eq!(one("all", json!({"type": "boolean"}), "all"), true);
        assert_eq!(one("names", json!({"type": "array", "items": {"type": "string"}}), "for \"Ann\""), json!(["Ann"]));
        assert_eq!(one("x", json!({"anyOf": [{"type": "null"}, {"type": "integer"}]}), "7"), 7);
    }

    #[test]
    fn optional_properties_are_filled_when_named() {
        let schema = json!({
            "type": "object",
            "properties": {"text": {"type": "string"}, "limit": {"type": "integer"}, "deep": {"type": "boolean"}},
            "required": ["text"],
        });
        assert_eq!(fill(&schema, "search \"rust\" limit=5"), json!({"text": "rust", "limit": 5}));
    }

    #[test]
    fn two_numbers_go_to_two_properties() {
        let number = json!({"type": "number"});
        let schema = json!({"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]});
        assert_eq!(fill(&schema, "add 2 and 3"), json!({"a": 2, "b": 3}));
    }

    #[test]
    fn odd_schemas_give_an_object() {
        for schema in [json!(null), json!(true), json!({}), json!({"type": "string"}), json!({"required": "x"})] {
            assert_eq!(fill(&schema, "anything"), json!({}), "{schema}");
        }
        assert_eq!(fill(&json!({"required": ["x"]}), "on hello"), json!({"x": "hello"}));
        // A schema that is nested without end must not be followed without end.
        let mut deep = json!({"type": "string"});
        for _ in 0..50 {
            deep = json!({"type": "object", "properties": {"x": deep}, "required": ["x"]});
        }
        assert!(fill(&deep, "x").is_object());
    }
}
