//! Live delivery: what was committed, to whoever watches a session on this node.
//!
//! Best effort by design: a feed remembers the newest events up to a bound and how far the log goes. A reader notices by the
//! number what it missed and fills it from the database, so every reader sees every event once, in order, and a slow one
//! holds nothing up.

use crate::Error;
use crate::cluster::redis::Committed;
use crate::log::{Log, Row, State};
use bytes::Bytes;
use engine::event::{Event, Payload};
use engine::ids::SessionId;
use engine::outcome::Outcome;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use tokio::sync::watch;

/// Events a feed remembers.
const RECENT_EVENTS: usize = 256;
/// Bytes of payload a feed remembers, and of a page that its readers share; a single larger event is left to the database.
const RECENT_BYTES: usize = 8 << 20;
/// Events of one read from the database.
const PAGE: u32 = 64;
/// Views up to this size are rendered once for all readers.
const SHARED_VIEW: usize = 64 << 10;

/// How far a session's log goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head {
    /// Number of the newest event.
    pub number: u64,
    /// Whether no more will come: closed, or failed.
    pub ended: bool,
    /// How often all subscriptions were ended by `session.unsubscribe`.
    pub cuts: u64,
}

/// An event and its view, rendered once.
#[derive(Debug)]
pub struct Shown {
    /// The event.
    pub event: Arc<Event>,
    view: OnceLock<Bytes>,
}

impl Shown {
    fn new(event: Arc<Event>) -> Self {
        Self { event, view: OnceLock::new() }
    }

    /// The EventView. A large one is rendered anew for each reader rather than kept.
    pub fn view(&self) -> Bytes {
        if self.size() > SHARED_VIEW {
            return Bytes::from(self.event.view());
        }
        self.view.get_or_init(|| Bytes::from(self.event.view())).clone()
    }

    /// Bytes it takes as a frame, about.
    pub fn size(&self) -> usize {
        size(&self.event)
    }

    /// Bytes it holds by being remembered: a request shares its messages with the session's history.
    fn held(&self) -> usize {
        match &self.event.event.payload {
            Payload::Json(raw) => raw.get().len(),
            Payload::Request(request) => request.messages.len() * 32 + 1024,
        }
    }
}

/// Bytes that an event takes as a frame, about.
pub(crate) fn size(event: &Event) -> usize {
    match &event.event.payload {
        Payload::Json(raw) => raw.get().len(),
        Payload::Request(request) => {
            request.tools.get().len() + request.messages.iter().map(|m| m.content.get().len() + 32).sum::<usize>()
        }
    }
}

#[derive(Default)]
struct Recent {
    /// By number. Writers of several connections or nodes may tell of their events in another order.
    events: BTreeMap<u64, Arc<Shown>>,
    bytes: usize,
    /// The newest number that was forgotten.
    forgotten: u64,
    /// Bytes of events that are in the database alone, by the number of the last of each append.
    left_out: BTreeMap<u64, usize>,
}

impl Recent {
    fn push(&mut self, shown: Arc<Shown>) {
        let (number, held) = (shown.event.number, shown.held());
        if number <= self.forgotten || self.events.insert(number, shown).is_some() {
            return;
        }
        self.bytes += held;
        while self.events.len() > RECENT_EVENTS || self.bytes > RECENT_BYTES {
            let Some((number, oldest)) = self.events.pop_first() else { break };
            self.bytes -= oldest.held();
            self.forgotten = number;
        }
    }

    /// Notes the size of events that stay in the database, up to that number.
    fn leave_out(&mut self, number: u64, bytes: usize) {
        self.left_out.insert(number, bytes);
        if self.left_out.len() > RECENT_EVENTS {
            self.left_out.pop_first();
        }
    }

    /// What follows that number, as far as it is here without a hole.
    fn after(&self, seen: u64) -> Option<Vec<Arc<Shown>>> {
        let next = self.events.range(seen + 1..).zip(seen + 1..);
        let next: Vec<_> =
            next.take_while(|((number, _), due)| *number == due).map(|((_, s), _)| Arc::clone(s)).collect();
        (!next.is_empty()).then_some(next)
    }

    /// Bytes of what follows that number; without bound where some of it was forgotten.
    fn size_after(&self, number: u64) -> usize {
        if number < self.forgotten {
            return usize::MAX;
        }
        let here: usize = self.events.range(number + 1..).map(|(_, shown)| shown.size()).sum();
        here + self.left_out.range(number + 1..).map(|(_, bytes)| bytes).sum::<usize>()
    }
}

/// One session's feed on this node.
pub struct Feed {
    head: watch::Sender<Head>,
    recent: Mutex<Recent>,
    /// What was read last of that which is in the database alone: readers near the head want it at the same moment, and one
    /// of them reads it for all.
    page: tokio::sync::Mutex<Vec<Arc<Shown>>>,
}

/// The feeds of the sessions that are watched here.
#[derive(Default)]
pub struct Feeds {
    live: Mutex<HashMap<SessionId, Weak<Feed>>>,
    /// Other nodes, which watch sessions too.
    others: OnceLock<crate::cluster::redis::Weak>,
}

/// Poisoning means that a panic left a cache half-updated; the database fills whatever it lost.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feeds {
    fn watch(&self, session: SessionId) -> Arc<Feed> {
        let mut live = locked(&self.live);
        if let Some(feed) = live.get(&session).and_then(Weak::upgrade) {
            return feed;
        }
        let feed =
            Arc::new(Feed { head: watch::Sender::default(), recent: Mutex::default(), page: Default::default() });
        if live.len() == live.capacity() {
            live.retain(|_, feed| feed.strong_count() > 0);
        }
        live.insert(session, Arc::downgrade(&feed));
        feed
    }

    fn live(&self, session: SessionId) -> Option<Arc<Feed>> {
        locked(&self.live).get(&session).and_then(Weak::upgrade)
    }

    /// Tells other nodes from now on, too.
    pub(crate) fn tell_others(&self, others: crate::cluster::redis::Weak) {
        let _ = self.others.set(others);
    }

    /// The sessions that are watched here.
    pub(crate) fn watched(&self) -> Vec<SessionId> {
        let live = locked(&self.live);
        live.iter().filter(|(_, feed)| feed.strong_count() > 0).map(|(session, _)| *session).collect()
    }

    /// Tells the readers of a session, here and on other nodes, what was committed and how its call ended, if it did.
    pub fn publish(&self, session: SessionId, events: &[Arc<Event>], ended: bool, outcome: Option<Outcome>) {
        self.publish_here(session, events, 0, events.last().map_or(0, |event| event.number), ended);
        if let Some(others) = self.others.get().and_then(crate::cluster::redis::Weak::upgrade) {
            others.publish(Committed::new(session, events, ended, outcome));
        }
    }

    /// Tells the readers here. What comes from other nodes comes in no order, and large events stay in the database: readers go
    /// by the numbers.
    pub(crate) fn publish_here(
        &self,
        session: SessionId,
        events: &[Arc<Event>],
        left_out: usize,
        head: u64,
        ended: bool,
    ) {
        let Some(feed) = self.live(session) else { return };
        {
            let mut recent = locked(&feed.recent);
            for event in events {
                recent.push(Arc::new(Shown::new(Arc::clone(event))));
            }
            if left_out > 0 {
                recent.leave_out(head, left_out);
            }
        }
        feed.advance(head, ended);
    }

    /// What reconciliation found.
    pub(crate) fn advance(&self, session: SessionId, head: u64, ended: bool) {
        if let Some(feed) = self.live(session) {
            feed.advance(head, ended);
        }
    }

    /// Ends all subscriptions of a session on this node.
    pub fn cut_here(&self, session: SessionId) {
        if let Some(feed) = self.live(session) {
            feed.head.send_modify(|head| head.cuts += 1);
        }
    }
}

impl Feed {
    fn advance(&self, number: u64, ended: bool) {
        self.head.send_if_modified(|head| {
            let before = *head;
            head.number = head.number.max(number);
            head.ended |= ended;
            *head != before
        });
    }
}

/// A place in a session's log that moves forward.
pub struct Reader {
    log: Log,
    session: SessionId,
    feed: Arc<Feed>,
    head: watch::Receiver<Head>,
    seen: u64,
}

impl Reader {
    /// Watches a session, from its head on. The watch is set before the head is read: nothing is lost between.
    ///
    /// # Errors
    /// `NotFound`; the database's.
    pub async fn open(log: &Log, session: SessionId) -> Result<(Reader, Row), Error> {
        let feed = log.feeds().watch(session);
        let head = feed.head.subscribe();
        if let Some(others) = log.feeds().others.get().and_then(crate::cluster::redis::Weak::upgrade) {
            others.watch(session).await;
        }
        let row = log.row(session).await?;
        feed.advance(row.head, matches!(row.state, State::Closed | State::Error));
        Ok((Reader { log: log.clone(), session, feed, head, seen: row.head }, row))
    }

    /// Moves to just behind that number.
    pub fn seek(&mut self, seen: u64) {
        self.seen = seen;
    }

    /// Number of the event read last.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// How far the log goes, as far as is known here.
    pub fn head(&self) -> Head {
        *self.head.borrow()
    }

    /// Waits until the head is another than `known`.
    pub async fn moved(&mut self, known: Head) {
        // The sender lives as long as this reader's feed.
        let _ = self.head.wait_for(|head| *head != known).await;
    }

    /// The events that follow, up to and including number `last`; empty if there are none yet.
    ///
    /// # Errors
    /// The database's; nothing was skipped.
    pub async fn read(&mut self, last: u64) -> Result<Vec<Arc<Shown>>, Error> {
        if self.seen >= last {
            return Ok(Vec::new());
        }
        let recent = locked(&self.feed.recent).after(self.seen);
        let mut events = match recent {
            Some(events) => events,
            None if self.head().number.saturating_sub(self.seen) > u64::from(PAGE) => self.read_page().await?,
            None => self.share_page().await?,
        };
        events.retain(|shown| shown.event.number <= last);
        if let Some(newest) = events.last() {
            self.seen = newest.event.number;
        }
        Ok(events)
    }

    async fn read_page(&self) -> Result<Vec<Arc<Shown>>, Error> {
        let page = self.log.page(self.session, self.seen, PAGE).await?;
        Ok(page.events.into_iter().map(|event| Arc::new(Shown::new(event))).collect())
    }

    /// The same, once for all readers that want it now.
    async fn share_page(&self) -> Result<Vec<Arc<Shown>>, Error> {
        let mut shared = self.feed.page.lock().await;
        let at = shared.partition_point(|shown| shown.event.number <= self.seen);
        if shared.get(at).is_some_and(|shown| shown.event.number == self.seen + 1) {
            return Ok(shared[at..].to_vec());
        }
        let page = self.read_page().await?;
        let held: usize = page.iter().map(|shown| shown.held()).sum();
        *shared = if held > RECENT_BYTES { Vec::new() } else { page.clone() };
        Ok(page)
    }

    /// Bytes of what was told after that number, also of what stayed in the database; without bound where the feed has
    /// forgotten some of it.
    pub fn size_after(&self, number: u64) -> usize {
        if number >= self.head().number {
            return 0;
        }
        locked(&self.feed.recent).size_after(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::event::{EventType, NewEvent};
    use engine::ids::{EventId, KeyId};

    fn event(number: u64, size: usize) -> Arc<Event> {
        let said = engine::json::parse(&format!("{:?}", "x".repeat(size - 2))).unwrap();
        let (id, key) = (EventId([number as u8; 16]), KeyId([0; 16]));
        let event = NewEvent { id, key, kind: EventType::ToolResult, payload: Payload::Json(said), from_client: false };
        Arc::new(Event { number, session: SessionId([0; 16]), call: None, created_at: 0, event })
    }

    fn told(numbers: &[u64]) -> Recent {
        let mut recent = Recent::default();
        for number in numbers {
            recent.push(Arc::new(Shown::new(event(*number, 100))));
        }
        recent
    }

    fn numbers(recent: &Recent, seen: u64) -> Vec<u64> {
        recent.after(seen).unwrap_or_default().iter().map(|shown| shown.event.number).collect()
    }

    #[test]
    fn events_told_out_of_order_are_read_in_order() {
        let mut recent = told(&[12, 14, 13, 11, 16]);
        assert_eq!(numbers(&recent, 10), [11, 12, 13, 14]);
        assert_eq!(numbers(&recent, 12), [13, 14]);
        assert_eq!(numbers(&recent, 14), [0; 0], "15 is still missing: the database has it");
        assert_eq!(recent.size_after(10), 500, "what is missing is not taken for a lag");
        recent.push(Arc::new(Shown::new(event(15, 100))));
        recent.push(Arc::new(Shown::new(event(15, 100))));
        assert_eq!(numbers(&recent, 13), [14, 15, 16]);
        assert_eq!((recent.size_after(10), recent.bytes), (600, 600), "told twice, kept once");
    }

    #[test]
    fn what_is_forgotten_is_left_to_the_database() {
        let mut recent = told(&(1..=RECENT_EVENTS as u64 + 2).collect::<Vec<_>>());
        assert_eq!((numbers(&recent, 1), recent.size_after(1)), (Vec::new(), usize::MAX));
        assert_eq!(numbers(&recent, 2).len(), RECENT_EVENTS);
        recent.push(Arc::new(Shown::new(event(1, 100))));
        assert_eq!(numbers(&recent, 0), [0; 0], "told late, after it was forgotten");
        recent.push(Arc::new(Shown::new(event(RECENT_EVENTS as u64 + 3, RECENT_BYTES + 1))));
        assert_eq!((recent.events.len(), recent.bytes), (0, 0), "one that is too large alone");
        assert_eq!(recent.size_after(RECENT_EVENTS as u64 + 2), usize::MAX);
    }

    #[test]
    fn what_stays_in_the_database_counts_for_a_lag() {
        let mut recent = told(&[11, 14]);
        recent.leave_out(13, 5000);
        assert_eq!((recent.size_after(10), recent.size_after(12), recent.size_after(13)), (5200, 5100, 100));
        (20..1000).for_each(|number| recent.leave_out(number, 1));
        assert_eq!((recent.left_out.len(), recent.size_after(900)), (RECENT_EVENTS, 99));
    }
}
