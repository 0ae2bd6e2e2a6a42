//! The server for durable, multi-client LLM agent sessions: everything of the program `baesrv` but its entry point.

pub mod admin;
pub mod api;
pub mod app;
pub mod auth;
pub mod body;
pub mod chat;
pub mod cli;
pub mod config;
pub mod demo;
pub mod id;
pub mod logging;
pub mod mcp;
pub mod page;
pub mod problem;
pub mod provider;
pub mod secret;
pub mod session;
