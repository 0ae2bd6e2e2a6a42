//! `loadtest` puts load on a server of the session API and reports figures that can be compared with those of another
//! run.
//!
//! The load is a closed loop: each session sends its next message after the answer to the last one. The model behind
//! the server is a built-in provider that takes a set time, so that the rest of a turn's time is the server's own. A
//! bare HTTP echo is measured in the same way and shows what the machine itself needs for an exchange.

mod cli;
mod client;
mod curve;
mod disk;
mod echo;
mod events;
mod marker;
mod provider;
mod report;
mod run;
mod server;
mod stats;
mod turns;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use crate::cli::{Cli, Command};
use crate::echo::{Echo, Exchange};
use crate::report::{Latencies, Report, Settings};
use crate::run::Failures;

#[tokio::main]
async fn main() -> ExitCode {
    // An error means that another provider was installed before, which is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cli = Cli::parse();
    let measured = async {
        match &cli.command {
            Command::Turns(options) => turns::measure(options).await,
            Command::Events(options) => events::measure(options).await,
            Command::Echo(options) => echo(options).await,
        }
    };
    // The first interrupt ends the measurement, and dropping it stops a server that it started. A second one ends the
    // program at once.
    let ended = tokio::select! {
        ended = measured => ended,
        interrupt = tokio::signal::ctrl_c() => Err(interrupt.err().map_or_else(
            || anyhow::anyhow!("interrupted"),
            |error| anyhow::Error::new(error).context("cannot listen for interrupts"),
        )),
    };
    let json = match &cli.command {
        Command::Turns(options) => options.target.json.as_deref(),
        Command::Events(options) => options.target.json.as_deref(),
        Command::Echo(options) => options.json.as_deref(),
    };
    match ended.and_then(|report| report.publish(json).map(|()| report.clean())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn echo(options: &cli::Echo) -> anyhow::Result<Report> {
    let server = Echo::start().await?;
    let exchange = Exchange { request_bytes: options.message_bytes, answer_bytes: options.message_bytes };
    let latency = server.measure(options.sessions, options.calls, exchange).await.context("the echo failed")?;
    Ok(Report {
        command: "echo",
        settings: Settings {
            sessions: options.sessions,
            calls: Some(options.calls),
            message_bytes: options.message_bytes,
            ..Settings::default()
        },
        latencies: vec![Latencies { name: "bare echo", summary: latency.summary() }],
        figures: Vec::new(),
        failures: Failures::new(),
        curve: Vec::new(),
    })
}
