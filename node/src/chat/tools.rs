//! The client's own tools: one that answers by itself and one that asks the person, to show a turn pause and go on.

use serde_json::{Value, json};

pub const CURRENT_TIME: &str = "get_current_time";
pub const ASK_USER: &str = "ask_user";

/// The tools that this client declared in its session.
#[derive(Clone, Debug)]
pub struct Tools {
    names: Vec<&'static str>,
}

impl Tools {
    pub fn all() -> Tools {
        Tools { names: vec![CURRENT_TIME, ASK_USER] }
    }

    pub fn none() -> Tools {
        Tools { names: Vec::new() }
    }

    /// Those that a profile allows.
    pub fn allowed(mut self, allowed: &[String]) -> Tools {
        self.names.retain(|name| allowed.iter().any(|allowed| allowed == name));
        self
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    pub fn describe(&self) -> String {
        if self.names.is_empty() { "none".to_owned() } else { self.names.join(", ") }
    }

    pub fn declarations(&self) -> Value {
        self.names.iter().map(|name| declaration(name)).collect()
    }
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
pub struct Call {
    pub id: String,
    pub name: String,
    pub input: Value,
}

impl Call {
    /// The calls in a message's content that are this client's to answer.
    ///
    /// Servers from before `dispatch` never show other calls than the client's own.
    pub fn ours(content: &Value, tools: &Tools) -> Vec<Call> {
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

    pub fn question(&self) -> &str {
        self.input["question"].as_str().filter(|question| !question.trim().is_empty()).unwrap_or("The model asks you:")
    }

    pub fn answered(&self, text: &str) -> Value {
        json!({"type": "tool_result", "tool_use_id": self.id, "content": text})
    }

    pub fn failed(&self, why: &str) -> Value {
        json!({"type": "tool_result", "tool_use_id": self.id, "content": why, "is_error": true})
    }
}

pub fn current_time() -> String {
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
