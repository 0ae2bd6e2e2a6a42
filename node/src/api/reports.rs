//! The methods that are answered at once: registration, subscriptions' end, sandboxes, subagents, tool declarations.
//!
//! Their events are no part of a turn: they are appended beside a running one and never disturb it.

use super::failed;
use super::rpc::Caller;
use crate::session::NO_SANDBOX_DRIVER;
use coordinator::log::{Record, Side};
use engine::event::{EventType, NewEvent};
use engine::ids::EventId;
use engine::json::Raw;
use engine::params::{self, LocalSandbox, LocalSandboxState, LocalSubagent, LocalSubagentState};
use engine::rpc::{Method, RpcError};
use engine::tools::{self, ClientTool};
use serde::Deserialize;
use serde_json::{Value, json};

type Answer = Result<String, RpcError>;

impl Caller {
    fn event(&self, kind: EventType, payload: &Value) -> NewEvent {
        NewEvent::new(EventId(coordinator::fresh_id()), self.key, kind, payload)
    }

    async fn append(&self, events: Vec<NewEvent>, side: Side) -> Result<(), RpcError> {
        let appended = self.app.log.append_free(self.session, self.key, events, side).await;
        appended.map(drop).map_err(|error| failed(&error))
    }

    async fn record(&self) -> Result<Record, RpcError> {
        self.app.log.record(self.session, self.key).await.map_err(|error| failed(&error))
    }
}

pub(super) async fn register_driver(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.open()?;
    params::none(params)?;
    let mut events = vec![caller.event(EventType::DriverRegister, &json!({}))];
    let images = caller.record().await?.available_sandboxes;
    if !images.is_empty() {
        // Without a driver no image can ever be started (companion 9.1).
        let image = |name: &String| json!({"name": name, "status": "error", "detail": NO_SANDBOX_DRIVER});
        let images: Vec<Value> = images.iter().map(image).collect();
        events.push(caller.event(EventType::SandboxAvailable, &json!({"images": images})));
    }
    caller.append(events, Side::Register).await?;
    Ok(json!({"registered": true}).to_string())
}

pub(super) fn unsubscribe(caller: &Caller, params: &Raw) -> Answer {
    params::none(params)?;
    caller.app.log.feeds().cut_here(caller.session);
    caller.app.cluster.cut(caller.session);
    Ok(json!({"unsubscribed": true}).to_string())
}

pub(super) async fn start_sandbox(caller: &Caller, params: &Raw) -> Answer {
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
        return Err(RpcError::new(-32011, format!("sandbox_image_not_allowed: {detail}")));
    }
    let start = json!({"image": image, "dispatch": "remote"});
    let error = json!({"image": image, "phase": "start", "detail": NO_SANDBOX_DRIVER, "dispatch": "remote"});
    let events = vec![caller.event(EventType::SandboxStart, &start), caller.event(EventType::SandboxError, &error)];
    caller.append(events, Side::Nothing).await?;
    Err(RpcError::new(-32012, format!("sandbox_start_failed: {NO_SANDBOX_DRIVER}")))
}

fn sandbox_not_running() -> RpcError {
    let detail = "no remote sandbox is running for this session; call session.startRemoteSandbox first";
    RpcError::new(-32013, format!("sandbox_not_running: {detail}"))
}

pub(super) async fn stop_sandbox(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::StopRemoteSandbox)?;
    params::none(params)?;
    Err(sandbox_not_running())
}

pub(super) async fn exec_sandbox(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::ExecRemoteSandbox)?;
    params::exec_remote_sandbox(params)?;
    Err(sandbox_not_running())
}

pub(super) async fn local_sandbox(caller: &Caller, params: &Raw) -> Answer {
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

pub(super) async fn local_subagent(caller: &Caller, params: &Raw) -> Answer {
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

pub(super) async fn cancel_subagent(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.driver(Method::CancelSubagent)?;
    params::cancel_subagent(params)?;
    Err(RpcError::new(-32014, "subagent_not_found: this session tracks no remote subagent of that id"))
}

pub(super) async fn update_tools(caller: &Caller, params: &Raw) -> Answer {
    #[derive(Deserialize)]
    struct Params {
        #[serde(deserialize_with = "tools::objects")]
        tools: Vec<ClientTool>,
    }
    let admission = caller.admission().await?;
    admission.driver(Method::UpdateClientTools)?;
    admission.open()?;
    params::none(params)?;
    let parsed = serde_json::from_str::<Params>(params.get());
    let Params { tools } = parsed.map_err(|error| RpcError::invalid_params(engine::json::reason(&error)))?;
    let mut record = caller.record().await?;
    let allowed = tools::check_reserved(tools.iter().map(|tool| tool.name.as_str()))
        .and_then(|()| tools::check_allowed(&tools, &record.allowed_tools));
    allowed.map_err(|forbidden| RpcError::new(-32015, format!("tool_not_allowed: {forbidden}")))?;
    record.declarations.tools = tools;
    let stored = record.declarations.store();
    caller.app.log.declare(caller.session, caller.key, stored).await.map_err(|error| failed(&error))?;
    Ok(json!({"updated": true}).to_string())
}
