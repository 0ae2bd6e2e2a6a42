//! The server for durable, multi-client LLM agent sessions: everything of the program `baesrv` but its entry point.
//!
//! The only thing that others use is [`cli::main`]; what else the crate holds is private.

mod admin;
mod api;
mod app;
mod chat;
pub mod cli;
mod client;
mod config;
mod demo;
mod export;
mod http;
mod lifecycle;
mod listen;
mod logging;
mod mcp;
mod provider;
mod retention;
mod sandboxes;
mod secret;
mod session;
mod telemetry;
