//! lib
pub mod mcp;
