//! The accept loop of a port: plain or TLS connections, HTTP/1.1, bounded in number and in the time that a peer may be
//! silent.
//!
//! What must hold: no peer keeps a connection without asking for something, and however many connections there are, the
//! node can still open files and sockets of its own. When all places are taken, a few more connections are accepted and
//! answered with 503, except for the probes, so that a full node is not taken for a dead one. `lifecycle` serves every
//! port with it.

mod tls;

pub(crate) use tls::Certificate;

use crate::http::problem::Problem;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a new connection may take until its first request's headers are there, the TLS handshake included.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// How long a connection may be without a request after that. Longer than the idle time of usual load balancers (60 s),
/// so that they close first and never send a request into a connection that is just being closed.
const IDLE: Duration = Duration::from_secs(75);
/// When TCP probes a silent peer: after the first time, and then each time the second one has passed. So a dead peer is
/// noticed although nothing is sent to it.
const TCP_KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// Connections beyond the limit that are accepted at once, to be told so.
const SPARE: usize = 64;
/// How long to wait when a connection cannot be accepted because the process or the machine has no room.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Between two log lines about the same trouble.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// A listening socket, and how its connections are treated.
pub(crate) struct Port {
    /// The socket.
    pub(crate) listener: TcpListener,
    /// With it, connections speak TLS.
    pub(crate) certificate: Option<Arc<Certificate>>,
    /// Connections at once.
    pub(crate) limit: usize,
}

impl Port {
    /// Serves until `stop`, and after that the requests that are running then: the caller bounds how long.
    pub(crate) async fn serve(self, router: Router, stop: CancellationToken) {
        let Port { listener, certificate, limit } = self;
        let acceptor = certificate.map(|certificate| certificate.acceptor());
        let overloaded = router.clone().layer(from_fn(refuse));
        let (places, spare) = (Arc::new(Semaphore::new(limit)), Arc::new(Semaphore::new(SPARE)));
        let connections = TaskTracker::new();
        let (mut full, mut broken) = (Seldom::default(), Seldom::default());
        let accepting = async {
            loop {
                // Closed by nobody, so it always succeeds.
                let Ok(waiting) = Arc::clone(&spare).acquire_owned().await else { return };
                let socket = match listener.accept().await {
                    Ok((socket, _)) => socket,
                    Err(error) if is_of_the_peer(&error) => continue,
                    Err(error) => {
                        broken.log(|| tracing::error!(%error, "connections cannot be accepted"));
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                let (place, router) = match Arc::clone(&places).try_acquire_owned() {
                    Ok(place) => (place, router.clone()),
                    Err(_) => {
                        full.log(|| tracing::warn!(limit, "all connections of a port are taken; more are refused"));
                        (waiting, overloaded.clone())
                    }
                };
                let (acceptor, stop) = (acceptor.clone(), stop.clone());
                connections.spawn(async move {
                    tune(&socket);
                    let deadline = Instant::now() + FIRST_REQUEST;
                    match acceptor {
                        None => converse(socket, router, deadline, stop).await,
                        Some(acceptor) => match tokio::time::timeout_at(deadline, acceptor.accept(socket)).await {
                            Ok(Ok(stream)) => converse(stream, router, deadline, stop).await,
                            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                            Err(_) => tracing::debug!("a TLS handshake took too long"),
                        },
                    }
                    drop(place);
                });
            }
        };
        stop.run_until_cancelled(accepting).await;
        drop(listener);
        connections.close();
        connections.wait().await;
    }
}

/// Serves the requests of one connection.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    deadline: Instant,
    stop: CancellationToken,
) {
    let asked = Arc::new(AtomicBool::new(false));
    let (noted, handler) = (Arc::clone(&asked), TowerToHyperService::new(router));
    let service = service_fn(move |request| {
        noted.store(true, Ordering::Relaxed);
        handler.call(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut silence = pin!(tokio::time::sleep_until(deadline));
    let (mut waited, mut stopping) = (false, false);
    loop {
        tokio::select! {
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::trace!(%error, "a connection ended early");
                }
                return;
            }
            () = silence.as_mut(), if !waited => {
                waited = true;
                if !asked.load(Ordering::Relaxed) {
                    return;
                }
            }
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Answers the probes as ever and refuses everything else, because all places are taken.
async fn refuse(request: Request, next: Next) -> Response {
    let mut response = match request.uri().path() {
        "/healthz" | "/readyz" => next.run(request).await,
        _ => Problem::too_many_connections().into_response(),
    };
    response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    response
}

/// Whether a failed accept says that this one peer went away, so that the next can be accepted at once.
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Sends small answers at once instead of waiting for the peer's delayed acknowledgement, and lets dead peers be
/// noticed.
fn tune(socket: &TcpStream) {
    let keepalive = socket2::TcpKeepalive::new().with_time(TCP_KEEPALIVE.0).with_interval(TCP_KEEPALIVE.1);
    let tuned = socket.set_nodelay(true).and_then(|()| socket2::SockRef::from(socket).set_tcp_keepalive(&keepalive));
    if let Err(error) = tuned {
        tracing::debug!(%error, "a socket could not be tuned");
    }
}

/// A trouble that is logged once in a while, however often it happens.
#[derive(Default)]
struct Seldom(Option<Instant>);

impl Seldom {
    fn log(&mut self, line: impl FnOnce()) {
        if self.0.is_none_or(|last| last.elapsed() >= LOG_PAUSE) {
            self.0 = Some(Instant::now());
            line();
        }
    }
}
