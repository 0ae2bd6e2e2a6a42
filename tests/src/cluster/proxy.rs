//! A TCP proxy between a node and a server: it passes, stalls (nothing gets through and nobody is told), cuts, or leads
//! elsewhere.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What it does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Passes them on.
    Pass,
    /// Keeps them until the next `Pass`.
    Stall,
    /// Ends every connection, also new ones.
    Cut,
}

#[derive(Debug)]
struct Shared {
    mode: watch::Sender<Mode>,
    hang_up: watch::Sender<()>,
    /// `host:port` that new connections lead to.
    target: Mutex<String>,
    /// What a client has to send for everything to stall.
    marker: Mutex<Option<String>>,
}

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The URL up to its host, and the host.
fn split(url: &str) -> (&str, &str) {
    let (head, host) = url.rsplit_once(['@', '/']).expect("a URL with a host");
    (&url[..=head.len()], host)
}

impl Proxy {
    /// One in front of the server of this URL, and the URL that leads through it.
    pub async fn before(url: &str) -> (Self, String) {
        Self::before_at(Ipv4Addr::LOCALHOST, url).await
    }

    /// The same, reached at that address of this machine.
    pub async fn before_at(address: Ipv4Addr, url: &str) -> (Self, String) {
        let (head, host) = split(url);
        let listener = TcpListener::bind((address, 0)).await.expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let shared = Arc::new(Shared {
            mode: watch::channel(Mode::Pass).0,
            hang_up: watch::channel(()).0,
            target: Mutex::new(host.to_owned()),
            marker: Mutex::default(),
        });
        let every = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(connect(client, Arc::clone(&every)));
                while connections.try_join_next().is_some() {}
            }
        });
        (Self { shared, accepting }, format!("{head}{address}:{port}"))
    }

    /// From now on.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Ends every connection that there is; new ones pass.
    pub fn hang_up(&self) {
        self.shared.hang_up.send_replace(());
    }

    /// Leads new connections to the server of this URL, and ends those that there are.
    pub fn retarget(&self, url: &str) {
        split(url).1.clone_into(&mut self.shared.target.lock().unwrap());
        self.hang_up();
    }

    /// Stalls everything from the moment in which a client sends this: it is the first that does not get through.
    pub fn stall_when_sent(&self, marker: &str) {
        *self.shared.marker.lock().unwrap() = Some(marker.to_owned());
    }

    /// Waits until it stalls.
    pub async fn stalled(&self) {
        let mut mode = self.shared.mode.subscribe();
        crate::poll::within("the stall", mode.wait_for(|mode| *mode == Mode::Stall)).await.expect("the proxy runs");
    }
}

impl Shared {
    fn look_for_marker(&self, bytes: &[u8]) {
        let mut marker = self.marker.lock().unwrap();
        if marker.as_ref().is_some_and(|text| bytes.windows(text.len()).any(|window| window == text.as_bytes())) {
            *marker = None;
            self.mode.send_replace(Mode::Stall);
        }
    }
}

async fn connect(client: TcpStream, shared: Arc<Shared>) {
    let (mut mode, mut hang_up) = (shared.mode.subscribe(), shared.hang_up.subscribe());
    if *mode.borrow() == Mode::Cut {
        return;
    }
    let target = shared.target.lock().unwrap().clone();
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let look = |bytes: &[u8]| shared.look_for_marker(bytes);
    tokio::select! {
        () = pass(from_client, to_server, mode.clone(), look) => {}
        () = pass(from_server, to_client, mode.clone(), |_| ()) => {}
        _ = mode.wait_for(|mode| *mode == Mode::Cut) => {}
        _ = hang_up.changed() => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut mode: watch::Receiver<Mode>, look: impl Fn(&[u8])) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        look(&bytes[..read]);
        if mode.wait_for(|mode| *mode != Mode::Stall).await.is_err() || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
