//! lib
pub mod chat;
pub mod demo;
