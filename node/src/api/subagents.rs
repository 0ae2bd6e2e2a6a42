//! The methods about subagents: reports of those that the client runs, and cancelling remote ones.
//!
//! The events belong to no turn: they may be appended while one runs, and do not affect it.

use super::caller::{Answer, Caller, failed as failed_call};
use crate::sandboxes::subagents::{self, Cancelled};
use engine::event::payload::{
    Dispatched, SubagentCancelled, SubagentCompleted, SubagentFailed, SubagentRunning, SubagentStart,
};
use engine::json::Raw;
use engine::params::{self, LocalSubagent, LocalSubagentState};
use engine::rpc::{Method, RpcError};
use serde_json::json;

pub(super) async fn report_local(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::ReportLocalSubagent)?;
    let report = LocalSubagent::parse(params)?;
    let event = match report.state {
        LocalSubagentState::Start => caller.event(&begun(report)),
        LocalSubagentState::Running => caller.event(&SubagentRunning(begun(report))),
        LocalSubagentState::Completed => caller.event(&SubagentCompleted {
            detail: report.detail,
            dispatch: Dispatched::Local,
            exit_code: report.exit_code.unwrap_or(0),
            harness: report.harness,
            model: report.model,
            subagent_id: report.subagent_id,
        }),
        LocalSubagentState::Failed => caller.event(&failed(report)),
        LocalSubagentState::Cancelled => caller.event(&SubagentCancelled(failed(report))),
    };
    caller.record_report(event).await
}

fn begun(report: LocalSubagent) -> SubagentStart {
    SubagentStart {
        detail: report.detail,
        dispatch: Dispatched::Local,
        harness: report.harness,
        model: report.model,
        subagent_id: report.subagent_id,
    }
}

fn failed(report: LocalSubagent) -> SubagentFailed {
    SubagentFailed {
        detail: report.detail,
        dispatch: Dispatched::Local,
        exit_code: report.exit_code,
        harness: report.harness,
        model: report.model,
        reason: report.reason,
        subagent_id: report.subagent_id,
    }
}

pub(super) async fn cancel(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::CancelSubagent)?;
    let Some(id) = params::cancel_subagent(params)? else { return Err(RpcError::subagent_not_found()) };
    let cancelled = subagents::cancel(&caller.app, caller.session, caller.key, id).await;
    let was_running = match cancelled.map_err(|error| failed_call(&error))? {
        Cancelled::Running => true,
        Cancelled::Ended => false,
        Cancelled::Unknown => return Err(RpcError::subagent_not_found()),
    };
    Ok(json!({"cancelled": true, "subagent_id": id, "was_running": was_running}).to_string())
}
