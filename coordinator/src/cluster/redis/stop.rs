//! Stopping to serve a session that is being closed: everybody who waits for it is answered, and its owner, on this
//! node or another, gives it up.
//!
//! If Redis is emptied meanwhile, this sees no owner on another node and returns; such an owner cannot append any more,
//! because closing has moved the epoch.

use super::{Frame, RETRY, Redis};
use engine::ids::SessionId;
use engine::rpc::RpcError;
use redis::RedisResult;
use std::sync::Arc;
use std::time::Duration;

/// The pause between two checks whether the owner on another node has let go.
const CHECK: Duration = Duration::from_millis(50);
/// How many checks there are from one message that tells the owner to stop to the next.
const CHECKS_PER_STOP: u32 = 20;

impl Redis {
    pub(crate) async fn stop(&self, session: SessionId, error: &RpcError) {
        self.refuse_all(session, error).await;
        let released = self.0.table.with(session, |local| {
            local.stop.cancel();
            local.owned.then(|| Arc::clone(&local.released).notified_owned())
        });
        if let Some(Some(released)) = released {
            released.await;
        }
        let stop = Frame::Stop(session).encode();
        for check in 0u32.. {
            let keys = self.keys(session);
            // The owner is told again now and then, because a frame can be lost.
            let owner: RedisResult<String> = if check.is_multiple_of(CHECKS_PER_STOP) {
                self.call(&self.0.scripts.to_owner, &keys, |s| s.arg(&stop)).await
            } else {
                self.call(&self.0.scripts.owner, &keys, |s| s).await
            };
            match owner {
                Ok(owner) if !owner.is_empty() && owner != self.0.node => tokio::time::sleep(CHECK).await,
                Ok(_) => break,
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
        self.refuse_all(session, error).await;
        let mut sessions = self.0.table.lock();
        if let Some(local) = sessions.get_mut(&session)
            && !local.owned
        {
            local.refuse_all(error);
            sessions.remove(&session);
        }
    }
}
