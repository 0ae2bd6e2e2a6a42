//! The tools of one turn: what the model is offered, and who runs each tool (docs/api.md 3.7).
//!
//! Only the acting client's declarations and the session's MCP tools are in it. Of several tools with one name the
//! first counts: the client's own, its sandbox's, its subagents', then MCP's. It also holds the server's
//! own status tool, whose name nobody can declare.

use crate::json::{self, Raw};
use crate::round::Dispatch;
use crate::tools::subagent::SubagentTool;
use crate::tools::{Declarations, SUBAGENT_STATUS, Tool, offered};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// A tool of an MCP server, as the server offered it when the session was created.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct McpTool {
    /// The name of the server.
    pub server: String,
    /// The name of the tool.
    pub name: String,
    /// What the tool does, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON schema of the arguments.
    pub input_schema: Raw,
}

/// The tools that a turn can use.
#[derive(Debug, Clone)]
pub struct Toolbox {
    declared: Declarations,
    mcp: HashMap<String, String>,
    offered: Raw,
}

impl Toolbox {
    /// The tools of a client in a session that tracks so many subagents: with the first of them the status tool is
    /// offered (docs/api.md 8.6).
    pub fn new(declared: Declarations, mcp: &[McpTool], tracked_subagents: usize) -> Self {
        let mut list: Vec<Raw> = declared.each().map(Tool::offered).collect();
        if tracked_subagents > 0 {
            list.push(crate::subagent::status_tool());
        }
        let mut servers = HashMap::new();
        for tool in mcp {
            let taken = tool.name == SUBAGENT_STATUS || declared.get(&tool.name).is_some();
            if !taken && !servers.contains_key(&tool.name) {
                list.push(offered(&tool.name, tool.description.as_deref(), Some(&tool.input_schema)));
                servers.insert(tool.name.clone(), tool.server.clone());
            }
        }
        let offered = json::join(list.iter().map(|tool| &**tool));
        Self { declared, mcp: servers, offered }
    }

    /// The array of tools for a provider request.
    pub fn offered(&self) -> Raw {
        Arc::clone(&self.offered)
    }

    /// Who runs a tool and, for an MCP tool, on which server. A name that nobody offers counts as an MCP tool without a
    /// server.
    pub fn route(&self, name: &str) -> (Dispatch, Option<String>) {
        match self.declared.get(name) {
            Some(Tool::Client(_)) => (Dispatch::Client, None),
            Some(Tool::Sandbox(_)) => (Dispatch::Sandbox, None),
            Some(Tool::Subagent(_)) => (Dispatch::Subagent, None),
            None if name == SUBAGENT_STATUS => (Dispatch::Subagent, None),
            None => (Dispatch::Mcp, self.mcp.get(name).cloned()),
        }
    }

    /// The subagent tool of that name.
    pub fn subagent(&self, name: &str) -> Option<&SubagentTool> {
        match self.declared.get(name) {
            Some(Tool::Subagent(tool)) => Some(tool),
            Some(Tool::Client(_) | Tool::Sandbox(_)) | None => None,
        }
    }
}
