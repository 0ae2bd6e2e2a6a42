//! The history of a session: the messages that a provider is sent (docs/api.md 4).
//!
//! Events of the log add messages to it. Each message remembers its event, so that a completed compaction can name the
//! event at which the history starts from then on. Before the messages are sent they are normalised: the first one must
//! be a user's, and the roles must alternate. The turn holds the history.

use crate::ids::EventId;
use crate::json::{self, Raw};
use crate::message::{Message, Role};
use crate::request::Normalized;
use repair::ToolUseIds;

mod repair;

/// The text of the user message in front of a summary (docs/api.md 7.2), and of a history that does not start with a
/// user.
pub const PREAMBLE: &str = "The earlier part of this conversation was compacted. A summary follows.";

/// The messages of a session, in order.
#[derive(Debug, Clone, Default)]
pub struct History {
    messages: Vec<Message>,
    events: Vec<EventId>,
    ids: ToolUseIds,
}

impl History {
    /// Adds the message of an event, repaired so that providers take it. A message of which nothing can be sent is left
    /// out.
    pub fn push(&mut self, event: EventId, role: Role, content: &Raw) {
        if let Some(content) = self.ids.repair(event, role, content) {
            self.messages.push(Message { role, content });
            self.events.push(event);
        }
    }

    /// Drops all messages before the one of that event. If there is none, the reference is broken and nothing is
    /// dropped.
    pub fn start_at(&mut self, event: EventId) {
        if let Some(at) = self.events.iter().position(|e| *e == event) {
            self.messages.drain(..at);
            self.events.drain(..at);
            // A node that computes the history from this event on does not know the ids before it.
            self.ids = ToolUseIds::default();
        }
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The size of all content together, in bytes.
    pub fn bytes(&self) -> usize {
        self.messages.iter().map(|message| message.content.get().len()).sum()
    }

    /// The messages to send: this history, then `last` if it is given, normalised. Also returns what normalising
    /// changed.
    pub fn upstream(&self, last: Option<Message>) -> (Vec<Message>, Option<Normalized>) {
        normalize(self.messages.iter().cloned().chain(last))
    }
}

/// Makes the messages begin with `user` and alternate between the roles, as Anthropic demands (docs/api.md 4.3).
fn normalize(messages: impl Iterator<Item = Message>) -> (Vec<Message>, Option<Normalized>) {
    let mut changes = Normalized::default();
    let mut out: Vec<Message> = Vec::new();
    for (index, message) in messages.enumerate() {
        match out.last_mut() {
            None if message.role == Role::Assistant => {
                changes.prepended_user = true;
                out.push(Message { role: Role::User, content: json::encode(PREAMBLE) });
                out.push(message);
            }
            Some(last) if last.role == message.role => {
                last.content = concat(&last.content, &message.content);
                match changes.merged.last_mut() {
                    Some(run) if run.last() == Some(&(index - 1)) => run.push(index),
                    _ => changes.merged.push(vec![index - 1, index]),
                }
            }
            _ => out.push(message),
        }
    }
    let changed = changes != Normalized::default();
    (out, changed.then_some(changes))
}

/// A content that has the blocks of both.
fn concat(a: &Raw, b: &Raw) -> Raw {
    let (a, b) = (blocks(a), blocks(b));
    json::join(a.iter().chain(&b).map(|block| &**block))
}

/// The blocks of a message's content. A string becomes one text block.
pub fn blocks(content: &Raw) -> Vec<Raw> {
    match json::array(content) {
        Some(blocks) => blocks.into_iter().map(|block| Raw::from(block.to_owned())).collect(),
        None => vec![json::built(format!(r#"{{"type":"text","text":{content}}}"#))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Object;
    use proptest::prelude::*;

    fn id(n: u8) -> EventId {
        EventId([n; 16])
    }

    #[test]
    fn a_broken_reference_loses_nothing() {
        let mut history = History::default();
        history.push(id(1), Role::User, &json::encode("a"));
        history.start_at(id(9));
        assert_eq!(history.len(), 1);
        history.push(id(2), Role::Assistant, &json::encode("b"));
        history.start_at(id(2));
        let (messages, normalized) = history.upstream(None);
        assert_eq!((messages.len(), messages[0].role), (2, Role::User));
        assert_eq!(normalized.map(|n| n.prepended_user), Some(true));
    }

    proptest! {
        /// Any history becomes one that starts with a user and alternates, with every block once and in order.
        #[test]
        fn normalised_histories_alternate(turns in proptest::collection::vec((any::<bool>(), 0..3usize), 0..12)) {
            let mut history = History::default();
            let mut texts = Vec::new();
            for (n, (user, shape)) in turns.iter().enumerate() {
                let content = match shape {
                    0 => json::encode(&format!("t{n}")),
                    1 => json::built(format!(r#"[{{"type":"text","text":"t{n}"}}]"#)),
                    _ => json::built("[]".into()),
                };
                if *shape < 2 {
                    texts.push(format!("t{n}"));
                }
                history.push(id(n as u8), if *user { Role::User } else { Role::Assistant }, &content);
            }
            let (messages, normalized) = history.upstream(None);
            for (i, message) in messages.iter().enumerate() {
                prop_assert_eq!(message.role == Role::User, i % 2 == 0);
            }
            let seen: Vec<String> = messages.iter().flat_map(|m| blocks(&m.content))
                .map(|b| Object::parse(&b).and_then(|o| o.str("text").map(|t| t.into_owned())).unwrap_or_default()).collect();
            let skip = usize::from(normalized.as_ref().is_some_and(|n| n.prepended_user));
            prop_assert_eq!(&seen[skip..], &texts[..]);
            let merged: usize = normalized.iter().flat_map(|n| &n.merged).map(|run| run.len() - 1).sum();
            prop_assert_eq!(messages.len(), texts.len() - merged + skip);
        }
    }
}
