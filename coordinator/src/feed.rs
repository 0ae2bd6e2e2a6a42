//! Delivers committed events to the readers of a session on this node, and to other nodes through an outbox.
//!
//! Delivery may lose events. A feed keeps the newest events up to a limit, and the number of the newest event. A reader
//! sees from the numbers what it missed and reads that from the database. So every reader gets every event once and in
//! order, and a slow reader delays nobody. The log publishes here after each commit, `cluster` passes on what other
//! nodes have committed, and [`crate::reader`] reads. This module uses none of the three.

mod committed;
mod outbox;
mod recent;

pub use outbox::Notifications;
pub use recent::RenderedEvent;

pub(crate) use committed::Committed;
#[cfg(test)]
pub(crate) use committed::LARGE;
pub(crate) use outbox::Notification;

use crate::metrics::metrics;
use engine::event::{Event, EventNumber};
use engine::ids::SessionId;
use engine::outcome::Outcome;
use outbox::Outbox;
use recent::{RECENT_BYTES, Recent};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::watch;

/// Whether more events may come to a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogStatus {
    /// More may come.
    #[default]
    Open,
    /// No more will come: the session is closed, or has failed.
    Ended,
}

/// How far a session's log goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head {
    /// Number of the newest event.
    pub number: EventNumber,
    /// Whether more may come.
    pub status: LogStatus,
    /// How often all subscriptions were ended by `session.unsubscribe`.
    pub cuts: u64,
}

/// The feed of one session on this node.
pub(crate) struct Feed {
    head: watch::Sender<Head>,
    recent: Mutex<Recent>,
    /// The page that was last read from the database. Readers close to the end of the log need it at the same moment,
    /// so one of them reads it for all.
    page: tokio::sync::Mutex<Vec<Arc<RenderedEvent>>>,
}

/// The feeds of the sessions that are watched here.
#[derive(Default)]
pub struct Feeds {
    live: Mutex<HashMap<SessionId, Weak<Feed>>>,
    /// Notifications for other nodes, whose clients may watch the same sessions. None if this node is alone.
    outbox: Option<Outbox>,
}

/// Locks, also after a panic of another holder. That may leave a cache incomplete, and what it lacks is read from the
/// database.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feeds {
    /// Makes the feeds of a node in a cluster, and the queue of what they tell other nodes. A node that is alone uses
    /// the default.
    pub fn clustered() -> (Self, Notifications) {
        let (outbox, notifications) = Outbox::new();
        (Self { live: Mutex::default(), outbox: Some(outbox) }, notifications)
    }

    pub(crate) fn watch(&self, session: SessionId) -> Arc<Feed> {
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

    /// Puts a notification for the other nodes into the outbox, if there are any.
    pub(crate) fn notify_others(&self, notification: Notification) {
        if let Some(outbox) = &self.outbox {
            outbox.send(notification);
        }
    }

    /// The sessions that are watched here.
    pub(crate) fn watched(&self) -> Vec<SessionId> {
        let live = locked(&self.live);
        live.iter().filter(|(_, feed)| feed.strong_count() > 0).map(|(session, _)| *session).collect()
    }

    /// Tells the readers of a session, here and on other nodes, what was committed, and the outcome of the call if it
    /// ended.
    pub fn publish(&self, session: SessionId, events: &[Arc<Event>], status: LogStatus, outcome: Option<Outcome>) {
        metrics().committed(events);
        self.publish_here(session, events, 0, events.last().map_or(EventNumber::START, |event| event.number), status);
        if let Some(outbox) = &self.outbox {
            let committed = Committed::new(session, events, status, outcome);
            outbox.send(Notification::Committed(Box::new(committed)));
        }
    }

    /// Tells the readers on this node. Events of other nodes may arrive in any order, and large ones do not arrive but
    /// are read from the database; readers order events by their numbers.
    pub(crate) fn publish_here(
        &self,
        session: SessionId,
        events: &[Arc<Event>],
        left_out: usize,
        head: EventNumber,
        status: LogStatus,
    ) {
        let Some(feed) = self.live(session) else { return };
        {
            let mut recent = locked(&feed.recent);
            for event in events {
                recent.push(Arc::new(RenderedEvent::new(Arc::clone(event))));
            }
            if left_out > 0 {
                recent.leave_out(head, left_out);
            }
        }
        feed.advance(head, status);
    }

    /// Moves a session's head to what the periodic comparison with the database found.
    pub(crate) fn advance(&self, session: SessionId, head: EventNumber, status: LogStatus) {
        if let Some(feed) = self.live(session) {
            feed.advance(head, status);
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
    /// Moves the head forward. A head never moves back.
    pub(crate) fn advance(&self, number: EventNumber, status: LogStatus) {
        self.head.send_if_modified(|head| {
            let before = *head;
            head.number = head.number.max(number);
            if status == LogStatus::Ended {
                head.status = status;
            }
            *head != before
        });
    }

    /// Watches the head: its present value, and every change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Head> {
        self.head.subscribe()
    }

    /// The remembered events that follow this number without a gap. None if the next event is not remembered.
    pub(crate) fn after(&self, seen: EventNumber) -> Option<Vec<Arc<RenderedEvent>>> {
        locked(&self.recent).after(seen)
    }

    /// How many bytes of events were published after this number, including those that are only in the database.
    /// `usize::MAX` if some of them were forgotten.
    pub(crate) fn size_after(&self, number: EventNumber) -> usize {
        locked(&self.recent).size_after(number)
    }

    /// The page of events after this number. When several readers want it at the same time, it is read once.
    pub(crate) async fn share_page<E, F>(
        &self,
        seen: EventNumber,
        read: impl FnOnce() -> F,
    ) -> Result<Vec<Arc<RenderedEvent>>, E>
    where
        F: Future<Output = Result<Vec<Arc<RenderedEvent>>, E>>,
    {
        let mut shared = self.page.lock().await;
        let at = shared.partition_point(|rendered| rendered.event.number <= seen);
        if shared.get(at).is_some_and(|rendered| rendered.event.number == seen.next()) {
            return Ok(shared[at..].to_vec());
        }
        let page = read().await?;
        let held: usize = page.iter().map(|rendered| rendered.held()).sum();
        *shared = if held > RECENT_BYTES { Vec::new() } else { page.clone() };
        Ok(page)
    }
}
