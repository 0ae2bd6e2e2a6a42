//! The program `baesrv`.

#![warn(unreachable_pub)]

use std::process::ExitCode;

fn main() -> ExitCode {
    node::cli::main(std::env::args_os())
}
