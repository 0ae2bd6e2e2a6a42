//! Closing a session that is served somewhere: everybody who waits is answered, and the owner lets go, here or elsewhere.

use super::{Frame, RETRY, Redis};
use engine::ids::SessionId;
use engine::rpc::RpcError;
use redis::RedisResult;
use std::sync::Arc;
use std::time::Duration;

/// The pause between two checks whether the owner on another node has let go.
const CHECK: Duration = Duration::from_millis(50);
/// The owner is told to stop once in so many checks.
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
            // Told again now and then, because frames can be lost.
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
