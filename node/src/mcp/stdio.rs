//! An MCP server as a child process, with one JSON message a line on its standard input and output.
//!
//! It runs in a process group of its own, which is ended as a whole: first standard input is closed, then SIGTERM is
//! sent, then SIGKILL, each after the grace period. Dropping the transport kills at once. The child's environment holds
//! the inherited variables of the settings and the configured ones, and never the rest of the node's own, which holds
//! secrets. Standard error is discarded, because it may hold tool input.

use super::Settings;
use super::wire::{EndReason, MAX_MALFORMED, parse};
use bytes::Bytes;
use futures_util::StreamExt;
use process_wrap::tokio::{ChildWrapper, CommandWrap, ProcessGroup};
use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};
use tokio_util::sync::CancellationToken;

const SIGTERM: i32 = 15;
/// How long the output is still read after the process has ended or has closed its input or output. Its last lines may
/// still be in the pipe, and its exit status comes soon; but children that it has left behind may keep the pipe open
/// for ever.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// The transport.
pub(super) struct Process {
    child: Box<dyn ChildWrapper>,
    lines: FramedRead<ChildStdout, AnyDelimiterCodec>,
    input: Arc<Mutex<Option<ChildStdin>>>,
    /// How the process has ended, if it has.
    status: Option<ExitStatus>,
    /// Cancelled when writing to the process has failed.
    input_closed: CancellationToken,
    /// Set when the process has ended or has closed its input or output: until when the rest is waited for.
    drain_deadline: Option<Instant>,
    malformed: usize,
    max_message: usize,
    grace: Duration,
    closed: bool,
    end_reason: EndReason,
}

impl Process {
    /// Starts the program. The error says why it could not be started.
    pub(super) fn spawn(
        command: &str,
        args: &[String],
        env: &BTreeMap<String, SecretString>,
        settings: &Settings,
        end_reason: EndReason,
    ) -> io::Result<Self> {
        let mut wrap = CommandWrap::with_new(command, |process| {
            process
                .args(args)
                .env_clear()
                .envs(settings.environment.iter().map(|(name, value)| (name, value)))
                .envs(env.iter().map(|(name, value)| (name, value.expose_secret())))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .kill_on_drop(true);
        });
        let mut child = wrap.wrap(ProcessGroup::leader()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin().take(), child.stdout().take()) else {
            let _ = child.start_kill();
            return Err(io::Error::other("the child has no pipes"));
        };
        let max_message = settings.max_message;
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), Vec::new(), max_message);
        Ok(Self {
            child,
            lines: FramedRead::new(output, codec),
            input: Arc::new(Mutex::new(Some(input))),
            status: None,
            input_closed: CancellationToken::new(),
            drain_deadline: None,
            malformed: 0,
            max_message,
            grace: settings.close_grace,
            closed: false,
            end_reason,
        })
    }

    /// The next line; `None` when the output or the process has ended. All state is in `self`, so the future may be
    /// dropped.
    async fn line(&mut self) -> Option<Result<Bytes, AnyDelimiterCodecError>> {
        let until = match self.drain_deadline {
            Some(until) => until,
            None => {
                tokio::select! {
                    biased;
                    line = self.lines.next() => if line.is_some() { return line },
                    status = self.child.wait() => self.status = status.ok(),
                    () = self.input_closed.cancelled() => {}
                }
                *self.drain_deadline.insert(Instant::now() + DRAIN_TIMEOUT)
            }
        };
        if let Ok(Some(line)) = timeout_at(until, self.lines.next()).await {
            return Some(line);
        }
        if self.status.is_none() {
            self.status = timeout_at(until, self.child.wait()).await.ok().and_then(Result::ok);
        }
        None
    }

    /// Kills a server that breaks the protocol. Closing gracefully would let it go on.
    fn give_up(&mut self, reason: String) {
        self.end_reason.record(reason);
        let _ = self.child.start_kill();
    }

    /// Waits for the process to exit; false if it takes longer than `within`.
    async fn exited(&mut self, within: Duration) -> bool {
        timeout(within, self.child.wait()).await.is_ok()
    }
}

impl Transport<RoleClient> for Process {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (input, input_closed) = (self.input.clone(), self.input_closed.clone());
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut input = input.lock().await;
            let Some(input) = input.as_mut() else {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the connection is closed"));
            };
            // No error here: `receive` knows better why writing failed. It ends the connection and so this request.
            if input.write_all(&line).await.is_err() || input.flush().await.is_err() {
                input_closed.cancel();
            }
            Ok(())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        // The future may be dropped at any await and made again: all state is in `self`.
        loop {
            match self.line().await {
                Some(Ok(line)) if line.trim_ascii().is_empty() => {}
                Some(Ok(line)) => match parse(&line) {
                    Some(message) => return Some(message),
                    None => {
                        self.malformed += 1;
                        if self.malformed > MAX_MALFORMED {
                            self.give_up(format!("it wrote over {MAX_MALFORMED} lines that are not MCP messages"));
                            return None;
                        }
                    }
                },
                Some(Err(AnyDelimiterCodecError::MaxChunkLengthExceeded)) => {
                    self.give_up(format!("it wrote a message of more than {} bytes", self.max_message));
                    return None;
                }
                Some(Err(AnyDelimiterCodecError::Io(error))) => {
                    self.give_up(format!("its output cannot be read: {error}"));
                    return None;
                }
                None => {
                    let reason = match self.status {
                        Some(status) => format!("its process ended ({status})"),
                        None if self.input_closed.is_cancelled() => "its process closed its input".to_owned(),
                        None => "its process closed its output".to_owned(),
                    };
                    self.end_reason.record(reason);
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        if self.closed {
            return Ok(());
        }
        self.end_reason.record("it was closed");
        // A send that waits for room in a full pipe holds the lock; then only signals end the process.
        if let Ok(mut input) = self.input.try_lock() {
            input.take();
        }
        if !self.exited(self.grace).await {
            let _ = self.child.signal(SIGTERM);
            self.exited(self.grace).await;
        }
        // Kills the whole group, which includes children that a server has left behind. It fails if no process is left.
        let _ = self.child.start_kill();
        self.closed = true;
        self.exited(self.grace).await;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.closed {
            let _ = self.child.start_kill();
        }
    }
}
