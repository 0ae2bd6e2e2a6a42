//! Lines that the person types.
//!
//! A thread of its own reads them, from the first time one is wanted: a read of a terminal cannot be called off, and the
//! program must be able to end while one is waited for. The thread ends with the input, or with the program.

use std::io::BufRead;

use tokio::sync::mpsc;

/// Lines typed ahead that are kept; the thread waits beyond that.
const AHEAD: usize = 64;

pub struct Keyboard {
    lines: Option<mpsc::Receiver<String>>,
}

impl Keyboard {
    pub fn new() -> Keyboard {
        Keyboard { lines: None }
    }

    /// Lines from somewhere else than the terminal.
    #[cfg(test)]
    pub fn typed(lines: &[&str]) -> Keyboard {
        let (sender, receiver) = mpsc::channel(AHEAD);
        for line in lines {
            sender.try_send((*line).to_owned()).unwrap_or_else(|_| unreachable!("fewer lines than are kept"));
        }
        Keyboard { lines: Some(receiver) }
    }

    /// A keyboard on which nothing is typed while the sender lives.
    #[cfg(test)]
    pub fn silent() -> (Keyboard, mpsc::Sender<String>) {
        let (sender, receiver) = mpsc::channel(AHEAD);
        (Keyboard { lines: Some(receiver) }, sender)
    }

    /// The next line; `None` when the input has ended. May be dropped while waiting; no line is lost.
    pub async fn line(&mut self) -> Option<String> {
        self.lines.get_or_insert_with(start).recv().await
    }
}

fn start() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
