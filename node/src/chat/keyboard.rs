//! The lines that the person types.
//!
//! A thread reads them, because a read of a terminal cannot be cancelled and the program must be able to end during
//! one. The thread starts when the first line is asked for, so that `--message` leaves the input alone, and ends with
//! the input or with the program.

use std::io::BufRead;

use tokio::sync::mpsc;

/// Lines that are buffered before the program asks for them; the thread reads no further until there is room.
const MAX_BUFFERED: usize = 64;

pub(super) struct Keyboard {
    lines: Option<mpsc::Receiver<String>>,
}

impl Keyboard {
    pub(super) fn new() -> Keyboard {
        Keyboard { lines: None }
    }

    /// A keyboard on which these lines have been typed.
    #[cfg(test)]
    pub(super) fn typed(lines: &[&str]) -> Keyboard {
        let (sender, receiver) = mpsc::channel(MAX_BUFFERED);
        for line in lines {
            sender.try_send((*line).to_owned()).unwrap_or_else(|_| unreachable!("fewer lines than are buffered"));
        }
        Keyboard { lines: Some(receiver) }
    }

    /// A keyboard on which nothing is typed while the sender lives.
    #[cfg(test)]
    pub(super) fn silent() -> (Keyboard, mpsc::Sender<String>) {
        let (sender, receiver) = mpsc::channel(MAX_BUFFERED);
        (Keyboard { lines: Some(receiver) }, sender)
    }

    /// The next line; `None` when the input has ended. The future may be dropped at any time: no line is lost.
    pub(super) async fn line(&mut self) -> Option<String> {
        self.lines.get_or_insert_with(start).recv().await
    }
}

fn start() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(MAX_BUFFERED);
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
