//! Applies events to the state of the turn: events from the log, and those that the turn makes itself.

use super::{Call, Compacting, Context, Stage, Turn};
use crate::event::payload::{
    ClientMessage, CompactionCompleted, CompactionStarted, EventPayload, ProviderResponse, ServerMessage, SessionError,
    Synthetic, Trigger, remote_subagent,
};
use crate::event::{Event, EventType, NewEvent, Payload};
use crate::ids::{CallId, EventId, KeyId};
use crate::json::{Object, Raw};
use crate::message::Role;
use crate::provider::Usage;
use crate::request::{DeltaChain, Kind, Request};
use crate::round::{Round, Running, ToolResult, ToolUse};
use serde::Deserialize;
use std::sync::Arc;

fn read<'a, T: Deserialize<'a>>(payload: &'a Raw) -> Option<T> {
    serde_json::from_str(payload.get()).ok()
}

impl Turn {
    /// Applies a committed event; the caller passes events in the log's order. An event that belongs to no call changes
    /// nothing.
    pub fn apply(&mut self, event: &Event) {
        let Some(call) = event.call else { return };
        self.change(Some(call), &event.event);
        if let Payload::Request(request) = &event.event.payload {
            self.chain = Some(DeltaChain::after(self.chain.as_ref(), event.number, request));
        }
    }

    /// Closes a call that is over although its last event does not show it; the caller knows this from the session's
    /// row in the database.
    pub fn settle(&mut self) {
        if self.running() {
            self.finish();
        }
    }

    pub(super) fn finish(&mut self) {
        self.stage = Stage::Idle;
        self.call = None;
        self.compacting = None;
        self.instruction = None;
    }

    /// Makes an event with this payload; see [`Turn::make`].
    pub(super) fn log(&mut self, ctx: &Context<'_>, key: KeyId, payload: &impl EventPayload) -> EventId {
        let id = EventId((ctx.fresh)());
        self.make(NewEvent::of(id, key, payload));
        id
    }

    /// Applies an event of the turn's own and keeps it for the next append.
    pub(super) fn make(&mut self, event: NewEvent) {
        self.change(None, &event);
        if let Payload::Request(request) = &event.payload {
            self.unnumbered = Some((self.made.len(), Arc::clone(request)));
        }
        self.made.push(event);
    }

    fn change(&mut self, call: Option<CallId>, event: &NewEvent) {
        self.enter(call, event);
        match (&event.payload, event.kind) {
            (Payload::Request(request), _) => self.requested(request),
            (Payload::Json(payload), kind) => self.changed(event, kind, payload),
        }
    }

    /// Starts a new call in the state when the event belongs to another call than the one before. A call that this turn
    /// opened itself has no id until its first event is committed.
    fn enter(&mut self, id: Option<CallId>, event: &NewEvent) {
        let entered = match (&self.call, id) {
            (None, _) => true,
            (Some((known, _)), Some(id)) => known.is_some_and(|known| known != id),
            (Some(_), None) => false,
        };
        if entered {
            let call = Call { key: event.key, compact: true, rounds: 0, reply: None };
            self.call = Some((id, call));
            self.compacting = None;
        } else if let (Some((known @ None, _)), Some(id)) = (&mut self.call, id) {
            *known = Some(id);
        }
    }

    fn requested(&mut self, request: &Arc<Request>) {
        if let Some((_, call)) = &mut self.call
            && !request.compaction
            && request.kind == Kind::Primary
        {
            call.rounds += 1;
        }
        self.stage = Stage::Asking(Arc::clone(request));
    }

    fn changed(&mut self, event: &NewEvent, kind: EventType, payload: &Raw) {
        match kind {
            EventType::ClientMessage => self.client_message(event, payload),
            EventType::ServerMessage => self.server_message(event, payload),
            EventType::ProviderResponse => self.responded(event, payload),
            EventType::ToolCall => {
                if let (Some(round), Some(tool_use)) = (&mut self.round, read::<ToolUse>(payload)) {
                    round.uses.push(tool_use);
                    round.results.push(None);
                }
            }
            EventType::ToolResult => self.tool_result(payload),
            EventType::McpRequest => self.tool_runs(Some(Running::Mcp)),
            EventType::SandboxRequest => self.tool_runs(Some(Running::Sandbox)),
            EventType::SubagentStart => self.tool_runs(remote_subagent(payload.get()).map(Running::Subagent)),
            EventType::McpResponse
            | EventType::SandboxResponse
            | EventType::SubagentRunning
            | EventType::SubagentFailed => self.tool_runs(None),
            EventType::CompactionStarted => {
                if let Some(started) = read::<CompactionStarted>(payload)
                    && started.trigger == Trigger::Auto
                {
                    // It counts as failed until an event says that it has completed.
                    self.failed_auto = started.token_count;
                }
                if let Some((_, call)) = &mut self.call {
                    call.key = event.key;
                }
                self.compacting = Some(Compacting::default());
                self.stage = Stage::Compact;
            }
            EventType::CompactionCompleted => {
                if let Some(start) = CompactionCompleted::history_start(payload.get()) {
                    self.history.start_at(start);
                }
                // A node that computes the turn from this event on does not know the requests before it, so no later
                // request may refer to them.
                self.chain = None;
                self.failed_auto = None;
                self.compacting = None;
                self.stage = Stage::Compacted(Ok(event.id));
            }
            EventType::SessionError => self.session_error(payload),
            // These belong to no turn, or do not change it.
            EventType::ProviderRequest
            | EventType::SessionOpen
            | EventType::SessionJoin
            | EventType::DriverRegister
            | EventType::SandboxAvailable
            | EventType::SandboxStart
            | EventType::SandboxRunning
            | EventType::SandboxStop
            | EventType::SandboxStopped
            | EventType::SandboxError
            | EventType::SubagentCompleted
            | EventType::SubagentCancelled
            | EventType::SessionClose => {}
        }
    }

    fn client_message(&mut self, event: &NewEvent, payload: &Raw) {
        if let Some((_, call)) = &mut self.call {
            call.compact = false;
            call.key = event.key;
        }
        self.round = None;
        if let Some(said) = read::<ClientMessage>(payload)
            && let Some(role) = Role::from_name(&said.role)
        {
            self.history.push(event.id, role, &said.content);
        }
        self.stage = Stage::Ask;
    }

    fn server_message(&mut self, event: &NewEvent, payload: &Raw) {
        let Some(ServerMessage { role, content, synthetic }) = read(payload) else { return };
        match synthetic {
            Some(Synthetic::AbandonedToolResults) => {
                // The history takes the server's own results from their `tool.result` events (docs/api.md 3.5).
                let content = self.round.take().map_or(content, |round| round.abandon(&[]).content);
                self.history.push(event.id, Role::User, &content);
                self.stage = Stage::Idle;
            }
            Some(Synthetic::CompactionPreamble) => {
                self.history.push(event.id, role, &content);
                if let Some(compacting) = &mut self.compacting {
                    compacting.preamble = Some(event.id);
                }
            }
            None => {
                self.history.push(event.id, role, &content);
                match &mut self.compacting {
                    Some(compacting) if compacting.preamble.is_some() => compacting.summary = Some(event.id),
                    _ => self.replied(event),
                }
            }
        }
    }

    fn replied(&mut self, event: &NewEvent) {
        if let Some((_, call)) = &mut self.call {
            call.reply = Some(event.id);
        }
        self.stage = if self.round.is_some() { Stage::Paused } else { Stage::Replied };
    }

    fn responded(&mut self, event: &NewEvent, payload: &Raw) {
        let Some(response) = read::<ProviderResponse>(payload) else { return };
        let Stage::Asking(request) = &self.stage else { return };
        if !response.ok {
            self.stage = Stage::Failed(Arc::clone(request));
            return;
        }
        let answer = response.body.as_ref().map(|body| response.provider.answer(body));
        let Some(Ok(answer)) = answer else { return };
        let usage = response.usage.flatten();
        if response.purpose.is_some() {
            self.stage = super::compact::summarized(&answer, usage);
            return;
        }
        self.usage = usage.map(Usage::sum);
        let content = Self::answered_blocks(&answer);
        if answer.blocks.iter().any(is_tool_use) {
            let (uses, results) = (Vec::new(), Vec::new());
            self.round = Some(Round { key: event.key, event: event.id, content, uses, results, running: None });
            self.stage = Stage::Tools;
        } else {
            self.stage = Stage::Answered(content);
        }
    }

    fn tool_runs(&mut self, running: Option<Running>) {
        if let Some(round) = &mut self.round {
            round.running = running;
        }
    }

    /// Records a tool's result. A round in which the server ran all tools becomes part of the history with its last
    /// result. A round with tools of the client does so when the client continues it.
    fn tool_result(&mut self, payload: &Raw) {
        let (Some(round), Some(result)) = (&mut self.round, read::<ToolResult>(payload)) else { return };
        round.answer(&result);
        if let Some(results) = round.server_results() {
            let (event, content) = (round.event, Arc::clone(&round.content));
            self.history.push(event, Role::Assistant, &content);
            self.history.push(event, Role::User, &results);
            self.round = None;
            self.stage = Stage::Ask;
        }
    }

    /// Of all errors, only a failure to store a compaction's result changes the turn. The others leave the session
    /// failed, so that no turn follows, or change nothing.
    fn session_error(&mut self, payload: &Raw) {
        if read::<SessionError>(payload).is_some_and(|error| error.is_compaction_store_failed()) {
            self.stage = Stage::Compacted(Err("its result could not be stored".into()));
        }
    }
}

pub(super) fn is_tool_use(block: &Raw) -> bool {
    Object::parse(block).is_some_and(|b| b.str("type").as_deref() == Some("tool_use"))
}
