//! Sends a message and follows its turn to the end: runs the client tools that the turn calls, and reconnects when the
//! stream breaks.
//!
//! Every `session.sendMessage` has an idempotency key. When its stream breaks, the same call is sent again with the
//! same key; the server then streams the turn that it has already begun, or returns its result. A second turn is never
//! started.

use std::time::Duration;

use anyhow::bail;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::api::{Event, Failure, Frame, Frames, Session};
use super::backoff::Backoff;
use super::keyboard::Keyboard;
use super::screen::Screen;
use super::tools::{ASK_USER, CURRENT_TIME, Call, Tools, current_time};
use super::transcript::{Line, LineKind, texts};
use super::{message, message_text};

/// A call whose stream stays silent for so long is waiting behind other calls of the session.
const QUEUED_AFTER: Duration = Duration::from_secs(2);

/// A client that is registered as a driver of its session: one that may send messages.
pub(super) struct Driver {
    pub(super) session: Session,
    pub(super) screen: Screen,
    pub(super) tools: Tools,
    pub(super) keyboard: Keyboard,
}

/// The terminal result of `session.sendMessage`.
#[derive(Deserialize)]
struct Answer {
    message: AnswerMessage,
    #[serde(default)]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct AnswerMessage {
    content: Value,
}

impl Driver {
    pub(super) fn new(session: Session, screen: Screen, tools: Tools, keyboard: Keyboard) -> Driver {
        Driver { session, screen, tools, keyboard }
    }

    /// Sends a text and follows its turn to the end. Without an answer it is an error.
    pub(super) async fn say(&mut self, text: &str) -> anyhow::Result<()> {
        self.screen.with(|transcript| transcript.add_pending_message(text));
        let ended = self.turn(Value::String(text.to_owned())).await;
        self.screen.with(super::transcript::Transcript::clear_pending_messages);
        ended
    }

    /// Answers the calls of a turn that waits for this client, and follows it to its end.
    pub(super) async fn resume(&mut self, calls: Vec<Call>) -> anyhow::Result<()> {
        match self.results(calls).await {
            Some(results) => self.turn(results).await,
            None => Ok(()),
        }
    }

    async fn turn(&mut self, mut content: Value) -> anyhow::Result<()> {
        loop {
            let answer = self.send(content).await?;
            for event in &answer.events {
                self.screen.event(event);
            }
            let text = texts(&answer.message.content);
            if self.screen.with(|transcript| transcript.ended()) {
                bail!("{}", text.unwrap_or_else(|| "the session has ended".to_owned()));
            }
            let calls = Call::ours(&answer.message.content, &self.tools);
            if calls.is_empty() {
                // An event has printed it already, unless the server's events differ from this version's.
                let printed = self.screen.with(|transcript| transcript.last_answer().map(str::to_owned));
                if let Some(text) = text.filter(|text| printed.as_ref() != Some(text)) {
                    self.screen.line(&Line::of_speaker(LineKind::Model, "model".to_owned(), &text));
                }
                return Ok(());
            }
            match self.results(calls).await {
                Some(results) => content = results,
                None => return Ok(()),
            }
        }
    }

    async fn send(&self, content: Value) -> anyhow::Result<Answer> {
        let key = format!("chat-{}", uuid::Uuid::now_v7().simple());
        let params = json!({"message": message(content), "idempotency_key": key});
        let mut backoff = Backoff::one_minute();
        loop {
            match self.attempt("session.sendMessage", &params, &mut backoff).await {
                Ok(result) => return Ok(serde_json::from_str(result.get())?),
                Err(Failure::Lost(why)) => {
                    self.screen.connection_lost(&why);
                    if !backoff.wait().await {
                        bail!(
                            "the server does not come back; the turn goes on when it does: join the session again then"
                        );
                    }
                }
                Err(Failure::Error { code, message }) => bail!("{}", message_text::of_rpc_error(code, &message)),
                Err(failure @ (Failure::Refused { .. } | Failure::Unreadable(_))) => return Err(failure.into()),
            }
        }
    }

    /// Asks for a compaction. The method has no idempotency key, so a broken call is not sent again.
    pub(super) async fn compact(&self, prompt: &str) -> anyhow::Result<()> {
        let params = if prompt.is_empty() { json!({}) } else { json!({"prompt": prompt}) };
        match self.attempt("session.compact", &params, &mut Backoff::one_minute()).await {
            Ok(_) => Ok(()),
            Err(Failure::Lost(why)) => {
                bail!("connection lost ({why}); /events shows whether the compaction went through")
            }
            Err(Failure::Error { code, message }) => bail!("{}", message_text::of_rpc_error(code, &message)),
            Err(failure @ (Failure::Refused { .. } | Failure::Unreadable(_))) => Err(failure.into()),
        }
    }

    async fn attempt(&self, method: &str, params: &Value, backoff: &mut Backoff) -> Result<Box<RawValue>, Failure> {
        let mut frames = self.session.call(method, params).await?;
        let mut frame = self.first(&mut frames).await?;
        self.screen.connection_restored();
        loop {
            backoff.reset();
            match frame {
                Frame::Event(event) => self.screen.event(&event),
                Frame::Result(result) => return Ok(result),
            }
            frame = frames.next().await?;
        }
    }

    /// The first frame. A queued call has none until the turns before it have ended.
    async fn first(&self, frames: &mut Frames) -> Result<Frame, Failure> {
        if let Some(frame) = frames.next_within(QUEUED_AFTER).await? {
            return Ok(frame);
        }
        self.screen.connection_restored();
        self.screen.note("Waiting: another turn comes first.");
        frames.next().await
    }

    /// Runs the tools and returns a message's content with their results.
    ///
    /// `None` if the calls got results meanwhile, from another terminal or because the server gave them up. These
    /// results must not be sent then: the turn may have paused again for other calls, and results that do not fit a
    /// pause end the session.
    async fn results(&mut self, calls: Vec<Call>) -> Option<Value> {
        let mut results = Vec::new();
        for call in &calls {
            results.push(match call.name.as_str() {
                CURRENT_TIME => call.answered(&current_time()),
                ASK_USER => self.ask(call, &calls).await,
                other => call.failed(&format!("this client has no tool named {other}")),
            });
        }
        if self.screen.with(|transcript| transcript.answered(&calls)) {
            self.screen.note("The question was settled without this terminal's answer.");
            return None;
        }
        Some(Value::Array(results))
    }

    /// Asks the person; ends early when the calls have got results from elsewhere.
    async fn ask(&mut self, call: &Call, calls: &[Call]) -> Value {
        self.screen.line(&Line::of_speaker(LineKind::Tool, "question".to_owned(), call.question()));
        self.screen.prompt("answer> ");
        let line = tokio::select! {
            line = self.keyboard.line() => line,
            () = self.screen.until(|transcript| transcript.answered(calls)) => Some(String::new()),
        };
        self.screen.typed(line.as_deref().unwrap_or_default());
        match line {
            Some(line) => call.answered(&line),
            None => call.failed("nobody is at the terminal to answer"),
        }
    }
}
