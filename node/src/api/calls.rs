//! `session.sendMessage` and `session.compact`: the checks, a place in the session's queue, and a stream that follows
//! the call.

use super::caller::{Caller, failed};
use super::follow::{Follow, Target};
use super::stream;
use axum::response::Response;
use coordinator::cluster::{Call, Rejected};
use coordinator::reader::Reader;
use engine::ids::CallId;
use engine::json::Raw;
use engine::params::{self, SendMessage};
use engine::rpc::{self, Method, RpcError};
use engine::turn::Opening;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Opens the stream of a call, or answers why not.
pub(super) async fn answer(caller: Caller, method: Method, id: Option<Raw>, params: &Raw) -> Response {
    match accept(&caller, method, params).await {
        Ok((target, reader)) => {
            let (app, session) = (Arc::clone(&caller.app), caller.session);
            stream::open(&caller.app, caller.key, move |frames| Follow { app, session, id, frames, reader }.run(target))
        }
        Err(error) => stream::whole(id.map_or_else(String::new, |id| rpc::error(&id, &error))),
    }
}

/// Does the checks that come before the gate, in the order of the API, and puts the call into the queue. A retry whose
/// idempotency key belongs to a call that has started is answered from the log. This comes before the check of the
/// session's state, because that call may have ended the session.
async fn accept(caller: &Caller, method: Method, params: &Raw) -> Result<(Target, Reader), RpcError> {
    let admission = caller.admission().await?;
    admission.driver(method)?;
    let (opening, idempotency) = match opening(method, params) {
        Ok(opening) => opening,
        Err(error) => return Err(admission.open().err().unwrap_or(error)),
    };
    let log = &caller.app.log;
    let (mut reader, _) = caller.app.cluster.open_reader(log, caller.session).await.map_err(|error| failed(&error))?;
    if let Some((name, digest)) = &idempotency {
        let earlier = log.call_by_key(caller.session, caller.key, name).await.map_err(|error| failed(&error))?;
        if let Some(record) = earlier {
            if record.params_digest.as_deref() != Some(digest.as_slice()) {
                return Err(RpcError::idempotency_key_reused());
            }
            reader.seek(record.first.previous());
            let target = match record.ended {
                Some(_) => Target::Ended(record),
                None => Target::Live(caller.app.cluster.follow(caller.session, record.id)),
            };
            return Ok((target, reader));
        }
    }
    admission.open()?;
    let call = Call {
        id: CallId(coordinator::fresh_id()),
        key: caller.key,
        opening,
        idempotency,
        traceparent: caller.traceparent.clone(),
    };
    let waiter = caller.app.cluster.enqueue(caller.session, call).await.map_err(|rejected| match rejected {
        Rejected::Full => RpcError::too_many_queued_calls(),
        Rejected::OtherParams => RpcError::idempotency_key_reused(),
        Rejected::CoordinationUnavailable => RpcError::internal(),
    })?;
    Ok((Target::Live(waiter), reader))
}

type Idempotency = Option<(String, [u8; 32])>;

/// Reads the params of either method.
fn opening(method: Method, params: &Raw) -> Result<(Opening, Idempotency), RpcError> {
    if method == Method::Compact {
        return Ok((Opening::Compact(params::compact(params)?), None));
    }
    let message = SendMessage::parse(params)?;
    let digest = || -> [u8; 32] { Sha256::digest(params.get().as_bytes()).into() };
    let idempotency = message.idempotency_key.clone().map(|key| (key, digest()));
    Ok((Opening::Message(message), idempotency))
}
