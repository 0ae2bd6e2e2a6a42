//! The order of a session's events (docs/api.md 6), call by call, as a grammar; with it results, attribution, the walk
//! over fallbacks, caps and what each call ends with. Compactions are in `compactions`.

use crate::fields;
use crate::fixture::Fixture;
use crate::plan::{Call, Row};
use crate::read::{Fields, array, blocks};
use crate::requests::block;
use crate::script::Fit;
use engine::event::{Event, EventNumber, EventType};
use engine::gate::{GateAfter, GateFound};
use engine::ids::KeyId;
use engine::open::Compaction;
use engine::outcome::Outcome;
use engine::round::ABANDONED;
use engine::turn::Opening;

/// What a run has shown; a test asserts that nothing of it never happened.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen(pub std::collections::BTreeMap<&'static str, usize>);

impl Seen {
    pub(crate) fn add(&mut self, what: &'static str, times: usize) {
        *self.0.entry(what).or_default() += times;
    }
}

/// The call was given up in the middle, after too many takeovers.
pub(crate) struct Cut;

/// A use of a round and the server's result for it.
struct ToolUse {
    id: String,
    dispatch: String,
    server: bool,
    result: Option<String>,
}

/// What earlier calls leave behind.
#[derive(Default)]
pub(crate) struct State {
    pause: Option<Vec<ToolUse>>,
    pub usage: Option<u64>,
    pub failed: Option<u64>,
    pub seen: Seen,
}

/// The events of one call, read from the front.
pub(crate) struct Reader<'a> {
    pub events: &'a [&'a Event],
    pub at: usize,
    pub call: &'a Call,
    pub max_rounds: u32,
    pub providers: usize,
    pub compaction: &'a Compaction,
    pub log: &'a [Event],
}

impl<'a> Reader<'a> {
    pub(crate) fn peek(&self) -> Option<EventType> {
        self.events.get(self.at).map(|e| e.event.kind)
    }

    pub(crate) fn take(&mut self, kind: EventType) -> Result<Fields, Cut> {
        self.take_of(kind, self.call.key, false)
    }

    fn take_of(&mut self, kind: EventType, key: KeyId, from_client: bool) -> Result<Fields, Cut> {
        let Some(event) = self.events.get(self.at) else {
            assert!(self.call.limited, "the call ends where {} is due", kind.as_str());
            return Err(Cut);
        };
        self.at += 1;
        let payload = Fields::payload(event);
        if event.event.kind == EventType::SessionError && payload.is("reason", "turn_recovery_failed") {
            assert!(self.call.limited && payload.number("takeovers") == Some(5));
            return Err(Cut);
        }
        assert_eq!(event.event.kind, kind, "out of order: {payload:?}");
        assert_eq!(event.event.key, key, "{} is attributed to the wrong client", kind.as_str());
        assert_eq!(event.event.from_client, from_client, "{}", kind.as_str());
        Ok(payload)
    }

    pub(crate) fn error(&mut self, reason: &str) -> Result<Fields, Cut> {
        let payload = self.take(EventType::SessionError)?;
        assert!(payload.is("reason", reason), "{payload:?} is not {reason}");
        Ok(payload)
    }

    /// One walk over the providers: the answer's payload, or how many attempts failed.
    pub(crate) fn walk(&mut self, purpose: bool, seen: &mut Seen) -> Result<Result<Fields, usize>, Cut> {
        for attempt in 0..self.providers {
            let kind = if attempt == 0 { "primary" } else { "fallback" };
            let request = self.take(EventType::ProviderRequest)?;
            let response = self.take(EventType::ProviderResponse)?;
            for payload in [&request, &response] {
                assert_eq!(payload.number("attempt"), Some(attempt as u64));
                assert!(payload.is("kind", kind) && payload.has("purpose") == purpose, "{payload:?}");
            }
            assert_eq!(request.raw("provider"), response.raw("provider"));
            seen.add("fallbacks", usize::from(attempt > 0));
            if response.bool("ok") {
                return Ok(Ok(response));
            }
            if attempt == 0 && !purpose {
                let failed = self.error("provider_call_failed")?;
                assert_eq!(failed.raw("detail"), response.raw("error"));
                assert_eq!(failed.raw("provider"), response.raw("provider"));
            }
        }
        Ok(Err(self.providers))
    }
}

/// Checks a whole session.
pub(crate) fn check(fixture: &Fixture<'_>) -> Seen {
    let mut state = State::default();
    for (i, event) in fixture.log.iter().enumerate() {
        assert_eq!(event.number, EventNumber::START.plus(i + 1));
        if event.call.is_some() {
            fields::check(event);
        }
    }
    let mut after = GateAfter::Free;
    for call in &fixture.calls {
        let events: Vec<&Event> = fixture.log.iter().filter(|e| e.call == Some(call.id)).collect();
        let reader = Reader {
            events: &events,
            at: 0,
            call,
            max_rounds: fixture.script.max_rounds,
            providers: fixture.script.wires.len(),
            compaction: &fixture.script.compaction,
            log: &fixture.log,
        };
        assert_ne!(after, GateAfter::Failed, "a call after the session failed");
        after = one(reader, &mut state).unwrap_or(after);
    }
    let row = match after {
        GateAfter::Free => matches!(fixture.row, Row::Idle),
        GateAfter::Paused(_) => matches!(fixture.row, Row::Paused(_)),
        GateAfter::Failed => matches!(fixture.row, Row::Error),
    };
    assert!(row, "the row says {:?} after {after:?}", fixture.row);
    state.seen.add("lost tools", fixture.lost);
    state.seen.add("compacts answered at once", fixture.in_progress);
    state.seen
}

fn one(mut reader: Reader<'_>, state: &mut State) -> Option<GateAfter> {
    let call = reader.call;
    if let Some(refused) = &call.refused {
        assert!(reader.events.is_empty(), "a refused call is recorded");
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (
                -32000,
                "tool result merge invalid: no paused turn is awaiting tool results (it may have timed out and been retired)"
            )
        );
        assert!(matches!(&call.opening, Opening::Message(m) if m.answers && call.gate != GateFound::OwnPause));
        state.seen.add("answers nobody awaits", 1);
        return None;
    }
    let result = match &call.opening {
        Opening::Message(_) => message(&mut reader, state),
        Opening::Compact(_) => crate::compactions::manual(&mut reader, state),
    };
    let end = call.end.as_ref().expect("every call ends");
    let expected = result.unwrap_or_else(|Cut| {
        state.seen.add("takeover limits", 1);
        let end = crate::compactions::given_up(&reader);
        state.seen.add("takeover limits in a compaction", usize::from(end.1 == GateAfter::Free));
        end
    });
    assert_eq!(reader.at, reader.events.len(), "events after the end");
    assert_eq!((&end.outcome, end.gate), (&expected.0, expected.1));
    Some(end.gate)
}

type Ended = Result<(Outcome, GateAfter), Cut>;

fn fails(reader: &mut Reader<'_>, reason: &str) -> Ended {
    reader.error(reason)?;
    Ok((Outcome::Unavailable, GateAfter::Failed))
}

/// `driver_turn_abandoned`, where the call takes a pause over.
pub(crate) fn abandonment(reader: &mut Reader<'_>) -> Result<(), Cut> {
    let owner = reader.call.owner.expect("a pause has an owner");
    let payload = reader.take_of(EventType::SessionError, owner, false)?;
    assert!(payload.is("reason", "driver_turn_abandoned"), "{payload:?}");
    assert!(payload.is("owner_client_key_id", &owner.to_string()));
    Ok(())
}

/// A pause given up with no user message to carry its results: its client's results are made up in a message of the
/// server.
pub(crate) fn retired(reader: &mut Reader<'_>, state: &mut State) -> Result<(), Cut> {
    let uses = state.pause.take().expect("a pause");
    abandonment(reader)?;
    let message = reader.take(EventType::ServerMessage)?;
    assert!(message.is("synthetic", "abandoned_tool_results") && message.is("role", "user"));
    let mut content = Vec::new();
    for one in uses.iter().filter(|one| !one.server) {
        content.push(made_up(reader, one)?);
    }
    assert_eq!(message.raw("content"), array(&content));
    Ok(())
}

/// The made-up result of a client's use.
fn made_up(reader: &mut Reader<'_>, one: &ToolUse) -> Result<String, Cut> {
    let result = reader.take(EventType::ToolResult)?;
    assert!(result.is("tool_use_id", &one.id) && result.is("dispatch", "client") && result.bool("is_error"));
    assert!(result.is("content", ABANDONED));
    Ok(block(&result))
}

/// The message that opens the call, and the results that it brings or that are made up for it.
fn opening(reader: &mut Reader<'_>, state: &mut State) -> Result<(), Cut> {
    let Opening::Message(sent) = &reader.call.opening else { panic!("a compact") };
    let user = sent.role == "user";
    if reader.call.gate == GateFound::ExpiredPause && !user {
        retired(reader, state)?;
    } else if reader.call.gate == GateFound::ExpiredPause {
        abandonment(reader)?;
    }
    let key = reader.call.key;
    let message = reader.take_of(EventType::ClientMessage, key, true)?;
    assert_eq!(message.str("role"), sent.role);
    let Some(uses) = state.pause.take() else {
        assert_eq!(message.raw("content"), sent.content.get(), "content is not what was sent");
        return Ok(());
    };
    let blocks = blocks(sent.content.get());
    let is_result = |block: &String| Fields::of(block).is("type", "tool_result");
    let (results, others): (Vec<String>, Vec<String>) = blocks.into_iter().partition(is_result);
    let mut merged = Vec::new();
    for one in uses {
        if one.server {
            merged.push(one.result.expect("the server's part is done before a pause"));
            continue;
        }
        let Some(sent) = results.iter().find(|block| Fields::of(block).is("tool_use_id", &one.id)) else {
            assert!(!sent.answers, "an answer without all results");
            merged.push(made_up(reader, &one)?);
            continue;
        };
        let (result, sent_fields) = (reader.take_of(EventType::ToolResult, key, true)?, Fields::of(sent));
        for name in sent_fields.names() {
            assert_eq!(result.raw(name), sent_fields.raw(name), "a client's result was changed");
        }
        assert!(result.is("dispatch", "client") && result.raw("server_name") == "null");
        assert!(sent_fields.has("is_error") || !result.bool("is_error"));
        merged.push(sent.clone());
    }
    merged.extend(others);
    assert_eq!(message.raw("content"), array(&merged), "the merge is wrong");
    let what = match (sent.answers, reader.call.gate) {
        (true, _) => "answers",
        (false, GateFound::OwnPause) => "abandonments by the owner's message",
        (false, _) => "abandonments by another's message",
    };
    state.seen.add(what, 1);
    Ok(())
}

fn message(reader: &mut Reader<'_>, state: &mut State) -> Ended {
    if matches!(reader.call.fit, Some(Fit::Missing | Fit::Duplicate | Fit::Unexpected | Fit::WrongRole)) {
        let detail = reader.error("tool_result_merge_invalid")?.str("detail");
        let error = engine::rpc::RpcError::tool_result_merge_invalid(detail);
        state.seen.add("answers that do not fit", 1);
        return Ok((Outcome::Error(error), GateAfter::Failed));
    }
    opening(reader, state)?;
    let mut rounds = 0;
    loop {
        if !reader.call.primary {
            return fails(reader, "provider_config");
        }
        if rounds == reader.max_rounds {
            assert_eq!(reader.events.get(reader.at).map(|e| e.event.key), Some(reader.call.key));
            let ended = fails(reader, "loop_limit");
            state.seen.add("caps reached", usize::from(ended.is_ok()));
            return ended;
        }
        rounds += 1;
        let response = match reader.walk(false, &mut state.seen)? {
            Ok(response) => response,
            Err(attempts) => {
                let payload = reader.error("all_providers_failed")?;
                assert_eq!(payload.number("attempts"), Some(attempts as u64));
                return Ok((Outcome::Unavailable, GateAfter::Failed));
            }
        };
        let usage = Fields::maybe(response.raw("usage")).filter(|_| response.raw("usage") != "null");
        state.usage = usage.map(|u| u.number("input_tokens").unwrap_or(0) + u.number("output_tokens").unwrap_or(0));
        if reader.peek() != Some(EventType::ToolCall) {
            let event = reader.events.get(reader.at).copied();
            let reply = reader.take(EventType::ServerMessage)?;
            assert!(reply.is("role", "assistant") && !reply.has("synthetic"));
            assert_eq!(reply.raw("content"), array(&answered(&response)), "the answer was changed");
            let outcome = Outcome::Message(event.expect("taken").event.id);
            crate::compactions::automatic(reader, state)?;
            return Ok((outcome, GateAfter::Free));
        }
        let uses = round(reader, &response, &mut state.seen)?;
        if uses.iter().any(|one| !one.server) {
            let event = reader.events.get(reader.at).copied();
            let reply = reader.take(EventType::ServerMessage)?;
            tagged(&reply, &uses);
            state.seen.add("mixed rounds", usize::from(uses.iter().any(|one| one.server)));
            state.pause = Some(uses);
            return Ok((Outcome::Message(event.expect("taken").event.id), GateAfter::Paused(crate::fixture::PAUSE)));
        }
    }
}

/// The blocks of an answer: Anthropic's verbatim, but for the one that was half received.
fn answered(response: &Fields) -> Vec<String> {
    if response.is("provider", "openai") {
        let body = engine::json::parse(response.raw("body")).unwrap();
        let answer = engine::provider::Wire::OpenAi.answer(&body).expect("logged as ok");
        return answer.blocks.iter().map(|block| block.get().to_owned()).collect();
    }
    let mut blocks = Fields::of(response.raw("body")).list("content");
    blocks.retain(|block| !Fields::of(block).is("id", "tu_half"));
    blocks
}

/// On a pause every tool use carries where it went.
fn tagged(reply: &Fields, uses: &[ToolUse]) {
    let shown = reply.list("content").into_iter().map(|block| Fields::of(&block)).filter(|b| b.is("type", "tool_use"));
    let shown: Vec<_> = shown.map(|block| (block.str("id"), block.str("dispatch"))).collect();
    let asked: Vec<_> = uses.iter().map(|one| (one.id.clone(), one.dispatch.clone())).collect();
    assert_eq!(shown, asked);
}

/// The tool calls of an answer and the server's part in them.
fn round(reader: &mut Reader<'_>, response: &Fields, seen: &mut Seen) -> Result<Vec<ToolUse>, Cut> {
    let mut uses = Vec::new();
    let mut calls = Vec::new();
    while reader.peek() == Some(EventType::ToolCall) {
        let call = reader.take(EventType::ToolCall)?;
        let dispatch = call.str("dispatch");
        uses.push(ToolUse { id: call.str("id"), server: dispatch != "client", dispatch, result: None });
        calls.push(call);
    }
    let asked = answered(response).into_iter().map(|block| Fields::of(&block)).filter(|b| b.is("type", "tool_use"));
    let asked: Vec<_> = asked.map(|b| ["id", "name", "input"].map(|name| b.raw(name).to_owned())).collect();
    let called: Vec<_> = calls.iter().map(|c| ["id", "name", "input"].map(|name| c.raw(name).to_owned())).collect();
    assert_eq!(called, asked, "the calls are not those of the answer");
    for (one, call) in uses.iter_mut().zip(&calls).filter(|(one, _)| one.server) {
        match (one.dispatch.as_str(), call.raw("server_name")) {
            ("mcp", server) => {
                seen.add("tools nobody offers", usize::from(server == "null"));
                let request = reader.take(EventType::McpRequest)?;
                assert_eq!((request.raw("input"), request.raw("tool")), (call.raw("input"), call.raw("name")));
                assert!(request.raw("server_name") == server && request.is("method", "tools/call"));
                assert_eq!(reader.take(EventType::McpResponse)?.raw("server_name"), server);
            }
            ("sandbox", _) => {
                assert_eq!(reader.take(EventType::SandboxRequest)?.raw("input"), call.raw("input"));
                reader.take(EventType::SandboxResponse)?;
            }
            ("subagent", _) if reader.peek() == Some(EventType::SubagentStart) => {
                let start = reader.take(EventType::SubagentStart)?;
                let then = match reader.peek() {
                    Some(EventType::SubagentFailed) => EventType::SubagentFailed,
                    _ => EventType::SubagentRunning,
                };
                let then = reader.take(then)?;
                assert_eq!(start.raw("subagent_id"), then.raw("subagent_id"));
                seen.add("subagents", 1);
            }
            _ => {}
        }
        let result = reader.take(EventType::ToolResult)?;
        assert!(result.is("tool_use_id", &one.id) && result.is("dispatch", &one.dispatch), "{result:?}");
        assert_eq!(result.raw("server_name"), call.raw("server_name"));
        one.result = Some(block(&result));
    }
    Ok(uses)
}
