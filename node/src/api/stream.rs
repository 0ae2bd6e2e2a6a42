//! Answers of `/rpc`: NDJSON, either whole or as a stream that a task of its own writes.
//!
//! The task writes as fast as the client reads; only a few frames wait in memory. It ends when the client is gone, when
//! the client's key is revoked, or when the node gives running turns up.

use crate::app::App;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use engine::ids::KeyId;
use futures_util::stream;
use std::collections::HashSet;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Frames that may wait for the client to read them.
const WAITING: usize = 4;

/// The media type of `/rpc` answers.
const NDJSON: [(axum::http::HeaderName, &str); 2] =
    [(CONTENT_TYPE, "application/x-ndjson"), (axum::http::header::CACHE_CONTROL, "no-store")];

/// The stream must end, because the client is gone or may not read on, or because the node ends.
#[derive(Debug)]
pub(super) struct Gone;

/// The end of a stream that its task writes to.
pub(super) struct Frames {
    sender: mpsc::Sender<Bytes>,
    /// A place in the channel that is kept free for the last frame, for a client that does not read.
    last: Option<OwnedPermit<Bytes>>,
    keepalive: Option<Duration>,
    key: KeyId,
    revoked: watch::Receiver<Arc<HashSet<KeyId>>>,
    halt: CancellationToken,
}

/// An answer whose frames are known already.
pub(super) fn whole(frames: String) -> Response {
    (NDJSON, frames).into_response()
}

/// An answer that `write` fills, in a task of its own.
pub(super) fn open<W>(app: &App, key: KeyId, write: impl FnOnce(Frames) -> W) -> Response
where
    W: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (sender, mut frames) = mpsc::channel(WAITING + 1);
    let last = sender.clone().try_reserve_owned().ok();
    let frames_out = Frames {
        sender,
        last,
        keepalive: app.config.stream_keepalive,
        key,
        revoked: app.revocations(),
        halt: app.halt.clone(),
    };
    let writing = write(frames_out);
    let open = app.open_streams.enter();
    app.tasks.spawn(async move {
        let _open = open;
        // If the client has left, there is nobody to answer. The call that it started goes on.
        let _ = writing.await;
    });
    let body = Body::from_stream(stream::poll_fn(move |cx| frames.poll_recv(cx).map(|f| f.map(Ok::<_, Infallible>))));
    (NDJSON, body).into_response()
}

impl Frames {
    /// Writes, waiting for the client to make room.
    pub(super) async fn send(&mut self, bytes: impl Into<Bytes>) -> Result<(), Gone> {
        let key = self.key;
        let permit = tokio::select! {
            permit = self.sender.reserve() => permit.map_err(|_| Gone)?,
            _ = self.revoked.wait_for(|keys| keys.contains(&key)) => return Err(Gone),
            () = self.halt.cancelled() => return Err(Gone),
        };
        permit.send(bytes.into());
        Ok(())
    }

    /// Whether a frame can be written without waiting.
    pub(super) fn has_room(&self) -> bool {
        self.sender.capacity() > 0
    }

    /// Waits until a frame can be written.
    pub(super) async fn room(&mut self) -> Result<(), Gone> {
        let key = self.key;
        tokio::select! {
            permit = self.sender.reserve() => permit.map(drop).map_err(|_| Gone),
            _ = self.revoked.wait_for(|keys| keys.contains(&key)) => Err(Gone),
            () = self.halt.cancelled() => Err(Gone),
        }
    }

    /// Writes the last frame without waiting, in the room that was kept for it.
    pub(super) fn end(mut self, bytes: impl Into<Bytes>) {
        if let Some(permit) = self.last.take() {
            permit.send(bytes.into());
        }
    }

    /// Waits for something while nothing is written. Empty lines keep the connection alive if the configuration says
    /// so.
    pub(super) async fn idle<T>(&mut self, something: impl Future<Output = T>) -> Result<T, Gone> {
        let mut something = pin!(something);
        let key = self.key;
        loop {
            let silence = async {
                match self.keepalive {
                    Some(time) => tokio::time::sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                value = &mut something => return Ok(value),
                () = self.sender.closed() => return Err(Gone),
                _ = self.revoked.wait_for(|keys| keys.contains(&key)) => return Err(Gone),
                () = self.halt.cancelled() => return Err(Gone),
                () = silence => {
                    // If there is no room, the client has unread frames and needs no empty line.
                    let _ = self.sender.try_send(Bytes::from_static(b"\n"));
                }
            }
        }
    }
}
