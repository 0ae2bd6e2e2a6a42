//! `loadtest events`: measures how long an authenticated read of one event takes.

use std::sync::Arc;

use anyhow::Context;
use tokio::task::JoinSet;

use crate::cli::Events;
use crate::echo::{Echo, Exchange};
use crate::report::{Figure, Latencies, Report, Settings};
use crate::run::{Failures, Harness, add, progress};
use crate::stats::Latency;
use crate::turns::ratio;

pub(crate) async fn measure(options: &Events) -> anyhow::Result<Report> {
    let Events { target, model, sessions, turns, calls } = options;
    let harness = Harness::set_up(target, model).await?;
    let open: Vec<_> = harness.open(*sessions, model.rounds).await?.into_iter().map(Arc::new).collect();
    let mut failures = harness.turns(&open, *turns, model).await?.failures;

    let progress = progress(u64::from(*sessions) * u64::from(*calls));
    let mut reading = JoinSet::new();
    for session in &open {
        let (session, progress, calls) = (Arc::clone(session), progress.clone(), *calls);
        reading.spawn(async move {
            let (mut latency, mut failures) = (Latency::new(), Failures::new());
            for _ in 0..calls {
                match session.first_event().await {
                    Ok(time) => latency.record(time),
                    Err(failure) => *failures.entry(failure.to_string()).or_default() += 1,
                }
                progress.inc(1);
            }
            (latency, failures)
        });
    }
    let mut reads = Latency::new();
    while let Some(ended) = reading.join_next().await {
        let (latency, failed) = ended.context("a reader's task failed")?;
        reads.merge(&latency);
        add(&mut failures, failed);
    }
    progress.finish_and_clear();
    let (closing_failures, _) = harness.tear_down(open, target).await?;
    add(&mut failures, closing_failures);

    let exchange = Exchange { request_bytes: model.message_bytes, answer_bytes: model.message_bytes };
    let bare = Echo::start().await?.measure(*sessions, *calls, exchange).await?;
    Ok(Report {
        command: "events",
        settings: Settings {
            sessions: *sessions,
            turns: Some(*turns),
            calls: Some(*calls),
            message_bytes: model.message_bytes,
            ..Settings::default()
        },
        latencies: vec![
            Latencies { name: "GET events?limit=1", summary: reads.summary() },
            Latencies { name: "bare echo", summary: bare.summary() },
        ],
        figures: vec![Figure::new("read / bare echo, p50", ratio(reads.p50_ms(), bare.p50_ms()), "times")],
        failures,
        curve: Vec::new(),
    })
}
