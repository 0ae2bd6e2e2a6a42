//! The file's `[[providers.entries]]` and `[[mcp.servers]]`: parsed and checked. Profiles refer to their entries by
//! name. A provider and an MCP server may have the same name.

use super::Usage;
use super::source::LONGEST;
use crate::mcp::{ServerConfig, Transport};
use engine::provider::{Entry, Wire};
use secrecy::SecretString;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// One of `[[providers.entries]]`: a model that sessions can use.
#[derive(Debug, Clone)]
pub(crate) struct Provider {
    /// What the engine needs to know of it: name, wire format, effective URL, model, output budget.
    pub(crate) entry: Entry,
    /// The vendor's API key, with `${NAME}` not yet replaced.
    pub(crate) auth_token: SecretString,
    /// The time for one attempt with all its retries. Default 600 s.
    pub(crate) timeout: Duration,
    /// How often one attempt is retried. Default 2.
    pub(crate) max_retries: u32,
    /// The member of an OpenAI request that holds the output budget, if not the host decides.
    pub(crate) max_tokens_field: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Providers {
    entries: Vec<ProviderTable>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ProviderTable {
    name: String,
    provider: String,
    base_url: Option<String>,
    model: String,
    auth_token: Option<SecretString>,
    max_tokens: Option<u32>,
    timeout_secs: Option<f64>,
    max_retries: Option<u32>,
    max_tokens_field: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Mcp {
    servers: Vec<ServerTable>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ServerTable {
    name: String,
    transport: String,
    command: Option<String>,
    args: Vec<String>,
    env: BTreeMap<String, SecretString>,
    url: Option<String>,
    headers: BTreeMap<String, SecretString>,
}

/// The URL of the vendor's API, which counts when an entry names no other.
pub(crate) fn default_base_url(wire: Wire) -> &'static str {
    match wire {
        Wire::Anthropic => "https://api.anthropic.com",
        Wire::OpenAi => "https://api.openai.com",
    }
}

impl Providers {
    pub(super) fn check(self) -> Result<Vec<Provider>, Usage> {
        let names = names("[[providers.entries]]", self.entries.iter().map(|table| table.name.as_str()));
        names?;
        self.entries.into_iter().map(ProviderTable::check).collect()
    }
}

impl ProviderTable {
    fn check(self) -> Result<Provider, Usage> {
        let name = self.name;
        let refuse = |what: String| Usage::new(format!("provider \"{name}\": {what}"));
        let wire = match self.provider.as_str() {
            "anthropic" => Wire::Anthropic,
            "openai" => Wire::OpenAi,
            "" => return Err(refuse("provider is missing; set it to \"anthropic\" or \"openai\"".into())),
            other => return Err(refuse(format!("unknown provider \"{other}\"; use \"anthropic\" or \"openai\""))),
        };
        if self.model.trim().is_empty() {
            return Err(refuse("model is missing; name the model to ask for".into()));
        }
        let base_url = self.base_url.unwrap_or_else(|| default_base_url(wire).to_owned());
        check_url(&base_url).map_err(|what| refuse(format!("base_url {what}")))?;
        let auth_token = self.auth_token.ok_or_else(|| {
            refuse("auth_token is missing; set it, best to an environment variable: auth_token = \"${NAME}\"".into())
        })?;
        let max_tokens = self.max_tokens.unwrap_or(4096);
        if max_tokens == 0 {
            return Err(refuse("max_tokens must be above 0".into()));
        }
        let seconds = self.timeout_secs.unwrap_or(600.0);
        let timeout = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        if timeout.is_zero() || seconds > LONGEST {
            return Err(refuse(
                "timeout_secs must be a number of seconds above 0 and at most 31622400 (366 days)".into(),
            ));
        }
        let max_retries = self.max_retries.unwrap_or(2);
        let usable = |field: &str| ["max_tokens", "max_completion_tokens"].contains(&field);
        match &self.max_tokens_field {
            Some(_) if wire == Wire::Anthropic => {
                return Err(refuse("max_tokens_field is for provider = \"openai\"; remove it".into()));
            }
            Some(field) if !usable(field) => {
                return Err(refuse(format!(
                    "max_tokens_field is \"{field}\"; use \"max_tokens\" or \"max_completion_tokens\""
                )));
            }
            _ => {}
        }
        Ok(Provider {
            entry: Entry {
                wire,
                base_url: base_url.trim_end_matches('/').to_owned(),
                model: self.model,
                max_tokens,
                name,
            },
            auth_token,
            timeout,
            max_retries,
            max_tokens_field: self.max_tokens_field,
        })
    }
}

impl Mcp {
    pub(super) fn check(self) -> Result<Vec<ServerConfig>, Usage> {
        names("[[mcp.servers]]", self.servers.iter().map(|table| table.name.as_str()))?;
        self.servers.into_iter().map(ServerTable::check).collect()
    }
}

impl ServerTable {
    fn check(self) -> Result<ServerConfig, Usage> {
        let ServerTable { name, transport, command, args, env, url, headers } = self;
        let refuse = |what: String| Usage::new(format!("MCP server \"{name}\": {what}"));
        let given = |value: Option<String>, key: &str| {
            value
                .filter(|text| !text.trim().is_empty())
                .ok_or_else(|| refuse(format!("{key} is missing; transport \"{transport}\" needs it")))
        };
        let endpoint = || {
            let url = given(url, "url")?;
            check_url(&url).map_err(|what| refuse(format!("url {what}")))?;
            match headers.keys().find(|header| http::HeaderName::try_from(*header).is_err()) {
                Some(header) => Err(refuse(format!("\"{header}\" in headers is not a header name"))),
                None => Ok((url, headers)),
            }
        };
        let transport = match transport.as_str() {
            "stdio" => Transport::Stdio { command: given(command, "command")?, args, env },
            "http" => endpoint().map(|(url, headers)| Transport::Http { url, headers })?,
            "sse" => endpoint().map(|(url, headers)| Transport::Sse { url, headers })?,
            "" => return Err(refuse("transport is missing; set it to \"stdio\", \"http\" or \"sse\"".into())),
            other => {
                return Err(refuse(format!("unknown transport \"{other}\"; use \"stdio\", \"http\" or \"sse\"")));
            }
        };
        Ok(ServerConfig { name, transport })
    }
}

/// Checks that every table has a name, and that no two have the same.
fn names<'a>(tables: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Usage> {
    let mut seen = std::collections::BTreeSet::new();
    for (index, name) in names.enumerate() {
        if name.trim().is_empty() {
            return Err(Usage::new(format!("{tables} number {}: name is missing or blank; give it one", index + 1)));
        }
        if !seen.insert(name) {
            return Err(Usage::new(format!("{tables}: the name \"{name}\" is used twice; rename one")));
        }
    }
    Ok(())
}

/// Checks a URL. The error is a sentence without its subject, to which the caller adds the name of the setting. It does
/// not show the URL, which may hold a secret.
pub(super) fn check_url(text: &str) -> Result<(), &'static str> {
    let url = reqwest::Url::parse(text).map_err(|_| "is not a URL; write http://HOST or https://HOST")?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err("must begin with http:// or https:// and a host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "must not hold a user name or password, for it is shown to administrators and logged; use a header",
        );
    }
    Ok(())
}
