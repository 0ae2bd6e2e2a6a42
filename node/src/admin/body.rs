//! What the bodies of the admin port's requests have in common. The handlers of profiles and of client keys use it.

use crate::http::body;
use crate::http::problem::Problem;
use axum::body::Body;
use axum::http::HeaderMap;
use serde::de::DeserializeOwned;

/// Bytes of a body at most: a profile with thousands of tools fits.
pub(super) const MAX_BODY: usize = 1 << 20;

/// Bytes of a name at most, whichever database keeps it (docs/api.md 10).
const MAX_NAME: usize = 255;

/// Reads a JSON body.
///
/// # Errors
/// Those of [`body::json`].
pub(super) async fn read<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Problem> {
    body::json(headers, body, MAX_BODY).await
}

/// Checks a name: a text of at most 255 bytes.
///
/// # Errors
/// `bad_request`, which names the field.
pub(super) fn check_name(field: &str, text: &str) -> Result<(), Problem> {
    if text.len() > MAX_NAME {
        return Err(Problem::bad_request(format!("{field} has {} bytes; at most {MAX_NAME} are allowed", text.len())));
    }
    check_text(field, text)
}

/// Checks that a text says something and can be stored.
///
/// # Errors
/// `bad_request`, which names the field.
pub(super) fn check_text(field: &str, text: &str) -> Result<(), Problem> {
    if text.trim().is_empty() {
        return Err(Problem::bad_request(format!("{field} must not be blank")));
    }
    if text.contains('\0') {
        return Err(Problem::bad_request(format!("{field} must not hold the character U+0000")));
    }
    Ok(())
}
