//! The SQLite database: one file, one writer, several readers.
//!
//! All writes go through one task with one connection. Writes that wait at the same moment share a transaction and thus
//! one sync to the disk. A single write is not delayed by this. What has to follow a commit (publishing, answering)
//! runs in that task, so it also happens when the client leaves. With `synchronous=FULL`, what is committed is on the
//! disk.

use super::sql::Connection;
use crate::Error;
use crate::metrics::metrics;
use futures_util::future::BoxFuture;
use sqlx::Connection as _;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// How long a statement waits for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The most writes that may wait. Further callers wait until there is room.
const WRITE_QUEUE: usize = 1024;
/// The most writes that share a transaction.
const BATCH: usize = 64;
/// How many connections only read.
const READERS: u32 = 4;

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../migrations/sqlite");

/// An open database file. Clones share it.
#[derive(Clone)]
pub(crate) struct Sqlite {
    readers: SqlitePool,
    writes: mpsc::Sender<Command>,
    writer: Arc<std::sync::Mutex<Option<JoinHandle<()>>>>,
    /// Held while this process uses the file, so that a second one refuses to start.
    _lock: Arc<File>,
}

impl Sqlite {
    /// Opens (makes, if it is missing) the file, brings its schema up to date and starts the writer.
    ///
    /// # Errors
    /// `Unusable` with what to change, when the file cannot be opened or another process uses it.
    pub(super) async fn open(path: &Path) -> Result<Sqlite, Error> {
        let unusable = |what: &str, error: &dyn std::fmt::Display| {
            Error::Unusable(format!("cannot {what} the SQLite database {}: {error}", path.display()))
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| unusable("make the folder of", &e))?;
        }
        let lock = lock(path)?;
        private(path).map_err(|e| unusable("make", &e))?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        let mut connection = SqliteConnection::connect_with(&options).await.map_err(|e| unusable("open", &e))?;
        MIGRATIONS.run(&mut connection).await.map_err(|e| unusable("migrate", &e))?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(BUSY_TIMEOUT)
            .test_before_acquire(false)
            .connect_with(options.read_only(true).create_if_missing(false))
            .await
            .map_err(|e| unusable("read", &e))?;
        let (writes, queue) = mpsc::channel(WRITE_QUEUE);
        let writer = tokio::spawn(write_all(connection, queue));
        Ok(Sqlite { readers, writes, writer: Arc::new(std::sync::Mutex::new(Some(writer))), _lock: Arc::new(lock) })
    }

    /// How many connections for reading are idle, and how many are used.
    pub(super) fn connections(&self) -> (usize, usize) {
        let (all, idle) = (self.readers.size() as usize, self.readers.num_idle());
        (idle, all.saturating_sub(idle))
    }

    /// The connections for reading.
    pub(super) fn readers(&self) -> &SqlitePool {
        &self.readers
    }

    /// Runs `work` inside a write transaction. If `work` fails, nothing that it did is applied, whatever becomes of
    /// other writes in the transaction. After the commit `then` runs, whether or not the caller still waits.
    ///
    /// # Errors
    /// Whatever `work` returned, or the failure of the commit; `Unknown` if the writer is gone.
    pub(super) async fn write<T, W, A>(&self, work: W, then: A) -> Result<T, Error>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Error>> + Send + 'static,
        A: FnOnce(&T) + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Job { since: Instant::now(), work: Some(work), then: Some(then), result: None, reply: Some(reply) };
        self.writes.send(Command::Write(Box::new(job))).await.map_err(|_| Error::Unknown)?;
        answer.await.unwrap_or(Err(Error::Unknown))
    }

    /// Waits for the writes that were accepted, folds the write-ahead log into the file and closes it, for all clones.
    pub(super) async fn close(&self) {
        self.readers.close().await;
        let writer = self.writer.lock().map(|mut slot| slot.take()).unwrap_or_default();
        if let Some(writer) = writer
            && self.writes.send(Command::Close).await.is_ok()
        {
            let _ = writer.await;
        }
    }
}

/// Creates the file if it is missing and lets only its owner read it, because it holds every conversation. SQLite gives
/// its other files the same mode.
fn private(path: &Path) -> std::io::Result<()> {
    let mut options = File::options();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

/// Takes the file's lock, which the operating system releases when the process ends in any way.
fn lock(path: &Path) -> Result<File, Error> {
    let lock_path = PathBuf::from(format!("{}.lock", path.display()));
    let unusable = |error: &dyn std::fmt::Display| {
        Error::Unusable(format!("cannot lock {}: {error}; check that its folder is writable", lock_path.display()))
    };
    let file = File::create(&lock_path).map_err(|e| unusable(&e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Unusable(format!(
            "another process uses the database {}; stop it, or point BAE_DATABASE_URL at another file",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(unusable(&error)),
    }
}

/// What the writer task is asked to do.
enum Command {
    Write(Box<dyn Write>),
    Close,
}

/// One write, without its types, so that different writes fit into one queue.
trait Write: Send {
    /// Does the work on the connection; keeps the result.
    fn run<'a>(&'a mut self, connection: &'a mut Connection) -> BoxFuture<'a, bool>;
    /// Tells the caller how the write ended: with the kept result if the commit succeeded.
    fn finish(&mut self, commit: Result<(), &sqlx::Error>);
    /// When the write was asked for.
    fn since(&self) -> Instant;
}

struct Job<T, W, A> {
    since: Instant,
    work: Option<W>,
    then: Option<A>,
    result: Option<Result<T, Error>>,
    reply: Option<oneshot::Sender<Result<T, Error>>>,
}

impl<T, W, A> Write for Job<T, W, A>
where
    T: Send + 'static,
    W: for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Error>> + Send + 'static,
    A: FnOnce(&T) + Send + 'static,
{
    fn run<'a>(&'a mut self, connection: &'a mut Connection) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            if let Some(work) = self.work.take() {
                self.result = Some(work(connection).await);
            }
            matches!(self.result, Some(Ok(_)))
        })
    }

    fn since(&self) -> Instant {
        self.since
    }

    fn finish(&mut self, commit: Result<(), &sqlx::Error>) {
        let result = match (self.result.take(), commit) {
            (Some(Ok(_)), Err(error)) => {
                Err(Error::Unavailable(sqlx::Error::Protocol(format!("commit failed: {error}"))))
            }
            (Some(result), _) => result,
            (None, Err(error)) => Err(Error::Unavailable(sqlx::Error::Protocol(error.to_string()))),
            (None, Ok(())) => Err(Error::Unknown),
        };
        if let (Ok(value), Some(then)) = (&result, self.then.take()) {
            then(value);
        }
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(result);
        }
    }
}

/// The writer task: takes the writes that wait, runs them in one transaction, commits, and tells their callers. It ends
/// when it is asked to, or when no handle of the database is left.
async fn write_all(connection: SqliteConnection, mut queue: mpsc::Receiver<Command>) {
    let mut connection = Connection::Sqlite(connection);
    let mut commands = Vec::with_capacity(BATCH);
    let mut closing = false;
    while !closing && queue.recv_many(&mut commands, BATCH).await > 0 {
        let mut batch = Vec::with_capacity(commands.len());
        for command in commands.drain(..) {
            match command {
                Command::Write(write) => batch.push(write),
                Command::Close => closing = true,
            }
        }
        if batch.is_empty() {
            continue;
        }
        for write in &batch {
            metrics().database_wait.since(write.since());
        }
        metrics().commit_writes.record(batch.len());
        let committed = transact(&mut connection, &mut batch).await;
        if let Err(error) = &committed {
            tracing::error!(error = %error, writes = batch.len(), "a write transaction failed");
        }
        for mut write in batch {
            write.finish(committed.as_ref().copied());
        }
    }
    if let Err(error) = connection.command("PRAGMA wal_checkpoint(TRUNCATE)").await {
        tracing::warn!(error = %error, "the write-ahead log could not be folded into the database; the next start does it");
    }
    if let Err(error) = connection.close().await {
        tracing::warn!(error = %error, "closing the database failed");
    }
}

/// Runs several writes in one transaction. If there is more than one, each has a savepoint, so that a write that fails
/// takes back only its own changes.
async fn transact(connection: &mut Connection, batch: &mut [Box<dyn Write>]) -> Result<(), sqlx::Error> {
    connection.command("BEGIN IMMEDIATE").await?;
    let outcome = run_batch(connection, batch).await;
    let ended = match outcome {
        Ok(true) => connection.command("COMMIT").await,
        Ok(false) => connection.command("ROLLBACK").await,
        Err(error) => Err(error),
    };
    if ended.is_err() {
        // After some failures (disk full) SQLite has rolled back already. Then this statement fails and changes
        // nothing.
        let _ = connection.command("ROLLBACK").await;
    }
    ended
}

/// Whether there is anything to commit.
async fn run_batch(connection: &mut Connection, batch: &mut [Box<dyn Write>]) -> Result<bool, sqlx::Error> {
    if let [write] = batch {
        return Ok(write.run(connection).await);
    }
    let mut any = false;
    for write in batch {
        connection.command("SAVEPOINT one").await?;
        if write.run(connection).await {
            any = true;
        } else {
            connection.command("ROLLBACK TO one").await?;
        }
        connection.command("RELEASE one").await?;
    }
    Ok(any)
}
