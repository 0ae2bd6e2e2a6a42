//! The command line of `baesrv`: parses the arguments, starts the runtime and runs a subcommand.
//!
//! The program exits with 0 on success, with 1 when something failed, and with 2 when flags, variables or the
//! configuration file are wrong. Every failure is one line on standard error that says what to change.

mod admin;
mod dev;
mod ready;
mod serve;
mod signals;
mod terminal;
#[cfg(test)]
mod tests;

use crate::config::Usage;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;
use terminal::{Failure, print};

/// Durable, multi-client sessions with language models.
#[derive(Parser)]
#[command(name = "baesrv", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the client port and the admin port.
    Serve(serve::Args),
    /// Bring the database's schema up to date and exit.
    Migrate(serve::MigrateArgs),
    /// Serve from this folder with nothing else: a model, a profile and a key are made at the first start.
    Dev(dev::Args),
    /// Talk to a server from this terminal.
    Chat(crate::chat::Args),
    /// Manage a server over its admin port.
    Admin(admin::Args),
    /// Print the version of this program.
    Version,
    /// Ask a server whether it is ready for requests; the exit code tells.
    Ready(ready::Args),
}

/// Runs the program with these arguments, of which the first is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let program = arguments.first().map_or_else(|| "baesrv".into(), |name| name.to_string_lossy().into_owned());
    let command = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command,
        Err(error) => return refuse(&error),
    };
    // Must be installed before the first TLS connection. It fails only if one is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&Failure::Runtime(format!("cannot start threads: {error}"))),
    };
    let done = runtime.block_on(Box::pin(run(command, program)));
    // Without waiting: a thread that reads standard input cannot be interrupted.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure),
    }
}

async fn run(command: Command, program: String) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::serve(args).await,
        Command::Migrate(args) => serve::migrate(args).await,
        Command::Dev(args) => dev::dev(args, &program).await,
        Command::Chat(args) => Ok(crate::chat::run(args).await?),
        Command::Admin(args) => admin::run(args).await,
        Command::Ready(args) => ready::ready(args).await,
        Command::Version => {
            print(concat!("baesrv ", env!("CARGO_PKG_VERSION"), "\n"));
            Ok(())
        }
    }
}

fn fail(failure: &Failure) -> ExitCode {
    let line = failure.to_string();
    eprintln!("baesrv: {}", line.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    match failure {
        Failure::Usage(_) => ExitCode::from(2),
        Failure::Runtime(_) => ExitCode::from(1),
    }
}

/// Prints help as clap renders it, and a mistake as one line.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            print(&error.render().to_string());
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{}", error.render());
            ExitCode::from(2)
        }
        _ => fail(&Failure::Usage(Usage::new(usage_line(error)))),
    }
}

fn usage_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let what = what.split("\n\nFor more information").next().unwrap_or_default();
    let line = what.trim_start_matches("error:").split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{line}; --help shows what can be given")
}
