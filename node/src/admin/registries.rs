//! What the node was configured with (MCP servers, providers, telemetry), and the state of the sandbox images of
//! profiles. Every secret is shown as [`MASK`].

use crate::app::App;
use crate::config::{Provider, Telemetry};
use crate::http::problem::Problem;
use crate::mcp::{ServerConfig, Transport};
use crate::sandboxes;
use axum::Json;
use axum::extract::State;
use engine::event::payload;
use engine::ids::ProfileId;
use engine::provider::Wire;
use secrecy::SecretString;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Stands for every secret, and does not tell its length.
pub(super) const MASK: &str = "••••••••";

#[derive(Serialize)]
pub(super) struct All<T> {
    items: Vec<T>,
}

#[derive(Serialize)]
pub(super) struct McpServer {
    name: String,
    transport: &'static str,
}

#[derive(Serialize)]
pub(super) struct ProviderLine {
    name: String,
    provider: Wire,
    model: String,
    base_url: String,
}

#[derive(Serialize)]
pub(super) struct Whole {
    mcp: Mcp,
    providers: Providers,
    telemetry: TelemetryTable,
}

#[derive(Serialize)]
struct Mcp {
    servers: Vec<McpEntry>,
}

#[derive(Serialize)]
struct McpEntry {
    name: String,
    transport: &'static str,
    command: Option<String>,
    args: Vec<String>,
    url: Option<String>,
    headers: BTreeMap<String, &'static str>,
}

#[derive(Serialize)]
struct Providers {
    entries: Vec<ProviderEntry>,
}

#[derive(Serialize)]
struct ProviderEntry {
    #[serde(flatten)]
    line: ProviderLine,
    auth_token: &'static str,
}

#[derive(Serialize)]
struct TelemetryTable {
    enabled: bool,
    otlp_endpoint: Option<String>,
    otlp_headers: BTreeMap<String, &'static str>,
    sample_ratio: f64,
    service_name: String,
    traces: Switch,
    metrics: Metrics,
}

#[derive(Serialize)]
struct Switch {
    enabled: bool,
}

#[derive(Serialize)]
struct Metrics {
    enabled: bool,
    disabled: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Images {
    profile_id: ProfileId,
    images: Vec<Image>,
}

#[derive(Serialize)]
struct Image {
    name: String,
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

fn masked(secrets: &BTreeMap<String, SecretString>) -> BTreeMap<String, &'static str> {
    secrets.keys().map(|name| (name.clone(), MASK)).collect()
}

/// The URL with its query masked, because a query often holds a key.
fn masked_url(url: &str) -> String {
    url.split_once('?').map_or_else(|| url.to_owned(), |(before, _)| format!("{before}?{MASK}"))
}

impl McpEntry {
    fn new(server: &ServerConfig) -> Self {
        let mut entry = Self {
            name: server.name.clone(),
            transport: server.transport.kind(),
            command: None,
            args: Vec::new(),
            url: None,
            headers: BTreeMap::new(),
        };
        match &server.transport {
            Transport::Stdio { command, args, .. } => {
                entry.command = Some(command.clone());
                entry.args.clone_from(args);
            }
            Transport::Http { url, headers } | Transport::Sse { url, headers } => {
                entry.url = Some(masked_url(url));
                entry.headers = masked(headers);
            }
        }
        entry
    }
}

impl ProviderLine {
    fn new(provider: &Provider) -> Self {
        let entry = &provider.entry;
        Self {
            name: entry.name.clone(),
            provider: entry.wire,
            model: entry.model.clone(),
            base_url: entry.base_url.clone(),
        }
    }
}

impl TelemetryTable {
    fn new(telemetry: &Telemetry) -> Self {
        Self {
            enabled: telemetry.enabled,
            otlp_endpoint: telemetry.otlp_endpoint.clone(),
            otlp_headers: masked(&telemetry.otlp_headers),
            sample_ratio: telemetry.sample_ratio,
            service_name: telemetry.service_name.clone(),
            traces: Switch { enabled: telemetry.traces },
            metrics: Metrics { enabled: telemetry.metrics, disabled: telemetry.disabled_metrics.clone() },
        }
    }
}

fn servers_by_name(app: &App) -> Vec<&ServerConfig> {
    let mut servers: Vec<_> = app.config.mcp_servers.iter().collect();
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    servers
}

fn providers_by_name(app: &App) -> Vec<&Provider> {
    let mut providers: Vec<_> = app.config.providers.iter().collect();
    providers.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
    providers
}

pub(super) async fn mcp_servers(State(app): State<Arc<App>>) -> Json<All<McpServer>> {
    let line = |server: &ServerConfig| McpServer { name: server.name.clone(), transport: server.transport.kind() };
    Json(All { items: servers_by_name(&app).into_iter().map(line).collect() })
}

pub(super) async fn providers(State(app): State<Arc<App>>) -> Json<All<ProviderLine>> {
    Json(All { items: providers_by_name(&app).into_iter().map(ProviderLine::new).collect() })
}

pub(super) async fn config(State(app): State<Arc<App>>) -> Json<Whole> {
    let entry = |provider| ProviderEntry { line: ProviderLine::new(provider), auth_token: MASK };
    Json(Whole {
        mcp: Mcp { servers: servers_by_name(&app).into_iter().map(McpEntry::new).collect() },
        providers: Providers { entries: providers_by_name(&app).into_iter().map(entry).collect() },
        telemetry: TelemetryTable::new(&app.config.telemetry),
    })
}

/// The images of every profile that has some, in the order of the profiles' ids.
pub(super) async fn sandbox_status(State(app): State<Arc<App>>) -> Result<Json<All<Images>>, Problem> {
    let accounts = app.accounts();
    let (mut items, mut after) = (Vec::new(), None);
    loop {
        let (profiles, next) = accounts.profiles(after, crate::http::pagination::MAX_LIMIT).await?;
        for profile in profiles {
            let mut names = profile.fields.available_sandboxes;
            names.sort();
            names.dedup();
            if !names.is_empty() {
                let statuses = sandboxes::images::statuses(&app, names).await?;
                let image = |payload::Image { name, status, detail }| Image { name, status, detail };
                items.push(Images { profile_id: profile.id, images: statuses.into_iter().map(image).collect() });
            }
        }
        if next.is_none() {
            return Ok(Json(All { items }));
        }
        after = next;
    }
}
