//! Waiting for a condition: always with a deadline, and a failure tells the last state seen.

use std::fmt::Debug;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Generous for a loaded machine; nothing that works takes this long.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Asks `probe` until it answers `Ok`. Its `Err` is the state that the panic reports when `deadline` has passed.
pub async fn until<T, S: Debug>(deadline: Duration, what: &str, mut probe: impl AsyncFnMut() -> Result<T, S>) -> T {
    let end = Instant::now() + deadline;
    let mut pause = Duration::from_millis(5);
    let mut last = None;
    loop {
        match timeout_at(end, probe()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(state)) => last = Some(state),
            Err(_) => panic!("{what}: the probe itself hung after {deadline:?}; last state: {last:?}"),
        }
        assert!(Instant::now() < end, "{what}: not within {deadline:?}; last state: {last:?}");
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Awaits `future`, or fails with `what` after [`DEADLINE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {DEADLINE:?}"),
    }
}
