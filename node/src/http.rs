//! What the client port and the admin port share below their handlers: authentication, bodies, pages, path ids, problem
//! documents.
//!
//! Nothing in here knows the application state; `app` holds an [`auth::Auth`], and the handlers of `api` and `admin` call the
//! rest.

pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod event_page;
pub(crate) mod pagination;
pub(crate) mod path_id;
pub(crate) mod problem;

use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;

/// The headers of an answer whose body is JSON text already.
pub(crate) const JSON: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "application/json")];
