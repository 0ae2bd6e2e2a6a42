//! The soak by hand: `cargo run -p tests --bin soak -- --minutes 30`.

use clap::Parser;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tests::soak::{Class, FAULTS, Options, run};

/// Breaks a cluster of three nodes in every way for a while, and checks every session's record.
#[derive(Debug, Parser)]
struct Args {
    /// Repeats what everybody does in a run; printed at its beginning and end.
    #[arg(long)]
    seed: Option<u64>,
    /// For how many minutes faults are caused.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// How many sessions run at the same time.
    #[arg(long, default_value_t = 8)]
    sessions: usize,
    /// How many seconds Redis is stopped at most.
    #[arg(long, default_value_t = 8)]
    outage: u64,
    /// Only this class of fault of nodes and servers, such as `Killed`; may be repeated.
    #[arg(long, value_parser = class)]
    only: Vec<Class>,
}

fn class(name: &str) -> Result<Class, String> {
    let all = || FAULTS.iter().map(|class| format!("{class:?}")).collect::<Vec<_>>().join(", ");
    let found = FAULTS.iter().find(|class| format!("{class:?}").eq_ignore_ascii_case(name));
    found.copied().ok_or_else(|| format!("one of {}", all()))
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs());
    let seed = args.seed.unwrap_or(now);
    println!("seed {seed}");
    let options = Options {
        seed,
        time: Duration::from_secs_f64(args.minutes * 60.0),
        sessions: args.sessions,
        outage: Duration::from_secs(args.outage.max(1)),
        only: args.only,
    };
    let (summary, good) = tokio::select! {
        done = run(&options) => done,
        // The nodes and servers end with the run that started them.
        _ = tokio::signal::ctrl_c() => return ExitCode::FAILURE,
    };
    println!("\n{summary}");
    println!("seed {seed}: {}", if good { "all is well" } else { "FAILED; run it again with --seed" });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
