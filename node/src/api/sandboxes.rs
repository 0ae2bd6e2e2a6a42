//! The methods about sandboxes: starting, stopping and using remote ones, and reports of the client's own.
//!
//! This version has no driver for remote sandboxes: a start fails, and no sandbox runs that could be stopped or used. The
//! events belong to no turn: they may be appended while one runs, and do not affect it.

use super::caller::{Answer, Caller};
use crate::session::refusal::NO_SANDBOX_DRIVER;
use coordinator::log::Side;
use engine::event::payload::{Dispatched, SandboxError, SandboxRunning, SandboxStart, SandboxStopped};
use engine::json::Raw;
use engine::params::{self, LocalSandbox, LocalSandboxState};
use engine::rpc::{Method, RpcError};

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
    let error = SandboxError {
        container_id: None,
        detail: Some(NO_SANDBOX_DRIVER.to_owned()),
        dispatch: Dispatched::Remote,
        image: Some(image.clone()),
        phase: Some("start".to_owned()),
        unsandboxed: false,
    };
    let events = vec![caller.event(&SandboxStart { dispatch: Dispatched::Remote, image }), caller.event(&error)];
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
    let event = match report.state {
        LocalSandboxState::Running => caller.event(&running(report)),
        LocalSandboxState::Stopped => caller.event(&SandboxStopped(running(report))),
        LocalSandboxState::Error => caller.event(&SandboxError {
            container_id: Some(report.container_id),
            detail: report.detail,
            dispatch: Dispatched::Local,
            image: report.image,
            phase: None,
            unsandboxed: report.unsandboxed,
        }),
    };
    caller.record_report(event).await
}

fn running(report: LocalSandbox) -> SandboxRunning {
    SandboxRunning {
        container_id: report.container_id,
        detail: report.detail,
        dispatch: Dispatched::Local,
        image: report.image,
        unsandboxed: report.unsandboxed,
    }
}
