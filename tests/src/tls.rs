//! Certificates for tests, made with `openssl`, and a server that shows one.

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// An authority, and a certificate for 127.0.0.1 that it signed, in files of these names.
pub fn certificate(dir: &Path, authority: &str, name: &str) {
    let openssl = |words: &str| {
        let done = Command::new("openssl").args(words.split(' ')).current_dir(dir).output().expect("openssl");
        assert!(done.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout {authority}.key -out {authority}.pem -days 2 -subj /CN={authority}"));
    openssl(&format!("req {key} -keyout new.key -out new.csr -subj /CN=server"));
    std::fs::write(dir.join("ext"), "subjectAltName=IP:127.0.0.1").expect("a file of the test");
    openssl(&format!(
        "x509 -req -in new.csr -out new.pem -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -extfile ext -days 2"
    ));
    std::fs::rename(dir.join("new.pem"), dir.join(format!("{name}.pem"))).expect("a file of the test");
    std::fs::rename(dir.join("new.key"), dir.join(format!("{name}.key"))).expect("a file of the test");
}

/// Answers GET requests over TLS with JSON; gone when it is dropped.
#[derive(Debug)]
pub struct JsonServer {
    /// Where it listens.
    pub addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for JsonServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl JsonServer {
    /// Serves `answer`, which is given path and query, with the certificate of [`certificate`] called `server` in `dir`.
    pub async fn start(
        address: Ipv4Addr,
        dir: &Path,
        answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let chain = CertificateDer::pem_file_iter(dir.join("server.pem")).expect("a certificate");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(dir.join("server.key")).expect("a key");
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).expect("a pair");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((address, 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let answer = Arc::new(answer);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else { return };
                    let mut stream = BufReader::new(stream);
                    let mut first = String::new();
                    let mut line = String::new();
                    while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) && line != "\r\n" {
                        if first.is_empty() {
                            first = line.clone();
                        }
                        line.clear();
                    }
                    let path = first.split(' ').nth(1).unwrap_or_default();
                    let (status, body) = answer(path).map_or_else(|| (404, "{}".to_owned()), |body| (200, body));
                    let head = format!(
                        "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                        body.len()
                    );
                    let _ = stream.write_all((head + &body).as_bytes()).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        Self { addr, task }
    }
}
