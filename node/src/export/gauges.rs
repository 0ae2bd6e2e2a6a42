//! What is not counted when it happens but asked for when somebody reads the metrics.
//!
//! Numbers of the whole cluster are counted in the database, by the one node that has the duty to do so. The other nodes
//! report none, so that a dashboard takes the greatest.

use crate::app::App;
use crate::telemetry::metrics::{
    BUILD, CALLS_QUEUED, DATABASE_CONNECTIONS, DRIVERS, KEYS, MCP_LIVE, PROFILES, REDIS_UP, SANDBOXES_LIVE,
    SESSIONS_OPEN, SESSIONS_OWNED, STREAMS_OPEN, SUBAGENTS_ACTIVE, TURNS_PENDING, TURNS_RUNNING,
};
use coordinator::log::Statistics;
use coordinator::metrics::Definition;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The time between two counts in the database.
const INTERVAL: Duration = Duration::from_secs(15);
/// How long the node that counts may be silent before another one takes the duty.
const DUTY: Duration = Duration::from_secs(20);
/// How long a count is reported.
const STALE: Duration = Duration::from_secs(40);

/// What was counted last, and when.
type Counted = Arc<Mutex<Option<(Statistics, Instant)>>>;

type OfCluster = fn(&Statistics) -> u64;
type OfNode = fn(&App) -> Option<u64>;

/// Answers for this node from now on, and counts what there is in the cluster until the node stops. Does nothing if
/// nobody reads the metrics.
pub(crate) async fn observe(app: Arc<App>) {
    if !app.config.has_metrics() {
        return;
    }
    let counted = Counted::default();
    register(&app, &counted);
    loop {
        let count = async {
            let here = !app.cluster.is_shared() || app.log.take_duty("statistics", app.cluster.node(), DUTY).await?;
            if here { app.log.statistics().await.map(Some) } else { Ok(None) }
        };
        match app.stop.run_until_cancelled(count).await {
            None => return,
            Some(Ok(statistics)) => {
                let statistics = statistics.map(|statistics| (statistics, Instant::now()));
                *counted.lock().unwrap_or_else(PoisonError::into_inner) = statistics;
            }
            Some(Err(error)) => tracing::debug!(%error, "what there is in the cluster could not be counted"),
        }
        if app.stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_none() {
            return;
        }
    }
}

fn register(app: &Arc<App>, counted: &Counted) {
    let meter = opentelemetry::global::meter("bae");
    let of_cluster: [(Definition, OfCluster); 7] = [
        (SESSIONS_OPEN, |of| of.sessions),
        (PROFILES, |of| of.profiles),
        (KEYS, |of| of.keys),
        (TURNS_PENDING, |of| of.pauses),
        (SANDBOXES_LIVE, |of| of.sandboxes),
        (SUBAGENTS_ACTIVE, |of| of.subagents),
        (DRIVERS, |of| of.drivers),
    ];
    for (definition, number) in of_cluster {
        let counted = Arc::clone(counted);
        gauge(&meter, definition, move |observer| {
            let counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((statistics, _)) = counted.as_ref().filter(|(_, at)| at.elapsed() < STALE) {
                observer.observe(number(statistics), &[]);
            }
        });
    }
    let of_node: [(Definition, OfNode); 6] = [
        (MCP_LIVE, |app| Some(app.mcp.live() as u64)),
        (TURNS_RUNNING, |app| Some(app.running_turns.get())),
        (CALLS_QUEUED, |app| Some(app.cluster.waiting() as u64)),
        (STREAMS_OPEN, |app| Some(app.open_streams.get())),
        (SESSIONS_OWNED, |app| Some(app.cluster.owned() as u64)),
        (REDIS_UP, |app| app.cluster.redis_up().map(u64::from)),
    ];
    for (definition, number) in of_node {
        let app = Arc::downgrade(app);
        gauge(&meter, definition, move |observer| {
            if let Some(number) = Weak::upgrade(&app).and_then(|app| number(&app)) {
                observer.observe(number, &[]);
            }
        });
    }
    let of = Arc::downgrade(app);
    gauge(&meter, DATABASE_CONNECTIONS, move |observer| {
        if let Some(app) = of.upgrade() {
            let (idle, used) = app.db.connections();
            observer.observe(idle as u64, &[KeyValue::new("state", "idle")]);
            observer.observe(used as u64, &[KeyValue::new("state", "used")]);
        }
    });
    gauge(&meter, BUILD, |observer| observer.observe(1, &[KeyValue::new("version", env!("CARGO_PKG_VERSION"))]));
}

fn gauge(meter: &Meter, definition: Definition, answer: impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static) {
    let gauge = meter.u64_observable_gauge(definition.name).with_description(definition.meaning);
    let _registered = gauge.with_callback(answer).build();
}
