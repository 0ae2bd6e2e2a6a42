//! Parses a request for the demo model: who said what, which tools are offered, and where the current turn begins.
//!
//! It refuses what Anthropic's API refuses: a conversation that does not begin with the user or in which the roles do
//! not alternate, and tool calls without a result or results without a call.

use serde_json::Value;

use super::memory;

/// A request that has been checked.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) model: String,
    pub(crate) tools: Vec<Tool>,
    /// What the user said, oldest first; the last one opened the current turn.
    pub(crate) statements: Vec<String>,
    /// The model's last text before the current turn.
    pub(crate) last_answer: Option<String>,
    /// Names of the tools called before the current turn, in order.
    pub(crate) called_before: Vec<String>,
    /// Rounds of tools in the current turn so far.
    pub(crate) rounds: usize,
    /// What the tools of the current turn answered, in order.
    pub(crate) results: Vec<ToolAnswer>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) schema: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolAnswer {
    pub(crate) tool: String,
    pub(crate) text: String,
    pub(crate) failed: bool,
}

struct Message {
    role: Role,
    blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    User,
    Assistant,
}

enum Block {
    Text(String),
    ToolUse { id: String, name: String },
    ToolResult { id: String, text: String, failed: bool },
    Other,
}

impl Conversation {
    /// The statement that opened the current turn.
    pub(crate) fn said(&self) -> &str {
        self.statements.last().map_or("", String::as_str)
    }

    pub(crate) fn read(request: &Value) -> Result<Conversation, String> {
        let model = request["model"].as_str().ok_or("model: a string is required")?.to_owned();
        let messages = request["messages"].as_array().ok_or("messages: a list is required")?;
        let messages: Vec<Message> = messages
            .iter()
            .enumerate()
            .map(|(place, message)| Message::read(place, message))
            .collect::<Result<_, _>>()?;
        check(&messages)?;
        let tools = request["tools"].as_array().map(|tools| tools.iter().filter_map(Tool::read).collect());

        let mut conversation = Conversation {
            model,
            tools: tools.unwrap_or_default(),
            statements: Vec::new(),
            last_answer: None,
            called_before: Vec::new(),
            rounds: 0,
            results: Vec::new(),
        };
        let mut spoken = None;
        let mut calls: Vec<(String, String)> = Vec::new();
        for message in messages {
            match message.role {
                Role::User => conversation.hear(message.blocks, &mut spoken, &mut calls),
                Role::Assistant => {
                    let mut uses = 0;
                    for block in message.blocks {
                        match block {
                            Block::Text(text) => spoken = Some(text),
                            Block::ToolUse { id, name } => {
                                calls.push((id, name));
                                uses += 1;
                            }
                            Block::ToolResult { .. } | Block::Other => {}
                        }
                    }
                    if uses > 0 {
                        conversation.rounds += 1;
                    }
                    if let Some(remembered) = spoken.as_deref().and_then(memory::recall) {
                        conversation.statements = remembered;
                    }
                }
            }
        }
        Ok(conversation)
    }

    fn hear(&mut self, blocks: Vec<Block>, spoken: &mut Option<String>, calls: &mut Vec<(String, String)>) {
        let mut said = Vec::new();
        for block in blocks {
            match block {
                Block::ToolResult { id, text, failed } => {
                    let call = calls.iter().find(|(call, _)| *call == id);
                    let tool = call.map_or_else(String::new, |(_, name)| name.clone());
                    self.results.push(ToolAnswer { tool, text, failed });
                }
                Block::Text(text) if text.trim() != memory::PREAMBLE && !text.trim().is_empty() => said.push(text),
                Block::Text(_) | Block::ToolUse { .. } | Block::Other => {}
            }
        }
        if said.is_empty() {
            return;
        }
        // A text of the user begins a new turn, even if it comes together with tool results.
        self.statements.extend(said);
        self.called_before.extend(calls.drain(..).map(|(_, name)| name));
        self.last_answer = spoken.take();
        self.rounds = 0;
        self.results.clear();
    }
}

impl Tool {
    fn read(tool: &Value) -> Option<Tool> {
        Some(Tool { name: tool["name"].as_str()?.to_owned(), schema: tool["input_schema"].clone() })
    }
}

impl Message {
    fn read(place: usize, message: &Value) -> Result<Message, String> {
        let role = match message["role"].as_str() {
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some(_) | None => return Err(format!("messages.{place}.role: must be user or assistant")),
        };
        let blocks = match &message["content"] {
            Value::String(text) => vec![Block::Text(text.clone())],
            Value::Array(blocks) if !blocks.is_empty() => blocks.iter().map(Block::read).collect(),
            _ => {
                return Err(format!(
                    "messages.{place}.content: must be a string or a list of blocks that is not empty"
                ));
            }
        };
        Ok(Message { role, blocks })
    }

    fn uses(&self) -> Vec<&str> {
        let ids = self.blocks.iter().filter_map(|block| match block {
            Block::ToolUse { id, .. } => Some(id.as_str()),
            Block::Text(_) | Block::ToolResult { .. } | Block::Other => None,
        });
        ids.collect()
    }

    fn results(&self) -> Vec<&str> {
        let ids = self.blocks.iter().filter_map(|block| match block {
            Block::ToolResult { id, .. } => Some(id.as_str()),
            Block::Text(_) | Block::ToolUse { .. } | Block::Other => None,
        });
        ids.collect()
    }
}

impl Block {
    fn read(block: &Value) -> Block {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        match block["type"].as_str() {
            Some("text") => Block::Text(text("text")),
            Some("tool_use") => Block::ToolUse { id: text("id"), name: text("name") },
            Some("tool_result") => Block::ToolResult {
                id: text("tool_use_id"),
                text: flat(&block["content"]),
                failed: block["is_error"] == Value::Bool(true),
            },
            Some(_) | None => Block::Other,
        }
    }
}

/// The text of a tool result, which is either a string or a list of blocks.
fn flat(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn check(messages: &[Message]) -> Result<(), String> {
    let first = messages.first().ok_or("messages: at least one message is required")?;
    if first.role != Role::User {
        return Err("messages.0: the first message must use the user role".to_owned());
    }
    if let Some(place) = messages.windows(2).position(|pair| pair[0].role == pair[1].role) {
        return Err(format!("messages.{}: roles must alternate between user and assistant", place + 1));
    }
    if messages.last().is_some_and(|last| last.role == Role::Assistant) {
        return Err("messages: the last message must use the user role".to_owned());
    }
    let mut awaited: Vec<&str> = Vec::new();
    for (place, message) in messages.iter().enumerate() {
        let results = message.results();
        if let Some(missing) = awaited.iter().find(|id| !results.contains(id)) {
            return Err(format!("messages.{place}: tool_use {missing} has no tool_result right after it"));
        }
        if let Some(stray) = results.iter().find(|id| !awaited.contains(id)) {
            return Err(format!("messages.{place}: tool_result {stray} has no tool_use in the message before"));
        }
        if results.len() > awaited.len() {
            return Err(format!("messages.{place}: a tool_use has more than one tool_result"));
        }
        awaited = message.uses();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(messages: &Value) -> String {
        Conversation::read(&json!({"model": "demo", "messages": messages})).unwrap_err()
    }

    fn call(id: &str) -> Value {
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "echo", "input": {}}]})
    }

    fn result(id: &str) -> Value {
        json!({"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": "done"}]})
    }

    #[test]
    fn what_the_real_model_refuses_is_refused() {
        let hello = json!({"role": "user", "content": "hello"});
        let reply = json!({"role": "assistant", "content": "hi"});
        assert_eq!(refusal(&json!([])), "messages: at least one message is required");
        assert_eq!(refusal(&json!([reply])), "messages.0: the first message must use the user role");
        assert_eq!(refusal(&json!([hello, hello])), "messages.1: roles must alternate between user and assistant");
        assert_eq!(refusal(&json!([hello, reply])), "messages: the last message must use the user role");
        assert!(refusal(&json!([{"role": "user", "content": []}])).starts_with("messages.0.content"));
        assert!(refusal(&json!([hello, call("t1"), hello])).contains("t1 has no tool_result"));
        assert!(refusal(&json!([hello, reply, {"role": "user", "content": [result("t1")]}])).contains("no tool_use"));
        let twice = json!([hello, call("t1"), {"role": "user", "content": [result("t1"), result("t1")]}]);
        assert!(refusal(&twice).contains("more than one"));
    }

    #[test]
    fn a_turn_begins_with_the_users_last_words() {
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "use echo"}]},
            call("t1"),
            {"role": "user", "content": [result("t1"), {"type": "text", "text": "use it again"}]},
            call("t2"),
            {"role": "user", "content": [result("t2")]},
        ]);
        let read = Conversation::read(&json!({"model": "demo", "messages": messages})).unwrap();
        assert_eq!(read.statements, ["use echo", "use it again"]);
        assert_eq!((read.rounds, read.results.len()), (1, 1));
        let expected = ToolAnswer { tool: "echo".to_owned(), text: "done".to_owned(), failed: false };
        assert_eq!(read.results, [expected]);
        assert_eq!(read.called_before, ["echo"]);
    }
}
