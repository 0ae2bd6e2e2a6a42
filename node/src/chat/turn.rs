//! Sending: one message, its turn, the client's tools in it, and whatever the connection does meanwhile.
//!
//! Every call has an idempotency key. When its stream is cut, the same call is made again with the same key, so the server
//! gives the turn it has already begun, or its end; a second turn is never started.

use std::time::Duration;

use anyhow::bail;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::api::{Event, Failure, Frame, Frames, Session};
use super::keyboard::Keyboard;
use super::patience::Patience;
use super::screen::Screen;
use super::tools::{ASK_USER, CURRENT_TIME, Call, Tools, current_time};
use super::transcript::{Line, Voice, texts};
use super::{message, sentence};

/// A call whose stream stays silent for so long is in the queue.
const SILENCE: Duration = Duration::from_secs(2);

/// This client as a driver of its session.
pub struct Driver {
    pub session: Session,
    pub screen: Screen,
    pub tools: Tools,
    pub keyboard: Keyboard,
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
    pub fn new(session: Session, screen: Screen, tools: Tools, keyboard: Keyboard) -> Driver {
        Driver { session, screen, tools, keyboard }
    }

    /// Sends a text and stays with its turn to the end; an error when there was no answer.
    pub async fn say(&mut self, text: &str) -> anyhow::Result<()> {
        self.screen.with(|transcript| transcript.expect(text));
        let ended = self.turn(Value::String(text.to_owned())).await;
        self.screen.with(super::transcript::Transcript::expect_nothing);
        ended
    }

    /// Answers the calls of a turn that waits for this client, and stays with it.
    pub async fn resume(&mut self, calls: Vec<Call>) -> anyhow::Result<()> {
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
            if self.screen.with(|transcript| transcript.over()) {
                bail!("{}", text.unwrap_or_else(|| "the session has ended".to_owned()));
            }
            let calls = Call::ours(&answer.message.content, &self.tools);
            if calls.is_empty() {
                // Said by an event already, unless the server is a stranger one.
                let told = self.screen.with(|transcript| transcript.last_words().map(str::to_owned));
                if let Some(text) = text.filter(|text| told.as_ref() != Some(text)) {
                    self.screen.line(&Line::said(Voice::Model, "model".to_owned(), &text));
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
        let mut patience = Patience::a_minute();
        loop {
            match self.attempt("session.sendMessage", &params, &mut patience).await {
                Ok(result) => return Ok(serde_json::from_str(result.get())?),
                Err(Failure::Lost(why)) => {
                    self.screen.lost(&why);
                    if !patience.wait().await {
                        bail!(
                            "the server does not come back; the turn goes on when it does: join the session again then"
                        );
                    }
                }
                Err(Failure::Error { code, message }) => bail!("{}", sentence::of_rpc_error(code, &message)),
                Err(failure @ (Failure::Refused { .. } | Failure::Unreadable(_))) => return Err(failure.into()),
            }
        }
    }

    /// Asks for a compaction. It has no idempotency key, so it is not asked for twice.
    pub async fn compact(&self, prompt: &str) -> anyhow::Result<()> {
        let params = if prompt.is_empty() { json!({}) } else { json!({"prompt": prompt}) };
        match self.attempt("session.compact", &params, &mut Patience::a_minute()).await {
            Ok(_) => Ok(()),
            Err(Failure::Lost(why)) => {
                bail!("connection lost ({why}); /events shows whether the compaction went through")
            }
            Err(Failure::Error { code, message }) => bail!("{}", sentence::of_rpc_error(code, &message)),
            Err(failure @ (Failure::Refused { .. } | Failure::Unreadable(_))) => Err(failure.into()),
        }
    }

    async fn attempt(&self, method: &str, params: &Value, patience: &mut Patience) -> Result<Box<RawValue>, Failure> {
        let mut frames = self.session.call(method, params).await?;
        let mut frame = self.first(&mut frames).await?;
        self.screen.back();
        loop {
            patience.renew();
            match frame {
                Frame::Event(event) => self.screen.event(&event),
                Frame::Result(result) => return Ok(result),
            }
            frame = frames.next().await?;
        }
    }

    /// The first frame; a queued call has none for as long as others' turns take.
    async fn first(&self, frames: &mut Frames) -> Result<Frame, Failure> {
        if let Some(frame) = frames.next_within(SILENCE).await? {
            return Ok(frame);
        }
        self.screen.back();
        self.screen.note("Waiting: another turn comes first.");
        frames.next().await
    }

    /// Runs the tools and makes the content that answers for them.
    ///
    /// `None` when the calls got their results meanwhile, from another terminal or because they were given up: a late answer
    /// could meet the next pause, whose calls it does not fit, and that would end the session.
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

    /// Asks the person, for as long as the turn waits for the calls.
    async fn ask(&mut self, call: &Call, calls: &[Call]) -> Value {
        self.screen.line(&Line::said(Voice::Tool, "question".to_owned(), call.question()));
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
