//! The messages, called frames, that nodes write into each other's inboxes.
//!
//! Each frame carries the version of its form, and a node skips frames of other versions. Every frame may be lost or
//! skipped: what it says can be found in the database or is sent again, only later.

use crate::feed::Committed;
use engine::ids::{CallId, KeyId, SessionId};
use engine::rpc::RpcError;
use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Envelope<T> {
    v: u8,
    frame: T,
}

/// One message to another node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Frame {
    /// The session's owner should check again what it can do.
    Wake(SessionId),
    /// The session is being closed, so its owner should stop.
    Stop(SessionId),
    /// The session's owner has given it up, so this node should take it.
    Offer(SessionId),
    /// All subscriptions to the session end.
    Cut(SessionId),
    /// A waiting call recorded nothing and is answered with this error.
    Refused(SessionId, CallId, RpcError),
    /// The second call was recorded first with the idempotency key of the first one: follow it instead.
    Follow(SessionId, CallId, CallId),
    /// A client key was revoked.
    Revoked(KeyId),
    /// Events were appended to a session's log.
    Committed(Committed),
}

impl Frame {
    pub(super) fn encode(&self) -> String {
        engine::json::encode(&Envelope { v: VERSION, frame: self }).get().to_owned()
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Version {
            v: u8,
        }
        let Version { v } = serde_json::from_str(text).ok()?;
        (v == VERSION).then(|| serde_json::from_str::<Envelope<Frame>>(text).ok().map(|e| e.frame)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::LARGE;
    use engine::event::{Event, EventNumber, EventType, NewEvent, Payload};
    use engine::ids::EventId;
    use engine::time::UnixMillis;
    use std::sync::Arc;

    fn events(sizes: &[usize]) -> Vec<Arc<Event>> {
        let event = |(number, size): (i64, &usize)| {
            let payload = Payload::Json(engine::json::encode(&"x".repeat(size - 2)));
            let (id, key, number) = (EventId([number as u8; 16]), KeyId([0; 16]), EventNumber(number));
            let event = NewEvent { id, key, kind: EventType::ToolResult, payload, from_client: false };
            Arc::new(Event { number, session: SessionId([0; 16]), call: None, created_at: UnixMillis(0), event })
        };
        (1..).zip(sizes).map(event).collect()
    }

    #[test]
    fn a_frame_is_bounded_whatever_was_appended_at_once() {
        let told =
            |sizes: &[usize]| Committed::new(SessionId([0; 16]), &events(sizes), crate::feed::LogStatus::Open, None);
        let small = told(&[LARGE / 2, LARGE / 2]);
        assert_eq!((small.head, small.events.len(), small.left_out), (EventNumber(2), 2, 0));
        for sizes in [&[LARGE + 1][..], &[LARGE / 2, LARGE / 2, 10]] {
            let large = told(sizes);
            let all = sizes.iter().sum::<usize>();
            assert_eq!(
                (large.head, large.events.len(), large.left_out),
                (EventNumber::START.plus(sizes.len()), 0, all)
            );
            assert!(Frame::decode(&Frame::Committed(large).encode()).is_some());
        }
    }
}
