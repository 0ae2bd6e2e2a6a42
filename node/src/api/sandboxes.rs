//! The methods about sandboxes: starting, stopping and using remote ones, and reports of the client's own.
//!
//! The events belong to no turn: they may be appended while one runs, and do not affect it.

use super::caller::{Answer, Caller, failed};
use crate::sandboxes::command::{self, Ran};
use crate::sandboxes::lifecycle::{self, NotStarted, NotStopped};
use coordinator::log::Sandbox;
use engine::event::payload::{Dispatched, SandboxError, SandboxRunning, SandboxStopped};
use engine::json::Raw;
use engine::params::{self, LocalSandbox, LocalSandboxState};
use engine::rpc::{Method, RpcError};
use engine::time::UnixMillis;
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
    match lifecycle::start(&caller.app, caller.session, caller.key, record.profile, image.clone()).await {
        Ok(started) => {
            let started_at = started.at.map(UnixMillis::rfc3339);
            Ok(json!({"sandbox_id": started.id, "image": image, "started_at": started_at}).to_string())
        }
        Err(NotStarted::AlreadyRunning) => Err(RpcError::sandbox_already_running()),
        Err(NotStarted::Failed(detail)) => Err(RpcError::sandbox_start_failed(detail)),
        Err(NotStarted::Database(error)) => Err(failed(&error)),
    }
}

pub(super) async fn stop(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::StopRemoteSandbox)?;
    params::none(params)?;
    match lifecycle::stop(&caller.app, caller.session, caller.key, None).await {
        Ok(stopped) => Ok(json!({"stopped": true, "image": stopped.image, "sandbox_id": stopped.id}).to_string()),
        Err(NotStopped::NotRunning) => Err(RpcError::sandbox_not_running()),
        Err(NotStopped::Failed(detail)) => Err(RpcError::sandbox_stop_failed(detail)),
        Err(NotStopped::Database(error)) => Err(failed(&error)),
    }
}

pub(super) async fn exec(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::ExecRemoteSandbox)?;
    let script = params::exec_remote_sandbox(params)?;
    match command::run(&caller.app, caller.session, Some(script)).await.map_err(|error| failed(&error))? {
        Ran::Output(_, output) => Ok(engine::json::encode(&output).get().to_owned()),
        Ran::NotRunning => Err(RpcError::sandbox_not_running()),
        Ran::Failed(sandbox, detail) => {
            let sandbox = Sandbox { key: caller.key, ..sandbox };
            command::log_failure(&caller.app, &sandbox, &detail).await.map_err(|error| failed(&error))?;
            Err(RpcError::sandbox_exec_failed(detail))
        }
    }
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
            sandbox_id: None,
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
