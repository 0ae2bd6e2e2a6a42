//! Compaction (docs/api.md 7 and 13.3): a summary that the model writes replaces the messages before it.

use super::{Action, Context, Stage, Step, Summary, Turn};
use crate::event::payload::{
    CompactionCompleted, CompactionReason, CompactionStarted, ServerMessage, SessionError, Synthetic, Trigger,
};
use crate::gate::{End, GateAfter};
use crate::history::PREAMBLE;
use crate::ids::KeyId;
use crate::json::{self, Object};
use crate::message::{Message, Role};
use crate::open::Compaction;
use crate::outcome::Outcome;
use crate::provider::{Answer, Usage};
use crate::round::text_content;
use crate::rpc::RpcError;

/// The instruction for the model where neither the call nor the session gives one.
pub(super) const INSTRUCTION: &str = "Summarize this conversation so that it can be continued from the summary alone. \
    Write one self-contained text: the user's goals and constraints, what was decided and why, what was done and found (with names, \
    paths, numbers and identifiers exactly as they are), what is still open, and the next step. Do not call tools and do not \
    address the user; write only the summary.";

/// The smallest output limit of a compaction's request, in tokens.
const MIN_BUDGET: u32 = 4096;

/// The output limit of an attempt, in tokens.
pub(super) fn budget(max_tokens: u32, compaction: bool) -> u32 {
    if compaction { max_tokens.max(MIN_BUDGET) } else { max_tokens }
}

/// The outcome of a `session.compact` that failed.
pub(super) fn failed(detail: &str) -> Outcome {
    Outcome::Error(RpcError::compaction_failed(detail))
}

/// Takes the summary out of the model's answer. An answer that was cut off or has no text fails the compaction.
pub(super) fn summarized(answer: &Answer, usage: Option<Usage>) -> Stage {
    if let Some(cut) = answer.truncated {
        return Stage::Summarized(Err(format!("summary truncated: {cut}")));
    }
    let texts = answer.blocks.iter().filter_map(|block| {
        let members = Object::parse(block)?;
        (members.str("type")? == "text").then(|| members.str("text").map(|text| text.into_owned()))?
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    if text.trim().is_empty() {
        return Stage::Summarized(Err("empty summary".into()));
    }
    Stage::Summarized(Ok(Summary { content: text_content(&text), usage }))
}

impl Turn {
    /// Starts the compaction that a client asked for.
    pub(super) fn start_compaction(&mut self, ctx: &Context<'_>, key: KeyId, prompt: Option<&str>) {
        let stored = match &ctx.compaction {
            Compaction::Client { prompt } => prompt.as_deref(),
            Compaction::Auto { .. } => None,
        };
        self.instruction = prompt.or(stored).map(str::to_owned);
        let started = CompactionStarted {
            reason: CompactionReason::Manual,
            threshold_tokens: None,
            token_count: self.usage,
            trigger: Trigger::Client,
        };
        self.log(ctx, key, &started);
    }

    /// Starts an automatic compaction if the history is large enough after the turn (docs/api.md 7.3, 7.4). Returns
    /// whether it did.
    pub(super) fn start_auto_compaction(&mut self, ctx: &Context<'_>, key: KeyId) -> bool {
        let (Compaction::Auto { size }, Some(tokens)) = (&ctx.compaction, self.usage) else { return false };
        if tokens <= *size || self.failed_auto.is_some_and(|failed| tokens <= failed) {
            return false;
        }
        let reason = match self.failed_auto {
            Some(_) => CompactionReason::RetryAfterFailure,
            None => CompactionReason::TokenThreshold,
        };
        self.instruction = None;
        let started = CompactionStarted {
            reason,
            threshold_tokens: Some(*size),
            token_count: Some(tokens),
            trigger: Trigger::Auto,
        };
        self.log(ctx, key, &started);
        true
    }

    pub(super) fn ask_summary(&mut self, ctx: &Context<'_>, key: KeyId) {
        let primary = match &ctx.primary {
            Ok(primary) => primary,
            Err(detail) => {
                self.stage = Stage::Compacted(Err(format!("provider_config: {detail}")));
                return;
            }
        };
        let instruction = self.instruction.take().unwrap_or_else(|| INSTRUCTION.to_owned());
        let last = Message { role: Role::User, content: json::encode(&instruction) };
        let mut request = self.request(primary, json::built("[]".into()), Some(last));
        request.max_tokens = budget(request.max_tokens, true);
        self.make_request(ctx, key, request);
    }

    /// Stores the result and ends the call in one append: the preamble, the summary and `session.compaction.completed`.
    pub(super) fn store(&mut self, ctx: &Context<'_>, key: KeyId, summary: &Summary) -> Step {
        let count = self.history.len();
        let synthetic = Some(Synthetic::CompactionPreamble);
        let preamble = ServerMessage { role: Role::User, content: text_content(PREAMBLE), synthetic };
        let preamble_event_id = self.log(ctx, key, &preamble);
        let summary_event_id = self.log(ctx, key, &ServerMessage::assistant(summary.content.clone()));
        let completed = CompactionCompleted {
            compacted_message_count: count,
            input_tokens: summary.usage.map(|used| used.input_tokens),
            preamble_event_id,
            summary_event_id,
            summary_tokens: summary.usage.map(|used| used.output_tokens),
        };
        let completed = self.log(ctx, key, &completed);
        let outcome = self.compacted_outcome(Ok(completed));
        let events = std::mem::take(&mut self.made);
        self.finish();
        Step { events, store: true, action: Action::End(End { outcome, gate: GateAfter::Free }) }
    }

    /// Records in the log that the compaction's result could not be stored. The turn must have been computed from the
    /// log again. A client's message still succeeds; a `session.compact` is answered with an internal error.
    pub fn store_failed(&mut self, ctx: &Context<'_>) -> Step {
        let key = self.acting().unwrap_or(KeyId([0; 16]));
        let manual = self.call.as_ref().is_some_and(|(_, call)| call.compact);
        self.log(ctx, key, &SessionError::compaction_store_failed());
        let outcome =
            if manual { Outcome::Error(RpcError::internal()) } else { self.compacted_outcome(Err(String::new())) };
        self.end(outcome, GateAfter::Free)
    }
}
