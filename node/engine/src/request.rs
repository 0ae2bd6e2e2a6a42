//! A provider request as the log holds it: whole for readers, linear on disk.
//!
//! Every request repeats the conversation, so the log stores what is new in each and refers to the request before it for
//! the rest (companion 4.5); readers always get the full payload (4.4). A reference never leaves its session.

use crate::json::{self, Raw};
use crate::message::{Message, Role};
use crate::provider::Wire;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Which entry of the walk an attempt belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The profile's primary provider.
    Primary,
    /// One of its fallbacks.
    Fallback,
}

/// How history was changed so that the provider accepts it (companion 4.3).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Normalized {
    /// A user message was put in front.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prepended_user: bool,
    /// Runs of one role that became one message, as indexes into the history before the change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<Vec<usize>>,
}

/// One attempt's request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Counts the attempts of one walk from 1.
    pub attempt: u32,
    /// Primary or fallback.
    pub kind: Kind,
    /// The registry entry; not shown to readers.
    pub entry: String,
    /// The wire format.
    pub wire: Wire,
    /// The effective URL.
    pub base_url: String,
    /// The model asked for.
    pub model: String,
    /// The output budget.
    pub max_tokens: u32,
    /// Exactly what is sent.
    pub messages: Vec<Message>,
    /// The tools offered: an array of `{"name","description"?,"input_schema"}`.
    pub tools: Raw,
    /// How history was changed, if it was.
    pub normalized: Option<Normalized>,
    /// Whether a compaction asks.
    pub compaction: bool,
}
