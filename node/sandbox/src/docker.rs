//! The Docker driver. The daemon is reached by the address that `DOCKER_HOST` holds for other programs: a Unix socket or TCP.
//!
//! Every call has a time limit, because a daemon that hangs accepts connections. A container keeps its state after it ended, so
//! that the next command can say why it did; it is removed when the sandbox is stopped.

mod container;
mod exec;
mod image;
mod subagent;

use crate::script::{NOT_FOUND, TERMINATED};
use crate::{Error, Settings};
use bollard::models::{ContainerInspectResponse, ContainerState};
use bollard::query_parameters::InspectContainerOptions;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// The pause between two questions whether something has happened.
const POLL: Duration = Duration::from_millis(50);

/// Containers of a Docker daemon.
#[derive(Debug, Clone)]
pub struct Docker {
    client: bollard::Docker,
    /// Whether the client speaks the newest version of the API that both sides know. It can be asked for twice.
    negotiated: Arc<AtomicBool>,
    settings: Settings,
}

impl Docker {
    /// A driver for the daemon at `host` (`unix://…` or `tcp://…`). Nothing is asked yet.
    ///
    /// # Errors
    /// `Refused` when the address cannot be used, or names a socket that does not exist.
    pub fn new(host: &str, settings: Settings) -> Result<Self, Error> {
        let client = bollard::Docker::connect_with_host(host)
            .map_err(|error| Error::Refused(format!("the Docker host {host} cannot be used: {error}")))?;
        Ok(Self { client, negotiated: Arc::default(), settings })
    }

    /// Whether the daemon answers.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn ping(&self) -> Result<(), Error> {
        let client = self.client().await?;
        Ok(self.call(client.ping()).await.map(drop)?)
    }

    async fn client(&self) -> Result<&bollard::Docker, Failure> {
        if !self.negotiated.load(Ordering::Relaxed) {
            self.call(self.client.clone().negotiate_version()).await?;
            self.negotiated.store(true, Ordering::Relaxed);
        }
        Ok(&self.client)
    }

    async fn call<T>(&self, question: impl Future<Output = Result<T, bollard::errors::Error>>) -> Result<T, Failure> {
        let limit = self.settings.call_timeout;
        match timeout(limit, question).await {
            Ok(answer) => answer.map_err(Failure::from),
            Err(_) => Err(Failure::Silent(format!("the Docker daemon did not answer in {} s", limit.as_secs_f64()))),
        }
    }

    /// # Errors
    /// `Gone` when there is no such container.
    async fn inspect(&self, id: &str) -> Result<ContainerInspectResponse, Error> {
        let name = container::name(id)?;
        let client = self.client().await?;
        match self.call(client.inspect_container(&name, None::<InspectContainerOptions>)).await {
            Err(Failure::Answer(404, _)) => Err(Error::Gone("its container does not exist any more".into())),
            other => Ok(other?),
        }
    }

    /// Why no command can be run in a sandbox; nothing if one can.
    async fn why_gone(&self, id: &str) -> Result<Option<Error>, Error> {
        let state = match self.inspect(id).await {
            Ok(found) => found.state.unwrap_or_default(),
            Err(gone @ Error::Gone(_)) => return Ok(Some(gone)),
            Err(error) => return Err(error),
        };
        if state.running == Some(true) && state.paused != Some(true) {
            return Ok(None);
        }
        let why = match state.exit_code {
            _ if state.paused == Some(true) => "its container is paused".to_owned(),
            Some(0) => "its container reached its maximum age and ended".to_owned(),
            _ => why_ended(&state),
        };
        Ok(Some(Error::Gone(why)))
    }
}

/// Why a container's main process is not there any more.
fn why_ended(state: &ContainerState) -> String {
    match (state.oom_killed, state.exit_code) {
        (Some(true), _) => "its container ran out of memory and was ended".to_owned(),
        (_, Some(TERMINATED)) => "its container was asked to end".to_owned(),
        (_, Some(NOT_FOUND)) => "its image lacks one of the programs `sleep` and `mkdir`".to_owned(),
        (_, Some(code)) => format!("its container was ended (exit code {code})"),
        (_, None) => "its container was ended".to_owned(),
    }
}

/// Why a call of the daemon brought nothing.
#[derive(Debug)]
enum Failure {
    /// The daemon said no: the status of HTTP, and its words.
    Answer(u16, String),
    /// It could not be asked, or did not answer.
    Silent(String),
}

impl Failure {
    /// As an error that begins with what was tried.
    fn during(self, what: &str) -> Error {
        match self {
            Self::Answer(503, message) => Error::Unavailable(message),
            Self::Answer(_, message) => Error::Refused(format!("{what}: {}", message.trim())),
            Self::Silent(why) => Error::Unavailable(why),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.during("the Docker daemon refused")
    }
}

impl From<bollard::errors::Error> for Failure {
    fn from(error: bollard::errors::Error) -> Self {
        match error {
            bollard::errors::Error::DockerResponseServerError { status_code, message } => {
                Self::Answer(status_code, message)
            }
            bollard::errors::Error::DockerStreamError { error } => Self::Answer(500, error),
            other => Self::Silent(describe(&other)),
        }
    }
}

/// An error with its causes: the client's own text often names neither the address nor the reason.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
