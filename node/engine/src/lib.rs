//! The decisions of the session server: what a request means, what a turn does next, what a provider is sent, and what
//! its answer means.
//!
//! This crate has no clock, no I/O and no randomness. It decides what to do; the `node` crate does it and passes the
//! result back. The heart is [`turn`], which computes the state of a turn from the events of the session's log.

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
