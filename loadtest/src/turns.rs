//! `loadtest turns`: measures whole turns, the server's own share of their time, and the rate.

use std::sync::Arc;

use crate::cli::Turns;
use crate::curve;
use crate::disk::durable_writes;
use crate::echo::{Echo, Exchange};
use crate::report::{Figure, Latencies, Report, Settings};
use crate::run::{Harness, Turn, add};
use crate::stats::Latency;

/// How many exchanges of the bare echo are measured, over all callers together.
const ECHO_CALLS: u32 = 2000;
/// For sessions with this number of turns or more the curve is always shown.
const LONG_SESSION: u32 = 100;

pub(crate) async fn measure(options: &Turns) -> anyhow::Result<Report> {
    let Turns { target, model, sessions, turns, curve } = options;
    let harness = Harness::set_up(target, model).await?;
    let open: Vec<_> = harness.open(*sessions, model.rounds).await?.into_iter().map(Arc::new).collect();
    // The disk is measured before and after the load: a difference shows that other programs use it too.
    let durable = || harness.server.as_ref().map(|server| durable_writes(server.directory())).transpose();
    let before = durable()?;
    let outcome = harness.turns(&open, *turns, model).await?;
    let after = durable()?;
    let (closing_failures, stopped) = harness.tear_down(open, target).await?;

    // The echo is measured after the server was stopped, so that nothing else runs then.
    let echo = Echo::start().await?;
    let exchange = Exchange { request_bytes: model.message_bytes, answer_bytes: model.message_bytes };
    let bare = echo.measure(*sessions, (ECHO_CALLS / sessions).max(20), exchange).await?;
    let curve = if *curve || *turns >= LONG_SESSION {
        curve::rows(&outcome.turns, &echo, *turns, model.message_bytes).await?
    } else {
        Vec::new()
    };

    let latency = |time: fn(&Turn) -> std::time::Duration| outcome.turns.iter().map(time).collect::<Latency>();
    let own = latency(|turn| turn.own);
    let mut latencies = vec![
        Latencies { name: "whole call", summary: latency(|turn| turn.whole).summary() },
        Latencies { name: "first bytes", summary: latency(|turn| turn.first).summary() },
        Latencies { name: "own share", summary: own.summary() },
        Latencies { name: "bare echo", summary: bare.summary() },
    ];
    let mut figures = vec![
        Figure::new("turns per second", outcome.turns.len() as f64 / outcome.elapsed.as_secs_f64(), "1/s"),
        Figure::new("own share / bare echo, p50", ratio(own.p50_ms(), bare.p50_ms()), "times"),
    ];
    let requests: u64 = outcome.turns.iter().map(|turn| u64::from(turn.provider_requests)).sum();
    figures.push(Figure::new("provider requests per turn", ratio(requests as f64, outcome.turns.len() as f64), ""));
    for (name, disk) in [("durable 4 KiB write, before", before), ("durable 4 KiB write, after", after)] {
        latencies.extend(disk.map(|disk| Latencies { name, summary: disk.summary() }));
    }
    let mut failures = outcome.failures;
    add(&mut failures, closing_failures);
    if let Some(stopped) = stopped {
        figures.push(Figure::new("database after the stop", stopped.database_bytes as f64 / 1e6, "MB"));
        let all = f64::from(*turns) * f64::from(*sessions);
        figures.push(Figure::new("database bytes per turn", stopped.database_bytes as f64 / all, "B"));
        if !stopped.clean {
            failures.insert("the server did not end with status 0".to_owned(), 1);
        }
    }
    Ok(Report {
        command: "turns",
        settings: Settings {
            sessions: *sessions,
            turns: Some(*turns),
            calls: None,
            message_bytes: model.message_bytes,
            answer_bytes: Some(model.answer_bytes),
            provider_ms: Some(model.provider_ms),
            rounds: Some(model.rounds),
        },
        latencies,
        figures,
        failures,
        curve,
    })
}

pub(crate) fn ratio(value: f64, base: f64) -> f64 {
    if base > 0.0 { value / base } else { 0.0 }
}
