//! Answers with status 200 whose body is an error (docs/api.md 5.4). Gateways send these when a provider behind them has
//! failed.

use super::Wire;
use crate::json::{self, Object};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Parts of the words by which providers name errors that a repetition cannot mend.
const PERMANENT: [&str; 12] = [
    "invalid",
    "auth",
    "permission",
    "not_found",
    "quota",
    "billing",
    "context_length",
    "too_large",
    "unsupported",
    "content_filter",
    "content_policy",
    "forbidden",
];

/// An answer that is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Whether a repetition may help. The code in the error decides; an error without one may pass.
    pub transient: bool,
}

/// Whether the body of a successful response is an error in truth.
pub(super) fn failure(wire: Wire, body: &RawValue) -> Option<Failure> {
    let body = Object::parse(body)?;
    let present = |object: &Object<'_>| object.get("error").is_some_and(|error| error.get() != "null");
    if present(&body) {
        return Some(judged(body.get("error")));
    }
    if wire == Wire::Anthropic {
        return None;
    }
    let choices = body.get("choices").and_then(json::array).unwrap_or_default();
    let Some(choice) = choices.first().copied() else { return Some(Failure { transient: true }) };
    let choice = Object::parse(choice)?;
    let failed = present(&choice) || choice.str("finish_reason").as_deref() == Some("error");
    failed.then(|| judged(choice.get("error")))
}

fn judged(error: Option<&RawValue>) -> Failure {
    let error = error.and_then(Object::parse).unwrap_or_default();
    let word =
        |key: &str| error.get(key).map(|value| json::string(value).unwrap_or_else(|| Cow::Borrowed(value.get())));
    let known = ["code", "status", "type"].into_iter().filter_map(word).find(|word| !word.is_empty() && word != "null");
    let transient = match known {
        None => true,
        Some(word) => match word.parse::<u16>() {
            Ok(status) => transient_status(status),
            Err(_) => {
                let word = word.to_ascii_lowercase();
                !PERMANENT.iter().any(|part| word.contains(part))
            }
        },
    };
    Failure { transient }
}

/// Whether a request that was answered with this status may be repeated.
pub fn transient_status(status: u16) -> bool {
    matches!(status, 408 | 409 | 429 | 500..=599)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(wire: Wire, body: &str) -> Option<bool> {
        failure(wire, &json::parse(body).expect("json")).map(|failure| failure.transient)
    }

    #[test]
    fn errors_are_told_from_answers() {
        for body in [
            r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop","error":null}],"error":null}"#,
            r#"{"choices":[7]}"#,
            "[]",
        ] {
            assert_eq!(judge(Wire::OpenAi, body), None, "{body}");
        }
        assert_eq!(judge(Wire::Anthropic, r#"{"content":[]}"#), None);
        for body in ["{}", r#"{"choices":[]}"#, r#"{"choices":null}"#] {
            assert_eq!(judge(Wire::OpenAi, body), Some(true), "{body}");
        }
    }

    #[test]
    fn the_code_decides_whether_it_may_pass() {
        for (error, transient) in [
            (r#""boom""#, true),
            (r#"{"message":"x"}"#, true),
            (r#"{"code":null,"type":"overloaded_error"}"#, true),
            (r#"{"code":502}"#, true),
            (r#"{"code":"429"}"#, true),
            (r#"{"code":400,"type":"server_error"}"#, false),
            (r#"{"code":"rate_limit_exceeded"}"#, true),
            (r#"{"code":"insufficient_quota"}"#, false),
            (r#"{"type":"invalid_request_error"}"#, false),
            (r#"{"type":"authentication_error"}"#, false),
        ] {
            for body in [
                format!(r#"{{"error":{error}}}"#),
                format!(r#"{{"choices":[{{"finish_reason":"error","error":{error}}}]}}"#),
            ] {
                assert_eq!(judge(Wire::OpenAi, &body), Some(transient), "{body}");
            }
            assert_eq!(judge(Wire::Anthropic, &format!(r#"{{"type":"error","error":{error}}}"#)), Some(transient));
        }
        assert_eq!(judge(Wire::OpenAi, r#"{"choices":[{"finish_reason":"error"}]}"#), Some(true));
    }
}
