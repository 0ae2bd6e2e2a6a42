//! Pure decisions of the session server: wire types, the turn as a fold over the log, history, compaction, provider
//! formats. No clock, no I/O, no randomness: this crate says what to do, a thin driver in `node` does it and feeds the
//! answer back.

#![warn(missing_docs)]

pub mod event;
pub mod gate;
pub mod history;
pub mod ids;
pub mod json;
pub mod message;
pub mod open;
pub mod outcome;
pub mod params;
pub mod provider;
pub mod request;
pub mod round;
pub mod rpc;
pub mod subagent;
pub mod time;
pub mod toolbox;
pub mod tools;
pub mod turn;
