//! The session's log from its beginning: read when a session is joined, and listed by `/events`.

use super::api::{Failure, Page, Session};
use super::backoff::Backoff;
use super::screen::Screen;
use super::transcript::{Line, LineKind, compact};

/// How many of the last events `/events` lists.
const MAX_LISTED: usize = 50;
/// Characters of a payload in that list.
const MAX_PAYLOAD: usize = 90;

/// Which part of the log is printed while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Display {
    Conversation,
    Nothing,
}

/// Reads the log and returns the id of its last event, after which the subscription starts.
///
/// The log shows the client the id of its own key: the newest `session.open` or `session.join` is its own, because it
/// has entered the session just now.
pub(super) async fn read(session: &Session, screen: &Screen, display: Display) -> anyhow::Result<Option<String>> {
    let mut events = Vec::new();
    let mut cursor = None;
    loop {
        let page = page(session, screen, cursor.as_deref()).await?;
        events.extend(page.items);
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    let entry = events.iter().rfind(|event| matches!(event.event_type.as_str(), "session.open" | "session.join"));
    if let Some(key) = entry.and_then(|entry| entry.client_key_id.as_deref()) {
        screen.with(|transcript| transcript.set_own_key(key));
    }
    for event in &events {
        match display {
            Display::Conversation => screen.event(event),
            Display::Nothing => screen.skip(event),
        }
    }
    Ok(events.pop().map(|last| last.id))
}

/// Lists the last events with their numbers.
pub(super) async fn list(session: &Session, screen: &Screen) -> anyhow::Result<()> {
    let mut lines = std::collections::VecDeque::new();
    let mut number = 0_usize;
    let mut cursor = None;
    loop {
        let page = page(session, screen, cursor.as_deref()).await?;
        for event in page.items {
            number += 1;
            // A provider request holds the whole conversation; its beginning is enough here.
            let payload: String = compact(event.raw_payload().get(..2000).unwrap_or_else(|| event.raw_payload()));
            let payload: String = payload.chars().take(MAX_PAYLOAD).collect();
            let time = event.created_at.get(11..23).unwrap_or(&event.created_at);
            lines.push_back(format!("{number:>5}  {time}  {:<28} {payload}", event.event_type));
            if lines.len() > MAX_LISTED {
                lines.pop_front();
            }
        }
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    if number > lines.len() {
        screen.note(&format!("{number} events; the last {}:", lines.len()));
    }
    for text in lines {
        screen.line(&Line { kind: LineKind::Tool, name: None, text });
    }
    Ok(())
}

async fn page(session: &Session, screen: &Screen, cursor: Option<&str>) -> Result<Page, Failure> {
    let mut backoff = Backoff::one_minute();
    loop {
        match session.events(cursor).await {
            Err(Failure::Lost(why)) => {
                screen.connection_lost(&why);
                if !backoff.wait().await {
                    return Err(Failure::Lost(why));
                }
            }
            page => {
                screen.connection_restored();
                return page;
            }
        }
    }
}
