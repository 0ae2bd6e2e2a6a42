//! The outbox: notifications for other nodes, kept in order until `cluster` sends them.
//!
//! Nobody waits for them. They are dropped while Redis is too slow: readers find in the database what they were not
//! told.

use super::Committed;
use engine::ids::SessionId;
use tokio::sync::mpsc;

/// Notifications that may wait to be sent.
const CAPACITY: usize = 1024;

/// What other nodes are told.
pub(crate) enum Notification {
    /// This node goes on watching what it watches.
    Watches,
    /// All subscriptions of the session end.
    Cut(SessionId),
    /// A log went on.
    Committed(Box<Committed>),
}

/// Where notifications are left.
pub(super) struct Outbox(mpsc::Sender<Notification>);

/// The other end of the outbox, which the cluster's tasks empty.
pub struct Notifications(pub(crate) mpsc::Receiver<Notification>);

impl Outbox {
    pub(super) fn new() -> (Self, Notifications) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Self(sender), Notifications(receiver))
    }

    /// Leaves a notification, unless too many wait or the cluster was left.
    pub(super) fn send(&self, notification: Notification) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.0.try_send(notification) {
            tracing::debug!("redis is too slow for the notifications; readers look into the database");
        }
    }
}
