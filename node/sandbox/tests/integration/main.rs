//! The port against real runtimes: `conformance` what every driver must do, `docker` what only a Docker daemon can do.
#![allow(clippy::unwrap_used)]

mod conformance;
mod docker;
mod fixture;
