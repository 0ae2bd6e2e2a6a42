//! The server's part of a round of tool uses: one after the other, each with its request, its response and its result.

use super::fold::is_tool_use;
use super::open::event;
use super::{Action, Context, McpReply, Turn};
use crate::event::{EventType, NewEvent};
use crate::ids::{EventId, KeyId, SubagentId};
use crate::json::{self, Object, Raw};
use crate::provider::Answer;
use crate::round::{Dispatch, Running, ToolResult, ToolUse, text_content};
use crate::subagent;
use serde_json::json;

/// What the model is told of a call whose node was lost (ARCHITECTURE.md, I6).
const LOST: &str = "the outcome of this call is unknown: the node running it was lost";

impl Turn {
    /// A `tool.call` for every tool use of an answer: where each goes is decided here, once.
    pub(super) fn call_tools(&mut self, ctx: &Context<'_>, key: KeyId, answer: &Answer) {
        for block in answer.blocks.iter().filter(|block| is_tool_use(block)) {
            let Some(members) = Object::parse(block) else { continue };
            let (Some(id), Some(name)) = (members.str("id"), members.str("name")) else { continue };
            let input =
                members.get("input").map_or_else(|| json::built("{}".into()), |input| Raw::from(input.to_owned()));
            let (dispatch, server_name) = ctx.tools.route(&name);
            let tool_use = ToolUse { id: id.into_owned(), name: name.into_owned(), input, dispatch, server_name };
            self.make(event(ctx, key, EventType::ToolCall, json::encode(&tool_use)));
        }
    }

    /// Goes on with the round; none if there is nothing external to do now.
    pub(super) fn next_tool(&mut self, ctx: &Context<'_>, key: KeyId) -> Option<Action> {
        let round = self.round.as_ref()?;
        let Some(tool_use) = round.next().and_then(|place| round.uses.get(place)).cloned() else {
            debug_assert!(self.client_has_part(), "a round of server tools that is answered is in history");
            let payload = json::built(format!(r#"{{"role":"assistant","content":{}}}"#, round.tagged()));
            self.make(event(ctx, key, EventType::ServerMessage, payload));
            return None;
        };
        if let Some(running) = round.running {
            return self.under_way(ctx, key, tool_use, running);
        }
        match (tool_use.dispatch, &tool_use.server_name) {
            (Dispatch::Mcp, Some(server)) => {
                let payload = format!(
                    r#"{{"method":"tools/call","server_name":{},"tool":{},"input":{}}}"#,
                    json::encode(server),
                    json::encode(&tool_use.name),
                    tool_use.input
                );
                self.make(event(ctx, key, EventType::McpRequest, json::built(payload)));
                Some(Action::Mcp(tool_use))
            }
            (Dispatch::Mcp, None) | (Dispatch::Client, _) => {
                let text = format!("MCP error: no MCP server is configured for tool '{}'", tool_use.name);
                self.tool_answered(ctx, key, &tool_use, true, text_content(&text));
                None
            }
            (Dispatch::Sandbox, _) => {
                self.no_sandbox(ctx, key, &tool_use);
                None
            }
            (Dispatch::Subagent, _) => self.launch(ctx, key, tool_use),
        }
    }

    /// The act that the log shows as begun, in the process that begins it.
    fn under_way(&mut self, ctx: &Context<'_>, key: KeyId, tool_use: ToolUse, running: Running) -> Option<Action> {
        let id = match running {
            Running::Mcp => return Some(Action::Mcp(tool_use)),
            // The server runs no sandboxes: request and response are one append, so this is never found.
            Running::Sandbox => {
                self.sandbox_failed(ctx, key, &tool_use, LOST);
                return None;
            }
            Running::Subagent(id) => id,
        };
        match self.checked(ctx, &tool_use) {
            Ok(launch) => Some(Action::Launch(id, launch)),
            Err(text) => {
                let detail = text.strip_prefix("subagent error: ").unwrap_or(&text);
                let input = Object::parse(&tool_use.input).unwrap_or_default();
                let text = |member: &str| input.str(member).unwrap_or_default();
                self.not_launched(ctx, key, &tool_use, lifecycle(id, &text("harness"), &text("model"), Some(detail)));
                None
            }
        }
    }

    /// A start is logged, and the subagent does not run: `payload` says why.
    fn not_launched(&mut self, ctx: &Context<'_>, key: KeyId, tool_use: &ToolUse, mut payload: serde_json::Value) {
        payload["reason"] = json!("spawn_failed");
        payload["exit_code"] = json!(null);
        self.make(NewEvent::new(EventId((ctx.fresh)()), key, EventType::SubagentFailed, &payload));
        let detail = payload["detail"].as_str().unwrap_or_default();
        let text = format!("subagent error: it could not be started: {detail}");
        self.tool_answered(ctx, key, tool_use, true, text_content(&text));
    }

    /// No sandbox runs for this session: the model is told how to get one (docs/api.md 6).
    fn no_sandbox(&mut self, ctx: &Context<'_>, key: KeyId, tool_use: &ToolUse) {
        let command = Object::parse(&tool_use.input).and_then(|input| input.str("command").map(|c| c.into_owned()));
        let payload = format!(
            r#"{{"tool":{},"input":{},"command":{}}}"#,
            json::encode(&tool_use.name),
            tool_use.input,
            json::encode(&command)
        );
        self.make(event(ctx, key, EventType::SandboxRequest, json::built(payload)));
        let error =
            format!("no remote sandbox is running for tool '{}'; call session.startRemoteSandbox first", tool_use.name);
        self.sandbox_failed(ctx, key, tool_use, &error);
    }

    /// No sandbox has run the tool: why.
    fn sandbox_failed(&mut self, ctx: &Context<'_>, key: KeyId, tool_use: &ToolUse, error: &str) {
        let payload = json!({"sandbox_id": null, "ok": false, "error": error});
        self.make(NewEvent::new(EventId((ctx.fresh)()), key, EventType::SandboxResponse, &payload));
        self.tool_answered(ctx, key, tool_use, true, text_content(&format!("sandbox error: {error}")));
    }

    /// The one that is being launched has its place since its start was logged.
    fn checked(&self, ctx: &Context<'_>, tool_use: &ToolUse) -> Result<subagent::Launch, String> {
        let launching = self.round.as_ref().and_then(|round| round.running);
        let running = self.subagents.iter().filter(|id| launching != Some(Running::Subagent(**id))).count();
        let tool = ctx
            .tools
            .subagent(&tool_use.name)
            .ok_or_else(|| format!("the tool '{}' is not declared any more", tool_use.name))?;
        let room = subagent::Room { available_sandboxes: &ctx.available_sandboxes, running, max: ctx.max_subagents };
        subagent::launch(&tool_use.input, tool, room)
    }

    fn launch(&mut self, ctx: &Context<'_>, key: KeyId, tool_use: ToolUse) -> Option<Action> {
        match self.checked(ctx, &tool_use) {
            Err(text) => {
                self.tool_answered(ctx, key, &tool_use, true, text_content(&text));
                None
            }
            Ok(launch) => {
                let id = SubagentId((ctx.fresh)());
                let payload = lifecycle(id, &launch.harness, &launch.model, None);
                self.make(NewEvent::new(EventId((ctx.fresh)()), key, EventType::SubagentStart, &payload));
                Some(Action::Launch(id, launch))
            }
        }
    }

    /// What came of starting a subagent: it runs, or why not.
    pub fn launched(
        &mut self,
        ctx: &Context<'_>,
        id: SubagentId,
        launch: &subagent::Launch,
        started: Result<(), String>,
    ) {
        let Some((key, tool_use)) = self.current_use() else { return };
        let payload = |detail: Option<&str>| lifecycle(id, &launch.harness, &launch.model, detail);
        match started {
            Ok(()) => {
                self.make(NewEvent::new(EventId((ctx.fresh)()), key, EventType::SubagentRunning, &payload(None)));
                self.tool_answered(ctx, key, &tool_use, false, text_content(&subagent::started(id, launch)));
            }
            Err(detail) => self.not_launched(ctx, key, &tool_use, payload(Some(&detail))),
        }
    }

    /// What came of the MCP call.
    pub fn mcp_answered(&mut self, ctx: &Context<'_>, reply: McpReply) {
        let Some((key, tool_use)) = self.current_use() else { return };
        let server = json::encode(&tool_use.server_name);
        let (payload, is_error, content) = match reply {
            McpReply::Result { result, is_error, content } => {
                let ok = !is_error;
                (format!(r#"{{"server_name":{server},"ok":{ok},"result":{result}}}"#), is_error, content)
            }
            McpReply::Failed(error) => {
                let content = text_content(&format!("MCP error: {error}"));
                (format!(r#"{{"server_name":{server},"ok":false,"error":{}}}"#, json::encode(&error)), true, content)
            }
        };
        self.make(event(ctx, key, EventType::McpResponse, json::built(payload)));
        self.tool_answered(ctx, key, &tool_use, is_error, content);
    }

    /// A tool with a recorded request and no response is not run again; a subagent's start is, because its name makes that
    /// the same start.
    pub(super) fn fail_interrupted_tool(&mut self, ctx: &Context<'_>, key: KeyId) {
        let Some(running) = self.round.as_ref().and_then(|round| round.running) else { return };
        let Some((_, tool_use)) = self.current_use() else { return };
        match running {
            Running::Mcp => {
                let payload = json!({"server_name": tool_use.server_name, "ok": false, "error": LOST});
                self.make(NewEvent::new(EventId((ctx.fresh)()), key, EventType::McpResponse, &payload));
                self.tool_answered(ctx, key, &tool_use, true, text_content(&format!("MCP error: {LOST}")));
            }
            Running::Sandbox => self.sandbox_failed(ctx, key, &tool_use, LOST),
            Running::Subagent(_) => {}
        }
    }

    fn current_use(&self) -> Option<(KeyId, ToolUse)> {
        let round = self.round.as_ref()?;
        Some((self.acting()?, round.uses.get(round.next()?)?.clone()))
    }

    fn tool_answered(&mut self, ctx: &Context<'_>, key: KeyId, tool_use: &ToolUse, is_error: bool, content: Raw) {
        let result = ToolResult {
            tool_use_id: tool_use.id.clone(),
            dispatch: tool_use.dispatch,
            server_name: tool_use.server_name.clone(),
            is_error,
            content,
        };
        self.make(event(ctx, key, EventType::ToolResult, json::encode(&result)));
    }
}

fn lifecycle(id: SubagentId, harness: &str, model: &str, detail: Option<&str>) -> serde_json::Value {
    json!({"dispatch": "remote", "subagent_id": id, "harness": harness, "model": model, "detail": detail})
}
