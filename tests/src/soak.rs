//! A cluster that everything happens to, for as long as one likes: several drivers and observers in each session, client tools
//! and a tool server, pauses, slow and failing providers, and every fault of nodes, Redis and Postgres in turn.
//!
//! Each actor has a random number generator of its own, seeded from the seed of the run and its name: a seed repeats what
//! everybody does, though not the microsecond at which they meet. The checker reads the record of every session; a class of fault that hit no
//! running turn fails the run as a broken rule does.

mod driver;
mod faults;
mod model;
mod observer;
mod rng;
mod session_run;
mod stats;

use crate::checker::{Rule, Violation};
use crate::cluster::Plan;
use crate::mcp::{Kind, Mcp, Outcome};
pub use faults::FAULTS;
use faults::Faults;
use model::Model;
use rng::Rng;
use session_run::Context;
pub use stats::Class;
use stats::Stats;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Scripted calls of the tool server: more than any run makes.
const TOOL_CALLS: usize = 200_000;

/// What is wanted.
#[derive(Debug, Clone)]
pub struct Options {
    pub seed: u64,
    /// How long faults come.
    pub time: Duration,
    /// Sessions at a time.
    pub sessions: usize,
    /// How long Redis is stopped at most.
    pub outage: Duration,
    /// Only these classes of faults of nodes and servers; all, if empty.
    pub only: Vec<Class>,
}

/// Runs it. Returns the summary, and whether all is well.
pub async fn run(options: &Options) -> (String, bool) {
    let stats = Arc::new(Stats::default());
    let model = Arc::new(Model::start(options.seed, stats.clone()).await);
    let mcp = Mcp::start("files", Kind::Http, &["ls"]).await;
    let mut rng = Rng::new(options.seed, "tools");
    let failing: Vec<bool> = (0..TOOL_CALLS).map(|_| push_outcome(&mcp, &mut rng)).collect();
    let plan = Plan::default().own_redis().own_postgres().proxied().mcp(&mcp).model(&model.url());
    let plan = plan.env("BAE_SHUTDOWN_TIMEOUT", "1").env("BAE_TURN_TIMEOUT", "2");
    let mut cluster = plan.start().await;
    let (stop, over) = watch::channel(false);
    let context = Context {
        seed: options.seed,
        apis: cluster.nodes.iter().map(|node| node.api()).collect(),
        admins: cluster.nodes.iter().map(|node| node.admin()).collect(),
        profile: cluster.profile.clone(),
        pool: cluster.pool.clone(),
        model: model.clone(),
        stats: stats.clone(),
        // Nothing is accepted or taken over while Redis is away.
        time_limit: Duration::from_secs(60) + options.outage,
        over,
    };
    let slots: Vec<_> = (0..options.sessions).map(|slot| tokio::spawn(context.clone().run_sessions(slot))).collect();
    let classes = if options.only.is_empty() { FAULTS } else { options.only.as_slice() };
    let rng = Rng::new(options.seed, "faults");
    let mut faults = Faults { cluster: &mut cluster, rng, stats: stats.clone(), outage: options.outage };
    faults.run(classes, Instant::now() + options.time).await;
    stop.send_replace(true);
    for slot in slots {
        if let Err(error) = slot.await {
            stats.wrong("the run", error.to_string());
        }
    }
    check_tools(&mcp, &failing, &stats);
    let mut wanted = classes.to_vec();
    wanted.extend(Class::ALL.iter().filter(|class| !FAULTS.contains(class)));
    stats.report(&wanted)
}

/// Scripts the next call; says whether it fails.
fn push_outcome(mcp: &Mcp, rng: &mut Rng) -> bool {
    let (outcome, fails) = match rng.below(10) {
        0 => (Outcome::IsError("no".to_owned()), true),
        1 => (Outcome::HangUp, true),
        2..5 => (Outcome::Late(rng.millis(200..2500), "a long listing".to_owned()), false),
        _ => (Outcome::Text("a listing".to_owned()), false),
    };
    mcp.push(outcome);
    fails
}

/// No tool was called twice for one tool use.
fn check_tools(mcp: &Mcp, failing: &[bool], stats: &Stats) {
    let calls = mcp.calls();
    stats.hit(Class::ToolFails, failing.iter().take(calls.len()).filter(|fails| **fails).count());
    let mut times: HashMap<&str, usize> = HashMap::new();
    for call in &calls {
        *times.entry(call["arguments"]["id"].as_str().unwrap_or_default()).or_default() += 1;
    }
    for (id, times) in times.into_iter().filter(|(_, times)| *times > 1) {
        let what = format!("the tool use {id} was called {times} times");
        stats.violated("the tool server", [Violation { rule: Rule::Once, what }]);
    }
    stats.count("tool calls", calls.len());
}
