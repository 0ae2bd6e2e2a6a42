//! Compactions in the log (docs/api.md 7): when one runs, what it says, and that none ever fails a session.

use crate::order::{Cut, Reader, State, retired};
use crate::read::{Fields, quoted};
use crate::requests::history;
use engine::event::EventType;
use engine::gate::{GateAfter, GateFound};
use engine::history::PREAMBLE;
use engine::open::Compaction;
use engine::outcome::Outcome;
use engine::provider::Wire;
use engine::rpc::RpcError;

type Ended = Result<(Outcome, GateAfter), Cut>;

/// `session.compact`, an expired pause retired first.
pub(crate) fn manual(reader: &mut Reader<'_>, state: &mut State) -> Ended {
    if reader.call.gate == GateFound::ExpiredPause {
        retired(reader, state)?;
        state.seen.add("abandonments by a compact", 1);
    }
    let started = reader.take(EventType::CompactionStarted)?;
    assert!(started.is("trigger", "client") && started.is("reason", "manual"));
    assert_eq!((started.number("token_count"), started.number("threshold_tokens")), (state.usage, None));
    let failed = |detail: &str| Outcome::Error(RpcError::compaction_failed(detail));
    if !reader.call.primary {
        return Ok((failed("provider_config: unknown provider \"p0\""), GateAfter::Free));
    }
    let outcome = match attempt(reader, state)? {
        Result::Ok(Outcome::Unavailable) => Outcome::Error(RpcError::internal()),
        Result::Ok(outcome) => outcome,
        Err(detail) => failed(&detail),
    };
    let what =
        if matches!(outcome, Outcome::Compacted(_)) { "manual compactions" } else { "failed manual compactions" };
    state.seen.add(what, 1);
    Ok((outcome, GateAfter::Free))
}

/// The automatic one behind a completed turn, where the backoff allows it.
pub(crate) fn automatic(reader: &mut Reader<'_>, state: &mut State) -> Result<(), Cut> {
    let (Compaction::Auto { size }, Some(tokens)) = (reader.compaction, state.usage) else { return Ok(()) };
    if tokens <= *size || state.failed.is_some_and(|failed| tokens <= failed) {
        state.seen.add("backoffs", usize::from(tokens > *size));
        return Ok(());
    }
    let started = reader.take(EventType::CompactionStarted)?;
    let reason = if state.failed.is_some() { "retry_after_failure" } else { "token_threshold" };
    assert!(started.is("trigger", "auto") && started.is("reason", reason), "{started:?} is not {reason}");
    assert_eq!((started.number("token_count"), started.number("threshold_tokens")), (Some(tokens), Some(*size)));
    state.seen.add("retries", usize::from(state.failed.is_some()));
    state.failed = Some(tokens);
    let done = matches!(attempt(reader, state)?, Result::Ok(Outcome::Compacted(_)));
    state.seen.add(if done { "automatic compactions" } else { "failed automatic compactions" }, 1);
    Ok(())
}

/// From the first request on: what came of it ([`Outcome::Unavailable`]: it could not be stored), or why it failed.
fn attempt(reader: &mut Reader<'_>, state: &mut State) -> Result<Result<Outcome, String>, Cut> {
    let response = match reader.walk(true, &mut state.seen)? {
        Ok(response) => response,
        Err(attempts) => return Ok(Err(format!("all {attempts} providers failed"))),
    };
    let wire = if response.is("provider", "openai") { Wire::OpenAi } else { Wire::Anthropic };
    let answer = wire.answer(&engine::json::parse(response.raw("body")).unwrap()).expect("logged as ok");
    if let Some(cut) = answer.truncated {
        return Ok(Err(format!("summary truncated: {cut}")));
    }
    let blocks = answer.blocks.iter().map(|block| Fields::of(block.get())).filter(|block| block.is("type", "text"));
    let texts: Vec<String> = blocks.map(|block| block.str("text")).collect();
    if texts.iter().all(|text| text.trim().is_empty()) {
        return Ok(Err("empty summary".into()));
    }
    if reader.call.store_failed && reader.peek() == Some(EventType::SessionError) {
        reader.error("compaction_store_failed")?;
        state.seen.add("store failures", 1);
        return Ok(Ok(Outcome::Unavailable));
    }
    let first = reader.events.get(reader.at).map(|e| e.number.previous().0 as usize);
    let preamble = reader.take(EventType::ServerMessage)?;
    assert!(preamble.is("synthetic", "compaction_preamble") && preamble.is("role", "user"));
    assert_eq!(preamble.raw("content"), format!(r#"[{{"type":"text","text":{}}}]"#, quoted(PREAMBLE)));
    let summary = reader.take(EventType::ServerMessage)?;
    assert!(!summary.has("synthetic") && summary.is("role", "assistant"));
    assert_eq!(summary.raw("content"), format!(r#"[{{"type":"text","text":{}}}]"#, quoted(&texts.join("\n"))));
    let completed = reader.take(EventType::CompactionCompleted)?;
    let first = first.expect("taken");
    // One append: nobody's events come in between.
    let ids = [0, 1, 2].map(|i| reader.log[first + i].event.id);
    assert!(
        completed.is("preamble_event_id", &ids[0].to_string()) && completed.is("summary_event_id", &ids[1].to_string())
    );
    let before = history(&reader.log[..first]).len() as u64;
    assert_eq!(completed.number("compacted_message_count"), Some(before));
    let usage = Fields::maybe(response.raw("usage")).filter(|_| response.raw("usage") != "null");
    let tokens = |name: &str| usage.as_ref().and_then(|usage| usage.number(name));
    assert_eq!(completed.number("input_tokens"), tokens("input_tokens"));
    assert_eq!(completed.number("summary_tokens"), tokens("output_tokens"));
    state.failed = None;
    Ok(Ok(Outcome::Compacted(ids[2])))
}

/// How a call ends whose nodes were lost too often: as far as a compaction goes, without harm to the session.
pub(crate) fn given_up(reader: &Reader<'_>) -> (Outcome, GateAfter) {
    let reply = reader.events.iter().rev().find(|e| e.event.kind == EventType::ServerMessage);
    let compacting = reader.events.iter().any(|e| e.event.kind == EventType::CompactionStarted);
    let failed = reader
        .events
        .iter()
        .any(|e| e.event.kind == EventType::SessionError && Fields::payload(e).is("reason", "turn_recovery_failed"));
    assert_ne!(compacting, failed, "inside a compaction nothing fails the session");
    match (&reader.call.opening, reply) {
        _ if failed => (Outcome::Unavailable, GateAfter::Failed),
        (engine::turn::Opening::Compact(_), _) => {
            let detail = "the nodes running it were lost 5 times";
            (Outcome::Error(RpcError::compaction_failed(detail)), GateAfter::Free)
        }
        (_, reply) => (Outcome::Message(reply.expect("a reply before its compaction").event.id), GateAfter::Free),
    }
}
