//! Following one call: a stream of its events as they happen, then its terminal frame.
//!
//! The log is read as fast as the client reads the stream, and the stream always ends with the terminal frame
//! (docs/api.md 2.5). It makes no difference whether the call came with this request, was joined by its idempotency
//! key, was taken over by another node, or ended long ago: what the client gets is read from the log.

use super::caller::failed;
use super::stream::{Frames, Gone};
use crate::app::App;
use coordinator::Error;
use coordinator::cluster::{Progress, Waiter};
use coordinator::feed::{LogStatus, RenderedEvent};
use coordinator::log::CallRecord;
use coordinator::reader::Reader;
use engine::event::{EventNumber, EventType};
use engine::ids::{CallId, SessionId};
use engine::json::Raw;
use engine::outcome::Outcome;
use engine::rpc::{self, RpcError};
use std::sync::Arc;
use std::time::Duration;

/// How often the database is asked whether a running call has ended, in case its notification was lost.
const RECONCILE: Duration = Duration::from_secs(2);
/// The pause before a failed read is repeated, and how often it is repeated.
const RETRY: (Duration, u32) = (Duration::from_millis(500), 20);

/// What is followed.
pub(super) enum Target {
    /// A call that waits or runs in this process.
    Live(Waiter),
    /// A call that has ended.
    Ended(CallRecord),
}

/// A stream that follows a call.
pub(super) struct Follow {
    pub app: Arc<App>,
    pub session: SessionId,
    /// The id of the request. A notification has none, and gets no terminal frame.
    pub id: Option<Raw>,
    pub frames: Frames,
    /// Stands at or before the call's first event.
    pub reader: Reader,
}

impl Follow {
    /// Writes the whole answer.
    pub(super) async fn run(mut self, target: Target) -> Result<(), Gone> {
        let (call, last, outcome) = match self.reach_end(target).await? {
            Ok(end) => end,
            Err(error) => return self.error(&error).await,
        };
        match outcome {
            Outcome::Error(error) => self.error(&error).await,
            outcome => self.result(call, last, &outcome).await,
        }
    }

    async fn error(&mut self, error: &RpcError) -> Result<(), Gone> {
        match &self.id {
            Some(id) => self.frames.send(rpc::error(id, error)).await,
            None => Ok(()),
        }
    }

    /// Forwards the call's events until it is over. Returns the number of its last event and its outcome.
    async fn reach_end(&mut self, target: Target) -> Result<Result<(CallId, EventNumber, Outcome), RpcError>, Gone> {
        let mut waiter = match target {
            Target::Live(waiter) => waiter,
            Target::Ended(record) => return self.replay(record).await,
        };
        loop {
            let head = self.reader.head();
            let (last, ended) = match waiter.progress() {
                Progress::Queued => {
                    // In a cluster another node may serve the call while this node, which is draining, still forwards
                    // it to the client.
                    let stop = if self.app.cluster.is_shared() { self.app.halt.clone() } else { self.app.stop.clone() };
                    let news = self.frames.idle(async {
                        tokio::select! { known = waiter.changed() => known, () = stop.cancelled() => false }
                    });
                    if !news.await? {
                        return Ok(Err(RpcError::internal()));
                    }
                    continue;
                }
                Progress::Running => (head.number, None),
                Progress::Ended(last, outcome) => (last, Some(outcome)),
                Progress::Refused(error) => return Ok(Err(error)),
                Progress::Follow(winner) => match self.app.log.call(winner).await {
                    Ok(Some(record)) => {
                        self.reader.seek(record.first.previous());
                        if record.ended.is_some() {
                            return self.replay(record).await;
                        }
                        waiter = self.app.cluster.follow(self.session, winner);
                        continue;
                    }
                    Ok(None) => return Ok(Err(RpcError::internal())),
                    Err(error) => return Ok(Err(failed(&error))),
                },
            };
            if let Err(error) = self.forward(waiter.call(), last).await? {
                return Ok(Err(error));
            }
            if let Some(outcome) = ended {
                return Ok(Ok((waiter.call(), last, outcome)));
            }
            if head.status == LogStatus::Ended {
                return self.cut_off(waiter.call()).await;
            }
            let news = async {
                tokio::select! {
                    () = self.reader.moved(head) => true,
                    _ = waiter.changed() => true,
                    () = tokio::time::sleep(RECONCILE) => false,
                }
            };
            if !self.frames.idle(news).await?
                && let Ok(Some(record)) = self.app.log.call(waiter.call()).await
                && record.ended.is_some()
            {
                return self.replay(record).await;
            }
        }
    }

    /// Finds out what became of the call when the session has ended. When a running call is ended by closing its
    /// session, its owner tells only the waiters on its own node (ARCHITECTURE.md, I9), so others read the database.
    async fn cut_off(&mut self, call: CallId) -> Result<Result<(CallId, EventNumber, Outcome), RpcError>, Gone> {
        match self.app.log.call(call).await {
            Ok(Some(record)) if record.ended.is_some() => return self.replay(record).await,
            Ok(_) => {}
            Err(error) => return Ok(Err(failed(&error))),
        }
        match self.app.log.row(self.session).await {
            Ok(row) => Ok(Err(RpcError::not_open(row.state.public_name()))),
            Err(error) => Ok(Err(failed(&error))),
        }
    }

    /// Forwards what is left of a call that has ended.
    async fn replay(&mut self, record: CallRecord) -> Result<Result<(CallId, EventNumber, Outcome), RpcError>, Gone> {
        let Some((last, outcome)) = record.ended else { return Ok(Err(RpcError::internal())) };
        let forwarded = self.forward(record.id, last).await?;
        Ok(forwarded.map(|()| (record.id, last, outcome)))
    }

    /// Sends the call's events up to this number, except those that clients made (docs/api.md 3.9).
    async fn forward(&mut self, call: CallId, last: EventNumber) -> Result<Result<(), RpcError>, Gone> {
        while self.reader.seen() < last {
            let events = match read(&mut self.reader, last).await {
                Ok(events) => events,
                Err(error) => return Ok(Err(failed(&error))),
            };
            for shown in events.iter().filter(|shown| shown.event.call == Some(call) && !shown.event.event.from_client)
            {
                self.frames.send(notification(shown)).await?;
            }
        }
        Ok(Ok(()))
    }

    /// Writes the terminal frame event by event, so that it is never in memory as a whole.
    async fn result(&mut self, call: CallId, last: EventNumber, outcome: &Outcome) -> Result<(), Gone> {
        let Some(id) = self.id.clone() else { return Ok(()) };
        let (first, wanted) = match (self.app.log.call(call).await, outcome) {
            (Ok(Some(record)), Outcome::Message(event) | Outcome::Compacted(event)) => (record.first, Some(*event)),
            (Ok(Some(record)), Outcome::Unavailable | Outcome::Error(_)) => (record.first, None),
            (Ok(None), _) => return self.error(&RpcError::internal()).await,
            (Err(error), _) => return self.error(&failed(&error)).await,
        };
        self.reader.seek(first.previous());
        if let Outcome::Compacted(_) = outcome {
            return self.compacted(&id, call, last).await;
        }
        let mut text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"events":["#).into_bytes();
        let (mut message, mut any) = (Outcome::unavailable_message(), false);
        while self.reader.seen() < last {
            // A frame that has begun cannot become an error, so the stream is broken off, and the client asks again.
            let events = read(&mut self.reader, last).await.map_err(|error| broke_off(&error))?;
            for shown in events.iter().filter(|shown| shown.event.call == Some(call)) {
                if std::mem::replace(&mut any, true) {
                    text.push(b',');
                }
                text.extend_from_slice(&shown.view());
                if Some(shown.event.event.id) == wanted {
                    message = shown.event.event.payload.text().into_owned();
                }
                if text.len() > CHUNK {
                    self.frames.send(std::mem::take(&mut text)).await?;
                }
            }
        }
        text.extend_from_slice(format!("],\"message\":{message}}}}}\n").as_bytes());
        self.frames.send(text).await
    }

    async fn compacted(&mut self, id: &Raw, call: CallId, last: EventNumber) -> Result<(), Gone> {
        let mut completed = None;
        while self.reader.seen() < last {
            let events = read(&mut self.reader, last).await.map_err(|error| broke_off(&error))?;
            let mine = events.into_iter().filter(|shown| shown.event.call == Some(call));
            completed = mine.filter(|s| s.event.event.kind == EventType::CompactionCompleted).last().or(completed);
        }
        match completed {
            Some(shown) => self.frames.send(rpc::result(id, &shown.event.view())).await,
            None => self.error(&RpcError::internal()).await,
        }
    }
}

/// Bytes of a terminal frame that are sent at once.
const CHUNK: usize = 64 << 10;

/// The notification of an event.
pub(super) fn notification(shown: &RenderedEvent) -> Vec<u8> {
    const HEAD: &[u8] = br#"{"jsonrpc":"2.0","method":"session.event","params":"#;
    let view = shown.view();
    let mut frame = Vec::with_capacity(HEAD.len() + view.len() + 2);
    frame.extend_from_slice(HEAD);
    frame.extend_from_slice(&view);
    frame.extend_from_slice(b"}\n");
    frame
}

fn broke_off(error: &Error) -> Gone {
    tracing::error!(error = ?error, "an answer broke off: the log could not be read");
    Gone
}

/// Reads the next events, and tries again for some time when the database is unavailable.
pub(super) async fn read(reader: &mut Reader, last: EventNumber) -> Result<Vec<Arc<RenderedEvent>>, Error> {
    let mut tries = 0;
    loop {
        match reader.read(last).await {
            Err(Error::Unavailable(error)) if tries < RETRY.1 => {
                tracing::warn!(error = %error, "the log cannot be read just now");
                tries += 1;
                tokio::time::sleep(RETRY.0).await;
            }
            result => return result,
        }
    }
}
