//! Points in time as the database's clock gives them.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A point in time: milliseconds since 1970 in UTC, as the database stores it and nodes send it to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnixMillis(pub i64);

impl UnixMillis {
    /// RFC 3339 in UTC with milliseconds, as clients see it (docs/api.md 1.3).
    pub fn rfc3339(self) -> String {
        let time = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
    }

    /// The time from `earlier` until this one; zero when `earlier` is the later of the two.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_milliseconds() {
        assert_eq!(UnixMillis(1_783_362_370_000).rfc3339(), "2026-07-06T18:26:10.000Z");
    }

    #[test]
    fn what_is_past_is_no_time_ahead() {
        assert_eq!(UnixMillis(1500).saturating_since(UnixMillis(1000)), Duration::from_millis(500));
        assert_eq!(UnixMillis(1000).saturating_since(UnixMillis(1500)), Duration::ZERO);
    }
}
