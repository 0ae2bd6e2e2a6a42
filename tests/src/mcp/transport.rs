//! The three ways to a [`Responder`].

use super::{Effect, Kind, Responder};
use crate::http1::{self, Conn, Request};
use serde_json::Value;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

#[derive(Debug)]
pub(super) enum Serving {
    Http(http1::Serving),
    Lines(SocketAddr, JoinHandle<()>),
}

impl Serving {
    pub(super) fn addr(&self) -> SocketAddr {
        match self {
            Self::Http(serving) => serving.addr,
            Self::Lines(addr, _) => *addr,
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Self::Lines(_, task) = self {
            task.abort();
        }
    }
}

pub(super) async fn serve(kind: Kind, responder: Arc<Responder>) -> Serving {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    match kind {
        Kind::Http => {
            Serving::Http(http1::serve(any, move |request, conn| streamable(responder.clone(), request, conn)).await)
        }
        Kind::Sse => {
            let streams = Streams::default();
            Serving::Http(
                http1::serve(any, move |request, conn| sse(responder.clone(), streams.clone(), request, conn)).await,
            )
        }
        Kind::Stdio | Kind::StubbornStdio => {
            let listener = TcpListener::bind(any).await.expect("a port for a mock MCP server");
            let addr = listener.local_addr().expect("the mock's address");
            Serving::Lines(addr, tokio::spawn(accept_lines(listener, responder)))
        }
    }
}

// Streamable HTTP.

async fn streamable(responder: Arc<Responder>, request: Request, mut conn: Conn) {
    responder.headers.lock().unwrap().extend(request.headers.clone());
    *responder.authorization.lock().unwrap() = request.header("authorization").map(str::to_owned);
    if responder.is_refusing() {
        return;
    }
    if request.method != "POST" {
        let status = if request.method == "DELETE" { 204 } else { 405 };
        conn.reply(status, &[], b"").await;
        return;
    }
    let message = request.json();
    let session = request.header("mcp-session-id").map(str::to_owned);
    let opening = message["method"] == "initialize";
    let known = session.as_ref().is_some_and(|id| responder.sessions.lock().unwrap().contains(id));
    if !opening && !known {
        conn.reply(404, &[], b"session not found").await;
        return;
    }
    let mut hang_up = responder.hang_up.subscribe();
    let effect = tokio::select! {
        effect = responder.respond(&message) => effect,
        () = conn.closed() => return,
        _ = hang_up.recv() => return,
    };
    match effect {
        Effect::Nothing => conn.reply(202, &[], b"").await,
        Effect::HangUp => {}
        Effect::Garbage(bytes) => conn.reply(200, &[("content-type", "application/json")], &bytes).await,
        Effect::Reply(value) => {
            let mut headers = vec![("content-type", "application/json")];
            let id = format!("mock-session-{}", *responder.opened.lock().unwrap());
            if opening {
                responder.sessions.lock().unwrap().push(id.clone());
                headers.push(("mcp-session-id", &id));
            }
            conn.reply(200, &headers, value.to_string().as_bytes()).await;
        }
    }
}

// The older SSE transport: answers travel on the stream that the client opened first.

type Streams = Arc<Mutex<HashMap<String, mpsc::Sender<Option<String>>>>>;

async fn sse(responder: Arc<Responder>, streams: Streams, request: Request, mut conn: Conn) {
    responder.headers.lock().unwrap().extend(request.headers.clone());
    *responder.authorization.lock().unwrap() = request.header("authorization").map(str::to_owned);
    if responder.is_refusing() {
        return;
    }
    if request.method == "GET" {
        let (sender, mut events) = mpsc::channel(64);
        let id = {
            let mut streams = streams.lock().unwrap();
            let id = format!("s{}", streams.len() + 1);
            streams.insert(id.clone(), sender);
            id
        };
        conn.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n").await;
        conn.write(format!("event: endpoint\ndata: /messages?session_id={id}\n\n").as_bytes()).await;
        let mut hang_up = responder.hang_up.subscribe();
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(Some(text)) => {
                        if !conn.write(format!("event: message\ndata: {text}\n\n").as_bytes()).await { return }
                    }
                    Some(None) | None => return,
                },
                () = conn.closed() => return,
                _ = hang_up.recv() => return,
            }
        }
    }
    let id = request.path.split_once("session_id=").map(|(_, id)| id.to_owned()).unwrap_or_default();
    let stream = streams.lock().unwrap().get(&id).cloned();
    let Some(stream) = stream.filter(|stream| !stream.is_closed()) else {
        conn.reply(404, &[], b"no such stream").await;
        return;
    };
    let message = request.json();
    conn.reply(202, &[], b"Accepted").await;
    let _ = match responder.respond(&message).await {
        Effect::Nothing => Ok(()),
        Effect::Reply(value) => stream.send(Some(value.to_string())).await,
        Effect::Garbage(bytes) => stream.send(Some(String::from_utf8_lossy(&bytes).into_owned())).await,
        Effect::HangUp => stream.send(None).await,
    };
}

// Lines over TCP, on whose other side `mcp_stdio` sits.

async fn accept_lines(listener: TcpListener, responder: Arc<Responder>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        if !responder.is_refusing() {
            connections.spawn(lines(responder.clone(), stream));
        }
    }
}

async fn lines(responder: Arc<Responder>, stream: TcpStream) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let mut hang_up = responder.hang_up.subscribe();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line,
            _ = hang_up.recv() => return,
        };
        let Ok(Some(line)) = line else { return };
        let message: Value = serde_json::from_str(&line).expect("an MCP message in JSON");
        let effect = tokio::select! {
            effect = responder.respond(&message) => effect,
            _ = hang_up.recv() => return,
        };
        let mut bytes = match effect {
            Effect::Nothing => continue,
            Effect::HangUp => return,
            Effect::Garbage(bytes) => bytes,
            Effect::Reply(value) => value.to_string().into_bytes(),
        };
        bytes.push(b'\n');
        if write.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
