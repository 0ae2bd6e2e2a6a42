//! The cluster as seen from one session: the log, ownership, the turn queue, the feed, the accounts.
//!
//! The database says what is true; everything else here is a cache or a signal. Knows the engine's ids and events, nothing
//! of HTTP, providers or tools.

mod error;
mod sqlite;

pub use error::Error;
pub use sqlite::Db;
