//! One command in a pod, over a websocket of the API server.
//!
//! The script is not part of the request, which has a bounded length and may be logged, but comes over the command's standard
//! input. That stays open afterwards: a watcher runs beside the command (`script::EXEC`), which ends the command once the
//! input is cut: by this file when the command takes too long, and by the operating system when the caller does not wait any
//! more or has died, as each server on the way closes what it holds to the next one.
//!
//! The API server says the exit code when the output has ended, which what the command left behind may hold open for ever. So
//! the shell that has waited for the command says it as well, at the end of standard error (`Marked`).

use super::pod::{MAIN, name};
use super::{Failure, Kubernetes};
use crate::capture::Capture;
use crate::script::exec_from_input;
use crate::{Captured, Command, Error, Output};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess};
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use uuid::Uuid;

/// How long a command that is being ended may take to be gone.
const ENDING: Duration = Duration::from_secs(10);
/// How often it is asked whether the pod still runs while a command is silent.
const LOOK: Duration = Duration::from_secs(10);
/// How long a pod may take to be seen as ended after its processes were killed.
const DEATH: Duration = Duration::from_secs(5);
/// Silence after which everything that an exited command wrote has arrived, and the longest time that is waited for it.
const QUIET: Duration = Duration::from_millis(200);
const DRAIN: Duration = Duration::from_secs(5);
/// The exit code of a process that was killed.
const KILLED: i64 = 137;
/// Bytes of one read of the output, and bytes of it that the client holds.
const READ: usize = 64 << 10;
const HELD: usize = 256 << 10;
/// How the words begin that stand on standard output where the command could not be run.
const RUNTIME: &str = "OCI runtime exec failed";
/// Linux takes no longer argument.
const LONGEST_SCRIPT: usize = 128 * 1024 - 1;

impl Kubernetes {
    pub(crate) async fn exec(&self, id: &str, command: &Command) -> Result<Output, Error> {
        let deadline = Instant::now() + command.timeout;
        let script = command.script.as_str();
        if script.len() > LONGEST_SCRIPT || script.contains('\0') {
            return Err(Error::Refused(format!(
                "a command has at most {LONGEST_SCRIPT} bytes, and none of them is zero"
            )));
        }
        let lines = script.split('\n').count().to_string();
        let words = ["/bin/sh", "-c", &exec_from_input(), "sh", &lines];
        let caps = (command.output_cap, command.output_cap);
        // The command does not know it, so that it cannot write it.
        let word = Uuid::now_v7().simple().to_string();
        let mut run = match timeout_at(deadline, Run::start(self, id, MAIN, &words, caps, Some(&word))).await {
            Ok(run) => run?,
            Err(_) => return Err(Error::TimedOut(command.timeout)),
        };
        let finished = async {
            run.write(&word, script).await?;
            run.read().await
        };
        match timeout_at(deadline, finished).await {
            Ok(end) => run.finish(end?).await,
            Err(_) => {
                run.end().await;
                Err(Error::TimedOut(command.timeout))
            }
        }
    }

    /// Runs one command that ends by itself within the time of a call.
    pub(super) async fn ask(
        &self,
        id: &str,
        container: &str,
        script: &str,
        caps: (usize, usize),
    ) -> Result<Output, Error> {
        let limit = self.settings.call_timeout;
        let asked = async {
            let mut run = Run::start(self, id, container, &["/bin/sh", "-c", script], caps, None).await?;
            let end = run.read().await?;
            run.output(end)
        };
        match timeout(limit, Box::pin(asked)).await {
            Ok(answer) => answer,
            Err(_) => {
                Err(Error::Unavailable(format!("a command in the pod took longer than {} s", limit.as_secs_f64())))
            }
        }
    }
}

/// A command that was started.
struct Run<'a> {
    kubernetes: &'a Kubernetes,
    id: &'a str,
    /// Its connection, cut when this is dropped.
    _process: AttachedProcess,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    status: Pin<Box<dyn Future<Output = Option<Status>> + Send>>,
    out: Stream,
    err: Stream,
}

/// How a command's connection came to its end.
enum Ending {
    /// The API server says how the command ended.
    Status(Box<Status>),
    /// The command has exited with this code, and something that it left behind holds its output.
    Exited(i64),
    /// The connection was lost.
    Lost,
}

/// One stream of output.
struct Stream {
    reader: Pin<Box<dyn AsyncRead + Send>>,
    buffer: Vec<u8>,
    capture: Marked,
    open: bool,
}

impl Stream {
    fn new(reader: impl AsyncRead + Send + 'static, cap: usize, mark: Option<&str>) -> Self {
        let capture = Marked::new(Capture::new(cap), mark);
        Self { reader: Box::pin(reader), buffer: vec![0; READ], capture, open: true }
    }

    async fn read(&mut self) {
        match self.reader.read(&mut self.buffer).await {
            Ok(count @ 1..) => self.capture.push(&self.buffer[..count]),
            Ok(0) | Err(_) => self.open = false,
        }
    }
}

/// Collects a stream, and takes out of it the one line that begins with a mark, wherever it is: it says an exit code.
struct Marked {
    capture: Capture,
    mark: Option<Vec<u8>>,
    /// The end of what has come, which may be the beginning of the mark, or the mark and not yet the end of its line.
    held: Vec<u8>,
    code: Option<i64>,
}

impl Marked {
    fn new(capture: Capture, mark: Option<&str>) -> Self {
        Self { capture, mark: mark.map(|mark| mark.as_bytes().to_vec()), held: Vec::new(), code: None }
    }

    fn push(&mut self, bytes: &[u8]) {
        let Some(mark) = &self.mark else { return self.capture.push(bytes) };
        if !self.held.is_empty() {
            self.held.extend_from_slice(bytes);
        }
        let whole = if self.held.is_empty() { bytes } else { &self.held };
        let (start, line) = find(whole, mark);
        self.capture.push(&whole[..start]);
        match line {
            Some(line) => {
                self.code = std::str::from_utf8(line).ok().and_then(|code| code.trim().parse().ok());
                self.capture.push(&whole[start + mark.len() + line.len()..]);
                self.mark = None;
                self.held = Vec::new();
            }
            None => self.held = whole[start..].to_vec(),
        }
    }

    fn finish(mut self) -> Captured {
        self.capture.push(&self.held);
        self.capture.finish()
    }
}

/// Where a mark begins in a text, or may begin at its end, and what is between it and the end of its line, if that is there.
fn find<'a>(text: &'a [u8], mark: &[u8]) -> (usize, Option<&'a [u8]>) {
    let mut from = 0;
    while let Some(candidate) = text[from..].iter().position(|byte| *byte == mark[0]) {
        let start = from + candidate;
        let rest = &text[start..];
        if rest.len() < mark.len() {
            if mark.starts_with(rest) {
                return (start, None);
            }
        } else if rest.starts_with(mark) {
            let line = &rest[mark.len()..];
            return (start, line.iter().position(|byte| *byte == b'\n').map(|end| &line[..=end]));
        }
        from = start + 1;
    }
    (text.len(), None)
}

impl<'a> Run<'a> {
    async fn start(
        kubernetes: &'a Kubernetes,
        id: &'a str,
        container: &str,
        words: &[&str],
        caps: (usize, usize),
        mark: Option<&str>,
    ) -> Result<Self, Error> {
        let parameters = AttachParams {
            container: Some(container.into()),
            stdin: true,
            max_stdin_buf_size: Some(HELD),
            max_stdout_buf_size: Some(HELD),
            max_stderr_buf_size: Some(HELD),
            ..AttachParams::default()
        };
        let name = name(id)?;
        let started = kubernetes.call(kubernetes.pods.exec(&name, words.to_vec(), &parameters)).await;
        let mut process = match started {
            Ok(process) => process,
            Err(failure @ Failure::Answer(..)) => {
                return Err(kubernetes
                    .why_gone(id)
                    .await?
                    .unwrap_or_else(|| failure.during("the command cannot be run")));
            }
            Err(failure) => return Err(failure.into()),
        };
        let parts = (process.stdin(), process.stdout(), process.stderr(), process.take_status());
        let (Some(input), Some(out), Some(err), Some(status)) = parts else {
            return Err(Error::Unavailable("the Kubernetes client did not attach the command".into()));
        };
        Ok(Self {
            kubernetes,
            id,
            _process: process,
            input: Box::pin(input),
            status: Box::pin(status),
            out: Stream::new(out, caps.0, None),
            err: Stream::new(err, caps.1, mark),
        })
    }

    /// Hands the script over.
    async fn write(&mut self, word: &str, script: &str) -> Result<(), Error> {
        let written = async {
            self.input.write_all(format!("{word}\n{script}\n").as_bytes()).await?;
            self.input.flush().await
        };
        written.await.map_err(|error| Error::Unavailable(format!("the command could not be sent: {error}")))
    }

    /// Reads the output to its end, which comes with the status, or until the command has exited and nothing of its own can be
    /// left on the way.
    async fn read(&mut self) -> Result<Ending, Error> {
        let mut look = Instant::now() + LOOK;
        let mut drained = None;
        let status = loop {
            tokio::select! {
                status = &mut self.status => break status,
                () = self.out.read(), if self.out.open => look = Instant::now() + LOOK,
                () = self.err.read(), if self.err.open => look = Instant::now() + LOOK,
                () = sleep_until(look) => {
                    if let Some(code) = self.err.capture.code {
                        return Ok(Ending::Exited(code));
                    }
                    if let Some(gone) = self.kubernetes.why_gone(self.id).await? {
                        return Err(gone);
                    }
                    look = Instant::now() + LOOK;
                }
            }
            if self.err.capture.code.is_some() {
                if drained.is_none() {
                    self.release().await;
                }
                let end = *drained.get_or_insert_with(|| Instant::now() + DRAIN);
                look = end.min(Instant::now() + QUIET);
            }
        };
        let Some(status) = status else { return Ok(Ending::Lost) };
        // With the status, both streams have come to their end; without it they never do.
        while self.out.open || self.err.open {
            tokio::select! {
                () = self.out.read(), if self.out.open => {}
                () = self.err.read(), if self.err.open => {}
            }
        }
        Ok(Ending::Status(Box::new(status)))
    }

    /// Tells the watcher that the command has exited. The shell that has said so may still be there when the connection is cut, on
    /// a busy machine, and then what the command left behind would be ended.
    async fn release(&mut self) {
        let told = async {
            self.input.write_all(b"\n").await?;
            self.input.flush().await
        };
        if let Err(error) = told.await {
            tracing::debug!(sandbox = self.id, error = %error, "the watcher of a command could not be told of its end");
        }
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

    async fn finish(self, end: Ending) -> Result<Output, Error> {
        let (kubernetes, id) = (self.kubernetes, self.id);
        let output = self.output(end);
        let doubtful = match &output {
            // The command may have been killed because its container was; then no other command can be run.
            Ok(output) if output.exit_code == KILLED => kubernetes.ask(id, MAIN, "exit 0", (0, 0)).await.is_err(),
            Ok(_) => false,
            Err(_) => true,
        };
        let deadline = Instant::now() + DEATH;
        while doubtful && Instant::now() < deadline {
            if let Some(gone) = kubernetes.why_gone(id).await? {
                return Err(gone);
            }
            sleep(super::POLL).await;
        }
        output
    }

    fn output(self, end: Ending) -> Result<Output, Error> {
        let (unmarked, said) = (self.err.capture.mark.is_some(), self.err.capture.code);
        let (stdout, stderr) = (self.out.capture.finish(), self.err.capture.finish());
        let status = match end {
            Ending::Status(status) => status,
            Ending::Exited(exit_code) => return Ok(Output { stdout, stderr, exit_code }),
            Ending::Lost => return Err(Error::Unavailable("the connection to the command was lost".into())),
        };
        let exit_code = exit_code(said, *status)?;
        if exit_code != 0 && stdout.text.starts_with(RUNTIME) {
            return Err(Error::Refused(format!("the command cannot be run: {}", stdout.text.trim())));
        }
        // There were too many processes to make one for the command, or containerd has lost what was written in a hurry, as some
        // versions do. A shell that was killed said nothing either, and its exit code is true.
        if unmarked && exit_code < 126 {
            let why = format!("the command was not run, or its output was lost: its shell exited with {exit_code}");
            return Err(Error::Unavailable(why));
        }
        Ok(Output { stdout, stderr, exit_code })
    }
}

/// The exit code of a command: what the shell that waited for it has said, or else what the API server says. A runtime was seen
/// to call a command that a signal had ended a success.
fn exit_code(said: Option<i64>, status: Status) -> Result<i64, Error> {
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let code = causes.into_iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message?.parse().ok());
    match (said, status.status.as_deref(), code) {
        (Some(said), ..) => Ok(said),
        (None, Some("Success"), _) => Ok(0),
        (None, _, Some(code)) => Ok(code),
        (None, _, None) => {
            let why = status.message.unwrap_or_default();
            Err(Error::Refused(format!("the command cannot be run: {}", why.trim())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Capture, Marked, Status, exit_code};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};

    #[test]
    fn the_shell_that_waited_knows_the_exit_code() {
        let success = || Status { status: Some("Success".into()), ..Status::default() };
        let cause = StatusCause { reason: Some("ExitCode".into()), message: Some("3".into()), field: None };
        let details = StatusDetails { causes: Some(vec![cause]), ..StatusDetails::default() };
        let failure = || Status { status: Some("Failure".into()), details: Some(details.clone()), ..Status::default() };
        assert_eq!(exit_code(Some(141), success()).unwrap(), 141);
        assert_eq!(exit_code(Some(141), failure()).unwrap(), 141);
        assert_eq!(exit_code(None, success()).unwrap(), 0);
        assert_eq!(exit_code(None, failure()).unwrap(), 3);
        assert!(exit_code(None, Status::default()).is_err());
    }

    fn marked(chunks: &[&[u8]]) -> (String, Option<i64>) {
        let mut marked = Marked::new(Capture::new(1000), Some("0abc"));
        chunks.iter().for_each(|chunk| marked.push(chunk));
        let code = marked.code;
        (marked.finish().text, code)
    }

    #[test]
    fn the_exit_code_is_taken_out_wherever_it_is() {
        let text = b"00ab0abc 137\nlater 0abc 1\n";
        for size in 1..=text.len() {
            let chunks: Vec<&[u8]> = text.chunks(size).collect();
            assert_eq!(marked(&chunks), ("00ablater 0abc 1\n".to_owned(), Some(137)), "{size}");
        }
    }

    #[test]
    fn without_an_exit_code_everything_is_kept() {
        assert_eq!(marked(&[b"a0", b"0a"]), ("a00a".to_owned(), None));
        assert_eq!(marked(&[b"0abc 13"]), ("0abc 13".to_owned(), None));
        assert_eq!(marked(&[]), (String::new(), None));
    }
}
