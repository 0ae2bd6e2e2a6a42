//! For sessions that are read on this node, the newest complete request. With it, completing the next request takes
//! only what is new in it, instead of the chain of all requests before.
//!
//! Events never change, so a request that is kept here never becomes wrong. The limit counts the bytes of the messages,
//! even if others hold the same messages.

use engine::event::EventNumber;
use engine::ids::SessionId;
use engine::request::Request;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The most bytes of all requests together.
const BYTES: usize = 64 << 20;
/// The most requests. All of them are searched for the one that was unused for the longest time.
const SESSIONS: usize = 1024;

/// A complete request and its number.
pub(super) type Read = (EventNumber, Arc<Request>);

#[derive(Default)]
struct Kept {
    sessions: HashMap<SessionId, Entry>,
    bytes: usize,
    clock: u64,
}

struct Entry {
    read: Read,
    bytes: usize,
    used: u64,
}

/// The requests that are kept.
#[derive(Default)]
pub(super) struct Requests(Mutex<Kept>);

impl Requests {
    /// The newest request of the session that was read on this node.
    pub(super) fn newest(&self, session: SessionId) -> Option<Read> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let clock = kept.clock;
        let entry = kept.sessions.get_mut(&session)?;
        entry.used = clock;
        Some(entry.read.clone())
    }

    /// Keeps a request that was read, unless a newer one of the session is kept.
    pub(super) fn keep(&self, session: SessionId, number: EventNumber, request: &Arc<Request>) {
        let bytes = request.messages.iter().map(|m| m.content.get().len() + 64).sum::<usize>() + 1024;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes > BYTES / 4 || kept.sessions.get(&session).is_some_and(|entry| entry.read.0 >= number) {
            return;
        }
        kept.clock += 1;
        let entry = Entry { read: (number, Arc::clone(request)), bytes, used: kept.clock };
        kept.bytes += bytes;
        if let Some(before) = kept.sessions.insert(session, entry) {
            kept.bytes -= before.bytes;
        }
        while kept.bytes > BYTES || kept.sessions.len() > SESSIONS {
            let Some((oldest, _)) = kept.sessions.iter().min_by_key(|(_, entry)| entry.used) else { break };
            let oldest = *oldest;
            if let Some(entry) = kept.sessions.remove(&oldest) {
                kept.bytes -= entry.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::message::{Message, Role};
    use engine::provider::Wire;
    use engine::request::Kind;

    fn request(size: usize) -> Arc<Request> {
        let message = Message { role: Role::User, content: engine::json::encode(&"x".repeat(size)) };
        Arc::new(Request {
            attempt: 1,
            kind: Kind::Primary,
            entry: "main".into(),
            wire: Wire::Anthropic,
            base_url: "http://x".into(),
            model: "m".into(),
            max_tokens: 10,
            messages: vec![message],
            tools: engine::json::encode(&()),
            normalized: None,
            compaction: false,
        })
    }

    fn session(number: u16) -> SessionId {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        SessionId(bytes)
    }

    #[test]
    fn the_newest_is_kept() {
        let requests = Requests::default();
        requests.keep(session(1), EventNumber(7), &request(10));
        requests.keep(session(1), EventNumber(3), &request(10));
        assert_eq!(requests.newest(session(1)).map(|(number, _)| number), Some(EventNumber(7)));
        assert!(requests.newest(session(2)).is_none());
        requests.keep(session(1), EventNumber(9), &request(BYTES / 4));
        assert_eq!(requests.newest(session(1)).map(|(number, _)| number), Some(EventNumber(7)), "too large to keep");
    }

    #[test]
    fn the_longest_unused_goes() {
        let requests = Requests::default();
        for number in 0..=SESSIONS as u16 {
            requests.keep(session(number), EventNumber(1), &request(10));
            assert!(requests.newest(session(0)).is_some(), "it is used all the time");
        }
        assert!(requests.newest(session(1)).is_none());
        let large = request(BYTES / 5);
        for number in 0..10 {
            requests.keep(session(number), EventNumber(2), &large);
        }
        let kept = requests.0.lock().expect("no panic");
        let sum: usize = kept.sessions.values().map(|entry| entry.bytes).sum();
        assert!(kept.bytes == sum && sum <= BYTES, "{sum}");
    }
}
