//! Ids in the paths of requests. A text that is not an id names nothing that exists, so it is answered with 404.

use crate::http::problem::Problem;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use engine::ids::{KeyId, ProfileId, SandboxId, SessionId, SubagentId};
use std::str::FromStr;

/// Extracts the id from a path that has one parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Id<T>(pub T);

/// An id that knows what kind of thing it names.
pub(crate) trait Named: FromStr {
    /// The kind of thing, like `session`.
    const KIND: &'static str;

    /// The 404 for an id of a thing that does not exist.
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

impl Named for SandboxId {
    const KIND: &'static str = "sandbox";
}

impl Named for SubagentId {
    const KIND: &'static str = "subagent";
}

impl<S: Send + Sync, T: Named> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, state).await.map_err(|_| T::absent())?;
        text.parse().map(Id).map_err(|_| T::absent())
    }
}
