//! One command in a container.
//!
//! A dropped connection does not end the process at its other end. So a watcher runs beside the command (`script::EXEC`), which
//! ends the command once the connection's input is cut: by this file when the command takes too long, and by the operating
//! system when the caller does not wait any more or has died.
//!
//! One case is left: a daemon that keeps its containers while it is dead (`live-restore`) does not tell them that the callers of
//! their commands are gone. Such a command goes on until it ends by itself, or with its sandbox.

use super::{Docker, Failure, POLL, container};
use crate::capture::Capture;
use crate::script::EXEC;
use crate::{Command, Error, Output};
use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures_util::{Stream, StreamExt};
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long the daemon may take to say the exit code of a command whose output has ended.
const EXIT_CODE: Duration = Duration::from_secs(10);
/// How long a command that is being ended may take to be gone.
const ENDING: Duration = Duration::from_secs(10);
/// How often it is asked whether the command has exited: what it left behind may hold its output open.
const ASK: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(200), Duration::from_millis(400), Duration::from_secs(1)];
/// Silence after which everything that an exited command wrote has arrived, and the longest time that is waited for it.
const QUIET: Duration = Duration::from_millis(200);
const DRAIN: Duration = Duration::from_secs(5);
/// How long a container may take to be seen as ended after its processes were killed.
const DEATH: Duration = Duration::from_millis(500);
/// The exit code of a process that was killed.
const KILLED: i64 = 137;
/// Bytes of one read of the output.
const READ: usize = 64 << 10;
/// Linux takes no longer argument.
const LONGEST_SCRIPT: usize = 128 * 1024 - 1;
/// How the runtime's own words begin, which stand on standard output where it could not run a command.
const RUNTIME: &str = "OCI runtime exec failed";

type Frames = Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;

impl Docker {
    pub(crate) async fn exec(&self, id: &str, command: &Command) -> Result<Output, Error> {
        let deadline = Instant::now() + command.timeout;
        let mut run = Run::start(self, id, command).await?;
        let exit_code = match timeout_at(deadline, run.read()).await {
            Ok(read) => read?,
            Err(_) => {
                run.end().await;
                return Err(Error::TimedOut(command.timeout));
            }
        };
        run.finish(exit_code).await
    }
}

/// A command that was started.
struct Run<'a> {
    docker: &'a Docker,
    id: &'a str,
    exec: String,
    output: Frames,
    /// Cut when this is dropped.
    input: Pin<Box<dyn AsyncWrite + Send>>,
    stdout: Capture,
    stderr: Capture,
}

impl<'a> Run<'a> {
    async fn start(docker: &'a Docker, id: &'a str, command: &Command) -> Result<Self, Error> {
        let script = command.script.as_str();
        if script.len() > LONGEST_SCRIPT || script.contains('\0') {
            return Err(Error::Refused(format!(
                "a command has at most {LONGEST_SCRIPT} bytes, and none of them is zero"
            )));
        }
        let client = docker.client().await?;
        let options = CreateExecOptions {
            cmd: Some(vec!["/bin/sh", "-c", EXEC, "sh", script]),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            ..CreateExecOptions::default()
        };
        let name = container::name(id)?;
        let exec = match docker.call(client.create_exec(&name, options)).await {
            Ok(exec) => exec.id,
            Err(failure @ Failure::Answer(404 | 409, _)) => {
                return Err(docker.why_gone(id).await?.unwrap_or_else(|| failure.into()));
            }
            Err(failure) => return Err(failure.into()),
        };
        let options = StartExecOptions { output_capacity: Some(READ), ..StartExecOptions::default() };
        let (stdout, stderr) = (Capture::new(command.output_cap), Capture::new(command.output_cap));
        match docker.call(client.start_exec(&exec, Some(options))).await {
            Ok(StartExecResults::Attached { output, input }) => {
                Ok(Self { docker, id, exec, output, input, stdout, stderr })
            }
            Ok(StartExecResults::Detached) => {
                Err(Error::Unavailable("the Docker daemon did not attach the command".into()))
            }
            Err(failure) => Err(docker.why_gone(id).await?.unwrap_or_else(|| failure.into())),
        }
    }

    /// Reads the output to its end, or until the command has exited and nothing of its own can be left on the way. Answers with
    /// the exit code.
    async fn read(&mut self) -> Result<i64, Error> {
        let mut pauses = ASK.into_iter();
        let mut pause = ASK[0];
        let mut ask = Instant::now() + pause;
        let code = loop {
            match timeout_at(ask, self.output.next()).await {
                Ok(Some(frame)) => self.push(frame)?,
                Ok(None) => return self.exit_code().await,
                Err(_) => {}
            }
            if Instant::now() >= ask {
                if let Some(code) = self.inspect().await? {
                    break code;
                }
                pause = pauses.next().unwrap_or(pause);
                ask = Instant::now() + pause;
            }
        };
        let end = Instant::now() + DRAIN;
        while let Ok(Some(frame)) = timeout_at(end.min(Instant::now() + QUIET), self.output.next()).await {
            self.push(frame)?;
        }
        Ok(code)
    }

    fn push(&mut self, frame: Result<LogOutput, bollard::errors::Error>) -> Result<(), Error> {
        match frame.map_err(Failure::from)? {
            LogOutput::StdErr { message } => self.stderr.push(&message),
            LogOutput::StdOut { message } | LogOutput::StdIn { message } | LogOutput::Console { message } => {
                self.stdout.push(&message);
            }
        }
        Ok(())
    }

    /// The exit code, if the command has exited.
    async fn inspect(&mut self) -> Result<Option<i64>, Error> {
        let client = self.docker.client().await?;
        match self.docker.call(client.inspect_exec(&self.exec)).await {
            Ok(found) => Ok(found.exit_code.filter(|_| found.running != Some(true))),
            // The daemon forgets the commands of a container that is removed, and all of them when it is started anew.
            Err(failure @ Failure::Answer(404, _)) => {
                Err(self.docker.why_gone(self.id).await?.unwrap_or_else(|| failure.during("the command was lost")))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    async fn exit_code(&mut self) -> Result<i64, Error> {
        let deadline = Instant::now() + EXIT_CODE;
        while Instant::now() < deadline {
            if let Some(code) = self.inspect().await? {
                return Ok(code);
            }
            sleep(POLL).await;
        }
        Err(Error::Unavailable("the Docker daemon does not say the command's exit code".into()))
    }

    /// Lets the watcher end the command, and waits until it has.
    async fn end(mut self) {
        let ended = async {
            self.input.shutdown().await.map_err(|error| Error::Unavailable(error.to_string()))?;
            self.read().await
        };
        match timeout(ENDING, ended).await {
            // Without its container it is ended as well.
            Ok(Ok(_) | Err(Error::Gone(_))) => {}
            Ok(Err(error)) => tracing::warn!(sandbox = self.id, error = %error, "a command may not have been ended"),
            Err(_) => tracing::warn!(sandbox = self.id, "a command was not ended in time"),
        }
    }

    async fn finish(self, exit_code: i64) -> Result<Output, Error> {
        if exit_code == KILLED {
            // The command may have been killed because its container was.
            let deadline = Instant::now() + DEATH;
            while Instant::now() < deadline {
                if let Some(gone) = self.docker.why_gone(self.id).await? {
                    return Err(gone);
                }
                sleep(POLL).await;
            }
        }
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        if exit_code != 0 && stdout.text.starts_with(RUNTIME) {
            return Err(Error::Refused(format!("the command cannot be run: {}", stdout.text.trim())));
        }
        Ok(Output { stdout, stderr, exit_code })
    }
}
