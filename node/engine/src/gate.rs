//! The gate of a session: at most one call runs at a time, and between two calls a pause may keep the gate for a
//! client.
//!
//! Four views of it, all here, so that the conversions between them are in one place:
//!
//! - [`Gate`] is what the session's row in the database says. Only the append that carries the events changes it.
//! - [`Pause`] is the part of it that the owner of a session remembers and by which it picks the next call from the
//!   queue.
//! - [`GateFound`] is what a picked call expects of the gate. The append that opens the call checks it again, and
//!   judges by the database's clock whether a pause has expired.
//! - [`GateAfter`] is what the append that ends a call makes of the gate.
//!
//! Used by the turn, by the coordinator (queue, stored columns, appends) and by the node's session owner.

use crate::ids::{CallId, KeyId};
use crate::outcome::Outcome;
use crate::turn::Opening;
use std::time::Duration;

/// The gate as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// No call runs and no pause waits.
    Free,
    /// A call holds it.
    Running {
        /// Which call.
        call: CallId,
        /// Owners that were lost since the call's last append.
        takeovers: u32,
    },
    /// A pause holds it while its client works on tool calls.
    Paused(Pause),
}

/// A pause: the gate is kept for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// The client it is kept for.
    pub owner: KeyId,
    /// For how long still; zero once it has expired.
    pub left: Duration,
}

impl Pause {
    /// Whether other clients may take the gate over.
    pub fn expired(&self) -> bool {
        self.left.is_zero()
    }
}

/// How a call that was picked from the queue finds the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateFound {
    /// Nothing holds it.
    Free,
    /// A pause of the call's own client holds it, and the call continues the paused turn.
    OwnPause,
    /// A pause holds it, past its deadline, and the call takes the gate over.
    ExpiredPause,
}

impl GateFound {
    /// What a call of `caller` finds. The queue hands out a call that is not the pause owner's message only after the
    /// deadline.
    pub fn by(pause: Option<Pause>, caller: KeyId, opening: &Opening) -> Self {
        match (pause, opening) {
            (None, _) => Self::Free,
            (Some(pause), Opening::Message(_)) if pause.owner == caller => Self::OwnPause,
            (Some(_), _) => Self::ExpiredPause,
        }
    }
}

/// What the end of a call makes of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateAfter {
    /// The next call can go.
    Free,
    /// The call's client keeps it for that long.
    Paused(Duration),
    /// The session has failed: no call goes any more.
    Failed,
}

impl GateAfter {
    /// The pause it begins for the client of the call that ended.
    pub fn pause(self, owner: KeyId) -> Option<Pause> {
        match self {
            Self::Paused(left) => Some(Pause { owner, left }),
            Self::Free | Self::Failed => None,
        }
    }
}

/// How a call ends, or pauses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// What its caller is told.
    pub outcome: Outcome,
    /// What becomes of the gate.
    pub gate: GateAfter,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use crate::params::SendMessage;

    const OWNER: KeyId = KeyId([1; 16]);
    const OTHER: KeyId = KeyId([2; 16]);

    fn message() -> Opening {
        let params = json::built(r#"{"message":{"content":"hi"}}"#.into());
        Opening::Message(SendMessage::parse(&params).expect("valid"))
    }

    #[test]
    fn what_a_call_finds() {
        let compact = Opening::Compact(None);
        for left in [Duration::ZERO, Duration::from_millis(1)] {
            let pause = Pause { owner: OWNER, left };
            assert_eq!(pause.expired(), left.is_zero());
            assert_eq!(GateFound::by(Some(pause), OWNER, &message()), GateFound::OwnPause, "however late");
            assert_eq!(GateFound::by(Some(pause), OWNER, &compact), GateFound::ExpiredPause);
            assert_eq!(GateFound::by(Some(pause), OTHER, &message()), GateFound::ExpiredPause);
        }
        for (caller, opening) in [(OWNER, message()), (OTHER, compact)] {
            assert_eq!(GateFound::by(None, caller, &opening), GateFound::Free);
        }
    }

    #[test]
    fn only_a_paused_end_begins_a_pause() {
        let left = Duration::from_secs(600);
        assert_eq!(GateAfter::Paused(left).pause(OWNER), Some(Pause { owner: OWNER, left }));
        assert_eq!(GateAfter::Free.pause(OWNER), None);
        assert_eq!(GateAfter::Failed.pause(OWNER), None);
    }
}
