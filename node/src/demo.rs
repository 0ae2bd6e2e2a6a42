//! The demo model.

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Serves until `stop`.
pub async fn serve(_listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
    stop.cancelled().await;
    Ok(())
}
