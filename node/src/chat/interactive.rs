//! The conversation with a person: lines from the keyboard, everybody's events from the subscription.

use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use super::history::{self, Shown};
use super::patience::Patience;
use super::tools::Call;
use super::turn::Driver;
use super::{sentence, watch};

const PROMPT: &str = "> ";
const GRACE: Duration = Duration::from_secs(2);

/// Runs until the person leaves, the input ends, or the session does.
pub async fn run(mut driver: Driver, shown: Shown) -> anyhow::Result<()> {
    let (session, screen) = (driver.session.clone(), driver.screen.clone());
    let since = history::read(&session, &screen, shown).await?;
    let mut adopted = adopts(&driver, shown);
    let watched = (session.clone(), screen.clone());
    let watching = tokio::spawn(async move { watch::watch(&watched.0, &watched.1, since, Patience::endless()).await });
    let mut watching = AbortOnDropHandle::new(watching);

    loop {
        if screen.with(|transcript| transcript.over()) {
            screen.note("Nothing more can be sent here. `baesrv chat` opens a new session.");
            return Ok(());
        }
        if adopted && !screen.with(|transcript| transcript.running()) {
            let waiting = screen.with(|transcript| transcript.waiting_calls(&driver.tools));
            adopted = !waiting.is_empty();
            if adopted && still_waiting(&driver, &waiting).await {
                adopted = false;
                if let Err(error) = driver.resume(waiting).await {
                    screen.trouble(&format!("{error:#}"));
                }
            }
            continue;
        }
        screen.prompt(PROMPT);
        let line = tokio::select! {
            line = driver.keyboard.line() => line,
            () = screen.until(|transcript| !transcript.running()), if adopted => {
                screen.typed("");
                continue;
            }
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

/// Says in which state the session is entered, and whether its turn becomes this terminal's: the terminal that began it may be
/// gone, so this one answers for the client if that one does not.
fn adopts(driver: &Driver, shown: Shown) -> bool {
    let owner = driver.screen.with(|transcript| transcript.waits_for().map(sentence::name));
    let running = driver.screen.with(|transcript| transcript.running());
    let waiting = driver.screen.with(|transcript| !transcript.waiting_calls(&driver.tools).is_empty());
    match (owner, shown) {
        (_, Shown::Nothing) => return false,
        (Some(owner), Shown::Conversation) => driver.screen.note(&format!("The turn waits for an answer of {owner}.")),
        (None, Shown::Conversation) if running => driver.screen.note("A turn is running; what it does follows."),
        (None, Shown::Conversation) if waiting => driver.screen.note("The turn waits for this client."),
        (None, Shown::Conversation) => {}
    }
    running || waiting
}

/// Gives the terminal that began the turn the time to answer.
async fn still_waiting(driver: &Driver, calls: &[Call]) -> bool {
    let answered = driver.screen.until(|transcript| transcript.answered(calls));
    tokio::time::timeout(GRACE, answered).await.is_err()
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
