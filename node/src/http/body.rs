//! Reading the bodies of REST calls: at most so many bytes, as JSON. Every failure is a problem document.
//!
//! Handlers call it after authentication, so that a stranger cannot make the server read or parse anything.

use crate::http::problem::Problem;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long a client may send nothing in the middle of a body.
const PROGRESS: Duration = Duration::from_secs(30);

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// `payload_too_large`, or `bad_request` when the client stopped in the middle or sent nothing for [`PROGRESS`].
pub(crate) async fn read(body: Body, limit: usize) -> Result<Bytes, Problem> {
    let too_large = || Problem::payload_too_large(limit);
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut parts = body.into_data_stream();
    let mut whole = BytesMut::new();
    let late = |_| Problem::bad_request("the body did not go on in time; send it again");
    while let Some(part) = tokio::time::timeout(PROGRESS, parts.next()).await.map_err(late)? {
        let part = part.map_err(|_| Problem::body_broke_off())?;
        if whole.len() + part.len() > limit {
            return Err(too_large());
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.freeze())
}

/// Checks that the `Content-Type` header says JSON.
///
/// # Errors
/// `bad_request`.
pub(crate) fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let essence = |value: &str| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let essence = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).map(essence).unwrap_or_default();
    let json = essence == "application/json" || essence.starts_with("application/") && essence.ends_with("+json");
    if json { Ok(()) } else { Err(Problem::content_type_not_json()) }
}

/// Reads and parses a JSON body of at most `limit` bytes.
///
/// # Errors
/// `bad_request`, whose text tells whether it is no JSON or has a wrong field; `payload_too_large`.
pub(crate) async fn json<T: DeserializeOwned>(headers: &HeaderMap, body: Body, limit: usize) -> Result<T, Problem> {
    require_json(headers)?;
    parse(&read(body, limit).await?)
}

/// Parses a JSON body.
///
/// # Errors
/// `bad_request`.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    use serde_json::error::Category;
    // Serde also accepts an array as a struct, with the fields in their order; the API does not.
    let array = body.trim_ascii_start().starts_with(b"[");
    if array && serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok() {
        return Err(Problem::invalid_body("invalid type: sequence, expected an object"));
    }
    serde_json::from_slice(body).map_err(|error| match error.classify() {
        Category::Data => Problem::invalid_body(error),
        Category::Syntax | Category::Eof | Category::Io => Problem::malformed_json(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Name {
        name: String,
    }

    async fn sent(content_type: Option<&str>, body: &str) -> Result<Name, (u16, String)> {
        let mut headers = HeaderMap::new();
        if let Some(value) = content_type {
            headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
        }
        json(&headers, Body::from(body.to_owned()), 32).await.map_err(|p| (p.status().as_u16(), p.detail().to_owned()))
    }

    #[tokio::test]
    async fn bodies() {
        for content_type in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"] {
            assert_eq!(sent(Some(content_type), r#"{"name":"a","more":1}"#).await, Ok(Name { name: "a".into() }));
        }
        let expected = "Expected request with `Content-Type: application/json`";
        for content_type in [None, Some(""), Some("text/plain"), Some("application/jsonp"), Some("text/x+json")] {
            assert_eq!(sent(content_type, r#"{"name":"a"}"#).await, Err((400, expected.into())), "{content_type:?}");
        }
        let json = Some("application/json");
        let (status, detail) = sent(json, "{").await.unwrap_err();
        assert_eq!(status, 400);
        assert!(detail.starts_with("Failed to parse the request body as JSON: EOF"), "{detail}");
        let (status, detail) = sent(json, r#"{"name":1}"#).await.unwrap_err();
        assert_eq!(status, 400);
        assert!(detail.starts_with("invalid request body: invalid type: integer `1`, expected a string"), "{detail}");
        let (status, detail) = sent(json, r#" ["a"]"#).await.unwrap_err();
        assert_eq!(
            (status, detail.as_str()),
            (400, "invalid request body: invalid type: sequence, expected an object")
        );
        let (status, detail) = sent(json, &"x".repeat(33)).await.unwrap_err();
        assert_eq!((status, detail.as_str()), (413, "the body is over the limit of 32 bytes"));
    }
}
