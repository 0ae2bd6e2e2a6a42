//! Runs sessions one after the other, each from its opening to its check.
//!
//! Two drivers and two observers use a session for some seconds. In some sessions a key is then revoked, or the session
//! is closed, while a turn runs. In the others the run waits until no turn runs and closes the session. At the end the
//! checker reads the whole record of the session and compares it with what the drivers, the observers and the model
//! saw.

use super::driver::{CallOutput, Driver};
use super::model::Model;
use super::observer;
use super::rng::Rng;
use super::stats::{Class, Stats};
use crate::admin::{Admin, Key};
use crate::checker::{Log, Rule, Violation, label_of};
use crate::client::{Api, Session};
use crate::fixture::clock;
use crate::history::unpaired;
use serde_json::{Value, json};
use sqlx::postgres::PgPool;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// What every session of a soak needs.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub seed: u64,
    pub apis: Vec<Api>,
    pub admins: Vec<Admin>,
    pub profile: String,
    pub pool: PgPool,
    pub model: Arc<Model>,
    pub stats: Arc<Stats>,
    /// How long a request may take to be answered, and a session to end its last turn.
    pub time_limit: Duration,
    /// True when no new session shall begin.
    pub over: watch::Receiver<bool>,
}

/// One session with the tasks that use it.
struct SessionRun {
    context: Context,
    /// The name of the session in this run; messages contain it, so that the model knows the session.
    tag: String,
    rng: Rng,
    /// The session through each of the nodes.
    views: Vec<Session>,
    stop: watch::Sender<bool>,
    drivers: Vec<JoinHandle<Driver>>,
    /// Each observer, and whether it sees the events of clients too.
    observers: Vec<(bool, JoinHandle<Vec<String>>)>,
}

impl Context {
    /// Runs one session after the other until `over`.
    pub(super) async fn run_sessions(self, slot: usize) {
        let mut number = 0;
        let mut keys = vec![self.key().await, self.key().await];
        while !*self.over.borrow() {
            number += 1;
            let tag = format!("s{slot}x{number}");
            match SessionRun::open(self.clone(), &tag, &keys).await {
                Some(session_run) => {
                    if session_run.run(&keys).await {
                        keys[1] = self.key().await;
                    }
                }
                None => self.stats.wrong(&tag, "could not be opened".to_owned()),
            }
            self.model.forget(&tag);
        }
    }

    /// Sends a request to random nodes until one answers with this status. None when that takes too long.
    async fn insist(&self, path: &str, key: &str, method: &str, body: Option<&Value>, status: u16) -> Option<Value> {
        let end = Instant::now() + self.time_limit;
        let mut rng = Rng::new(self.seed, path);
        while Instant::now() < end {
            let at = rng.below(self.apis.len());
            let api = if path.starts_with("/admin") { &self.admins[at].0 } else { &self.apis[at] };
            let mut request = api.request(method, path).header("authorization", format!("Bearer {key}"));
            if let Some(body) = body {
                request = request.header("content-type", "application/json").body(body.to_string());
            }
            if let Ok(Ok(answer)) = timeout(Duration::from_secs(15), request.send()).await {
                let seen = answer.status().as_u16();
                let text = timeout(Duration::from_secs(15), answer.text()).await;
                // A DELETE whose first answer was lost gets 409 when it is repeated.
                if seen == status || (method == "DELETE" && seen == 409) {
                    return Some(text.ok()?.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default());
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
        None
    }

    async fn key(&self) -> Key {
        let body = json!({"name": "soak", "profile_id": self.profile});
        let made = self.insist("/admin/v1/keys", crate::server::ADMIN_KEY, "POST", Some(&body), 201).await;
        let text = |name: &str| made.as_ref().and_then(|key| key[name].as_str()).expect("a key in time").to_owned();
        Key { id: text("id"), secret: text("key") }
    }

    async fn read(&self, session: &Session) -> Option<Log> {
        let end = Instant::now() + self.time_limit;
        while Instant::now() < end {
            match timeout(Duration::from_secs(10), Log::try_read(&self.pool, &session.id)).await {
                Ok(Ok(log)) => return Some(log),
                _ => sleep(Duration::from_millis(100)).await,
            }
        }
        None
    }
}

impl SessionRun {
    async fn open(context: Context, tag: &str, keys: &[Key]) -> Option<Self> {
        let mut rng = Rng::new(context.seed, tag);
        let mut body = json!({"tools": [clock()]});
        if rng.percent(50) {
            body["compaction"] = json!({"mode": "auto", "size": 2000});
        }
        let opened = context.insist("/api/v1/sessions", &keys[0].secret, "POST", Some(&body), 201).await?;
        let id = opened["session_id"].as_str()?.to_owned();
        let join = format!("/api/v1/sessions/{id}/join");
        let joined = context.insist(&join, &keys[1].secret, "POST", Some(&json!({"tools": [clock()]})), 201).await?;
        let session = |key: &Value| -> Option<Vec<Session>> {
            let key = key["session_key"].as_str()?;
            Some(context.apis.iter().map(|api| Session::new(api, &id, key)).collect())
        };
        let (views, second) = (session(&opened)?, session(&joined)?);
        let first = context.read(&views[0]).await?.events.first()?.id.clone();
        let stop = watch::Sender::new(false);
        let (mut drivers, mut observers) = (Vec::new(), Vec::new());
        for (number, (views, key)) in [views.clone(), second].into_iter().zip(keys).enumerate() {
            let name = format!("{tag}/d{number}");
            let mut driver = Driver::new(views.clone(), &key.id, &name, &context);
            driver.register().await;
            drivers.push(tokio::spawn(driver.run(stop.subscribe())));
            let (clients, rng) = (number == 0, Rng::new(context.seed, &format!("{tag}/o{number}")));
            observers.push((clients, tokio::spawn(observer::watch(views, first.clone(), clients, rng))));
        }
        Some(Self { context, tag: tag.to_owned(), rng, views, stop, drivers, observers })
    }

    /// Runs the session to its end. Returns whether the second key was revoked.
    async fn run(mut self, keys: &[Key]) -> bool {
        let life = self.rng.millis(8_000..30_000);
        let ending = self.rng.below(100);
        let mut over = self.context.over.clone();
        let _ = timeout(life, over.wait_for(|over| *over)).await;
        let stats = self.context.stats.clone();
        let mut revoked = false;
        if ending < 15 && self.wait_running().await {
            stats.hit(Class::Revoked, 1);
            let path = format!("/admin/v1/keys/{}", keys[1].id);
            revoked = self.context.insist(&path, crate::server::ADMIN_KEY, "DELETE", None, 204).await.is_some();
            // The revocation ends the stream of the observer that uses the key.
            self.observers.remove(1).1.abort();
        }
        let closed = (15..40).contains(&ending) && self.wait_running().await;
        if closed {
            stats.hit(Class::Closed, 1);
            self.close().await;
        }
        self.stop.send_replace(true);
        let mut drivers = Vec::new();
        for driver in std::mem::take(&mut self.drivers) {
            match timeout(4 * self.context.time_limit, driver).await {
                Ok(Ok(driver)) => drivers.push(driver),
                other => stats.wrong(&self.tag, format!("a driver never came back: {:?}", other.map(|_| "panic"))),
            }
        }
        if !closed {
            if let Some(first) = drivers.first_mut() {
                first.leave_nothing_open().await;
            }
            self.rest().await;
            self.close().await;
        }
        self.end(&drivers).await;
        stats.count("sessions", 1);
        revoked
    }

    async fn wait_running(&self) -> bool {
        for _ in 0..100 {
            if self.context.read(&self.views[0]).await.is_some_and(|log| log.phase == "running" && log.state == "open")
            {
                return true;
            }
            sleep(Duration::from_millis(50)).await;
        }
        false
    }

    async fn close(&self) {
        let path = self.views[0].path("");
        if self.context.insist(&path, &self.views[0].key, "DELETE", None, 200).await.is_none() {
            self.context.stats.wrong(&self.tag, "could not be closed".to_owned());
        }
    }

    /// Waits until no turn runs, then checks the rules that hold only for a session in which no turn runs.
    async fn rest(&self) {
        let end = Instant::now() + self.context.time_limit;
        loop {
            let Some(log) = self.context.read(&self.views[0]).await else {
                return self.context.stats.wrong(&self.tag, "cannot be read at rest".to_owned());
            };
            if log.phase != "running" {
                return self.context.stats.violated(&self.tag, log.violations());
            }
            if Instant::now() > end {
                self.context.stats.wrong(&self.tag, format!("does not come to rest: {:?}", log.types().last()));
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn check(&self, log: &Log, drivers: &[Driver]) -> Vec<Violation> {
        let requests = self.context.model.asked(&self.tag);
        let mut all = log.violations();
        let sent: Vec<_> = drivers.iter().flat_map(|driver| driver.sent.iter().cloned()).collect();
        all.extend(log.compare_sent(&sent));
        all.extend(log.compare_asked(&requests));
        all.extend(drivers.iter().flat_map(|driver| &driver.shown).flat_map(|shown| compare_call(log, shown)));
        for (label, taken) in drivers.iter().flat_map(|driver| &driver.reports) {
            let times = log.events.iter().filter(|event| event.payload["image"] == label.as_str()).count();
            if times > 1 || (*taken && times == 0) {
                let what = format!("the report {label} (taken: {taken}) is recorded {times} times");
                all.push(Violation { rule: Rule::Once, what });
            }
        }
        for request in &requests {
            if let Some(what) = unpaired(&request.json()["messages"]) {
                all.push(Violation { rule: Rule::Pairs, what: format!("{what}: {}", request.text()) });
            }
        }
        // An abandoned pause and a failed attempt also record `session.error`. Any other one means that a turn failed.
        let harmless = ["driver_turn_abandoned", "provider_call_failed"];
        for event in log.events.iter().filter(|event| event.kind == "session.error") {
            if !harmless.iter().any(|reason| event.payload["reason"] == *reason) {
                let what = format!("the session met {}", event.payload);
                all.push(Violation { rule: Rule::Answered, what });
            }
        }
        all
    }

    /// After the session was closed: checks its record, and that its observers saw all of it.
    async fn end(&mut self, drivers: &[Driver]) {
        let stats = &self.context.stats;
        let mut streams = Vec::new();
        for (clients, mut observer) in std::mem::take(&mut self.observers) {
            match timeout(self.context.time_limit, &mut observer).await {
                Ok(Ok(seen)) => streams.push((clients, seen)),
                _ => {
                    observer.abort();
                    stats.wrong(&self.tag, "an observer did not see the session's end".to_owned());
                }
            }
        }
        let Some(log) = self.context.read(&self.views[0]).await else {
            return stats.wrong(&self.tag, "cannot be read".to_owned());
        };
        stats.violated(&self.tag, self.check(&log, drivers));
        for (clients, seen) in streams {
            // A replay contains the events of clients in any case. Live, an observer gets them only if it asked for
            // them.
            let hidden = |id: &String| log.events.iter().any(|event| event.from_client && event.id == *id);
            let seen: Vec<String> = seen.into_iter().filter(|id| clients || !hidden(id)).collect();
            let wanted = log.events.iter().skip(1).filter(|event| clients || !event.from_client);
            if wanted.clone().map(|event| &event.id).ne(&seen) {
                let missing = wanted.clone().find(|event| !seen.contains(&event.id));
                let wanted: Vec<&str> = wanted.map(|event| event.id.as_str()).collect();
                let differs = (0..).find(|at| wanted.get(*at).copied() != seen.get(*at).map(String::as_str));
                let at = differs.unwrap_or_default();
                let extra = seen.get(at).and_then(|id| log.events.iter().find(|event| event.id == *id));
                let what = format!(
                    "client events {clients}: {} of {} events, from place {at} on; there {extra:?}; missing {missing:?}",
                    seen.len(),
                    wanted.len(),
                );
                stats.violated(&self.tag, [Violation { rule: Rule::Slice, what }]);
            }
        }
        stats.count("events", log.events.len());
        stats.count("calls recorded", log.calls.len());
        stats.count("owners", usize::try_from(log.epoch).unwrap_or_default());
    }
}

/// Compares what a caller got with the log: its result must list all events of the call, and its stream must have
/// brought those that no client sent.
fn compare_call(log: &Log, shown: &CallOutput) -> Vec<Violation> {
    let message = log.events.iter().find(|event| label_of(event).as_deref() == Some(&shown.label));
    let Some(message) = message else { return Vec::new() };
    let events = || log.events.iter().filter(|event| event.call == message.call);
    let (every, live): (Vec<&str>, Vec<&str>) = (
        events().map(|event| event.id.as_str()).collect(),
        events().filter(|event| !event.from_client).map(|event| event.id.as_str()).collect(),
    );
    let mut all = Vec::new();
    if every != shown.result {
        let what = format!("the result of {} has {:?} of {every:?}", shown.label, shown.result);
        all.push(Violation { rule: Rule::Slice, what });
    }
    if live != shown.live {
        let what = format!("the stream of {} brought {:?} of {live:?}", shown.label, shown.live);
        all.push(Violation { rule: Rule::Slice, what });
    }
    all
}
