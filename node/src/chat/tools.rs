//! The client's own tools. They exist to show how a turn pauses for a client and continues: one answers at once, the
//! other asks the person.

use serde_json::{Value, json};

pub(super) const CURRENT_TIME: &str = "get_current_time";
pub(super) const ASK_USER: &str = "ask_user";

/// The tools that this client declared in its session.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    names: Vec<&'static str>,
}

impl Tools {
    pub(super) fn all() -> Tools {
        Tools { names: vec![CURRENT_TIME, ASK_USER] }
    }

    pub(super) fn none() -> Tools {
        Tools { names: Vec::new() }
    }

    /// The ones that a profile allows.
    pub(super) fn allowed(mut self, allowed: &[String]) -> Tools {
        self.names.retain(|name| allowed.iter().any(|allowed| allowed == name));
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    pub(super) fn describe(&self) -> String {
        if self.names.is_empty() { "none".to_owned() } else { self.names.join(", ") }
    }

    pub(super) fn declarations(&self) -> Value {
        self.names.iter().map(|name| declaration(name)).collect()
    }
}

/// The tool that the server runs in the session's sandbox, while one runs.
pub(super) fn shell() -> Value {
    json!({
        "name": "shell",
        "description": "Runs a shell command in the session's sandbox and returns its output.",
        "input_schema": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command, for /bin/sh."}},
            "required": ["command"],
        },
    })
}

fn declaration(name: &str) -> Value {
    match name {
        CURRENT_TIME => json!({
            "name": CURRENT_TIME,
            "description": "Returns the current UTC time.",
            "input_schema": {"type": "object", "properties": {}},
        }),
        _ => json!({
            "name": ASK_USER,
            "description": "Asks the person at the terminal a question and returns the answer.",
            "input_schema": {
                "type": "object",
                "properties": {"question": {"type": "string", "description": "The question, as the person shall read it."}},
                "required": ["question"],
            },
        }),
    }
}

/// A call of a client tool in a paused turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) input: Value,
}

impl Call {
    /// The calls in a message's content that this client has to answer: those with `dispatch` `client`. Older servers
    /// send no `dispatch`; their messages hold no other calls than the client's own.
    pub(super) fn ours(content: &Value, tools: &Tools) -> Vec<Call> {
        let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
        let ours = blocks.iter().filter(|block| block["type"] == "tool_use").filter(|block| {
            match block["dispatch"].as_str() {
                Some(dispatch) => dispatch == "client",
                None => block["name"].as_str().is_some_and(|name| tools.has(name)),
            }
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        ours.map(|block| Call { id: text(&block["id"]), name: text(&block["name"]), input: block["input"].clone() })
            .collect()
    }

    pub(super) fn question(&self) -> &str {
        self.input["question"].as_str().filter(|question| !question.trim().is_empty()).unwrap_or("The model asks you:")
    }

    pub(super) fn answered(&self, text: &str) -> Value {
        json!({"type": "tool_result", "tool_use_id": self.id, "content": text})
    }

    pub(super) fn failed(&self, why: &str) -> Value {
        json!({"type": "tool_result", "tool_use_id": self.id, "content": why, "is_error": true})
    }
}

pub(super) fn current_time() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_client_calls_are_ours() {
        let content = json!([
            {"type": "text", "text": "let me see"},
            {"type": "tool_use", "id": "a", "name": "ask_user", "input": {"question": "why?"}, "dispatch": "client"},
            {"type": "tool_use", "id": "b", "name": "ask_user", "input": {}, "dispatch": "mcp"},
            {"type": "tool_use", "id": "c", "name": "get_current_time", "input": {}},
            {"type": "tool_use", "id": "d", "name": "list_directory", "input": {}},
        ]);
        let calls = Call::ours(&content, &Tools::all());
        let ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["a", "c"]);
        assert_eq!((calls[0].question(), calls[1].question()), ("why?", "The model asks you:"));
        assert_eq!(Call::ours(&json!("text"), &Tools::all()), []);
    }

    #[test]
    fn the_time_has_the_shape_of_the_api() {
        let time = current_time();
        assert_eq!((time.len(), time.ends_with('Z'), time.find('T')), (24, true, Some(10)), "{time}");
    }
}
