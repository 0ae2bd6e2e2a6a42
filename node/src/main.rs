//! The program `baesrv`.

use std::process::ExitCode;

fn main() -> ExitCode {
    node::cli::main(std::env::args_os())
}
