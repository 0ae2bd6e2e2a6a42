//! lib
pub mod demo;
