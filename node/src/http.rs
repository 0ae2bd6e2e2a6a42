//! What the handlers of the client port and of the admin port share: authentication, request bodies, pagination, ids in
//! paths, the page of events, and problem documents.
//!
//! Nothing in here knows the state of the node: `app` holds an [`auth::Auth`], and the handlers in `api` and `admin`
//! call the rest.

pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod event_page;
pub(crate) mod measured;
pub(crate) mod pagination;
pub(crate) mod path_id;
pub(crate) mod problem;

use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;

/// Headers for an answer whose body was rendered to JSON before.
pub(crate) const JSON: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "application/json")];
