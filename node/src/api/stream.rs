//! An NDJSON answer that grows: one task writes frames, hyper carries them at the client's pace.
//!
//! The task ends with the client, with the revocation of its key, or with the node; it holds a few frames and no more.

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

/// Frames that wait for the client to read.
const WAITING: usize = 4;

/// The media type of `/rpc` answers.
const NDJSON: [(axum::http::HeaderName, &str); 2] =
    [(CONTENT_TYPE, "application/x-ndjson"), (axum::http::header::CACHE_CONTROL, "no-store")];

/// Nobody reads any more, or nobody may.
#[derive(Debug)]
pub(super) struct Gone;

/// The writing end.
pub(super) struct Frames {
    sender: mpsc::Sender<Bytes>,
    /// Kept free for a last word to a client that does not read.
    last: Option<OwnedPermit<Bytes>>,
    keepalive: Option<Duration>,
    key: KeyId,
    revoked: watch::Receiver<Arc<HashSet<KeyId>>>,
    halt: CancellationToken,
}

/// An answer of frames that are there already.
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
    app.tasks.spawn(async move {
        // A client that left needs no answer; what it started goes on without it.
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

    /// Writes the last frame, whether or not the client reads.
    pub(super) fn end(mut self, bytes: impl Into<Bytes>) {
        if let Some(permit) = self.last.take() {
            permit.send(bytes.into());
        }
    }

    /// Waits for something while the stream is silent; an empty line keeps it alive where the deployment wants that.
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
                    // A stream whose client does not read needs no sign of life.
                    let _ = self.sender.try_send(Bytes::from_static(b"\n"));
                }
            }
        }
    }
}
