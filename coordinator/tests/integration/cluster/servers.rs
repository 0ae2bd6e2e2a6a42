//! Redis as operators run it: behind Sentinels, over TLS with an authority of their own, with a user that may do
//! little, for two clusters at once.

use crate::cluster::test_cluster::{LEASE, TestCluster, expired, held, over, run};
use crate::fixture::{until, within};
use coordinator::cluster::Claim;
use coordinator::cluster::Lease;
use coordinator::cluster::redis::{Redis, Settings};
use coordinator::feed::Feeds;
use coordinator::log::Log;
use engine::rpc::RpcError;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::services::Service;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// In it, what operators are told to give a node's user, for the prefix `bae:`.
const OPERATIONS: &str = include_str!("../../../../docs/operations.md");

/// A master, a replica, three Sentinels of which two must agree.
struct Watched {
    master: Service,
    _replica: Service,
    sentinels: Vec<Service>,
    /// For `redis-cli`, to ask a Sentinel.
    cli: Vec<String>,
}

/// How the servers and their Sentinels are configured beyond that.
#[derive(Clone, Copy, Default)]
struct Extra<'a> {
    servers: &'a str,
    sentinels: &'a str,
    /// For `redis-cli`, to ask either.
    cli: (&'a [&'a str], &'a [&'a str]),
}

impl Watched {
    fn start(extra: Extra) -> Self {
        let master = Service::redis_with(extra.servers);
        let replica = format!("replicaof 127.0.0.1 {}\n{}", master.port(), extra.servers);
        let replica = Service::redis_with(&replica);
        wait("the replica follows", || {
            let info = replica.redis_cli(&[extra.cli.0, &["INFO", "replication"]].concat());
            if info.contains("master_link_status:up") { Ok(()) } else { Err(info) }
        });
        let watch = format!("sentinel monitor bae 127.0.0.1 {} 2\n", master.port())
            + "sentinel down-after-milliseconds bae 60000\nsentinel failover-timeout bae 6000\n"
            + extra.sentinels;
        let sentinels: Vec<Service> = (0..3).map(|_| Service::redis_with(&watch)).collect();
        for sentinel in &sentinels {
            wait("a Sentinel knows all others", || {
                let told = sentinel.redis_cli(&[extra.cli.1, &["SENTINEL", "MASTER", "bae"]].concat());
                let fields: Vec<&str> = told.lines().collect();
                let of = |name: &str| fields.iter().position(|f| *f == name).and_then(|at| fields.get(at + 1).copied());
                match (of("num-other-sentinels"), of("num-slaves"), of("flags")) {
                    (Some("2"), Some("1"), Some("master")) => Ok(()),
                    _ => Err(told),
                }
            });
        }
        Self { master, _replica: replica, sentinels, cli: extra.cli.1.iter().map(|word| (*word).to_owned()).collect() }
    }

    /// The master dies. Only now do Sentinels lose patience within a second: a loaded machine is not taken for a death.
    fn kill_master(&mut self) {
        let cli: Vec<&str> = self.cli.iter().map(String::as_str).collect();
        for sentinel in &self.sentinels {
            let told = sentinel
                .redis_cli(&[&cli[..], &["SENTINEL", "SET", "bae", "down-after-milliseconds", "1000"]].concat());
            assert_eq!(told, "OK");
        }
        self.master.stop();
    }

    /// `host:port,…` of the Sentinels; one that does not exist comes first.
    fn hosts(&self) -> String {
        let hosts = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port()));
        ["127.0.0.1:1".to_owned()].into_iter().chain(hosts).collect::<Vec<_>>().join(",")
    }
}

fn wait(what: &str, mut probe: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + crate::fixture::DEADLINE;
    while let Err(state) = probe() {
        assert!(Instant::now() < end, "{what}: {state}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

async fn signalled(test: &mut TestCluster, to: usize, from: usize) {
    test.nodes[from].cluster.revoked(test.key, &RpcError::internal()).await;
    let signals = test.nodes[to].signals.as_mut().expect("a node of a cluster");
    assert!(within("the inbox is read", signals.recv()).await.is_some());
}

/// Each node serves, and hears from the other.
async fn works(test: &mut TestCluster) {
    for (from, to) in [(0, 1), (1, 0)] {
        let call = test.message();
        let waiter = test.enqueue(from, &call).await;
        let lease = test.lease(from).await;
        assert_eq!(run(&lease, None).await, call.id);
        lease.tell(call.id, over()).await;
        drop(waiter);
        signalled(test, to, from).await;
        until("it is given up", async || if lease.wanted().await { Err("wanted") } else { Ok(()) }).await;
        assert!(lease.release().await.is_ok());
        let cluster = test.nodes[to].cluster.clone();
        until("nobody owns it", async || match cluster.owner(test.session).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        let members = cluster.nodes().await.expect("answered");
        assert_eq!(members.len(), 2, "{members:?}");
        assert_eq!(cluster.warnings().await, Vec::<String>::new());
    }
}

/// The master dies under a running turn with calls behind it: the nodes find the next by themselves.
async fn failover(mut servers: Watched, url: String, ca: Option<PathBuf>) {
    let mut test = TestCluster::reached(url, ca, "bae:", 2).await;
    works(&mut test).await;
    let mut busy = test.busy().await;
    let servers = spawn_blocking(move || {
        servers.kill_master();
        servers
    });
    let servers = servers.await.expect("stopped");
    let found = async |test: &TestCluster| {
        for node in &test.nodes {
            until("the next master is found", async || match node.cluster.nodes().await {
                Ok(members) if members.len() == 2 => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await;
        }
    };
    found(&test).await;
    let third = test.message();
    let _third = test.enqueue(1, &third).await;
    busy.waiting.push(third);
    assert!(!busy.lease.lost.is_cancelled(), "the running turn goes on");
    assert!(busy.lease.may_act(busy.epoch).await);
    test.nodes[1].cluster.ensure_owner(test.session).await;
    test.no_lease(1);
    busy.serves_all_in_order().await;
    signalled(&mut test, 0, 1).await;
    signalled(&mut test, 1, 0).await;
    assert!(busy.lease.release().await.is_ok());
    test.end().await;
    drop(servers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_master_is_found_through_sentinel() {
    let servers = spawn_blocking(|| Watched::start(Extra::default())).await.expect("servers");
    let url = format!("sentinel://{}/bae", servers.hosts());
    failover(servers, url, None).await;
}

/// The servers ask for one password, the Sentinels for another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_and_sentinels_have_passwords() {
    let servers = spawn_blocking(|| {
        Watched::start(Extra {
            servers: "requirepass data\nmasterauth data\n",
            sentinels: "sentinel auth-pass bae data\nrequirepass other\nsentinel sentinel-pass other\n",
            cli: (&["-a", "data"], &["-a", "other"]),
        })
    });
    let servers = servers.await.expect("servers");
    let url = format!("sentinel://:data@{}/bae/0?sentinel=other", servers.hosts());
    failover(servers, url, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_their_servers_speak_tls() {
    let folder = Folder::new();
    let ca = folder.authority("ca");
    let tls = folder.tls("ca");
    let cli = folder.cli("ca");
    let servers = spawn_blocking(move || {
        let cli: Vec<&str> = cli.iter().map(String::as_str).collect();
        let lines = format!("{tls}tls-replication yes\n");
        Watched::start(Extra { servers: &lines, sentinels: &lines, cli: (&cli, &cli) })
    });
    let servers = servers.await.expect("servers");
    let url = format!("sentinels://{}/bae", servers.hosts());
    failover(servers, url, Some(ca)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_of_ones_own_is_trusted_alone() {
    let folder = Folder::new();
    let (ca, wrong) = (folder.authority("ca"), folder.authority("wrong"));
    let tls = folder.tls("ca");
    let server = spawn_blocking(move || Service::redis_with(&tls)).await.expect("a server");
    let url = format!("rediss://127.0.0.1:{}", server.port());
    let mut test = TestCluster::reached(url.clone(), Some(ca.clone()), "bae:", 2).await;
    works(&mut test).await;
    for ca in [Some(wrong), None] {
        let warnings = warnings(&test.fixture.log, &url, ca).await;
        assert!(warnings.contains("invalid peer certificate: UnknownIssuer"), "{warnings}");
    }
    let insecure = warnings(&test.fixture.log, &format!("{url}/#insecure"), None).await;
    assert!(insecure.contains("insecure"), "the check cannot be turned off: {insecure}");
    let other_name = format!("rediss://localhost:{}", server.port());
    let warnings = warnings(&test.fixture.log, &other_name, Some(ca)).await;
    assert!(warnings.contains("invalid peer certificate: certificate not valid for name"), "{warnings}");
    test.end().await;
}

/// What a node with these settings says of its Redis.
async fn warnings(log: &Log, url: &str, ca: Option<PathBuf>) -> String {
    let settings = Settings { url: url.into(), ca, prefix: "bae:".into(), lease: LEASE };
    let (redis, _received) =
        Redis::new(settings, log.clone(), Feeds::clustered().1, 5).expect("settings that make sense");
    coordinator::cluster::Cluster::Redis(redis).warnings().await.join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_the_settings_is_told_without_a_password() {
    let folder = Folder::new();
    let (ca, key) = (folder.authority("ca"), folder.path("ca.key"));
    let broken = folder.path("broken.pem");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("written");
    let test = TestCluster::local().await;
    let cases = [
        ("redis://:secret@127.0.0.1", Some(ca), "BAE_REDIS_CA is for rediss:// and sentinels://"),
        ("rediss://:secret@127.0.0.1", Some(folder.path("none.pem")), "BAE_REDIS_CA cannot be read"),
        ("rediss://:secret@127.0.0.1", Some(key), "BAE_REDIS_CA holds no certificate"),
        ("rediss://:secret@127.0.0.1", Some(broken.clone()), "BAE_REDIS_CA cannot be used"),
        ("sentinels://:secret@127.0.0.1:1/bae", Some(broken), "BAE_REDIS_CA cannot be used"),
        ("redis://:secret@127.0.0.1:port", None, "BAE_REDIS_URL cannot be used"),
        ("sentinel://secret@127.0.0.1:1/bae", None, "BAE_REDIS_URL cannot be used"),
        ("sentinel://:secret@127.0.0.1:1", None, "BAE_REDIS_URL cannot be used"),
        ("sentinel://:secret@127.0.0.1:1/bae/secret", None, "BAE_REDIS_URL cannot be used"),
    ];
    for (url, ca, expected) in cases {
        let settings = Settings { url: url.into(), ca, prefix: "bae:".into(), lease: LEASE };
        let told =
            Redis::new(settings, test.fixture.log.clone(), Feeds::clustered().1, 5).err().expect(url).to_string();
        assert!(told.contains(expected) && !told.contains("secret"), "{url}: {told}");
    }
    test.end().await;
}

/// It is enough, and no command of it is too much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_may_do_what_the_documents_say_and_no_more() {
    let line = OPERATIONS.lines().find(|line| line.starts_with("user bae ")).expect("the rule in docs/operations.md");
    let rule = line.replace("PASSWORD", "secret");
    let shy = rule.replace("user bae ", "user shy ").replace("+info ", "");
    let users = format!("user default off\nuser operator on nopass ~* &* +@all\n{rule}\n{shy}\n");
    let server = spawn_blocking(move || Service::redis_with(&users)).await.expect("a server");
    let url = format!("redis://bae:secret@127.0.0.1:{}", server.port());
    let mut test = TestCluster::reached(url, None, "bae:", 2).await;
    works(&mut test).await;
    // All that nodes say to each other, and a new fixture.
    let (first, second, third) = (test.message(), test.compact(), test.keyed("k", 1));
    let _first = test.enqueue(0, &first).await;
    let left = test.enqueue(1, &second).await;
    let _third = test.enqueue(1, &third).await;
    let _joined = test.enqueue(0, &test.keyed("k", 1)).await;
    let _reader = test.nodes[1].open_reader(test.session).await.expect("watched");
    drop(left);
    let lease = test.lease(0).await;
    assert_eq!(run(&lease, None).await, first.id);
    lease.unclaim(first.id).await;
    assert_eq!(run(&lease, None).await, first.id);
    lease.tell(first.id, over()).await;
    assert!(matches!(lease.claim(held(test.key)).await, Claim::Run(_) | Claim::Refuse(_)));
    assert_eq!(run(&lease, expired(test.key)).await, third.id);
    lease.refuse_all(&RpcError::internal()).await;
    test.nodes[1].cluster.cut(test.session);
    test.nodes[0].cluster.drain();
    lease.hand_over();
    let lease = test.lease(1).await;
    let (cluster, session) = (test.nodes[0].cluster.clone(), test.session);
    let stopping = tokio::spawn(async move { cluster.stop(session, &RpcError::internal()).await });
    within("the owner is told", lease.stop.cancelled()).await;
    drop::<Lease>(lease);
    within("the stop ends", stopping).await.expect("no panic");
    test.end().await;
    let ask = |user: &str, words: &[&str]| server.redis_cli(&[&["--user", user, "--pass", "secret"], words].concat());
    let log = ask("operator", &["ACL", "LOG"]);
    assert_eq!(log, "", "nothing was refused");
    let used = ask("operator", &["INFO", "commandstats"]);
    let granted: Vec<&str> = line.split(' ').filter_map(|word| word.strip_prefix('+')).collect();
    for command in &granted {
        let named = format!("cmdstat_{}:", command);
        assert!(used.lines().any(|line| line.starts_with(&named)), "{command} is granted and not used: {used}");
    }
    let sha = ask("bae", &["SCRIPT", "LOAD", "return redis.call('GET', 'other:key')"]);
    let told = ask("bae", &["EVALSHA", &sha, "0"]);
    assert!(told.contains("can't access at least one of the keys"), "the prefix holds in scripts, too: {told}");
    for words in [["KEYS", "*"], ["FLUSHALL", "SYNC"], ["GET", "other:key"], ["CONFIG", "RESETSTAT"]] {
        let told = ask("bae", &words);
        assert!(told.contains("NOPERM"), "{words:?}: {told}");
    }
    let url = format!("redis://shy:secret@127.0.0.1:{}", server.port());
    let mut test = TestCluster::reached(url, None, "bae:", 2).await;
    works(&mut test).await;
    test.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clusters_on_one_redis_do_not_meet() {
    let server = spawn_blocking(Service::redis).await.expect("a server");
    let mut one = TestCluster::reached(server.url(), None, "one:", 2).await;
    let mut two = TestCluster::reached(server.url(), None, "two:", 2).await;
    works(&mut one).await;
    works(&mut two).await;
    // The same session in both: each has a lease, a queue and an owner of its own.
    two.session = one.session;
    let (a, b) = (one.message(), two.message());
    let _waiters = (one.enqueue(0, &a).await, two.enqueue(1, &b).await);
    let (first, second) = (one.lease(0).await, two.lease(1).await);
    assert!(first.confirm().await && second.confirm().await);
    assert_eq!(run(&first, None).await, a.id);
    assert_eq!(run(&second, None).await, b.id);
    let theirs = two.nodes[1].name.clone();
    assert_eq!(two.nodes[0].cluster.owner(two.session).await.expect("answered"), Some(theirs));
    one.nodes[0].cluster.revoked(one.key, &RpcError::internal()).await;
    signalled(&mut two, 0, 1).await;
    assert!(two.nodes[0].signals.as_mut().expect("signals").try_recv().is_err(), "told by the other cluster");
    one.end().await;
    let mut raw = two.raw().await;
    let all: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut raw).await.expect("keys");
    assert!(all.iter().all(|key| key.starts_with("one:") || key.starts_with("two:")), "{all:?}");
    assert!(second.confirm().await, "the other cluster's end is not ours");
    two.end().await;
}

/// Keys and certificates made with `openssl`, gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("bae-tls-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&folder).expect("a folder");
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn openssl(&self, words: &str) {
        let done = Command::new("openssl").args(words.split(' ')).current_dir(&self.0).output();
        let done = done.expect("these tests need openssl (Debian and Ubuntu: apt-get install openssl)");
        assert!(done.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// An authority, and a certificate for 127.0.0.1 that it signed.
    fn authority(&self, name: &str) -> PathBuf {
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        self.openssl(&format!("req -x509 {key} -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"));
        self.openssl(&format!("req {key} -keyout {name}-server.key -out {name}.csr -subj /CN=server"));
        std::fs::write(self.path("ext"), "subjectAltName=IP:127.0.0.1").expect("written");
        let signs = format!("-CA {name}.pem -CAkey {name}.key -CAcreateserial -extfile ext -days 2");
        self.openssl(&format!("x509 -req -in {name}.csr -out {name}-server.pem {signs}"));
        self.path(&format!("{name}.pem"))
    }

    /// What a server's configuration says: TLS alone, on its port.
    fn tls(&self, name: &str) -> String {
        let at = |suffix: &str| Path::display(&self.path(&format!("{name}{suffix}"))).to_string();
        format!(
            "port 0\ntls-port PORT\ntls-auth-clients no\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\n",
            at("-server.pem"),
            at("-server.key"),
            at(".pem")
        )
    }

    fn cli(&self, name: &str) -> Vec<String> {
        vec!["--tls".into(), "--cacert".into(), self.path(&format!("{name}.pem")).display().to_string()]
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
