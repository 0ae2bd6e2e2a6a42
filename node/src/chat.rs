//! `baesrv chat`: a terminal client that uses only the public API, like any other client.
//!
//! It opens a session or joins one, prints the events of all its clients as they happen, and offers the model two tools
//! of its own. It goes on when the server is restarted: a call whose stream broke is sent again with the same
//! idempotency key, and the server then continues that call's stream instead of starting a second turn.
//!
//! [`turn`] sends messages, [`watch`] holds the subscription, and [`interactive`] runs both. All of them print through
//! [`screen`], which owns the [`transcript`]: what this client knows of the session from the events it has seen.

mod api;
mod backoff;
mod history;
mod interactive;
mod keyboard;
mod message_text;
mod screen;
mod tools;
mod transcript;
mod turn;
mod watch;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use secrecy::SecretString;
use serde_json::{Value, json};

use api::{Api, Failure, Opened, Session};
use keyboard::Keyboard;
use screen::{Notes, Screen};
use tools::Tools;
use turn::Driver;

/// Where `baesrv dev` writes its client key.
const KEY_FILE: &str = ".bae/client.key";

/// Talk to a server from this terminal.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address of the server's client port.
    #[arg(long, env = "BAE_URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Client key; without one, the key that `baesrv dev` left in ./.bae/client.key.
    #[arg(long, env = "BAE_KEY", hide_env_values = true)]
    key: Option<SecretString>,
    /// A PEM file with the authority that signed the server's TLS certificate, beside those of the system.
    #[arg(long, value_name = "PATH", env = "BAE_CA", hide_env = true)]
    ca: Option<PathBuf>,
    /// Join this session instead of opening one.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only watch the session.
    #[arg(long, requires = "session", conflicts_with = "message")]
    observe: bool,
    /// Send this message, print the answer, and exit: with 1 when there was none.
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
    /// Print without colours, as also any value of NO_COLOR asks for.
    #[arg(long, env = "NO_COLOR", hide_env = true, num_args = 0..=1, default_missing_value = "1", value_name = "YES")]
    no_color: Option<String>,
}

/// Runs the client until the person leaves, the session ends, or it cannot go on.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let key = match args.key {
        Some(key) => key,
        None => key_from_file(Path::new(KEY_FILE))?,
    };
    let colour = std::io::stdout().is_terminal() && args.no_color.is_none_or(|no| no.is_empty());
    let notes = if args.message.is_some() { Notes::Stderr } else { Notes::Stdout };
    let screen = Screen::new(colour, notes);
    let api = Api::new(&args.url, args.ca.as_deref(), key)?;

    let (opened, tools) = match enter(&api, args.session.as_deref(), &screen).await {
        Err(Failure::Lost(why)) => bail!("{why}: {}. `baesrv dev` starts a server here; --url names another", args.url),
        entered => entered?,
    };
    let session = api.session(&opened)?;
    screen.note(&format!("Session {} on profile {}.", opened.session_id, opened.profile.describe()));
    if args.observe {
        return observe(&session, &screen).await;
    }
    session.register().await.context("this client cannot send messages in the session")?;
    let tools = declare_allowed(&session, tools, &opened.profile.allowed_tools, &screen).await?;
    let mut driver = Driver::new(session.clone(), screen.clone(), tools, Keyboard::new());

    match args.message {
        Some(text) => {
            if args.session.is_some() {
                // From the log the client learns the id of its key, and which events are older than its connection.
                history::read(&session, &screen, history::Display::Nothing).await?;
            }
            driver.say(&text).await
        }
        None => {
            let again = join_command(&args.url, &opened.session_id);
            screen.note(&format!("Join it from another terminal: {again}"));
            let shown = match args.session {
                Some(_) => history::Display::Conversation,
                None => history::Display::Nothing,
            };
            screen.note("Commands: /help, /events, /compact, /sandbox, /quit. Anything else is a message.");
            interactive::run(driver, shown).await
        }
    }
}

/// Opens or joins, with the client's own tools if the profile allows them.
///
/// With `--observe` they are declared too: the server keeps one declaration for each client key, so an empty one would
/// take the tools away from another terminal that uses the same key.
async fn enter(api: &Api, session: Option<&str>, screen: &Screen) -> Result<(Opened, Tools), Failure> {
    let enter = async |tools: &Tools| match session {
        Some(id) => api.join(id, &tools.declarations()).await,
        None => api.open(&tools.declarations()).await,
    };
    let all = Tools::all();
    match enter(&all).await {
        Err(Failure::Refused { kind, .. }) if kind == "tool_not_allowed" => {
            screen.note("The profile does not allow all of this client's tools.");
            enter(&Tools::none()).await.map(|opened| (opened, Tools::none()))
        }
        opened => opened.map(|opened| (opened, all)),
    }
}

/// Declares the tools that the profile allows, if [`enter`] could not declare all of them.
async fn declare_allowed(
    session: &Session,
    declared: Tools,
    allowed: &[String],
    screen: &Screen,
) -> anyhow::Result<Tools> {
    if !declared.is_empty() {
        return Ok(declared);
    }
    let some = Tools::all().allowed(allowed);
    if !some.is_empty() {
        session.request("session.updateClientTools", json!({"tools": some.declarations()})).await?;
    }
    screen.note(&format!("Tools of this client in the session: {}.", some.describe()));
    Ok(some)
}

async fn observe(session: &Session, screen: &Screen) -> anyhow::Result<()> {
    let since = history::read(session, screen, history::Display::Conversation).await?;
    screen.note("Watching. Ctrl-C ends it.");
    watch::watch(session, screen, since, backoff::Backoff::one_minute()).await
}

fn key_from_file(path: &Path) -> anyhow::Result<SecretString> {
    match std::fs::read_to_string(path) {
        Ok(key) if !key.trim().is_empty() => Ok(SecretString::from(key.trim().to_owned())),
        Ok(_) => bail!("{} is empty; give a client key with --key or BAE_KEY", path.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "no client key: give one with --key or BAE_KEY, or start chat in the directory where `baesrv dev` runs \
             (it keeps its key in {})",
            path.display()
        ),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The command that joins the session. It holds no key: the other terminal takes it from its file or environment.
fn join_command(url: &str, session: &str) -> String {
    if url == "http://127.0.0.1:8080" {
        format!("baesrv chat --session {session}")
    } else {
        format!("baesrv chat --url {url} --session {session}")
    }
}

/// A user message with this content.
fn message(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
