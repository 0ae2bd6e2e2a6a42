//! Pure decisions of the session server: wire types, the turn as a fold over the log, history, compaction, provider
//! formats. No clock, no I/O, no randomness: this crate says what to do, a thin driver in `node` does it and feeds the
//! answer back.

pub mod event;
pub mod ids;
pub mod json;
pub mod message;
pub mod open;
pub mod provider;
pub mod request;
pub mod subagent;
pub mod tools;
