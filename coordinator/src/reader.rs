//! A reader of one session's log: it takes recent events from the feed and all others from the database.
//!
//! Every event is read once and in order, also those that the feed has missed. This module uses `log` and `feed`, which
//! do not know readers. The client API opens a reader for each stream with [`crate::cluster::Cluster::open_reader`].

use crate::Error;
use crate::feed::{Feed, Head, RenderedEvent};
use crate::log::{Log, Row};
use crate::metrics::metrics;
use engine::event::EventNumber;
use engine::ids::SessionId;
use std::sync::Arc;
use tokio::sync::watch;

/// The most events of one read from the database.
const PAGE: u32 = 64;

/// A position in a session's log, which moves forward.
pub struct Reader {
    log: Log,
    session: SessionId,
    feed: Arc<Feed>,
    head: watch::Receiver<Head>,
    seen: EventNumber,
    /// Whether the reader has been at the end of the log. Then the feed should have what follows.
    live: bool,
}

impl Reader {
    /// Starts to read a session at the end of its log. `announced` must end once other nodes know that this node
    /// watches the session, or at once if there are no other nodes. The end of the log is read after that, so no event
    /// is lost in between.
    ///
    /// # Errors
    /// `NotFound`, or an error of the database.
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
        Ok((Reader { log: log.clone(), session, feed, head, seen: row.head, live: true }, row))
    }

    /// Moves to the position after the event with this number.
    pub fn seek(&mut self, seen: EventNumber) {
        self.seen = seen;
        self.live = false;
    }

    /// The number of the event that was read last.
    pub fn seen(&self) -> EventNumber {
        self.seen
    }

    /// How far the log goes, as far as this node knows.
    pub fn head(&self) -> Head {
        *self.head.borrow()
    }

    /// Waits until the head differs from `known`.
    pub async fn moved(&mut self, known: Head) {
        // Waiting cannot fail, because this reader keeps the sender in its feed alive.
        let _ = self.head.wait_for(|head| *head != known).await;
    }

    /// Reads the events that follow, up to and including number `last`. Empty if there are none yet.
    ///
    /// # Errors
    /// When the database fails. The position stays, so no event is skipped.
    pub async fn read(&mut self, last: EventNumber) -> Result<Vec<Arc<RenderedEvent>>, Error> {
        if self.seen >= last {
            return Ok(Vec::new());
        }
        let mut events = match self.feed.after(self.seen) {
            Some(events) => {
                self.live = true;
                events
            }
            None if self.head().number.since(self.seen) > u64::from(PAGE) => self.read_page().await?,
            None => {
                let events = self.feed.share_page(self.seen, || self.read_page()).await?;
                if self.live {
                    metrics().feed_gaps.add(events.len() as u64, &[]);
                }
                events
            }
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

    /// How many bytes of events were announced after this number, including those that are only in the database.
    /// `usize::MAX` if the feed has forgotten some of them.
    pub fn size_after(&self, number: EventNumber) -> usize {
        if number >= self.head().number {
            return 0;
        }
        self.feed.size_after(number)
    }
}
