//! The owner of one session: it takes the session, carries on a turn that was interrupted, then serves the session's
//! queue.
//!
//! Only the task that holds the lease runs this. `session` starts it for every lease that the coordinator hands over.

use super::drive::{Ended, Open};
use super::owned::{KnownPause, Owner, context};
use crate::app::App;
use crate::telemetry::metrics::metrics;
use crate::telemetry::spans;
use coordinator::Error;
use coordinator::cluster::{Call, Claim};
use coordinator::cluster::{Lease, Progress};
use coordinator::log::State;
use engine::gate::{Gate, GateFound};
use engine::ids::{CallId, KeyId};
use engine::rpc::RpcError;
use engine::turn::Opening;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the history of an idle session is kept in memory for the next call.
const HISTORY_CACHE_TIME: Duration = Duration::from_secs(60);
/// The pause before something that failed, or that could not be done yet, is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Serves a session until it has nothing to do, is closed, or belongs to another node.
pub(super) async fn serve(app: Arc<App>, lease: Lease) {
    let session = lease.session();
    let mut lease = Some(lease);
    let mut first = true;
    while let Some(held) = lease.take() {
        match take(&app, held).await {
            Ok(Some((owner, interrupted))) => {
                if std::mem::take(&mut first) && interrupted.is_some() {
                    metrics().takeovers.add(1, &[]);
                }
                lease = owner.run(interrupted).await;
            }
            Ok(None) => {}
            Err((held, error)) => {
                tracing::error!(%session, error = %error, "the session cannot be served just now");
                held.refuse_here(&RpcError::internal());
                let stop = held.stop.clone();
                tokio::select! {
                    // Perhaps only this node cannot reach the database, so another one is given the session.
                    () = tokio::time::sleep(RETRY) => match app.cluster.is_shared() {
                        true => held.hand_over(),
                        false => lease = held.release().await.err(),
                    },
                    () = stop.cancelled() => {}
                    () = app.stop.cancelled() => {}
                }
            }
        }
    }
}

type Interrupted = Option<(CallId, u32)>;

/// Takes the session: advances its epoch, then reads its log. None if the session is not open; its callers are told so.
async fn take(app: &Arc<App>, lease: Lease) -> Result<Option<(Owner, Interrupted)>, (Lease, Error)> {
    let session = lease.session();
    // Whoever takes over many sessions at once must leave connections to the database for the turns that run.
    let _permit = app.takes.acquire().await;
    loop {
        let row = match app.log.row(session).await {
            Ok(row) => row,
            Err(Error::NotFound) => {
                lease.refuse_all(&RpcError::session_gone()).await;
                return Ok(None);
            }
            Err(error) => return Err((lease, error)),
        };
        if row.state != State::Open {
            lease.refuse_all(&RpcError::not_open(row.state.public_name())).await;
            return Ok(None);
        }
        // The lease is confirmed between reading the epoch and advancing it: a node that was frozen meanwhile has lost
        // the lease, and must not take the session from its new owner.
        if !lease.confirm().await {
            return Ok(None);
        }
        let row = match app.log.take(session, row.epoch).await {
            Ok(row) => row,
            Err(Error::Fenced) => continue,
            Err(error) => return Err((lease, error)),
        };
        let mut turn = match app.log.fold(session).await {
            Ok(turn) => turn,
            Err(error) => return Err((lease, error)),
        };
        let (pause, interrupted) = match row.gate {
            Gate::Free => {
                turn.settle();
                (None, None)
            }
            Gate::Running { call, takeovers } => (None, Some((call, takeovers))),
            Gate::Paused(pause) => (Some(KnownPause::from(pause)), None),
        };
        return Ok(Some((Owner { app: Arc::clone(app), lease, session, epoch: row.epoch, turn, pause }, interrupted)));
    }
}

impl Owner {
    /// Serves until nothing is left to do. Returns the lease if the session has to be taken anew.
    async fn run(mut self, interrupted: Interrupted) -> Option<Lease> {
        if let Some((call, takeovers)) = interrupted {
            match self.carry_on(call, takeovers).await {
                Ended::Served => {}
                Ended::Reload => return Some(self.lease),
                Ended::Stop => return self.stopped().await,
            }
        }
        loop {
            if self.lease.stop.is_cancelled() || self.lease.lost.is_cancelled() {
                return self.stopped().await;
            }
            if self.app.stop.is_cancelled() {
                self.lease.pass_on();
                return None;
            }
            match self.lease.claim(self.pause()).await {
                Claim::Run(call) => match self.serve_call(call).await {
                    Ended::Served => {}
                    Ended::Reload => return Some(self.lease),
                    Ended::Stop => return self.stopped().await,
                },
                Claim::Refuse(calls) => {
                    for call in calls {
                        self.lease.tell(call, Progress::Refused(RpcError::turn_in_progress())).await;
                    }
                }
                Claim::Wait => {
                    if self.wait().await {
                        return self.lease.release().await.err();
                    }
                }
            }
        }
    }

    /// Cleans up after a session that is not served any more: closes its MCP connections. A node that ends hands the
    /// session over first, so that another node can take it at once.
    async fn stopped(self) -> Option<Lease> {
        let Owner { app, lease, session, .. } = self;
        if app.halt.is_cancelled() {
            lease.hand_over();
            app.mcp.close(session).await;
        } else {
            app.mcp.close(session).await;
            drop(lease);
        }
        None
    }

    /// Waits for something to do. Returns whether the session should be released, because nothing came.
    async fn wait(&mut self) -> bool {
        let wanted = self.lease.wanted().await;
        // The session stays on this node until its MCP connections are idle too, because MCP servers may keep state for it.
        let stays = self.app.cluster.is_shared() && self.app.mcp.connected(self.session);
        let now = Instant::now();
        let deadline = match self.pause {
            Some(pause) if wanted && pause.ends > now => pause.ends,
            // A call that could run was not given out: Redis is away, or in its grace period.
            _ if wanted => now + RETRY,
            _ if !stays && self.app.exceeds_history_cache(self.turn.bytes()) => now,
            _ => now + HISTORY_CACHE_TIME,
        };
        let held = self.app.count_cached_history(self.turn.bytes());
        let expired = tokio::select! {
            () = self.lease.woken() => false,
            () = self.lease.stop.cancelled() => false,
            () = self.lease.lost.cancelled() => false,
            () = self.app.stop.cancelled() => false,
            () = tokio::time::sleep_until(deadline) => true,
        };
        drop(held);
        if !expired && self.pause.is_some() {
            self.refresh_pause().await;
        }
        expired && !wanted && !stays
    }

    /// Reads the pause again, because the revocation of a key may have ended it early.
    async fn refresh_pause(&mut self) {
        if let Ok(row) = self.app.log.row(self.session).await
            && let Gate::Paused(pause) = row.gate
        {
            self.pause = Some(KnownPause::from(pause));
        }
    }

    async fn carry_on(&mut self, call: CallId, takeovers: u32) -> Ended {
        let key = self.turn.acting().unwrap_or(KeyId([0; 16]));
        let record = match self.app.log.record(self.session, key).await {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(session = %self.session, error = %error, "an interrupted turn cannot be carried on yet");
                tokio::time::sleep(RETRY).await;
                return Ended::Reload;
            }
        };
        tracing::info!(session = %self.session, takeovers, "an interrupted turn is carried on");
        self.lease.tell(call, Progress::Running).await;
        let profile = record.profile_name.clone();
        let ctx = context(&self.app, record);
        self.turn.recover(&ctx, takeovers);
        // The turn goes on even if its trace context cannot be read. Its spans then belong to no trace.
        let started = self.app.log.call(call).await.ok().flatten();
        let parent = started.and_then(|call| call.traceparent);
        let call = spans::Call { id: call, session: self.session, profile, parent, carried_on: true };
        self.drive(call, ctx, None).await
    }

    async fn serve_call(&mut self, call: Call) -> Ended {
        metrics().queue_wait.record(coordinator::age(&call.id.0), &[]);
        let gate = GateFound::by(self.pause(), call.key, &call.opening);
        let record = match self.app.log.record(self.session, call.key).await {
            Ok(record) => record,
            Err(Error::NotFound) => {
                return self.refuse(call.id, RpcError::session_gone()).await;
            }
            Err(error) => {
                tracing::error!(session = %self.session, error = %error, "a call could not be started");
                if !matches!(error, Error::Unavailable(_)) {
                    return self.refuse(call.id, RpcError::internal()).await;
                }
                // The call keeps its place. This node takes the session anew, or gives it to one that reaches the
                // database.
                self.lease.unclaim(call.id).await;
                tokio::time::sleep(RETRY).await;
                return Ended::Reload;
            }
        };
        let (deleted, profile) = (record.deleted, record.profile_name.clone());
        let ctx = context(&self.app, record);
        let first = match (&call.opening, deleted) {
            (Opening::Compact(_), true) => return self.refuse(call.id, RpcError::profile_unavailable()).await,
            (Opening::Message(_), true) => Some(self.turn.profile_unavailable(&ctx, call.key)),
            (opening, false) => match self.turn.open(&ctx, opening, call.key, gate) {
                Ok(()) => None,
                Err(error) => return self.refuse(call.id, error).await,
            },
        };
        let parent = call.traceparent.clone();
        let traced = spans::Call { id: call.id, session: self.session, profile, parent, carried_on: false };
        self.drive(traced, ctx, Some(Open { call, gate, first })).await
    }

    async fn refuse(&self, call: CallId, error: RpcError) -> Ended {
        self.lease.tell(call, Progress::Refused(error)).await;
        Ended::Served
    }
}
