//! Nodes of one cluster in one process: one database, one Redis, and the words the cases are written in.

use crate::fixture::{DEADLINE, Fixture, opening, until, within};
use coordinator::cluster::Local;
use coordinator::cluster::redis::{Redis, Settings};
use coordinator::cluster::{Call, Claim, Rejected};
use coordinator::cluster::{Cluster, Lease, Progress, Signal, Waiter};
use coordinator::feed::Feeds;
use coordinator::log::{Epoch, Log, Row};
use coordinator::reader::Reader;
use coordinator::{Error, fresh_id};
use engine::gate::{GateFound, Pause};
use engine::ids::{CallId, KeyId, SessionId};
use engine::json;
use engine::params::SendMessage;
use engine::turn::Opening;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tests::services::{self, Service};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How many calls may wait in a session.
pub(super) const LIMIT: usize = 5;
/// How long a lease lives here.
pub(super) const LEASE: Duration = Duration::from_secs(2);

pub(super) struct Node {
    pub cluster: Cluster,
    pub log: Log,
    pub leases: mpsc::UnboundedReceiver<Lease>,
    pub signals: Option<mpsc::UnboundedReceiver<Signal>>,
    pub name: String,
    membership: Option<Membership>,
}

struct Membership {
    stop: CancellationToken,
    frozen: watch::Sender<bool>,
    task: JoinHandle<()>,
}

pub(super) struct TestCluster {
    pub fixture: Fixture,
    pub session: SessionId,
    pub key: KeyId,
    pub nodes: Vec<Node>,
    pub server: Option<Service>,
    url: String,
    ca: Option<PathBuf>,
    pub prefix: String,
}

/// A session with a running turn and calls that wait behind it.
pub(super) struct Busy {
    pub lease: Lease,
    pub epoch: Epoch,
    /// The waiting calls in their order.
    pub waiting: Vec<Call>,
    /// Dropping a waiter would take its call out of the queue.
    _waiters: [Waiter; 2],
}

impl Busy {
    /// Checks that the owner claims the waiting calls in their order and keeps its lease meanwhile, and that no other
    /// waits.
    pub(super) async fn serves_all_in_order(&self) {
        for call in &self.waiting {
            assert_eq!(run(&self.lease, None).await, call.id);
            assert!(self.lease.may_act(self.epoch).await && self.lease.confirm().await);
            self.lease.tell(call.id, over()).await;
        }
        idle(&self.lease).await;
    }
}

impl TestCluster {
    async fn of(url: String, server: Option<Service>) -> Self {
        let fixture = Fixture::sqlite().await;
        let (session, key) = fixture.session().await;
        let prefix = format!("test-{}:", uuid::Uuid::now_v7().simple());
        Self { fixture, session, key, nodes: Vec::new(), server, url, ca: None, prefix }
    }

    pub(super) async fn local() -> Self {
        let mut test = Self::of(String::new(), None).await;
        let (local, leases) = Local::new(LIMIT);
        let (cluster, log) = (Cluster::Local(local), test.fixture.log.clone());
        test.nodes.push(Node { cluster, log, leases, signals: None, name: "single".into(), membership: None });
        test
    }

    /// So many nodes on the server that most cases share.
    pub(super) async fn redis(nodes: usize) -> Self {
        let url = tokio::task::spawn_blocking(services::redis).await.expect("a Redis server");
        Self::on(url, None, nodes).await
    }

    /// On a server that nobody else uses.
    pub(super) async fn alone(nodes: usize) -> Self {
        let server = tokio::task::spawn_blocking(Service::redis).await.expect("a Redis server");
        Self::on(server.url(), Some(server), nodes).await
    }

    /// On servers of the case's own, with the authority of their certificates.
    pub(super) async fn reached(url: String, ca: Option<PathBuf>, prefix: &str, nodes: usize) -> Self {
        let mut test = Self::of(url, None).await;
        (test.ca, test.prefix) = (ca, prefix.to_owned());
        for _ in 0..nodes {
            test.join().await;
        }
        test
    }

    async fn on(url: String, server: Option<Service>, nodes: usize) -> Self {
        let mut test = Self::of(url, server).await;
        for _ in 0..nodes {
            test.join().await;
        }
        test
    }

    /// One more node; returns when the cluster knows it.
    pub(super) async fn join(&mut self) -> usize {
        let (feeds, notifications) = Feeds::clustered();
        let log = Log::new(self.fixture.db.clone(), Arc::new(feeds));
        let settings =
            Settings { url: self.url.clone().into(), ca: self.ca.clone(), prefix: self.prefix.clone(), lease: LEASE };
        let (redis, received) = Redis::new(settings, log.clone(), notifications, LIMIT).expect("a node");
        let (stop, (frozen, freezes)) = (CancellationToken::new(), watch::channel(false));
        let task = tokio::spawn(unless_frozen(received.tasks.run(stop.clone()), freezes));
        let cluster = Cluster::Redis(redis);
        let name = until("the node is known", async || {
            let nodes = cluster.nodes().await;
            let me = nodes.iter().flatten().find(|member| member.asked).map(|member| member.node.clone());
            me.ok_or_else(|| format!("{nodes:?}"))
        })
        .await;
        let membership = Some(Membership { stop, frozen, task });
        let (leases, signals) = (received.leases, Some(received.signals));
        self.nodes.push(Node { cluster, log, leases, signals, name, membership });
        self.nodes.len() - 1
    }

    pub(super) async fn end(mut self) {
        for node in self.nodes.drain(..) {
            node.leave().await;
        }
        self.fixture.end().await;
    }

    pub(super) fn message(&self) -> Call {
        message(self.key)
    }

    pub(super) fn keyed(&self, name: &str, digest: u8) -> Call {
        Call { idempotency: Some((name.into(), [digest; 32])), ..message(self.key) }
    }

    pub(super) fn compact(&self) -> Call {
        Call { opening: Opening::Compact(None), ..message(self.key) }
    }

    pub(super) async fn enqueue(&self, node: usize, call: &Call) -> Waiter {
        let accepted = self.nodes[node].cluster.enqueue(self.session, call.clone());
        within("a call is accepted", accepted).await.unwrap_or_else(|rejected| panic!("{rejected:?}"))
    }

    pub(super) async fn try_enqueue(&self, node: usize, call: &Call) -> Result<Waiter, Rejected> {
        within("a call is answered", self.nodes[node].cluster.enqueue(self.session, call.clone())).await
    }

    pub(super) async fn lease(&mut self, node: usize) -> Lease {
        within("a lease", self.nodes[node].leases.recv()).await.expect("a node that serves")
    }

    pub(super) fn no_lease(&mut self, node: usize) {
        assert!(self.nodes[node].leases.try_recv().is_err(), "node {node} got a lease");
    }

    /// Makes node 0 the session's owner, with a running turn and two calls that wait behind it, one of each node.
    pub(super) async fn busy(&mut self) -> Busy {
        self.nodes[0].cluster.ensure_owner(self.session).await;
        let lease = self.lease(0).await;
        let epoch = self.fixture.own(self.session).await.epoch;
        let opening = opening(self.session, epoch, self.key, GateFound::Free);
        self.fixture.log.append(opening).await.expect("a turn");
        assert!(lease.may_act(epoch).await);
        let (a, b) = (self.message(), self.message());
        let waiters = [self.enqueue(0, &a).await, self.enqueue(1, &b).await];
        Busy { lease, epoch, waiting: vec![a, b], _waiters: waiters }
    }

    /// Another session.
    pub(super) async fn another(&self) -> SessionId {
        self.fixture.session().await.0
    }

    pub(super) async fn raw(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url.as_str()).expect("a URL");
        client.get_multiplexed_async_connection().await.expect("a connection")
    }

    /// Keys of the session on the server.
    pub(super) fn at(&self, what: &str) -> String {
        format!("{}{{{}}}:{what}", self.prefix, self.session)
    }

    pub(super) async fn flush(&self) {
        let _: String = redis::cmd("FLUSHALL").query_async(&mut self.raw().await).await.expect("emptied");
    }
}

impl Node {
    /// Watches a session on this node, from its head on.
    pub(super) async fn open_reader(&self, session: SessionId) -> Result<(Reader, Row), Error> {
        self.cluster.open_reader(&self.log, session).await
    }

    /// Does nothing any more until it is thawed: no heartbeat, no renewal, no reading.
    pub(super) fn freeze(&self, frozen: bool) {
        self.membership.as_ref().expect("a node of a cluster").frozen.send_replace(frozen);
    }

    /// Dies without a word.
    pub(super) fn kill(&mut self) {
        self.membership.take().expect("a node of a cluster").task.abort();
    }

    pub(super) async fn leave(mut self) {
        if let Some(membership) = self.membership.take() {
            membership.stop.cancel();
            membership.frozen.send_replace(false);
            within("a node leaves", membership.task).await.expect("no panic");
        }
    }
}

async fn unless_frozen(inner: impl Future<Output = ()>, mut frozen: watch::Receiver<bool>) {
    let mut inner = Box::pin(inner);
    loop {
        if *frozen.borrow_and_update() {
            if frozen.changed().await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            biased;
            changed = frozen.changed() => if changed.is_err() { return },
            () = &mut inner => return,
        }
    }
}

pub(super) fn message(key: KeyId) -> Call {
    let params = json::built(r#"{"message":{"content":"hi"}}"#.into());
    let opening = Opening::Message(SendMessage::parse(&params).expect("valid"));
    Call { id: CallId(fresh_id()), key, opening, idempotency: None, traceparent: None }
}

/// The next call, once there is one.
/// A pause that keeps the gate for that client.
pub(super) fn held(owner: KeyId) -> Option<Pause> {
    Some(Pause { owner, left: Duration::from_millis(1) })
}

/// A pause of that client that has expired.
pub(super) fn expired(owner: KeyId) -> Option<Pause> {
    Some(Pause { owner, left: Duration::ZERO })
}

pub(super) async fn run(lease: &Lease, pause: Option<Pause>) -> CallId {
    until("a call to run", async || match lease.claim(pause).await {
        Claim::Run(call) => Ok(call.id),
        other => Err(format!("{other:?}")),
    })
    .await
}

/// Nobody waits any more, and so nobody can go.
pub(super) async fn idle(lease: &Lease) {
    until("nobody waits", async || if lease.wanted().await { Err("somebody waits") } else { Ok(()) }).await;
    assert!(matches!(lease.claim(None).await, Claim::Wait), "nobody can go");
}

/// The progress that satisfies.
pub(super) async fn told(waiter: &mut Waiter, satisfies: impl Fn(&Progress) -> bool) -> Progress {
    let end = tokio::time::Instant::now() + DEADLINE;
    loop {
        let progress = waiter.progress();
        if satisfies(&progress) {
            return progress;
        }
        let news = tokio::time::timeout_at(end, waiter.changed()).await;
        assert!(matches!(news, Ok(true)), "not in time; last: {progress:?}");
    }
}

/// A call is over, for its waiters on every node: one that were only said to run would be looked for in the log.
pub(super) fn over() -> Progress {
    Progress::Refused(engine::rpc::RpcError::internal())
}
