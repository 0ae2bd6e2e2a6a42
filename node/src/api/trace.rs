//! W3C trace context of requests (docs/api.md 2.6): a valid `traceparent` is kept with the call; others are never an
//! error.

use axum::http::HeaderMap;

/// The request's `traceparent`, if it is valid.
pub(super) fn parent(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let zero = |part: &str| part.bytes().all(|b| b == b'0');
    let known = version != "00" || parts.next().is_none();
    let valid = hex(version, 2) && version != "ff" && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    (valid && known && !zero(trace) && !zero(span)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_valid_ones_count() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_static(text));
            parent(&headers).is_some()
        };
        assert!(of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        assert!(of("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-later"));
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        ] {
            assert!(!of(bad), "{bad}");
        }
    }
}
