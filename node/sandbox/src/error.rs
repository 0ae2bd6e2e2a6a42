//! What goes wrong with sandboxes, by what the caller does about it.

use std::time::Duration;

/// Why an operation failed. The texts are shown to clients and to the model; they hold no secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sandbox or subagent does not run, and why. It has to be started anew.
    #[error("{0}")]
    Gone(String),
    /// The command took longer than it may, and was ended.
    #[error("the command took longer than {} s and was ended", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The runtime refused what was asked. Asking again has the same answer.
    #[error("{0}")]
    Refused(String),
    /// The runtime did not answer, or not in time: whether it did what was asked is unknown.
    #[error("the container runtime cannot be reached: {0}")]
    Unavailable(String),
}
