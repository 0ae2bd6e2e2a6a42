//! The HTTP client of the admin API: finds the key, reads lists page by page, and turns errors into advice.

use crate::admin::key::read_secret;
use crate::cli::terminal::Failure;
use crate::client;
use crate::config::{Environment, Usage};
use reqwest::header::HeaderValue;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};
use std::time::Duration;

const URL: &str = "http://127.0.0.1:8081";
/// Where the key is looked for last: the files that `baesrv dev` and `baesrv serve` write in the current folder.
const KEY_FILES: [&str; 2] = [".bae/admin.key", "admin.key"];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(30);

/// Which server is called, and with which key.
#[derive(clap::Args)]
pub(super) struct Connection {
    /// The admin port [BAE_ADMIN_URL; default http://127.0.0.1:8081]
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// The admin key [BAE_ADMIN_KEY]; better not on the command line, where others may see it
    #[arg(long, global = true, value_name = "KEY")]
    admin_key: Option<SecretString>,
    /// A file with the admin key [BAE_ADMIN_KEY_FILE; default ./.bae/admin.key, then ./admin.key]
    #[arg(long, global = true, value_name = "PATH")]
    admin_key_file: Option<PathBuf>,
    /// A PEM file with the authority that signed the server's TLS certificate [default: those of the system]
    #[arg(long, global = true, value_name = "PATH", env = "BAE_CA", hide_env = true)]
    ca: Option<PathBuf>,
}

impl Connection {
    /// The key from the flags, the environment or the usual files. Having none is no error, because the server may run
    /// with authentication switched off.
    fn key(&self, environment: &dyn Environment) -> Result<Option<SecretString>, Usage> {
        if let Some(key) = &self.admin_key {
            return Ok(Some(key.clone()));
        }
        let set = |name| environment.get(name).filter(|text| !text.is_empty());
        // A file that is named on the command line wins over the variable.
        if self.admin_key_file.is_none()
            && let Some(key) = set("BAE_ADMIN_KEY")
        {
            return Ok(Some(key.into()));
        }
        let refuse = |path: &Path, what: &dyn std::fmt::Display| {
            Usage::new(format!(
                "cannot read the admin key from {}: {what}; name another with --admin-key-file",
                path.display()
            ))
        };
        if let Some(path) = self.admin_key_file.clone().or_else(|| set("BAE_ADMIN_KEY_FILE").map(PathBuf::from)) {
            let key = read_secret(&path).map_err(|error| refuse(&path, &error))?;
            return Ok(Some(key.ok_or_else(|| refuse(&path, &"there is no such file"))?));
        }
        for path in KEY_FILES.map(Path::new) {
            if let Some(key) = read_secret(path).map_err(|error| refuse(path, &error))? {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }
}

/// The client of one admin port.
pub(super) struct Client {
    http: reqwest::Client,
    url: String,
    /// The URL as messages show it.
    shown: String,
    key: Option<HeaderValue>,
}

/// A page of a list. Its items stay as the server wrote them.
#[derive(Deserialize)]
struct Page {
    items: Vec<Box<RawValue>>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Problem {
    r#type: String,
    detail: String,
}

impl Client {
    pub(crate) fn new(connection: Connection, environment: &dyn Environment) -> Result<Self, Failure> {
        let set = || environment.get("BAE_ADMIN_URL").filter(|text| !text.is_empty());
        let url = connection.url.clone().or_else(set).unwrap_or_else(|| URL.to_owned());
        let parsed = reqwest::Url::parse(&url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let Some(parsed) = parsed else {
            return Err(Usage::new(format!("--url must be like {URL}, not \"{}\"", without_login(&url))).into());
        };
        let key = connection.key(environment)?;
        let header = |key: SecretString| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose_secret()))
                .map_err(|_| Usage::new("the admin key holds characters that no key has; check where it comes from"))?;
            value.set_sensitive(true);
            Ok::<_, Usage>(value)
        };
        let http = client::builder(&parsed, connection.ca.as_deref())?;
        let http = http.connect_timeout(CONNECT_TIMEOUT).timeout(TIMEOUT).build();
        let http = http.map_err(|error| Failure::Runtime(format!("cannot set up HTTP: {error}")))?;
        let url = url.trim_end_matches('/').to_owned();
        let shown = without_login(&url);
        Ok(Self { http, url, shown, key: key.map(header).transpose()? })
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Box<RawValue>, Failure> {
        self.send("GET", path, None).await
    }

    /// Every item of a list, page by page.
    pub(crate) async fn all(&self, path: &str) -> Result<Vec<Box<RawValue>>, Failure> {
        let joined = if path.contains('?') { '&' } else { '?' };
        let (mut items, mut cursor) = (Vec::new(), String::new());
        loop {
            let answer = self.get(&format!("{path}{joined}limit=200{cursor}")).await?;
            let page: Page = serde_json::from_str(answer.get()).map_err(|error| self.no_admin_port(&error))?;
            items.extend(page.items);
            match page.next_cursor {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(items),
            }
        }
    }

    /// Makes a request and returns the answer's JSON, `null` if it has no body.
    pub(crate) async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Box<RawValue>, Failure> {
        let method = reqwest::Method::try_from(method).map_err(|error| Failure::Runtime(error.to_string()))?;
        let mut request = self.http.request(method, format!("{}/admin/v1/{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header(reqwest::header::AUTHORIZATION, key.clone());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| self.unreachable(&error))?;
        if !status.is_success() {
            return Err(self.refused(status.as_u16(), &text));
        }
        let text = if text.is_empty() { "null".to_owned() } else { text };
        RawValue::from_string(text).map_err(|error| self.no_admin_port(&error))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        if let Some(trouble) = client::tls_trouble(error) {
            return Failure::Runtime(format!("{}: {trouble}", self.shown));
        }
        let what = if error.is_timeout() { "does not answer" } else { "cannot be reached" };
        Failure::Runtime(format!(
            "{} {what}; start the server with `baesrv dev` or `baesrv serve`, or name another with --url",
            self.shown
        ))
    }

    fn no_admin_port(&self, _: &serde_json::Error) -> Failure {
        Failure::Runtime(format!("{} does not answer like an admin port; name another with --url", self.shown))
    }

    fn refused(&self, status: u16, text: &str) -> Failure {
        let Ok(problem) = serde_json::from_str::<Problem>(text) else {
            return Failure::Runtime(format!(
                "{} answered {status} and is no admin port; name another with --url",
                self.shown
            ));
        };
        let advice = match (problem.r#type.as_str(), &self.key) {
            ("unauthorized", None) => {
                return Failure::Runtime(
                    "no admin key was found; give --admin-key-file, or set BAE_ADMIN_KEY or BAE_ADMIN_KEY_FILE".into(),
                );
            }
            ("unauthorized", Some(_)) => "; give the one of this server with --admin-key-file or BAE_ADMIN_KEY",
            ("not_found", _) => "; the `list` command shows what there is",
            ("duplicate_name", _) => "; choose another",
            ("profile_unavailable", _) => "; `baesrv admin profile list` shows what there is",
            ("internal", _) => "; the server's log says why",
            _ => "",
        };
        Failure::Runtime(format!("{}{advice}", output_line(&problem.detail)))
    }
}

/// A text from the server without line breaks and control characters.
fn output_line(text: &str) -> String {
    super::output::without_controls(text)
}

/// A URL for messages: a user and password in it are left out, also where it cannot be parsed.
fn without_login(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
    match before.split_once("://") {
        Some((scheme, _)) => format!("{scheme}://{host}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn client(url: &str) -> Result<Client, Failure> {
        let connection =
            Connection { url: Some(url.to_owned()), admin_key: Some("k".into()), admin_key_file: None, ca: None };
        Client::new(connection, &BTreeMap::<String, String>::new())
    }

    #[tokio::test]
    async fn messages_show_no_password_of_the_url() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let failure = client(&format!("http://u:hu@sh@127.0.0.1:{port}/")).unwrap().get("nodes").await.unwrap_err();
        let text = failure.to_string();
        assert!(text.starts_with(&format!("http://127.0.0.1:{port} cannot be reached; ")), "{text}");
        for url in ["ftp://u:hush@h", "u:hush@h", "http://u:hush@"] {
            let text = client(url).err().expect("refused").to_string();
            assert!(text.starts_with("--url must be like") && !text.contains("hush"), "{text}");
        }
    }
}
