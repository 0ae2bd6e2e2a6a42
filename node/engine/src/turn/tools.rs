//! Runs the server's tools of a round one after the other. Each gets a request, a response and a result in the log.

use super::fold::is_tool_use;
use super::{Action, Context, McpReply, SandboxReply, Turn};
use crate::event::payload::{
    Dispatched, McpLost, McpRequest, McpResponse, SandboxRequest, SandboxResponse, ServerMessage, SubagentFailed,
    SubagentRunning, SubagentStart,
};
use crate::ids::{KeyId, SandboxId, SubagentId};
use crate::json::{self, Object, Raw};
use crate::provider::Answer;
use crate::round::{Dispatch, Running, ToolResult, ToolUse, command_text, text_content};
use crate::subagent;
use crate::tools::SUBAGENT_STATUS;

/// What the model is told of a tool use with broken arguments.
const BROKEN: &str =
    "the arguments of this call are not a JSON object, so the tool was not run; call it again with arguments that are";

/// What the model is told of a tool call whose node was lost (ARCHITECTURE.md, I6).
const LOST: &str = "the outcome of this call is unknown: the node running it was lost";

impl Turn {
    /// Makes a `tool.call` for every tool use of an answer. Who runs the tool is decided here and nowhere else. A tool use
    /// whose arguments are broken is not run: it gets its result here (docs/api.md 5.9).
    pub(super) fn call_tools(&mut self, ctx: &Context<'_>, key: KeyId, answer: &Answer) {
        let mut broken = Vec::new();
        for block in answer.blocks.iter().filter(|block| is_tool_use(block)) {
            let Some(members) = Object::parse(block) else { continue };
            let (Some(id), Some(name)) = (members.str("id"), members.str("name")) else { continue };
            let input =
                members.get("input").map_or_else(|| json::built("{}".into()), |input| Raw::from(input.to_owned()));
            let (dispatch, server_name) = ctx.tools.route(&name);
            let tool_use = ToolUse { id: id.into_owned(), name: name.into_owned(), input, dispatch, server_name };
            self.log(ctx, key, &tool_use);
            if answer.broken.contains(&tool_use.id) {
                broken.push(tool_use);
            }
        }
        for tool_use in broken {
            self.tool_answered(ctx, key, &tool_use, true, text_content(BROKEN));
        }
    }

    /// Starts the next tool that the server runs. None if that needs no action outside of the engine.
    pub(super) fn next_tool(&mut self, ctx: &Context<'_>, key: KeyId) -> Option<Action> {
        let round = self.round.as_ref()?;
        let Some(tool_use) = round.next().and_then(|place| round.uses.get(place)).cloned() else {
            debug_assert!(self.client_has_part(), "a round of server tools that is answered is in history");
            let answer = ServerMessage::assistant(round.tagged());
            self.log(ctx, key, &answer);
            return None;
        };
        if let Some(running) = round.running {
            return self.under_way(ctx, key, tool_use, running);
        }
        match (tool_use.dispatch, &tool_use.server_name) {
            (Dispatch::Mcp | Dispatch::Client, server) => {
                let request = McpRequest {
                    method: "tools/call".to_owned(),
                    server_name: server.clone(),
                    tool: tool_use.name.clone(),
                    input: tool_use.input.clone(),
                };
                self.log(ctx, key, &request);
                if server.is_some() {
                    return Some(Action::Mcp(tool_use));
                }
                let error = format!("no MCP server is configured for tool '{}'", tool_use.name);
                self.mcp_answered(ctx, McpReply::Failed(error));
                None
            }
            (Dispatch::Sandbox, _) => self.run_command(ctx, key, tool_use),
            (Dispatch::Subagent, _) if tool_use.name == SUBAGENT_STATUS => {
                let input = Object::parse(&tool_use.input).unwrap_or_default();
                Some(Action::SubagentStatus(input.str("subagent_id").map(|id| id.into_owned())))
            }
            (Dispatch::Subagent, _) => self.launch(ctx, key, tool_use),
        }
    }

    /// The action for a tool use whose request is logged and whose response is not. MCP calls and commands get here
    /// only in the process that logged their request, because [`Turn::recover`] ends those of a lost node.
    fn under_way(&mut self, ctx: &Context<'_>, key: KeyId, tool_use: ToolUse, running: Running) -> Option<Action> {
        let id = match running {
            Running::Mcp => return Some(Action::Mcp(tool_use)),
            Running::Sandbox => {
                let command = command(&tool_use);
                return Some(Action::Sandbox(tool_use, command));
            }
            Running::Subagent(id) => id,
        };
        match self.checked(ctx, &tool_use) {
            Ok(launch) => Some(Action::Launch(id, launch)),
            Err(text) => {
                let detail = text.strip_prefix("subagent error: ").unwrap_or(&text);
                let input = Object::parse(&tool_use.input).unwrap_or_default();
                let text = |member: &str| input.str(member).unwrap_or_default();
                let start = lifecycle(id, &text("harness"), &text("model"));
                self.not_launched(ctx, key, &tool_use, start, detail);
                None
            }
        }
    }

    /// Records that a subagent whose start is logged does not run, and why.
    fn not_launched(&mut self, ctx: &Context<'_>, key: KeyId, tool_use: &ToolUse, start: SubagentStart, detail: &str) {
        let failed = SubagentFailed {
            detail: Some(detail.to_owned()),
            dispatch: start.dispatch,
            exit_code: None,
            harness: start.harness,
            model: start.model,
            reason: Some("spawn_failed".to_owned()),
            subagent_id: start.subagent_id,
        };
        self.log(ctx, key, &failed);
        let text = format!("subagent error: it could not be started: {detail}");
        self.tool_answered(ctx, key, tool_use, true, text_content(&text));
    }

    /// Records the request of a command and asks for it to be run in the session's sandbox.
    fn run_command(&mut self, ctx: &Context<'_>, key: KeyId, tool_use: ToolUse) -> Option<Action> {
        let command = command(&tool_use);
        let (tool, input) = (tool_use.name.clone(), tool_use.input.clone());
        self.log(ctx, key, &SandboxRequest { tool, input, command: command.clone() });
        Some(Action::Sandbox(tool_use, command))
    }

    /// Records the result of the command that [`Turn::next`] asked for.
    pub fn sandbox_answered(&mut self, ctx: &Context<'_>, reply: SandboxReply) {
        let Some((key, tool_use)) = self.current_use() else { return };
        match reply {
            SandboxReply::Ran(sandbox, output) => {
                let (ok, text) = (output.exit_code == 0, command_text(&output));
                // No provider accepts an empty text.
                let content = if text.is_empty() { json::built("[]".into()) } else { text_content(&text) };
                let sandbox_id = Some(sandbox);
                self.log(ctx, key, &SandboxResponse { error: None, ok, result: Some(output), sandbox_id });
                self.tool_answered(ctx, key, &tool_use, !ok, content);
            }
            SandboxReply::NotRunning => {
                let name = &tool_use.name;
                let error =
                    format!("no remote sandbox is running for tool '{name}'; call session.startRemoteSandbox first");
                self.sandbox_failed(ctx, key, &tool_use, None, &error);
            }
            SandboxReply::Failed(sandbox, error) => self.sandbox_failed(ctx, key, &tool_use, Some(sandbox), &error),
        }
    }

    /// Records that the command did not run to its end, and why.
    fn sandbox_failed(
        &mut self,
        ctx: &Context<'_>,
        key: KeyId,
        tool_use: &ToolUse,
        sandbox_id: Option<SandboxId>,
        error: &str,
    ) {
        self.log(ctx, key, &SandboxResponse { error: Some(error.to_owned()), ok: false, result: None, sandbox_id });
        self.tool_answered(ctx, key, tool_use, true, text_content(&format!("sandbox error: {error}")));
    }

    /// Records the answer of the status tool, or the text of its error.
    pub fn status_read(&mut self, ctx: &Context<'_>, status: Result<String, String>) {
        let Some((key, tool_use)) = self.current_use() else { return };
        let (is_error, text) = match status {
            Ok(text) => (false, text),
            Err(text) => (true, text),
        };
        self.tool_answered(ctx, key, &tool_use, is_error, text_content(&text));
    }

    /// Checks what a tool use asks to launch, or says why it cannot be launched. A subagent whose start is logged was
    /// checked against the limit before, so the limit does not apply to it again.
    fn checked(&self, ctx: &Context<'_>, tool_use: &ToolUse) -> Result<subagent::Launch, String> {
        let launching = self.round.as_ref().is_some_and(|round| round.running.is_some());
        let running = if launching { 0 } else { ctx.running_subagents };
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
                self.log(ctx, key, &lifecycle(id, &launch.harness, &launch.model));
                Some(Action::Launch(id, launch))
            }
        }
    }

    /// Records whether the subagent that [`Turn::next`] asked for was started, or why not.
    pub fn launched(
        &mut self,
        ctx: &Context<'_>,
        id: SubagentId,
        launch: &subagent::Launch,
        started: Result<(), String>,
    ) {
        let Some((key, tool_use)) = self.current_use() else { return };
        let start = lifecycle(id, &launch.harness, &launch.model);
        match started {
            Ok(()) => {
                self.log(ctx, key, &SubagentRunning(start));
                self.tool_answered(ctx, key, &tool_use, false, text_content(&subagent::started(id, launch)));
            }
            Err(detail) => self.not_launched(ctx, key, &tool_use, start, &detail),
        }
    }

    /// Records the result of the MCP call that [`Turn::next`] asked for.
    pub fn mcp_answered(&mut self, ctx: &Context<'_>, reply: McpReply) {
        let Some((key, tool_use)) = self.current_use() else { return };
        let server_name = tool_use.server_name.clone();
        let (response, is_error, content) = match reply {
            McpReply::Result { result, is_error, content } => {
                (McpResponse { server_name, ok: !is_error, result: Some(result), error: None }, is_error, content)
            }
            McpReply::Failed(error) => {
                let content = text_content(&format!("MCP error: {error}"));
                (McpResponse { server_name, ok: false, result: None, error: Some(error) }, true, content)
            }
        };
        self.log(ctx, key, &response);
        self.tool_answered(ctx, key, &tool_use, is_error, content);
    }

    /// Ends the tool call that was running when its node was lost: whether it ran is unknown, so it is not repeated.
    /// The start of a subagent is repeated, because the subagent's id makes a second start have no effect.
    pub(super) fn fail_interrupted_tool(&mut self, ctx: &Context<'_>, key: KeyId) {
        let Some(running) = self.round.as_ref().and_then(|round| round.running) else { return };
        let Some((_, tool_use)) = self.current_use() else { return };
        match running {
            Running::Mcp => {
                let server_name = tool_use.server_name.clone();
                self.log(ctx, key, &McpLost { error: LOST.to_owned(), ok: false, server_name });
                self.tool_answered(ctx, key, &tool_use, true, text_content(&format!("MCP error: {LOST}")));
            }
            Running::Sandbox => self.sandbox_failed(ctx, key, &tool_use, None, LOST),
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
        self.log(ctx, key, &result);
    }
}

/// The command of a sandbox tool's use, if its input has one.
fn command(tool_use: &ToolUse) -> Option<String> {
    let input = Object::parse(&tool_use.input)?;
    input.str("command").map(|command| command.into_owned())
}

fn lifecycle(id: SubagentId, harness: &str, model: &str) -> SubagentStart {
    SubagentStart {
        detail: None,
        dispatch: Dispatched::Remote,
        harness: harness.to_owned(),
        model: model.to_owned(),
        subagent_id: id.to_string(),
    }
}
