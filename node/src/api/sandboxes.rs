//! The methods about sandboxes: starting, stopping and using remote ones, and reports of the client's own.
//!
//! This version has no driver for remote sandboxes: a start fails, and no sandbox runs that could be stopped or used. The
//! events belong to no turn: they may be appended while one runs, and do not affect it.

use super::caller::{Answer, Caller};
use crate::session::refusal::NO_SANDBOX_DRIVER;
use coordinator::log::Side;
use engine::event::EventType;
use engine::json::Raw;
use engine::params::{self, LocalSandbox, LocalSandboxState};
use engine::rpc::{Method, RpcError};
use serde_json::json;

pub(super) async fn start(caller: &Caller, params: &Raw) -> Answer {
    let admission = caller.admission().await?;
    admission.driver(Method::StartRemoteSandbox)?;
    admission.open()?;
    let image = params::start_remote_sandbox(params)?;
    let record = caller.record().await?;
    if record.deleted {
        return Err(RpcError::profile_unavailable());
    }
    if !record.available_sandboxes.contains(&image) {
        let detail = "the image is not in the available_sandboxes of this session's profile";
        return Err(RpcError::sandbox_image_not_allowed(detail));
    }
    let start = json!({"image": image, "dispatch": "remote"});
    let error = json!({"image": image, "phase": "start", "detail": NO_SANDBOX_DRIVER, "dispatch": "remote"});
    let events = vec![caller.event(EventType::SandboxStart, &start), caller.event(EventType::SandboxError, &error)];
    caller.append(events, Side::Nothing).await?;
    Err(RpcError::sandbox_start_failed(NO_SANDBOX_DRIVER))
}

pub(super) async fn stop(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::StopRemoteSandbox)?;
    params::none(params)?;
    Err(RpcError::sandbox_not_running())
}

pub(super) async fn exec(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::ExecRemoteSandbox)?;
    params::exec_remote_sandbox(params)?;
    Err(RpcError::sandbox_not_running())
}

pub(super) async fn report_local(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::ReportLocalSandbox)?;
    let report = LocalSandbox::parse(params)?;
    let kind = match report.state {
        LocalSandboxState::Running => EventType::SandboxRunning,
        LocalSandboxState::Stopped => EventType::SandboxStopped,
        LocalSandboxState::Error => EventType::SandboxError,
    };
    let mut payload = json!({
        "dispatch": "local", "image": report.image, "container_id": report.container_id, "detail": report.detail,
    });
    if report.unsandboxed {
        payload["unsandboxed"] = json!(true);
    }
    caller.append(vec![caller.event(kind, &payload)], Side::Nothing).await?;
    Ok(json!({"reported": true}).to_string())
}
