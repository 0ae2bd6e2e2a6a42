//! What the owner of a session holds, and what the engine needs to know of the session. `owner` takes sessions and
//! serves their queues, and `drive` carries out their calls. Both use these types, and only in the task that holds the
//! lease.

use crate::app::App;
use coordinator::cluster::Lease;
use coordinator::log::{Epoch, Record};
use engine::gate::Pause;
use engine::ids::{KeyId, SessionId};
use engine::toolbox::Toolbox;
use engine::turn::{Context, Turn};
use std::sync::Arc;
use tokio::time::Instant;

/// A pause of the session. Its owner measures the time that is left with this node's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownPause {
    client: KeyId,
    pub(super) ends: Instant,
}

impl From<Pause> for KnownPause {
    fn from(pause: Pause) -> Self {
        Self { client: pause.owner, ends: Instant::now() + pause.left }
    }
}

impl KnownPause {
    fn now(self) -> Pause {
        Pause { owner: self.client, left: self.ends.saturating_duration_since(Instant::now()) }
    }
}

/// A session that this node has taken: the lease, the epoch that every write carries, and the turn computed from the
/// log.
pub(super) struct Owner {
    pub(super) app: Arc<App>,
    pub(super) lease: Lease,
    pub(super) session: SessionId,
    pub(super) epoch: Epoch,
    pub(super) turn: Turn,
    pub(super) pause: Option<KnownPause>,
}

impl Owner {
    /// The session's pause, if it has one, with the time that is left of it now.
    pub(super) fn pause(&self) -> Option<Pause> {
        self.pause.map(KnownPause::now)
    }
}

/// What the engine's decisions depend on, from the session's record and the configuration.
pub(super) fn context(app: &App, record: Record) -> Context<'static> {
    let primary = app.providers.entry(&record.primary).cloned();
    let fallbacks = record.fallbacks.iter().filter_map(|name| {
        let entry = app.providers.entry(name);
        if entry.is_none() {
            tracing::warn!(
                profile = record.profile_name,
                fallback = name,
                "a fallback provider is not configured; skipped"
            );
        }
        entry.cloned()
    });
    Context {
        fallbacks: fallbacks.collect(),
        primary: primary.ok_or_else(|| format!("the primary provider '{}' is not configured", record.primary)),
        tools: Toolbox::new(record.declarations, &record.mcp_tools, record.tracked_subagents),
        available_sandboxes: record.available_sandboxes,
        compaction: record.compaction,
        pause_timeout: app.config.turn_timeout,
        max_rounds: app.config.max_turn_iterations,
        running_subagents: record.running_subagents,
        max_subagents: app.config.max_subagents_per_session as usize,
        fresh: &coordinator::fresh_id,
    }
}
