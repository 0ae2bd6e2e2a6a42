//! The port against real runtimes: `conformance` what every driver must do, `docker` and `kubernetes` what only such a
//! runtime can do.
#![allow(clippy::unwrap_used)]

mod conformance;
mod docker;
mod fixture;
mod kubernetes;
