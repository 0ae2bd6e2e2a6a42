//! The ports against real servers: `conformance` the log and the accounts over SQLite and Postgres, `cluster`
//! ownership, queue and news in one process and through Redis.
#![allow(clippy::unwrap_used)]

mod cluster;
mod conformance;
mod fixture;
