//! The harness of the black-box tests of the server: real `baesrv` processes, peers that can be told to misbehave, and
//! a client that shows every byte.
//!
//! Nothing here knows how the server works inside. What a test expects comes from docs/api.md, what it sees comes
//! from the wire, from the log as readers get it, or from the database file.
#![allow(clippy::unwrap_used)]

pub mod admin;
pub mod checker;
pub mod client;
pub mod cluster;
pub mod collector;
pub mod database;
pub mod docker;
pub mod files;
pub mod fixture;
pub mod history;
pub mod http1;
pub mod kubernetes;
pub mod log;
pub mod mcp;
pub mod poll;
pub mod ports;
pub mod program;
pub mod provider;
pub mod server;
pub mod services;
pub mod soak;
mod supervised;
pub mod tls;
pub mod transcript;
