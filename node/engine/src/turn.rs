//! A turn of a session, computed from the session's log.
//!
//! [`Turn::apply`] takes the events of the log, one at a time and in order. From them and a [`Context`], [`Turn::next`]
//! decides what comes next: events to append, and then one action outside of the engine, a pause, or the end of the
//! call. The caller (the session's owner in the node) appends the events, does the action, and passes its answer back.
//! These rules hold:
//!
//! - The state depends on the events alone, so a turn can be stopped after any append and carried on by another node.
//! - Events with no outside action between them are one append.
//! - A turn applies its own events when it makes them, before they are committed. A caller whose append fails for good
//!   drops the `Turn` and computes it from the log again.

mod compact;
mod decide;
mod fold;
mod open;
mod tools;

use crate::event::payload::CommandOutput;
use crate::event::{EventNumber, NewEvent};
use crate::gate::End;
use crate::history::History;
use crate::ids::{CallId, EventId, KeyId, SandboxId, SubagentId};
use crate::json::Raw;
use crate::open::Compaction;
use crate::outcome::Outcome;
use crate::provider::{Answer, Entry, Usage};
use crate::request::{DeltaChain, Request};
use crate::round::{Round, ToolUse};
use crate::subagent::Launch;
use crate::toolbox::Toolbox;
use std::sync::Arc;
use std::time::Duration;

pub use open::Opening;

/// A call is ended when this many of its owners in a row were lost without an append (ARCHITECTURE.md, I6).
pub const MAX_TAKEOVERS: u32 = 5;

/// What decisions depend on besides the log.
pub struct Context<'a> {
    /// The profile's primary provider, or why it cannot be used.
    pub primary: Result<Entry, String>,
    /// Those of the profile's fallback providers that can be used, in order.
    pub fallbacks: Vec<Entry>,
    /// The tools that the acting client and the session offer.
    pub tools: Toolbox,
    /// The images that the profile allows.
    pub available_sandboxes: Vec<String>,
    /// The session's setting for compaction.
    pub compaction: Compaction,
    /// How long a pause keeps the gate for its client.
    pub pause_timeout: Duration,
    /// The most provider round trips of one call.
    pub max_rounds: u32,
    /// The most subagents of one session that may run at once.
    pub max_subagents: usize,
    /// How many subagents of this session run. The database counts them, because any node may log the end of a
    /// subagent, and a turn that is kept in memory does not see that event.
    pub running_subagents: usize,
    /// Makes 16 random bytes for a new id.
    pub fresh: &'a (dyn Fn() -> [u8; 16] + Send + Sync),
}

/// Events to append, and what to do once they are committed.
#[derive(Debug)]
pub struct Step {
    /// The events of one append. Empty only when a call is carried on.
    pub events: Vec<NewEvent>,
    /// Whether the append stores a compaction's result. If it fails for good, the caller computes the turn again and
    /// calls [`Turn::store_failed`].
    pub store: bool,
    /// What to do once the events are committed.
    pub action: Action,
}

/// What to do after an append.
#[derive(Debug)]
pub enum Action {
    /// Call [`Turn::next`] again at once; these events had to be committed by themselves.
    Continue,
    /// Send this request to its provider, then call [`Turn::provider_answered`].
    Ask(Arc<Request>),
    /// Call this MCP tool, then [`Turn::mcp_answered`].
    Mcp(ToolUse),
    /// Run the command of this tool use in the session's sandbox, then call [`Turn::sandbox_answered`]. If the tool use
    /// has no command, that is an error, which is reported only if a sandbox is running.
    Sandbox(ToolUse, Option<String>),
    /// Read the status of this subagent, or of all of them, then call [`Turn::status_read`].
    SubagentStatus(Option<String>),
    /// Start this subagent, then call [`Turn::launched`].
    Launch(SubagentId, Launch),
    /// Nothing: the call has ended or paused, which the append has recorded as well.
    End(End),
}

/// The result of one provider attempt.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The HTTP status, if the provider answered.
    pub status: Option<u16>,
    /// The body of the answer, if it was JSON.
    pub body: Option<Raw>,
    /// Why the attempt failed, if the caller knows it already.
    pub error: Option<String>,
}

/// The result of an MCP call.
#[derive(Debug, Clone)]
pub enum McpReply {
    /// The server answered.
    Result {
        /// The result as the log records it.
        result: Raw,
        /// Whether the tool reports an error.
        is_error: bool,
        /// The result as the model sees it.
        content: Raw,
    },
    /// The server gave no answer, for this reason.
    Failed(String),
}

/// The result of a command for the session's sandbox.
#[derive(Debug, Clone)]
pub enum SandboxReply {
    /// The command ran to its end in this sandbox.
    Ran(SandboxId, CommandOutput),
    /// The session has no running sandbox.
    NotRunning,
    /// The command did not run to its end, for this reason.
    Failed(SandboxId, String),
}

/// How far the open call has come, and with it what comes next.
#[derive(Debug, Clone)]
enum Stage {
    /// No call is open.
    Idle,
    /// A new round trip to the provider comes next.
    Ask,
    /// The request is logged, its response is not.
    Asking(Arc<Request>),
    /// The attempt with this request failed. The next fallback provider is tried, if there is one.
    Failed(Arc<Request>),
    /// The model answered without asking for tools.
    Answered(Raw),
    /// The model asked for tools.
    Tools,
    /// The answer to the client's message is logged. An automatic compaction may follow.
    Replied,
    /// The turn waits for its client's results.
    Paused,
    /// The start of a compaction is logged; its request comes next.
    Compact,
    /// The model has answered the compaction's request: with a summary, or in a way that fails the compaction for this
    /// reason.
    Summarized(Result<Summary, String>),
    /// The compaction has ended: with this event, or with a failure for this reason.
    Compacted(Result<EventId, String>),
    /// The session has failed, which an event says; the call ends with this outcome.
    Broken(Outcome),
}

/// A compaction's summary that is not stored yet.
#[derive(Debug, Clone)]
struct Summary {
    content: Raw,
    usage: Option<Usage>,
}

/// What is logged of the open call's compaction so far.
#[derive(Debug, Clone, Copy, Default)]
struct Compacting {
    preamble: Option<EventId>,
    summary: Option<EventId>,
}

/// The open call.
#[derive(Debug, Clone)]
struct Call {
    key: KeyId,
    /// Whether the call is a `session.compact`.
    compact: bool,
    rounds: u32,
    reply: Option<EventId>,
}

/// The state of a session's turn, computed from the log.
#[derive(Debug, Clone)]
pub struct Turn {
    history: History,
    chain: Option<DeltaChain>,
    /// The sum of the tokens of the newest answer that does not belong to a compaction.
    usage: Option<u64>,
    /// The token count of the last automatic compaction, if it failed and none has succeeded since (docs/api.md 7.4).
    failed_auto: Option<u64>,
    round: Option<Round>,
    call: Option<(Option<CallId>, Call)>,
    compacting: Option<Compacting>,
    stage: Stage,
    /// The instruction of the compaction that comes next.
    instruction: Option<String>,
    /// Events that were made and not yet returned by [`Turn::next`].
    made: Vec<NewEvent>,
    /// The request among the events that [`Turn::next`] returned last, and its index among them. Its number in the log
    /// is known once they are committed.
    unnumbered: Option<(usize, Arc<Request>)>,
}

impl Default for Turn {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Turn {
    /// The turn of a session before any event is applied. `usage` is the token sum of the newest answer among the
    /// events that will not be applied.
    pub fn new(usage: Option<u64>) -> Self {
        Self {
            history: History::default(),
            chain: None,
            usage,
            failed_auto: None,
            round: None,
            call: None,
            compacting: None,
            stage: Stage::Idle,
            instruction: None,
            made: Vec::new(),
            unnumbered: None,
        }
    }

    /// How many bytes the messages of the history take.
    pub fn bytes(&self) -> usize {
        self.history.bytes()
    }

    /// The requests to which the stored form of the next request may refer instead of repeating their messages.
    pub fn chain(&self) -> Option<&DeltaChain> {
        self.chain.as_ref()
    }

    /// The client that a pause waits for, if the turn is paused.
    pub fn paused(&self) -> Option<KeyId> {
        matches!(self.stage, Stage::Paused).then(|| self.round.as_ref().map(|round| round.key)).flatten()
    }

    /// Whether a call is open and not paused.
    pub fn running(&self) -> bool {
        !matches!(self.stage, Stage::Idle | Stage::Paused)
    }

    /// The key of the client that made the open call.
    pub fn acting(&self) -> Option<KeyId> {
        self.call.as_ref().map(|(_, call)| call.key)
    }

    /// Tells the turn that the events returned last are committed, the first of them with this number.
    pub fn committed(&mut self, first: EventNumber) {
        if let Some((place, request)) = self.unnumbered.take() {
            self.chain = Some(DeltaChain::after(self.chain.as_ref(), first.plus(place), &request));
        }
    }

    fn answered_blocks(answer: &Answer) -> Raw {
        crate::json::join(answer.blocks.iter().map(|block| &**block))
    }
}
