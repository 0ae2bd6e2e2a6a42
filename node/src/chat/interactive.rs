//! The conversation with a person: lines from the keyboard, everybody's events from the subscription.

use tokio_util::task::AbortOnDropHandle;

use super::history::{self, Shown};
use super::patience::Patience;
use super::turn::Driver;
use super::{sentence, watch};

const PROMPT: &str = "> ";

/// Runs until the person leaves, the input ends, or the session does.
pub async fn run(mut driver: Driver, shown: Shown) -> anyhow::Result<()> {
    let (session, screen) = (driver.session.clone(), driver.screen.clone());
    let since = history::read(&session, &screen, shown).await?;
    let waiting = screen.with(|transcript| transcript.waiting_calls(&driver.tools));
    if let Some(owner) = screen.with(|transcript| transcript.waits_for().map(sentence::name)) {
        screen.note(&format!("The turn waits for an answer of {owner}."));
    } else if screen.with(|transcript| transcript.running()) {
        screen.note("A turn is running; what it does follows.");
    }
    let watched = (session.clone(), screen.clone());
    let watching = tokio::spawn(async move { watch::watch(&watched.0, &watched.1, since, Patience::endless()).await });
    let mut watching = AbortOnDropHandle::new(watching);

    if !waiting.is_empty() {
        screen.note("The turn waits for this client.");
        if let Err(error) = driver.resume(waiting).await {
            screen.trouble(&format!("{error:#}"));
        }
    }
    loop {
        if screen.with(|transcript| transcript.over()) {
            screen.note("Nothing more can be sent here. `baesrv chat` opens a new session.");
            return Ok(());
        }
        screen.prompt(PROMPT);
        let line = tokio::select! {
            line = driver.keyboard.line() => line,
            ended = &mut watching => {
                screen.typed("");
                // The session ended, or the server refused: its words say which.
                return ended?;
            }
        };
        let Some(line) = line else { return Ok(()) };
        screen.typed(&line);
        let line = line.trim();
        let outcome = match line.split_once(' ').unwrap_or((line, "")) {
            ("", _) => Ok(()),
            ("/quit", _) => return Ok(()),
            ("/help", _) => {
                help(&driver);
                Ok(())
            }
            ("/events", _) => history::list(&session, &screen).await,
            ("/compact", prompt) => driver.compact(prompt.trim()).await,
            _ => driver.say(line).await,
        };
        if let Err(error) = outcome {
            screen.trouble(&format!("{error:#}"));
        }
    }
}

fn help(driver: &Driver) {
    let tools = driver.tools.describe();
    for line in [
        "/compact [prompt]  ask the model for a summary, from which the conversation goes on",
        "/events            list the last events of the session's log",
        "/quit              leave; the session stays open and can be joined again",
        "Anything else is sent as a message.",
        &format!("Tools of this client: {tools}."),
    ] {
        driver.screen.note(line);
    }
}
