//! The interactive mode: sends the lines that the person types, while a second task prints the events of the
//! subscription.

use std::time::Duration;

use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use super::backoff::Backoff;
use super::history::{self, Display};
use super::tools::Call;
use super::turn::Driver;
use super::{message_text, watch};

const PROMPT: &str = "> ";
/// How long another terminal with the same key has to answer the calls of a turn before this one does.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// Runs until the person leaves, the input ends, or the session ends.
pub(super) async fn run(mut driver: Driver, display: Display) -> anyhow::Result<()> {
    let (session, screen) = (driver.session.clone(), driver.screen.clone());
    let since = history::read(&session, &screen, display).await?;
    let mut takes_over = takes_over_turn(&driver, display);
    let watched = (session.clone(), screen.clone());
    let watching = tokio::spawn(async move { watch::watch(&watched.0, &watched.1, since, Backoff::unlimited()).await });
    let mut watching = AbortOnDropHandle::new(watching);

    loop {
        if screen.with(|transcript| transcript.ended()) {
            screen.note("Nothing more can be sent here. `baesrv chat` opens a new session.");
            return Ok(());
        }
        if takes_over && !screen.with(|transcript| transcript.running()) {
            let waiting = screen.with(|transcript| transcript.waiting_calls(&driver.tools));
            takes_over = !waiting.is_empty();
            if takes_over && still_waiting(&driver, &waiting).await {
                takes_over = false;
                if let Err(error) = driver.resume(waiting).await {
                    screen.error(&format!("{error:#}"));
                }
            }
            continue;
        }
        screen.prompt(PROMPT);
        let line = tokio::select! {
            line = driver.keyboard.line() => line,
            () = screen.until(|transcript| !transcript.running()), if takes_over => {
                screen.typed("");
                continue;
            }
            ended = &mut watching => {
                screen.typed("");
                // The session has ended, or the server refused the subscription; the error says which.
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
            ("/sandbox", what) => sandbox(&driver, what.trim()).await,
            ("/compact", prompt) => driver.compact(prompt.trim()).await,
            _ => driver.say(line).await,
        };
        if let Err(error) = outcome {
            screen.error(&format!("{error:#}"));
        }
    }
}

/// Prints in which state the session was joined. Returns whether this terminal answers the tool calls of its current
/// turn: the terminal that began the turn may be gone, so another one with the same key has to be able to continue it.
fn takes_over_turn(driver: &Driver, display: Display) -> bool {
    let owner = driver.screen.with(|transcript| transcript.waits_for().map(message_text::name));
    let running = driver.screen.with(|transcript| transcript.running());
    let waiting = driver.screen.with(|transcript| !transcript.waiting_calls(&driver.tools).is_empty());
    match (owner, display) {
        (_, Display::Nothing) => return false,
        (Some(owner), Display::Conversation) => {
            driver.screen.note(&format!("The turn waits for an answer of {owner}."))
        }
        (None, Display::Conversation) if running => driver.screen.note("A turn is running; what it does follows."),
        (None, Display::Conversation) if waiting => driver.screen.note("The turn waits for this client."),
        (None, Display::Conversation) => {}
    }
    running || waiting
}

/// Whether the calls are still unanswered after the terminal that began the turn has had time to answer them.
async fn still_waiting(driver: &Driver, calls: &[Call]) -> bool {
    let answered = driver.screen.until(|transcript| transcript.answered(calls));
    tokio::time::timeout(ANSWER_GRACE, answered).await.is_err()
}

/// Starts the session's sandbox from an image, or stops it. The events of the session show the result.
async fn sandbox(driver: &Driver, what: &str) -> anyhow::Result<()> {
    match what {
        "" => anyhow::bail!("/sandbox needs an image of the profile, or stop"),
        "stop" => driver.session.request("session.stopRemoteSandbox", json!({})).await?,
        image => driver.session.request("session.startRemoteSandbox", json!({"image": image})).await?,
    };
    Ok(())
}

fn help(driver: &Driver) {
    let tools = driver.tools.describe();
    for line in [
        "/compact [prompt]  ask the model for a summary, from which the conversation goes on",
        "/sandbox IMAGE     start the session's sandbox, in which the model's tool `shell` runs",
        "/sandbox stop      stop it",
        "/events            list the last events of the session's log",
        "/quit              leave; the session stays open and can be joined again",
        "Anything else is sent as a message.",
        &format!("Tools of this client: {tools}."),
    ] {
        driver.screen.note(line);
    }
}
