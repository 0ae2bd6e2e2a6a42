//! What the bodies of the admin port's requests have in common. The handlers of profiles and of client keys use it.

use crate::http::body;
use crate::http::problem::Problem;
use axum::body::Body;
use axum::http::HeaderMap;
use serde::de::DeserializeOwned;

/// Bytes of a body at most: a profile with thousands of tools fits.
pub(super) const MAX_BODY: usize = 1 << 20;

/// Reads a JSON body.
///
/// # Errors
/// Those of [`body::json`].
pub(super) async fn read<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Problem> {
    body::json(headers, body, MAX_BODY).await
}

/// Checks that a text of a body can be a name.
///
/// # Errors
/// `bad_request`, which names the field.
pub(super) fn check_name(field: &str, text: &str) -> Result<(), Problem> {
    if text.trim().is_empty() {
        return Err(Problem::bad_request(format!("{field} must not be blank")));
    }
    if text.contains('\0') {
        return Err(Problem::bad_request(format!("{field} must not hold the character U+0000")));
    }
    Ok(())
}
