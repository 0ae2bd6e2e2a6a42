//! Provider requests, and the form in which the log stores them.
//!
//! Every request repeats the conversation. So the log stores only what is new in each one and refers to the request
//! before it for the rest, which keeps the log's size linear (docs/api.md 4.5). Readers always get the whole payload
//! (4.4). A reference never leads to another session. `log/read` in the coordinator reads the stored forms back.

use crate::event::EventNumber;
use crate::json::{self, Raw};
use crate::message::{Message, Role};
use crate::provider::Wire;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::sync::Arc;

/// Whether an attempt is made with the primary provider or with a fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The profile's primary provider.
    Primary,
    /// One of its fallbacks.
    Fallback,
}

/// How history was changed so that the provider accepts it (docs/api.md 4.3).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Normalized {
    /// A user message was put in front.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prepended_user: bool,
    /// Groups of neighbouring messages of one role that became one message, as indexes into the history before the
    /// change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<Vec<usize>>,
}

/// The request of one attempt.
#[derive(Debug, Clone)]
pub struct Request {
    /// The number of the attempt, counted from 0 over the primary provider and its fallbacks.
    pub attempt: u32,
    /// Whether the provider is the primary one or a fallback.
    pub kind: Kind,
    /// The name of the provider in the configuration; not shown to readers.
    pub entry: String,
    /// The wire format.
    pub wire: Wire,
    /// The URL that is used, without a trailing slash.
    pub base_url: String,
    /// The name of the model.
    pub model: String,
    /// The most tokens that the answer may have.
    pub max_tokens: u32,
    /// The messages, exactly as they are sent.
    pub messages: Vec<Message>,
    /// The tools that the model is offered: an array of `{"name","description"?,"input_schema"}`.
    pub tools: Raw,
    /// How the history was changed to be accepted, if it was.
    pub normalized: Option<Normalized>,
    /// Whether the request is for the summary of a compaction.
    pub compaction: bool,
}

/// The stored form, version 1. The first `keep` messages and, if `tools` is missing, the tools are those of the request
/// before.
#[derive(Serialize, Deserialize)]
struct Stored {
    v: u8,
    attempt: u32,
    kind: Kind,
    entry: String,
    wire: Wire,
    base_url: String,
    model: String,
    max_tokens: u32,
    /// The number of the event where the chain of references starts. Missing in that event itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    root: Option<EventNumber>,
    keep: usize,
    new: Vec<StoredMessage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tools: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    normalized: Option<Normalized>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    compaction: bool,
}

#[derive(Serialize, Deserialize)]
struct StoredMessage {
    role: Role,
    content: Raw,
}

/// A stored request that cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is not the JSON of a stored request.
    #[error("a stored provider.request is not readable: {0}")]
    Json(#[from] serde_json::Error),
    /// It was written by a newer version.
    #[error("a stored provider.request has version {0}; this program reads version 1")]
    Version(u8),
    /// The request that it refers to is missing.
    #[error("a stored provider.request refers to a request that is missing")]
    Reference,
}

/// A chain of stored requests, each of which refers to the one before. The next request may refer to the last of them.
#[derive(Debug, Clone)]
pub struct DeltaChain {
    /// The number of the event that starts the chain.
    pub root: EventNumber,
    /// The newest request of the chain.
    pub last: Arc<Request>,
}

impl DeltaChain {
    /// The chain that ends with the request in event `number`, which was stored relative to `before`.
    pub fn after(before: Option<&DeltaChain>, number: EventNumber, request: &Arc<Request>) -> DeltaChain {
        let root = before.filter(|chain| request.kept(&chain.last) > 0).map_or(number, |chain| chain.root);
        DeltaChain { root, last: Arc::clone(request) }
    }
}

impl Request {
    fn kept(&self, before: &Request) -> usize {
        self.messages.iter().zip(&before.messages).take_while(|(a, b)| a == b).count()
    }

    /// The stored form. It refers to the newest request of the chain for everything that is the same.
    pub fn store(&self, chain: Option<&DeltaChain>) -> String {
        let base = chain.map(|chain| (chain, self.kept(&chain.last))).filter(|(_, keep)| *keep > 0);
        let keep = base.map_or(0, |(_, keep)| keep);
        let new = self.messages[keep..].iter().map(|m| StoredMessage { role: m.role, content: Arc::clone(&m.content) });
        let same_tools = base.is_some_and(|(chain, _)| chain.last.tools.get() == self.tools.get());
        let stored = Stored {
            v: 1,
            attempt: self.attempt,
            kind: self.kind,
            entry: self.entry.clone(),
            wire: self.wire,
            base_url: self.base_url.clone(),
            model: self.model.clone(),
            max_tokens: self.max_tokens,
            root: base.map(|(chain, _)| chain.root),
            keep,
            new: new.collect(),
            tools: (!same_tools).then(|| Arc::clone(&self.tools)),
            normalized: self.normalized.clone(),
            compaction: self.compaction,
        };
        json::encode(&stored).get().to_owned()
    }

    /// The event where the chain of a stored request starts, if that is not the request itself. Reading it needs all
    /// stored requests from there on.
    ///
    /// # Errors
    /// The text is not a stored request that this version can read.
    pub fn root(stored: &str) -> Result<Option<EventNumber>, Unreadable> {
        #[derive(Deserialize)]
        struct Root {
            #[serde(default)]
            root: Option<EventNumber>,
        }
        Ok(serde_json::from_str::<Root>(stored)?.root)
    }

    /// Reads a stored form back, with the help of the request before it in the chain.
    ///
    /// # Errors
    /// The text is not a stored request that this version can read, or `before` is needed and does not fit.
    pub fn load(stored: &str, before: Option<&Request>) -> Result<Request, Unreadable> {
        let stored: Stored = serde_json::from_str(stored)?;
        if stored.v != 1 {
            return Err(Unreadable::Version(stored.v));
        }
        let mut messages = match before {
            _ if stored.keep == 0 => Vec::new(),
            Some(before) => before.messages.get(..stored.keep).ok_or(Unreadable::Reference)?.to_vec(),
            None => return Err(Unreadable::Reference),
        };
        messages.extend(stored.new.into_iter().map(|m| Message { role: m.role, content: m.content }));
        let tools = stored.tools.or_else(|| before.map(|b| Arc::clone(&b.tools))).ok_or(Unreadable::Reference)?;
        Ok(Request {
            attempt: stored.attempt,
            kind: stored.kind,
            entry: stored.entry,
            wire: stored.wire,
            base_url: stored.base_url,
            model: stored.model,
            max_tokens: stored.max_tokens,
            messages,
            tools,
            normalized: stored.normalized,
            compaction: stored.compaction,
        })
    }

    /// The payload of `provider.request` as readers see it, with all messages.
    pub fn payload(&self) -> String {
        let size: usize = self.messages.iter().map(|m| m.content.get().len() + 40).sum();
        let mut text = String::with_capacity(size + self.tools.get().len() + 256);
        let _ = write!(
            text,
            r#"{{"attempt":{},"kind":{},"provider":{},"base_url":{},"model":{},"max_tokens":{},"messages":"#,
            self.attempt,
            json::encode(&self.kind),
            json::encode(&self.wire),
            json::encode(&self.base_url),
            json::encode(&self.model),
            self.max_tokens,
        );
        self.write_messages(&mut text);
        text.push_str(r#","tools":"#);
        text.push_str(self.tools.get());
        if let Some(normalized) = &self.normalized {
            let _ = write!(text, r#","normalized":{}"#, json::encode(normalized));
        }
        if self.compaction {
            text.push_str(r#","purpose":"compaction""#);
        }
        text.push('}');
        text
    }

    /// Appends the messages as a JSON array.
    pub fn write_messages(&self, text: &mut String) {
        text.push('[');
        for (i, message) in self.messages.iter().enumerate() {
            if i > 0 {
                text.push(',');
            }
            message.write(text);
        }
        text.push(']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(words: &[String], tools: &str) -> Arc<Request> {
        let message = |(i, word): (usize, &String)| Message {
            role: if i % 2 == 0 { Role::User } else { Role::Assistant },
            content: json::encode(word),
        };
        Arc::new(Request {
            attempt: 1,
            kind: Kind::Primary,
            entry: "main".into(),
            wire: Wire::Anthropic,
            base_url: "http://x".into(),
            model: "m".into(),
            max_tokens: 10,
            messages: words.iter().enumerate().map(message).collect(),
            tools: json::built(tools.to_owned()),
            normalized: None,
            compaction: false,
        })
    }

    proptest! {
        /// Whatever follows whatever: reading the stored chain back gives every payload, byte for byte.
        #[test]
        fn a_chain_reads_back(histories in proptest::collection::vec(
            (proptest::collection::vec("[a-c\"é]{0,2}", 0..6), prop_oneof![Just("[]"), Just(r#"[{"name":"t"}]"#)]), 1..8)) {
            let (mut chain, mut stored) = (None, Vec::new());
            for (i, (words, tools)) in histories.iter().enumerate() {
                let request = request(words, tools);
                stored.push((request.store(chain.as_ref()), request.payload()));
                chain = Some(DeltaChain::after(chain.as_ref(), EventNumber::START.plus(i + 1), &request));
            }
            let last = stored.len() - 1;
            for target in 0..=last {
                let number = EventNumber::START.plus(target + 1);
                let root = Request::root(&stored[target].0).expect("readable").unwrap_or(number);
                let mut before: Option<Request> = None;
                for (text, _) in &stored[root.previous().0 as usize..=target] {
                    before = Some(Request::load(text, before.as_ref()).expect("readable"));
                }
                prop_assert_eq!(&before.expect("at least one").payload(), &stored[target].1);
            }
        }
    }
}
