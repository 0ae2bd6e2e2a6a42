//! How long to try again: with growing pauses, and, where somebody waits, not for ever.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);

/// Runs out when nothing has come for the limit.
#[derive(Debug)]
pub struct Patience {
    limit: Option<Duration>,
    since: Option<Instant>,
    pause: Duration,
}

impl Patience {
    pub fn a_minute() -> Patience {
        Patience { limit: Some(MINUTE), since: None, pause: FIRST_PAUSE }
    }

    pub fn endless() -> Patience {
        Patience { limit: None, ..Patience::a_minute() }
    }

    /// Something came; the next failure is the first again.
    pub fn renew(&mut self) {
        self.since = None;
        self.pause = FIRST_PAUSE;
    }

    /// Waits before the next attempt; `false`, at once, when there shall be none.
    pub async fn wait(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.limit.is_some_and(|limit| since.elapsed() >= limit) {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_runs_out_only_where_it_has_a_limit() {
        let mut patience = Patience { limit: Some(Duration::ZERO), since: None, pause: Duration::ZERO };
        assert!(!patience.wait().await);
        patience.limit = None;
        assert!(patience.wait().await);
    }
}
