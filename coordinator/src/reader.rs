//! A reader of one session's log: recent events from the feed, everything else from the database.
//!
//! It stands above `log` and `feed`, which do not know each other's readers. Every event is read once, in order,
//! whatever the feed missed. The client API opens one for each stream, by way of
//! [`crate::cluster::Cluster::open_reader`].

use crate::Error;
use crate::feed::{Feed, Head, RenderedEvent};
use crate::log::{Log, Row};
use engine::event::EventNumber;
use engine::ids::SessionId;
use std::sync::Arc;
use tokio::sync::watch;

/// Events of one read from the database.
const PAGE: u32 = 64;

/// A place in a session's log that moves forward.
pub struct Reader {
    log: Log,
    session: SessionId,
    feed: Arc<Feed>,
    head: watch::Receiver<Head>,
    seen: EventNumber,
}

impl Reader {
    /// Watches a session, from its head on. `announced` ends once other nodes know that this one watches. The head is
    /// read after that, so nothing is lost in between; where there are no other nodes there is nothing to await.
    ///
    /// # Errors
    /// `NotFound`; or an error of the database.
    pub async fn open(
        log: &Log,
        session: SessionId,
        announced: impl Future<Output = ()>,
    ) -> Result<(Reader, Row), Error> {
        let feed = log.feeds().watch(session);
        let head = feed.subscribe();
        announced.await;
        let row = log.row(session).await?;
        feed.advance(row.head, row.state.log_status());
        Ok((Reader { log: log.clone(), session, feed, head, seen: row.head }, row))
    }

    /// Moves to just behind that number.
    pub fn seek(&mut self, seen: EventNumber) {
        self.seen = seen;
    }

    /// Number of the event read last.
    pub fn seen(&self) -> EventNumber {
        self.seen
    }

    /// How far the log goes, as far as is known here.
    pub fn head(&self) -> Head {
        *self.head.borrow()
    }

    /// Waits until the head is another than `known`.
    pub async fn moved(&mut self, known: Head) {
        // The sender lives as long as this reader's feed.
        let _ = self.head.wait_for(|head| *head != known).await;
    }

    /// The events that follow, up to and including number `last`; empty if there are none yet.
    ///
    /// # Errors
    /// The database's; nothing was skipped.
    pub async fn read(&mut self, last: EventNumber) -> Result<Vec<Arc<RenderedEvent>>, Error> {
        if self.seen >= last {
            return Ok(Vec::new());
        }
        let mut events = match self.feed.after(self.seen) {
            Some(events) => events,
            None if self.head().number.since(self.seen) > u64::from(PAGE) => self.read_page().await?,
            None => self.feed.share_page(self.seen, || self.read_page()).await?,
        };
        events.retain(|rendered| rendered.event.number <= last);
        if let Some(newest) = events.last() {
            self.seen = newest.event.number;
        }
        Ok(events)
    }

    async fn read_page(&self) -> Result<Vec<Arc<RenderedEvent>>, Error> {
        let page = self.log.page(self.session, self.seen, PAGE).await?;
        Ok(page.events.into_iter().map(|event| Arc::new(RenderedEvent::new(event))).collect())
    }

    /// Bytes of what was told after that number, also of what stayed in the database; without bound where the feed has
    /// forgotten some of it.
    pub fn size_after(&self, number: EventNumber) -> usize {
        if number >= self.head().number {
            return 0;
        }
        self.feed.size_after(number)
    }
}
