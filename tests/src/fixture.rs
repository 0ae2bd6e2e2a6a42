//! What a test of one server starts with: a server, a mock provider, a profile and a client key.

use crate::admin::{Admin, Key};
use crate::client::{Api, Session};
use crate::database::{Database, Fault};
use crate::mcp::Mcp;
use crate::provider::Provider;
use crate::server::{Config, Server};
use serde_json::{Value, json};

/// Tools that the usual profile allows.
pub const TOOLS: [&str; 4] = ["clock", "weather", "launch_subagent", "local_subagent_status"];

/// A `[[providers.entries]]` table; the extra lines may hold any of its keys.
pub fn provider_toml(name: &str, kind: &str, url: &str, extra: &str) -> String {
    let retries = if extra.contains("max_retries") { "" } else { "max_retries = 0\n" };
    format!(
        "[[providers.entries]]\nname = \"{name}\"\nprovider = \"{kind}\"\nbase_url = \"{url}\"\nmodel = \"mock-{name}\"\n\
         auth_token = \"token-{name}\"\n{retries}{extra}\n"
    )
}

/// What is to be set up.
#[derive(Debug)]
pub struct Plan {
    config: Config,
    profile: Value,
    kind: &'static str,
    extra: String,
}

impl Default for Plan {
    fn default() -> Self {
        let profile = json!({
            "name": "main", "primary_provider": "main", "fallback_providers": [], "mcp_servers": [],
            "allowed_tools": TOOLS, "available_sandboxes": [],
        });
        Self { config: Config::default(), profile, kind: "anthropic", extra: String::new() }
    }
}

impl Plan {
    /// The wire format of the provider.
    pub fn openai(mut self) -> Self {
        self.kind = "openai";
        self
    }

    /// More keys of the provider's table.
    pub fn provider(mut self, extra: &str) -> Self {
        self.extra.push_str(extra);
        self.extra.push('\n');
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.config = self.config.env(name, value);
        self
    }

    /// More configuration.
    pub fn toml(mut self, text: &str) -> Self {
        self.config = self.config.toml(text);
        self
    }

    /// One more MCP server, used by the profile.
    pub fn mcp(mut self, mcp: &Mcp) -> Self {
        self.config = self.config.toml(&mcp.toml());
        self.profile["mcp_servers"].as_array_mut().expect("a list").push(json!(mcp.name));
        self
    }

    /// One more provider, a fallback of the profile.
    pub fn fallback(mut self, name: &str, kind: &str, provider: &Provider) -> Self {
        self.config = self.config.toml(&provider_toml(name, kind, &provider.url(), ""));
        self.profile["fallback_providers"].as_array_mut().expect("a list").push(json!(name));
        self
    }

    /// Sets a field of the profile.
    pub fn profile(mut self, field: &str, value: Value) -> Self {
        self.profile[field] = value;
        self
    }

    /// Starts everything.
    pub async fn start(self) -> Fixture {
        let provider = Provider::start().await;
        let config = self.config.toml(&provider_toml("main", self.kind, &provider.url(), &self.extra));
        let server = Server::start(config).await;
        let admin = Admin(Api::new(server.http(), server.admin_url()));
        let profile = admin.profile(&self.profile).await;
        let key = admin.key("first", &profile).await;
        let api = Api::new(server.http(), server.url());
        Fixture { server, provider, admin, api, profile, key }
    }
}

/// A running server and what a test needs to use it.
#[derive(Debug)]
pub struct Fixture {
    pub server: Server,
    pub provider: Provider,
    pub admin: Admin,
    pub api: Api,
    /// The profile's id.
    pub profile: String,
    /// A key of it.
    pub key: Key,
}

/// The declaration of the usual client tool.
pub fn clock() -> Value {
    json!({"name": "clock", "description": "The time", "input_schema": {"type": "object", "properties": {}}})
}

impl Fixture {
    /// One with nothing special.
    pub async fn start() -> Self {
        Plan::default().start().await
    }

    /// Opens a session with the client tool `clock` and registers as its driver.
    pub async fn driver(&self) -> Session {
        self.driver_with(json!({"tools": [clock()]})).await
    }

    /// Opens a session with this body and registers as its driver.
    pub async fn driver_with(&self, body: Value) -> Session {
        let session = self.api.open(&self.key.secret, &body).await;
        session.register().await;
        session
    }

    /// A second client key joins the session and registers as a driver.
    pub async fn second(&self, session: &Session) -> Session {
        let key = self.admin.key("second", &self.profile).await;
        let joined = self.api.join(&session.id, &key.secret, &json!({"tools": [clock()]})).await;
        joined.register().await;
        joined
    }

    /// Fails unless a new session of the same server works.
    pub async fn server_lives(&self) {
        self.driver().await.send("still there?").await.result();
    }

    /// The database file.
    pub async fn database(&self) -> Database {
        Database::open(&self.server).await
    }

    /// Makes every insert of an event of this type fail until undone.
    pub async fn fail_inserts(&self, kind: &str) -> Fault {
        self.database().await.fail_inserts(kind).await
    }

    /// Deletes a profile although its keys are active, which the admin API refuses.
    pub async fn lose_profile(&self, profile: &str) {
        self.database().await.delete_profile(profile).await;
    }
}
