//! `session.registerDriver` and `session.updateClientTools`: the clients that drive a session, and the tools they
//! offer.

use super::caller::{Answer, Caller, failed};
use crate::sandboxes;
use coordinator::log::Side;
use engine::event::payload::{DriverRegister, SandboxAvailable};
use engine::json::Raw;
use engine::params;
use engine::rpc::{Method, RpcError};
use engine::tools::{self, ClientTool};
use serde::Deserialize;
use serde_json::json;

pub(super) async fn register(caller: &Caller, params: &Raw) -> Answer {
    caller.admission().await?.open()?;
    params::none(params)?;
    let mut events = vec![caller.event(&DriverRegister {})];
    let images = caller.record().await?.available_sandboxes;
    if !images.is_empty() {
        let images = sandboxes::images::statuses(&caller.app, images).await.map_err(|error| failed(&error))?;
        events.push(caller.event(&SandboxAvailable { images }));
    }
    caller.append(events, Side::Register).await?;
    Ok(json!({"registered": true}).to_string())
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
    allowed.map_err(RpcError::tool_not_allowed)?;
    record.declarations.tools = tools;
    let stored = record.declarations.store();
    caller.app.log.declare(caller.session, caller.key, stored).await.map_err(|error| failed(&error))?;
    Ok(json!({"updated": true}).to_string())
}
