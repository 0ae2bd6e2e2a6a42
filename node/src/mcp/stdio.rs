//! An MCP server as a child process: one JSON message a line on its standard input and output.
//!
//! It runs in a process group of its own, which ends as a whole: standard input closes, then SIGTERM, then SIGKILL, each
//! after the grace time. A dropped transport kills at once. Its environment is the inherited variables of the settings and
//! the configured ones, never the node's own, which holds secrets. Standard error is discarded: it may hold tool input.

use super::Settings;
use super::wire::{Ended, MAX_JUNK, parse};
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
/// After the end of the process, its input or its output: what it wrote last is still in the pipe and its status comes soon,
/// but children that it has left behind may hold the pipe open for ever.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The transport.
pub(super) struct Process {
    child: Box<dyn ChildWrapper>,
    lines: FramedRead<ChildStdout, AnyDelimiterCodec>,
    input: Arc<Mutex<Option<ChildStdin>>>,
    /// How the process ended, if it did.
    status: Option<ExitStatus>,
    /// Cancelled when nothing can be written to it any more.
    deaf: CancellationToken,
    /// Set when the process, its input or its output has ended: how long the others are waited for.
    until: Option<Instant>,
    junk: usize,
    max_message: usize,
    grace: Duration,
    closed: bool,
    ended: Ended,
}

impl Process {
    /// Starts the program. The error says why it could not be started.
    pub(super) fn spawn(
        command: &str,
        args: &[String],
        env: &BTreeMap<String, SecretString>,
        settings: &Settings,
        ended: Ended,
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
            deaf: CancellationToken::new(),
            until: None,
            junk: 0,
            max_message,
            grace: settings.close_grace,
            closed: false,
            ended,
        })
    }

    /// The next line, until the output or the process ends. All state is in `self`, so the future may be dropped.
    async fn line(&mut self) -> Option<Result<Bytes, AnyDelimiterCodecError>> {
        let until = match self.until {
            Some(until) => until,
            None => {
                tokio::select! {
                    biased;
                    line = self.lines.next() => if line.is_some() { return line },
                    status = self.child.wait() => self.status = status.ok(),
                    () = self.deaf.cancelled() => {}
                }
                *self.until.insert(Instant::now() + LAST_WORDS)
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

    /// Gives up a server that does not keep to the protocol: a graceful end would let it go on.
    fn give_up(&mut self, reason: String) {
        self.ended.record(reason);
        let _ = self.child.start_kill();
    }

    /// True if it has exited, within the time.
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
        let (input, deaf) = (self.input.clone(), self.deaf.clone());
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut input = input.lock().await;
            let Some(input) = input.as_mut() else {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the connection is closed"));
            };
            // The reading side knows better why it cannot be written: it ends the connection, and so this request.
            if input.write_all(&line).await.is_err() || input.flush().await.is_err() {
                deaf.cancel();
            }
            Ok(())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        // May be dropped at any await and called again: all state is in `self`.
        loop {
            match self.line().await {
                Some(Ok(line)) if line.trim_ascii().is_empty() => {}
                Some(Ok(line)) => match parse(&line) {
                    Some(message) => return Some(message),
                    None => {
                        self.junk += 1;
                        if self.junk > MAX_JUNK {
                            self.give_up(format!("it wrote over {MAX_JUNK} lines that are not MCP messages"));
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
                        None if self.deaf.is_cancelled() => "its process closed its input".to_owned(),
                        None => "its process closed its output".to_owned(),
                    };
                    self.ended.record(reason);
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        if self.closed {
            return Ok(());
        }
        self.ended.record("it was closed");
        // A send that is stuck in a full pipe holds the lock; then only signals help.
        if let Ok(mut input) = self.input.try_lock() {
            input.take();
        }
        if !self.exited(self.grace).await {
            let _ = self.child.signal(SIGTERM);
            self.exited(self.grace).await;
        }
        // The whole group, also what a server that ended by itself has left behind. It is an error if nothing is left.
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
