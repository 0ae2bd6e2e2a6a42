//! Where the model's commands and command-line agents run: containers of a Docker daemon, or pods of a
//! Kubernetes cluster.
//!
//! [`Sandboxes`] is the port: an enum over the drivers, with one conformance suite (`tests/`) for all of them. The server's
//! nodes call it, and decide by the database which sandbox and subagent belongs to which session; nothing here is remembered.
//!
//! A *sandbox* is a container that waits for commands. A *subagent* is a container that runs one command line, given a prompt on
//! its standard input, and ends. What must hold for both:
//!
//! - It has the id that its row in the database has. Starting the same id twice, also from two nodes at once, gives one.
//! - It carries labels that name the deployment and the session, so that a node that has no other trace of it finds it
//!   ([`Sandboxes::list`]).
//! - It ends by itself at its maximum age, whether or not a node is left to end it.
//! - Exit codes come from the runtime, or from the shell that waited for the process; they are never guessed.
//! - No node is needed between a subagent's start and its end, and any node can collect its result.
//!
//! # Isolation
//!
//! With Docker each runs in a container of its own, as the user that the image names, under the daemon's default seccomp and
//! AppArmor profiles, with all capabilities dropped (so that the image's root is no more than another user: it cannot even
//! change the owner of a file) and without a way to gain any (`no-new-privileges`). Memory (without swap), processor time,
//! processes and age are limited by [`Limits`]; the output of the main process is not logged anywhere. With [`Network::Off`]
//! it has a loopback interface only, else the daemon's default network, from where it reaches whatever that network reaches:
//! the other containers of that network, and the host's addresses. Nothing of the host is mounted.
//!
//! It shares the host's kernel: a hole in the kernel is a way out. To close that, configure the daemon with another default
//! runtime, such as gVisor's. What it writes to disk is not limited, because Docker limits it on few file systems only.
//!
//! With Kubernetes each is a pod of its own, under the same rules: no capabilities and no way to gain any, the runtime's default
//! seccomp profile, limits of memory, processor time and age, no token of a service account, no names of services. Three things
//! are the cluster's to do. The network: a pod has one, and carries the label `bae.network` with `on` or `off`, by which a
//! network policy takes it away (docs/operations.md). Processes: the kubelet's `podPidsLimit` is the limit, for Kubernetes has none for one
//! pod. Swap: a node either has it or not. A runtime class, such as gVisor's, keeps pods apart from their node's kernel.
//!
//! The two differ in one more thing that callers see: a container that has ended is started again with its files, while a pod is
//! made anew, without them.

mod capture;
mod docker;
mod error;
mod kubernetes;
mod script;

pub use capture::{Captured, Output};
pub use docker::Docker;
pub use error::Error;
pub use kubernetes::{Kubernetes, PodSettings, PullPolicy, Toleration};

use std::time::Duration;

/// What a driver needs to know beside where its containers run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of those who share the database: of other deployments' containers nothing is seen.
    pub deployment: String,
    /// What each sandbox and each subagent may use.
    pub limits: Limits,
    /// How long one call of the runtime may take.
    pub call_timeout: Duration,
}

/// What a sandbox or a subagent may use. Each has a setting of the server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of memory; swap is not used.
    pub memory: u64,
    /// Thousandths of a processor.
    pub milli_cpus: u32,
    /// Processes and threads; not for pods. Some are needed to start a command, about ten for each that starts at the same time.
    pub pids: u32,
    /// Time after which a sandbox ends by itself. A subagent has its own.
    pub max_age: Duration,
    /// Whether it can reach a network.
    pub network: Network,
}

/// Whether a container can reach a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// The network that the runtime gives it.
    On,
    /// None but its own loopback.
    Off,
}

/// A container to be started.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Its id: letters, digits, hyphens and underscores.
    pub id: String,
    /// The image. It has to have `/bin/sh` and `sleep`; for a subagent also `cat`, `head`, `mkdir` and `mkfifo`.
    pub image: String,
    /// The session it belongs to.
    pub session: String,
    /// The session's profile.
    pub profile: String,
}

/// A command to be run in a sandbox.
#[derive(Debug, Clone)]
pub struct Command {
    /// What `/bin/sh -c` is given.
    pub script: String,
    /// Time after which it is ended.
    pub timeout: Duration,
    /// Bytes of each output stream that are kept.
    pub output_cap: usize,
}

/// A subagent to be launched.
#[derive(Debug, Clone)]
pub struct SubagentSpec {
    /// Its container.
    pub container: Spec,
    /// The command line, for `/bin/sh`.
    pub command: String,
    /// What it reads on its standard input.
    pub prompt: Vec<u8>,
    /// Time after which it is ended.
    pub timeout: Duration,
    /// Bytes of each output stream that are kept.
    pub output_cap: usize,
}

/// How far a subagent is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Its container was made and not started: it is being launched at this moment, or whoever launched it is dead.
    NotStarted,
    /// It runs.
    Running,
    /// It has ended.
    Ended(Ended),
}

/// What a subagent left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How it came to its end.
    pub end: End,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
}

/// How a subagent ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Its process exited with this code; 128 and the signal where it was killed by one. The text says more where there is
    /// more to say.
    Exited(i64, Option<String>),
    /// Its time was over.
    TimedOut,
    /// Its container ended without a result, and why.
    Died(String),
}

/// What a container is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It waits for commands.
    Sandbox,
    /// It runs one command line.
    Subagent,
}

/// A container that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its id.
    pub id: String,
    /// What it is for.
    pub kind: Kind,
    /// The session it was started for.
    pub session: String,
    /// Whether it runs; otherwise it has ended, or was never started.
    pub running: bool,
}

/// The drivers. Their futures are large, because HTTP clients' are, so each is put on the heap.
#[derive(Debug, Clone)]
pub enum Sandboxes {
    /// Containers of a Docker daemon.
    Docker(Docker),
    /// Pods of a Kubernetes cluster.
    Kubernetes(Box<Kubernetes>),
}

impl Sandboxes {
    /// Finds out whether the image can be used: looks for it, and fetches it where it is missing.
    ///
    /// # Errors
    /// `Refused` with the registry's reason; `Unavailable`.
    pub async fn provision(&self, image: &str) -> Result<(), Error> {
        match self {
            Self::Docker(docker) => Box::pin(docker.provision(image)).await,
            Self::Kubernetes(kubernetes) => Box::pin(kubernetes.provision(image)).await,
        }
    }

    /// Starts a sandbox, or adopts the one with this id that was started before; one that has ended is started again, with
    /// its files where the runtime keeps them. Its image is fetched where it is missing.
    ///
    /// # Errors
    /// `Refused` with the reason, and nothing is left; `Unavailable`, and it may have been started.
    pub async fn start(&self, spec: &Spec) -> Result<(), Error> {
        match self {
            Self::Docker(docker) => {
                Box::pin(docker.provision(&spec.image)).await?;
                Box::pin(docker.start(spec)).await
            }
            // The node that takes the pod fetches it.
            Self::Kubernetes(kubernetes) => Box::pin(kubernetes.start(spec)).await,
        }
    }

    /// Runs a command in a sandbox. It reads nothing on its standard input. Processes that it leaves behind go on.
    ///
    /// When its time is over, when the caller drops the future and when the caller's process dies, the command is ended: all
    /// processes of its session, and all that descend from those. A process that has left the session and has lost its parent
    /// as well is not found; it ends with the sandbox.
    ///
    /// # Errors
    /// `Gone` when the sandbox does not run (any more), `TimedOut`, `Refused` where the command cannot be run, `Unavailable`.
    pub async fn exec(&self, id: &str, command: &Command) -> Result<Output, Error> {
        match self {
            Self::Docker(docker) => Box::pin(docker.exec(id, command)).await,
            Self::Kubernetes(kubernetes) => Box::pin(kubernetes.exec(id, command)).await,
        }
    }

    /// Launches a subagent, or adopts the one with this id that was launched before: it never runs twice. Its image is
    /// fetched where it is missing. The command line and the prompt are given as files, and are part of no process's arguments or environment.
    ///
    /// # Errors
    /// `Refused` with the reason, and nothing is left; `Unavailable`, and it may have been launched.
    pub async fn launch(&self, spec: &SubagentSpec) -> Result<(), Error> {
        match self {
            Self::Docker(docker) => {
                Box::pin(docker.provision(&spec.container.image)).await?;
                Box::pin(docker.launch(spec)).await
            }
            Self::Kubernetes(kubernetes) => Box::pin(kubernetes.launch(spec)).await,
        }
    }

    /// How far a subagent is, and its result once it has ended. The result stays until [`Self::stop`].
    ///
    /// # Errors
    /// `Gone` when there is no such subagent, `Unavailable`.
    pub async fn collect(&self, id: &str, output_cap: usize) -> Result<Progress, Error> {
        match self {
            Self::Docker(docker) => Box::pin(docker.collect(id, output_cap)).await,
            Self::Kubernetes(kubernetes) => Box::pin(kubernetes.collect(id, output_cap)).await,
        }
    }

    /// Ends and removes a sandbox or a subagent with all it holds; nothing is left when this returns. One that does not exist
    /// is ended.
    ///
    /// # Errors
    /// `Refused`, `Unavailable`.
    pub async fn stop(&self, id: &str) -> Result<(), Error> {
        match self {
            Self::Docker(docker) => Box::pin(docker.stop(id)).await,
            Self::Kubernetes(kubernetes) => Box::pin(kubernetes.stop(id)).await,
        }
    }

    /// All sandboxes and subagents of this deployment.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn list(&self) -> Result<Vec<Found>, Error> {
        match self {
            Self::Docker(docker) => Box::pin(docker.list()).await,
            Self::Kubernetes(kubernetes) => Box::pin(kubernetes.list()).await,
        }
    }
}
