//! The wire formats of providers: what is sent for a request, and what an answer means.
//!
//! Inside the server messages have Anthropic's blocks. For OpenAI providers they are translated in both directions
//! (docs/api.md 5.1). Blocks are passed on unchanged. An answer is checked as a whole before it is used, because a tool
//! use without a usable id or input could never get its result (F14). Error messages do not quote the answer, because
//! they are recorded in events and logs.

pub mod anthropic;
mod failure;
pub mod openai;

use crate::json::{Object, Raw};
use crate::request::Request;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::HashSet;

pub use failure::{Failure, transient_status};

/// A wire format. Configuration and events call it `provider`.
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

    /// The path that follows the base URL.
    pub fn path(self) -> &'static str {
        match self {
            Wire::Anthropic => "/v1/messages",
            Wire::OpenAi => "/v1/chat/completions",
        }
    }

    /// The URL of the vendor, for entries without a `base_url`.
    pub fn default_base_url(self) -> &'static str {
        match self {
            Wire::Anthropic => "https://api.anthropic.com",
            Wire::OpenAi => "https://api.openai.com",
        }
    }

    /// The body of the HTTP request. `budget` is the member of an OpenAI request that says how many tokens the answer may
    /// have, where the configuration names one (docs/api.md 5.8).
    pub fn body(self, request: &Request, budget: Option<&str>) -> String {
        match self {
            Wire::Anthropic => anthropic::body(request),
            Wire::OpenAi => openai::body(request, budget),
        }
    }

    /// Whether the body of a successful response is an error in truth (docs/api.md 5.4).
    pub fn failure(self, body: &RawValue) -> Option<Failure> {
        failure::failure(self, body)
    }

    /// Reads the body of a successful response. The same body always gives the same answer, because the history is
    /// rebuilt from the recorded bodies.
    ///
    /// # Errors
    /// `invalid answer: …` with the reason, if the answer cannot be used.
    pub fn answer(self, body: &RawValue) -> Result<Answer, String> {
        match self {
            Wire::Anthropic => anthropic::answer(body),
            Wire::OpenAi => openai::answer(body),
        }
    }
}

/// A provider entry of the configuration without its secrets: what decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the registry.
    pub name: String,
    /// Its wire format.
    pub wire: Wire,
    /// The URL that is used, without a trailing slash.
    pub base_url: String,
    /// The name of the model.
    pub model: String,
    /// The most tokens that one answer may have.
    pub max_tokens: u32,
}

/// The tokens that one request used (docs/api.md 5.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens, with those that were read from or written to a cache.
    pub input_tokens: u64,
    /// Output tokens.
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
    /// The content blocks, unchanged or, for OpenAI, translated. A tool use that was cut off is already dropped (F14).
    pub blocks: Vec<Raw>,
    /// The ids of tool uses whose arguments are not a JSON object. Their blocks have the input `{}` (docs/api.md 5.9).
    pub broken: HashSet<String>,
    /// If the token limit cut the answer off, how the provider says so: `stop_reason max_tokens` or `finish_reason
    /// length`.
    pub truncated: Option<&'static str>,
    /// None if the provider did not report both numbers.
    pub usage: Option<Usage>,
}

/// The text that says why an answer cannot be used. `what` must not quote the answer.
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

/// The tool use ids of one answer. No two may be the same, so that results can be matched.
#[derive(Default)]
struct ToolUses(HashSet<String>);

impl ToolUses {
    /// Checks `id` and `name` of the tool use at `place`, and returns the id. A tool use without an id gets one, which
    /// depends on its place alone, because the answer is read again from the log (docs/api.md 5.9).
    fn check(&mut self, kind: &str, place: usize, id: Option<&str>, name: Option<&str>) -> Result<String, String> {
        if name.is_none_or(str::is_empty) {
            return Err(invalid(format_args!("{kind} {place} has no string `name`")));
        }
        let id = id.filter(|id| !id.is_empty()).map_or_else(|| format!("call_{place}"), str::to_owned);
        if !self.0.insert(id.clone()) {
            return Err(invalid(format_args!("{kind} {place} repeats the `id` of another one")));
        }
        Ok(id)
    }
}
