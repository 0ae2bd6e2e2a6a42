//! How the program's own commands (`chat`, `admin`, `ready`) reach a server over HTTP: which certificates they trust, and
//! that no proxy stands between them and this machine.

use crate::config::Usage;
use reqwest::{Certificate, ClientBuilder, Url};
use std::error::Error;
use std::path::Path;

/// A client of the server at `url`. Certificates are checked against those of the system and of the file `ca`.
///
/// # Errors
/// When the file holds no certificates.
pub(crate) fn builder(url: &Url, ca: Option<&Path>) -> Result<ClientBuilder, Usage> {
    let mut builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    // A proxy of the environment is for other hosts: it could not reach this machine's loopback address.
    if matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]")) {
        builder = builder.no_proxy();
    }
    let Some(path) = ca else { return Ok(builder) };
    let refuse = |what: &dyn std::fmt::Display| {
        Usage::new(format!("--ca must name a PEM file with certificates, and {} is none: {what}", path.display()))
    };
    let pem = std::fs::read(path).map_err(|error| refuse(&error))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(builder.tls_certs_merge(found)),
        Ok(_) => Err(refuse(&"it holds no certificate")),
        Err(error) => Err(refuse(&error)),
    }
}

/// Why a TLS connection could not be made, with what to do about it. `None` if the failure was another.
pub(crate) fn tls_trouble(error: &reqwest::Error) -> Option<String> {
    Some(match tls_error(error)? {
        tls @ rustls::Error::InvalidCertificate(_) => {
            format!("its certificate is not trusted ({tls}); give the authority that signed it with --ca")
        }
        tls => format!("no TLS connection can be made ({tls}); is it a http:// server?"),
    })
}

/// The first TLS error among the causes. An I/O error does not name the error that it wraps as its source.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(tls) = cause.downcast_ref() {
            return Some(tls);
        }
        let wrapped = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => cause.source(),
        };
    }
    None
}
