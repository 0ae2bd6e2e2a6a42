//! Faults that have broken systems like this one (F, D and S numbers are those of the project's list of failures).
//!
//! A step of a turn is reached by a peer that stalls, never by a delay, and is proved by the log's last event.

mod chaos;
mod close;
mod edge_cases;
mod growth;
mod history;
mod inputs;
mod kill;
mod mcp;
mod provider;
mod queue;
mod random_operations;
mod resend;
mod storage;
mod streams;
