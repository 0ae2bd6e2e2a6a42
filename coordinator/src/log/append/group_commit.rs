//! Group commit for Postgres: appends of different sessions share one statement, and so one commit.
//!
//! An append is sent at once while fewer than [`STATEMENTS`] statements are running. Appends that come meanwhile wait,
//! and those that wait are sent together. At most one append of each session is running: a second one would only wait
//! for the lock on the session's row and keep a connection busy. If the answer to a statement is lost, its appends are
//! repeated until it is known whether they were applied. [`Log::append`](crate::log::Log::append) is the only way in.
//!
//! This is written by hand because what is shared is this statement with its conditions and its answer for each
//! session, which no library offers. `sqlx` has no pipelining either, so that without sharing each append would need a
//! connection and a commit of its own. It can go when a driver pipelines statements and `loadtest` shows as many turns
//! per second with one statement for each append.

use super::postgres::{Entry, Written, append};
use super::refusal;
use crate::db::sql::{Sql, sql};
use crate::db::{Pool, Postgres, limited, of_write};
use crate::{Db, Error};
use engine::event::EventNumber;
use engine::ids::SessionId;
use engine::time::UnixMillis;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How many appends share a statement at most.
const BATCH: usize = 64;
/// A statement with more bytes of payload than this takes no further append.
const BATCH_BYTES: usize = 1 << 20;
/// How many appends may wait. Further ones fail with `Unavailable`.
const WAITING: usize = 10_000;
/// How many statements run at the same time at most.
const STATEMENTS: usize = 8;
/// The first and the longest pause before an append whose outcome is unknown is repeated.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

const FIND: Sql = sql!("SELECT number, created_at FROM events WHERE id = $1 AND session = $2");
const STATE: Sql = sql!("SELECT state, epoch FROM sessions WHERE id = $1");

/// An append that waits or runs.
struct Job {
    entry: Arc<Entry>,
    since: Instant,
    /// Whether the append gets a statement of its own, because it was left out of a shared one or a shared one failed.
    alone: bool,
    reply: oneshot::Sender<Result<Written, Error>>,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    busy: HashSet<SessionId>,
    running: usize,
}

pub(in crate::log) struct GroupCommit {
    db: Db,
    postgres: Arc<Postgres>,
    statements: usize,
    /// How long an append may wait, and how long an append with an unknown outcome is repeated.
    time_limit: Duration,
    waiting: Mutex<Waiting>,
}

impl GroupCommit {
    /// The group commit of a Postgres database. None for SQLite, whose writer task groups the commits itself.
    pub(crate) fn new(db: &Db) -> Option<Arc<Self>> {
        let postgres = db.postgres()?;
        let statements = (postgres.max_connections() as usize / 2).clamp(1, STATEMENTS);
        let time_limit = postgres.statement_timeout();
        let (db, postgres) = (db.clone(), Arc::clone(postgres));
        Some(Arc::new(Self { db, postgres, statements, time_limit, waiting: Mutex::default() }))
    }

    fn pool(&self) -> &Arc<Pool> {
        self.postgres.pool()
    }

    /// Runs an append to its end, even if the caller stops waiting, and then calls `then`.
    ///
    /// # Errors
    /// As [`crate::log::Log::append`].
    pub(crate) async fn append<T, A>(self: &Arc<Self>, entry: Entry, then: A) -> Result<T, Error>
    where
        T: Send + 'static,
        A: FnOnce(Written) -> T + Send + 'static,
    {
        let this = Arc::clone(self);
        self.postgres.run(async move { this.append_until_known(Arc::new(entry)).await.map(then) }).await
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an append and repeats it unchanged until it is known whether it was applied.
    ///
    /// # Errors
    /// As [`crate::log::Log::append`]. `Unknown` when the time limit has passed, and when a later attempt was refused
    /// for a reason that may pass: the first attempt may still be applied then, until the epoch moves.
    async fn append_until_known(self: &Arc<Self>, entry: Arc<Entry>) -> Result<Written, Error> {
        let (mut doubt, mut pause) = (false, PAUSE.0);
        let deadline = Instant::now() + self.time_limit;
        loop {
            match self.submit(Arc::clone(&entry)).await {
                Ok(written) => return Ok(written),
                Err(Error::Unknown) => doubt = true,
                Err(error @ Error::Unavailable(_)) if !doubt => return Err(error),
                Err(Error::Unavailable(_)) => {}
                // It may have been refused only because an earlier attempt was applied.
                Err(refused) => match self.find(&entry).await {
                    Ok(Some(written)) => return Ok(written),
                    Ok(None) if doubt && matches!(refused, Error::PreconditionFailed) => return Err(Error::Unknown),
                    Ok(None) => return Err(refused),
                    Err(error) if !doubt => return Err(error),
                    Err(_) => {}
                },
            }
            if Instant::now() >= deadline {
                return Err(Error::Unknown);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Where the events of an append are, if they are in the log.
    async fn find(&self, entry: &Entry) -> Result<Option<Written>, Error> {
        let Some(event) = entry.events.first() else { return Ok(None) };
        let query = self.db.read(&FIND);
        let row = query.bind(event.id.0.as_slice()).bind(entry.session.0.as_slice()).optional().await?;
        row.map(|row| Ok(Written { first: EventNumber(row.get("number")?), now: UnixMillis(row.get("created_at")?) }))
            .transpose()
    }

    /// Queues one attempt and waits for its answer.
    async fn submit(self: &Arc<Self>, entry: Arc<Entry>) -> Result<Written, Error> {
        let (reply, answer) = oneshot::channel();
        let starts_worker = {
            let mut waiting = self.waiting();
            if waiting.jobs.len() >= WAITING {
                return Err(Error::Unavailable(sqlx::Error::PoolTimedOut));
            }
            waiting.jobs.push_back(Job { entry, since: Instant::now(), alone: false, reply });
            let starts_worker = waiting.running < self.statements;
            waiting.running += usize::from(starts_worker);
            starts_worker
        };
        if starts_worker {
            tokio::spawn(Arc::clone(self).work());
        }
        answer.await.unwrap_or(Err(Error::Unknown))
    }

    /// Runs waiting appends, one statement after another, until nothing waits.
    async fn work(self: Arc<Self>) {
        let mut worker = Worker { group: &self, sessions: Vec::new(), done: false };
        while let Some(jobs) = worker.take() {
            // Appends that could not share this statement do not wait for its end, which can take as long as another
            // transaction keeps a row locked.
            Arc::clone(&self).raise();
            let left = match <[Job; 1]>::try_from(jobs) {
                Ok([job]) => {
                    let result = self.one(&job.entry).await;
                    let _ = job.reply.send(result);
                    Vec::new()
                }
                Err(jobs) => self.several(jobs).await,
            };
            worker.release(left);
        }
    }

    /// Starts another worker, if fewer than the allowed number run and an append can be sent now.
    fn raise(self: Arc<Self>) {
        let mut waiting = self.waiting();
        let Waiting { jobs, busy, running } = &mut *waiting;
        if *running < self.statements && jobs.iter().any(|job| !busy.contains(&job.entry.session)) {
            *running += 1;
            drop(waiting);
            tokio::spawn(self.work());
        }
    }

    async fn one(&self, entry: &Entry) -> Result<Written, Error> {
        let mut lent = self.pool().lend().await?;
        let result = limited(self.pool().limit(), append(&mut lent.connection, &[entry])).await;
        match lent.done(result).map_err(of_write)?.first() {
            Some(Some(written)) => Ok(*written),
            _ => {
                let row = self.db.read(&STATE).bind(entry.session.0.as_slice()).optional().await?;
                Err(refusal(row, entry.turn.as_ref().map(|turn| turn.epoch))?)
            }
        }
    }

    /// Sends several appends in one statement. Returns those that need a statement of their own.
    async fn several(&self, jobs: Vec<Job>) -> Vec<Job> {
        let mut lent = match self.pool().lend().await {
            Ok(lent) => lent,
            Err(error) => {
                tracing::warn!(%error, appends = jobs.len(), "no connection for appends");
                return refuse(jobs, || Error::Unavailable(sqlx::Error::PoolTimedOut));
            }
        };
        let entries: Vec<&Entry> = jobs.iter().map(|job| &*job.entry).collect();
        let result = limited(self.pool().limit(), append(&mut lent.connection, &entries)).await;
        let written = match lent.done(result).map_err(of_write) {
            Ok(written) => written,
            Err(Error::Unknown) => return refuse(jobs, || Error::Unknown),
            Err(error) => {
                tracing::debug!(%error, appends = jobs.len(), "a shared append failed; each goes alone");
                vec![None; jobs.len()]
            }
        };
        let mut left = Vec::new();
        for (job, written) in jobs.into_iter().zip(written) {
            match written {
                Some(written) => drop(job.reply.send(Ok(written))),
                None => left.push(Job { alone: true, ..job }),
            }
        }
        left
    }
}

/// Answers all appends with the same error. Returns no jobs, because none is left to do.
fn refuse(jobs: Vec<Job>, error: impl Fn() -> Error) -> Vec<Job> {
    for job in jobs {
        let _ = job.reply.send(Err(error()));
    }
    Vec::new()
}

/// A task that runs statements. When it is dropped, even by a panic, its sessions can be appended to again and another
/// worker can take its place.
struct Worker<'f> {
    group: &'f GroupCommit,
    sessions: Vec<SessionId>,
    done: bool,
}

impl Worker<'_> {
    /// Takes the appends for the next statement. None when nothing can be sent: the worker ends then.
    fn take(&mut self) -> Option<Vec<Job>> {
        let mut waiting = self.group.waiting();
        let Waiting { jobs, busy, running } = &mut *waiting;
        let (mut taken, mut kept, mut bytes) = (Vec::new(), VecDeque::new(), 0);
        while let Some(job) = jobs.pop_front() {
            if job.since.elapsed() > self.group.time_limit {
                let _ = job.reply.send(Err(Error::Unavailable(sqlx::Error::PoolTimedOut)));
                continue;
            }
            let full =
                taken.len() == BATCH || bytes > BATCH_BYTES || taken.first().is_some_and(|first: &Job| first.alone);
            if full {
                kept.push_back(job);
                kept.append(jobs);
                break;
            }
            let fits = taken.is_empty() || !job.alone;
            if fits && busy.insert(job.entry.session) {
                self.sessions.push(job.entry.session);
                bytes += job.entry.size();
                taken.push(job);
            } else {
                kept.push_back(job);
            }
        }
        *jobs = kept;
        if taken.is_empty() {
            *running -= 1;
            self.done = true;
            return None;
        }
        Some(taken)
    }

    /// Frees the sessions of the last statement. The appends that are left go before all others.
    fn release(&mut self, left: Vec<Job>) {
        let mut waiting = self.group.waiting();
        for session in self.sessions.drain(..) {
            waiting.busy.remove(&session);
        }
        for job in left.into_iter().rev() {
            waiting.jobs.push_front(job);
        }
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.release(Vec::new());
        if !self.done {
            self.group.waiting().running -= 1;
        }
    }
}
