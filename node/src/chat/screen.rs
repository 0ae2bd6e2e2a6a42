//! The person's screen: lines from several tasks, one at a time, and a prompt that stays below them.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::api::Event;
use super::transcript::{Line, Transcript, Voice};

/// Where everything goes that is not the model's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notes {
    Stdout,
    /// Leaves standard output to the model's answer.
    Stderr,
}

/// A handle to the screen; clones share it.
#[derive(Clone)]
pub struct Screen {
    inner: Arc<Mutex<Inner>>,
    told: Arc<Notify>,
}

struct Inner {
    transcript: Transcript,
    colour: bool,
    notes: Notes,
    /// Whether a person types here, so that there is a prompt to keep.
    typing: bool,
    prompt: Option<&'static str>,
    connected: bool,
    #[cfg(test)]
    captured: Option<Vec<String>>,
}

impl Screen {
    pub fn new(colour: bool, notes: Notes) -> Screen {
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
        Screen { inner: Arc::new(Mutex::new(inner)), told: Arc::default() }
    }

    /// A screen whose lines a test reads.
    #[cfg(test)]
    pub fn captured() -> Screen {
        let screen = Screen::new(false, Notes::Stdout);
        screen.lock().captured = Some(Vec::new());
        screen
    }

    #[cfg(test)]
    pub fn lines(&self) -> Vec<String> {
        self.lock().captured.clone().unwrap_or_default()
    }

    /// Shows an event, unless it was shown.
    pub fn event(&self, event: &Event) {
        let mut inner = self.lock();
        for line in inner.transcript.tell(event) {
            inner.print(&line);
        }
        drop(inner);
        self.told.notify_waiters();
    }

    /// Waits until the session, as it was told here, is like this.
    pub async fn until(&self, like_this: impl Fn(&Transcript) -> bool) {
        loop {
            let told = self.told.notified();
            tokio::pin!(told);
            // Registered before the look, so that nothing told after it is missed.
            told.as_mut().enable();
            if like_this(&self.lock().transcript) {
                return;
            }
            told.await;
        }
    }

    /// Takes note of an event without showing it.
    pub fn skip(&self, event: &Event) {
        self.lock().transcript.tell(event);
    }

    pub fn note(&self, text: &str) {
        self.lock().print(&Line::note(text.to_owned()));
    }

    pub fn trouble(&self, text: &str) {
        self.lock().print(&Line::trouble(text.to_owned()));
    }

    pub fn line(&self, line: &Line) {
        self.lock().print(line);
    }

    /// The connection is gone; said once until it is back.
    pub fn lost(&self, why: &str) {
        let mut inner = self.lock();
        if std::mem::take(&mut inner.connected) {
            inner.print(&Line::trouble(format!("Connection lost ({why}); trying again.")));
        }
    }

    pub fn back(&self) {
        let mut inner = self.lock();
        if !std::mem::replace(&mut inner.connected, true) {
            inner.print(&Line::note("Connected again.".to_owned()));
        }
    }

    /// Asks for input: the prompt stays below whatever is printed, until something was typed.
    pub fn prompt(&self, prompt: &'static str) {
        let mut inner = self.lock();
        if inner.typing {
            inner.prompt = Some(prompt);
            inner.draw_prompt();
        }
    }

    /// A line was typed: the terminal shows it, and anything else than a terminal does not.
    pub fn typed(&self, line: &str) {
        let mut inner = self.lock();
        inner.prompt = None;
        if !inner.typing && !line.is_empty() {
            inner.print(&Line::said(Voice::Person, "you".to_owned(), line));
        }
    }

    /// Reads or changes what is known of the session.
    pub fn with<T>(&self, act: impl FnOnce(&mut Transcript) -> T) -> T {
        act(&mut self.lock().transcript)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while printing leaves nothing half-changed that matters.
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
        // A closed terminal or pipe ends the program through its input or its signals, not through this line.
        let _ = if self.notes == Notes::Stderr && line.voice != Voice::Model {
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
            // Programs read the model's words alone.
            Some(_) if self.notes == Notes::Stderr && line.voice == Voice::Model => line.text.clone(),
            Some(name) if self.colour => format!("\x1b[1m{name}>\x1b[22m {}", line.text),
            Some(name) => format!("{name}> {}", line.text),
            None => format!("  {}", line.text.replace('\n', "\n  ")),
        };
        let colour = match line.voice {
            Voice::Person => "36",
            Voice::Model => "39",
            Voice::Tool => "33",
            Voice::Note => "2",
            Voice::Trouble => "31",
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
