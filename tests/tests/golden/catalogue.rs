//! Every code, slug, message and event type of the API, each of which some committed transcript must hold.
//!
//! Numbers are sections of docs/api.md; `client` stands for its sections 12 and 13. What needs a live sandbox or
//! subagent cannot happen with no sandbox driver configured; it is listed as excused, so that the list stays whole, and
//! an excuse that is no longer needed fails too.

use std::path::Path;

/// What transcripts must hold, and where the API says so.
const HELD: &[(&str, &[&str])] = &[
    (
        "client, Errors (REST); docs/api.md 2.4, 8.1, 10: problem types",
        &[
            r#""type":"unauthorized""#,
            r#""type":"not_found""#,
            r#""type":"bad_request""#,
            r#""type":"tool_not_allowed""#,
            r#""type":"profile_mismatch""#,
            r#""type":"session_closed""#,
            r#""type":"profile_unavailable""#,
            r#""type":"primary_provider_unavailable""#,
            r#""type":"internal""#,
            r#""type":"invalid_subagent_tools""#,
            r#""type":"reserved_tool_name""#,
            r#""type":"duplicate_name""#,
            r#""type":"profile_in_use""#,
        ],
    ),
    (
        "client and docs/api.md 2.4: statuses",
        &[
            "< 200",
            "< 201",
            "< 204",
            r#""status":400"#,
            r#""status":401"#,
            r#""status":403"#,
            r#""status":404"#,
            r#""status":405"#,
            r#""status":409"#,
            r#""status":413"#,
            r#""status":422"#,
            r#""status":500"#,
            r#""status":503"#,
        ],
    ),
    (
        "client: JSON-RPC codes",
        &[
            r#""code":-32700"#,
            r#""code":-32600"#,
            r#""code":-32601"#,
            r#""code":-32602"#,
            r#""code":-32603"#,
            r#""code":-32000"#,
            r#""code":-32001"#,
            r#""code":-32011"#,
            r#""code":-32012"#,
            r#""code":-32013"#,
            r#""code":-32014"#,
            r#""code":-32015"#,
            r#""code":-32020"#,
        ],
    ),
    (
        "client: details of problems",
        &[
            r#""detail":"invalid compaction config: missing field `size`""#,
            r#""detail":"invalid request body: "#,
            r#""detail":"session is already closed""#,
            r#""detail":"session is already error""#,
            r#""detail":"compaction is a session-level setting fixed at creation and cannot be set on join""#,
        ],
    ),
    (
        "client, docs/api.md 2.1, 2.5, 3.2: messages of RPC errors",
        &[
            r#""message":"Invalid Request: batch requests are not supported""#,
            r#""message":"Method not found: "#,
            r#""message":"Invalid params: "#,
            r#""message":"Internal error""#,
            r#""message":"call session.registerDriver before session.sendMessage""#,
            r#""message":"call session.registerDriver before session.compact""#,
            r#""message":"session is closed, not open""#,
            r#""message":"session is error, not open""#,
            r#""message":"profile_unavailable: the profile bound to this session is no longer available""#,
            r#""message":"tool result merge invalid: no paused turn is awaiting tool results (it may have timed out and been retired)""#,
            r#""message":"turn in progress: resolve the paused turn before compacting""#,
            r#""message":"compaction failed: provider_config: "#,
            r#""message":"compaction failed: all 2 providers failed""#,
            r#""message":"compaction failed: summary truncated: stop_reason max_tokens""#,
            r#""message":"compaction failed: summary truncated: finish_reason length""#,
            r#""message":"compaction failed: empty summary""#,
            r#""message":"lagged; reconnect with since_event_id""#,
            r#""message":"sandbox_image_not_allowed"#,
            r#""message":"sandbox_start_failed: no sandbox driver is configured""#,
            r#""message":"sandbox_not_running"#,
            r#""message":"subagent_not_found"#,
            r#""message":"tool_not_allowed"#,
        ],
    ),
    (
        "client: results",
        &[
            r#"{"registered":true}"#,
            r#"{"unsubscribed":true}"#,
            r#"{"reported":true}"#,
            r#"{"updated":true}"#,
            r#""state":"closed""#,
        ],
    ),
    (
        "docs/api.md 6: event types",
        &[
            r#""event_type":"client.message.send""#,
            r#""event_type":"server.message.send""#,
            r#""event_type":"provider.request""#,
            r#""event_type":"provider.response""#,
            r#""event_type":"tool.call""#,
            r#""event_type":"tool.result""#,
            r#""event_type":"mcp.request""#,
            r#""event_type":"mcp.response""#,
            r#""event_type":"sandbox.request""#,
            r#""event_type":"sandbox.response""#,
            r#""event_type":"session.open""#,
            r#""event_type":"session.join""#,
            r#""event_type":"session.driver.register""#,
            r#""event_type":"session.sandbox.available""#,
            r#""event_type":"session.sandbox.start""#,
            r#""event_type":"session.sandbox.running""#,
            r#""event_type":"session.sandbox.stopped""#,
            r#""event_type":"session.sandbox.error""#,
            r#""event_type":"session.subagent.start""#,
            r#""event_type":"session.subagent.running""#,
            r#""event_type":"session.subagent.completed""#,
            r#""event_type":"session.subagent.failed""#,
            r#""event_type":"session.subagent.cancelled""#,
            r#""event_type":"session.compaction.started""#,
            r#""event_type":"session.compaction.completed""#,
            r#""event_type":"session.close""#,
            r#""event_type":"session.error""#,
        ],
    ),
    (
        "docs/api.md 6: reasons of session.error",
        &[
            r#""reason":"turn_recovery_failed""#,
            r#""reason":"provider_config""#,
            r#""reason":"provider_call_failed""#,
            r#""reason":"all_providers_failed""#,
            r#""reason":"loop_limit""#,
            r#""reason":"profile_unavailable""#,
            r#""reason":"primary_provider_unavailable""#,
            r#""reason":"driver_turn_abandoned""#,
            r#""reason":"tool_result_merge_invalid""#,
            r#""reason":"compaction_store_failed""#,
        ],
    ),
    (
        "docs/api.md 6: closed sets in payloads",
        &[
            r#""reason":"client_close""#,
            r#""reason":"client_key_revoked""#,
            r#""trigger":"auto""#,
            r#""trigger":"client""#,
            r#""reason":"token_threshold""#,
            r#""reason":"retry_after_failure""#,
            r#""reason":"manual""#,
            r#""synthetic":"compaction_preamble""#,
            r#""synthetic":"abandoned_tool_results""#,
            r#""purpose":"compaction""#,
            r#""kind":"primary""#,
            r#""kind":"fallback""#,
            r#""dispatch":"client""#,
            r#""dispatch":"mcp""#,
            r#""dispatch":"sandbox""#,
            r#""dispatch":"subagent""#,
            r#""dispatch":"remote""#,
            r#""dispatch":"local""#,
            r#""phase":"start""#,
            r#""prepended_user":true"#,
            r#""merged":[["#,
        ],
    ),
    (
        "docs/api.md 3.5, 6, 7.2: texts that the model sees",
        &[
            "Client tool call was abandoned before returning a result.",
            "sandbox error: no remote sandbox is running for tool 'sh'; call session.startRemoteSandbox first",
            "MCP error: no MCP server is configured for tool 'nothing'",
            "The earlier part of this conversation was compacted. A summary follows.",
        ],
    ),
    ("docs/api.md 10: masked secrets", &["••••••••"]),
    (
        "client: the twelve methods, and every endpoint",
        &[
            "> session.registerDriver",
            "> session.sendMessage",
            "> session.compact",
            "> session.subscribe",
            "> session.unsubscribe",
            "> session.startRemoteSandbox",
            "> session.stopRemoteSandbox",
            "> session.execRemoteSandbox",
            "> session.reportLocalSandbox",
            "> session.reportLocalSubagent",
            "> session.cancelSubagent",
            "> session.updateClientTools",
            "> GET /healthz",
            "> GET /api/v1/meta",
            "> POST /api/v1/sessions (",
            "> POST /api/v1/sessions/[ses:1]/join",
            "> GET /api/v1/sessions/[ses:1]/participants",
            "> GET /api/v1/sessions/[ses:1]/events",
            "> DELETE /api/v1/sessions/[ses:1] (",
            "> POST /admin/v1/profiles",
            "> GET /admin/v1/profiles (",
            "> GET /admin/v1/profiles/[pro:1]",
            "> PUT /admin/v1/profiles/[pro:1]",
            "> DELETE /admin/v1/profiles/[pro:1]",
            "> POST /admin/v1/keys",
            "> DELETE /admin/v1/keys/[key:1]",
            "> GET /admin/v1/sessions?state=",
            "> GET /admin/v1/sessions/[ses:1]/events",
            "> GET /admin/v1/mcp-servers",
            "> GET /admin/v1/providers",
            "> GET /admin/v1/config",
            "> GET /admin/v1/sandbox-status",
        ],
    ),
];

/// What cannot happen here, and why.
const EXCUSED: &[(&str, &str)] = &[
    (r#""event_type":"session.sandbox.stop""#, "only a sandbox that runs can be stopped"),
    (r#""phase":"stop""#, "the same"),
    (r#""phase":"exec""#, "a command needs a running sandbox"),
    (r#""message":"sandbox stop failed: "#, "stopping needs a running sandbox"),
    (r#""message":"sandbox exec failed: "#, "a command needs a running sandbox"),
    (
        r#""message":"a remote sandbox is already running for this session; call session.stopRemoteSandbox first""#,
        "a second start needs a running sandbox",
    ),
    (r#"{"stopped":true"#, "stopping needs a running sandbox"),
    (r#""cancelled":true"#, "only a running remote subagent can be cancelled"),
    (r#""status":"started""#, "a remote subagent needs a sandbox driver"),
    (r#""message":"session no longer exists""#, "no call of the API removes a session's row"),
];

/// Streamed events stand in a short form, see `tests::transcript`.
fn holds(transcripts: &str, word: &str) -> bool {
    let event = word.strip_prefix(r#""event_type":""#).and_then(|rest| rest.strip_suffix('"'));
    transcripts.contains(word) || event.is_some_and(|kind| transcripts.contains(&format!("< event {kind} [evt:")))
}

#[test]
fn every_word_of_the_contract_is_in_a_transcript() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    let mut transcripts = String::new();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "snap") {
            transcripts.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    let missing: Vec<String> = HELD
        .iter()
        .flat_map(|(section, words)| words.iter().map(move |word| (section, word)))
        .filter(|(_, word)| !holds(&transcripts, word))
        .map(|(section, word)| format!("{word}  ({section})"))
        .collect();
    assert!(missing.is_empty(), "in no transcript:\n{}", missing.join("\n"));
    let needless: Vec<&str> = EXCUSED.iter().map(|(word, _)| *word).filter(|word| holds(&transcripts, word)).collect();
    assert!(needless.is_empty(), "excused, but in a transcript:\n{}", needless.join("\n"));
}

/// A snapshot whose test is gone would go on vouching for words of the API.
#[test]
fn no_snapshot_is_left_over() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut sources = String::new();
    for dir in ["golden", "faults"] {
        for entry in std::fs::read_dir(tests.join(dir)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                sources.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    for entry in std::fs::read_dir(tests.join("snapshots")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(".snap") else { continue };
        assert!(sources.contains(&format!("\"{name}\"")), "{} belongs to no test", path.display());
    }
}
