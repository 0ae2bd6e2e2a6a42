//! What every subcommand shares towards the terminal: why it failed, and writing to standard output.

use crate::config::Usage;
use std::io::Write;

/// Why the program ends without success.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Flags, variables or the configuration file are wrong: exit code 2.
    #[error(transparent)]
    Usage(#[from] Usage),
    /// Something failed: exit code 1.
    #[error("{0}")]
    Runtime(String),
}

impl From<coordinator::Error> for Failure {
    fn from(error: coordinator::Error) -> Self {
        Failure::Runtime(format!("{:#}", anyhow::Error::new(error)))
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Runtime(format!("{error:#}"))
    }
}

/// Writes to standard output. It is no failure if the reader has closed the pipe, like `| head`.
pub(super) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
