//! The cluster through Redis: leases, queues, inboxes, watch sets, heartbeats.
//!
//! Redis says who serves and who waits; it can be wiped at any moment with loss of liveness only. What is true is in the
//! database: epochs fence what a lost lease did not notice, and every node with waiting calls or watched sessions looks
//! every two seconds whether Redis still knows them. Standalone and Sentinel; not Redis Cluster.

mod frame;
mod leases;
mod link;
mod scripts;
mod tasks;

pub use tasks::Tasks;

pub(crate) use frame::{Committed, Frame};

use crate::Error;
use crate::cluster::{Lease, Member, Progress, Signal, Successor};
use crate::desk::{Desk, Slot};
use crate::log::Log;
use crate::queue::{Call, Claim, Gate, Rejected};
use engine::ids::{CallId, KeyId, SessionId};
use engine::rpc::RpcError;
use engine::turn::Opening;
use leases::Held;
use link::Link;
use redis::{FromRedisValue, RedisResult, Script, ScriptInvocation};
use scripts::Scripts;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How the cluster is reached.
#[derive(Clone)]
pub struct Settings {
    /// `redis://`, `rediss://`, or `sentinel://[user:password@]host:port[,host:port…]/service[/db][?sentinel=[user:]password]`
    /// (`sentinels://` for TLS to Sentinels and servers). May hold passwords.
    pub url: secrecy::SecretString,
    /// A PEM file with the authority that signs the servers' certificates; without one the public ones count.
    pub ca: Option<std::path::PathBuf>,
    /// In front of every key.
    pub prefix: String,
    /// How long a lease lives without renewal.
    pub lease: Duration,
}

/// How long a call that cannot be queued waits for Redis.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before it tries again.
const RETRY: Duration = Duration::from_millis(200);
/// How long a watch lasts unless it is renewed.
const WATCH: Duration = Duration::from_secs(30);
/// How often a closing looks whether the owner on another node has let go.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS_PER_STOP: u32 = 20;

/// The backend. Clones share it.
#[derive(Clone)]
pub struct Redis(Arc<Shared>);

struct Shared {
    desk: Desk,
    link: Link,
    scripts: Scripts,
    settings: Settings,
    /// Unique for each start of a process.
    node: String,
    log: Log,
    leases: Mutex<HashMap<SessionId, Held>>,
    /// Sessions given up whose release is on its way, and whether one is wanted again: it is taken after that, never before.
    releasing: Mutex<HashMap<SessionId, bool>>,
    /// Counts releases, of many sessions each: an answer that was asked for before one may be older than it.
    released: [AtomicU64; 256],
    /// Places of the calls that wait here.
    places: Mutex<HashMap<CallId, u64>>,
    news: mpsc::Sender<News>,
    chores: mpsc::Sender<Chore>,
    /// Calls that are over and may still stand in a queue, because Redis was away: no call is claimed before it knows.
    owed: AtomicUsize,
    draining: AtomicBool,
    /// The first heartbeat was sent, whether or not it arrived.
    beaten: AtomicBool,
}

/// What others are told without anybody waiting for it, in order. Dropped while Redis is away or too slow: readers find in the
/// database what they were not told.
enum News {
    /// This node goes on watching.
    Watches,
    Cut(SessionId),
    Committed(Box<Committed>),
}

/// What must be done in Redis some time, in order: tried again while it is away.
#[derive(Clone)]
enum Chore {
    Leave(SessionId, CallId),
    Release(SessionId, Successor),
    /// A call waits no more; the frame for the nodes that wait for it.
    Over(SessionId, CallId, Option<String>),
}

/// News that may wait to be told.
const NEWS: usize = 1024;
/// Chores that may wait: a few bytes each, made at the pace of callers that leave.
const CHORES: usize = 65_536;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a node gets from its cluster.
pub struct Received {
    /// A lease for every session that has to be served here.
    pub leases: mpsc::UnboundedReceiver<Lease>,
    /// What other nodes tell this one.
    pub signals: mpsc::UnboundedReceiver<Signal>,
    /// What keeps the node in the cluster: to be run until the end.
    pub tasks: Tasks,
}

impl Redis {
    /// Joins a cluster.
    ///
    /// # Errors
    /// `Unusable` for settings that make no sense. Redis need not be reachable yet.
    pub fn new(settings: Settings, log: Log, limit: usize) -> Result<(Self, Received), Error> {
        let link = Link::new(&settings).map_err(Error::Unusable)?;
        let (wanted, leases) = mpsc::unbounded_channel();
        let (news, to_tell) = mpsc::channel(NEWS);
        let (chores, to_do) = mpsc::channel(CHORES);
        let (signal, signals) = mpsc::unbounded_channel();
        let shared = Shared {
            desk: Desk::new(limit, wanted),
            link,
            scripts: Scripts::new(),
            settings,
            node: hex(&crate::fresh_id()),
            log,
            leases: Mutex::default(),
            releasing: Mutex::default(),
            released: std::array::from_fn(|_| AtomicU64::new(0)),
            places: Mutex::default(),
            news,
            chores,
            owed: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            beaten: AtomicBool::new(false),
        };
        let redis = Self(Arc::new(shared));
        redis.0.log.feeds().tell_others(Weak(Arc::downgrade(&redis.0)));
        let tasks = Tasks::new(redis.clone(), to_tell, to_do, signal);
        Ok((redis, Received { leases, signals, tasks }))
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<Member>, Error> {
        let nodes: Vec<String> = self.call(&self.0.scripts.nodes, "", |s| s).await.map_err(away)?;
        let member = |text: &String| {
            let (node, state) = text.split_once(' ')?;
            Some(Member { node: node.to_owned(), draining: state == "draining", asked: node == self.0.node })
        };
        Ok(nodes.iter().filter_map(member).collect())
    }

    pub(crate) async fn complaints(&self) -> Vec<String> {
        match self.0.link.policy().await {
            Err(error) => vec![format!("redis is not reachable ({error}): new calls wait")],
            // A server that does not let us ask is not complained about.
            Ok(policy) if policy.is_empty() || policy == "noeviction" => Vec::new(),
            Ok(policy) => vec![format!("redis evicts keys (maxmemory-policy {policy}); set it to noeviction")],
        }
    }

    pub(crate) async fn owner(&self, session: SessionId) -> Result<Option<String>, Error> {
        let owner: String = self.call(&self.0.scripts.owner, &self.keys(session), |s| s).await.map_err(away)?;
        Ok(Some(owner).filter(|owner| !owner.is_empty()))
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.0.beaten.load(Ordering::Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    /// Keys of a session, in front of what each is for.
    fn keys(&self, session: SessionId) -> String {
        format!("{}{{{session}}}:", self.0.settings.prefix)
    }

    fn lease_ms(&self) -> u64 {
        self.0.settings.lease.as_millis() as u64
    }

    async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &str,
        args: impl for<'a, 'b> FnOnce(&'b mut ScriptInvocation<'a>) -> &'b mut ScriptInvocation<'a>,
    ) -> RedisResult<T> {
        let mut invocation = script.prepare_invoke();
        invocation.arg(&self.0.settings.prefix).arg(keys).arg(&self.0.node);
        args(&mut invocation);
        self.0.link.run(invocation).await
    }

    pub(crate) fn accept(
        &self,
        session: SessionId,
        call: Call,
    ) -> Result<(CallId, watch::Receiver<Progress>), Rejected> {
        self.0.desk.accept(session, call)
    }

    /// Gives a call its place in the cluster. Returns the call it joins, when its idempotency key is known.
    pub(crate) async fn enqueue(&self, session: SessionId, call: &Call) -> Result<Option<(CallId, u64)>, Rejected> {
        let queued = async {
            loop {
                match self.queue(session, call, 0).await {
                    Ok(result) => return result,
                    Err(error) => {
                        tracing::debug!(error = %error, "a call cannot be queued just now");
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, queued).await.unwrap_or_else(|_| {
            tracing::error!(%session, "a call could not be queued: redis was away for too long");
            Err(Rejected::Away)
        })
    }

    /// Whether the cluster knows a call that waits here.
    pub(crate) fn placed(&self, call: CallId) -> bool {
        locked(&self.0.places).contains_key(&call)
    }

    /// Notes a call's place, while it waits here. Says whether it does.
    fn place(&self, session: SessionId, call: CallId, place: u64) -> bool {
        let note = |slot: &mut Slot| {
            let waits = slot.queue.waiting().any(|waiting| waiting.id == call);
            if waits {
                locked(&self.0.places).insert(call, place);
            }
            waits
        };
        self.0.desk.with(session, note).unwrap_or(false)
    }

    async fn queue(
        &self,
        session: SessionId,
        call: &Call,
        place: u64,
    ) -> RedisResult<Result<Option<(CallId, u64)>, Rejected>> {
        let method = match call.opening {
            Opening::Message(_) => "message",
            Opening::Compact(_) => "compact",
        };
        let (name, digest) = match &call.idempotency {
            Some((name, digest)) => (format!("{}|{name}", call.key), hex(digest)),
            None => (String::new(), String::new()),
        };
        let meta = format!("{method}|{}|{name}", call.key);
        let entry = engine::json::encode(&Entry { v: 1, call: call.clone() });
        let (asked, since) = (Instant::now(), self.since(session));
        let (limit, lease) = (self.0.desk.limit(), self.lease_ms());
        let offer = if self.is_draining() { Frame::Offer(session).encode() } else { String::new() };
        let (status, first, place, owner): (String, String, u64, String) = self
            .call(&self.0.scripts.enqueue, &self.keys(session), |s| {
                s.arg(call.id.to_string()).arg(entry.get()).arg(&meta).arg(&name).arg(&digest);
                s.arg(limit).arg(lease).arg(place).arg(Frame::Wake(session).encode()).arg(offer)
            })
            .await?;
        Ok(match status.as_str() {
            "full" => Err(Rejected::Full),
            "other" => Err(Rejected::OtherParams),
            "joined" => Ok(first.parse().ok().map(|first| (first, place))),
            _ => {
                if !self.place(session, call.id, place) {
                    // Its last caller left, or it started, while this was on its way.
                    self.leave_queue(session, call.id);
                }
                if owner == self.0.node && !self.serve(session, asked, since) {
                    self.adopt(session).await;
                }
                Ok(None)
            }
        })
    }

    /// Waits for a call that another node accepted, in place of one of this node's own.
    pub(crate) fn join(
        &self,
        session: SessionId,
        call: &Call,
        (first, place): (CallId, u64),
    ) -> watch::Receiver<Progress> {
        let same = Call { id: first, ..call.clone() };
        match self.0.desk.replace(session, call.id, same) {
            Ok(progress) => {
                self.place(session, first, place);
                progress
            }
            Err(_) => self.0.desk.follow(session, first),
        }
    }

    pub(crate) fn follow(&self, session: SessionId, call: CallId) -> watch::Receiver<Progress> {
        self.0.desk.follow(session, call)
    }

    pub(crate) async fn wake(&self, session: SessionId) {
        if self.0.desk.with(session, |slot| slot.owned.then(|| slot.wake.notify_one())).flatten().is_some() {
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

    pub(crate) fn forget(&self, key: KeyId, error: &RpcError) {
        for (session, call) in self.0.desk.drop_of(key, error) {
            self.leave_queue(session, call);
        }
    }

    pub(crate) fn cut(&self, session: SessionId) {
        self.tell_others(News::Cut(session));
    }

    pub(crate) async fn stop(&self, session: SessionId, error: &RpcError) {
        self.refuse_all(session, error).await;
        let released = self.0.desk.with(session, |slot| {
            slot.stop.cancel();
            slot.owned.then(|| Arc::clone(&slot.released).notified_owned())
        });
        if let Some(Some(released)) = released {
            released.await;
        }
        let stop = Frame::Stop(session).encode();
        for look in 0u32.. {
            let keys = self.keys(session);
            // Told again now and then, because frames can be lost.
            let owner: RedisResult<String> = if look.is_multiple_of(LOOKS_PER_STOP) {
                self.call(&self.0.scripts.to_owner, &keys, |s| s.arg(&stop)).await
            } else {
                self.call(&self.0.scripts.owner, &keys, |s| s).await
            };
            match owner {
                Ok(owner) if !owner.is_empty() && owner != self.0.node => tokio::time::sleep(LOOK).await,
                Ok(_) => break,
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
        self.refuse_all(session, error).await;
        let mut slots = self.0.desk.lock();
        if let Some(slot) = slots.get_mut(&session)
            && !slot.owned
        {
            slot.refuse_all(error);
            slots.remove(&session);
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.0.desk.waiting()
    }

    pub(crate) async fn claim(&self, session: SessionId, gate: Gate) -> Claim {
        let (kind, holder) = match gate {
            Gate::Free => ("free", String::new()),
            Gate::Held(key) => ("held", key.to_string()),
            Gate::Expired(key) => ("expired", key.to_string()),
        };
        if self.0.owed.load(Ordering::SeqCst) > 0 {
            return Claim::Wait;
        }
        let doubtful = locked(&self.0.leases).get(&session).filter(|held| held.doubt).map(|held| held.epoch);
        match doubtful {
            None => {}
            Some(Some(epoch)) if self.still_ours(session, epoch).await => {}
            Some(Some(_)) => return Claim::Wait,
            Some(None) => {
                // What is in memory may be older than the log: the session is taken anew.
                self.lose(session);
                return Claim::Wait;
            }
        }
        let lease = self.lease_ms();
        let claimed: RedisResult<Vec<String>> =
            self.call(&self.0.scripts.claim, &self.keys(session), |s| s.arg(kind).arg(holder).arg(lease)).await;
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::debug!(error = %error, "the queue cannot be asked just now");
                return Claim::Wait;
            }
        };
        match claimed.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["run", call, entry] => match serde_json::from_str::<Entry>(entry) {
                Ok(Entry { v: 1, call }) => Claim::Run(call),
                Ok(_) | Err(_) => {
                    // A newer node's call: one of its version will serve it.
                    tracing::error!(%session, call, "a queued call is of a newer version; the session is given up");
                    self.lose(session);
                    Claim::Wait
                }
            },
            ["refuse", ref calls @ ..] => Claim::Refuse(calls.iter().filter_map(|call| call.parse().ok()).collect()),
            ["lost"] => {
                self.lose(session);
                Claim::Wait
            }
            _ => Claim::Wait,
        }
    }

    pub(crate) async fn unclaim(&self, session: SessionId, call: CallId) {
        let _: RedisResult<u8> =
            self.call(&self.0.scripts.unclaim, &self.keys(session), |s| s.arg(call.to_string())).await;
    }

    pub(crate) async fn tell(&self, session: SessionId, call: CallId, progress: Progress) {
        let frame = match &progress {
            Progress::Queued => return,
            Progress::Running | Progress::Ended(..) => None,
            Progress::Refused(error) => Some(Frame::Refused(session, call, error.clone())),
            Progress::Follow(winner) => Some(Frame::Follow(session, call, *winner)),
        };
        self.settle(session, call, progress);
        let over = Chore::Over(session, call, frame.map(|frame| frame.encode()));
        if !self.0.link.up() || self.run_chore(&over).await.is_err() {
            self.0.owed.fetch_add(1, Ordering::SeqCst);
            self.remember(over);
        }
    }

    /// Tells the waiters here; a call that waits no more leaves this node's list.
    fn settle(&self, session: SessionId, call: CallId, progress: Progress) {
        self.0.desk.with(session, |slot| {
            slot.queue.ended(call);
            slot.tell(call, progress);
        });
        locked(&self.0.places).remove(&call);
    }

    pub(crate) async fn refuse_all(&self, session: SessionId, error: &RpcError) {
        let calls = self.0.desk.with(session, |slot| {
            let calls: Vec<CallId> = slot.queue.waiting().map(|call| call.id).collect();
            slot.refuse_waiting(error);
            calls
        });
        for call in calls.unwrap_or_default() {
            locked(&self.0.places).remove(&call);
        }
        // Waiters elsewhere: the script names each call.
        let each = CallId([0; 16]);
        let frame = Frame::Refused(session, each, error.clone()).encode();
        let _: RedisResult<u8> =
            self.call(&self.0.scripts.refuse_all, &self.keys(session), |s| s.arg(frame).arg(each.to_string())).await;
    }

    pub(crate) async fn wanted(&self, session: SessionId) -> bool {
        let waiting: RedisResult<u64> = self.call(&self.0.scripts.waiting, &self.keys(session), |s| s).await;
        match waiting {
            Ok(waiting) => waiting > 0,
            Err(_) => self.0.desk.with(session, |slot| !slot.queue.is_empty()).unwrap_or(false),
        }
    }

    fn remember(&self, chore: Chore) {
        let Err(lost) = self.0.chores.try_send(chore) else { return };
        if let mpsc::error::TrySendError::Full(_) = &lost {
            tracing::warn!("redis has been away for so long that not all of its queues can be tidied up");
        }
        self.done(&lost.into_inner());
    }

    /// A chore was done, or is given up. Says whether its session is wanted again.
    fn done(&self, chore: &Chore) -> Option<SessionId> {
        match chore {
            Chore::Leave(..) => None,
            Chore::Release(session, _) => self.released(*session).then_some(*session),
            Chore::Over(..) => {
                self.0.owed.fetch_sub(1, Ordering::SeqCst);
                None
            }
        }
    }

    fn tell_others(&self, news: News) {
        if self.0.news.try_send(news).is_err() {
            tracing::debug!("redis is too slow for the news; readers look into the database");
        }
    }

    pub(crate) fn leave(&self, session: SessionId, call: CallId) {
        if self.0.desk.leave(session, call) {
            self.leave_queue(session, call);
        }
    }

    fn leave_queue(&self, session: SessionId, call: CallId) {
        locked(&self.0.places).remove(&call);
        self.remember(Chore::Leave(session, call));
    }

    /// Tells the nodes that watch a session what was committed.
    pub(crate) fn publish(&self, committed: Committed) {
        self.tell_others(News::Committed(Box::new(committed)));
    }

    /// Puts this node into a session's watch set. Best effort: reconciliation finds what is missed.
    pub(crate) async fn watch(&self, session: SessionId) {
        if !self.0.link.up() {
            return;
        }
        let seconds = WATCH.as_secs();
        let _: RedisResult<u8> = self.call(&self.0.scripts.watch, &self.keys(session), |s| s.arg(seconds)).await;
    }
}

/// A backend that may be gone: the log's feeds know it so, because it knows the log.
pub(crate) struct Weak(std::sync::Weak<Shared>);

impl Weak {
    pub fn upgrade(&self) -> Option<Redis> {
        self.0.upgrade().map(Redis)
    }
}

/// A queue entry.
#[derive(serde::Serialize, serde::Deserialize)]
struct Entry {
    v: u8,
    call: Call,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn away(error: redis::RedisError) -> Error {
    Error::Away(error.category().to_owned())
}
