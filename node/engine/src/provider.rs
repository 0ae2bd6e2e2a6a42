//! Both provider wire formats: what is sent for a request, what an answer means.
//!
//! The model's side of the product speaks Anthropic's blocks; OpenAI kinds are translated to and fro (docs/api.md 5.1). Blocks
//! pass through verbatim. An answer is checked before any of it is acted on, because a tool use without a usable id or
//! input could never be paired with its result (F14). What is wrong with an answer is said without quoting it: the text
//! ends up in events and logs.

pub mod anthropic;
pub mod openai;

use crate::json::{Object, Raw};
use crate::request::Request;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::HashSet;

/// A wire format; `provider` in configuration and events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// `POST {base_url}/v1/messages`.
    Anthropic,
    /// `POST {base_url}/v1/chat/completions`.
    OpenAi,
}

impl Wire {
    /// The name in configuration and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Wire::Anthropic => "anthropic",
            Wire::OpenAi => "openai",
        }
    }

    /// What follows the base URL.
    pub fn path(self) -> &'static str {
        match self {
            Wire::Anthropic => "/v1/messages",
            Wire::OpenAi => "/v1/chat/completions",
        }
    }

    /// The vendor's own host, for entries without a `base_url`.
    pub fn default_base_url(self) -> &'static str {
        match self {
            Wire::Anthropic => "https://api.anthropic.com",
            Wire::OpenAi => "https://api.openai.com",
        }
    }

    /// The body to post.
    pub fn body(self, request: &Request) -> String {
        match self {
            Wire::Anthropic => anthropic::body(request),
            Wire::OpenAi => openai::body(request),
        }
    }

    /// What a successful response's body says, or `invalid answer: …` when it cannot be used.
    ///
    /// The same body always gives the same answer: history is rebuilt from logged bodies with it.
    pub fn answer(self, body: &RawValue) -> Result<Answer, String> {
        match self {
            Wire::Anthropic => anthropic::answer(body),
            Wire::OpenAi => openai::answer(body),
        }
    }
}

/// A provider entry of the configuration, as far as decisions need it: no secret is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the registry.
    pub name: String,
    /// Its wire format.
    pub wire: Wire,
    /// The effective URL, without a trailing slash.
    pub base_url: String,
    /// The model asked for.
    pub model: String,
    /// The output budget of one answer.
    pub max_tokens: u32,
}

/// Tokens of one answer (docs/api.md 5.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Input, cache reads and cache creation included.
    pub input_tokens: u64,
    /// Output.
    pub output_tokens: u64,
}

impl Usage {
    /// Input and output together.
    pub fn sum(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// A provider's successful answer, in Anthropic's blocks.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The content blocks, verbatim (translated for OpenAI kinds). A half-received tool use is already dropped (F14).
    pub blocks: Vec<Raw>,
    /// Why the answer was cut, if its token budget ran out: `stop_reason max_tokens` or `finish_reason length`.
    pub truncated: Option<&'static str>,
    /// Null when the provider did not report it whole.
    pub usage: Option<Usage>,
}

/// Why an answer cannot be used; never quotes it.
fn invalid(what: impl std::fmt::Display) -> String {
    format!("invalid answer: {what}")
}

/// Whether the value is a JSON string, decodable or not.
fn is_string(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

/// A count of tokens: a non-negative integer or nothing.
fn tokens(usage: &Object<'_>, key: &str) -> Option<u64> {
    usage.get(key)?.get().parse().ok()
}

/// The tool-use ids of one answer: each must be there, and once, for results to be paired with them.
#[derive(Default)]
struct ToolUses(HashSet<String>);

impl ToolUses {
    /// Checks `id` and `name` of the tool use at `place`.
    fn check(&mut self, place: &str, id: Option<&str>, name: Option<&str>) -> Result<(), String> {
        let Some(id) = id.filter(|id| !id.is_empty()) else {
            return Err(invalid(format_args!("{place} has no string `id`")));
        };
        if name.is_none_or(str::is_empty) {
            return Err(invalid(format_args!("{place} has no string `name`")));
        }
        if !self.0.insert(id.to_owned()) {
            return Err(invalid(format_args!("{place} repeats the `id` of another one")));
        }
        Ok(())
    }
}
