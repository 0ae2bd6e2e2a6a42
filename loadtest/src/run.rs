//! One run: starts the provider, reaches or starts the server, opens the sessions, makes the load, and closes
//! everything.
//!
//! A failed call does not stop the run. It is counted by its reason, and its session goes on with the next turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;

use crate::cli::{Model, Target};
use crate::client::{Api, Failure, Session};
use crate::marker::{Marker, random};
use crate::provider::Provider;
use crate::server::{Server, Stopped};

/// How many sessions are opened at the same time, so that opening them is no load test of its own.
const OPENING_AT_ONCE: usize = 32;

/// The provider, the server and the client of a run.
pub(crate) struct Harness {
    pub provider: Arc<Provider>,
    pub server: Option<Server>,
    pub api: Api,
}

/// One turn that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Its number in its session, counted from 1.
    pub number: u32,
    pub whole: Duration,
    /// The time of the whole turn without the time that the provider took.
    pub own: Duration,
    pub first: Duration,
    pub stream_bytes: u64,
    pub terminal_bytes: u64,
    pub request_bytes: u64,
    pub provider_requests: u32,
}

/// How many calls failed, by reason.
pub(crate) type Failures = BTreeMap<String, u64>;

/// The turns and failures of a phase of load.
#[derive(Default)]
pub(crate) struct Outcome {
    pub turns: Vec<Turn>,
    pub failures: Failures,
    pub elapsed: Duration,
}

impl Harness {
    pub(crate) async fn set_up(target: &Target, model: &Model) -> anyhow::Result<Harness> {
        let latency = Duration::from_millis(model.provider_ms);
        let provider = Arc::new(Provider::start(model.provider_addr, latency, model.answer_bytes).await?);
        let server = match &target.serve {
            Some(program) => Some(Server::start(program, target.data.as_deref(), &provider.url()).await?),
            None => None,
        };
        let (urls, key) = match (&server, &target.key) {
            (Some(server), _) => (std::slice::from_ref(&server.url), server.key.as_str()),
            (None, Some(key)) => (target.url.as_slice(), key.as_str()),
            (None, None) => anyhow::bail!("a client key is needed: --key or BAE_KEY (or --serve a server program)"),
        };
        let api = Api::new(urls, key, target.timeout())?;
        Ok(Harness { provider, server, api })
    }

    /// Opens `count` sessions. The first refusal ends the run, because nothing can be measured then.
    pub(crate) async fn open(&self, count: u32, rounds: u32) -> anyhow::Result<Vec<Session>> {
        let mut sessions = Vec::new();
        let mut opening = JoinSet::new();
        for _ in 0..count {
            if opening.len() == OPENING_AT_ONCE {
                sessions.push(opened(opening.join_next().await)?);
            }
            let api = self.api.clone();
            opening.spawn(async move { api.open(rounds).await });
        }
        while !opening.is_empty() {
            sessions.push(opened(opening.join_next().await)?);
        }
        Ok(sessions)
    }

    /// Lets every session send `turns` messages, each after the answer to the one before.
    pub(crate) async fn turns(&self, sessions: &[Arc<Session>], turns: u32, model: &Model) -> anyhow::Result<Outcome> {
        let progress = progress(sessions.len() as u64 * u64::from(turns));
        let run = random();
        let begin = Instant::now();
        let mut running = JoinSet::new();
        for (place, session) in sessions.iter().enumerate() {
            let (session, provider, progress) = (Arc::clone(session), Arc::clone(&self.provider), progress.clone());
            let (message_bytes, rounds) = (model.message_bytes, u8::try_from(model.rounds).unwrap_or(u8::MAX));
            let base = run.wrapping_add((place as u64) << 32);
            running.spawn(async move {
                let mut outcome = Outcome::default();
                for number in 1..=turns {
                    let marker = Marker { turn: base.wrapping_add(u64::from(number)), rounds };
                    match turn(&session, &provider, marker, number, message_bytes).await {
                        Ok(turn) => outcome.turns.push(turn),
                        Err(failure) => *outcome.failures.entry(failure.to_string()).or_default() += 1,
                    }
                    progress.inc(1);
                }
                outcome
            });
        }
        let mut all = Outcome::default();
        while let Some(ended) = running.join_next().await {
            let outcome = ended.context("a session's task failed")?;
            all.turns.extend(outcome.turns);
            add(&mut all.failures, outcome.failures);
        }
        all.elapsed = begin.elapsed();
        progress.finish_and_clear();
        Ok(all)
    }

    /// Closes the sessions, unless they shall stay open, and stops the server if this run started it.
    pub(crate) async fn tear_down(
        self,
        sessions: Vec<Arc<Session>>,
        target: &Target,
    ) -> anyhow::Result<(Failures, Option<Stopped>)> {
        let mut failures = Failures::new();
        if !target.leave_open {
            for session in &sessions {
                if let Err(failure) = session.close().await {
                    *failures.entry(format!("closing: {failure}")).or_default() += 1;
                }
            }
        }
        let stopped = match self.server {
            Some(server) => Some(server.stop().await?),
            None => None,
        };
        Ok((failures, stopped))
    }
}

async fn turn(
    session: &Session,
    provider: &Provider,
    marker: Marker,
    number: u32,
    message_bytes: usize,
) -> Result<Turn, Failure> {
    let timing = session.turn(marker, message_bytes).await?;
    let spent = provider.take(marker).ok_or(Failure::NotFromProvider)?;
    // If the server answered after a failed provider call, the provider got fewer requests than the turn has rounds.
    if spent.requests <= u32::from(marker.rounds) {
        return Err(Failure::NotFromProvider);
    }
    Ok(Turn {
        number,
        whole: timing.whole,
        own: timing.whole.saturating_sub(spent.time),
        first: timing.first,
        stream_bytes: timing.stream_bytes,
        terminal_bytes: timing.terminal_bytes,
        request_bytes: spent.request_bytes,
        provider_requests: spent.requests,
    })
}

fn opened(ended: Option<Result<Result<Session, Failure>, tokio::task::JoinError>>) -> anyhow::Result<Session> {
    let session = ended.context("no session is being opened")??;
    session.map_err(|failure| anyhow::anyhow!("a session could not be opened: {failure}"))
}

pub(crate) fn add(all: &mut Failures, more: Failures) {
    for (reason, count) in more {
        *all.entry(reason).or_default() += count;
    }
}

/// A progress bar on standard error. It is not shown if that is no terminal.
pub(crate) fn progress(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {per_sec} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}
