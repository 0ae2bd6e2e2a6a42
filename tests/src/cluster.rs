//! Several real nodes that share a Postgres database and a Redis, as a deployment behind a load balancer does.
//!
//! A test picks the node that each request reaches, finds the owner of a session, and breaks nodes and servers from
//! outside. What the log says is read from the database, which needs no node.

mod faults;
mod network;
mod proxy;

pub use faults::{Lock, TAKES};
pub use network::Network;
pub use proxy::{Mode, Proxy};

use crate::admin::{Admin, Key};
use crate::checker::Log;
use crate::client::{Api, Session};
use crate::fixture::{TOOLS, clock, provider_toml};
use crate::mcp::Mcp;
use crate::poll;
use crate::provider::Provider;
use crate::server::{Config, Server};
use crate::services::{self, Service};
use serde_json::{Value, json};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Lease time of the usual cluster.
pub const LEASE: Duration = Duration::from_secs(2);
/// Within this an orphaned turn is taken over: the lease and 2 s (I6), and a second for a loaded machine.
pub const TAKEOVER: Duration = Duration::from_secs(5);

/// What is to be set up.
#[derive(Debug)]
pub struct Plan {
    nodes: usize,
    config: Config,
    node_env: Vec<(usize, String, String)>,
    mcp_servers: Vec<String>,
    images: Vec<String>,
    model: Option<String>,
    fallbacks: Vec<String>,
    provider: String,
    own_redis: bool,
    own_postgres: bool,
    proxied: bool,
    role: bool,
    isolated: bool,
    program: Option<PathBuf>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            nodes: 3,
            config: Config::default(),
            node_env: Vec::new(),
            mcp_servers: Vec::new(),
            images: Vec::new(),
            model: None,
            fallbacks: Vec::new(),
            provider: String::new(),
            own_redis: false,
            own_postgres: false,
            proxied: false,
            role: false,
            isolated: false,
            program: None,
        }
    }
}

impl Plan {
    /// How many nodes.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// An environment variable of every node.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.config = self.config.env(name, value);
        self
    }

    /// More configuration of every node.
    pub fn toml(mut self, text: &str) -> Self {
        self.config = self.config.toml(text);
        self
    }

    /// One more MCP server, used by the profile.
    pub fn mcp(mut self, mcp: &Mcp) -> Self {
        self.config = self.config.toml(&mcp.toml());
        self.mcp_servers.push(mcp.name.clone());
        self
    }

    /// The images of the profile.
    pub fn images(mut self, images: &[&str]) -> Self {
        self.images = images.iter().map(|image| (*image).to_owned()).collect();
        self
    }

    /// A model of the test's own at this URL, as the provider `main` and its fallback `second`.
    pub fn model(mut self, url: &str) -> Self {
        self.model = Some(url.to_owned());
        self
    }

    /// More keys of the provider's table.
    pub fn provider(mut self, extra: &str) -> Self {
        self.provider = extra.to_owned();
        self
    }

    /// One more provider, a fallback of the profile.
    pub fn fallback(mut self, name: &str, provider: &Provider) -> Self {
        self.config = self.config.toml(&provider_toml(name, "anthropic", &provider.url(), ""));
        self.fallbacks.push(name.to_owned());
        self
    }

    /// Sets the wall clock of one node off, by so many seconds; what measures time that passes is not touched.
    pub fn clock(mut self, node: usize, off: i32) -> Self {
        let library = services::faketime().to_str().expect("a path in UTF-8").to_owned();
        let offset = format!("{off:+}s");
        for (name, value) in
            [("LD_PRELOAD", library.as_str()), ("FAKETIME", &offset), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]
        {
            self.node_env.push((node, name.to_owned(), value.to_owned()));
        }
        self
    }

    /// The soft limit of open files that every node is started with.
    pub fn soft_files(mut self, limit: u32) -> Self {
        self.config = self.config.soft_files(limit);
        self
    }

    /// A Redis that only this test uses and may stop or empty.
    pub fn own_redis(mut self) -> Self {
        self.own_redis = true;
        self
    }

    /// A Postgres that only this test uses and may stop.
    pub fn own_postgres(mut self) -> Self {
        self.own_postgres = true;
        self
    }

    /// A [`Proxy`] between each node and each server.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Nodes reach a Postgres of this test's own as a role that can be refused connections.
    pub fn role(mut self) -> Self {
        (self.own_postgres, self.role) = (true, true);
        self
    }

    /// Node 0 runs in a [`Network`] of its own; it reaches the servers, and the provider is reached by all, at this
    /// machine's end of the cable.
    pub fn isolated(mut self) -> Self {
        self.isolated = true;
        self
    }

    /// Another build of the server.
    pub fn program(mut self, path: PathBuf) -> Self {
        self.program = Some(path);
        self
    }

    /// Starts everything.
    pub async fn start(self) -> Cluster {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bae_test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (own_redis, own_postgres) = (self.own_redis, self.own_postgres);
        let servers = move || {
            let redis = own_redis.then(Service::redis);
            let postgres = own_postgres.then(Service::postgres);
            let redis_url = redis.as_ref().map_or_else(services::redis, Service::url);
            let postgres_url = postgres.as_ref().map_or_else(services::postgres, Service::url);
            (redis, postgres, redis_url, postgres_url)
        };
        let (redis, postgres, redis_url, base) = tokio::task::spawn_blocking(servers).await.expect("both servers");
        let network = self.isolated.then(Network::new);
        let role = self.role.then(|| format!("{name}_nodes"));
        let mut nodes_base = base.clone();
        match &role {
            None => admin_sql(&base, &format!("CREATE DATABASE {name}")).await,
            Some(role) => {
                admin_sql(&base, &format!("CREATE ROLE {role} LOGIN")).await;
                admin_sql(&base, &format!("CREATE DATABASE {name} OWNER {role}")).await;
                nodes_base = base.replace("//bae@", &format!("//{role}@"));
            }
        }
        let pool = PgPoolOptions::new().max_connections(2).connect_lazy(&format!("{base}/{name}")).expect("a URL");
        let provider = Provider::start_at(network.as_ref().map_or(Ipv4Addr::LOCALHOST, |network| network.host)).await;
        let model = self.model.clone().unwrap_or_else(|| provider.url());
        let mut config = self.config.toml(&provider_toml("main", "anthropic", &model, &self.provider));
        let mut fallbacks = self.fallbacks;
        if self.model.is_some() {
            config = config.toml(&provider_toml("second", "anthropic", &model, ""));
            fallbacks.push("second".to_owned());
        }
        let config = config.env("BAE_REDIS_PREFIX", &format!("{name}:")).env("BAE_DATABASE_CONNECTIONS", "5");
        let mut nodes: Vec<Node> = Vec::new();
        for number in 0..self.nodes {
            let network = network.as_ref().filter(|_| number == 0);
            let (mut redis_proxy, mut postgres_proxy) = (None, None);
            let (mut redis_at, mut postgres_at) = (redis_url.clone(), nodes_base.clone());
            if self.proxied || network.is_some() {
                let at = network.map_or(Ipv4Addr::LOCALHOST, |network| network.host);
                let (proxy, url) = Proxy::before_at(at, &redis_url).await;
                (redis_proxy, redis_at) = (Some(proxy), url);
                let (proxy, url) = Proxy::before_at(at, &nodes_base).await;
                (postgres_proxy, postgres_at) = (Some(proxy), url);
            }
            let mut server = Server::prepare(config.clone());
            if let Some(network) = network {
                server.set_network(&network.name, network.inside);
            }
            if let Some(program) = &self.program {
                server.set_program(program.clone());
            }
            server.set_env("BAE_DATABASE_URL", &format!("{postgres_at}/{name}"));
            server.set_env("BAE_REDIS_URL", &redis_at);
            if !config.has("BAE_LEASE") {
                server.set_env("BAE_LEASE", &LEASE.as_secs().to_string());
            }
            for (_, name, value) in self.node_env.iter().filter(|(node, ..)| *node == number) {
                server.set_env(name, value);
            }
            nodes.push(Node { server, name: String::new(), redis: redis_proxy, postgres: postgres_proxy });
        }
        // The first finds the cluster empty, so that nothing has to settle before the test begins.
        let (first, others) = nodes.split_first_mut().expect("a node");
        first.start().await;
        futures_util::future::join_all(others.iter_mut().map(Node::start)).await;
        let admin = nodes[0].admin();
        let profile = admin
            .profile(&json!({
                "name": "main", "primary_provider": "main", "fallback_providers": fallbacks,
                "mcp_servers": self.mcp_servers,
                "allowed_tools": TOOLS, "available_sandboxes": self.images,
            }))
            .await;
        let key = admin.key("first", &profile).await;
        Cluster { nodes, provider, profile, key, pool, redis, postgres, network, base, role, database: name }
    }
}

async fn admin_sql(base: &str, sql: &str) {
    let mut connection = PgConnection::connect(&format!("{base}/postgres")).await.expect("the Postgres server");
    sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
}

/// One node, and what stands between it and the servers.
#[derive(Debug)]
pub struct Node {
    /// The process.
    pub server: Server,
    /// What it calls itself, since its last start.
    pub name: String,
    /// In front of Redis, if planned.
    pub redis: Option<Proxy>,
    /// In front of Postgres, if planned.
    pub postgres: Option<Proxy>,
}

impl Node {
    /// Starts the process (again); returns when it is ready.
    pub async fn start(&mut self) {
        self.server.spawn();
        self.server.wait_ready().await;
        self.ready().await;
        let admin = self.admin();
        self.name = poll::until(poll::DEADLINE, "a node in its own list", async || {
            let list = admin.get("/admin/v1/nodes").await.expect(200).json();
            let asked = list["items"].as_array().expect("items").iter().find(|item| item["asked"] == true);
            asked.map(|item| item["node"].as_str().expect("a name").to_owned()).ok_or(list)
        })
        .await;
    }

    /// Waits until `/readyz` says yes.
    pub async fn ready(&self) {
        poll::until(poll::DEADLINE, "a node's /readyz", async || {
            let reply = self.api().get("/readyz", "").await;
            if reply.status == 200 { Ok(()) } else { Err(reply.body) }
        })
        .await;
    }

    /// Its client port.
    pub fn api(&self) -> Api {
        Api::new(self.server.http(), self.server.url())
    }

    /// Its admin port.
    pub fn admin(&self) -> Admin {
        Admin(Api::new(self.server.http(), self.server.admin_url()))
    }
}

/// The cluster. Nodes end before the servers they use.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub provider: Provider,
    /// The profile's id.
    pub profile: String,
    /// A key of it.
    pub key: Key,
    /// The nodes' database.
    pub pool: PgPool,
    /// If this test has its own.
    pub redis: Option<Service>,
    /// If this test has its own.
    pub postgres: Option<Service>,
    /// Node 0's, if it is isolated.
    pub network: Option<Network>,
    base: String,
    role: Option<String>,
    database: String,
}

impl Cluster {
    /// Three nodes and nothing special.
    pub async fn start() -> Self {
        Plan::default().start().await
    }

    /// A session opened on node 0 whose client registered on node 1 as a driver with the tool `clock`; its requests go
    /// to node 0 (see [`Session::on`]).
    pub async fn driver(&self) -> Session {
        let session = self.nodes[0].api().open(&self.key.secret, &json!({"tools": [clock()]})).await;
        self.at(&session, 1.min(self.nodes.len() - 1)).register().await;
        session
    }

    /// A session with an owner: a turn with the message `warm` has run in it. Returns the session and its owner's node.
    pub async fn owned_session(&self) -> (Session, usize) {
        let session = self.driver().await;
        self.at(&session, 0).send("warm").await.text();
        let owner = self.owner(&session, 0).await;
        (session, owner)
    }

    /// A second client key's view of the session, through that node.
    pub async fn second(&self, session: &Session, node: usize) -> Session {
        let key = self.nodes[node].admin().key("second", &self.profile).await;
        let joined = self.nodes[node].api().join(&session.id, &key.secret, &json!({"tools": [clock()]})).await;
        joined.register().await;
        joined
    }

    /// The same client through another node.
    pub fn at(&self, session: &Session, node: usize) -> Session {
        session.on(&self.nodes[node].api())
    }

    /// The node that owns the session, as `asked` knows it.
    pub async fn owner(&self, session: &Session, asked: usize) -> usize {
        let path = format!("/admin/v1/sessions/{}/owner", session.id);
        poll::until(poll::DEADLINE, "an owner", async || {
            let reply = self.nodes[asked].admin().get(&path).await.expect(200).json();
            self.nodes.iter().position(|node| reply["node"] == node.name.as_str()).ok_or(reply)
        })
        .await
    }

    /// A node other than these.
    pub fn other(&self, than: &[usize]) -> usize {
        (0..self.nodes.len()).find(|node| !than.contains(node)).expect("another node")
    }

    /// The session's whole record, read from the database.
    pub async fn log(&self, session: &Session) -> Log {
        Log::read(&self.pool, &session.id).await
    }

    /// The type of the log's last event in the database.
    pub async fn last(&self, session: &Session) -> String {
        self.log(session).await.types().last().cloned().unwrap_or_default()
    }

    /// Waits until the database's log satisfies `done`.
    pub async fn until(&self, session: &Session, limit: Duration, what: &str, done: impl Fn(&Log) -> bool) -> Log {
        poll::until(limit, what, async || {
            let log = self.log(session).await;
            if done(&log) { Ok(log) } else { Err(log.types()) }
        })
        .await
    }

    /// Fails unless the session's record holds all rules that need no knowledge of the test.
    pub async fn check(&self, session: &Session) -> Log {
        let log = self.log(session).await;
        let mut violations = log.violations();
        violations.extend(log.compare_asked(&self.provider.requests()));
        assert!(violations.is_empty(), "{violations:#?}\n{log:#?}");
        log
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        if self.postgres.is_some() || std::env::var_os("BAE_TEST_POSTGRES_URL").is_none() {
            return;
        }
        let (base, sql) = (self.base.clone(), format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database));
        let _ = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(admin_sql(&base, &sql));
        })
        .join();
    }
}

/// What clients have said, in the log's order.
pub fn said(log: &Log) -> Vec<&str> {
    log.events.iter().filter_map(|event| event.text()).collect()
}

/// The events of one type.
pub fn of_type<'a>(log: &'a Log, kind: &str) -> Vec<&'a Value> {
    log.events.iter().filter(|event| event.kind == kind).map(|event| &event.payload).collect()
}
