//! Driving a call. The engine decides each step; this module does it: it appends the step's events to the log, does the
//! action (ask the provider, call a tool), and gives the answer to the engine.
//!
//! Nothing is done before the events that announce it are committed. The session's owner calls [`Owner::drive`].

use super::measure::{self, Course};
use super::owned::{KnownPause, Owner, context};
use crate::sandboxes::{self, command::Ran};
use crate::telemetry::spans;
use coordinator::Error;
use coordinator::cluster::Call;
use coordinator::cluster::Progress;
use coordinator::log::{Append, CallRow};
use engine::event::{Event, EventNumber};
use engine::gate::{End, GateAfter, GateFound};
use engine::ids::{CallId, KeyId, SubagentId};
use engine::round::{Dispatch, ToolUse};
use engine::rpc::RpcError;
use engine::turn::{Action, Context, McpReply, SandboxReply, Step};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{Instrument, Span};

/// How long an append of a running turn is repeated while the database is unavailable. After that the turn is left in
/// the log, where the sweep of some node finds it.
const APPEND_TIME: Duration = Duration::from_secs(30);
/// The pause between repetitions.
const APPEND_RETRY: Duration = Duration::from_millis(200);

/// What the session's owner does after it has served a call.
pub(super) enum Ended {
    /// It serves the next call.
    Served,
    /// It takes the session again, because its memory may differ from the log.
    Reload,
    /// It stops, because another node owns the session, or this node stops.
    Stop,
}

/// A call that is about to open, the gate that it found, and its first step if that is decided already.
pub(super) struct Open {
    pub call: Call,
    pub gate: GateFound,
    pub first: Option<Step>,
}

/// What the next append says about subagents.
#[derive(Default)]
struct Told {
    /// The subagent that runs now.
    running: Option<SubagentId>,
    /// The subagents whose end the model is told.
    reported: Vec<SubagentId>,
}

/// Why an append was not made.
enum Stopped {
    /// The call cannot go on here; see [`Ended`].
    Session(Ended),
    /// The append was to store a compaction's result. The call can go on without it.
    Store,
}

impl Owner {
    /// Carries out a call until it ends or this node cannot go on with it.
    pub(super) async fn drive(&mut self, call: spans::Call, ctx: Context<'static>, open: Option<Open>) -> Ended {
        let running = self.app.running_turns.enter();
        let span = spans::turn(&call);
        let steps = self.steps(call, ctx, open, Course::begin(span.clone()));
        let ended = Box::pin(steps).instrument(span.clone()).await;
        if matches!(ended, Ended::Stop) && self.lease.stop.is_cancelled() {
            measure::ended(&span, "cancelled");
        }
        drop(running);
        ended
    }

    async fn steps(
        &mut self,
        traced: spans::Call,
        mut ctx: Context<'static>,
        open: Option<Open>,
        mut course: Course,
    ) -> Ended {
        let call = traced.id;
        let (mut opening, mut first) = match open {
            Some(Open { call, gate, first }) => (Some((call, gate)), first),
            None => (None, None),
        };
        let mut told = Told::default();
        loop {
            let step = first.take().unwrap_or_else(|| self.turn.next(&ctx));
            let Step { events, store, action } = step;
            if !events.is_empty() || matches!(action, Action::End(_)) {
                let append = Append {
                    session: self.session,
                    epoch: self.epoch,
                    call,
                    open: opening.as_ref().map(|(call, gate)| row_of(call, *gate)),
                    events,
                    chain: self.turn.chain().cloned(),
                    reported: told.reported.clone(),
                    end: match &action {
                        Action::End(end) => Some(end.clone()),
                        Action::Continue
                        | Action::Ask(_)
                        | Action::Mcp(_)
                        | Action::Sandbox(..)
                        | Action::SubagentStatus(_)
                        | Action::Launch(..) => None,
                    },
                };
                match self.append(append, opening.as_ref(), store).await {
                    Ok(committed) => {
                        if let Some((_, found)) = opening.as_ref() {
                            measure::opened(&self.app, *found, &committed);
                        }
                        if let Some(first) = committed.first() {
                            self.turn.committed(first.number);
                        }
                        if let Some(id) = std::mem::take(&mut told).running {
                            self.runs(id).await;
                        }
                        if let Action::End(end) = action {
                            return self.ended(call, &committed, end, course).await;
                        }
                        if opening.take().is_some() {
                            self.lease.tell(call, Progress::Running).await;
                        }
                    }
                    Err(Stopped::Session(ended)) => return ended,
                    Err(Stopped::Store) => match self.app.log.fold(self.session).await {
                        Ok(turn) => {
                            self.turn = turn;
                            first = Some(self.turn.store_failed(&ctx));
                            continue;
                        }
                        Err(_) => return Ended::Reload,
                    },
                }
            }
            let external = matches!(action, Action::Ask(_) | Action::Mcp(_) | Action::Sandbox(..) | Action::Launch(..));
            if external && !self.lease.may_act(self.epoch).await {
                tracing::warn!(session = %self.session, "the lease has run out; another node goes on");
                return Ended::Stop;
            }
            let used_tool = !matches!(action, Action::Continue | Action::End(_) | Action::Ask(_));
            let acted = std::time::Instant::now();
            match action {
                Action::Continue | Action::End(_) => {}
                Action::Ask(request) => {
                    let providers = Arc::clone(&self.app.providers);
                    let attempt = providers.attempt(&request);
                    let Some((reply, usage)) = self.unless_stopped(call, attempt).await else {
                        return Ended::Stop;
                    };
                    course.asked(acted, usage);
                    self.turn.provider_answered(&ctx, reply);
                }
                Action::Mcp(tool_use) => {
                    let (app, session) = (Arc::clone(&self.app), self.session);
                    let span = spans::tool(&tool_use);
                    let trace = traced.parent.as_deref();
                    let tool_call = call_mcp(&app, session, &tool_use, trace).instrument(span.clone());
                    let Some(reply) = self.unless_stopped(call, tool_call).await else {
                        return Ended::Stop;
                    };
                    course.tool(&span, Dispatch::Mcp, acted, matches!(reply, McpReply::Result { is_error: false, .. }));
                    self.turn.mcp_answered(&ctx, reply);
                }
                Action::Sandbox(tool_use, command) => {
                    let app = Arc::clone(&self.app);
                    let run = Box::pin(sandboxes::command::run(&app, self.session, command));
                    let span = spans::tool(&tool_use);
                    let run = run.instrument(span.clone());
                    let Some(ran) = self.unless_stopped(call, run).await else {
                        return Ended::Stop;
                    };
                    let ok = matches!(&ran, Ok(Ran::Output(_, output)) if output.exit_code == 0);
                    course.tool(&span, Dispatch::Sandbox, acted, ok);
                    let reply = match ran {
                        Ok(Ran::Output(sandbox, output)) => SandboxReply::Ran(sandbox.id, output),
                        Ok(Ran::NotRunning) => SandboxReply::NotRunning,
                        Ok(Ran::Failed(sandbox, detail)) => SandboxReply::Failed(sandbox.id, detail),
                        Err(error) => {
                            tracing::error!(session = %self.session, error = %error, "a sandbox could not be looked up");
                            return self.retry_later().await;
                        }
                    };
                    self.turn.sandbox_answered(&ctx, reply);
                }
                Action::SubagentStatus(asked) => {
                    match sandboxes::subagents::read_status(&self.app, self.session, asked.as_deref()).await {
                        Ok((status, ended)) => {
                            course.tool(&Span::none(), Dispatch::Subagent, acted, status.is_ok());
                            told.reported = ended;
                            self.turn.status_read(&ctx, status);
                        }
                        Err(error) => {
                            tracing::error!(session = %self.session, error = %error, "subagents could not be looked up");
                            return self.retry_later().await;
                        }
                    }
                }
                Action::Launch(id, launch) => {
                    let (app, session) = (Arc::clone(&self.app), self.session);
                    let key = self.turn.acting().unwrap_or(KeyId([0; 16]));
                    let span = spans::subagent(id, &launch.harness);
                    let launching = Box::pin(sandboxes::subagents::launch(&app, session, key, id, &launch));
                    let launching = launching.instrument(span.clone());
                    let Some(started) = self.unless_stopped(call, launching).await else {
                        return Ended::Stop;
                    };
                    course.tool(&span, Dispatch::Subagent, acted, started.is_ok());
                    told.running = started.is_ok().then_some(id);
                    self.turn.launched(&ctx, id, &launch, started);
                }
            }
            if used_tool {
                self.renew(&mut ctx, told.reported.len()).await;
            }
        }
    }

    /// Notes in the database that the log says of a subagent that it runs. If that fails, or the node is lost before, the
    /// reconciler does it.
    async fn runs(&self, id: SubagentId) {
        if let Err(error) = self.app.log.subagent_runs(id).await {
            tracing::warn!(session = %self.session, error = %error, "what the log says of a subagent could not be noted");
        }
    }

    /// Leaves the turn to be carried on from the log after a short wait.
    async fn retry_later(&self) -> Ended {
        tokio::time::sleep(APPEND_RETRY).await;
        Ended::Reload
    }

    /// Reads the clients' declarations again. Those that changed during the turn apply from its next provider call on.
    /// `reported` is the number of subagents whose rows are deleted by the next append.
    async fn renew(&self, ctx: &mut Context<'static>, reported: usize) {
        let Some(key) = self.turn.acting() else { return };
        if let Ok(mut record) = self.app.log.record(self.session, key).await {
            record.tracked_subagents = record.tracked_subagents.saturating_sub(reported);
            *ctx = context(&self.app, record);
        }
    }

    /// Does an action outside of the engine. None if meanwhile the session is closed or lost, or the node gives up its
    /// running turns.
    async fn unless_stopped<T>(&self, call: CallId, act: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.lease.stop.cancelled() => {
                self.lease.tell(call, Progress::Refused(RpcError::not_open("closed"))).await;
                None
            }
            () = self.lease.lost.cancelled() => None,
            () = self.app.halt.cancelled() => {
                if let Err(error) = self.app.log.hand_over(self.session, self.epoch).await {
                    tracing::warn!(session = %self.session, error = %error, "a running turn is left as if after a crash");
                }
                None
            }
            answer = act => Some(answer),
        }
    }

    async fn append(
        &self,
        append: Append,
        opening: Option<&(Call, GateFound)>,
        store: bool,
    ) -> Result<Vec<Arc<Event>>, Stopped> {
        let call = append.call;
        let deadline = Instant::now() + APPEND_TIME;
        loop {
            let error = match self.app.log.append(append.clone()).await {
                Ok(events) => return Ok(events),
                Err(error) => error,
            };
            let ended = match error {
                Error::Fenced => {
                    tracing::warn!(session = %self.session, "the session has a newer owner");
                    Ended::Stop
                }
                Error::NotOpen(state) => {
                    self.lease.tell(call, Progress::Refused(RpcError::not_open(state))).await;
                    self.lease.refuse_all(&RpcError::not_open(state)).await;
                    Ended::Stop
                }
                // The gate was not as expected (the database's clock decides when a pause has expired), or it is
                // unknown whether the append was made. The session is taken again, so that an append which is still
                // under way is refused, and its log is read. If the call has opened, it is carried on from the log; if
                // not, it is still in its place in the queue.
                Error::PreconditionFailed | Error::Unknown => {
                    if opening.is_some() {
                        self.lease.unclaim(call).await;
                    }
                    Ended::Reload
                }
                Error::Duplicate if opening.is_some() => {
                    self.follow_winner(call, opening).await;
                    Ended::Reload
                }
                Error::NotFound => {
                    self.lease.tell(call, Progress::Refused(RpcError::session_gone())).await;
                    Ended::Stop
                }
                error => {
                    tracing::error!(session = %self.session, error = ?error, "an append failed");
                    if store {
                        return Err(Stopped::Store);
                    }
                    let over = opening.is_some() || Instant::now() >= deadline || self.app.halt.is_cancelled();
                    if !over && !self.lease.stop.is_cancelled() {
                        tokio::time::sleep(APPEND_RETRY).await;
                        continue;
                    }
                    self.lease.tell(call, Progress::Refused(RpcError::internal())).await;
                    Ended::Reload
                }
            };
            return Err(Stopped::Session(ended));
        }
    }

    /// Tells the callers what an opened call shows in the log. Either this call has opened before, and its entry stayed
    /// in the queue; or another call with the same idempotency key has opened first, and the callers follow that one.
    async fn follow_winner(&self, call: CallId, opening: Option<&(Call, GateFound)>) {
        match self.app.log.call(call).await {
            Ok(Some(record)) => {
                let progress = record.ended.map_or(Progress::Running, |(last, outcome)| Progress::Ended(last, outcome));
                return self.lease.tell(call, progress).await;
            }
            Ok(None) => {}
            // What happened is unknown: the session is taken again, and the call is claimed again.
            Err(_) => return,
        }
        let name =
            opening.and_then(|(call, _)| call.idempotency.as_ref().map(|(name, digest)| (call.key, name, digest)));
        let Some((key, name, digest)) = name else { return };
        let progress = match self.app.log.call_by_key(self.session, key, name).await {
            Ok(Some(winner)) if winner.params_digest.as_deref() == Some(digest.as_slice()) => {
                Progress::Follow(winner.id)
            }
            Ok(Some(_)) => Progress::Refused(RpcError::idempotency_key_reused()),
            Ok(None) | Err(_) => Progress::Refused(RpcError::internal()),
        };
        self.lease.tell(call, progress).await;
    }

    /// Ends the sandboxes of the session, because it has failed. The reconciler removes what cannot be removed now.
    fn discard_sandboxes(&self) {
        if self.app.sandboxes.is_none() {
            return;
        }
        let (app, session) = (Arc::clone(&self.app), self.session);
        self.app.tasks.spawn(async move {
            let discarded = async {
                sandboxes::lifecycle::discard(&app, session).await?;
                sandboxes::subagents::discard(&app, session).await
            };
            if let Err(error) = discarded.await {
                tracing::warn!(%session, error = %error, "the sandboxes of a failed session are removed later");
            }
        });
    }

    async fn ended(&mut self, call: CallId, committed: &[Arc<Event>], end: End, course: Course) -> Ended {
        course.ended(&end);
        let last = match committed.last() {
            Some(event) => event.number,
            None => self.app.log.row(self.session).await.map_or(EventNumber::START, |row| row.head),
        };
        self.lease.tell(call, Progress::Ended(last, end.outcome)).await;
        if end.gate == GateAfter::Failed {
            self.lease.refuse_all(&RpcError::not_open("error")).await;
            self.discard_sandboxes();
            return Ended::Stop;
        }
        let pause = self.turn.paused().and_then(|owner| end.gate.pause(owner));
        self.pause = pause.map(KnownPause::from);
        Ended::Served
    }
}

fn row_of(call: &Call, gate: GateFound) -> CallRow {
    CallRow { key: call.key, idempotency: call.idempotency.clone(), traceparent: call.traceparent.clone(), gate }
}

async fn call_mcp(
    app: &crate::app::App,
    session: engine::ids::SessionId,
    tool_use: &ToolUse,
    trace: Option<&str>,
) -> McpReply {
    let name = tool_use.server_name.as_deref().unwrap_or_default();
    let Some(server) = app.config.mcp_servers.iter().find(|server| server.name == name) else {
        return McpReply::Failed(format!("server '{name}' is not configured any more"));
    };
    match app.mcp.call(session, server, &tool_use.name, &tool_use.input, trace).await {
        crate::mcp::CallOutcome::Ok { result, is_error } => {
            let content = crate::mcp::content_blocks(&result);
            McpReply::Result { result, is_error, content }
        }
        crate::mcp::CallOutcome::Failed { error } => McpReply::Failed(error),
    }
}
