//! The cluster as seen from one session: the log, ownership, the turn queue, the feed, the accounts.
//!
//! The database says what is true; everything else here is a cache or a signal. Knows the engine's ids and events,
//! nothing of HTTP, providers or tools.

#![warn(missing_docs)]

pub mod accounts;
pub mod cluster;
mod db;
mod error;
pub mod feed;
pub mod log;
pub mod metrics;
pub mod reader;

pub use db::{Db, PostgresSettings};
pub use error::Error;

/// The 16 bytes of a new id: a UUIDv7, so that ids made on one node sort by creation (docs/api.md 1.1).
pub fn fresh_id() -> [u8; 16] {
    uuid::Uuid::now_v7().into_bytes()
}

/// How long ago an id was made, by the clocks of the node that made it and of this one. Zero where they contradict each
/// other.
pub fn age(id: &[u8; 16]) -> std::time::Duration {
    elapsed_since(id[..6].iter().fold(0, |millis, byte| millis << 8 | u64::from(*byte)))
}

/// The time since that many milliseconds after the Unix epoch, by the clock of this node. Zero if that is still to come.
pub(crate) fn elapsed_since(millis: u64) -> std::time::Duration {
    use std::time::{Duration, SystemTime};
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_millis(millis))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
