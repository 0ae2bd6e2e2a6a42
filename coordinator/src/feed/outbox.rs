//! The outbox: a queue of notifications for other nodes, which `cluster` sends in order.
//!
//! Nothing waits until a notification is sent. When Redis is too slow and the queue is full, notifications are dropped,
//! because readers find in the database what they were not told.

use super::Committed;
use engine::ids::SessionId;
use tokio::sync::mpsc;

/// The most notifications that wait to be sent.
const CAPACITY: usize = 1024;

/// A notification for other nodes.
pub(crate) enum Notification {
    /// The announcement of the sessions that this node watches has to be renewed.
    Watches,
    /// All subscriptions of the session end.
    Cut(SessionId),
    /// Events were committed.
    Committed(Box<Committed>),
}

/// The end of the queue that feeds write to.
pub(super) struct Outbox(mpsc::Sender<Notification>);

/// The end of the queue that the tasks of `cluster` read.
pub struct Notifications(pub(crate) mpsc::Receiver<Notification>);

impl Outbox {
    pub(super) fn new() -> (Self, Notifications) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Self(sender), Notifications(receiver))
    }

    /// Puts a notification into the queue. It is dropped if the queue is full, or if `cluster` has ended.
    pub(super) fn send(&self, notification: Notification) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.0.try_send(notification) {
            tracing::debug!("redis is too slow for the notifications; readers look into the database");
        }
    }
}
