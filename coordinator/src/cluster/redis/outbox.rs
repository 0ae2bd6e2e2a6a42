//! What this node does for others, or in Redis, without anybody waiting for it: news, which may be lost, and chores, which
//! may not.

use super::{Committed, Frame, RETRY, Redis};
use crate::cluster::Successor;
use engine::ids::{CallId, KeyId, SessionId};
use engine::rpc::RpcError;
use futures_util::{StreamExt, stream};
use redis::RedisResult;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a watch lasts unless it is renewed.
pub(super) const WATCH: Duration = Duration::from_secs(30);

/// What others are told without anybody waiting for it, in order. Dropped while Redis is away or too slow: readers find in the
/// database what they were not told.
pub(super) enum News {
    /// This node goes on watching.
    Watches,
    Cut(SessionId),
    Committed(Box<Committed>),
}

/// What must be done in Redis some time, in order: tried again while it is away.
#[derive(Clone)]
pub(super) enum Chore {
    Leave(SessionId, CallId),
    Release(SessionId, Successor),
    /// A call waits no more; the frame for the nodes that wait for it.
    Over(SessionId, CallId, Option<String>),
}

/// News that may wait to be told.
pub(super) const NEWS: usize = 1024;
/// Chores that may wait: a few bytes each, made at the pace of callers that leave.
pub(super) const CHORES: usize = 65_536;

/// News on their way at the same time.
const NEWS_AT_ONCE: usize = 32;

/// What is to be done, and what of it has begun.
pub(super) struct Chores {
    pub queue: mpsc::Receiver<Chore>,
    pub begun: Option<Chore>,
}

impl Redis {
    pub(super) fn remember(&self, chore: Chore) {
        let Err(lost) = self.0.chores.try_send(chore) else { return };
        if let mpsc::error::TrySendError::Full(_) = &lost {
            tracing::warn!("redis has been away for so long that not all of its queues can be tidied up");
        }
        self.done(&lost.into_inner());
    }

    /// A chore was done, or is given up. Says whether its session is wanted again.
    fn done(&self, chore: &Chore) -> Option<SessionId> {
        match chore {
            Chore::Leave(..) => None,
            Chore::Release(session, _) => self.released(*session).then_some(*session),
            Chore::Over(..) => {
                self.0.owed.fetch_sub(1, Ordering::SeqCst);
                None
            }
        }
    }

    pub(super) fn tell_others(&self, news: News) {
        if self.0.news.try_send(news).is_err() {
            tracing::debug!("redis is too slow for the news; readers look into the database");
        }
    }

    /// Tells the nodes that watch a session what was committed.
    pub(crate) fn publish(&self, committed: Committed) {
        self.tell_others(News::Committed(Box::new(committed)));
    }

    pub(crate) fn cut(&self, session: SessionId) {
        self.tell_others(News::Cut(session));
    }

    /// Puts this node into a session's watch set. Best effort: reconciliation finds what is missed.
    pub(crate) async fn watch(&self, session: SessionId) {
        if !self.0.link.up() {
            return;
        }
        let seconds = WATCH.as_secs();
        let _: RedisResult<u8> = self.call(&self.0.scripts.watch, &self.keys(session), |s| s.arg(seconds)).await;
    }

    pub(crate) async fn wake(&self, session: SessionId) {
        if self.0.desk.with(session, |slot| slot.owned.then(|| slot.wake.notify_one())).flatten().is_some() {
            return;
        }
        let frame = Frame::Wake(session).encode();
        let _: RedisResult<String> = self.call(&self.0.scripts.to_owner, &self.keys(session), |s| s.arg(frame)).await;
    }

    pub(crate) async fn revoked(&self, key: KeyId, error: &RpcError) {
        self.forget(key, error);
        let frame = Frame::Revoked(key).encode();
        let told: RedisResult<u8> = self.call(&self.0.scripts.to_all, "", |s| s.arg(frame)).await;
        if let Err(error) = told {
            tracing::warn!(error = %error, "other nodes notice a revocation by themselves, within a second");
        }
    }

    pub(super) async fn run_news(&self, mut news: mpsc::Receiver<News>) {
        let told = stream::poll_fn(|context| news.poll_recv(context)).map(async |news| {
            // While Redis is away nothing waits for it here.
            if self.0.link.up()
                && let Err(error) = self.run_one_news(news).await
            {
                tracing::debug!(error = %error, "other nodes could not be told the news");
            }
        });
        // They are sent in order; only the answers are not waited for one by one.
        told.buffered(NEWS_AT_ONCE).for_each(async |()| {}).await;
    }

    async fn run_one_news(&self, news: News) -> RedisResult<()> {
        let (session, frame) = match news {
            News::Watches => {
                for session in self.0.log.feeds().watched() {
                    self.watch(session).await;
                }
                return Ok(());
            }
            News::Cut(session) => (session, Frame::Cut(session)),
            News::Committed(committed) => (committed.session, Frame::Committed(*committed)),
        };
        let frame = frame.encode();
        self.call::<u8>(&self.0.scripts.to_watchers, &self.keys(session), |s| s.arg(frame)).await.map(drop)
    }

    /// Does one after the other, however long Redis is away. One that was interrupted is begun again.
    pub(super) async fn run_chores(&self, chores: &mut Chores) {
        loop {
            if chores.begun.is_none() {
                chores.begun = chores.queue.recv().await;
            }
            let Some(chore) = &chores.begun else { return };
            if let Err(error) = self.run_chore(chore).await {
                tracing::debug!(error = %error, "a chore in Redis was in vain");
                if !self.0.link.up() {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            if let Some(session) = chores.begun.take().and_then(|chore| self.done(&chore)) {
                self.adopt(session).await;
            }
        }
    }

    pub(super) async fn run_chore(&self, chore: &Chore) -> RedisResult<()> {
        let scripts = &self.0.scripts;
        let done: RedisResult<u8> = match chore {
            Chore::Leave(session, call) => {
                self.call(&scripts.leave, &self.keys(*session), |s| s.arg(call.to_string())).await
            }
            Chore::Release(session, successor) => {
                let to = match successor {
                    Successor::Another => "another",
                    Successor::Caller => "caller",
                    Successor::Nobody => "",
                };
                let offer = Frame::Offer(*session).encode();
                let not_to = if self.is_draining() { self.0.node.as_str() } else { "" };
                self.call(&scripts.release, &self.keys(*session), |s| s.arg(offer).arg(to).arg(not_to)).await
            }
            Chore::Over(session, call, Some(frame)) => {
                self.call(&scripts.refuse, &self.keys(*session), |s| s.arg(call.to_string()).arg(frame)).await
            }
            Chore::Over(session, call, None) => {
                self.call(&scripts.started, &self.keys(*session), |s| s.arg(call.to_string())).await
            }
        };
        done.map(drop)
    }
}
