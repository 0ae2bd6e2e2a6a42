//! Where Redis is: the URL, which is parsed once, and the server that it leads to, which Sentinels may change at any
//! time.
//!
//! No setting turns the check of certificates off. Error messages never contain the parts of the settings that may be
//! secret.

use super::Settings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisError, RedisResult, TlsCertificates};
use std::time::Duration;
use tokio::sync::Mutex;

/// How long the Sentinels may take to name a server.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Where Redis is: a server with a fixed address, or the one that Sentinels name.
pub(super) enum Endpoint {
    Direct(Box<Client>),
    Sentinel(Box<Mutex<SentinelClient>>),
}

impl Endpoint {
    /// # Errors
    /// Says which setting is wrong, and why.
    pub(super) fn new(settings: &Settings) -> Result<Self, String> {
        let url = secrecy::ExposeSecret::expose_secret(&settings.url);
        let tls = ["rediss://", "sentinels://"].iter().any(|scheme| url.starts_with(scheme));
        let certificates = match &settings.ca {
            None => None,
            Some(_) if !tls => return Err("BAE_REDIS_CA is for rediss:// and sentinels:// in BAE_REDIS_URL".into()),
            Some(path) => Some(authority(path)?),
        };
        let unusable = |error: RedisError| match &settings.ca {
            Some(_) if error.is_io_error() => format!("BAE_REDIS_CA cannot be used: {error}"),
            _ => format!("BAE_REDIS_URL cannot be used: {}", error.category()),
        };
        let endpoint = match (url.split_once("://"), certificates) {
            (Some(("sentinel" | "sentinels", rest)), certificates) => {
                sentinel(rest, tls, certificates).map(|client| Self::Sentinel(Box::new(Mutex::new(client))))
            }
            (_, None) => Client::open(url).map(|client| Self::Direct(Box::new(client))),
            (_, Some(certificates)) => {
                Client::build_with_tls(url, certificates).map(|client| Self::Direct(Box::new(client)))
            }
        };
        endpoint.map_err(unusable)
    }

    /// The server that accepts writes now.
    pub(super) async fn server(&self) -> RedisResult<Client> {
        match self {
            Self::Direct(client) => Ok(Client::clone(client)),
            Self::Sentinel(client) => {
                let find = async { client.lock().await.async_get_client().await };
                tokio::time::timeout(TIMEOUT, find)
                    .await
                    .unwrap_or_else(|_| Err(RedisError::from((ErrorKind::Io, "no Sentinel named a server in time"))))
            }
        }
    }
}

/// Reads the certificate of the authority that is trusted instead of the public ones.
fn authority(path: &std::path::Path) -> Result<TlsCertificates, String> {
    let read = std::fs::read(path);
    let pem = read.map_err(|error| format!("BAE_REDIS_CA cannot be read: {}: {error}", path.display()))?;
    let one = b"-----BEGIN CERTIFICATE-----";
    if !pem.windows(one.len()).any(|window| window == one) {
        return Err(format!("BAE_REDIS_CA holds no certificate in PEM form: {}", path.display()));
    }
    Ok(TlsCertificates { client_tls: None, root_cert: Some(pem) })
}

/// Parses `[user:password@]host:port[,host:port…]/service[/db][?sentinel=[user:]password]`. The login at the beginning
/// is for the servers, the one at the end is for the Sentinels.
fn sentinel(rest: &str, tls: bool, certificates: Option<TlsCertificates>) -> RedisResult<SentinelClient> {
    let form = "sentinel://[user:password@]host:port,…/service[/db][?sentinel=[user:]password]";
    let wrong = || RedisError::from((ErrorKind::InvalidClientConfig, form));
    let (rest, own) = rest.split_once("?sentinel=").map_or((rest, None), |(rest, own)| (rest, Some(own)));
    let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
    let (hosts, service) = rest.split_once('/').ok_or_else(wrong)?;
    let (service, db) = service.split_once('/').map_or((service, None), |(service, db)| (service, Some(db)));
    let mut sentinels: Vec<ConnectionAddr> = Vec::new();
    for host in hosts.split(',') {
        let scheme = if tls { "rediss" } else { "redis" };
        sentinels.push(format!("{scheme}://{host}").into_connection_info()?.addr().clone());
    }
    let mut builder = SentinelClientBuilder::new(sentinels, service, SentinelServerType::Master)?;
    if let Some(login) = login {
        let (user, password) = login.split_once(':').ok_or_else(wrong)?;
        if !user.is_empty() {
            builder = builder.set_client_to_redis_username(user);
        }
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(own) = own {
        let (user, password) = own.split_once(':').unwrap_or(("", own));
        if !user.is_empty() {
            builder = builder.set_client_to_sentinel_username(user);
        }
        builder = builder.set_client_to_sentinel_password(password);
    }
    if let Some(db) = db {
        builder = builder.set_client_to_redis_db(db.parse().map_err(|_| wrong())?);
    }
    if tls {
        builder = builder.set_client_to_redis_tls_mode(redis::TlsMode::Secure);
    }
    if let Some(certificates) = certificates {
        builder = builder.set_client_to_sentinel_certificates(certificates.clone());
        builder = builder.set_client_to_redis_certificates(certificates);
    }
    builder.build()
}
