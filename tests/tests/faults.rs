//! Faults that have broken systems like this one. ARCHITECTURE.md, "Failures that have tests", explains the numbers
//! that begin with F, D and S.
//!
//! A test brings a turn to a certain step by letting a provider or tool server hold its answer back, never by waiting
//! for some time, and checks by the log's last event that the turn is there.

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
