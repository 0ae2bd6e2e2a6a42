//! The soak: a cluster under load and under every kind of fault, for as long as is wanted.
//!
//! Each session has two drivers and two observers, tools of the client and of a tool server, pauses, and slow and
//! failing providers. Meanwhile every fault of nodes, Redis and Postgres comes in turn. The checker reads the record of
//! every session. The run fails if a rule is broken, and also if a class of fault hit no running turn.
//!
//! Each actor has a random number generator of its own, made from the seed of the run and its name. The same seed
//! repeats what the actors decide, but not the exact times at which they meet.

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

/// How many calls of the tool server are scripted: more than any run makes.
const TOOL_CALLS: usize = 200_000;

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    pub seed: u64,
    /// For how long faults are caused.
    pub time: Duration,
    /// How many sessions run at the same time.
    pub sessions: usize,
    /// The longest time for which Redis is stopped.
    pub outage: Duration,
    /// The classes of faults of nodes and servers to cause. If empty, all of them.
    pub only: Vec<Class>,
}

/// Runs the soak. Returns the summary, and whether the run succeeded.
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
        // While Redis is stopped, no call is accepted and no session is taken over.
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

/// Scripts the next call of the tool server. Returns whether it fails.
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

/// Checks that no tool was called twice for the same tool use.
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
