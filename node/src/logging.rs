//! Log lines, on standard error, as text or JSON, filtered by `BAE_LOG`. The commands that serve start it once.
//!
//! Some libraries log message contents or headers. Those lines are dropped whatever the filter says.

use crate::config::{Config, LogFormat};
use crate::mcp::UNSAFE_TARGETS;
use std::io::IsTerminal;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

/// Starts logging for this process. A second call changes nothing.
pub(crate) fn start(config: &Config) {
    // The filter was checked with the configuration.
    let filter = EnvFilter::try_new(&config.log).unwrap_or_default();
    let lines = match config.log_format {
        LogFormat::Text => fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => fmt::layer().with_writer(std::io::stderr).json().flatten_event(true).boxed(),
    };
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter_fn(harmless)).with_filter(filter)).try_init();
}

/// Whether a line may be logged. The MCP library logs messages and environments, and the HTTP libraries log headers at
/// their finest level. Notices of Postgres, about tables that exist already, are dropped because they tell nothing.
fn harmless(metadata: &Metadata<'_>) -> bool {
    let krate = metadata.target().split("::").next().unwrap_or_default();
    match krate {
        krate if UNSAFE_TARGETS.contains(&krate) => false,
        "sqlx" if metadata.target() == "sqlx::postgres::notice" => *metadata.level() <= Level::WARN,
        "h2" | "hyper" | "hyper_util" | "reqwest" | "rustls" => *metadata.level() <= Level::DEBUG,
        _ => true,
    }
}
