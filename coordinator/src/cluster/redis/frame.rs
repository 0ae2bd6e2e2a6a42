//! What nodes write into each other's inboxes. Each frame carries its version; one that is newer is left alone, because
//! everything here is a hint that the database can replace.

use crate::feed::size;
use engine::event::{Event, EventType, NewEvent, Payload};
use engine::ids::{CallId, EventId, KeyId, SessionId};
use engine::json::Raw;
use engine::outcome::Outcome;
use engine::rpc::RpcError;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Events of one append that are larger together travel as their number alone: an inbox is bounded in frames.
const LARGE: usize = 64 << 10;
const VERSION: u8 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Envelope<T> {
    v: u8,
    frame: T,
}

/// One message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Frame {
    /// The owner should look again.
    Wake(SessionId),
    /// The session is being closed.
    Stop(SessionId),
    /// Its owner leaves: take it, now.
    Offer(SessionId),
    /// Subscriptions end.
    Cut(SessionId),
    /// A waiting call recorded nothing.
    Refused(SessionId, CallId, RpcError),
    /// A waiting call was made before under its idempotency key.
    Follow(SessionId, CallId, CallId),
    /// A client key was revoked.
    Revoked(KeyId),
    /// The log went on.
    Committed(Committed),
}

/// News of a log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Committed {
    pub session: SessionId,
    /// Number of the newest event.
    pub head: u64,
    /// Whether no more will come.
    pub over: bool,
    /// The call whose events these are.
    pub call: Option<CallId>,
    /// Its outcome, when it is over.
    pub outcome: Option<Outcome>,
    /// The events, unless one is large.
    pub events: Vec<Sent>,
    /// Bytes of the events that do not travel, as frames.
    #[serde(default)]
    pub left_out: usize,
}

/// An event on its way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sent {
    id: EventId,
    number: u64,
    key: KeyId,
    kind: String,
    from_client: bool,
    created_at: i64,
    payload: Raw,
}

impl Frame {
    pub fn encode(&self) -> String {
        engine::json::encode(&Envelope { v: VERSION, frame: self }).get().to_owned()
    }

    pub fn decode(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Version {
            v: u8,
        }
        let Version { v } = serde_json::from_str(text).ok()?;
        (v == VERSION).then(|| serde_json::from_str::<Envelope<Frame>>(text).ok().map(|e| e.frame)).flatten()
    }
}

impl Committed {
    pub fn new(session: SessionId, events: &[Arc<Event>], over: bool, outcome: Option<Outcome>) -> Self {
        let size: usize = events.iter().map(|event| size(event)).sum();
        let sent: Option<Vec<Sent>> =
            if size <= LARGE { events.iter().map(|event| Sent::new(event)).collect() } else { None };
        let left_out = if sent.is_none() { size } else { 0 };
        Self {
            session,
            head: events.last().map_or(0, |event| event.number),
            over,
            call: events.last().and_then(|event| event.call),
            outcome,
            events: sent.unwrap_or_default(),
            left_out,
        }
    }

    pub fn events(self) -> Vec<Arc<Event>> {
        let (session, call) = (self.session, self.call);
        self.events.into_iter().filter_map(|sent| sent.event(session, call)).map(Arc::new).collect()
    }
}

impl Sent {
    fn new(event: &Event) -> Option<Self> {
        let Payload::Json(payload) = &event.event.payload else { return None };
        Some(Self {
            id: event.event.id,
            number: event.number,
            key: event.event.key,
            kind: event.event.kind.as_str().to_owned(),
            from_client: event.event.from_client,
            created_at: event.created_at,
            payload: Arc::clone(payload),
        })
    }

    fn event(self, session: SessionId, call: Option<CallId>) -> Option<Event> {
        let kind: EventType = self.kind.parse().ok()?;
        let payload = Payload::Json(self.payload);
        let event = NewEvent { id: self.id, key: self.key, kind, payload, from_client: self.from_client };
        Some(Event { number: self.number, session, call, created_at: self.created_at, event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(sizes: &[usize]) -> Vec<Arc<Event>> {
        let event = |(number, size): (u64, &usize)| {
            let payload = Payload::Json(engine::json::encode(&"x".repeat(size - 2)));
            let (id, key) = (EventId([number as u8; 16]), KeyId([0; 16]));
            let event = NewEvent { id, key, kind: EventType::ToolResult, payload, from_client: false };
            Arc::new(Event { number, session: SessionId([0; 16]), call: None, created_at: 0, event })
        };
        (1..).zip(sizes).map(event).collect()
    }

    #[test]
    fn a_frame_is_bounded_whatever_was_appended_at_once() {
        let told = |sizes: &[usize]| Committed::new(SessionId([0; 16]), &events(sizes), false, None);
        let small = told(&[LARGE / 2, LARGE / 2]);
        assert_eq!((small.head, small.events.len(), small.left_out), (2, 2, 0));
        for sizes in [&[LARGE + 1][..], &[LARGE / 2, LARGE / 2, 10]] {
            let large = told(sizes);
            let all = sizes.iter().sum::<usize>();
            assert_eq!((large.head, large.events.len(), large.left_out), (sizes.len() as u64, 0, all));
            assert!(Frame::decode(&Frame::Committed(large).encode()).is_some());
        }
    }
}
