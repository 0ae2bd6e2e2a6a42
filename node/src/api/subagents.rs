//! The methods about subagents: reports of those that the client runs, and cancelling remote ones.
//!
//! The events belong to no turn: they may be appended while one runs, and do not affect it.

use super::caller::{Answer, Caller};
use coordinator::log::Side;
use engine::event::EventType;
use engine::json::Raw;
use engine::params::{self, LocalSubagent, LocalSubagentState};
use engine::rpc::{Method, RpcError};
use serde_json::json;

pub(super) async fn report_local(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::ReportLocalSubagent)?;
    let report = LocalSubagent::parse(params)?;
    let kind = match report.state {
        LocalSubagentState::Start => EventType::SubagentStart,
        LocalSubagentState::Running => EventType::SubagentRunning,
        LocalSubagentState::Completed => EventType::SubagentCompleted,
        LocalSubagentState::Failed => EventType::SubagentFailed,
        LocalSubagentState::Cancelled => EventType::SubagentCancelled,
    };
    let mut payload = json!({
        "dispatch": "local", "subagent_id": report.subagent_id, "harness": report.harness, "model": report.model,
        "detail": report.detail,
    });
    match report.state {
        LocalSubagentState::Start | LocalSubagentState::Running => {}
        LocalSubagentState::Completed => payload["exit_code"] = json!(report.exit_code.unwrap_or(0)),
        LocalSubagentState::Failed | LocalSubagentState::Cancelled => {
            payload["reason"] = json!(report.reason);
            payload["exit_code"] = json!(report.exit_code);
        }
    }
    caller.append(vec![caller.event(kind, &payload)], Side::Nothing).await?;
    Ok(json!({"reported": true}).to_string())
}

pub(super) async fn cancel(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::CancelSubagent)?;
    params::cancel_subagent(params)?;
    Err(RpcError::subagent_not_found())
}
