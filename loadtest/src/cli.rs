//! The command line. All options of a run are here, and the report repeats those that a figure depends on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Load generator for any server of the session API.
#[derive(Parser)]
#[command(version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Turns in a closed loop: every session sends its next message when the last one is answered.
    Turns(Turns),
    /// Latency of an authenticated `GET events?limit=1`.
    Events(Events),
    /// A bare HTTP echo on this machine, measured the same way: what the figures of the others are compared with.
    Echo(Echo),
}

/// What is measured, and how to reach it.
#[derive(Args)]
pub(crate) struct Target {
    /// Address of the server under test (its client port). Several, with commas between, are nodes of one cluster:
    /// requests go to each in turn.
    #[arg(long, env = "BAE_URL", default_value = "http://127.0.0.1:8080", value_delimiter = ',')]
    pub url: Vec<String>,
    /// Client key. Its profile must call the built-in provider.
    #[arg(long, env = "BAE_KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// Start this server program in an empty directory, make a profile and a key, measure it, and stop it.
    #[arg(long, value_name = "BAESRV", conflicts_with_all = ["key"])]
    pub serve: Option<PathBuf>,
    /// With --serve: keep the server's data and log in this directory instead of a temporary one.
    #[arg(long, value_name = "DIR", requires = "serve")]
    pub data: Option<PathBuf>,
    /// Seconds after which a call counts as failed.
    #[arg(long, default_value_t = 60)]
    pub timeout: u64,
    /// Leave the sessions open at the end.
    #[arg(long)]
    pub leave_open: bool,
    /// Write the figures as JSON to this file; `-` is standard output, and then no table is shown.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Target {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// The built-in provider, which the server under test has to be configured to call.
#[derive(Args)]
pub(crate) struct Model {
    /// Where the built-in provider (Anthropic's wire format) listens.
    #[arg(long, default_value = "127.0.0.1:9099")]
    pub provider_addr: SocketAddr,
    /// Milliseconds that the built-in provider takes for each answer.
    #[arg(long, default_value_t = 0)]
    pub provider_ms: u64,
    /// Size of the provider's answer text.
    #[arg(long, default_value_t = 30)]
    pub answer_bytes: usize,
    /// Size of each message text; at least the size of the marker in it.
    #[arg(long, default_value_t = 65)]
    pub message_bytes: usize,
    /// Rounds of a client tool in every turn: the profile must allow the tool `loadtest_echo`.
    #[arg(long, default_value_t = 0)]
    pub rounds: u32,
}

#[derive(Args)]
pub(crate) struct Turns {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub model: Model,
    /// Sessions at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions: u32,
    /// Turns in each session.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
    /// Report how the own share moves with the number of the turn (always, when a session has 100 turns or more).
    #[arg(long)]
    pub curve: bool,
}

#[derive(Args)]
pub(crate) struct Events {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub model: Model,
    /// Readers at the same time, each with a session of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions: u32,
    /// Turns in each session before the reading begins.
    #[arg(long, default_value_t = 1)]
    pub turns: u32,
    /// Reads by each reader.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub calls: u32,
}

#[derive(Args)]
pub(crate) struct Echo {
    /// Callers at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions: u32,
    /// Calls by each caller.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub calls: u32,
    /// Size of the body that is sent and comes back.
    #[arg(long, default_value_t = 65)]
    pub message_bytes: usize,
    /// Write the figures as JSON to this file; `-` is standard output, and then no table is shown.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
