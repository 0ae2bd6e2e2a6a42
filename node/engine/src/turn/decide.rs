//! Decides what comes next from the state of the turn and the context, and records answers from outside.

use super::{Action, Context, MAX_TAKEOVERS, Reply, Stage, Step, Turn};
use crate::event::payload::{ProviderResponse, Purpose, ServerMessage, SessionError};
use crate::event::{EventType, NewEvent, Payload};
use crate::gate::GateAfter;
use crate::ids::{EventId, KeyId};
use crate::json;
use crate::message::Message;
use crate::outcome::Outcome;
use crate::provider::Entry;
use crate::request::{Kind, Request};
use crate::round::Round;
use std::sync::Arc;

impl Turn {
    /// Decides what comes next.
    pub fn next(&mut self, ctx: &Context<'_>) -> Step {
        let key = self.acting().unwrap_or(KeyId([0; 16]));
        loop {
            match self.stage.clone() {
                Stage::Ask => match self.ask(ctx, key) {
                    Some(request) => return self.act(Action::Ask(request)),
                    None => continue,
                },
                Stage::Asking(request) => return self.act(Action::Ask(request)),
                Stage::Failed(request) => self.next_fallback(ctx, key, &request),
                Stage::Answered(content) => {
                    self.log(ctx, key, &ServerMessage::assistant(content));
                }
                Stage::Tools => {
                    if let Some(action) = self.next_tool(ctx, key) {
                        return self.act(action);
                    }
                }
                Stage::Replied => {
                    if !self.start_auto_compaction(ctx, key) {
                        return self.end(self.replied_outcome(), GateAfter::Free);
                    }
                }
                Stage::Paused => return self.end(self.replied_outcome(), GateAfter::Paused(ctx.pause_timeout)),
                Stage::Compact => self.ask_summary(ctx, key),
                // The answer is committed by itself before the append that stores its summary, which may fail.
                Stage::Summarized(Ok(_)) if !self.made.is_empty() => return self.act(Action::Continue),
                Stage::Summarized(Ok(summary)) => return self.store(ctx, key, &summary),
                Stage::Summarized(Err(detail)) => self.stage = Stage::Compacted(Err(detail)),
                Stage::Compacted(result) => return self.end(self.compacted_outcome(result), GateAfter::Free),
                Stage::Broken(outcome) => return self.end(outcome, GateAfter::Failed),
                Stage::Idle => return self.end(self.replied_outcome(), GateAfter::Free),
            }
        }
    }

    /// Prepares a new owner to carry the call on: a tool call that was running when the last owner was lost is ended
    /// with an error. `takeovers` counts the owners that were lost since the call's last append (ARCHITECTURE.md, I6).
    pub fn recover(&mut self, ctx: &Context<'_>, takeovers: u32) {
        let key = self.acting().unwrap_or(KeyId([0; 16]));
        if takeovers >= MAX_TAKEOVERS {
            if self.compacting.is_some() {
                // A failure during a compaction never fails the session (docs/api.md 7.6).
                self.stage = Stage::Compacted(Err(format!("the nodes running it were lost {takeovers} times")));
            } else {
                self.fail(ctx, key, &SessionError::turn_recovery_failed(takeovers), Outcome::Unavailable);
            }
        } else {
            self.fail_interrupted_tool(ctx, key);
        }
    }

    /// Records the result of the attempt that [`Turn::next`] asked for.
    pub fn provider_answered(&mut self, ctx: &Context<'_>, reply: Reply) {
        let Stage::Asking(request) = self.stage.clone() else { return };
        let key = self.acting().unwrap_or(KeyId([0; 16]));
        let answer = match (&reply.error, &reply.body) {
            (Some(error), _) => Err(error.clone()),
            (None, None) => Err("the answer is not JSON".to_owned()),
            (None, Some(body)) => request.wire.answer(body),
        };
        let response = ProviderResponse {
            attempt: request.attempt,
            kind: request.kind,
            provider: request.wire,
            ok: answer.is_ok(),
            status: reply.status,
            error: answer.as_ref().err().cloned(),
            body: reply.body,
            usage: answer.as_ref().ok().map(|answer| answer.usage),
            purpose: request.compaction.then_some(Purpose::Compaction),
        };
        self.log(ctx, key, &response);
        match answer {
            Ok(answer) if !request.compaction => self.call_tools(ctx, key, &answer),
            Ok(_) => {}
            Err(detail) if request.kind == Kind::Primary && !request.compaction => {
                self.log(ctx, key, &SessionError::provider_call_failed(request.wire, detail));
            }
            Err(_) => {}
        }
    }

    pub(super) fn act(&mut self, action: Action) -> Step {
        Step { events: std::mem::take(&mut self.made), store: false, action }
    }

    /// Makes the first request of a round trip. None if the session fails instead.
    fn ask(&mut self, ctx: &Context<'_>, key: KeyId) -> Option<Arc<Request>> {
        let primary = match &ctx.primary {
            Ok(primary) => primary,
            Err(detail) => {
                self.fail(ctx, key, &SessionError::provider_config(detail), Outcome::Unavailable);
                return None;
            }
        };
        if self.call.as_ref().is_some_and(|(_, call)| call.rounds >= ctx.max_rounds) {
            self.fail(ctx, key, &SessionError::loop_limit(ctx.max_rounds), Outcome::Unavailable);
            return None;
        }
        let request = self.request(primary, ctx.tools.offered(), None);
        Some(self.make_request(ctx, key, request))
    }

    /// A request to the first provider with the messages so far. A compaction adds its instruction as the `last`
    /// message.
    pub(super) fn request(&self, entry: &Entry, tools: json::Raw, last: Option<Message>) -> Request {
        let compaction = last.is_some();
        let (messages, normalized) = self.history.upstream(last);
        Request {
            attempt: 0,
            kind: Kind::Primary,
            entry: entry.name.clone(),
            wire: entry.wire,
            base_url: entry.base_url.clone(),
            model: entry.model.clone(),
            max_tokens: entry.max_tokens,
            messages,
            tools,
            normalized,
            compaction,
        }
    }

    pub(super) fn make_request(&mut self, ctx: &Context<'_>, key: KeyId, request: Request) -> Arc<Request> {
        let request = Arc::new(request);
        let payload = Payload::Request(Arc::clone(&request));
        let id = EventId((ctx.fresh)());
        self.make(NewEvent { id, key, kind: EventType::ProviderRequest, payload, from_client: false });
        request
    }

    /// Makes the same request to the next fallback provider. Without one, the compaction or the session fails.
    fn next_fallback(&mut self, ctx: &Context<'_>, key: KeyId, failed: &Request) {
        // A log of an earlier version counts attempts from 1.
        let tried = if failed.kind == Kind::Primary { 0 } else { failed.attempt as usize };
        let fallback = ctx.fallbacks.get(tried);
        match fallback {
            Some(entry) => {
                let request = Request {
                    attempt: failed.attempt + 1,
                    kind: Kind::Fallback,
                    entry: entry.name.clone(),
                    wire: entry.wire,
                    base_url: entry.base_url.clone(),
                    model: entry.model.clone(),
                    max_tokens: super::compact::budget(entry.max_tokens, failed.compaction),
                    ..failed.clone()
                };
                self.make_request(ctx, key, request);
            }
            None if failed.compaction => {
                self.stage = Stage::Compacted(Err(format!("all {} providers failed", failed.attempt + 1)));
            }
            None => {
                self.fail(ctx, key, &SessionError::all_providers_failed(failed.attempt + 1), Outcome::Unavailable);
            }
        }
    }

    fn replied_outcome(&self) -> Outcome {
        let reply = self.call.as_ref().and_then(|(_, call)| call.reply);
        reply.map_or(Outcome::Unavailable, Outcome::Message)
    }

    /// The outcome of a call whose compaction has ended. The outcome of a message does not depend on its automatic
    /// compaction.
    pub(super) fn compacted_outcome(&self, result: Result<EventId, String>) -> Outcome {
        let manual = self.call.as_ref().is_some_and(|(_, call)| call.compact);
        match result {
            _ if !manual => self.replied_outcome(),
            Ok(event) => Outcome::Compacted(event),
            Err(detail) => super::compact::failed(&detail),
        }
    }

    /// Whether the client runs a tool of the open round, so that the turn pauses when the server has run its own tools.
    pub(super) fn client_has_part(&self) -> bool {
        self.round.as_ref().is_some_and(Round::needs_client)
    }
}
