//! A TCP proxy between a node and a server: it passes, stalls (nothing gets through and nobody is told), or cuts.

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

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    mode: watch::Sender<Mode>,
    accepting: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Proxy {
    /// One in front of the server of this URL, and the URL that leads through it.
    pub async fn before(url: &str) -> (Self, String) {
        let (head, host) = url.rsplit_once(['@', '/']).expect("a URL with a host");
        let target = host.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let (mode, watched) = watch::channel(Mode::Pass);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(connect(client, target.clone(), watched.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        let separator = &url[head.len()..=head.len()];
        (Self { mode, accepting }, format!("{head}{separator}127.0.0.1:{port}"))
    }

    /// From now on.
    pub fn set(&self, mode: Mode) {
        let _ = self.mode.send(mode);
    }
}

async fn connect(client: TcpStream, target: String, mut mode: watch::Receiver<Mode>) {
    if *mode.borrow() == Mode::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = pass(from_client, to_server, mode.clone()) => {}
        () = pass(from_server, to_client, mode.clone()) => {}
        _ = mode.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut mode: watch::Receiver<Mode>) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if mode.wait_for(|mode| *mode != Mode::Stall).await.is_err() || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
