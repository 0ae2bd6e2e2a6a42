//! Both provider wire formats: what is sent for a request, what an answer means.
//!
//! The model's side of the product speaks Anthropic's blocks; OpenAI kinds are translated to and fro. Blocks pass through
//! verbatim.

use crate::json::Raw;
use serde::{Deserialize, Serialize};

/// A wire format; `provider` in configuration and events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// `POST {base_url}/v1/messages`.
    Anthropic,
    /// `POST {base_url}/v1/chat/completions`.
    OpenAi,
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

/// Tokens of one answer (companion 5.6).
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
