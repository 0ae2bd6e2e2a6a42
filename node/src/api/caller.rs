//! What all JSON-RPC methods share: who calls, the checks that come before the params, appending events outside of
//! turns, and the error that a caller gets when the database fails.

use crate::app::App;
use coordinator::log::{self, Record, Side};
use engine::event::NewEvent;
use engine::event::payload::EventPayload;
use engine::ids::{EventId, KeyId, SessionId};
use engine::rpc::{Method, RpcError};
use serde_json::json;
use std::sync::Arc;

/// The answer of a method that is answered at once: its result as JSON text.
pub(super) type Answer = Result<String, RpcError>;

/// The authenticated caller of a method, and the session it calls on.
pub(super) struct Caller {
    pub app: Arc<App>,
    pub session: SessionId,
    pub key: KeyId,
    pub traceparent: Option<String>,
}

impl Caller {
    /// Reads what the checks before the params need.
    pub(super) async fn admission(&self) -> Result<Admission, RpcError> {
        let admission = self.app.log.admission(self.session, self.key).await;
        admission.map(Admission).map_err(|error| failed(&error))
    }

    pub(super) fn event(&self, payload: &impl EventPayload) -> NewEvent {
        NewEvent::of(EventId(coordinator::fresh_id()), self.key, payload)
    }

    pub(super) async fn append(&self, events: Vec<NewEvent>, side: Side) -> Result<(), RpcError> {
        let appended = self.app.log.append_free(self.session, self.key, events, side).await;
        appended.map(drop).map_err(|error| failed(&error))
    }

    /// Appends the event of a client's report, and answers the report.
    pub(super) async fn record_report(&self, event: NewEvent) -> Answer {
        self.append(vec![event], Side::Nothing).await?;
        Ok(json!({"reported": true}).to_string())
    }

    pub(super) async fn record(&self) -> Result<Record, RpcError> {
        self.app.log.record(self.session, self.key).await.map_err(|error| failed(&error))
    }
}

/// What the checks before the params need to know of the caller and its session.
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
            state => Err(RpcError::not_open(state.public_name())),
        }
    }
}

/// What a caller is told when the database failed.
pub(super) fn failed(error: &coordinator::Error) -> RpcError {
    match error {
        coordinator::Error::NotOpen(state) => RpcError::not_open(state),
        coordinator::Error::NotFound => RpcError::session_gone(),
        coordinator::Error::Unavailable(_)
        | coordinator::Error::Failed(_)
        | coordinator::Error::Unknown
        | coordinator::Error::CoordinationUnavailable(_)
        | coordinator::Error::Fenced
        | coordinator::Error::PreconditionFailed
        | coordinator::Error::Duplicate
        | coordinator::Error::Unreadable(_)
        | coordinator::Error::Unusable(_) => {
            tracing::error!(error = ?error, "a call failed");
            RpcError::internal()
        }
    }
}
