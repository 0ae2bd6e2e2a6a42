//! `baesrv dev`: a server for trying things out, which keeps everything in one folder and needs no other server and no
//! API key.
//!
//! The first start creates the admin key, a profile and a client key; later starts use them again. The model is the
//! built-in demo model, unless the environment holds a vendor's API key.

mod account;
mod banner;
mod nodes;
mod services;

use super::serve::{allow_open_files, bind, given};
use super::signals;
use super::terminal::{Failure, print};
use crate::admin::key;
use crate::config::{
    Config, Environment, Flags, ProcessEnvironment, Provider, SandboxDriver, Usage, default_base_url, docker_host,
};
use crate::export;
use crate::lifecycle;
use crate::logging;
use coordinator::Db;
use coordinator::accounts::Accounts;
use engine::provider::{Entry, Wire};
use secrecy::ExposeSecret;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Flags of `dev`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where the database and the keys are kept
    #[arg(long, value_name = "DIR", default_value = DATA)]
    data: PathBuf,
    /// The client port [BAE_ADDR; default 127.0.0.1:8080]
    #[arg(long, value_name = "IP:PORT")]
    addr: Option<String>,
    /// The admin port [BAE_ADMIN_ADDR; default 127.0.0.1:8081]
    #[arg(long, value_name = "IP:PORT")]
    admin_addr: Option<String>,
    /// A configuration file, for MCP servers and more providers [BAE_CONFIG]
    #[arg(long, value_name = "PATH")]
    config: Option<String>,
    /// The vendor's model, with ANTHROPIC_API_KEY or OPENAI_API_KEY set
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// What is logged [BAE_LOG; default warn]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// So many nodes behind the ports, over Redis and Postgres: those of BAE_REDIS_URL and BAE_DATABASE_URL, or
    /// installed ones
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Where sandboxes run: docker, kubernetes or none [BAE_SANDBOX_DRIVER; default docker if a daemon answers at DOCKER_HOST]
    #[arg(long, value_name = "DRIVER", value_parser = ["docker", "kubernetes", "none"])]
    sandbox: Option<String>,
    /// An image that the profile allows sandboxes to be started from; may be repeated [default with docker: busybox:1]
    #[arg(long, value_name = "IMAGE")]
    image: Vec<String>,
}

const DATA: &str = ".bae";
const ADDR: &str = "127.0.0.1:8080";
/// The image of a sandbox that needs no choice: small, and it has a shell.
const IMAGE: &str = "busybox:1";

/// The provider names that `dev` itself writes into the profile. A later start replaces these and no others.
const OWN_PROVIDERS: [&str; 3] = [DEMO, "anthropic", "openai"];
const DEMO: &str = "demo";

/// A vendor whose API key may be in the environment.
struct Vendor {
    name: &'static str,
    wire: Wire,
    variable: &'static str,
    model: &'static str,
}

const VENDORS: [Vendor; 2] = [
    Vendor { name: "anthropic", wire: Wire::Anthropic, variable: "ANTHROPIC_API_KEY", model: "claude-sonnet-4-6" },
    Vendor { name: "openai", wire: Wire::OpenAi, variable: "OPENAI_API_KEY", model: "gpt-4.1" },
];

pub(super) async fn dev(args: Args, program: &str) -> Result<(), Failure> {
    let environment: Arc<dyn Environment> = Arc::new(ProcessEnvironment);
    let vendor = VENDORS.iter().find(|vendor| environment.get(vendor.variable).is_some_and(|key| !key.is_empty()));
    if args.model.is_some() && vendor.is_none() {
        return Err(Usage::new("--model needs a vendor's key: set ANTHROPIC_API_KEY or OPENAI_API_KEY").into());
    }
    private_folder(&args.data)?;
    let services = match args.nodes {
        1 => None,
        _ => Some(services::start(environment.as_ref(), &args.data).await?),
    };
    let mut flags = flags(&args, environment.as_ref())?;
    if let Some(services) = &services {
        flags.values.insert("database_url", services.database_url.expose_secret().to_owned());
        flags.values.insert("redis_url", services.redis_url.expose_secret().to_owned());
    } else {
        // One node needs no Redis, even if the environment names one for another server.
        flags.values.insert("redis_url", String::new());
    }
    let mut config = Config::load(&flags, environment)?;
    if services.is_some() {
        // The nodes are processes of their own.
        config.metrics_addr = None;
        config.telemetry.enabled = false;
    }
    let export = export::start(&config)?;
    logging::start(&config, export.tracer());
    allow_open_files();
    let stop = signals::stop()?;
    let ports = bind(&config).await?;
    let addresses = banner::Addresses::of(&ports)?;
    let db = open(&config).await?;
    let accounts = Accounts::new(db.clone());
    key::prepare(&config, &accounts).await.map_err(|error| Failure::Runtime(error.to_string()))?;

    let demo_stop = CancellationToken::new();
    let (provider, demo) = match vendor {
        Some(vendor) => (vendor.provider(args.model), None),
        None => {
            let (provider, listener) = demo(&args.data).await?;
            (provider, Some(tokio::spawn(crate::demo::serve(listener, demo_stop.clone()))))
        }
    };
    let (model, name) = (provider.entry.model.clone(), provider.entry.name.clone());
    // An entry of the same name in the configuration file wins.
    let added = config.provider(&name).is_none().then(|| provider.clone());
    config.providers.extend(added.clone());
    let mcp_servers = config.mcp_servers.iter().map(|server| server.name.clone()).collect();
    let images = match (&config.sandbox.driver, args.image.is_empty()) {
        (SandboxDriver::Docker { .. } | SandboxDriver::Kubernetes { .. }, true) => vec![IMAGE.to_owned()],
        _ => args.image.clone(),
    };
    let client_key =
        account::prepare(&accounts, &args.data.join("client.key"), &name, mcp_servers, images.clone()).await?;
    // The database closes when its last handle is dropped.
    drop(accounts);

    let banner = banner::Banner {
        addresses,
        data: &args.data,
        admin_key: &config.admin_key,
        model: vendor.map(|_| model.as_str()),
        sandbox: &config.sandbox.driver,
        images: &images,
        client_key: &client_key,
        program,
    }
    .text();
    let served = match &services {
        None => {
            print(&banner);
            Box::pin(lifecycle::run(config, db, ports, export, stop)).await.map_err(Failure::from)
        }
        Some(services) => {
            db.close().await;
            let cluster = nodes::Cluster { config: &config, services, data: &args.data, file: args.config.as_deref() };
            Box::pin(cluster.run(args.nodes, added.as_ref(), ports, &banner, stop)).await
        }
    };
    // The demo model stops last, because turns that are still running during the shutdown need it.
    demo_stop.cancel();
    if let Some(demo) = demo {
        let _ = demo.await;
    }
    served
}

fn flags(args: &Args, environment: &dyn Environment) -> Result<Flags, Failure> {
    let data = args.data.to_str().ok_or_else(|| Usage::new("--data must be a path in UTF-8"))?;
    let or = |flag: &Option<String>, variable: &str, default: &str| {
        let set = || environment.get(variable).filter(|text| !text.is_empty());
        Some(flag.clone().or_else(set).unwrap_or_else(|| default.to_owned()))
    };
    // These are always in the folder: variables of the environment may be meant for another server.
    let file = |name: &str| Some(Path::new(data).join(name).display().to_string());
    let values = given([
        ("addr", or(&args.addr, "BAE_ADDR", ADDR)),
        ("admin_addr", or(&args.admin_addr, "BAE_ADMIN_ADDR", "127.0.0.1:8081")),
        ("log", or(&args.log, "BAE_LOG", "warn")),
        (
            "sandbox_driver",
            or(&args.sandbox, "BAE_SANDBOX_DRIVER", if docker_answers(environment) { "docker" } else { "none" }),
        ),
        ("config", args.config.clone()),
        ("tls_cert", Some(String::new())),
        ("tls_key", Some(String::new())),
        ("database_url", file("bae.db").map(|path| format!("sqlite:{path}"))),
        ("admin_key_file", file("admin.key")),
    ]);
    Ok(Flags { values, ..Flags::default() })
}

/// Whether a Docker daemon takes connections where `DOCKER_HOST` says. Only a socket of this machine is tried: one that
/// is named by its address is chosen with `--sandbox docker`.
fn docker_answers(environment: &dyn Environment) -> bool {
    docker_host(environment)
        .strip_prefix("unix://")
        .is_some_and(|path| std::os::unix::net::UnixStream::connect(path).is_ok())
}

async fn open(config: &Config) -> Result<Db, Failure> {
    super::serve::open(config).await.map_err(|error| match error {
        // The advice is for `serve`; in `dev` the folder decides which database is used.
        coordinator::Error::Unusable(text) => {
            Failure::Runtime(text.replace("point BAE_DATABASE_URL at another file", "give --data another folder"))
        }
        error => error.into(),
    })
}

/// Creates the data folder if it is missing. Only its owner has access, because it holds keys and conversations.
fn private_folder(path: &Path) -> Result<(), Failure> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| {
        Failure::Runtime(format!("cannot make the folder {}: {error}; give --data another", path.display()))
    })
}

impl Vendor {
    fn provider(&self, model: Option<String>) -> Provider {
        let entry = Entry {
            name: self.name.to_owned(),
            wire: self.wire,
            base_url: default_base_url(self.wire).to_owned(),
            model: model.unwrap_or_else(|| self.model.to_owned()),
            max_tokens: 4096,
        };
        Provider {
            entry,
            auth_token: format!("${{{}}}", self.variable).into(),
            timeout: Duration::from_secs(600),
            max_retries: 2,
            max_tokens_field: None,
        }
    }
}

/// Binds a port for the demo model. It is the port of the last start if that is free, because an interrupted turn calls
/// the same URL again.
async fn demo(data: &Path) -> Result<(Provider, TcpListener), Failure> {
    let refuse = |error| Failure::Runtime(format!("cannot listen on a loopback port for the demo model: {error}"));
    let remembered = data.join("demo.port");
    let port = std::fs::read_to_string(&remembered).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let listener = match TcpListener::bind(("127.0.0.1", port)).await {
        Err(_) if port != 0 => TcpListener::bind(("127.0.0.1", 0)).await.map_err(refuse)?,
        listener => listener.map_err(refuse)?,
    };
    let addr = listener.local_addr().map_err(refuse)?;
    std::fs::write(&remembered, addr.port().to_string()).map_err(refuse)?;
    let entry = Entry {
        name: DEMO.to_owned(),
        wire: Wire::Anthropic,
        base_url: format!("http://{addr}"),
        model: DEMO.to_owned(),
        max_tokens: 4096,
    };
    Ok((
        Provider {
            entry,
            auth_token: "none".into(),
            timeout: Duration::from_secs(600),
            max_retries: 2,
            max_tokens_field: None,
        },
        listener,
    ))
}
