//! What this node sends to Redis without anybody waiting for the answer: notifications, which may be lost, and retried
//! commands, which are sent again until Redis takes them.
//!
//! If Redis is emptied, a notification that was in another node's inbox is lost, and that node finds out from the
//! database when it reconciles. A retried command has nothing left to do then.

use super::leases::{EACH, SESSIONS_AT_ONCE};
use super::{Frame, RETRY, Redis};
use crate::cluster::Successor;
use crate::feed::Notification;
use engine::ids::{CallId, KeyId, SessionId};
use engine::rpc::RpcError;
use futures_util::{StreamExt, stream};
use redis::RedisResult;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a node stays in a session's watch set unless that is renewed.
pub(super) const WATCH: Duration = Duration::from_secs(30);

/// A change in Redis that nobody waits for. Commands are done in order, and are tried again while Redis cannot be
/// reached.
#[derive(Clone)]
pub(super) enum RetriedCommand {
    /// No caller on this node waits for the call any more.
    Leave(SessionId, CallId),
    /// This node has given the session up.
    Release(SessionId, Successor),
    /// A call has started, ended or was refused and is no longer in the queue. The frame, if there is one, is for the
    /// nodes that wait for the call.
    Over(SessionId, CallId, Option<String>),
}

impl RetriedCommand {
    fn release(&self) -> Option<(SessionId, Successor)> {
        match self {
            RetriedCommand::Release(session, successor) => Some((*session, *successor)),
            RetriedCommand::Leave(..) | RetriedCommand::Over(..) => None,
        }
    }
}

/// How many retried commands may wait. Each is small, and they come at the rate at which callers leave and calls end.
pub(super) const RETRIED_COMMANDS: usize = 65_536;

/// How many notifications may be sent before the first of them is answered.
const NOTIFICATIONS_AT_ONCE: usize = 32;

/// The retried commands that wait, and those that were begun last.
pub(super) struct RetriedCommands {
    pub queue: mpsc::Receiver<RetriedCommand>,
    pub begun: Vec<RetriedCommand>,
}

impl Redis {
    pub(super) fn remember(&self, command: RetriedCommand) {
        let Err(lost) = self.0.commands.try_send(command) else { return };
        if let mpsc::error::TrySendError::Full(_) = &lost {
            tracing::warn!("redis has been away for so long that not all of its queues can be tidied up");
        }
        self.done(&lost.into_inner());
    }

    /// Records that a command was done, or that it is given up. Returns its session if that is wanted again.
    fn done(&self, command: &RetriedCommand) -> Option<SessionId> {
        match command {
            RetriedCommand::Leave(..) => None,
            RetriedCommand::Release(session, _) => self.released(*session).then_some(*session),
            RetriedCommand::Over(..) => {
                self.0.owed.fetch_sub(1, Ordering::SeqCst);
                None
            }
        }
    }

    pub(crate) fn cut(&self, session: SessionId) {
        self.0.log.feeds().notify_others(Notification::Cut(session));
    }

    /// Puts this node into a session's watch set. This may fail: reconciliation finds out what the node was not told.
    pub(crate) async fn watch(&self, session: SessionId) {
        if !self.0.connection.up() {
            return;
        }
        let seconds = WATCH.as_secs();
        let _: RedisResult<u8> = self.call(&self.0.scripts.watch, &self.keys(session), |s| s.arg(seconds)).await;
    }

    pub(crate) async fn wake(&self, session: SessionId) {
        if self.0.table.with(session, |local| local.owned.then(|| local.wake.notify_one())).flatten().is_some() {
            return;
        }
        let frame = Frame::Wake(session).encode();
        let _: RedisResult<String> = self.call(&self.0.scripts.to_owner, &self.keys(session), |s| s.arg(frame)).await;
    }

    pub(crate) async fn revoked(&self, key: KeyId, error: &RpcError) {
        self.forget(key, error);
        let frame = Frame::Revoked(key).encode();
        let told: RedisResult<u8> = self.call(&self.0.scripts.to_all, "", |s| s.arg(frame)).await;
        if let Err(error) = told {
            tracing::warn!(error = %error, "other nodes notice a revocation by themselves, within a second");
        }
    }

    pub(super) async fn send_notifications(&self, mut notifications: mpsc::Receiver<Notification>) {
        let told = stream::poll_fn(|context| notifications.poll_recv(context)).map(async |notification| {
            // While Redis cannot be reached, notifications are dropped rather than kept.
            if self.0.connection.up()
                && let Err(error) = self.send_notification(notification).await
            {
                tracing::debug!(error = %error, "other nodes could not be notified");
            }
        });
        // They are sent in order, but each one is sent before the one before it was answered.
        told.buffered(NOTIFICATIONS_AT_ONCE).for_each(async |()| {}).await;
    }

    async fn send_notification(&self, notification: Notification) -> RedisResult<()> {
        let (session, frame) = match notification {
            Notification::Watches => {
                for session in self.0.log.feeds().watched() {
                    self.watch(session).await;
                }
                return Ok(());
            }
            Notification::Cut(session) => (session, Frame::Cut(session)),
            Notification::Committed(committed) => (committed.session, Frame::Committed(*committed)),
        };
        let frame = frame.encode();
        self.call::<u8>(&self.0.scripts.to_watchers, &self.keys(session), |s| s.arg(frame)).await.map(drop)
    }

    /// Runs the commands one after the other, however long Redis cannot be reached. One that was interrupted is run
    /// again.
    pub(super) async fn run_commands(&self, commands: &mut RetriedCommands) {
        loop {
            if commands.begun.is_empty() && commands.queue.recv_many(&mut commands.begun, SESSIONS_AT_ONCE).await == 0 {
                return;
            }
            // A node that stops gives all of its sessions up at once, so releases share a script.
            let releases = commands.begun.iter().map_while(RetriedCommand::release).collect::<Vec<_>>();
            let (count, result) = match (&releases[..], commands.begun.first()) {
                ([], Some(command)) => (1, self.run_command(command).await),
                _ => (releases.len(), self.release(&releases).await),
            };
            if let Err(error) = result {
                tracing::debug!(error = %error, "a command failed in Redis");
                if !self.0.connection.up() {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            let wanted: Vec<_> = commands.begun.drain(..count).filter_map(|command| self.done(&command)).collect();
            self.ensure_owners(&wanted).await;
        }
    }

    async fn release(&self, sessions: &[(SessionId, Successor)]) -> RedisResult<()> {
        let not_to = if self.is_draining() { self.0.node.as_str() } else { "" };
        let released: RedisResult<u8> = self
            .call(&self.0.scripts.release, "", |s| {
                s.arg(Frame::Offer(EACH).encode()).arg(EACH.to_string()).arg(not_to);
                for (session, successor) in sessions {
                    let to = match successor {
                        Successor::Another => "another",
                        Successor::Caller => "caller",
                        Successor::Nobody => "",
                    };
                    s.arg(self.keys(*session)).arg(session.to_string()).arg(to);
                }
                s
            })
            .await;
        released.map(drop)
    }

    pub(super) async fn run_command(&self, command: &RetriedCommand) -> RedisResult<()> {
        let scripts = &self.0.scripts;
        let done: RedisResult<u8> = match command {
            RetriedCommand::Leave(session, call) => {
                self.call(&scripts.leave, &self.keys(*session), |s| s.arg(call.to_string())).await
            }
            RetriedCommand::Release(session, successor) => return self.release(&[(*session, *successor)]).await,
            RetriedCommand::Over(session, call, Some(frame)) => {
                self.call(&scripts.refuse, &self.keys(*session), |s| s.arg(call.to_string()).arg(frame)).await
            }
            RetriedCommand::Over(session, call, None) => {
                self.call(&scripts.started, &self.keys(*session), |s| s.arg(call.to_string())).await
            }
        };
        done.map(drop)
    }
}
