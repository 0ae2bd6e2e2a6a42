//! What is measured of a model's answers: how long they take, how they end, and how many tokens they use.

use super::Naming;
use super::metrics::metrics;
use engine::json::{self, Object, Raw};
use engine::provider::Wire;
use opentelemetry::KeyValue;
use std::time::Duration;

/// How an attempt at a provider ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With an answer that says that it succeeded.
    Ok,
    /// With another one, or with none.
    Error,
    /// Not within the time of the entry.
    Timeout,
}

impl Outcome {
    const ALL: [Outcome; 3] = [Outcome::Ok, Outcome::Error, Outcome::Timeout];

    fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Error => "error",
            Outcome::Timeout => "timeout",
        }
    }
}

/// The words with which providers say why an answer ended. Others are not passed on.
const FINISH_REASONS: [&str; 11] = [
    "end_turn",
    "tool_use",
    "max_tokens",
    "stop_sequence",
    "pause_turn",
    "refusal",
    "stop",
    "tool_calls",
    "length",
    "content_filter",
    "function_call",
];

/// What an answer used, and why it ended, as far as the provider says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Input tokens, with those of the cache.
    pub(crate) input: Option<u64>,
    pub(crate) output: Option<u64>,
    pub(crate) cache_read: Option<u64>,
    pub(crate) cache_write: Option<u64>,
    /// One of a closed set of words.
    pub(crate) finish_reason: Option<&'static str>,
}

impl Usage {
    /// Reads the usage of an answer.
    pub(crate) fn of(wire: Wire, body: &Raw) -> Self {
        let Some(body) = Object::parse(body) else { return Self::default() };
        let said = match wire {
            Wire::Anthropic => body.str("stop_reason"),
            Wire::OpenAi => body.get("choices").and_then(json::array).and_then(|choices| {
                let choice = Object::parse(choices.first()?)?;
                choice.str("finish_reason")
            }),
        };
        let finish_reason = said.and_then(|said| FINISH_REASONS.into_iter().find(|known| *known == said));
        let Some(usage) = body.get("usage").and_then(Object::parse) else {
            return Self { finish_reason, ..Self::default() };
        };
        let tokens = |of: &Object<'_>, key: &str| of.get(key)?.get().parse::<u64>().ok();
        match wire {
            Wire::Anthropic => {
                let cache_read = tokens(&usage, "cache_read_input_tokens");
                let cache_write = tokens(&usage, "cache_creation_input_tokens");
                let cached = cache_read.unwrap_or(0).saturating_add(cache_write.unwrap_or(0));
                let input = tokens(&usage, "input_tokens").map(|input| input.saturating_add(cached));
                Self { input, output: tokens(&usage, "output_tokens"), cache_read, cache_write, finish_reason }
            }
            Wire::OpenAi => {
                let details = usage.get("prompt_tokens_details").and_then(Object::parse);
                Self {
                    input: tokens(&usage, "prompt_tokens"),
                    output: tokens(&usage, "completion_tokens"),
                    cache_read: details.and_then(|details| tokens(&details, "cached_tokens")),
                    cache_write: None,
                    finish_reason,
                }
            }
        }
    }
}

/// The labels of one configured model, made once.
#[derive(Debug, Clone)]
pub(crate) struct ModelLabels {
    naming: Naming,
    /// `provider`, `model`.
    own: [KeyValue; 2],
    /// The same with each `outcome`.
    ended: [[KeyValue; 3]; 3],
    /// The names of the GenAI conventions, then room for one more.
    genai: [KeyValue; 4],
}

impl ModelLabels {
    pub(crate) fn new(wire: Wire, model: &str, naming: Naming) -> Self {
        let [provider, model] = [KeyValue::new("provider", wire.as_str()), KeyValue::new("model", model.to_owned())];
        let ended =
            Outcome::ALL.map(|outcome| [provider.clone(), model.clone(), KeyValue::new("outcome", outcome.as_str())]);
        let genai = [
            KeyValue::new("gen_ai.operation.name", "chat"),
            KeyValue::new("gen_ai.provider.name", wire.as_str()),
            KeyValue::new("gen_ai.request.model", model.value.clone()),
            KeyValue::new("gen_ai.token.type", "input"),
        ];
        Self { naming, own: [provider, model], ended, genai }
    }

    /// A request was sent again.
    pub(crate) fn retried(&self) {
        metrics().provider_retries.add(1, &self.own);
    }

    /// An attempt has ended.
    pub(crate) fn ended(&self, outcome: Outcome, time: Duration, error: Option<&'static str>, usage: Usage) {
        let metrics = metrics();
        metrics.provider_requests.add(1, &self.ended[outcome as usize]);
        metrics.provider_latency.record(time, &self.own);
        let genai = &self.genai[..3];
        let mut with_error = self.genai.clone();
        let labels = match error {
            None => genai,
            Some(error) => {
                with_error[3] = KeyValue::new("error.type", error);
                &with_error
            }
        };
        if self.naming.new_names() {
            metrics.inference_duration.record(time, labels);
            for (counter, tokens) in [
                (&metrics.input_tokens, usage.input),
                (&metrics.output_tokens, usage.output),
                (&metrics.cache_read_tokens, usage.cache_read),
                (&metrics.cache_write_tokens, usage.cache_write),
            ] {
                if let Some(tokens) = tokens {
                    counter.add(tokens, genai);
                }
            }
        }
        if self.naming.old_names() {
            metrics.operation_duration.record(time, labels);
            for (kind, tokens) in [("input", usage.input), ("output", usage.output)] {
                if let Some(tokens) = tokens {
                    with_error[3] = KeyValue::new("gen_ai.token.type", kind);
                    metrics.token_usage.record(tokens, &with_error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(wire: Wire, body: &str) -> [Option<u64>; 4] {
        let usage = Usage::of(wire, &engine::json::parse(body).expect("JSON"));
        [usage.input, usage.output, usage.cache_read, usage.cache_write]
    }

    #[test]
    fn only_known_words_of_an_end() {
        let of = |wire, body: &str| Usage::of(wire, &engine::json::parse(body).expect("JSON")).finish_reason;
        assert_eq!(of(Wire::Anthropic, r#"{"stop_reason":"end_turn"}"#), Some("end_turn"));
        assert_eq!(of(Wire::Anthropic, r#"{"stop_reason":"a text","usage":{}}"#), None);
        assert_eq!(of(Wire::OpenAi, r#"{"choices":[{"finish_reason":"tool_calls"}]}"#), Some("tool_calls"));
        assert_eq!(of(Wire::OpenAi, r#"{"choices":[],"usage":{}}"#), None);
    }

    #[test]
    fn usage_of_both_formats() {
        let anthropic = r#"{"usage":{"input_tokens":5,"cache_read_input_tokens":10,"cache_creation_input_tokens":100,"output_tokens":7}}"#;
        assert_eq!(of(Wire::Anthropic, anthropic), [Some(115), Some(7), Some(10), Some(100)]);
        assert_eq!(of(Wire::Anthropic, r#"{"usage":{"input_tokens":5}}"#), [Some(5), None, None, None]);
        let openai =
            r#"{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        assert_eq!(of(Wire::OpenAi, openai), [Some(9), Some(2), Some(4), None]);
        for body in ["[]", "{}", r#"{"usage":null}"#, r#"{"usage":{"input_tokens":"5"}}"#] {
            assert_eq!(of(Wire::Anthropic, body), [None; 4], "{body}");
        }
    }
}
