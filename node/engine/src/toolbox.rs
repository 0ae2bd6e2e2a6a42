//! The tools of one turn: what the model is offered, and where each goes (docs/api.md 3.7).
//!
//! Only the acting client's declarations and the session's MCP tools are in it. Of several tools with one name the first
//! counts: the client's own, its sandbox's, its subagents', then MCP's.

use crate::json::{self, Raw};
use crate::round::Dispatch;
use crate::tools::subagent::SubagentTool;
use crate::tools::{Declarations, Tool, offered};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// A tool of an MCP server, as it offered it when the session was created.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct McpTool {
    /// The server that offers it.
    pub server: String,
    /// Its name.
    pub name: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its arguments' schema.
    pub input_schema: Raw,
}

/// What a turn can use.
#[derive(Debug, Clone)]
pub struct Toolbox {
    declared: Declarations,
    mcp: HashMap<String, String>,
    offered: Raw,
}

impl Toolbox {
    /// The tools of a client in a session.
    pub fn new(declared: Declarations, mcp: &[McpTool]) -> Self {
        let mut list: Vec<Raw> = declared.each().map(Tool::offered).collect();
        let mut servers = HashMap::new();
        for tool in mcp {
            if declared.get(&tool.name).is_none() && !servers.contains_key(&tool.name) {
                list.push(offered(&tool.name, tool.description.as_deref(), Some(&tool.input_schema)));
                servers.insert(tool.name.clone(), tool.server.clone());
            }
        }
        let offered = json::join(list.iter().map(|tool| &**tool));
        Self { declared, mcp: servers, offered }
    }

    /// The array of tools a provider request carries.
    pub fn offered(&self) -> Raw {
        Arc::clone(&self.offered)
    }

    /// Who runs a tool, and on which MCP server. A name that nobody offers is MCP's, with no server.
    pub fn route(&self, name: &str) -> (Dispatch, Option<String>) {
        match self.declared.get(name) {
            Some(Tool::Client(_)) => (Dispatch::Client, None),
            Some(Tool::Sandbox(_)) => (Dispatch::Sandbox, None),
            Some(Tool::Subagent(_)) => (Dispatch::Subagent, None),
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
