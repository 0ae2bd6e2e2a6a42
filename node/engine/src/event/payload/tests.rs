//! Every payload serializes to the text that the database holds since the first version, and that text reads back.

use super::*;
use crate::ids::{EventId, KeyId, SandboxId};
use crate::json::{Raw, built, encode};
use crate::message::Role;
use crate::provider::{Usage, Wire};
use crate::request::Kind;
use crate::round::{Dispatch, ToolResult, ToolUse};
use serde::de::DeserializeOwned;

/// The payload is written as that text, and the text is read as the same payload.
fn stored<P: EventPayload + DeserializeOwned>(payload: &P, text: &str) {
    assert_eq!(encode(payload).get(), text);
    let back: P = serde_json::from_str(text).expect("readable");
    assert_eq!(encode(&back).get(), text, "read back");
}

fn raw(text: &str) -> Raw {
    built(text.to_owned())
}

#[test]
fn messages() {
    let content = raw(r#"[{"type":"text","text":"\u00e9","n":1.10}]"#);
    stored(
        &ClientMessage { role: "user".into(), content: content.clone() },
        r#"{"role":"user","content":[{"type":"text","text":"\u00e9","n":1.10}]}"#,
    );
    stored(
        &ServerMessage::assistant(content),
        r#"{"role":"assistant","content":[{"type":"text","text":"\u00e9","n":1.10}]}"#,
    );
    for (synthetic, name) in [
        (Synthetic::CompactionPreamble, "compaction_preamble"),
        (Synthetic::AbandonedToolResults, "abandoned_tool_results"),
    ] {
        stored(
            &ServerMessage { role: Role::User, content: raw("\"x\""), synthetic: Some(synthetic) },
            &format!(r#"{{"role":"user","content":"x","synthetic":"{name}"}}"#),
        );
    }
}

#[test]
fn provider_responses() {
    let used = Usage { input_tokens: 3, output_tokens: 4 };
    let answered = ProviderResponse {
        attempt: 1,
        kind: Kind::Primary,
        provider: Wire::OpenAi,
        ok: true,
        status: Some(200),
        error: None,
        body: Some(raw(r#"{"b":1.0,"a":2}"#)),
        usage: Some(Some(used)),
        purpose: None,
    };
    let text = r#"{"attempt":1,"kind":"primary","provider":"openai","ok":true,"status":200,"body":{"b":1.0,"a":2},"usage":{"input_tokens":3,"output_tokens":4}}"#;
    stored(&answered, text);
    assert_eq!(ProviderResponse::history_usage(text).expect("readable"), Some(Some(7)));

    let text = r#"{"attempt":1,"kind":"primary","provider":"openai","ok":true,"status":200,"body":{},"usage":null}"#;
    stored(&ProviderResponse { body: Some(raw("{}")), usage: Some(None), ..answered.clone() }, text);
    assert_eq!(ProviderResponse::history_usage(text).expect("readable"), Some(None), "the provider did not say");

    let summary = ProviderResponse {
        attempt: 2,
        kind: Kind::Fallback,
        provider: Wire::Anthropic,
        body: Some(raw("{}")),
        purpose: Some(Purpose::Compaction),
        ..answered.clone()
    };
    let text = r#"{"attempt":2,"kind":"fallback","provider":"anthropic","ok":true,"status":200,"body":{},"usage":{"input_tokens":3,"output_tokens":4},"purpose":"compaction"}"#;
    stored(&summary, text);
    assert_eq!(ProviderResponse::history_usage(text).expect("readable"), None, "a compaction's");

    let failed =
        ProviderResponse { ok: false, status: None, error: Some("no".into()), body: None, usage: None, ..answered };
    let text =
        r#"{"attempt":1,"kind":"primary","provider":"openai","ok":false,"status":null,"error":"no","body":null}"#;
    stored(&failed, text);
    assert_eq!(ProviderResponse::history_usage(text).expect("readable"), None, "failed");
    let text = r#"{"attempt":1,"kind":"primary","provider":"openai","ok":false,"status":null,"error":"no","body":null,"purpose":"compaction"}"#;
    stored(&ProviderResponse { purpose: Some(Purpose::Compaction), ..failed }, text);
}

#[test]
fn tools() {
    let tool_use = ToolUse {
        id: "t1".into(),
        name: "echo".into(),
        input: raw(r#"{"n":1e2}"#),
        dispatch: Dispatch::Mcp,
        server_name: Some("files".into()),
    };
    stored(&tool_use, r#"{"id":"t1","name":"echo","input":{"n":1e2},"dispatch":"mcp","server_name":"files"}"#);
    let result = ToolResult {
        tool_use_id: "t1".into(),
        dispatch: Dispatch::Client,
        server_name: None,
        is_error: false,
        content: raw("\"x\""),
    };
    stored(&result, r#"{"tool_use_id":"t1","dispatch":"client","server_name":null,"is_error":false,"content":"x"}"#);
    stored(
        &McpRequest {
            method: "tools/call".into(),
            server_name: Some("files".into()),
            tool: "echo".into(),
            input: raw(r#"{"n":1e2}"#),
        },
        r#"{"method":"tools/call","server_name":"files","tool":"echo","input":{"n":1e2}}"#,
    );
    let server_name = Some("files".to_owned());
    stored(
        &McpResponse { server_name: server_name.clone(), ok: true, result: Some(raw("{}")), error: None },
        r#"{"server_name":"files","ok":true,"result":{}}"#,
    );
    stored(
        &McpResponse { server_name: server_name.clone(), ok: false, result: None, error: Some("gone".into()) },
        r#"{"server_name":"files","ok":false,"error":"gone"}"#,
    );
    let lost = r#"{"error":"lost","ok":false,"server_name":"files"}"#;
    stored(&McpLost { error: "lost".into(), ok: false, server_name }, lost);
    assert!(serde_json::from_str::<McpResponse>(lost).is_ok_and(|lost| !lost.ok), "readers need not tell them apart");
    stored(
        &SandboxRequest { tool: "run".into(), input: raw(r#"{"command":"ls"}"#), command: Some("ls".into()) },
        r#"{"tool":"run","input":{"command":"ls"},"command":"ls"}"#,
    );
    stored(
        &SandboxRequest { tool: "run".into(), input: raw("{}"), command: None },
        r#"{"tool":"run","input":{},"command":null}"#,
    );
    stored(
        &SandboxResponse { error: Some("none".into()), ok: false, result: None, sandbox_id: None },
        r#"{"error":"none","ok":false,"sandbox_id":null}"#,
    );
    let sandbox = SandboxId([1; 16]);
    let result = Some(CommandOutput { stdout: "a".into(), stderr: String::new(), exit_code: 3 });
    stored(
        &SandboxResponse { error: None, ok: false, result, sandbox_id: Some(sandbox) },
        &format!(r#"{{"ok":false,"result":{{"stdout":"a","stderr":"","exit_code":3}},"sandbox_id":"{sandbox}"}}"#),
    );
}

#[test]
fn compactions() {
    stored(
        &CompactionStarted {
            reason: CompactionReason::Manual,
            threshold_tokens: None,
            token_count: Some(9),
            trigger: Trigger::Client,
        },
        r#"{"reason":"manual","threshold_tokens":null,"token_count":9,"trigger":"client"}"#,
    );
    for (reason, name) in [
        (CompactionReason::TokenThreshold, "token_threshold"),
        (CompactionReason::RetryAfterFailure, "retry_after_failure"),
    ] {
        stored(
            &CompactionStarted { reason, threshold_tokens: Some(5), token_count: Some(9), trigger: Trigger::Auto },
            &format!(r#"{{"reason":"{name}","threshold_tokens":5,"token_count":9,"trigger":"auto"}}"#),
        );
    }
    let (preamble, summary) = (EventId([1; 16]), EventId([2; 16]));
    let text = format!(
        r#"{{"compacted_message_count":4,"input_tokens":7,"preamble_event_id":"{preamble}","summary_event_id":"{summary}","summary_tokens":null}}"#
    );
    stored(
        &CompactionCompleted {
            compacted_message_count: 4,
            input_tokens: Some(7),
            preamble_event_id: preamble,
            summary_event_id: summary,
            summary_tokens: None,
        },
        &text,
    );
    assert_eq!(CompactionCompleted::history_start(&text), Some(preamble));
    assert_eq!(CompactionCompleted::history_start("{}"), None);
}

#[test]
fn sessions() {
    let open = SessionOpen {
        client_version: None,
        sandbox_tools: vec!["run".into()],
        subagent_tools: Vec::new(),
        tools: vec!["a".into(), "b".into()],
    };
    let text = r#"{"client_version":null,"sandbox_tools":["run"],"subagent_tools":[],"tools":["a","b"]}"#;
    stored(&open, text);
    stored(&SessionJoin(open), text);
    stored(&DriverRegister {}, "{}");
    stored(&SessionClose { reason: "idle".into() }, r#"{"reason":"idle"}"#);
    let owner = KeyId([3; 16]);
    for (error, text) in [
        (SessionError::profile_unavailable(), r#"{"reason":"profile_unavailable"}"#.to_owned()),
        (
            SessionError::primary_provider_unavailable("p", "gone"),
            r#"{"detail":"gone","provider":"p","reason":"primary_provider_unavailable"}"#.to_owned(),
        ),
        (
            SessionError::tool_result_merge_invalid("two"),
            r#"{"detail":"two","reason":"tool_result_merge_invalid"}"#.to_owned(),
        ),
        (
            SessionError::driver_turn_abandoned(owner),
            format!(r#"{{"owner_client_key_id":"{owner}","reason":"driver_turn_abandoned"}}"#),
        ),
        (SessionError::turn_recovery_failed(5), r#"{"reason":"turn_recovery_failed","takeovers":5}"#.to_owned()),
        (
            SessionError::provider_call_failed(Wire::Anthropic, "no".into()),
            r#"{"detail":"no","provider":"anthropic","reason":"provider_call_failed"}"#.to_owned(),
        ),
        (SessionError::provider_config("no"), r#"{"detail":"no","reason":"provider_config"}"#.to_owned()),
        (SessionError::loop_limit(8), r#"{"max_iterations":8,"reason":"loop_limit"}"#.to_owned()),
        (SessionError::all_providers_failed(2), r#"{"attempts":2,"reason":"all_providers_failed"}"#.to_owned()),
        (SessionError::compaction_store_failed(), r#"{"reason":"compaction_store_failed"}"#.to_owned()),
    ] {
        stored(&error, &text);
        assert_eq!(error.is_compaction_store_failed(), text.contains("compaction_store_failed"));
    }
}

#[test]
fn sandboxes() {
    stored(
        &SandboxAvailable {
            images: vec![Image { detail: Some("no".into()), name: "a:1".into(), status: "error".into() }],
        },
        r#"{"images":[{"detail":"no","name":"a:1","status":"error"}]}"#,
    );
    stored(
        &SandboxStart { dispatch: Dispatched::Remote, image: "a:1".into() },
        r#"{"dispatch":"remote","image":"a:1"}"#,
    );
    let id = SandboxId([2; 16]);
    let remote = RemoteSandboxRunning { dispatch: Dispatched::Remote, image: "a:1".into(), sandbox_id: id };
    stored(&remote, &format!(r#"{{"dispatch":"remote","image":"a:1","sandbox_id":"{id}"}}"#));
    let (image, reason) = ("a:1".into(), "explicit".into());
    let stop = RemoteSandboxStop { dispatch: Dispatched::Remote, image, reason, sandbox_id: id };
    let text = format!(r#"{{"dispatch":"remote","image":"a:1","reason":"explicit","sandbox_id":"{id}"}}"#);
    stored(&stop, &text);
    stored(&RemoteSandboxStopped(stop), &text);
    let running = SandboxRunning {
        container_id: None,
        detail: None,
        dispatch: Dispatched::Local,
        image: Some("a:1".into()),
        unsandboxed: false,
    };
    let text = r#"{"container_id":null,"detail":null,"dispatch":"local","image":"a:1"}"#;
    stored(&running, text);
    stored(&SandboxStopped(running), text);
    let local = SandboxError {
        container_id: Some(None),
        detail: Some("d".into()),
        dispatch: Dispatched::Local,
        image: None,
        phase: None,
        sandbox_id: None,
        unsandboxed: true,
    };
    stored(&local, r#"{"container_id":null,"detail":"d","dispatch":"local","image":null,"unsandboxed":true}"#);
    let remote = SandboxError {
        container_id: None,
        dispatch: Dispatched::Remote,
        image: Some("a:1".into()),
        phase: Some("start".into()),
        unsandboxed: false,
        ..local
    };
    stored(&remote, r#"{"detail":"d","dispatch":"remote","image":"a:1","phase":"start"}"#);
    let text = format!(r#"{{"detail":"d","dispatch":"remote","image":"a:1","phase":"exec","sandbox_id":"{id}"}}"#);
    stored(&SandboxError { phase: Some("exec".into()), sandbox_id: Some(id), ..remote }, &text);
}

#[test]
fn subagents() {
    let start = SubagentStart {
        detail: None,
        dispatch: Dispatched::Remote,
        harness: "h".into(),
        model: "m".into(),
        subagent_id: "s".into(),
    };
    let text = r#"{"detail":null,"dispatch":"remote","harness":"h","model":"m","subagent_id":"s"}"#;
    stored(&start, text);
    stored(&SubagentRunning(start), text);
    stored(
        &SubagentCompleted {
            detail: Some("d".into()),
            dispatch: Dispatched::Local,
            exit_code: 0,
            harness: "h".into(),
            model: "m".into(),
            subagent_id: "s".into(),
        },
        r#"{"detail":"d","dispatch":"local","exit_code":0,"harness":"h","model":"m","subagent_id":"s"}"#,
    );
    let failed = SubagentFailed {
        detail: None,
        dispatch: Dispatched::Local,
        exit_code: None,
        harness: "h".into(),
        model: "m".into(),
        reason: Some("spawn_failed".into()),
        subagent_id: "s".into(),
    };
    let text = r#"{"detail":null,"dispatch":"local","exit_code":null,"harness":"h","model":"m","reason":"spawn_failed","subagent_id":"s"}"#;
    stored(&failed, text);
    stored(&SubagentCancelled(failed), text);
}
