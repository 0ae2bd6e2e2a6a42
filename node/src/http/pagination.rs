//! Pagination of lists, the same on both ports: requests have `?cursor=&limit=`, answers
//! `{"items":[…],"next_cursor":…}`.
//!
//! A cursor is opaque to clients. Each list decides what its cursor holds; it must name the last item of a page, so
//! that items added or removed meanwhile neither repeat nor hide others.

use crate::http::problem::Problem;
use axum::extract::{FromRequestParts, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use serde::Serialize;
use std::fmt::Display;
use std::str::FromStr;

/// Items of a page when the request does not say.
pub(crate) const DEFAULT_LIMIT: u32 = 50;
/// Items of a page at most.
pub(crate) const MAX_LIMIT: u32 = 200;

/// Which page of a list a request asks for. `C` is what the cursor of this list holds: the last item before the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page<C> {
    /// The last item before the page; the list is shown from its beginning if there is none.
    pub cursor: Option<C>,
    /// Items of the page at most: from 1 to [`MAX_LIMIT`].
    pub limit: u32,
}

impl<C: FromStr> Page<C> {
    /// Reads the query of a URI.
    ///
    /// # Errors
    /// `bad_request` for a query, a cursor or a limit that does not parse.
    pub(crate) fn of(uri: &Uri) -> Result<Self, Problem> {
        Self::of_pairs(&pairs(uri)?)
    }

    /// Reads the page from the pairs of a query, for lists that have filters too.
    ///
    /// # Errors
    /// `bad_request` for a cursor or a limit that does not parse.
    pub(crate) fn of_pairs(pairs: &[(String, String)]) -> Result<Self, Problem> {
        let mut page = Page { cursor: None, limit: DEFAULT_LIMIT };
        for (name, value) in pairs {
            match name.as_str() {
                "limit" => page.limit = limit(value)?,
                // The example of the client API asks for the first page this way.
                "cursor" if value.is_empty() => page.cursor = None,
                "cursor" => {
                    let rule = "pass the next_cursor of the page before, as it is";
                    let bad = |_| Problem::invalid_query_value("cursor", rule);
                    page.cursor = Some(value.parse().map_err(bad)?);
                }
                _ => {}
            }
        }
        Ok(page)
    }
}

impl<S: Sync, C: FromStr> FromRequestParts<S> for Page<C> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::of(&parts.uri)
    }
}

/// The names and values of a URI's query, decoded.
///
/// # Errors
/// `bad_request` when it is not a query.
pub(crate) fn pairs(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    match Query::<Vec<(String, String)>>::try_from_uri(uri) {
        Ok(Query(pairs)) => Ok(pairs),
        Err(_) => Err(Problem::invalid_query()),
    }
}

/// Reads a limit. A number above the maximum means the maximum, even one that fits no integer.
fn limit(text: &str) -> Result<u32, Problem> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = if digits { text.parse().unwrap_or(MAX_LIMIT) } else { 0 };
    if number == 0 {
        return Err(Problem::invalid_query_value("limit", "must be a whole number from 1 to 200"));
    }
    Ok(number.min(MAX_LIMIT))
}

/// The body of an answer that holds a page.
#[derive(Debug, Serialize)]
pub(crate) struct Items<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

impl<T> Items<T> {
    /// `next` is the cursor for the next page, if there is one.
    pub(crate) fn new(items: Vec<T>, next: Option<impl Display>) -> Self {
        Self { items, next_cursor: next.map(|cursor| cursor.to_string()) }
    }

    /// A list that is short enough for one page.
    pub(crate) fn whole(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str) -> Result<Page<u64>, Problem> {
        Page::of(&format!("/list{query}").parse().unwrap())
    }

    #[test]
    fn good_queries() {
        let cases = [
            ("", None, 50),
            ("?", None, 50),
            ("?limit=1", None, 1),
            ("?limit=007", None, 7),
            ("?limit=200", None, 200),
            ("?limit=201", None, 200),
            ("?limit=99999999999999999999999999", None, 200),
            ("?cursor=42", Some(42), 50),
            ("?limit=3&cursor=18446744073709551615&other=x", Some(u64::MAX), 3),
            ("?limi%74=3", None, 3),
        ];
        for (query, cursor, limit) in cases {
            assert_eq!(page(query), Ok(Page { cursor, limit }), "{query}");
        }
    }

    #[test]
    fn bad_queries() {
        for query in [
            "?limit=0",
            "?limit=00",
            "?limit=-1",
            "?limit=abc",
            "?limit=",
            "?limit=1.5",
            "?limit=+5",
            "?limit=0x10",
            "?limit=%D9%A3",
            "?cursor=abc",
            "?cursor=-1",
            "?cursor=18446744073709551616",
            "?limit=5&limit=x",
        ] {
            let problem = page(query).unwrap_err();
            assert_eq!((problem.slug(), problem.status().as_u16()), ("bad_request", 400), "{query}");
        }
    }

    #[test]
    fn lists_say_where_the_next_page_begins() {
        let last = Items::new(vec![1, 2], None::<u64>);
        assert_eq!(serde_json::to_string(&last).unwrap(), r#"{"items":[1,2],"next_cursor":null}"#);
        let more = Items::new(vec![1], Some(42));
        assert_eq!(serde_json::to_string(&more).unwrap(), r#"{"items":[1],"next_cursor":"42"}"#);
    }
}
