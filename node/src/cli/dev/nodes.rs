//! `baesrv dev --nodes N`: a cluster on one machine, to watch one node take over from another.
//!
//! Each node is a `baesrv serve` process of its own. A TCP proxy on the usual ports gives each connection to the next
//! node, and skips nodes that do not accept connections.

use super::services::{Services, free_port, listening, spawn};
use crate::admin::key::write_secret;
use crate::cli::terminal::{Failure, print};
use crate::config::{AdminKey, Config, Provider, SandboxDriver};
use crate::lifecycle::Ports;
use secrecy::{ExposeSecret, SecretString};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

/// How much longer than its own shutdown timeout a node may take to exit before it is killed.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(10);

/// A node's process.
struct Node {
    name: String,
    client: SocketAddr,
    admin: SocketAddr,
    process: Child,
    log: PathBuf,
}

/// What all nodes share.
pub(super) struct Cluster<'a> {
    pub(crate) config: &'a Config,
    pub(crate) services: &'a Services,
    pub(crate) data: &'a Path,
    /// The configuration file that was given.
    pub(crate) file: Option<&'a str>,
}

impl Cluster<'_> {
    /// Starts the nodes behind the ports, prints `banner`, and runs until the stop; then it stops the nodes and waits
    /// for them. They know `provider` in addition to those in the configuration file.
    pub(crate) async fn run(
        &self,
        count: u8,
        provider: Option<&Provider>,
        ports: Ports,
        banner: &str,
        stop: CancellationToken,
    ) -> Result<(), Failure> {
        let file = self.configuration(provider)?;
        let key = self.admin_key()?;
        let mut nodes = Vec::new();
        for n in 1..=count {
            nodes.push(self.start(n, &file, &key).await?);
        }
        let mut text = format!("{banner}\nNodes (kill one, and watch the others go on):\n\n");
        for node in &nodes {
            let pid = node.process.id().unwrap_or_default();
            let _ = writeln!(
                text,
                "  {}  pid {pid}  client {}  admin {}  log {}",
                node.name,
                node.client,
                node.admin,
                node.log.display()
            );
        }
        print(&text);
        let ended = CancellationToken::new();
        let proxies = [
            tokio::spawn(proxy(ports.client, nodes.iter().map(|node| node.client).collect(), ended.clone())),
            tokio::spawn(proxy(ports.admin, nodes.iter().map(|node| node.admin).collect(), ended.clone())),
        ];
        let timeout = self.config.shutdown_timeout + SHUTDOWN_MARGIN;
        let watched: Vec<_> = nodes.into_iter().map(|node| tokio::spawn(watch(node, stop.clone(), timeout))).collect();
        for node in watched {
            let _ = node.await;
        }
        ended.cancel();
        for proxy in proxies {
            let _ = proxy.await;
        }
        Ok(())
    }

    /// The key of the admin port: the supplied one, or the generated one, which is read from its file.
    fn admin_key(&self) -> Result<SecretString, Failure> {
        if let AdminKey::Supplied(key) = &self.config.admin_key {
            return Ok(key.clone());
        }
        let path = &self.config.admin_key_file;
        let read = std::fs::read_to_string(path).map(|text| SecretString::from(text.trim()));
        read.map_err(|error| Failure::Runtime(format!("cannot read the admin key in {}: {error}", path.display())))
    }

    /// Writes the nodes' configuration file: the given one with the chosen provider added. Only its owner can read it,
    /// because the given one may hold secrets.
    fn configuration(&self, provider: Option<&Provider>) -> Result<PathBuf, Failure> {
        let refuse =
            |error: std::io::Error| Failure::Runtime(format!("the nodes' configuration cannot be written: {error}"));
        let mut text = self.file.map(std::fs::read_to_string).transpose().map_err(refuse)?.unwrap_or_default();
        if let Some(Provider { entry, auth_token, .. }) = provider {
            let quoted = |text: &str| toml::Value::from(text).to_string();
            let _ = write!(
                text,
                "\n[[providers.entries]]\nname = {}\nprovider = {}\nbase_url = {}\nmodel = {}\nauth_token = {}\nmax_tokens = {}\n",
                quoted(&entry.name),
                quoted(entry.wire.as_str()),
                quoted(&entry.base_url),
                quoted(&entry.model),
                quoted(auth_token.expose_secret()),
                entry.max_tokens,
            );
        }
        let path = self.data.join("nodes.toml");
        write_secret(&path, &text.into()).map_err(refuse)?;
        Ok(path)
    }

    async fn start(&self, n: u8, file: &Path, admin_key: &SecretString) -> Result<Node, Failure> {
        let program =
            std::env::current_exe().map_err(|error| Failure::Runtime(format!("this program is gone: {error}")))?;
        let (client, admin): (SocketAddr, SocketAddr) =
            (([127, 0, 0, 1], free_port()?).into(), ([127, 0, 0, 1], free_port()?).into());
        let log = self.data.join(format!("node{n}.log"));
        let mut command = Command::new(program);
        command
            .arg("serve")
            .env("BAE_CONFIG", file)
            .env("BAE_ADDR", client.to_string())
            .env("BAE_ADMIN_ADDR", admin.to_string())
            .env("BAE_ADMIN_KEY", admin_key.expose_secret())
            .env("BAE_DATABASE_URL", self.services.database_url.expose_secret())
            .env("BAE_REDIS_URL", self.services.redis_url.expose_secret())
            .env(
                "BAE_SANDBOX_DRIVER",
                match self.config.sandbox.driver {
                    SandboxDriver::None => "none",
                    SandboxDriver::Docker { .. } => "docker",
                    SandboxDriver::Kubernetes { .. } => "kubernetes",
                },
            )
            // Several nodes cannot share a port.
            .env("BAE_METRICS_ADDR", "off")
            .env_remove("BAE_TLS_CERT")
            .env_remove("BAE_TLS_KEY")
            .env_remove("BAE_ADMIN_KEY_FILE");
        let process = spawn(command, &log, "a node cannot be started")?;
        listening(client.port(), "a node", &log).await?;
        Ok(Node { name: format!("node {n}"), client, admin, process, log })
    }
}

/// Reports when a node's process ends by itself; at the stop, ends it.
async fn watch(mut node: Node, stop: CancellationToken, timeout: Duration) {
    tokio::select! {
        ended = node.process.wait() => {
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            print(&format!("{} has ended ({how}): the others take its sessions over\n", node.name));
        }
        () = stop.cancelled() => {
            if let Some(pid) = node.process.id() {
                let _ = Command::new("kill").args(["-TERM", &pid.to_string()]).status().await;
            }
            // What still runs after that is killed when its handle is dropped.
            let _ = tokio::time::timeout(timeout, node.process.wait()).await;
        }
    }
}

/// Passes each connection on to the next node in turn.
async fn proxy(listener: TcpListener, nodes: Vec<SocketAddr>, ended: CancellationToken) {
    let (nodes, next) = (Arc::new(nodes), Arc::new(AtomicUsize::new(0)));
    while let Some(Ok((mut client, _))) = ended.run_until_cancelled(listener.accept()).await {
        let (nodes, next, ended) = (Arc::clone(&nodes), Arc::clone(&next), ended.clone());
        tokio::spawn(async move {
            let _ = client.set_nodelay(true);
            for _ in 0..nodes.len() {
                let turn = next.fetch_add(1, Ordering::Relaxed) % nodes.len();
                let Ok(mut node) = TcpStream::connect(nodes[turn]).await else { continue };
                let _ = node.set_nodelay(true);
                let carried = tokio::io::copy_bidirectional(&mut client, &mut node);
                let _ = ended.run_until_cancelled(carried).await;
                return;
            }
        });
    }
}
