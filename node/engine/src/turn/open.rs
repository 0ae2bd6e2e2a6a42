//! Opens a call: makes the events of its first append, or refuses it without recording anything.

use super::{Action, Call, Context, Stage, Step, Turn};
use crate::event::payload::{ClientMessage, ServerMessage, SessionError, Synthetic};
use crate::event::{EventType, NewEvent, Payload};
use crate::gate::{End, GateAfter, GateFound};
use crate::history::blocks;
use crate::ids::{EventId, KeyId};
use crate::json;
use crate::message::Role;
use crate::outcome::Outcome;
use crate::params::SendMessage;
use crate::round::Merged;
use crate::rpc::RpcError;
use serde::{Deserialize, Serialize};

/// What a call asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Opening {
    /// `session.sendMessage`.
    Message(SendMessage),
    /// `session.compact`, with the instruction given in the call.
    Compact(Option<String>),
}

impl Turn {
    /// Opens a call of the client with this key. [`Turn::next`] returns its events.
    ///
    /// # Errors
    /// The error that the client gets. Nothing is recorded then.
    pub fn open(&mut self, ctx: &Context<'_>, opening: &Opening, key: KeyId, gate: GateFound) -> Result<(), RpcError> {
        match opening {
            Opening::Message(message) => self.open_message(ctx, message, key, gate),
            Opening::Compact(prompt) => {
                self.open_compact(ctx, prompt.as_deref(), key, gate);
                Ok(())
            }
        }
    }

    /// Fails the session because its profile was deleted (docs/api.md 3.2). The call of the client that sent the
    /// message records this.
    pub fn profile_unavailable(&mut self, ctx: &Context<'_>, key: KeyId) -> Step {
        self.begin(key, false);
        let outcome = Outcome::Error(RpcError::profile_unavailable());
        self.fail(ctx, key, &SessionError::profile_unavailable(), outcome);
        self.next(ctx)
    }

    fn begin(&mut self, key: KeyId, compact: bool) {
        self.call = Some((None, Call { key, compact, rounds: 0, reply: None }));
        self.compacting = None;
    }

    fn open_message(
        &mut self,
        ctx: &Context<'_>,
        message: &SendMessage,
        key: KeyId,
        gate: GateFound,
    ) -> Result<(), RpcError> {
        let round = self.round.as_ref().filter(|_| gate != GateFound::Free);
        let merged = match (round, gate) {
            (Some(round), GateFound::OwnPause) => match round.continue_with(message) {
                Ok(merged) => Some(merged),
                Err(detail) => {
                    self.begin(key, false);
                    let logged = SessionError::tool_result_merge_invalid(&detail);
                    self.fail(ctx, key, &logged, Outcome::Error(RpcError::tool_result_merge_invalid(detail)));
                    return Ok(());
                }
            },
            (None | Some(_), GateFound::Free | GateFound::OwnPause | GateFound::ExpiredPause) if message.answers => {
                return Err(RpcError::nothing_awaited());
            }
            // Only a message of the user can hold tool results. For another role the server records them in a message
            // of its own.
            (Some(_), GateFound::ExpiredPause) if message.role != Role::User.as_str() => None,
            (Some(round), GateFound::ExpiredPause) => Some(round.abandon(&blocks(&message.content))),
            (None, _) | (Some(_), GateFound::Free) => None,
        };
        let abandoned = self.paused().filter(|_| gate == GateFound::ExpiredPause);
        self.begin(key, false);
        if let Some(owner) = abandoned {
            if merged.is_some() {
                self.make(abandonment(ctx, owner));
            } else {
                self.retire(ctx, key, owner);
            }
        }
        let content = merged.as_ref().map_or(&message.content, |merged| &merged.content).clone();
        let said = ClientMessage { role: message.role.clone(), content };
        self.make(NewEvent { from_client: true, ..NewEvent::of(EventId((ctx.fresh)()), key, &said) });
        for event in results(ctx, key, merged) {
            self.make(event);
        }
        Ok(())
    }

    fn open_compact(&mut self, ctx: &Context<'_>, prompt: Option<&str>, key: KeyId, gate: GateFound) {
        let abandoned = self.paused().filter(|_| gate != GateFound::Free);
        self.begin(key, true);
        if let Some(owner) = abandoned {
            self.retire(ctx, key, owner);
        }
        self.start_compaction(ctx, key, prompt);
    }

    /// Gives the paused turn up: the server makes a message with the tool results, because no message of a user holds
    /// them.
    fn retire(&mut self, ctx: &Context<'_>, key: KeyId, owner: KeyId) {
        let Some(merged) = self.round.as_ref().map(|round| round.abandon(&[])) else { return };
        self.make(abandonment(ctx, owner));
        let content = json::join(merged.results.iter().map(|result| &*result.block));
        let synthetic = Some(Synthetic::AbandonedToolResults);
        self.log(ctx, key, &ServerMessage { role: Role::User, content, synthetic });
        for event in results(ctx, key, Some(merged)) {
            self.make(event);
        }
    }

    /// Makes the `session.error` with which the session and the call fail.
    pub(super) fn fail(&mut self, ctx: &Context<'_>, key: KeyId, error: &SessionError, outcome: Outcome) {
        self.log(ctx, key, error);
        self.stage = Stage::Broken(outcome);
    }

    pub(super) fn end(&mut self, outcome: Outcome, gate: GateAfter) -> Step {
        let events = std::mem::take(&mut self.made);
        if !matches!(gate, GateAfter::Paused(_)) {
            self.finish();
        }
        Step { events, store: false, action: Action::End(End { outcome, gate }) }
    }
}

/// The event that says that a paused turn was given up. It names the client for which the turn was paused.
fn abandonment(ctx: &Context<'_>, owner: KeyId) -> NewEvent {
    NewEvent::of(EventId((ctx.fresh)()), owner, &SessionError::driver_turn_abandoned(owner))
}

/// The `tool.result` events of the tools that the client was to run, one for each tool use.
fn results(ctx: &Context<'_>, key: KeyId, merged: Option<Merged>) -> impl Iterator<Item = NewEvent> {
    merged.into_iter().flat_map(|merged| merged.results).map(move |result| NewEvent {
        id: EventId((ctx.fresh)()),
        key,
        kind: EventType::ToolResult,
        payload: Payload::Json(result.payload),
        from_client: result.sent,
    })
}
