//! Committed events in the form in which they are sent to other nodes.
//!
//! They are serialized as a part of the messages of `cluster`, so every version that may run in a cluster must be able
//! to read this form. A small append is sent whole. Of a large append only the number and the size are sent, and
//! readers on other nodes read its events from the database.

use super::LogStatus;
use super::recent::size;
use engine::event::{Event, EventNumber, EventType, NewEvent, Payload};
use engine::ids::{CallId, EventId, KeyId, SessionId};
use engine::json::Raw;
use engine::outcome::Outcome;
use engine::time::UnixMillis;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// If the events of one append are together larger than this, only their number and size are sent: the inbox of a node
/// is limited by the count of messages, not by their size.
pub(crate) const LARGE: usize = 64 << 10;

/// What one append has added to a session's log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Committed {
    pub session: SessionId,
    /// Number of the newest event.
    pub head: EventNumber,
    /// Whether no more events will come.
    pub over: bool,
    /// The call to which the events belong.
    pub call: Option<CallId>,
    /// The outcome of the call, if it has ended.
    pub outcome: Option<Outcome>,
    /// The events; empty if they are too large to send.
    pub events: Vec<Sent>,
    /// The size of the events if they are not sent, as bytes of frames.
    #[serde(default)]
    pub left_out: usize,
}

/// An event as it is sent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sent {
    id: EventId,
    number: EventNumber,
    key: KeyId,
    kind: String,
    from_client: bool,
    created_at: UnixMillis,
    payload: Raw,
}

impl Committed {
    pub(crate) fn new(session: SessionId, events: &[Arc<Event>], status: LogStatus, outcome: Option<Outcome>) -> Self {
        let size: usize = events.iter().map(|event| size(event)).sum();
        let sent: Option<Vec<Sent>> =
            if size <= LARGE { events.iter().map(|event| Sent::new(event)).collect() } else { None };
        let left_out = if sent.is_none() { size } else { 0 };
        Self {
            session,
            head: events.last().map_or(EventNumber::START, |event| event.number),
            over: status == LogStatus::Ended,
            call: events.last().and_then(|event| event.call),
            outcome,
            events: sent.unwrap_or_default(),
            left_out,
        }
    }

    /// Whether more events may come.
    pub(crate) fn status(&self) -> LogStatus {
        if self.over { LogStatus::Ended } else { LogStatus::Open }
    }

    /// How long ago the events were committed, by the clocks of the database and of this node. None if they were not
    /// sent, and zero where the clocks contradict each other.
    pub(crate) fn lag(&self) -> Option<Duration> {
        let committed = u64::try_from(self.events.last()?.created_at.0).ok()?;
        Some(crate::elapsed_since(committed))
    }

    pub(crate) fn events(self) -> Vec<Arc<Event>> {
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
