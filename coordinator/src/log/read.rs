//! Reads the log: pages of events, in which every `provider.request` is complete, and the state of a session's turn.

use super::{Id, Log, requests};
use crate::Error;
use crate::db::sql::{Row, Sql, sql};
use engine::event::payload::{CompactionCompleted, ProviderResponse};
use engine::event::{Event, EventNumber, NewEvent, Payload};
use engine::ids::{CallId, EventId, KeyId, SessionId};
use engine::json;
use engine::request::{Request, Unreadable};
use engine::time::UnixMillis;
use engine::turn::Turn;
use std::sync::Arc;

/// A read ends after the event with which its stored bytes exceed this.
const PAGE_BYTES: usize = 4 << 20;
/// The most events of one read while a session's turn is computed.
const FOLD_PAGE: u32 = 256;

/// The reader stops at the row that exceeds the size. Postgres sends all rows of its answer, so there the statement
/// itself limits the size.
const PAGE: Sql = Sql {
    sqlite: "SELECT id, number, call, client_key, kind, from_client, payload, created_at FROM events \
             WHERE session = $1 AND number > $2 ORDER BY number LIMIT $3",
    postgres: "SELECT id, number, call, client_key, kind, from_client, payload, created_at FROM \
               (SELECT *, sum(octet_length(payload)) OVER (ORDER BY number) - octet_length(payload) AS bytes_before \
               FROM events WHERE session = $1 AND number > $2 ORDER BY number LIMIT $3) AS page \
               WHERE bytes_before <= $4 ORDER BY number",
};
const CHAIN: Sql = sql!(
    "SELECT payload FROM events \
     WHERE session = $1 AND kind = 'provider.request' AND number >= $2 AND number < $3 ORDER BY number"
);
const NUMBER: Sql = sql!("SELECT number FROM events WHERE id = $1 AND session = $2");
const OPENED_BY: Sql = sql!("SELECT client_key FROM events WHERE session = $1 AND number = 1");
const COMPLETED: Sql = sql!(
    "SELECT payload FROM events WHERE session = $1 AND kind = 'session.compaction.completed' ORDER BY number DESC LIMIT 1"
);
const RESPONSE_BEFORE: Sql = sql!(
    "SELECT number, payload FROM events WHERE session = $1 AND number < $2 AND kind = 'provider.response' \
     ORDER BY number DESC LIMIT 1"
);

/// Events of a session, in order, from one read.
#[derive(Debug)]
pub struct Page {
    /// The events. There are fewer than asked for at the end of the log, or if they are large.
    pub events: Vec<Arc<Event>>,
    /// Whether the read ended because of the size of the events.
    pub cut: bool,
}

/// A complete request from which the next stored request can be completed.
enum Before {
    /// There is none.
    Nothing,
    /// It is the request just before the one that is read.
    Just(Arc<Request>),
    /// It is a request of the session with this number; there may be others after it.
    Some(requests::Read),
}

impl From<Unreadable> for Error {
    fn from(error: Unreadable) -> Self {
        Error::Unreadable(error.to_string())
    }
}

impl Log {
    /// Reads events after this number, at most `limit`.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn page(&self, session: SessionId, after: EventNumber, limit: u32) -> Result<Page, Error> {
        let before = self.requests.newest(session).map_or(Before::Nothing, Before::Some);
        let page = self.page_from(session, after, limit, before).await?;
        let newest = page.events.iter().rev().find_map(|event| match &event.event.payload {
            Payload::Request(request) => Some((event.number, request)),
            Payload::Json(_) => None,
        });
        if let Some((number, request)) = newest {
            self.requests.keep(session, number, request);
        }
        Ok(page)
    }

    async fn page_from(
        &self,
        session: SessionId,
        after: EventNumber,
        limit: u32,
        mut before: Before,
    ) -> Result<Page, Error> {
        let mut stored = Vec::new();
        let (mut bytes, mut cut) = (0, false);
        {
            let page = self.db.read(&PAGE).bind(session.0.as_slice()).bind(after.0).bind(i64::from(limit));
            let page = if self.db.postgres().is_some() { page.bind(PAGE_BYTES as i64) } else { page };
            let mut rows = page.rows().await?;
            while let Some(row) = rows.next().await? {
                let text: &str = row.get("payload")?;
                bytes += text.len();
                stored.push(read_event(session, &row)?);
                if bytes > PAGE_BYTES {
                    cut = true;
                    break;
                }
            }
        }
        let mut events = Vec::with_capacity(stored.len());
        for (mut event, request) in stored {
            if let Some(text) = request {
                let request = self.whole(session, event.number, &text, &before).await?;
                event.event.payload = Payload::Request(Arc::clone(&request));
                before = Before::Just(request);
            }
            events.push(Arc::new(event));
        }
        Ok(Page { events, cut })
    }

    /// Completes the request whose stored form is in event `number`.
    async fn whole(
        &self,
        session: SessionId,
        number: EventNumber,
        stored: &str,
        before: &Before,
    ) -> Result<Arc<Request>, Error> {
        let known = match before {
            Before::Just(request) => return Ok(Arc::new(Request::load(stored, Some(request))?)),
            Before::Some((known, request)) if *known == number => return Ok(Arc::clone(request)),
            Before::Some(known) => Some(known),
            Before::Nothing => None,
        };
        let Some(root) = Request::root(stored)? else { return Ok(Arc::new(Request::load(stored, None)?)) };
        let (first, mut last) = match known {
            Some((known, request)) if (root..number).contains(known) => (known.next(), Some(Arc::clone(request))),
            _ => (root, None),
        };
        let chain = self.db.read(&CHAIN).bind(session.0.as_slice()).bind(first.0).bind(number.0);
        let mut rows = chain.rows().await?;
        while let Some(row) = rows.next().await? {
            last = Some(Arc::new(Request::load(row.get("payload")?, last.as_deref())?));
        }
        Ok(Arc::new(Request::load(stored, last.as_deref())?))
    }

    /// The number of an event, if the event is in this session's log.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn number_of(&self, session: SessionId, event: EventId) -> Result<Option<EventNumber>, Error> {
        let row = self.db.read(&NUMBER).bind(event.0.as_slice()).bind(session.0.as_slice()).optional().await?;
        row.map(|row| Ok(EventNumber(row.get("number")?))).transpose()
    }

    /// The client key that opened the session; none if there is no such session.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn opened_by(&self, session: SessionId) -> Result<Option<KeyId>, Error> {
        let row = self.db.read(&OPENED_BY).bind(session.0.as_slice()).optional().await?;
        row.map(|row| KeyId::read(&row, "client_key")).transpose()
    }

    /// Computes the session's turn from its log: from the newest completed compaction on, or from the beginning if
    /// there is none, or if the event that it refers to is missing (docs/api.md 4.1).
    ///
    /// # Errors
    /// When the database fails.
    pub async fn fold(&self, session: SessionId) -> Result<Turn, Error> {
        let start = self.history_start(session).await?;
        let usage = match start {
            Some(start) => self.usage_before(session, start).await?,
            None => None,
        };
        let mut turn = Turn::new(usage);
        let mut after = start.map_or(EventNumber::START, EventNumber::previous);
        loop {
            let before = turn.chain().map_or(Before::Nothing, |chain| Before::Just(Arc::clone(&chain.last)));
            let page = self.page_from(session, after, FOLD_PAGE, before).await?;
            let Some(last) = page.events.last() else { return Ok(turn) };
            after = last.number;
            for event in &page.events {
                turn.apply(event);
            }
        }
    }

    async fn history_start(&self, session: SessionId) -> Result<Option<EventNumber>, Error> {
        let row = self.db.read(&COMPLETED).bind(session.0.as_slice()).optional().await?;
        let Some(row) = row else { return Ok(None) };
        match CompactionCompleted::history_start(row.get("payload")?) {
            Some(preamble) => self.number_of(session, preamble).await,
            None => Ok(None),
        }
    }

    /// The token sum of the newest answer before this event that does not belong to a compaction. It is usually close
    /// before it.
    async fn usage_before(&self, session: SessionId, number: EventNumber) -> Result<Option<u64>, Error> {
        let mut before = number;
        loop {
            let query = self.db.read(&RESPONSE_BEFORE).bind(session.0.as_slice()).bind(before.0);
            let Some(row) = query.optional().await? else { return Ok(None) };
            before = EventNumber(row.get("number")?);
            let usage = ProviderResponse::history_usage(row.get("payload")?);
            let unreadable = |error| Error::Unreadable(format!("a provider.response: {error}"));
            if let Some(usage) = usage.map_err(unreadable)? {
                return Ok(usage);
            }
        }
    }
}

/// Reads an event. For a `provider.request`, its stored form is returned beside it.
fn read_event(session: SessionId, row: &Row) -> Result<(Event, Option<String>), Error> {
    let kind = row.get::<&str>("kind")?;
    let kind = kind.parse().map_err(|error: engine::event::UnknownEventType| Error::Unreadable(error.to_string()))?;
    let payload: String = row.get("payload")?;
    let (payload, request) = if kind == engine::event::EventType::ProviderRequest {
        (json::encode(&()), Some(payload))
    } else {
        (json::parse(&payload).map_err(|error| Error::Unreadable(error.to_string()))?, None)
    };
    let event = Event {
        number: EventNumber(row.get("number")?),
        session,
        call: CallId::maybe(row, "call")?,
        created_at: UnixMillis(row.get("created_at")?),
        event: NewEvent {
            id: EventId::read(row, "id")?,
            key: KeyId::read(row, "client_key")?,
            kind,
            payload: Payload::Json(payload),
            from_client: row.get("from_client")?,
        },
    };
    Ok((event, request))
}
