//! Takeovers that random scripts reach rarely, one by one.

use crate::fixture::{Fixture, client, run};
use crate::plan::{Plan, Row, Stops};
use crate::script::{Answer, Block, By, Fit, Op, Script, What};
use crate::{order, read::Fields};
use engine::event::{Event, EventType, Payload};
use engine::gate::{GateAfter, GateFound};
use engine::json;
use engine::open::Compaction;
use engine::outcome::Outcome;
use engine::params::SendMessage;
use engine::provider::Wire;
use engine::rpc::RpcError;
use engine::turn::{Action, Context, Opening, Turn};

const WHOLE: Plan = Plan { stops: Stops::Never, newest: false, takeovers: 1, swap_tools: false, looks: true };

fn op(by: By, what: What) -> Op {
    Op { by, what, late: true, tools: 0, primary: true, running: 0 }
}

fn script(ops: Vec<Op>, answers: Vec<Answer>) -> Script {
    let text = || Answer::Blocks(vec![Block::Text(0)], Some(100));
    Script {
        compaction: Compaction::default(),
        max_rounds: 8,
        wires: vec![Wire::Anthropic],
        ops,
        answers: answers.into_iter().chain([text()]).collect(),
        summaries: vec![text()],
        mcp: vec![],
        launches: vec![],
        stores: vec![],
        stops: 0,
    }
}

fn uses(tool: &'static str, input: usize) -> Answer {
    Answer::Blocks(vec![Block::Use { tool, input, reused: false }], Some(100))
}

fn kinds(fixture: &Fixture<'_>) -> Vec<EventType> {
    order::check(fixture);
    fixture.log.iter().filter(|e| e.call.is_some()).map(|e| e.event.kind).collect()
}

#[test]
fn a_subagents_start_is_made_again() {
    let script = script(vec![op(By::Owner, What::Plain(0))], vec![uses("sub", 3)]);
    let whole = run(&script, WHOLE, kinds);
    assert!(whole.contains(&EventType::SubagentRunning));
    assert_eq!(run(&script, Plan { stops: Stops::Every, ..WHOLE }, kinds), whole);
}

/// Eight may run at once. One whose start is logged has its place, also where the count holds it already.
#[test]
fn no_more_subagents_are_launched_than_may_run() {
    let ops: Vec<Op> = [0, 7, 8, 9].map(|running| Op { running, ..op(By::Owner, What::Plain(0)) }).into();
    let text = || Answer::Blocks(vec![Block::Text(0)], Some(100));
    let answers = [0, 1, 2, 3].map(|_| [uses("sub", 3), text()]).into_iter().flatten().collect();
    let script = script(ops, answers);
    let launched = |fixture: &Fixture<'_>| {
        order::check(fixture);
        let runs = |e: &&Event| e.call.is_some() && e.event.kind == EventType::SubagentRunning;
        fixture.calls.iter().map(|call| fixture.log.iter().filter(runs).any(|e| e.call == Some(call.id))).collect()
    };
    for stops in [Stops::Never, Stops::Every] {
        let seen: Vec<bool> = run(&script, Plan { stops, ..WHOLE }, launched);
        assert_eq!(seen, [true, true, false, false], "{stops:?}");
    }
    let one = Script { ops: vec![op(By::Owner, What::Plain(0))], ..script };
    run(&one, WHOLE, |fixture| {
        let start = fixture.log.iter().position(|e| e.event.kind == EventType::SubagentStart).expect("launched");
        let mut turn = Turn::default();
        fixture.log[..=start].iter().for_each(|event| turn.apply(event));
        let full = Context { running_subagents: 8, ..fixture.context() };
        turn.recover(&full, 1);
        assert!(matches!(turn.next(&full).action, Action::Launch(..)));
    });
}

/// A command that was sent to the sandbox when the node was lost is not sent again: it may have run.
#[test]
fn a_sandbox_act_is_never_carried_on() {
    let script = script(vec![op(By::Owner, What::Plain(0))], vec![uses("run", 2)]);
    run(&script, WHOLE, |fixture| {
        let request = fixture.log.iter().position(|e| e.event.kind == EventType::SandboxRequest).expect("sent");
        let mut turn = Turn::default();
        fixture.log[..=request].iter().for_each(|event| turn.apply(event));
        turn.recover(&fixture.context(), 1);
        let step = turn.next(&fixture.context());
        let kinds: Vec<EventType> = step.events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds[..2], [EventType::SandboxResponse, EventType::ToolResult]);
        assert!(step.events[1].payload.text().contains("sandbox error: the outcome of this call is unknown"));
        assert!(matches!(step.action, Action::Ask(_)), "{step:?}");
    });
}

/// The client hides the subagent tool behind one of its own while the node that starts a subagent is down.
#[test]
fn a_subagent_that_cannot_be_started_any_more_has_failed() {
    let mut call = op(By::Owner, What::Plain(0));
    call.tools = 1;
    let script = script(vec![call], vec![uses("sub", 3)]);
    let plan = Plan { stops: Stops::Only(1), swap_tools: true, ..WHOLE };
    let (kinds, failed) = run(&script, plan, |fixture| {
        let failed = fixture.log.iter().find(|e| e.event.kind == EventType::SubagentFailed).map(Fields::payload);
        (kinds(fixture), failed.expect("a failed start"))
    });
    assert!(failed.is("reason", "spawn_failed") && failed.is("harness", "claude"), "{failed:?}");
    let start = kinds.iter().position(|kind| *kind == EventType::SubagentStart).unwrap();
    assert_eq!(kinds[start..start + 3], [EventType::SubagentStart, EventType::SubagentFailed, EventType::ToolResult]);
}

/// A request stored before the fold begins is no part of a chain that starts in it.
#[test]
fn requests_after_a_second_compaction_read_back() {
    let ops =
        [What::Plain(0), What::Compact(None), What::Plain(0), What::Compact(None), What::Plain(0), What::Plain(0)];
    let script = script(ops.map(|what| op(By::Owner, what)).into(), vec![]);
    let whole = run(&script, WHOLE, kinds);
    for append in 0..whole.len() {
        let plan = Plan { stops: Stops::Only(append), newest: true, ..WHOLE };
        assert_eq!(run(&script, plan, kinds), whole);
    }
}

/// Results made up for an abandoned pause never become a part of an assistant's message.
#[test]
fn an_asides_takeover_keeps_uses_and_results_paired() {
    let ops = vec![op(By::Owner, What::Plain(0)), op(By::Stranger, What::Assistant), op(By::Owner, What::Plain(0))];
    let script = script(ops, vec![uses("c1", 0)]);
    let kinds = run(&script, WHOLE, kinds);
    assert_eq!(kinds.iter().filter(|kind| **kind == EventType::ToolResult).count(), 1);
}

#[test]
fn an_answer_after_the_pause_was_retired_is_refused() {
    let ops =
        [(By::Owner, What::Plain(0)), (By::Stranger, What::Compact(None)), (By::Stranger, What::Answer(Fit::Right))];
    let script = script(ops.map(|(by, what)| op(by, what)).into(), vec![uses("c1", 0)]);
    run(&script, WHOLE, |fixture| {
        order::check(fixture);
        assert!(fixture.calls.last().unwrap().refused.is_some());
        assert_eq!(fixture.row, Row::Idle);
    });
}

/// A compaction whose preamble is not in the log changes nothing: the history before it is still told.
#[test]
fn a_broken_preamble_reference_loses_nothing() {
    let ops = [What::Plain(0), What::Compact(None)];
    let script = script(ops.map(|what| op(By::Owner, what)).into(), vec![]);
    run(&script, WHOLE, |fixture| {
        let mut turn = Turn::default();
        for event in &fixture.log {
            let mut event = event.clone();
            if event.event.kind == EventType::CompactionCompleted {
                let preamble = Fields::payload(&event).str("preamble_event_id");
                let text = event.event.payload.text().replace(&preamble, &format!("evt_{}", "f".repeat(32)));
                event.event.payload = Payload::Json(json::parse(&text).unwrap());
            }
            turn.apply(&event);
        }
        turn.settle();
        let hello = json::parse(r#"{"message":{"content":"go on"}}"#).unwrap();
        let opening = Opening::Message(SendMessage::parse(&hello).unwrap());
        turn.open(&fixture.context(), &opening, client(1), GateFound::Free).unwrap();
        let Action::Ask(request) = turn.next(&fixture.context()).action else { panic!("a request is due") };
        let mut messages = String::new();
        request.write_messages(&mut messages);
        for told in ["hello", "answer", engine::history::PREAMBLE, "go on"] {
            assert!(messages.contains(told), "{told} is missing in {messages}");
        }
    });
}

/// The profile was deleted: a message's call fails the session, whatever was open (docs/api.md 3.2).
#[test]
fn a_deleted_profile_fails_the_session() {
    let script = script(vec![op(By::Owner, What::Plain(0))], vec![uses("c1", 0)]);
    run(&script, WHOLE, |fixture| {
        let mut turn = Turn::default();
        fixture.log.iter().for_each(|event| turn.apply(event));
        let step = turn.profile_unavailable(&fixture.context(), client(2));
        let [error] = &step.events[..] else { panic!("{step:?}") };
        assert_eq!((error.kind, error.key), (EventType::SessionError, client(2)));
        assert_eq!(error.payload.text(), r#"{"reason":"profile_unavailable"}"#);
        let Action::End(end) = step.action else { panic!("the call goes on") };
        assert_eq!((end.outcome, end.gate), (Outcome::Error(RpcError::profile_unavailable()), GateAfter::Failed));
    });
}

/// What is stored of a request does not grow with the conversation (docs/api.md 4.5).
#[test]
fn stored_requests_do_not_grow() {
    let script = script((0..100).map(|i| op(By::Owner, What::Plain(i % 4))).collect(), vec![uses("m1", 1)]);
    let sizes = run(&script, WHOLE, |fixture| fixture.stored_bytes());
    let (early, late) = (sizes[5..15].iter().max().unwrap(), sizes[sizes.len() - 10..].iter().max().unwrap());
    assert!(sizes.len() > 100 && *late < early + 50, "{sizes:?}");
}
