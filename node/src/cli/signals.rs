//! The stop signals SIGINT and SIGTERM.

use super::terminal::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that SIGINT or SIGTERM cancels. The second signal ends the process at once.
pub(super) fn stop() -> Result<CancellationToken, Failure> {
    let listen = |kind| signal(kind).map_err(|error| Failure::Runtime(format!("cannot listen for signals: {error}")));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let stop = CancellationToken::new();
    let cancelled = stop.clone();
    // This task is never stopped: a second signal must count until the process ends.
    tokio::spawn(async move {
        either(&mut interrupt, &mut terminate).await;
        tracing::info!("stopping; a second signal stops at once");
        cancelled.cancel();
        either(&mut interrupt, &mut terminate).await;
        std::process::exit(1);
    });
    Ok(stop)
}

/// Waits for one of two signals.
async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
