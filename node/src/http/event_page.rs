//! The answer to `GET …/events` on both ports: one page of a session's log.
//!
//! The page is written to the client while it is read from the database, part by part, because a page of large events
//! may be far too big to hold in memory. When a read fails after the answer has begun, the connection is broken off.

use crate::http::pagination::Page;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use coordinator::Error;
use coordinator::log::Log;
use engine::event::EventNumber;
use engine::ids::SessionId;
use futures_util::stream;

/// A page that is being written.
struct Writing {
    log: Log,
    session: SessionId,
    /// The number of the last event that was written.
    after: EventNumber,
    /// How many events may still be written.
    left: u32,
    /// Nothing was written yet.
    first: bool,
    /// The text that closes the document was written.
    ended: bool,
}

/// The page as a response, `{"items":[…],"next_cursor":…}`. The cursor is the number of the page's last event.
///
/// # Errors
/// `NotFound` for a session that does not exist; or an error of the database.
pub(crate) async fn page(log: &Log, session: SessionId, page: Page<EventNumber>) -> Result<Response, Error> {
    let after = page.cursor.unwrap_or(EventNumber::START);
    let mut writing = Writing { log: log.clone(), session, after, left: page.limit, first: true, ended: false };
    let start = writing.next().await?;
    if writing.ended {
        return Ok((super::JSON, start).into_response());
    }
    let rest = stream::unfold(writing, |mut writing| async move {
        if writing.ended {
            return None;
        }
        // An error ends the body without its last chunk, so no client takes half a document for a whole one.
        let next = writing.next().await.inspect_err(|_| writing.ended = true);
        Some((next, writing))
    });
    let body = Body::from_stream(stream::StreamExt::chain(stream::iter([Ok(start)]), rest));
    Ok((super::JSON, body).into_response())
}

impl Writing {
    /// Reads the next part from the database and renders it.
    async fn next(&mut self) -> Result<Bytes, Error> {
        // One event more than wanted shows whether another page follows.
        let read = self.log.page(self.session, self.after, self.left + 1).await?;
        let mut text = String::from(if self.first { "{\"items\":[" } else { "" });
        let more = read.events.len() > self.left as usize;
        for event in read.events.iter().take(self.left as usize) {
            if !std::mem::take(&mut self.first) {
                text.push(',');
            }
            text.push_str(&event.view());
            self.after = event.number;
        }
        self.left -= (read.events.len() as u32).min(self.left);
        self.ended = more || !read.cut;
        if self.ended {
            let cursor = if more { format!("\"{}\"", self.after) } else { "null".into() };
            text.push_str(&format!("],\"next_cursor\":{cursor}}}"));
        }
        Ok(text.into())
    }
}
