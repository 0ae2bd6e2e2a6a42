//! Ids in paths. A text that is no id cannot be the id of anything: 404.

use crate::http::problem::Problem;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use engine::ids::{KeyId, ProfileId, SessionId};
use std::str::FromStr;

/// The id in a path with one parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Id<T>(pub T);

/// What an id is of, for the text of a 404.
pub(crate) trait Named: FromStr {
    /// The kind of thing, like `session`.
    const KIND: &'static str;

    /// The 404.
    fn absent() -> Problem {
        Problem::does_not_exist(Self::KIND)
    }
}

impl Named for SessionId {
    const KIND: &'static str = "session";
}

impl Named for ProfileId {
    const KIND: &'static str = "profile";
}

impl Named for KeyId {
    const KIND: &'static str = "key";
}

impl<S: Send + Sync, T: Named> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, state).await.map_err(|_| T::absent())?;
        text.parse().map(Id).map_err(|_| T::absent())
    }
}
