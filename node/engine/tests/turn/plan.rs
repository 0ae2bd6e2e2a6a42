//! How a script is run, and what the session's row and its calls are while it runs.

use crate::script::Fit;
use engine::gate::{End, GateFound};
use engine::ids::{CallId, KeyId};
use engine::rpc::RpcError;
use engine::turn::Opening;

/// GateAfter which appends the program is stopped and started anew.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stops {
    Never,
    /// Every one but those that leave an MCP call under way, whose outcome would be lost.
    Harmless,
    Every,
    /// Where the bit is set.
    Bits(u64),
    Only(usize),
}

/// How a script is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub stops: Stops,
    /// Fold from the newest completed compaction on, not from the start.
    pub newest: bool,
    /// What a new owner is told of takeovers before.
    pub takeovers: u32,
    /// The client declares other tools while the program is down.
    pub swap_tools: bool,
    /// Requests are looked at; not needed where the log is compared with one that was.
    pub looks: bool,
}

/// What the session's row says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Row {
    Idle,
    Running,
    Paused(KeyId),
    Error,
}

/// A call that was opened.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub id: CallId,
    pub key: KeyId,
    pub opening: Opening,
    pub gate: GateFound,
    /// How an answer fits, where one is awaited; none for other openings.
    pub fit: Option<Fit>,
    pub primary: bool,
    /// Who owned the pause before.
    pub owner: Option<KeyId>,
    pub refused: Option<RpcError>,
    pub end: Option<End>,
    /// It was given up after too many takeovers.
    pub limited: bool,
    pub store_failed: bool,
}
