//! The tasks that keep a node in its cluster: heartbeats, the renewal of leases, reading the inbox, sending
//! notifications, the commands that are retried until Redis takes them, and reconciliation.
//!
//! Reconciliation compares every two seconds what Redis and the database hold with what this node knows. It makes up
//! for every frame that was lost, and after Redis was emptied it puts this node's calls back. `lifecycle` in the `node`
//! crate runs [`Tasks`] until the node stops.

use super::outbox::{RetriedCommand, RetriedCommands, WATCH};
use super::{Frame, Redis, locked};
use crate::cluster::queue::Call;
use crate::cluster::{Progress, Signal};
use crate::feed::Notification;
use crate::metrics::metrics;
use engine::ids::{CallId, SessionId};
use futures_util::FutureExt;
use redis::streams::{StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands, RedisResult};
use std::collections::HashSet;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// The time between two heartbeats. It is shorter where the lease is short, so that [`CHECKS_PER_LEASE`] fit into a
/// lease.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
/// The time between two reconciliations. It is shorter where the lease is short, as for heartbeats.
const RECONCILE: Duration = Duration::from_secs(2);
const RENEWALS_PER_LEASE: u32 = 3;
pub(super) const CHECKS_PER_LEASE: u32 = 4;
/// At shutdown, how long the retried commands that are left may take: they release the last leases and offer the
/// sessions to other nodes.
const LAST_RETRIED_COMMANDS: Duration = Duration::from_secs(2);
/// How long a read of the inbox blocks.
const BLOCK: Duration = Duration::from_secs(5);
const INBOX_BATCH: usize = 512;
const RECONNECT: Duration = Duration::from_millis(250);

/// How many calls Redis is asked about at once.
const BATCH: usize = 500;

/// The tasks of one node, ready to run.
pub struct Tasks {
    redis: Redis,
    notifications: mpsc::Receiver<Notification>,
    commands: RetriedCommands,
    signal: mpsc::UnboundedSender<Signal>,
}

impl Tasks {
    pub(super) fn new(
        redis: Redis,
        notifications: mpsc::Receiver<Notification>,
        queue: mpsc::Receiver<RetriedCommand>,
        signal: mpsc::UnboundedSender<Signal>,
    ) -> Self {
        Self { redis, notifications, commands: RetriedCommands { queue, begun: Vec::new() }, signal }
    }

    /// Runs until `stop` is cancelled, then leaves the cluster.
    pub async fn run(self, stop: CancellationToken) {
        let Tasks { redis, notifications, mut commands, signal } = self;
        let work = async {
            tokio::join!(
                redis.send_heartbeats(),
                redis.renew(),
                redis.read_inbox(&signal),
                redis.send_notifications(notifications),
                redis.run_commands(&mut commands),
                redis.reconcile()
            )
        };
        stop.run_until_cancelled(work.boxed()).await;
        commands.queue.close();
        let _ = tokio::time::timeout(LAST_RETRIED_COMMANDS, redis.run_commands(&mut commands)).await;
        let _: RedisResult<u8> = redis.call(&redis.0.scripts.remove_node, "", |s| s).await;
    }
}

/// The smallest id in a Redis stream that is greater than this one.
fn behind(id: &str) -> String {
    let next = |(ms, seq): (&str, &str)| Some(format!("{ms}-{}", seq.parse::<u64>().ok()?.checked_add(1)?));
    id.split_once('-').and_then(next).unwrap_or_else(|| id.to_owned())
}

pub(super) fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Redis {
    async fn renew(&self) {
        let mut ticks = ticks(self.0.settings.lease / RENEWALS_PER_LEASE);
        loop {
            ticks.tick().await;
            let sessions: Vec<SessionId> = locked(&self.0.leases).keys().copied().collect();
            if sessions.is_empty() {
                continue;
            }
            if let Err(error) = self.renew_now(&sessions).await {
                tracing::warn!(error = %error, "leases could not be renewed");
            }
        }
    }

    async fn read_inbox(&self, signal: &mpsc::UnboundedSender<Signal>) {
        let key = format!("{}inbox:{}", self.0.settings.prefix, self.0.node);
        loop {
            // Each connection reads from the start, because another server may give lower ids than the one before. What
            // was read is trimmed away, so nothing is read twice.
            let mut last = "0".to_owned();
            let Ok(mut connection) = self.0.connection.dedicated(BLOCK).await else {
                tokio::time::sleep(RECONNECT).await;
                continue;
            };
            loop {
                let options = StreamReadOptions::default().block(BLOCK.as_millis() as usize).count(INBOX_BATCH);
                let read: RedisResult<Option<StreamReadReply>> =
                    connection.xread_options(&[&key], &[&last], &options).await;
                let Ok(read) = read else { break };
                let entries: Vec<_> =
                    read.into_iter().flat_map(|reply| reply.keys).flat_map(|stream| stream.ids).collect();
                let Some(newest) = entries.last() else { continue };
                last.clone_from(&newest.id);
                metrics().inbox_frames.add(entries.len() as u64, &[]);
                let mut offered = Vec::new();
                for entry in entries {
                    if let Some(frame) = entry.get::<String>("f").and_then(|text| Frame::decode(&text)) {
                        self.received(frame, signal, &mut offered);
                    }
                }
                self.ensure_owners(&offered).await;
                let mut trim = redis::cmd("XTRIM");
                trim.arg(&key).arg("MINID").arg(behind(&last));
                let trimmed: RedisResult<u64> = trim.query_async(&mut connection).await;
                if trimmed.is_err() {
                    break;
                }
            }
            tokio::time::sleep(RECONNECT).await;
        }
    }

    /// Does what a frame says. Sessions that this node should take are added to `offered`.
    fn received(&self, frame: Frame, signal: &mpsc::UnboundedSender<Signal>, offered: &mut Vec<SessionId>) {
        match frame {
            Frame::Wake(session) => {
                let woken = self.0.table.with(session, |local| local.owned.then(|| local.wake.notify_one())).flatten();
                if woken.is_none() {
                    // Redis says that this node owns the session. It has just given the session up.
                    offered.push(session);
                }
            }
            Frame::Stop(session) => {
                self.0.table.with(session, |local| local.stop.cancel());
            }
            Frame::Offer(session) => offered.push(session),
            Frame::Cut(session) => self.0.log.feeds().cut_here(session),
            Frame::Refused(session, call, error) => self.tell_waiters(session, call, Progress::Refused(error)),
            Frame::Follow(session, call, winner) => self.tell_waiters(session, call, Progress::Follow(winner)),
            Frame::Revoked(key) => {
                let _ = signal.send(Signal::Revoked(key));
            }
            Frame::Committed(committed) => {
                let (session, head, status, left_out) =
                    (committed.session, committed.head, committed.status(), committed.left_out);
                let progress = committed.call.map(|call| match &committed.outcome {
                    Some(outcome) => (call, Progress::Ended(head, outcome.clone())),
                    None => (call, Progress::Running),
                });
                if let Some(lag) = committed.lag() {
                    metrics().feed_lag.record(lag, &[]);
                }
                let events = committed.events();
                self.0.log.feeds().publish_here(session, &events, left_out, head, status);
                if let Some((call, progress)) = progress {
                    self.tell_waiters(session, call, progress);
                }
            }
        }
    }

    /// Every two seconds: puts waiting calls back into the queues of Redis that lost them, and compares the feeds of
    /// watched sessions with their logs in the database, so that readers learn of events that this node was not told
    /// of.
    async fn reconcile(&self) {
        let mut ticks = ticks(RECONCILE.min(self.0.settings.lease / CHECKS_PER_LEASE));
        let mut renewed = Instant::now();
        loop {
            ticks.tick().await;
            self.reconcile_calls().await;
            let watched = self.0.log.feeds().watched();
            if let Err(error) = self.0.log.reconcile(&watched).await {
                tracing::debug!(error = %error, "watched sessions could not be compared with the database");
            }
            if renewed.elapsed() > WATCH / 3 {
                renewed = Instant::now();
                self.0.log.feeds().notify_others(Notification::Watches);
            }
        }
    }

    async fn reconcile_calls(&self) {
        let placed = |(session, call): (SessionId, Call)| {
            // A call without a place is just being queued.
            locked(&self.0.places).get(&call.id).map(|place| (session, call, *place))
        };
        let mut waiting: Vec<_> = self.0.table.waiting_calls().into_iter().filter_map(placed).collect();
        let ids: Vec<CallId> = waiting.iter().map(|(_, call, _)| call.id).collect();
        let Ok(started) = self.0.log.started(&ids).await else { return };
        waiting.retain(|(session, call, _)| {
            let waits = !started.contains(&call.id);
            if !waits {
                self.tell_waiters(*session, call.id, Progress::Running);
            }
            waits
        });
        let Ok(unknown) = self.unknown(&waiting).await else { return };
        let mut seen = HashSet::new();
        for (session, call, place) in waiting {
            // Queueing a call again also finds an owner for its session, so one call of each session is enough.
            if seen.insert(session) || unknown.contains(&call.id) {
                let _ = self.queue(session, &call, place).await;
            }
        }
    }

    /// Those of these calls that Redis does not list as waiting on this node.
    async fn unknown(&self, waiting: &[(SessionId, Call, u64)]) -> RedisResult<HashSet<CallId>> {
        let mut all = HashSet::new();
        for batch in waiting.chunks(BATCH) {
            let unknown: Vec<usize> = self
                .call(&self.0.scripts.unknown, "", |s| {
                    for (session, call, _) in batch {
                        s.arg(self.keys(*session)).arg(call.id.to_string());
                    }
                    s
                })
                .await?;
            all.extend(unknown.iter().filter_map(|at| batch.get(*at)).map(|(_, call, _)| call.id));
        }
        Ok(all)
    }
}
