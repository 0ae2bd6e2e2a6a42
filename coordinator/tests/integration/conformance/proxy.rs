//! A TCP proxy in front of Postgres that loses what it is told to lose.

use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Debug, Clone, Default)]
enum Plan {
    #[default]
    Pass,
    /// Nothing gets through, and nobody is told.
    Swallow,
    /// Once this text was sent on, the client's side is cut; the server notices nothing.
    CutWhenSent(Vec<u8>),
    /// This text is held back and the client's side is cut; see [`Proxy::deliver`].
    HoldBack(Vec<u8>),
    /// The answer to this text is lost, and the connection with it.
    CutWhenAnswered(Vec<u8>),
}

#[derive(Default)]
struct Shared {
    plan: Mutex<Plan>,
    /// Server sides whose client is cut off.
    held: Mutex<Vec<TcpStream>>,
    cuts: watch::Sender<usize>,
    /// What was held back, with the server's side it belongs to.
    late: Mutex<Option<(TcpStream, Vec<u8>)>>,
}

pub(super) struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let shared = Arc::new(Shared::default());
        let serving = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let shared = Arc::clone(&serving);
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await {
                        shared.pass(client, server).await;
                    }
                });
            }
        });
        Self { shared, port, accepting }
    }

    pub(super) fn url(&self) -> String {
        format!("postgres://bae@127.0.0.1:{}", self.port)
    }

    fn plan(&self, plan: Plan) {
        *self.shared.plan.lock().unwrap() = plan;
    }

    pub(super) fn swallow(&self) {
        self.plan(Plan::Swallow);
    }

    pub(super) fn pass(&self) {
        self.plan(Plan::Pass);
    }

    pub(super) fn cut_when_sent(&self, text: &str) {
        self.plan(Plan::CutWhenSent(text.as_bytes().to_vec()));
    }

    pub(super) fn hold_back(&self, text: &str) {
        self.plan(Plan::HoldBack(text.as_bytes().to_vec()));
    }

    /// Delivers late what was held back; returns once the server has dealt with it.
    pub(super) async fn deliver(&self) {
        let (mut server, text) = self.shared.late.lock().unwrap().take().expect("something was held back");
        server.write_all(&text).await.expect("the server listens");
        let mut answer = [0; 1 << 12];
        let read = server.read(&mut answer).await.expect("the server answers");
        assert!(read > 0, "the server was gone");
    }

    pub(super) fn cut_when_answered(&self, text: &str) {
        self.plan(Plan::CutWhenAnswered(text.as_bytes().to_vec()));
    }

    /// Returns once so many connections were cut.
    pub(super) async fn cuts(&self, number: usize) {
        let mut cuts = self.shared.cuts.subscribe();
        cuts.wait_for(|cuts| *cuts >= number).await.expect("the proxy lives");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn swallows(&self) -> bool {
        matches!(*self.plan.lock().unwrap(), Plan::Swallow)
    }

    /// The plan, if this text is what it waits for; then it has been carried out.
    fn met(&self, sent: &[u8]) -> Plan {
        let mut plan = self.plan.lock().unwrap();
        match &*plan {
            Plan::CutWhenSent(text) | Plan::HoldBack(text) | Plan::CutWhenAnswered(text)
                if sent.windows(text.len()).any(|w| w == text) =>
            {
                std::mem::take(&mut *plan)
            }
            _ => Plan::Pass,
        }
    }

    async fn pass(&self, mut client: TcpStream, mut server: TcpStream) {
        let (mut from_client, mut from_server) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut lose_answer = false;
        loop {
            tokio::select! {
                read = client.read(&mut from_client) => {
                    let sent = match read {
                        Ok(0) | Err(_) => return,
                        Ok(n) => &from_client[..n],
                    };
                    if self.swallows() {
                        continue;
                    }
                    let met = self.met(sent);
                    if matches!(met, Plan::HoldBack(_)) {
                        drop(client);
                        *self.late.lock().unwrap() = Some((server, sent.to_vec()));
                        self.cuts.send_modify(|cuts| *cuts += 1);
                        return;
                    }
                    if server.write_all(sent).await.is_err() {
                        return;
                    }
                    match met {
                        Plan::CutWhenSent(_) => {
                            drop(client);
                            self.held.lock().unwrap().push(server);
                            self.cuts.send_modify(|cuts| *cuts += 1);
                            return;
                        }
                        Plan::CutWhenAnswered(_) => lose_answer = true,
                        Plan::Pass | Plan::Swallow | Plan::HoldBack(_) => {}
                    }
                }
                read = server.read(&mut from_server) => {
                    let answer = match read {
                        Ok(0) | Err(_) => return,
                        Ok(n) => &from_server[..n],
                    };
                    if lose_answer {
                        self.cuts.send_modify(|cuts| *cuts += 1);
                        return;
                    }
                    if !self.swallows() && client.write_all(answer).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
