//! The pauses between attempts to reach the server, and when to stop trying.
//!
//! The pauses come from `backon`. Its retry loop is not used, because the attempts here are streams: each event that
//! arrives resets the pauses, and the limit is wall-clock time without an event rather than a number of attempts.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::{Instant, sleep};

const MIN_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);

/// The state of one series of attempts.
#[derive(Debug)]
pub(super) struct Backoff {
    /// Time since the first failure after which no further attempt is made.
    limit: Option<Duration>,
    failing_since: Option<Instant>,
    pauses: ExponentialBackoff,
}

impl Backoff {
    /// For a person or program that waits for the outcome: gives up after a minute without an event.
    pub(super) fn one_minute() -> Backoff {
        Backoff { limit: Some(MINUTE), failing_since: None, pauses: pauses() }
    }

    pub(super) fn unlimited() -> Backoff {
        Backoff { limit: None, ..Backoff::one_minute() }
    }

    /// Starts anew because something arrived: the next failure counts as the first.
    pub(super) fn reset(&mut self) {
        self.failing_since = None;
        self.pauses = pauses();
    }

    /// Waits before the next attempt. Returns `false` at once if there shall be none.
    pub(super) async fn wait(&mut self) -> bool {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if self.limit.is_some_and(|limit| since.elapsed() >= limit) {
            return false;
        }
        sleep(self.pauses.next().unwrap_or(MAX_PAUSE)).await;
        true
    }
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::new().with_min_delay(MIN_PAUSE).with_max_delay(MAX_PAUSE).without_max_times().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_do_not_end() {
        let first: Vec<u128> = pauses().take(7).map(|pause| pause.as_millis()).collect();
        assert_eq!(first, [250, 500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(pauses().nth(100), Some(MAX_PAUSE));
    }

    #[tokio::test]
    async fn it_gives_up_only_where_it_has_a_limit() {
        let mut backoff = Backoff { limit: Some(Duration::ZERO), ..Backoff::one_minute() };
        assert!(!backoff.wait().await);
        backoff.limit = None;
        assert!(backoff.wait().await);
    }
}
