//! Problem documents (RFC 7807): the one form of every failed REST answer, on both ports.
//!
//! `type` is a bare slug and contractual. A detail says what is wrong with the request; it never holds a secret or a text of
//! the database.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A failed REST call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    slug: &'static str,
    status: StatusCode,
    detail: String,
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: &'a str,
    title: String,
    status: u16,
    detail: &'a str,
}

macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident = $status:ident;)*) => {
        impl Problem {
            $(
                $(#[$doc])*
                pub fn $name(detail: impl Into<String>) -> Self {
                    Self { slug: stringify!($name), status: StatusCode::$status, detail: detail.into() }
                }
            )*
        }
    };
}

problems! {
    /// The key is missing, unknown or revoked.
    unauthorized = UNAUTHORIZED;
    /// The body or the query is malformed.
    bad_request = BAD_REQUEST;
    /// No such thing, or no such path.
    not_found = NOT_FOUND;
    /// The path exists, but not with this method.
    method_not_allowed = METHOD_NOT_ALLOWED;
    /// The body is over the limit.
    payload_too_large = PAYLOAD_TOO_LARGE;
    /// A declared tool is not in the profile's `allowed_tools`.
    tool_not_allowed = FORBIDDEN;
    /// A joining key is of another profile than the session.
    profile_mismatch = FORBIDDEN;
    /// The session is not open.
    session_closed = CONFLICT;
    /// A profile of that name exists.
    duplicate_name = CONFLICT;
    /// The profile has active client keys.
    profile_in_use = CONFLICT;
    /// The profile does not exist, or was deleted.
    profile_unavailable = UNPROCESSABLE_ENTITY;
    /// The profile's primary provider is not configured.
    primary_provider_unavailable = UNPROCESSABLE_ENTITY;
    /// A subagent declaration does not hold.
    invalid_subagent_tools = UNPROCESSABLE_ENTITY;
    /// A declared tool has a name that the server keeps for itself.
    reserved_tool_name = UNPROCESSABLE_ENTITY;
    /// The database cannot be asked just now.
    unavailable = SERVICE_UNAVAILABLE;
    /// The server is at fault.
    internal = INTERNAL_SERVER_ERROR;
}

impl Problem {
    /// The contractual slug.
    #[cfg(test)]
    pub fn slug(&self) -> &'static str {
        self.slug
    }

    /// The HTTP status.
    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong, for people.
    #[cfg(test)]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// `session_closed` → `Session Closed`.
fn title(slug: &str) -> String {
    let mut title = String::with_capacity(slug.len());
    for word in slug.split('_') {
        if !title.is_empty() {
            title.push(' ');
        }
        let mut letters = word.chars();
        title.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        title.push_str(letters.as_str());
    }
    title
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document =
            Document { r#type: self.slug, title: title(self.slug), status: self.status.as_u16(), detail: &self.detail };
        let mut response = (self.status, Json(document)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Logs what the caller must not see, and answers what it may.
impl From<coordinator::Error> for Problem {
    fn from(error: coordinator::Error) -> Self {
        use coordinator::Error;
        match error {
            Error::Unavailable(source) => {
                tracing::error!(error = %source, "the database is not available");
                Problem::unavailable("the database is not available; try again")
            }
            Error::Away(reason) => {
                tracing::error!(reason, "redis is not available");
                Problem::unavailable("the cluster's coordination is not available; try again")
            }
            Error::Unknown => {
                tracing::error!("the outcome of a write is unknown");
                Problem::unavailable("the outcome of the call is unknown; look before you repeat it")
            }
            Error::Failed(source) => {
                tracing::error!(error = %source, "the database refused a write");
                Problem::internal("unexpected server error")
            }
            Error::Fenced
            | Error::NotOpen(_)
            | Error::Refused
            | Error::Duplicate
            | Error::NotFound
            | Error::Unreadable(_)
            | Error::Unusable(_) => {
                tracing::error!(error = %error, "a request failed");
                Problem::internal("unexpected server error")
            }
        }
    }
}

/// The fallback for paths that do not exist.
pub async fn no_such_path() -> Problem {
    Problem::not_found("no such path")
}

/// The fallback for methods that a path does not have.
pub async fn no_such_method() -> Problem {
    Problem::method_not_allowed("the path does not have this method")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shown(problem: Problem) -> (u16, serde_json::Value) {
        let response = problem.into_response();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn documents_are_as_the_contract_shows_them() {
        let (status, body) = shown(Problem::unauthorized("invalid or revoked client key")).await;
        assert_eq!(status, 401);
        assert_eq!(
            body,
            serde_json::json!({
                "type": "unauthorized", "title": "Unauthorized", "status": 401, "detail": "invalid or revoked client key"
            })
        );
        let titles = [
            (Problem::bad_request(""), "Bad Request"),
            (Problem::session_closed(""), "Session Closed"),
            (Problem::primary_provider_unavailable(""), "Primary Provider Unavailable"),
        ];
        for (problem, title) in titles {
            assert_eq!(shown(problem).await.1["title"], title);
        }
    }

    #[tokio::test]
    async fn texts_of_the_database_stay_inside() {
        let hidden = || sqlx_like("UNIQUE constraint failed: client_keys.digest");
        let (status, body) = shown(hidden().into()).await;
        assert_eq!((status, &body["type"]), (500, &"internal".into()));
        assert!(!body.to_string().contains("client_keys"), "{body}");
        let (status, body) = shown(coordinator::Error::Unknown.into()).await;
        assert_eq!((status, &body["type"]), (503, &"unavailable".into()));
    }

    fn sqlx_like(text: &str) -> coordinator::Error {
        coordinator::Error::Unreadable(text.into())
    }
}
