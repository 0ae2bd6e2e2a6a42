//! The certificate of the TLS ports, read anew when its files change.
//!
//! The files are compared every few seconds and not watched, because a mounted Kubernetes Secret changes by the exchange
//! of a symbolic link, of which watching the file tells nothing. A pair of files that cannot be used never replaces a
//! good one: between the writing of the first file and the second they do not fit together.

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Between two looks at the files.
const LOOK: Duration = Duration::from_secs(5);

/// A certificate chain with its private key, from two PEM files.
pub(crate) struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("cert", &self.cert).field("key", &self.key).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file cannot be used, and why.
    pub(crate) fn load(cert: &Path, key: &Path) -> Result<Arc<Self>, String> {
        let current = RwLock::new(Arc::new(read(cert, key)?));
        Ok(Arc::new(Self { cert: cert.to_owned(), key: key.to_owned(), current }))
    }

    /// Takes TLS connections with the certificate that is current then. Clients speak HTTP/1.1.
    pub(super) fn acceptor(self: Arc<Self>) -> TlsAcceptor {
        let mut config = ServerConfig::builder().with_no_client_auth().with_cert_resolver(self);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config).into()
    }

    /// Looks at the files until `stop`.
    pub(crate) async fn keep_current(self: Arc<Self>, stop: CancellationToken) {
        let mut refused = None;
        while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            match read(&self.cert, &self.key) {
                Ok(found) => {
                    refused = None;
                    let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
                    if found.cert != current.cert {
                        tracing::info!(cert = %self.cert.display(), "the TLS certificate was replaced");
                        *current = Arc::new(found);
                    }
                }
                Err(error) if refused.as_ref() == Some(&error) => {}
                Err(error) => {
                    tracing::error!(error, "the TLS certificate cannot be read; the one from before stays");
                    refused = Some(error);
                }
            }
        }
    }
}

fn read(cert: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| format!("the certificate {} cannot be used: {error}", cert.display()))?;
    if chain.is_empty() {
        return Err(format!("{} holds no certificate in PEM form", cert.display()));
    }
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| format!("the private key {} cannot be used: {error}", key.display()))?;
    CertifiedKey::from_der(chain, private, &aws_lc_rs::default_provider())
        .map_err(|error| format!("the key {} and the certificate {}: {error}", key.display(), cert.display()))
}
