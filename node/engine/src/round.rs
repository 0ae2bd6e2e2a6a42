//! One round of tool uses: which tools the model used in one answer, who runs each, and which results have come back.
//!
//! A message that continues a paused turn is merged with the round here (docs/api.md 3.6). The merged message has one
//! result for each tool use, in the order of the uses. For a tool that the server ran, the server's own result counts.

use crate::event::payload::CommandOutput;
use crate::history::blocks;
use crate::ids::{EventId, KeyId, SubagentId};
use crate::json::{self, Object, Raw};
use crate::message::Role;
use crate::params::SendMessage;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::sync::Arc;

/// The result of a client's tool use that was not answered before its pause was given up (docs/api.md 3.5).
pub const ABANDONED: &str = "Client tool call was abandoned before returning a result.";

/// Who runs a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dispatch {
    /// The acting client. The turn pauses until it answers.
    Client,
    /// An MCP server. Also for a tool that nobody offers, without the name of a server.
    Mcp,
    /// The session's remote sandbox.
    Sandbox,
    /// A remote subagent.
    Subagent,
}

impl Dispatch {
    /// The word in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Dispatch::Client => "client",
            Dispatch::Mcp => "mcp",
            Dispatch::Sandbox => "sandbox",
            Dispatch::Subagent => "subagent",
        }
    }
}

/// A tool use and who runs it: the payload of `tool.call`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToolUse {
    /// The id that the model gave it, which its result names.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments, unchanged.
    pub input: Raw,
    /// Who runs it. This is decided once, in the append that records the answer.
    pub dispatch: Dispatch,
    /// The MCP server that offers the tool, if one does.
    pub server_name: Option<String>,
}

/// Where a tool use was sent, as the log says. After a node was lost, this tells the next owner how to find out what
/// became of the tool use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Running {
    /// To an MCP server: `mcp.request` is logged.
    Mcp,
    /// To a sandbox: `sandbox.request` is logged.
    Sandbox,
    /// As a subagent under this id: `session.subagent.start` is logged.
    Subagent(SubagentId),
}

/// The payload of a `tool.result` that the server made.
#[derive(Debug, Serialize, Deserialize)]
pub struct ToolResult {
    /// The id of the tool use that it answers.
    pub tool_use_id: String,
    /// Who ran the tool.
    pub dispatch: Dispatch,
    /// The MCP server that ran the tool, if one did.
    pub server_name: Option<String>,
    /// Whether the tool failed.
    #[serde(default)]
    pub is_error: bool,
    /// What the model sees: a string or blocks.
    pub content: Raw,
}

impl ToolResult {
    /// The `tool_result` block in the history.
    pub fn block(&self) -> Raw {
        let id = json::encode(&self.tool_use_id);
        let error = if self.is_error { r#","is_error":true"# } else { "" };
        json::built(format!(r#"{{"type":"tool_result","tool_use_id":{id},"content":{}{error}}}"#, self.content))
    }
}

/// The content that has one text block.
pub fn text_content(text: &str) -> Raw {
    json::built(format!(r#"[{{"type":"text","text":{}}}]"#, json::encode(text)))
}

/// What the model sees of a command that ran in a sandbox (docs/api.md 6): standard output, then standard error and the
/// exit code under headings of their own, where there is something to say.
pub fn command_text(output: &CommandOutput) -> String {
    let mut text = output.stdout.clone();
    let mut section = |part: std::fmt::Arguments<'_>| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let _ = text.write_fmt(part);
    };
    if !output.stderr.is_empty() {
        section(format_args!("[stderr]\n{}", output.stderr));
    }
    if output.exit_code != 0 {
        section(format_args!("[exit_code: {}]", output.exit_code));
    }
    text
}

/// A round, from the answer with the tool uses to the message with their results.
#[derive(Debug, Clone)]
pub struct Round {
    /// The client key whose turn it is. After a pause this client may answer.
    pub key: KeyId,
    /// The event of the model's answer.
    pub event: EventId,
    /// The content of the answer, unchanged.
    pub content: Raw,
    /// The tool uses in the answer, in order.
    pub uses: Vec<ToolUse>,
    /// For each tool use the result of the server as a block, if there is one already.
    pub results: Vec<Option<Raw>>,
    /// Where the tool use that runs now was sent: its request is in the log and its response is not.
    pub running: Option<Running>,
}

/// The message that continues a paused turn, merged with the server's results.
#[derive(Debug)]
pub struct Merged {
    /// The content of the user message.
    pub content: Raw,
    /// The results of the tool uses of the client, in order.
    pub results: Vec<ClientResult>,
}

/// The result of a tool use of the client.
#[derive(Debug)]
pub struct ClientResult {
    /// The `tool_result` block, as sent or made up.
    pub block: Raw,
    /// The payload of its `tool.result` event.
    pub payload: Raw,
    /// Whether the client sent it. Otherwise the server made it, because the client did not.
    pub sent: bool,
}

impl Round {
    /// The index of the first tool use of the server that has no result.
    pub fn next(&self) -> Option<usize> {
        self.uses.iter().zip(&self.results).position(|(u, result)| u.dispatch != Dispatch::Client && result.is_none())
    }

    /// Whether the client has a tool use to answer.
    pub fn needs_client(&self) -> bool {
        self.client_uses().next().is_some()
    }

    /// Records a result of the server.
    pub fn answer(&mut self, result: &ToolResult) {
        let place = self.uses.iter().position(|u| u.id == result.tool_use_id);
        if let Some(slot) = place.and_then(|place| self.results.get_mut(place)) {
            *slot = Some(result.block());
            self.running = None;
        }
    }

    /// The answer's content with every tool use tagged with its dispatch, as clients see a pause.
    pub fn tagged(&self) -> Raw {
        let content = blocks(&self.content);
        let tagged: Vec<Raw> = content
            .into_iter()
            .map(|block| {
                let used = Object::parse(&block).filter(|b| b.str("type").as_deref() == Some("tool_use"));
                let found = used.and_then(|b| {
                    let id = b.str("id")?;
                    let tool_use = self.uses.iter().find(|u| u.id == id)?;
                    Some(b.with(&[("dispatch", &json::encode(&tool_use.dispatch))]))
                });
                found.unwrap_or(block)
            })
            .collect();
        json::join(tagged.iter().map(|block| &**block))
    }

    /// All results as the content of a message. None while one is missing.
    pub fn server_results(&self) -> Option<Raw> {
        let results: Option<Vec<&Raw>> = self.results.iter().map(Option::as_ref).collect();
        results.map(|results| json::join(results.into_iter().map(|r| &**r)))
    }

    /// Gives the round up: the client's tool uses get error results, and the blocks of `others` follow.
    pub fn abandon(&self, others: &[Raw]) -> Merged {
        self.merge(&[], others)
    }

    /// Merges a message that the pause's owner sent: tool results, or a plain message, which gives the round up.
    ///
    /// # Errors
    /// Says why the tool results do not fit the round. The session cannot go on then.
    pub fn continue_with(&self, message: &SendMessage) -> Result<Merged, String> {
        if message.role != Role::User.as_str() {
            return Err(format!("the message's role is {:?}; tool results come from \"user\"", message.role));
        }
        let content = blocks(&message.content);
        if !message.answers {
            return Ok(self.abandon(&content));
        }
        let (mut results, mut others): (Vec<(String, Raw)>, Vec<Raw>) = (Vec::new(), Vec::new());
        for block in content {
            let answered = Object::parse(&block)
                .filter(|b| b.str("type").as_deref() == Some("tool_result"))
                .and_then(|b| b.str("tool_use_id").map(|id| id.into_owned()));
            let Some(id) = answered else {
                others.push(block);
                continue;
            };
            if self.uses.iter().all(|u| u.id != id) {
                return Err(format!("no tool use of the paused turn has the id {id:?}"));
            }
            // Where the server has a result of its own, the client's copy is dropped.
            if self.client_uses().any(|u| u.id == id) {
                if results.iter().any(|(seen, _)| *seen == id) {
                    return Err(format!("two results for the tool use {id:?}"));
                }
                results.push((id, block));
            }
        }
        if let Some(missing) = self.client_uses().find(|u| results.iter().all(|(id, _)| *id != u.id)) {
            return Err(format!("no result for the tool use {:?}", missing.id));
        }
        Ok(self.merge(&results, &others))
    }

    /// The tool uses that the client has to answer: those of its tools, unless the server has answered one because its
    /// arguments were broken (docs/api.md 5.9).
    fn client_uses(&self) -> impl Iterator<Item = &ToolUse> {
        let uses = self.uses.iter().zip(&self.results);
        uses.filter(|(u, result)| u.dispatch == Dispatch::Client && result.is_none()).map(|(u, _)| u)
    }

    fn merge(&self, sent: &[(String, Raw)], others: &[Raw]) -> Merged {
        let (mut content, mut results) = (Vec::with_capacity(self.uses.len() + others.len()), Vec::new());
        for (u, own) in self.uses.iter().zip(&self.results) {
            if u.dispatch != Dispatch::Client || own.is_some() {
                content.extend(own.clone());
                continue;
            }
            let result = match sent.iter().find(|(id, _)| *id == u.id) {
                Some((_, block)) => {
                    ClientResult { block: Arc::clone(block), payload: client_payload(block), sent: true }
                }
                None => {
                    let made_up = abandoned(u);
                    ClientResult { block: made_up.block(), payload: json::encode(&made_up), sent: false }
                }
            };
            content.push(Arc::clone(&result.block));
            results.push(result);
        }
        Merged { content: json::join(content.iter().chain(others).map(|block| &**block)), results }
    }
}

/// The error result of a client's tool use that was given up.
fn abandoned(u: &ToolUse) -> ToolResult {
    ToolResult {
        tool_use_id: u.id.clone(),
        dispatch: Dispatch::Client,
        server_name: None,
        is_error: true,
        content: json::encode(ABANDONED),
    }
}

/// The payload of the `tool.result` for a block that a client sent: the block with the event's fields added
/// (docs/api.md 6).
fn client_payload(block: &Raw) -> Raw {
    let Some(members) = Object::parse(block) else { return Arc::clone(block) };
    let (client, null, no, empty) =
        (json::encode(&Dispatch::Client), json::encode(&()), json::encode(&false), json::encode(""));
    let mut fields = vec![("dispatch", &*client), ("server_name", &*null)];
    if members.get("is_error").is_none() {
        fields.push(("is_error", &*no));
    }
    if members.get("content").is_none() {
        fields.push(("content", &*empty));
    }
    members.with(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commands_output_is_one_text() {
        for (stdout, stderr, exit_code, text) in [
            ("", "", 0, ""),
            ("a\n", "", 0, "a\n"),
            ("a", "e", 0, "a\n[stderr]\ne"),
            ("a\n", "e\n", 2, "a\n[stderr]\ne\n[exit_code: 2]"),
            ("", "e", 1, "[stderr]\ne\n[exit_code: 1]"),
            ("", "", 3, "[exit_code: 3]"),
        ] {
            let output = CommandOutput { stdout: stdout.into(), stderr: stderr.into(), exit_code };
            assert_eq!(command_text(&output), text);
        }
    }
}
