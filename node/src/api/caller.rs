//! Who calls a JSON-RPC method, what is checked before its params, and what the caller is told when the database fails.

use crate::app::App;
use coordinator::log::{self, Record, Side};
use engine::event::{EventType, NewEvent};
use engine::ids::{EventId, KeyId, SessionId};
use engine::rpc::{Method, RpcError};
use serde_json::Value;
use std::sync::Arc;

/// What the answer to a method that is answered at once holds: the text of its result.
pub(super) type Answer = Result<String, RpcError>;

/// Who calls, on what.
pub(super) struct Caller {
    pub app: Arc<App>,
    pub session: SessionId,
    pub key: KeyId,
    pub traceparent: Option<String>,
}

impl Caller {
    /// What the checks that come before params look at.
    pub(super) async fn admission(&self) -> Result<Admission, RpcError> {
        let admission = self.app.log.admission(self.session, self.key).await;
        admission.map(Admission).map_err(|error| failed(&error))
    }

    pub(super) fn event(&self, kind: EventType, payload: &Value) -> NewEvent {
        NewEvent::new(EventId(coordinator::fresh_id()), self.key, kind, payload)
    }

    pub(super) async fn append(&self, events: Vec<NewEvent>, side: Side) -> Result<(), RpcError> {
        let appended = self.app.log.append_free(self.session, self.key, events, side).await;
        appended.map(drop).map_err(|error| failed(&error))
    }

    pub(super) async fn record(&self) -> Result<Record, RpcError> {
        self.app.log.record(self.session, self.key).await.map_err(|error| failed(&error))
    }
}

/// The caller and its session, as far as every method asks.
pub(super) struct Admission(log::Admission);

impl Admission {
    /// `-32001` unless the caller is a registered driver.
    pub(super) fn driver(&self, method: Method) -> Result<(), RpcError> {
        if self.0.driver { Ok(()) } else { Err(RpcError::driver_not_registered(method)) }
    }

    /// `-32000` unless the session is open.
    pub(super) fn open(&self) -> Result<(), RpcError> {
        match self.0.state {
            log::State::Open => Ok(()),
            state => Err(RpcError::not_open(state.shown())),
        }
    }
}

/// What a caller is told when the database failed.
pub(super) fn failed(error: &coordinator::Error) -> RpcError {
    match error {
        coordinator::Error::NotOpen(state) => RpcError::not_open(state),
        coordinator::Error::NotFound => RpcError::new(-32000, "session no longer exists"),
        coordinator::Error::Unavailable(_)
        | coordinator::Error::Failed(_)
        | coordinator::Error::Unknown
        | coordinator::Error::Away(_)
        | coordinator::Error::Fenced
        | coordinator::Error::Refused
        | coordinator::Error::Duplicate
        | coordinator::Error::Unreadable(_)
        | coordinator::Error::Unusable(_) => {
            tracing::error!(error = ?error, "a call failed");
            RpcError::internal()
        }
    }
}
