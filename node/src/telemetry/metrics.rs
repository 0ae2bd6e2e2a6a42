//! The metrics of this crate: every instrument with its name, its labels and what it means.

use coordinator::instruments;
use coordinator::metrics::{Definition, Instrument, Kind, Seconds, ShortSeconds};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

instruments! {
    /// What this crate counts and measures when it happens.
    pub(crate) struct Metrics;
    turns_completed: Counter<u64> = "bae.turns.completed" ["outcome"]
        "calls that ended on this node: ok, paused (it waits for its client), failed, cancelled (its session was closed); and abandoned, a paused turn that another call took over";
    queue_wait: Seconds = "bae.calls.queue_wait" []
        "the time from the acceptance of a call until it began, by the clocks of the two nodes";
    turn_duration: Seconds = "bae.turn.duration" []
        "the time from the begin of a call until its end or pause";
    turn_overhead: ShortSeconds = "bae.turn.overhead" []
        "the same without the time of providers and tools";
    takeovers: Counter<u64> = "bae.lease.takeovers" []
        "unfinished turns that this node carried on, of another node or of an earlier start";
    provider_requests: Counter<u64> = "bae.provider.requests" ["provider", "model", "outcome"]
        "attempts at a provider, retries included: ok, error, timeout";
    provider_latency: Seconds = "bae.provider.latency" ["provider", "model"]
        "the time of an attempt, retries included";
    provider_retries: Counter<u64> = "bae.provider.retries" ["provider", "model"]
        "requests that were sent again within an attempt";
    inference_duration: Seconds = "gen_ai.client.inference.duration" ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "error.type"]
        "the time of an attempt (GenAI conventions v0.1)";
    input_tokens: Counter<u64> = "gen_ai.client.inference.usage.input_tokens" ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"]
        "input tokens as the provider counted them, with those of its cache (v0.1)";
    output_tokens: Counter<u64> = "gen_ai.client.inference.usage.output_tokens" ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"]
        "output tokens (v0.1)";
    cache_read_tokens: Counter<u64> = "gen_ai.client.inference.usage.cache_read.input_tokens" ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"]
        "input tokens that the provider read from its cache (v0.1)";
    cache_write_tokens: Counter<u64> = "gen_ai.client.inference.usage.cache_write.input_tokens" ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"]
        "input tokens that the provider wrote to its cache (v0.1)";
    operation_duration: Seconds = "gen_ai.client.operation.duration" ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "error.type"]
        "the time of an attempt (GenAI conventions v1.41)";
    token_usage: Tokens = "gen_ai.client.token.usage" ["gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.token.type"]
        "tokens of an attempt, input or output (v1.41)";
    tool_calls: Counter<u64> = "bae.tool.calls" ["kind", "outcome"]
        "tool calls that have a result, by who ran the tool: mcp, client, sandbox, subagent; ok or error";
    tool_latency: Seconds = "bae.tool.latency" ["kind"]
        "the time of a tool call that the server dispatched";
    mcp_duration: Seconds = "mcp.client.operation.duration" ["mcp.method.name", "error.type"]
        "the time of a request to an MCP server, with connecting to it where that was needed";
    http_requests: Counter<u64> = "bae.http.requests" ["port", "route", "status"]
        "answered requests, by port (client, admin), the route that matched, and the status";
    http_duration: ShortSeconds = "bae.http.duration" ["port", "route"]
        "the time from a request until the first byte of its answer";
    streams_lagged: Counter<u64> = "bae.streams.lagged" []
        "subscriptions that ended because their client did not read";
    sandbox_start: Seconds = "bae.sandbox.start" ["outcome"]
        "the time of starting a sandbox, with fetching its image: ok, error";
    sandbox_exec: Seconds = "bae.sandbox.exec" ["outcome"]
        "the time of a command in a sandbox: ok, error, timeout";
    sandbox_orphans: Counter<u64> = "bae.sandbox.orphans" []
        "containers that were removed because they belong to no session";
    subagents_ended: Counter<u64> = "bae.subagents.ended" ["outcome"]
        "subagents that ended: completed, failed, cancelled, timeout";
}

/// The instruments of this crate, made at the first use.
pub(crate) fn metrics() -> &'static Metrics {
    static METRICS: LazyLock<Metrics> = LazyLock::new(|| Metrics::new(&opentelemetry::global::meter("bae")));
    &METRICS
}

/// A histogram of tokens.
#[derive(Debug)]
pub(crate) struct Tokens(Histogram<u64>);

impl Tokens {
    pub(crate) fn record(&self, tokens: u64, labels: &[KeyValue]) {
        self.0.record(tokens, labels);
    }
}

impl Instrument for Tokens {
    const KIND: Kind = Kind::Histogram;
    const UNIT: &'static str = "";

    fn make(meter: &Meter, definition: &Definition) -> Self {
        let histogram = meter.u64_histogram(definition.name).with_description(definition.meaning);
        Self(histogram.with_boundaries((0..14).map(|power| 4f64.powi(power)).collect()).build())
    }
}

macro_rules! gauges {
    ($($gauge:ident = $name:literal [$($label:literal),*] $meaning:literal;)*) => {
        $(pub(crate) const $gauge: Definition =
            Definition { name: $name, kind: Kind::Gauge, unit: "", labels: &[$($label),*], meaning: $meaning };)*

        /// What is asked for when somebody reads the metrics ([`crate::export`] answers).
        pub(crate) const GAUGES: &[Definition] = &[$($gauge),*];
    };
}

gauges! {
    SESSIONS_OPEN = "bae.sessions.open" [] "open sessions of the cluster";
    PROFILES = "bae.profiles.count" [] "profiles of the cluster";
    KEYS = "bae.keys.count" [] "valid client keys of the cluster";
    TURNS_PENDING = "bae.turns.pending" [] "turns of the cluster that wait for a client";
    SANDBOXES_LIVE = "bae.sandboxes.live" [] "sandboxes of the cluster that start, run or are being stopped";
    SUBAGENTS_ACTIVE = "bae.subagents.active" [] "subagents of the cluster that start or run";
    DRIVERS = "bae.drivers.registered" [] "registered drivers of the open sessions of the cluster";
    MCP_LIVE = "bae.mcp.sessions.live" [] "live connections of this node to MCP servers";
    TURNS_RUNNING = "bae.turns.running" [] "calls that run on this node";
    CALLS_QUEUED = "bae.calls.queued" [] "calls that this node accepted and that wait";
    STREAMS_OPEN = "bae.streams.open" [] "subscriptions and calls that stream from this node";
    SESSIONS_OWNED = "bae.sessions.owned" [] "sessions that this node owns";
    REDIS_UP = "bae.redis.up" [] "1 if the last command to Redis was answered, else 0; absent without Redis";
    DATABASE_CONNECTIONS = "bae.database.connections" ["state"] "connections to the database: idle, used; on SQLite those that read";
    BUILD = "bae.build.info" ["version"] "1, with the version of the program";
}

/// Every metric of the program.
pub(crate) fn all() -> impl Iterator<Item = &'static Definition> {
    GAUGES.iter().chain(Metrics::CATALOGUE).chain(coordinator::metrics::Metrics::CATALOGUE)
}

/// How many of something there are now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Level(Arc<AtomicU64>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicU64>);

impl Level {
    /// Counts one more until the result is dropped.
    pub(crate) fn enter(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(&self.0))
    }

    /// How many there are.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
