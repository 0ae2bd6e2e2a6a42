//! The turn as a fold over the session's log.
//!
//! [`Turn`] is what the log says so far ([`Turn::apply`], one event at a time). From that and a [`Context`] it says
//! what comes next ([`Turn::next`]): events to append, then one external act, a pause or the end. Whoever drives it
//! appends, does the act, and feeds what came of it back. What must hold:
//!
//! - The state is a function of the events alone, so a turn can be stopped after any append and carried on elsewhere.
//! - Events that nothing external separates are one append.
//! - It applies its own events as it makes them, before they are committed: a driver whose append fails for good throws
//!   the `Turn` away and folds the log again.

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

/// Takeovers after a crash without progress that end a call (ARCHITECTURE.md, I6).
pub const MAX_TAKEOVERS: u32 = 5;

/// What decisions need beside the log, passed in as data.
pub struct Context<'a> {
    /// The profile's primary provider, or why it does not resolve.
    pub primary: Result<Entry, String>,
    /// The profile's fallbacks that resolve, in order.
    pub fallbacks: Vec<Entry>,
    /// The tools of the acting client and the session.
    pub tools: Toolbox,
    /// Images the profile allows.
    pub available_sandboxes: Vec<String>,
    /// The session's setting.
    pub compaction: Compaction,
    /// How long a pause keeps the gate.
    pub pause_timeout: Duration,
    /// Provider round trips of one call.
    pub max_rounds: u32,
    /// Subagents of one session that may run at once.
    pub max_subagents: usize,
    /// Subagents of this session that run. The database counts them: their ends are logged by whichever node sees them,
    /// which a history that is kept in memory would miss.
    pub running_subagents: usize,
    /// Makes the bytes of a new id.
    pub fresh: &'a (dyn Fn() -> [u8; 16] + Send + Sync),
}

/// Events to append, then what to do.
#[derive(Debug)]
pub struct Step {
    /// One append; may be empty only where a call is carried on.
    pub events: Vec<NewEvent>,
    /// The append stores a compaction's result: if it cannot be made, fold anew and say [`Turn::store_failed`].
    pub store: bool,
    /// What follows once they are committed.
    pub action: Action,
}

/// What follows an append.
#[derive(Debug)]
pub enum Action {
    /// Ask again at once: these events had to be committed by themselves.
    Continue,
    /// Make this attempt, then [`Turn::provider_answered`].
    Ask(Arc<Request>),
    /// Call this MCP tool, then [`Turn::mcp_answered`].
    Mcp(ToolUse),
    /// Run this command in the session's sandbox for that tool use, then [`Turn::sandbox_answered`]. Without a command
    /// it has failed where a sandbox runs.
    Sandbox(ToolUse, Option<String>),
    /// Read the status of this subagent, or of all, then [`Turn::status_read`].
    SubagentStatus(Option<String>),
    /// Start this subagent, then [`Turn::launched`].
    Launch(SubagentId, Launch),
    /// The call has ended, or paused: the append says so too.
    End(End),
}

/// What came of a provider attempt.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// The answer, if it was JSON.
    pub body: Option<Raw>,
    /// Why the attempt failed, if that is known already.
    pub error: Option<String>,
}

/// What came of an MCP call.
#[derive(Debug, Clone)]
pub enum McpReply {
    /// The server answered.
    Result {
        /// Its result, as logged.
        result: Raw,
        /// Whether the tool says it failed.
        is_error: bool,
        /// The result as the model sees it.
        content: Raw,
    },
    /// It did not; why.
    Failed(String),
}

/// What came of a command for the session's sandbox.
#[derive(Debug, Clone)]
pub enum SandboxReply {
    /// It ran to its end.
    Ran(SandboxId, CommandOutput),
    /// No sandbox runs for the session.
    NotRunning,
    /// It did not run to its end; why.
    Failed(SandboxId, String),
}

/// Where a call stands.
#[derive(Debug, Clone)]
enum Stage {
    /// No call is open.
    Idle,
    /// A provider round trip is due.
    Ask,
    /// A request is logged, its response is not.
    Asking(Arc<Request>),
    /// That attempt failed; the walk goes on.
    Failed(Arc<Request>),
    /// The model answered without asking for tools.
    Answered(Raw),
    /// The model asked for tools.
    Tools,
    /// The answer is logged: the turn proper is over.
    Replied,
    /// The turn waits for its client's results.
    Paused,
    /// A compaction is started, its request is due.
    Compact,
    /// The model answered the compaction: the summary, or why there is none.
    Summarized(Result<Summary, String>),
    /// The compaction is over; why it failed, if it did.
    Compacted(Result<EventId, String>),
    /// An event says that the session failed.
    Broken(Outcome),
}

/// A summary, not yet stored.
#[derive(Debug, Clone)]
struct Summary {
    content: Raw,
    usage: Option<Usage>,
}

/// The compaction of the open call.
#[derive(Debug, Clone, Copy, Default)]
struct Compacting {
    preamble: Option<EventId>,
    summary: Option<EventId>,
}

/// The open call.
#[derive(Debug, Clone)]
struct Call {
    key: KeyId,
    /// Whether it is a `session.compact`.
    compact: bool,
    rounds: u32,
    reply: Option<EventId>,
}

/// The session's log, folded.
#[derive(Debug, Clone)]
pub struct Turn {
    history: History,
    chain: Option<DeltaChain>,
    /// Usage sum of the newest answer that is no compaction's.
    usage: Option<u64>,
    /// Token count of the automatic compaction that failed last, with no success since (docs/api.md 7.4).
    failed_auto: Option<u64>,
    round: Option<Round>,
    call: Option<(Option<CallId>, Call)>,
    compacting: Option<Compacting>,
    stage: Stage,
    /// Instruction of the compaction that is due.
    instruction: Option<String>,
    /// Events made and not yet handed out.
    made: Vec<NewEvent>,
    /// The request among the events handed out last, and its place.
    unnumbered: Option<(usize, Arc<Request>)>,
}

impl Default for Turn {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Turn {
    /// A session of which nothing is known but the usage of the newest answer before the events to come.
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

    /// Bytes of history held.
    pub fn bytes(&self) -> usize {
        self.history.bytes()
    }

    /// What the next request may refer to.
    pub fn chain(&self) -> Option<&DeltaChain> {
        self.chain.as_ref()
    }

    /// Whether a pause waits, and for whom.
    pub fn paused(&self) -> Option<KeyId> {
        matches!(self.stage, Stage::Paused).then(|| self.round.as_ref().map(|round| round.key)).flatten()
    }

    /// Whether a call is under way: neither over nor paused.
    pub fn running(&self) -> bool {
        !matches!(self.stage, Stage::Idle | Stage::Paused)
    }

    /// The client key of the open call.
    pub fn acting(&self) -> Option<KeyId> {
        self.call.as_ref().map(|(_, call)| call.key)
    }

    /// The events handed out last are committed, from this number on.
    pub fn committed(&mut self, first: EventNumber) {
        if let Some((place, request)) = self.unnumbered.take() {
            self.chain = Some(DeltaChain::after(self.chain.as_ref(), first.plus(place), &request));
        }
    }

    fn answered_blocks(answer: &Answer) -> Raw {
        crate::json::join(answer.blocks.iter().map(|block| &**block))
    }
}
