//! `session.subscribe` and `session.unsubscribe`. A subscription first replays the log, then streams new events; none
//! is lost or repeated between the two, because both are read from the log by one reader.

use super::caller::{Answer, Caller, failed};
use super::follow::{notification, read};
use super::stream::{self, Frames, Gone};
use crate::app::App;
use crate::telemetry::metrics::metrics;
use axum::response::Response;
use coordinator::feed::{Head, LogStatus};
use coordinator::reader::Reader;
use engine::event::EventNumber;
use engine::ids::{EventId, KeyId, SessionId};
use engine::json::Raw;
use engine::params::{self, Subscribe};
use engine::rpc::{self, RpcError};
use std::sync::Arc;

/// A live subscription has fallen behind when more events or more bytes than this were committed while its client
/// accepted no frame (docs/api.md 2.5).
const LAG: (u64, usize) = (256, 8 << 20);

struct Subscription {
    frames: Frames,
    reader: Reader,
    /// The last event of the replay. The replay shows every event, and a subscription cannot fall behind during it.
    replay: EventNumber,
    client_events: bool,
}

/// Opens the stream, or answers why not.
pub(super) async fn answer(app: &Arc<App>, session: SessionId, key: KeyId, id: Option<&Raw>, params: &Raw) -> Response {
    match open(app, session, params).await {
        Ok((reader, replay, client_events)) => {
            let app_ = Arc::clone(app);
            stream::open(app, key, move |frames| async move {
                let stop = app_.stop.clone();
                let subscription = Subscription { frames, reader, replay, client_events };
                stop.run_until_cancelled(subscription.run()).await.unwrap_or(Ok(()))
            })
        }
        Err(error) => stream::whole(id.map_or_else(String::new, |id| rpc::error(id, &error))),
    }
}

/// `session.unsubscribe`: ends every subscription of the session, on all nodes.
pub(super) fn unsubscribe(caller: &Caller, params: &Raw) -> Answer {
    params::none(params)?;
    caller.app.log.feeds().cut_here(caller.session);
    caller.app.cluster.cut(caller.session);
    Ok(serde_json::json!({"unsubscribed": true}).to_string())
}

async fn open(app: &App, session: SessionId, params: &Raw) -> Result<(Reader, EventNumber, bool), RpcError> {
    let Subscribe { since_event_id, include_client_events } = Subscribe::parse(params)?;
    let (mut reader, row) = app.cluster.open_reader(&app.log, session).await.map_err(|error| failed(&error))?;
    if let Some(since) = since_event_id {
        let number = match since.parse::<EventId>() {
            Ok(event) => app.log.number_of(session, event).await.map_err(|error| failed(&error))?,
            Err(_) => None,
        };
        reader.seek(number.unwrap_or(EventNumber::START));
    }
    Ok((reader, row.head, include_client_events.unwrap_or(app.config.forward_client_events)))
}

impl Subscription {
    async fn run(mut self) -> Result<(), Gone> {
        let began = self.reader.head();
        loop {
            let head = self.reader.head();
            if head.cuts != began.cuts {
                return Ok(());
            }
            if self.reader.seen() < head.number {
                let Ok(events) = read(&mut self.reader, head.number).await else { return Err(Gone) };
                for shown in events {
                    let number = shown.event.number;
                    if number > self.replay && shown.event.event.from_client && !self.client_events {
                        continue;
                    }
                    if number <= self.replay {
                        self.frames.send(notification(&shown)).await?;
                    } else if self.lagged(began).await? {
                        metrics().streams_lagged.add(1, &[]);
                        let lagged = RpcError::lagged();
                        self.frames.end(rpc::ended(&lagged));
                        return Ok(());
                    } else {
                        self.frames.send(notification(&shown)).await?;
                    }
                }
            } else if head.status == LogStatus::Ended {
                return Ok(());
            } else {
                let reader = &mut self.reader;
                self.frames.idle(reader.moved(head)).await?;
            }
        }
    }

    /// Waits until there is room for a frame. Returns whether the subscription has fallen behind meanwhile. The wait
    /// also ends when the client unsubscribes.
    async fn lagged(&mut self, began: Head) -> Result<bool, Gone> {
        let start = self.reader.head();
        while !self.frames.has_room() {
            let head = self.reader.head();
            if head.cuts != began.cuts {
                return Err(Gone);
            }
            if head.number.since(start.number) > LAG.0 || self.reader.size_after(start.number) > LAG.1 {
                return Ok(true);
            }
            tokio::select! {
                room = self.frames.room() => room?,
                () = self.reader.moved(head) => {}
            }
        }
        Ok(false)
    }
}
