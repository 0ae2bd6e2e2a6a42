//! The log from its beginning: read on entering a session, and listed on request.

use super::api::{Failure, Page, Session};
use super::patience::Patience;
use super::screen::Screen;
use super::transcript::{Line, Voice, compact};

/// Events that `/events` lists: the last ones.
const LISTED: usize = 50;
const PAYLOAD: usize = 90;

/// What a reading of the log puts on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    Conversation,
    Nothing,
}

/// Reads the log; returns the id of its last event, from which a subscription goes on.
///
/// The newest entry into the session is this client's own, a moment old: it tells the client its key's id.
pub async fn read(session: &Session, screen: &Screen, shown: Shown) -> anyhow::Result<Option<String>> {
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
        screen.with(|transcript| transcript.know_me(key));
    }
    for event in &events {
        match shown {
            Shown::Conversation => screen.event(event),
            Shown::Nothing => screen.skip(event),
        }
    }
    Ok(events.pop().map(|last| last.id))
}

/// Lists the last events with their numbers.
pub async fn list(session: &Session, screen: &Screen) -> anyhow::Result<()> {
    let mut lines = std::collections::VecDeque::new();
    let mut number = 0_usize;
    let mut cursor = None;
    loop {
        let page = page(session, screen, cursor.as_deref()).await?;
        for event in page.items {
            number += 1;
            // A provider request holds the conversation; its beginning says enough.
            let payload: String = compact(event.raw_payload().get(..2000).unwrap_or_else(|| event.raw_payload()));
            let payload: String = payload.chars().take(PAYLOAD).collect();
            let time = event.created_at.get(11..23).unwrap_or(&event.created_at);
            lines.push_back(format!("{number:>5}  {time}  {:<28} {payload}", event.event_type));
            if lines.len() > LISTED {
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
        screen.line(&Line { voice: Voice::Tool, name: None, text });
    }
    Ok(())
}

async fn page(session: &Session, screen: &Screen, cursor: Option<&str>) -> Result<Page, Failure> {
    let mut patience = Patience::a_minute();
    loop {
        match session.events(cursor).await {
            Err(Failure::Lost(why)) => {
                screen.lost(&why);
                if !patience.wait().await {
                    return Err(Failure::Lost(why));
                }
            }
            page => {
                screen.back();
                return page;
            }
        }
    }
}
