//! `baesrv admin …`: calls the admin API of a server and prints the answer, as a table for people or with `--json` as
//! the API gives it, for programs.

mod client;
mod output;

use super::terminal::{Failure, print};
use crate::config::Usage;
use client::{Client, Connection};
use engine::ids::{KeyId, ProfileId, SandboxId, SessionId, SubagentId};
use output::{Column, field, json_items, list, table};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Flags of `admin`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print JSON, as the admin API gives it
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Profiles: which providers, tools and MCP servers keys may use
    #[command(subcommand)]
    Profile(Profile),
    /// Client keys
    #[command(subcommand)]
    Key(Key),
    /// Sessions and their logs
    #[command(subcommand)]
    Session(Session),
    /// The living nodes of the cluster
    Nodes,
    /// The MCP servers of the configuration
    McpServers,
    /// The providers of the configuration
    Providers,
    /// The configuration's registries, without secrets
    Config,
    /// What became of the images of the profiles
    SandboxStatus,
    /// The sandboxes of all sessions
    #[command(subcommand)]
    Sandbox(Sandbox),
    /// The running subagents of all sessions
    #[command(subcommand)]
    Subagent(Subagent),
}

#[derive(clap::Subcommand)]
enum Profile {
    /// Make a profile
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        fields: Fields,
    },
    /// Show all profiles
    List,
    /// Show one
    Show {
        /// Its id or name
        profile: String,
    },
    /// Change one: what is not given stays
    Update {
        /// Its id or name
        profile: String,
        /// A new name
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        fields: Fields,
    },
    /// Delete one that has no active keys
    Delete {
        /// Its id or name
        profile: String,
    },
}

/// What a profile holds. Lists can be given with commas or by repetition; a flag without a value means none.
#[derive(clap::Args)]
struct Fields {
    /// The provider that is asked first
    #[arg(long, value_name = "NAME")]
    primary_provider: Option<String>,
    /// Providers that are asked when it fails, in this order
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 0..=1, action = clap::ArgAction::Append)]
    fallback_providers: Option<Vec<String>>,
    /// MCP servers
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 0..=1, action = clap::ArgAction::Append)]
    mcp_servers: Option<Vec<String>>,
    /// Client tools that may be declared
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 0..=1, action = clap::ArgAction::Append)]
    allowed_tools: Option<Vec<String>>,
    /// Images that may be started
    #[arg(long, value_name = "IMAGES", value_delimiter = ',', num_args = 0..=1, action = clap::ArgAction::Append)]
    available_sandboxes: Option<Vec<String>>,
}

#[derive(clap::Subcommand)]
enum Key {
    /// Make a client key of a profile and show it, this once
    Create {
        /// A name, for lists
        name: String,
        /// The profile's id or name
        #[arg(long, value_name = "ID|NAME")]
        profile: String,
    },
    /// Show the active keys
    List,
    /// Revoke one: it stops at once, and its sessions end
    Revoke {
        /// Its id
        id: KeyId,
    },
}

#[derive(clap::Subcommand)]
enum Session {
    /// Show sessions
    List {
        /// Only those in this state
        #[arg(long, value_parser = ["open", "closed", "error"])]
        state: Option<String>,
    },
    /// Show which node serves a session
    Owner {
        /// Its id
        id: SessionId,
    },
    /// Show a session's log
    Events {
        /// Its id
        id: SessionId,
    },
    /// Close one, whatever runs in it
    Close {
        /// Its id
        id: SessionId,
    },
    /// Remove one that has ended, with all its events, for ever
    Purge {
        /// Its id
        id: SessionId,
    },
}

#[derive(clap::Subcommand)]
enum Sandbox {
    /// Show all sandboxes
    List,
    /// Stop one: its session may start another
    Stop {
        /// Its id
        id: SandboxId,
    },
}

#[derive(clap::Subcommand)]
enum Subagent {
    /// Show all running subagents
    List,
    /// Cancel one
    Cancel {
        /// Its id
        id: SubagentId,
    },
}

const PROFILE: [Column; 8] = [
    Column::new("ID", "id"),
    Column::new("NAME", "name"),
    Column::new("PRIMARY", "primary_provider"),
    Column::new("FALLBACK", "fallback_providers"),
    Column::new("MCP SERVERS", "mcp_servers"),
    Column::new("TOOLS", "allowed_tools"),
    Column::new("SANDBOXES", "available_sandboxes"),
    Column::new("UPDATED", "updated_at"),
];
const KEY: [Column; 6] = [
    Column::new("ID", "id"),
    Column::new("NAME", "name"),
    Column::new("PREFIX", "prefix"),
    Column::new("PROFILE", "profile_id"),
    Column::new("CREATED", "created_at"),
    Column::new("LAST USED", "last_used_at"),
];
const MADE_KEY: [Column; 3] =
    [Column::new("ID", "id"), Column::new("PROFILE", "profile_id"), Column::new("KEY (SHOWN THIS ONCE)", "key")];
const SESSION: [Column; 6] = [
    Column::new("ID", "id"),
    Column::new("STATE", "state"),
    Column::new("PROFILE", "profile_id"),
    Column::new("CLIENT", "client_version"),
    Column::new("CREATED", "created_at"),
    Column::new("CLOSED", "closed_at"),
];
const OWNER: [Column; 2] = [Column::new("SESSION", "session_id"), Column::new("NODE", "node")];
const NODE: [Column; 3] = [Column::new("NODE", "node"), Column::new("STATE", "state"), Column::new("ASKED", "asked")];
const EVENT: [Column; 4] = [
    Column::new("TIME", "created_at"),
    Column::new("TYPE", "event_type"),
    Column::new("KEY", "client_key_id"),
    Column::new("PAYLOAD", "payload"),
];
const MCP_SERVER: [Column; 2] = [Column::new("NAME", "name"), Column::new("TRANSPORT", "transport")];
const PROVIDER: [Column; 4] = [
    Column::new("NAME", "name"),
    Column::new("PROVIDER", "provider"),
    Column::new("MODEL", "model"),
    Column::new("URL", "base_url"),
];
const IMAGE: [Column; 4] = [
    Column::new("PROFILE", "profile_id"),
    Column::new("IMAGE", "name"),
    Column::new("STATUS", "status"),
    Column::new("DETAIL", "detail"),
];

const SANDBOX: [Column; 4] = [
    Column::new("ID", "sandbox_id"),
    Column::new("SESSION", "session_id"),
    Column::new("IMAGE", "image"),
    Column::new("STATE", "state"),
];
const SUBAGENT: [Column; 4] = [
    Column::new("ID", "subagent_id"),
    Column::new("SESSION", "session_id"),
    Column::new("HARNESS", "harness"),
    Column::new("MODEL", "model"),
];

/// What a command prints.
enum Output {
    /// A list: a table, or with `--json` the list.
    List(&'static [Column], Vec<Box<RawValue>>),
    /// One object: a table of one line, or with `--json` the object.
    Object(&'static [Column], Box<RawValue>),
    /// JSON in both cases.
    Json(Box<RawValue>),
    /// A sentence, or with `--json` nothing.
    Message(String),
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let client = Client::new(args.connection, &crate::config::ProcessEnvironment)?;
    let output = match args.command {
        Command::Profile(command) => profile(&client, command).await?,
        Command::Key(command) => key(&client, command).await?,
        Command::Session(command) => session(&client, command).await?,
        Command::Nodes => items(&client, &NODE, "nodes").await?,
        Command::McpServers => items(&client, &MCP_SERVER, "mcp-servers").await?,
        Command::Providers => items(&client, &PROVIDER, "providers").await?,
        Command::Config => Output::Json(client.get("config").await?),
        Command::SandboxStatus if args.json => Output::Json(client.get("sandbox-status").await?),
        Command::SandboxStatus => Output::List(&IMAGE, images(&client).await?),
        Command::Sandbox(Sandbox::List) => items(&client, &SANDBOX, "sandboxes").await?,
        Command::Sandbox(Sandbox::Stop { id }) => {
            client.send("DELETE", &format!("sandboxes/{id}"), None).await?;
            Output::Message(format!("stopped {id}"))
        }
        Command::Subagent(Subagent::List) => items(&client, &SUBAGENT, "subagents").await?,
        Command::Subagent(Subagent::Cancel { id }) => {
            client.send("DELETE", &format!("subagents/{id}"), None).await?;
            Output::Message(format!("cancelled {id}"))
        }
    };
    print(&match (output, args.json) {
        (Output::List(_, items), true) => json_items(&items),
        (Output::List(columns, items), false) => table(columns, &items),
        (Output::Object(_, object), true) => format!("{object}\n"),
        (Output::Object(columns, object), false) => table(columns, &[object]),
        (Output::Json(json), true) => format!("{json}\n"),
        (Output::Json(json), false) => output::pretty(&json),
        (Output::Message(_), true) => String::new(),
        (Output::Message(text), false) => format!("{text}\n"),
    });
    Ok(())
}

async fn items(client: &Client, columns: &'static [Column], path: &str) -> Result<Output, Failure> {
    Ok(Output::List(columns, client.all(path).await?))
}

async fn profile(client: &Client, command: Profile) -> Result<Output, Failure> {
    match command {
        Profile::Create { name, fields } => {
            let mut body = json!({"name": name});
            if fields.primary_provider.is_none() {
                return Err(
                    Usage::new("--primary-provider is missing; `baesrv admin providers` shows the names").into()
                );
            }
            fields.put(&mut body);
            let made = client.send("POST", "profiles", Some(&body)).await?;
            // The answer holds only what the server has chosen, so the whole profile is read.
            let id = field(&made, "id");
            Ok(Output::Object(&PROFILE, client.get(&format!("profiles/{id}")).await?))
        }
        Profile::List => items(client, &PROFILE, "profiles").await,
        Profile::Show { profile } => {
            let id = profile_id(client, profile).await?;
            Ok(Output::Object(&PROFILE, client.get(&format!("profiles/{id}")).await?))
        }
        Profile::Update { profile, name, fields } => {
            let id = profile_id(client, profile).await?;
            let path = format!("profiles/{id}");
            let mut body = output::value(&client.get(&path).await?);
            if let Some(name) = name {
                body["name"] = name.into();
            }
            fields.put(&mut body);
            Ok(Output::Object(&PROFILE, client.send("PUT", &path, Some(&body)).await?))
        }
        Profile::Delete { profile } => {
            let id = profile_id(client, profile).await?;
            client.send("DELETE", &format!("profiles/{id}"), None).await?;
            Ok(Output::Message(format!("deleted {id}")))
        }
    }
}

impl Fields {
    /// Sets the given fields in a profile's JSON; the others stay as they are.
    fn put(self, body: &mut Value) {
        if let Some(name) = self.primary_provider {
            body["primary_provider"] = name.into();
        }
        let lists = [
            ("fallback_providers", self.fallback_providers),
            ("mcp_servers", self.mcp_servers),
            ("allowed_tools", self.allowed_tools),
            ("available_sandboxes", self.available_sandboxes),
        ];
        for (field, names) in lists {
            if let Some(names) = names {
                body[field] = list(names);
            }
        }
    }
}

async fn key(client: &Client, command: Key) -> Result<Output, Failure> {
    match command {
        Key::Create { name, profile } => {
            let profile = profile_id(client, profile).await?;
            let body = json!({"name": name, "profile_id": profile});
            Ok(Output::Object(&MADE_KEY, client.send("POST", "keys", Some(&body)).await?))
        }
        Key::List => items(client, &KEY, "keys").await,
        Key::Revoke { id } => {
            client.send("DELETE", &format!("keys/{id}"), None).await?;
            Ok(Output::Message(format!("revoked {id}")))
        }
    }
}

/// The id of the profile with this id or name.
async fn profile_id(client: &Client, text: String) -> Result<String, Failure> {
    if text.parse::<ProfileId>().is_ok() {
        return Ok(text);
    }
    let profiles = client.all("profiles").await?;
    let found = profiles.iter().find(|profile| field(profile, "name") == text);
    found.map(|profile| field(profile, "id")).ok_or_else(|| {
        Failure::Runtime(format!("no profile is named \"{text}\"; `baesrv admin profile list` shows all"))
    })
}

async fn session(client: &Client, command: Session) -> Result<Output, Failure> {
    match command {
        Session::List { state: None } => items(client, &SESSION, "sessions").await,
        Session::List { state: Some(state) } => items(client, &SESSION, &format!("sessions?state={state}")).await,
        Session::Owner { id } => Ok(Output::Object(&OWNER, client.get(&format!("sessions/{id}/owner")).await?)),
        Session::Events { id } => items(client, &EVENT, &format!("sessions/{id}/events")).await,
        Session::Close { id } => {
            client.send("DELETE", &format!("sessions/{id}"), None).await?;
            Ok(Output::Message(format!("closed {id}")))
        }
        Session::Purge { id } => {
            client.send("POST", &format!("sessions/{id}/purge"), None).await?;
            Ok(Output::Message(format!("removed {id}")))
        }
    }
}

/// The images of all profiles, each with its profile's id, for the table.
async fn images(client: &Client) -> Result<Vec<Box<RawValue>>, Failure> {
    let mut lines = Vec::new();
    for profile in client.all("sandbox-status").await? {
        let profile = output::value(&profile);
        for image in profile["images"].as_array().into_iter().flatten() {
            let mut line = image.clone();
            line["profile_id"] = profile["profile_id"].clone();
            lines.extend(serde_json::value::to_raw_value(&line));
        }
    }
    Ok(lines)
}
