//! Sandboxes, subagents and images in the database: one wins each change, and the log tells each of them once.

use crate::fixture::{Fixture, going_on, opening};
use coordinator::Error;
use coordinator::log::{Append, ImageState, ImageStatus, NewSubagent, SandboxChange, SandboxState, SubagentState};
use engine::event::payload::SessionClose;
use engine::event::{EventNumber, NewEvent};
use engine::gate::GateFound;
use engine::ids::{EventId, KeyId, SandboxId, SessionId, SubagentId};
use engine::subagent::Left;
use std::time::Duration;

/// An event of any kind; these cases look at how many there are.
fn event(key: KeyId) -> NewEvent {
    NewEvent::of(EventId(coordinator::fresh_id()), key, &SessionClose { reason: "a test".to_owned() })
}

async fn count(fixture: &Fixture, session: SessionId) -> usize {
    fixture.log.page(session, EventNumber::START, 200).await.unwrap().events.len()
}

async fn start(fixture: &Fixture, session: SessionId, key: KeyId) -> Result<SandboxId, Error> {
    let id = SandboxId(coordinator::fresh_id());
    let change = SandboxChange::Start { key, image: "box:1".to_owned() };
    fixture.log.change_sandbox(session, id, change, vec![event(key)]).await.map(|_| id)
}

pub(super) async fn a_session_has_one_sandbox(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let before = count(fixture, session).await;
    let starts = (0..20).map(|_| start(fixture, session, key));
    let started: Vec<_> = futures_util::future::join_all(starts).await;
    let (won, lost): (Vec<_>, Vec<_>) = started.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 19));
    assert!(lost.into_iter().all(|lost| matches!(lost, Err(Error::Duplicate))));
    assert_eq!(count(fixture, session).await, before + 1, "who lost has told nothing");

    // While one is being stopped another can be started.
    let id = won.into_iter().next().unwrap().unwrap();
    let change = |change| fixture.log.change_sandbox(session, id, change, Vec::new());
    change(SandboxChange::Running).await.unwrap();
    assert!(matches!(start(fixture, session, key).await, Err(Error::Duplicate)));
    change(SandboxChange::Stop { reason: "explicit" }).await.unwrap();
    let second = start(fixture, session, key).await.unwrap();
    let known: Vec<_> = fixture.log.sandboxes_of(session).await.unwrap().into_iter().map(|s| (s.id, s.state)).collect();
    assert_eq!(known, [(id, SandboxState::Stopping), (second, SandboxState::Starting)]);
}

pub(super) async fn a_sandbox_changes_from_the_state_that_it_is_in(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let id = start(fixture, session, key).await.unwrap();
    let before = count(fixture, session).await;
    let change = |change| fixture.log.change_sandbox(session, id, change, vec![event(key)]);
    for wrong in [
        SandboxChange::Stop { reason: "explicit" },
        SandboxChange::Gone(SandboxState::Running),
        SandboxChange::Gone(SandboxState::Stopping),
    ] {
        assert!(matches!(change(wrong).await, Err(Error::PreconditionFailed)));
    }
    assert_eq!(count(fixture, session).await, before, "a change that is refused tells nothing");
    change(SandboxChange::Running).await.unwrap();
    assert!(matches!(change(SandboxChange::Running).await, Err(Error::PreconditionFailed)));

    // A closing stops it; once the log has ended nothing is told, and the row can still go.
    fixture.log.begin_close(session, key, "client_close").await.unwrap();
    assert!(matches!(start(fixture, session, key).await, Err(Error::NotOpen("closed"))));
    change(SandboxChange::Stop { reason: "session_close" }).await.unwrap();
    fixture.log.finish_close(session, EventId(coordinator::fresh_id())).await.unwrap();
    let gone = SandboxChange::Gone(SandboxState::Stopping);
    assert!(matches!(change(gone.clone()).await, Err(Error::NotOpen("closed"))));
    fixture.log.change_sandbox(session, id, gone, Vec::new()).await.unwrap();
    assert!(fixture.log.sandboxes_of(session).await.unwrap().is_empty());
}

pub(super) async fn a_sandbox_that_was_left_is_claimed_once(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let id = start(fixture, session, key).await.unwrap();
    let unattended = async || {
        let all = fixture.log.unattended_sandboxes().await.unwrap();
        all.into_iter().map(|sandbox| sandbox.id).collect::<Vec<_>>()
    };
    assert_eq!(unattended().await, [], "its node works on it");
    fixture.raw("UPDATE sandboxes SET busy_until = 0").await;
    assert_eq!(unattended().await, [id]);
    let claims = (0..10).map(|_| fixture.log.claim_sandbox(id));
    let claimed = futures_util::future::join_all(claims).await;
    assert_eq!(claimed.into_iter().filter(|claimed| *claimed.as_ref().unwrap()).count(), 1);
    assert_eq!(unattended().await, []);
    // One that runs needs nobody, unless its session has ended.
    fixture.log.change_sandbox(session, id, SandboxChange::Running, Vec::new()).await.unwrap();
    fixture.raw("UPDATE sandboxes SET busy_until = 0").await;
    assert_eq!(unattended().await, []);
    fixture.log.begin_close(session, key, "client_close").await.unwrap();
    fixture.log.finish_close(session, EventId(coordinator::fresh_id())).await.unwrap();
    assert_eq!(unattended().await, [id]);
    fixture.log.keep_sandbox_busy(id).await.unwrap();
    assert_eq!(unattended().await, []);
}

fn left() -> Left {
    Left {
        exit_code: Some(3),
        stdout: "out \u{1}".to_owned(),
        stderr: "err".to_owned(),
        truncated: true,
        reason: Some("nonzero_exit".to_owned()),
        detail: None,
    }
}

pub(super) async fn a_subagent_ends_once(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let id = SubagentId(coordinator::fresh_id());
    let new = NewSubagent { id, session, key, harness: "claude".to_owned(), model: "m".to_owned() };
    fixture.log.add_subagent(new.clone()).await.unwrap();
    fixture.log.add_subagent(new).await.expect("the same start");
    let counts = async || {
        let record = fixture.log.record(session, key).await.unwrap();
        (record.tracked_subagents, record.running_subagents)
    };
    assert_eq!(counts().await, (1, 1));
    let before = count(fixture, session).await;
    let end = || fixture.log.end_subagent(session, id, SubagentState::Failed, left(), event(key));
    assert!(matches!(end().await, Err(Error::PreconditionFailed)), "the log does not say yet that it runs");
    fixture.log.subagent_runs(id).await.unwrap();
    let ends = futures_util::future::join_all((0..10).map(|_| end())).await;
    assert_eq!(ends.iter().filter(|ended| ended.is_ok()).count(), 1);
    assert_eq!(count(fixture, session).await, before + 1);
    assert_eq!(counts().await, (1, 0));
    let [known] = &fixture.log.subagents_of(session).await.unwrap()[..] else { panic!("one") };
    assert_eq!((known.launched.harness.as_str(), known.state), ("claude", SubagentState::Failed));
    assert_eq!((known.left.stdout.as_str(), known.left.exit_code, known.left.truncated), ("out \u{1}", Some(3), true));
    assert!(fixture.log.live_subagents().await.unwrap().is_empty());
    // The model is told of it by an append: an append that is refused leaves the row, and one that runs keeps its own.
    let other = NewSubagent { id: SubagentId(coordinator::fresh_id()), ..known.launched.clone() };
    fixture.log.add_subagent(other.clone()).await.unwrap();
    let old = fixture.own(session).await.epoch;
    let epoch = fixture.own(session).await.epoch;
    let opened = opening(session, epoch, key, GateFound::Free);
    fixture.log.append(opened.clone()).await.unwrap();
    let told = Append { reported: vec![id, other.id], ..going_on(&opened, None) };
    let stale = Append { epoch: old, ..told.clone() };
    assert!(matches!(fixture.log.append(stale).await, Err(Error::Fenced)));
    assert_eq!(counts().await, (2, 1));
    let committed = fixture.log.append(told).await.unwrap();
    assert_eq!(committed.len(), 1);
    assert_eq!(counts().await, (1, 1));
}

pub(super) async fn images_are_provisioned_by_one_node(fixture: &Fixture) {
    let names = ["a:1", "b:1"].map(str::to_owned);
    fixture.log.mark_images_pending(&names).await.unwrap();
    let claims = futures_util::future::join_all((0..10).map(|_| fixture.log.claim_image())).await;
    let mut claimed: Vec<String> = claims.into_iter().filter_map(|claimed| claimed.unwrap()).collect();
    while let Some(name) = fixture.log.claim_image().await.unwrap() {
        claimed.push(name);
    }
    claimed.sort();
    assert_eq!(claimed, names, "each once");
    let error = ImageStatus { state: ImageState::Error, detail: Some("no such image".to_owned()) };
    fixture.log.note_image("a:1", error.clone()).await.unwrap();
    let statuses = fixture.log.image_statuses(&["a:1", "b:1", "c:1"].map(str::to_owned)).await.unwrap();
    assert_eq!((statuses.get("a:1"), statuses.len()), (Some(&error), 2));
    assert_eq!(statuses["b:1"].state, ImageState::Pending);

    // Images of profiles that were made without a driver; what is known stays.
    fixture.profile().await;
    fixture.log.mark_unknown_images_pending().await.unwrap();
    let statuses = fixture.log.image_statuses(&["a:1", "image:1"].map(str::to_owned)).await.unwrap();
    assert_eq!((statuses["a:1"].state, statuses["image:1"].state), (ImageState::Error, ImageState::Pending));
}

pub(super) async fn a_duty_is_one_nodes(fixture: &Fixture) {
    let take = |node: &'static str, time| fixture.log.take_duty("test", node, time);
    let long = Duration::from_secs(60);
    assert!(take("a", long).await.unwrap());
    assert!(!take("b", long).await.unwrap());
    assert!(take("a", Duration::ZERO).await.unwrap(), "who has it keeps it");
    tokio::time::timeout(crate::fixture::DEADLINE, async { while !take("b", long).await.unwrap() {} })
        .await
        .expect("the duty of a silent node is free");
    assert!(!take("a", long).await.unwrap());
    let name = fixture.log.deployment().await.unwrap();
    assert_eq!((fixture.log.deployment().await.unwrap(), name.len()), (name, 32));
}
