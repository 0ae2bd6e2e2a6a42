//! A model server whose answers depend only on the seed and the request.
//!
//! It answers with texts, with uses of the client's tools, of a server's tools, or of both, with truncated answers, and
//! with errors. The fallback model never answers with errors. Some answers come at once and some take seconds.
//!
//! It keeps the requests of each session until the session has been checked. When a node hangs up before its answer,
//! the model measures how long it takes until the same request is sent again.

use super::rng::Rng;
use super::stats::{Class, Stats};
use crate::http1::{Conn, Request, Serving, serve};
use crate::provider::Answer;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The requests of one session.
#[derive(Debug, Default)]
struct Asked {
    requests: Vec<Request>,
    /// The bodies of requests whose sender hung up, with the time and the fault during which that happened.
    left: HashMap<Vec<u8>, (Instant, Option<Class>)>,
}

#[derive(Debug)]
struct Responder {
    seed: u64,
    stats: Arc<Stats>,
    sessions: Mutex<HashMap<String, Asked>>,
}

/// The running model.
#[derive(Debug)]
pub(super) struct Model {
    responder: Arc<Responder>,
    serving: Serving,
}

impl Model {
    /// Starts the server on a free port.
    pub(super) async fn start(seed: u64, stats: Arc<Stats>) -> Self {
        let responder = Arc::new(Responder { seed, stats, sessions: Mutex::default() });
        let shared = responder.clone();
        let serving =
            serve(([127, 0, 0, 1], 0).into(), move |request, conn| answer(shared.clone(), request, conn)).await;
        Self { responder, serving }
    }

    /// The URL for the `base_url` of a provider.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.serving.addr)
    }

    /// The requests of a session so far.
    pub(super) fn asked(&self, tag: &str) -> Vec<Request> {
        self.responder.with(tag, |asked| asked.requests.clone())
    }

    /// Drops the requests of a session that was checked.
    pub(super) fn forget(&self, tag: &str) {
        self.responder.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(tag);
    }
}

impl Responder {
    fn with<T>(&self, tag: &str, look: impl FnOnce(&mut Asked) -> T) -> T {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        look(sessions.entry(tag.to_owned()).or_default())
    }

    /// The session that a request belongs to. The first message names it as `[s1/…]`.
    fn tag(body: &str) -> String {
        let named = body.find("[s").and_then(|start| Some(&body[start + 1..start + body[start..].find('/')?]));
        named.unwrap_or_default().to_owned()
    }

    /// The answer to a request that is sent for the nth time, and how long the model takes for it.
    fn decide(&self, body: &str, tag: &str, nth: usize) -> (Duration, Answer) {
        let mut rng = Rng::new(self.seed, &format!("{nth} {body}"));
        let delay = match rng.below(10) {
            0 => rng.millis(1000..4000),
            1..4 => rng.millis(80..600),
            _ => rng.millis(5..80),
        };
        if delay >= Duration::from_secs(1) {
            self.stats.hit(Class::ProviderSlow, 1);
        }
        let second = body.contains("\"mock-second\"");
        if !second && rng.percent(8) {
            self.stats.hit(Class::ProviderFails, 1);
            let fault =
                [Answer::status(529), Answer::status(500), Answer::raw("garbage"), Answer::HangUp, Answer::CutBody];
            return (delay, fault[rng.below(fault.len())].clone());
        }
        let unique = rng.below(usize::MAX);
        let id = |part: &str| format!("tu_{unique:x}{part}");
        let clock = |part: &str| (id(part), "clock", json!({}));
        let list = |part: &str| (id(part), "ls", json!({"id": id(part)}));
        let tools = match rng.below(100) {
            0..22 => vec![clock("c")],
            22..42 => vec![list("m")],
            42..50 => vec![list("m"), clock("c")],
            50..54 => vec![clock("c"), (id("x"), "nobody", json!({})), clock("d")],
            54..57 => return (delay, Answer::text("").truncated()),
            57..62 => return (delay, Answer::text(&format!("[{tag}/long]")).usage(3000, 10)),
            _ => return (delay, Answer::text(&format!("[{tag}/answer]"))),
        };
        let tools: Vec<_> = tools.iter().map(|(id, name, input)| (id.as_str(), *name, input.clone())).collect();
        (delay, Answer::tools(&tools))
    }
}

async fn answer(responder: Arc<Responder>, request: Request, mut conn: Conn) {
    let body = request.text();
    let tag = Responder::tag(&body);
    let (nth, left) = responder.with(&tag, |asked| {
        let nth = asked.requests.iter().filter(|earlier| earlier.body == request.body).count();
        let left = asked.left.remove(&request.body);
        asked.requests.push(request.clone());
        (nth, left)
    });
    if let Some((when, Some(class))) = left {
        responder.stats.again(class, when.elapsed());
    }
    let (delay, answer) = responder.decide(&body, &tag, nth);
    tokio::select! {
        () = tokio::time::sleep(delay) => {
            let model = if body.contains("\"mock-second\"") { "mock-second" } else { "mock-main" };
            answer.send(false, model, &mut conn).await;
        }
        () = conn.closed() => {
            let now = (Instant::now(), responder.stats.active());
            responder.with(&tag, |asked| asked.left.insert(request.body, now));
        }
    }
}
