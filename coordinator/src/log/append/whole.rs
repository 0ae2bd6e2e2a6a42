//! An append as one statement.

use super::Append;
use super::stepwise::Inserted;
use crate::Error;
use crate::postgres::{Entry, Postgres, Turn};
use engine::event::{Event, NewEvent, Payload};
use engine::ids::{KeyId, SessionId};
use engine::request::Chain;
use std::sync::Arc;

/// A turn's append.
pub(super) fn turn(append: Append) -> Entry {
    let (phase, state, outcome, pause) = append.next.columns();
    let key = append.events.last().map_or(KeyId([0; 16]), |event| event.key);
    let turn = Turn {
        epoch: append.epoch,
        call: append.call,
        open: append.open,
        phase,
        state,
        pause: pause.map(|time| (key, time)),
        outcome: outcome.map(|outcome| engine::json::encode(outcome).get().to_owned()),
    };
    let requests = requests(&append.events, append.chain.as_ref());
    Entry { session: append.session, turn: Some(turn), events: append.events, requests }
}

/// An append that is no part of a turn.
pub(super) fn free(session: SessionId, events: Vec<NewEvent>) -> Entry {
    let requests = requests(&events, None);
    Entry { session, turn: None, events, requests }
}

fn requests(events: &[NewEvent], chain: Option<&Chain>) -> Vec<Option<String>> {
    let stored = |event: &NewEvent| match &event.payload {
        Payload::Json(_) => None,
        Payload::Request(request) => Some(request.store(chain)),
    };
    events.iter().map(stored).collect()
}

/// Appends; `then` gets the committed events, whether or not the caller still waits.
pub(super) async fn append(
    postgres: &Postgres,
    entry: Entry,
    then: impl FnOnce(&Vec<Arc<Event>>) + Send + 'static,
) -> Result<Vec<Arc<Event>>, Error> {
    let (session, turn) = (entry.session, entry.turn.as_ref().map(|turn| (turn.epoch, turn.call)));
    let (epoch, call) = turn.unzip();
    let events = entry.events.clone();
    postgres
        .append(entry, move |written| {
            let to = Inserted { session, epoch, call, first: written.first, now: written.now };
            let committed = (to.first..).zip(events).map(|(number, event)| to.committed(number, event)).collect();
            then(&committed);
            committed
        })
        .await
}
