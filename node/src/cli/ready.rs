//! `baesrv ready`: asks a server whether it can take requests, for scripts and for health checks in containers.

use super::terminal::{Failure, print};
use crate::client;
use crate::config::Usage;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(500);
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// Flags of `ready`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The client port
    #[arg(long, env = "BAE_URL", hide_env_values = true, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// A PEM file with the authority that signed the server's TLS certificate [default: those of the system]
    #[arg(long, value_name = "PATH", env = "BAE_CA", hide_env = true)]
    ca: Option<PathBuf>,
    /// How long to go on asking
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    timeout: u16,
}

#[derive(Deserialize)]
struct Readiness {
    #[serde(default)]
    reasons: Vec<String>,
}

/// Ends with success once the server says that it is ready.
pub(super) async fn ready(args: Args) -> Result<(), Failure> {
    let url = reqwest::Url::parse(&args.url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let Some(url) = url.and_then(|url| url.join("/readyz").ok()) else {
        return Err(Usage::new("--url must be like http://127.0.0.1:8080").into());
    };
    let http = client::builder(&url, args.ca.as_deref())?.timeout(ANSWER).build();
    let http = http.map_err(|error| Failure::Runtime(format!("cannot set up HTTP: {error}")))?;
    let deadline = Instant::now() + Duration::from_secs(args.timeout.into());
    loop {
        match ask(&http, url.clone()).await {
            Ok(()) => {
                print("ready\n");
                return Ok(());
            }
            Err(why) if Instant::now() + PAUSE > deadline => return Err(Failure::Runtime(why)),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn ask(http: &reqwest::Client, url: reqwest::Url) -> Result<(), String> {
    let at = url.origin().ascii_serialization();
    let answer = http.get(url).send().await.map_err(|error| match client::tls_trouble(&error) {
        Some(trouble) => format!("{at}: {trouble}"),
        None => format!("no server answers at {at}"),
    })?;
    if answer.status().is_success() {
        return Ok(());
    }
    let status = answer.status().as_u16();
    match answer.json::<Readiness>().await {
        Ok(Readiness { reasons }) if !reasons.is_empty() => Err(format!("{at} is not ready: {}", reasons.join(", "))),
        _ => Err(format!("{at} answered {status}, which is no answer of this server; name its client port with --url")),
    }
}
