//! Black-box tests of `baesrv`: every expectation comes from docs/api.md, every observation from the wire, the log,
//! or the database file.
//!
//! `golden` writes down whole exchanges and compares them with committed snapshots; `faults` breaks things in the
//! middle; `cluster` does so with several nodes, and `sandboxes` with containers; `telemetry` reads metrics
//! and spans; `doors` knocks at the ports; `chart` installs a
//! release on a cluster.
#![allow(clippy::unwrap_used)]

mod chart;
mod cli;
mod cluster;
mod doors;
mod faults;
mod golden;
mod readme;
mod sandboxes;
mod telemetry;
