//! What keeps a node in its cluster: the heartbeat, the renewal of leases, the inbox, errands, and the look every two seconds
//! at whatever Redis may have lost.

use super::{Chore, Frame, News, RETRY, Redis, Successor, WATCH, locked};
use crate::cluster::{Progress, Signal};
use engine::ids::SessionId;
use futures_util::{StreamExt, stream};
use redis::streams::{StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands, RedisResult};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Heartbeats and looks are as frequent as this, and several to a lease.
const BEAT: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_secs(2);
const RENEWALS_PER_LEASE: u32 = 3;
const LOOKS_PER_LEASE: u32 = 4;
/// News on their way at the same time.
const NEWS_AT_ONCE: usize = 32;
/// What was given up last is still released, and offered to others, within this time.
const LAST_CHORES: Duration = Duration::from_secs(2);
/// How long a read of the inbox blocks.
const BLOCK: Duration = Duration::from_secs(5);
const INBOX_BATCH: usize = 512;
const RECONNECT: Duration = Duration::from_millis(250);

/// The tasks of one node.
pub struct Tasks {
    redis: Redis,
    news: mpsc::Receiver<News>,
    chores: Chores,
    signal: mpsc::UnboundedSender<Signal>,
}

/// What is to be done, and what of it has begun.
struct Chores {
    queue: mpsc::Receiver<Chore>,
    begun: Option<Chore>,
}

impl Tasks {
    pub(super) fn new(
        redis: Redis,
        news: mpsc::Receiver<News>,
        queue: mpsc::Receiver<Chore>,
        signal: mpsc::UnboundedSender<Signal>,
    ) -> Self {
        Self { redis, news, chores: Chores { queue, begun: None }, signal }
    }

    /// Runs until the stop, then leaves the cluster.
    pub async fn run(self, stop: CancellationToken) {
        let Tasks { redis, news, mut chores, signal } = self;
        let work = async {
            tokio::join!(
                redis.beat(),
                redis.renew(),
                redis.read_inbox(&signal),
                redis.run_news(news),
                redis.run_chores(&mut chores),
                redis.look()
            )
        };
        stop.run_until_cancelled(Box::pin(work)).await;
        chores.queue.close();
        let _ = tokio::time::timeout(LAST_CHORES, redis.run_chores(&mut chores)).await;
        let _: RedisResult<u8> = redis.call(&redis.0.scripts.bye, "", |s| s).await;
    }
}

/// The number that follows in a stream.
fn behind(id: &str) -> String {
    let next = |(ms, seq): (&str, &str)| Some(format!("{ms}-{}", seq.parse::<u64>().ok()?.checked_add(1)?));
    id.split_once('-').and_then(next).unwrap_or_else(|| id.to_owned())
}

fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Redis {
    async fn beat(&self) {
        // If no node was alive within a lease time, nobody owns anything: the world needs no time to settle.
        let mut alone = self.0.log.others_alive(self.0.settings.lease).await.is_ok_and(|others| !others);
        let mut ticks = ticks(BEAT.min(self.0.settings.lease / LOOKS_PER_LEASE));
        loop {
            ticks.tick().await;
            match self.beat_once(alone).await {
                Err(error) => tracing::debug!(error = %error, "a heartbeat did not reach Redis"),
                Ok(new) => {
                    alone = false;
                    if new {
                        // Redis has forgotten who watches what.
                        self.tell_others(News::Watches);
                    }
                }
            }
            self.0.beaten.store(true, Ordering::Relaxed);
            if let Err(error) = self.0.log.beat().await {
                tracing::debug!(error = %error, "a heartbeat did not reach the database");
            }
        }
    }

    /// Says whether Redis did not know this node.
    async fn beat_once(&self, alone: bool) -> RedisResult<bool> {
        let run = match self.0.link.run_id().await {
            // A server that does not let us ask can still be seen to be empty.
            Err(_) if self.0.link.up() => String::new(),
            run => run?,
        };
        let lease = self.lease_ms();
        let (alone, draining) = (u8::from(alone), u8::from(self.is_draining()));
        self.call::<u8>(&self.0.scripts.beat, "", |s| s.arg(run).arg(lease).arg(lease).arg(alone).arg(draining))
            .await
            .map(|new| new == 1)
    }

    async fn renew(&self) {
        let mut ticks = ticks(self.0.settings.lease / RENEWALS_PER_LEASE);
        loop {
            ticks.tick().await;
            let sessions: Vec<SessionId> = locked(&self.0.leases).keys().copied().collect();
            if sessions.is_empty() {
                continue;
            }
            let (asked, lease) = (Instant::now(), self.lease_ms());
            let held: RedisResult<Vec<u8>> = self
                .call(&self.0.scripts.renew, "", |s| {
                    s.arg(lease);
                    for session in &sessions {
                        s.arg(self.keys(*session));
                    }
                    s
                })
                .await;
            match held {
                Ok(held) => {
                    for (session, held) in sessions.iter().zip(held) {
                        if held == 0 {
                            tracing::warn!(%session, "a lease was lost");
                            self.lose(*session);
                        } else if let Some(lease) = locked(&self.0.leases).get_mut(session) {
                            lease.until = asked + self.0.settings.lease;
                            lease.doubt |= held == 2;
                        }
                    }
                }
                Err(error) => tracing::warn!(error = %error, "leases could not be renewed"),
            }
        }
    }

    async fn read_inbox(&self, signal: &mpsc::UnboundedSender<Signal>) {
        let key = format!("{}inbox:{}", self.0.settings.prefix, self.0.node);
        loop {
            // From the start, because the numbers of another server may be lower; what was read is trimmed away.
            let mut last = "0".to_owned();
            let Ok(mut connection) = self.0.link.dedicated(BLOCK).await else {
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
                for entry in entries {
                    if let Some(frame) = entry.get::<String>("f").and_then(|text| Frame::decode(&text)) {
                        self.received(frame, signal).await;
                    }
                }
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

    async fn received(&self, frame: Frame, signal: &mpsc::UnboundedSender<Signal>) {
        match frame {
            Frame::Wake(session) => {
                self.0.desk.with(session, |slot| slot.wake.notify_one());
            }
            Frame::Stop(session) => {
                self.0.desk.with(session, |slot| slot.stop.cancel());
            }
            Frame::Offer(session) => self.adopt(session).await,
            Frame::Cut(session) => self.0.log.feeds().cut_here(session),
            Frame::Refused(session, call, error) => self.settle(session, call, Progress::Refused(error)),
            Frame::Follow(session, call, winner) => self.settle(session, call, Progress::Follow(winner)),
            Frame::Revoked(key) => {
                let _ = signal.send(Signal::Revoked(key));
            }
            Frame::Committed(committed) => {
                let (session, head, over, left_out) =
                    (committed.session, committed.head, committed.over, committed.left_out);
                let progress = committed.call.map(|call| match &committed.outcome {
                    Some(outcome) => (call, Progress::Ended(head, outcome.clone())),
                    None => (call, Progress::Running),
                });
                let events = committed.events();
                self.0.log.feeds().publish_here(session, &events, left_out, head, over);
                if let Some((call, progress)) = progress {
                    self.settle(session, call, progress);
                }
            }
        }
    }

    async fn run_news(&self, mut news: mpsc::Receiver<News>) {
        let told = stream::poll_fn(|context| news.poll_recv(context)).map(async |news| {
            // While Redis is away nothing waits for it here.
            if self.0.link.up()
                && let Err(error) = self.run_one_news(news).await
            {
                tracing::debug!(error = %error, "other nodes could not be told the news");
            }
        });
        // They are sent in order; only the answers are not waited for one by one.
        told.buffered(NEWS_AT_ONCE).for_each(async |()| {}).await;
    }

    async fn run_one_news(&self, news: News) -> RedisResult<()> {
        let (session, frame) = match news {
            News::Watches => {
                for session in self.0.log.feeds().watched() {
                    self.watch(session).await;
                }
                return Ok(());
            }
            News::Cut(session) => (session, Frame::Cut(session)),
            News::Committed(committed) => (committed.session, Frame::Committed(*committed)),
        };
        let frame = frame.encode();
        self.call::<u8>(&self.0.scripts.to_watchers, &self.keys(session), |s| s.arg(frame)).await.map(drop)
    }

    /// Does one after the other, however long Redis is away. One that was interrupted is begun again.
    async fn run_chores(&self, chores: &mut Chores) {
        loop {
            if chores.begun.is_none() {
                chores.begun = chores.queue.recv().await;
            }
            let Some(chore) = &chores.begun else { return };
            if let Err(error) = self.run_chore(chore).await {
                tracing::debug!(error = %error, "a chore in Redis was in vain");
                if !self.0.link.up() {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            if let Some(session) = chores.begun.take().and_then(|chore| self.done(&chore)) {
                self.adopt(session).await;
            }
        }
    }

    pub(super) async fn run_chore(&self, chore: &Chore) -> RedisResult<()> {
        let scripts = &self.0.scripts;
        let done: RedisResult<u8> = match chore {
            Chore::Leave(session, call) => {
                self.call(&scripts.leave, &self.keys(*session), |s| s.arg(call.to_string())).await
            }
            Chore::Release(session, successor) => {
                let to = match successor {
                    Successor::Another => "another",
                    Successor::Caller => "caller",
                    Successor::Nobody => "",
                };
                let offer = Frame::Offer(*session).encode();
                let not_to = if self.is_draining() { self.0.node.as_str() } else { "" };
                self.call(&scripts.release, &self.keys(*session), |s| s.arg(offer).arg(to).arg(not_to)).await
            }
            Chore::Over(session, call, Some(frame)) => {
                self.call(&scripts.refuse, &self.keys(*session), |s| s.arg(call.to_string()).arg(frame)).await
            }
            Chore::Over(session, call, None) => {
                self.call(&scripts.started, &self.keys(*session), |s| s.arg(call.to_string())).await
            }
        };
        done.map(drop)
    }

    /// Every two seconds: waiting calls are where they should be, and watched sessions are as far as their logs.
    async fn look(&self) {
        let mut ticks = ticks(LOOK.min(self.0.settings.lease / LOOKS_PER_LEASE));
        let mut renewed = Instant::now();
        loop {
            ticks.tick().await;
            self.look_after_calls().await;
            let watched = self.0.log.feeds().watched();
            if let Err(error) = self.0.log.reconcile(&watched).await {
                tracing::debug!(error = %error, "watched sessions could not be compared with the database");
            }
            if renewed.elapsed() > WATCH / 3 {
                renewed = Instant::now();
                self.tell_others(News::Watches);
            }
        }
    }

    async fn look_after_calls(&self) {
        let waiting = self.0.desk.waiting_calls();
        for (session, call) in waiting {
            let place = locked(&self.0.places).get(&call.id).copied();
            // Without a place it is being queued just now.
            let Some(place) = place else { continue };
            match self.0.log.call(call.id).await {
                Ok(Some(_)) => self.settle(session, call.id, Progress::Running),
                Ok(None) => {
                    let _ = self.queue(session, &call, place).await;
                }
                Err(_) => {}
            }
        }
    }
}
