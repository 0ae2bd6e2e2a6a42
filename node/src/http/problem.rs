//! Problem documents (RFC 7807): the form of every failed REST answer on both ports, and the one catalogue of them.
//!
//! `type` is a bare slug and part of the API: clients compare it. `detail` is a text for people. It says what is wrong
//! with the request and never holds a secret or a text of the database; what a caller must not see is logged instead.
//! Each constructor is named after what it means and holds its text, so that one failure reads the same wherever it is
//! noticed. Constructors that take a text are for failures that the caller alone can describe. Handlers and the rest of
//! `http` call them.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A failed REST call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
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

impl Problem {
    fn new(status: StatusCode, slug: &'static str, detail: impl Into<String>) -> Self {
        Self { slug, status, detail: detail.into() }
    }

    /// The slug of the API.
    #[cfg(test)]
    pub(crate) fn slug(&self) -> &'static str {
        self.slug
    }

    /// The HTTP status.
    #[cfg(test)]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong, for people.
    #[cfg(test)]
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }
}

/// 401: who the request is from.
impl Problem {
    fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    /// The request has no `Authorization` header with a bearer token; `key` names what it should hold, like `<key>`.
    pub(crate) fn missing_key(key: &str) -> Self {
        Self::unauthorized(format!("missing Authorization header: send Authorization: Bearer {key}"))
    }

    /// The token is no client key that is known and not revoked.
    pub(crate) fn invalid_client_key() -> Self {
        Self::unauthorized("invalid or revoked client key")
    }

    /// The token is no key of this session.
    pub(crate) fn invalid_session_key() -> Self {
        Self::unauthorized("invalid or revoked session key")
    }

    /// The token is not the admin key.
    pub(crate) fn invalid_admin_key() -> Self {
        Self::unauthorized("invalid admin key")
    }
}

/// 400, 404, 405 and 413: the request as such.
impl Problem {
    /// The body or the query is malformed, in a way that the caller describes.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    /// The client stopped in the middle of the body.
    pub(crate) fn body_broke_off() -> Self {
        Self::bad_request("the body could not be read to its end")
    }

    /// The request does not say that its body is JSON.
    pub(crate) fn content_type_not_json() -> Self {
        Self::bad_request("Expected request with `Content-Type: application/json`")
    }

    /// The body is not JSON.
    pub(crate) fn malformed_json(reason: impl std::fmt::Display) -> Self {
        Self::bad_request(format!("Failed to parse the request body as JSON: {reason}"))
    }

    /// The body is JSON, but not what this call takes.
    pub(crate) fn invalid_body(reason: impl std::fmt::Display) -> Self {
        Self::bad_request(format!("invalid request body: {reason}"))
    }

    /// A value of the query is wrong; `rule` says what it must be.
    pub(crate) fn invalid_query_value(name: &str, rule: impl std::fmt::Display) -> Self {
        Self::bad_request(format!("invalid {name}: {rule}"))
    }

    /// The query cannot be decoded.
    pub(crate) fn invalid_query() -> Self {
        Self::bad_request("invalid query")
    }

    /// The thing of that kind which the path names does not exist.
    pub(crate) fn does_not_exist(kind: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("{kind} does not exist"))
    }

    /// The path itself does not exist.
    pub(crate) fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "no such path")
    }

    /// The path exists, but not with this method.
    pub(crate) fn no_such_method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "the path does not have this method")
    }

    /// The body is over the limit.
    pub(crate) fn payload_too_large(limit: usize) -> Self {
        let detail = format!("the body is over the limit of {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
    }
}

/// 403, 409 and 422: what the state of a profile or a session, or the profile's limits, do not allow.
impl Problem {
    /// A declared tool is not in the profile's `allowed_tools`.
    pub(crate) fn tool_not_allowed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "tool_not_allowed", detail)
    }

    /// A declared tool has a name that the server keeps for itself.
    pub(crate) fn reserved_tool_name(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "reserved_tool_name", detail)
    }

    /// A declaration of subagent tools is contradictory or incomplete.
    pub(crate) fn invalid_subagent_tools(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_subagent_tools", detail)
    }

    /// A joining client key is of another profile than the session.
    pub(crate) fn profile_mismatch() -> Self {
        let detail = "the client key's profile is not the session's profile";
        Self::new(StatusCode::FORBIDDEN, "profile_mismatch", detail)
    }

    /// The session is not open any more.
    pub(crate) fn session_already(state: &str) -> Self {
        Self::new(StatusCode::CONFLICT, "session_closed", format!("session is already {state}"))
    }

    /// The session cannot be removed, because something may still happen in it.
    pub(crate) fn session_open() -> Self {
        let detail = "the session is open, or its sandboxes are being removed; close it, or try again in a moment";
        Self::new(StatusCode::CONFLICT, "session_open", detail)
    }

    /// Another profile has that name.
    pub(crate) fn duplicate_profile_name() -> Self {
        Self::new(StatusCode::CONFLICT, "duplicate_name", "a profile of that name exists")
    }

    /// The container runtime did not remove the sandbox. Its session has none any more, and the server removes it
    /// later.
    pub(crate) fn sandbox_stop_failed(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "sandbox_stop_failed", detail.to_string())
    }

    /// The profile cannot be deleted while it has active client keys.
    pub(crate) fn profile_in_use() -> Self {
        let detail = "the profile has active client keys; revoke them first";
        Self::new(StatusCode::CONFLICT, "profile_in_use", detail)
    }

    fn profile_unavailable(detail: &str) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "profile_unavailable", detail)
    }

    /// A session is opened or joined with a client key whose profile was deleted.
    pub(crate) fn profile_of_key_deleted() -> Self {
        Self::profile_unavailable("the profile bound to this client key is no longer available")
    }

    /// A client key is made for a profile that does not exist.
    pub(crate) fn profile_for_key_missing() -> Self {
        Self::profile_unavailable("the profile does not exist, or was deleted")
    }

    /// The profile's primary provider is not configured. The caller records the same text in the log.
    pub(crate) fn primary_provider_unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "primary_provider_unavailable", detail)
    }
}

/// 500 and 503: the server's own failures. They say nothing of the cause, which is logged.
impl Problem {
    /// All connections of the port are taken.
    pub(crate) fn too_many_connections() -> Self {
        Self::unavailable("the server has too many connections; try again later")
    }

    fn unavailable(detail: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    /// The server is at fault.
    pub(crate) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "unexpected server error")
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

/// A secret could not be made, because the operating system gives no random bytes.
impl From<getrandom::Error> for Problem {
    fn from(error: getrandom::Error) -> Self {
        tracing::error!(error = %error, "the operating system gives no random bytes");
        Problem::internal()
    }
}

/// Failures of the database and the coordination that a handler did not give a meaning of its own.
impl From<coordinator::Error> for Problem {
    fn from(error: coordinator::Error) -> Self {
        use coordinator::Error;
        match error {
            Error::Unavailable(source) => {
                tracing::error!(error = %source, "the database is not available");
                Problem::unavailable("the database is not available; try again")
            }
            Error::CoordinationUnavailable(reason) => {
                tracing::error!(reason, "redis is not available");
                Problem::unavailable("the cluster's coordination is not available; try again")
            }
            Error::Unknown => {
                tracing::error!("the outcome of a write is unknown");
                Problem::unavailable("the outcome of the call is unknown; look before you repeat it")
            }
            Error::Failed(source) => {
                tracing::error!(error = %source, "the database refused a write");
                Problem::internal()
            }
            Error::Fenced
            | Error::NotOpen(_)
            | Error::PreconditionFailed
            | Error::Duplicate
            | Error::NotFound
            | Error::Unreadable(_)
            | Error::Unusable(_) => {
                tracing::error!(error = %error, "a request failed");
                Problem::internal()
            }
        }
    }
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
        let (status, body) = shown(Problem::invalid_client_key()).await;
        assert_eq!(status, 401);
        assert_eq!(
            body,
            serde_json::json!({
                "type": "unauthorized", "title": "Unauthorized", "status": 401, "detail": "invalid or revoked client key"
            })
        );
        let titles = [
            (Problem::bad_request(""), "Bad Request"),
            (Problem::session_already("closed"), "Session Closed"),
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
