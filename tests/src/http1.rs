//! The smallest HTTP/1.1 server that lets a peer misbehave at every byte: one request per connection, and the handler
//! owns the socket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What the client sent.
#[derive(Debug, Clone)]
pub struct Request {
    /// `POST` and so on.
    pub method: String,
    /// Path and query as sent.
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Verbatim.
    pub body: Vec<u8>,
}

impl Request {
    /// The first header of that (lower-case) name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("a request body in UTF-8")
    }

    /// The body parsed.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a request body in JSON")
    }
}

/// The socket after the request was read. Dropping it hangs up.
#[derive(Debug)]
pub struct Conn(TcpStream);

impl Conn {
    /// Writes raw bytes; a peer that is gone is no error of the test's.
    pub async fn write(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).await.is_ok() && self.0.flush().await.is_ok()
    }

    /// A whole answer.
    pub async fn reply(&mut self, status: u16, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("HTTP/1.1 {status} -\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut all = head.into_bytes();
        all.extend_from_slice(body);
        self.write(&all).await;
        self.finish().await;
    }

    /// Ends our side and waits for the peer's end, so that no reset destroys what was written.
    pub async fn finish(&mut self) {
        if self.0.shutdown().await.is_ok() {
            let _ = tokio::time::timeout(Duration::from_secs(2), self.closed()).await;
        }
    }

    /// Returns when the peer has hung up.
    pub async fn closed(&mut self) {
        let mut byte = [0; 256];
        while matches!(self.0.read(&mut byte).await, Ok(n) if n > 0) {}
    }
}

/// A running server; dropping it closes the port and every connection.
#[derive(Debug)]
pub struct Serving {
    /// Where it listens.
    pub addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves `handler` on `addr` (port 0: any).
pub async fn serve<F, Fut>(addr: SocketAddr, handler: F) -> Serving
where
    F: Fn(Request, Conn) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(addr).await.expect("a port for a mock server");
    let addr = listener.local_addr().expect("the mock's address");
    let handler = Arc::new(handler);
    let task = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            let _ = stream.set_nodelay(true);
            let handler = handler.clone();
            connections.spawn(async move {
                let mut stream = stream;
                if let Some(request) = read(&mut stream).await {
                    handler(request, Conn(stream)).await;
                }
            });
            while connections.try_join_next().is_some() {}
        }
    });
    Serving { addr, task }
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = find(&bytes, b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut body = bytes.split_off(head_end + 4);
    let get = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    if let Some(length) = get("content-length") {
        let length: usize = length.parse().ok()?;
        while body.len() < length {
            if stream.read_buf(&mut body).await.ok()? == 0 {
                return None;
            }
        }
    } else if get("transfer-encoding").is_some_and(|te| te.contains("chunked")) {
        body = read_chunks(stream, body).await?;
    }
    Some(Request { method, path, headers, body })
}

async fn read_chunks(stream: &mut TcpStream, mut raw: Vec<u8>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line_end = loop {
            if let Some(at) = find(&raw, b"\r\n") {
                break at;
            }
            if stream.read_buf(&mut raw).await.ok()? == 0 {
                return None;
            }
        };
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..line_end]).ok()?.trim(), 16).ok()?;
        while raw.len() < line_end + 2 + size + 2 {
            if stream.read_buf(&mut raw).await.ok()? == 0 {
                return None;
            }
        }
        body.extend_from_slice(&raw[line_end + 2..line_end + 2 + size]);
        raw.drain(..line_end + 2 + size + 2);
        if size == 0 {
            return Some(body);
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
