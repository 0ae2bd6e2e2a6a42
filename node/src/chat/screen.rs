//! The terminal's output. Several tasks print whole lines through it, and the input prompt stays below them.
//!
//! It owns the transcript too, so that an event is taken into account and printed under one lock.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::api::Event;
use super::transcript::{Line, LineKind, Transcript};

/// Where everything but the model's answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notes {
    Stdout,
    /// Standard output then holds the answer alone, for programs (`--message`).
    Stderr,
}

/// A handle to the screen; clones share it.
#[derive(Clone)]
pub(super) struct Screen {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
}

struct Inner {
    transcript: Transcript,
    colour: bool,
    notes: Notes,
    /// Whether input and output are a terminal, so that a prompt is drawn.
    typing: bool,
    prompt: Option<&'static str>,
    connected: bool,
    #[cfg(test)]
    captured: Option<Vec<String>>,
}

impl Screen {
    pub(super) fn new(colour: bool, notes: Notes) -> Screen {
        let inner = Inner {
            transcript: Transcript::default(),
            colour,
            notes,
            typing: std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
            prompt: None,
            connected: true,
            #[cfg(test)]
            captured: None,
        };
        Screen { inner: Arc::new(Mutex::new(inner)), changed: Arc::default() }
    }

    /// A screen whose lines a test reads.
    #[cfg(test)]
    pub(super) fn captured() -> Screen {
        let screen = Screen::new(false, Notes::Stdout);
        screen.lock().captured = Some(Vec::new());
        screen
    }

    #[cfg(test)]
    pub(super) fn lines(&self) -> Vec<String> {
        self.lock().captured.clone().unwrap_or_default()
    }

    /// Takes an event into account and prints it, unless that has been done before.
    pub(super) fn event(&self, event: &Event) {
        let mut inner = self.lock();
        for line in inner.transcript.render(event) {
            inner.print(&line);
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Waits until a condition on the transcript holds.
    pub(super) async fn until(&self, condition: impl Fn(&Transcript) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the condition is checked, so that no event after the check is missed.
            changed.as_mut().enable();
            if condition(&self.lock().transcript) {
                return;
            }
            changed.await;
        }
    }

    /// Takes an event into account without printing it.
    pub(super) fn skip(&self, event: &Event) {
        self.lock().transcript.render(event);
    }

    pub(super) fn note(&self, text: &str) {
        self.lock().print(&Line::note(text.to_owned()));
    }

    pub(super) fn error(&self, text: &str) {
        self.lock().print(&Line::error(text.to_owned()));
    }

    pub(super) fn line(&self, line: &Line) {
        self.lock().print(line);
    }

    /// Says that the connection is lost: once, until it is restored.
    pub(super) fn connection_lost(&self, why: &str) {
        let mut inner = self.lock();
        if std::mem::take(&mut inner.connected) {
            inner.print(&Line::error(format!("Connection lost ({why}); trying again.")));
        }
    }

    pub(super) fn connection_restored(&self) {
        let mut inner = self.lock();
        if !std::mem::replace(&mut inner.connected, true) {
            inner.print(&Line::note("Connected again.".to_owned()));
        }
    }

    /// Draws a prompt, which stays below whatever is printed until [`Screen::typed`].
    pub(super) fn prompt(&self, prompt: &'static str) {
        let mut inner = self.lock();
        if inner.typing {
            inner.prompt = Some(prompt);
            inner.draw_prompt();
        }
    }

    /// Ends the prompt. The line that was typed is printed unless the terminal has shown it already.
    pub(super) fn typed(&self, line: &str) {
        let mut inner = self.lock();
        inner.prompt = None;
        if !inner.typing && !line.is_empty() {
            inner.print(&Line::of_speaker(LineKind::User, "you".to_owned(), line));
        }
    }

    /// Reads or changes the transcript.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Transcript) -> T) -> T {
        act(&mut self.lock().transcript)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while printing leaves the transcript whole, because printing comes last.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn print(&mut self, line: &Line) {
        let text = self.render(line);
        #[cfg(test)]
        if let Some(captured) = &mut self.captured {
            captured.push(text);
            return;
        }
        // A closed terminal or pipe ends the program through the end of its input or a signal, not through this error.
        let _ = if self.notes == Notes::Stderr && line.kind != LineKind::Model {
            writeln!(std::io::stderr().lock(), "{text}")
        } else if self.prompt.is_some() {
            writeln!(std::io::stdout().lock(), "\r\x1b[K{text}")
        } else {
            writeln!(std::io::stdout().lock(), "{text}")
        };
        self.draw_prompt();
    }

    fn render(&self, line: &Line) -> String {
        let text = match &line.name {
            // A program reads the answer: without the speaker's name.
            Some(_) if self.notes == Notes::Stderr && line.kind == LineKind::Model => line.text.clone(),
            Some(name) if self.colour => format!("\x1b[1m{name}>\x1b[22m {}", line.text),
            Some(name) => format!("{name}> {}", line.text),
            None => format!("  {}", line.text.replace('\n', "\n  ")),
        };
        let colour = match line.kind {
            LineKind::User => "36",
            LineKind::Model => "39",
            LineKind::Tool => "33",
            LineKind::Note => "2",
            LineKind::Error => "31",
        };
        if self.colour { format!("\x1b[{colour}m{text}\x1b[0m") } else { text }
    }

    fn draw_prompt(&self) {
        if let Some(prompt) = self.prompt {
            let mut out = std::io::stdout().lock();
            let _ = write!(out, "{prompt}").and_then(|()| out.flush());
        }
    }
}
