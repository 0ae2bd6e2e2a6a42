//! What a feed remembers of one session: its newest events, up to a limit, each with its rendered form.
//!
//! Events may arrive in any order and more than once. They are returned in the order of their numbers and without a
//! gap. Only `feed` and the reader use this module.

use bytes::Bytes;
use engine::event::{Event, EventNumber, Payload};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The most events that a feed remembers.
const RECENT_EVENTS: usize = 256;
/// The most bytes of payload that a feed remembers, and of a page that readers share. A single event that is larger is
/// not remembered, and readers take it from the database.
pub(super) const RECENT_BYTES: usize = 8 << 20;
/// A view up to this size is rendered once for all readers.
const SHARED_VIEW: usize = 64 << 10;

/// An event, and its view once it was rendered.
#[derive(Debug)]
pub struct RenderedEvent {
    /// The event.
    pub event: Arc<Event>,
    view: OnceLock<Bytes>,
}

impl RenderedEvent {
    pub(crate) fn new(event: Arc<Event>) -> Self {
        Self { event, view: OnceLock::new() }
    }

    /// The event in the form in which the API shows it. A large one is not kept but rendered for each reader.
    pub fn view(&self) -> Bytes {
        if self.size() > SHARED_VIEW {
            return Bytes::from(self.event.view());
        }
        self.view.get_or_init(|| Bytes::from(self.event.view())).clone()
    }

    /// About how many bytes the event takes as a frame.
    pub fn size(&self) -> usize {
        size(&self.event)
    }

    /// How many bytes are held by remembering the event. A request counts for little, because it shares its messages
    /// with the session's history.
    pub(super) fn held(&self) -> usize {
        match &self.event.event.payload {
            Payload::Json(raw) => raw.get().len(),
            Payload::Request(request) => request.messages.len() * 32 + 1024,
        }
    }
}

/// About how many bytes an event takes as a frame.
pub(crate) fn size(event: &Event) -> usize {
    match &event.event.payload {
        Payload::Json(raw) => raw.get().len(),
        Payload::Request(request) => {
            request.tools.get().len() + request.messages.iter().map(|m| m.content.get().len() + 32).sum::<usize>()
        }
    }
}

#[derive(Default)]
pub(super) struct Recent {
    /// The events by number. Writers on other connections or nodes may announce their events in another order.
    events: BTreeMap<EventNumber, Arc<RenderedEvent>>,
    bytes: usize,
    /// The newest number whose event was forgotten.
    forgotten: EventNumber,
    /// The size of events that are only in the database, by the number of the last event of their append.
    left_out: BTreeMap<EventNumber, usize>,
}

impl Recent {
    pub(super) fn push(&mut self, rendered: Arc<RenderedEvent>) {
        let (number, held) = (rendered.event.number, rendered.held());
        if number <= self.forgotten || self.events.insert(number, rendered).is_some() {
            return;
        }
        self.bytes += held;
        while self.events.len() > RECENT_EVENTS || self.bytes > RECENT_BYTES {
            let Some((number, oldest)) = self.events.pop_first() else { break };
            self.bytes -= oldest.held();
            self.forgotten = number;
        }
    }

    /// Notes that the events of an append up to this number are only in the database, and their size.
    pub(super) fn leave_out(&mut self, number: EventNumber, bytes: usize) {
        self.left_out.insert(number, bytes);
        if self.left_out.len() > RECENT_EVENTS {
            self.left_out.pop_first();
        }
    }

    /// The remembered events that follow this number without a gap. None if the next event is not remembered.
    pub(super) fn after(&self, seen: EventNumber) -> Option<Vec<Arc<RenderedEvent>>> {
        let next = self.events.range(seen.next()..).enumerate();
        let next = next.take_while(|(place, (number, _))| **number == seen.next().plus(*place));
        let next: Vec<_> = next.map(|(_, (_, rendered))| Arc::clone(rendered)).collect();
        (!next.is_empty()).then_some(next)
    }

    /// How many bytes of events follow this number. `usize::MAX` if some of them were forgotten.
    pub(super) fn size_after(&self, number: EventNumber) -> usize {
        if number < self.forgotten {
            return usize::MAX;
        }
        let here: usize = self.events.range(number.next()..).map(|(_, rendered)| rendered.size()).sum();
        here + self.left_out.range(number.next()..).map(|(_, bytes)| bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::event::{EventType, NewEvent};
    use engine::ids::{EventId, KeyId, SessionId};
    use engine::time::UnixMillis;

    fn event(number: i64, size: usize) -> Arc<Event> {
        let said = engine::json::parse(&format!("{:?}", "x".repeat(size - 2))).unwrap();
        let (id, key, number) = (EventId([number as u8; 16]), KeyId([0; 16]), EventNumber(number));
        let event = NewEvent { id, key, kind: EventType::ToolResult, payload: Payload::Json(said), from_client: false };
        Arc::new(Event { number, session: SessionId([0; 16]), call: None, created_at: UnixMillis(0), event })
    }

    fn told(numbers: &[i64]) -> Recent {
        let mut recent = Recent::default();
        for number in numbers {
            recent.push(Arc::new(RenderedEvent::new(event(*number, 100))));
        }
        recent
    }

    fn numbers(recent: &Recent, seen: i64) -> Vec<i64> {
        let after = recent.after(EventNumber(seen)).unwrap_or_default();
        after.iter().map(|rendered| rendered.event.number.0).collect()
    }

    fn size_after(recent: &Recent, seen: i64) -> usize {
        recent.size_after(EventNumber(seen))
    }

    #[test]
    fn events_told_out_of_order_are_read_in_order() {
        let mut recent = told(&[12, 14, 13, 11, 16]);
        assert_eq!(numbers(&recent, 10), [11, 12, 13, 14]);
        assert_eq!(numbers(&recent, 12), [13, 14]);
        assert_eq!(numbers(&recent, 14), [0; 0], "15 is still missing: the database has it");
        assert_eq!(size_after(&recent, 10), 500, "what is missing is not taken for a lag");
        recent.push(Arc::new(RenderedEvent::new(event(15, 100))));
        recent.push(Arc::new(RenderedEvent::new(event(15, 100))));
        assert_eq!(numbers(&recent, 13), [14, 15, 16]);
        assert_eq!((size_after(&recent, 10), recent.bytes), (600, 600), "told twice, kept once");
    }

    #[test]
    fn what_is_forgotten_is_left_to_the_database() {
        let mut recent = told(&(1..=RECENT_EVENTS as i64 + 2).collect::<Vec<_>>());
        assert_eq!((numbers(&recent, 1), size_after(&recent, 1)), (Vec::new(), usize::MAX));
        assert_eq!(numbers(&recent, 2).len(), RECENT_EVENTS);
        recent.push(Arc::new(RenderedEvent::new(event(1, 100))));
        assert_eq!(numbers(&recent, 0), [0; 0], "told late, after it was forgotten");
        recent.push(Arc::new(RenderedEvent::new(event(RECENT_EVENTS as i64 + 3, RECENT_BYTES + 1))));
        assert_eq!((recent.events.len(), recent.bytes), (0, 0), "one that is too large alone");
        assert_eq!(size_after(&recent, RECENT_EVENTS as i64 + 2), usize::MAX);
    }

    #[test]
    fn what_stays_in_the_database_counts_for_a_lag() {
        let mut recent = told(&[11, 14]);
        recent.leave_out(EventNumber(13), 5000);
        assert_eq!((size_after(&recent, 10), size_after(&recent, 12), size_after(&recent, 13)), (5200, 5100, 100));
        (20..1000).for_each(|number| recent.leave_out(EventNumber(number), 1));
        assert_eq!((recent.left_out.len(), size_after(&recent, 900)), (RECENT_EVENTS, 99));
    }
}
