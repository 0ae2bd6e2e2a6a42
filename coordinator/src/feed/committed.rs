//! Committed events on their way to other nodes, in the form in which they travel.
//!
//! Serialized as a part of what `cluster` sends, so the form is one that every running version must read. Small appends
//! travel whole; of a large one only the number does, and readers there take the events from the database.

use super::LogStatus;
use super::recent::size;
use engine::event::{Event, EventNumber, EventType, NewEvent, Payload};
use engine::ids::{CallId, EventId, KeyId, SessionId};
use engine::json::Raw;
use engine::outcome::Outcome;
use engine::time::UnixMillis;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Events of one append that are larger together travel as their number alone: an inbox is bounded in frames.
pub(crate) const LARGE: usize = 64 << 10;

/// What one append added to a log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Committed {
    pub session: SessionId,
    /// Number of the newest event.
    pub head: EventNumber,
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
