//! A gate between nodes and a Docker daemon: it passes everything, and holds one call of the daemon at a given step, so that a
//! test can break something while a node is in the middle of it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::poll::within;

/// Where a call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The daemon does not see it before it is released.
    Before,
    /// The daemon gets it and answers; the caller does not see the answer before it is released.
    After,
}

#[derive(Debug)]
struct Trap {
    method: String,
    part: String,
    point: Point,
    arrived: watch::Sender<bool>,
    released: watch::Receiver<bool>,
}

/// The gate; a daemon's address for nodes.
#[derive(Debug)]
pub struct Gate {
    url: String,
    traps: Arc<Mutex<Vec<Trap>>>,
    accepting: JoinHandle<()>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A call that is, or will be, held. Dropping it lets go.
#[derive(Debug)]
pub struct HeldCall {
    arrived: watch::Receiver<bool>,
    release: watch::Sender<bool>,
}

impl HeldCall {
    /// Waits for the call.
    pub async fn arrived(&mut self) {
        within("a held call of the daemon", self.arrived.wait_for(|yes| *yes)).await.expect("the gate runs");
    }

    /// Lets the call go on, if its caller still lives.
    pub fn release(&self) {
        let _ = self.release.send(true);
    }
}

impl Gate {
    /// One in front of the daemon at this address, `unix://PATH`.
    pub async fn before(host: &str) -> Self {
        let socket = PathBuf::from(host.strip_prefix("unix://").expect("a socket's address"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("tcp://{}", listener.local_addr().expect("an address"));
        let traps = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&traps);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass(client, socket.clone(), Arc::clone(&shared)));
            }
        });
        Self { url, traps, accepting }
    }

    /// What `DOCKER_HOST` is set to.
    pub fn host(&self) -> String {
        self.url.clone()
    }

    /// Holds the next call with this method, whose path has this part.
    pub fn hold(&self, method: &str, part: &str, point: Point) -> HeldCall {
        let (arrived, arrived_rx) = watch::channel(false);
        let (release, released) = watch::channel(false);
        let trap = Trap { method: method.to_owned(), part: part.to_owned(), point, arrived, released };
        self.traps.lock().unwrap().push(trap);
        HeldCall { arrived: arrived_rx, release }
    }
}

/// The trap that a call falls into. A client writes the head of a request at once, so the head is where a read begins.
fn caught(traps: &Mutex<Vec<Trap>>, chunk: &[u8]) -> Option<Trap> {
    let line = chunk.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok().filter(|line| line.ends_with(" HTTP/1.1"))?;
    let (method, path) = line.split_once(' ')?;
    let mut traps = traps.lock().unwrap();
    let at = traps.iter().position(|trap| trap.method == method && path.contains(&trap.part))?;
    Some(traps.remove(at))
}

async fn pass(client: TcpStream, socket: PathBuf, traps: Arc<Mutex<Vec<Trap>>>) {
    let Ok(daemon) = UnixStream::connect(socket).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_daemon, mut to_daemon) = daemon.into_split();
    let (hold_answers, mut answers_held) = watch::channel(None::<watch::Receiver<bool>>);
    let up = async move {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from_client.read(&mut chunk).await {
            let mut bytes = chunk[..count].to_vec();
            if let Some(mut trap) = caught(&traps, &bytes) {
                if trap.point == Point::After {
                    let _ = hold_answers.send(Some(trap.released.clone()));
                }
                let _ = trap.arrived.send(true);
                while trap.point == Point::Before && !*trap.released.borrow() {
                    tokio::select! {
                        // Let go, or the test is over.
                        _ = trap.released.wait_for(|yes| *yes) => break,
                        more = from_client.read(&mut chunk) => match more {
                            Ok(count @ 1..) => bytes.extend_from_slice(&chunk[..count]),
                            // The caller does not wait any more: the daemon never gets the call.
                            Ok(0) | Err(_) => return,
                        },
                    }
                }
            }
            if to_daemon.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to_daemon.shutdown().await;
        // A client that has closed this direction may still read.
        std::future::pending::<()>().await;
    };
    let down = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from_daemon.read(&mut buffer).await {
            let held = answers_held.borrow_and_update().clone();
            if let Some(mut released) = held {
                let _ = released.wait_for(|yes| *yes).await;
            }
            if to_client.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
        let _ = to_client.shutdown().await;
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
