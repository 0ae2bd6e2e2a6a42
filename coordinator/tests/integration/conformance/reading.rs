//! Reading: pages, whole requests, folds, and the live path.

use crate::fixture::{Fixture, event, going_on, opening, says, within};
use coordinator::log::{Append, Log, Side};
use coordinator::reader::Reader;
use engine::event::payload::{CompactionCompleted, ServerMessage, Synthetic};
use engine::event::{Event, EventNumber, EventType, NewEvent, Payload};
use engine::gate::GateFound;
use engine::ids::{EventId, KeyId};
use engine::json;
use engine::message::{Message, Role};
use engine::provider::Wire;
use engine::request::{DeltaChain, Kind, Request};
use std::sync::Arc;

pub(super) async fn pages_go_on_where_the_last_ended(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    for _ in 0..10 {
        let events = (0..5).map(|_| event(key, EventType::SandboxRunning)).collect();
        fixture.free(session, key, events).await.unwrap();
    }
    let ids = fixture.contiguous(session).await;
    let numbers = async |after, limit| {
        let page = fixture.log.page(session, EventNumber(after), limit).await.unwrap();
        assert!(!page.cut);
        page.events.iter().map(|event| event.number.0).collect::<Vec<_>>()
    };
    assert_eq!(numbers(0, 3).await, [1, 2, 3]);
    assert_eq!(numbers(3, 4).await, [4, 5, 6, 7]);
    assert_eq!(numbers(49, 10).await, [50, 51]);
    assert!(numbers(51, 10).await.is_empty());
    assert_eq!(fixture.log.number_of(session, ids[41]).await.unwrap(), Some(EventNumber(42)));
    let (other, _) = fixture.session().await;
    assert_eq!(fixture.log.number_of(other, ids[41]).await.unwrap(), None, "in another session's log");
    assert_eq!(fixture.log.number_of(session, EventId(coordinator::fresh_id())).await.unwrap(), None);
}

/// A page is not larger than about 4 MiB, however many events were asked for; nothing is lost between pages.
pub(super) async fn large_events_cut_a_page(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let mut sent = Vec::new();
    for letter in ["a", "b", "c", "d", "e"] {
        let large = says(key, &format!(r#"{{"content":"{}"}}"#, letter.repeat(3 << 19)));
        sent.push(large.payload.text().len());
        fixture.free(session, key, vec![large, event(key, EventType::SandboxRunning)]).await.unwrap();
    }
    let huge = says(key, &format!(r#"{{"content":"{}"}}"#, "x".repeat(9 << 20)));
    sent.push(huge.payload.text().len());
    fixture.free(session, key, vec![huge, event(key, EventType::SandboxRunning)]).await.unwrap();

    let (mut after, mut pages, mut read) = (EventNumber::START, Vec::new(), Vec::new());
    loop {
        let page = fixture.log.page(session, after, 100).await.unwrap();
        let Some(last) = page.events.last() else { break };
        after = last.number;
        pages.push((page.events.len(), page.cut));
        let sizes = page.events.iter().map(|event| event.event.payload.text().len());
        read.extend(sizes.filter(|size| *size > 1000));
    }
    assert_eq!(after, EventNumber(13));
    assert_eq!(read, sent);
    assert_eq!(pages, [(6, true), (6, true), (1, false)]);
}

fn request(messages: &[&str]) -> Arc<Request> {
    let message = |text: &&str| Message { role: Role::User, content: json::parse(&format!("{text:?}")).unwrap() };
    Arc::new(Request {
        attempt: 1,
        kind: Kind::Primary,
        entry: "main".into(),
        wire: Wire::Anthropic,
        base_url: "http://localhost".into(),
        model: "m".into(),
        max_tokens: 10,
        messages: messages.iter().map(message).collect(),
        tools: json::parse("[]").unwrap(),
        normalized: None,
        compaction: false,
    })
}

fn asks(key: KeyId, request: &Arc<Request>) -> NewEvent {
    let payload = Payload::Request(Arc::clone(request));
    NewEvent {
        id: EventId(coordinator::fresh_id()),
        key,
        kind: EventType::ProviderRequest,
        payload,
        from_client: false,
    }
}

/// Requests are stored as what is new in each, and read as they were sent, wherever a page begins.
pub(super) async fn requests_are_whole(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let sent = [
        request(&["one"]),
        request(&["one", "two"]),
        request(&["one", "two", "three"]),
        request(&["other"]),
        request(&["other", "more"]),
    ];
    let open = opening(session, epoch, key, GateFound::Free);
    fixture.log.append(open.clone()).await.unwrap();
    let mut chain: Option<DeltaChain> = None;
    for request in &sent {
        let mut next = going_on(&open, None);
        next.events.insert(0, asks(key, request));
        next.chain = chain.clone();
        let committed = fixture.log.append(next).await.unwrap();
        chain = Some(DeltaChain::after(chain.as_ref(), committed[0].number, request));
    }
    let whole: Vec<String> = sent.iter().map(|request| request.payload()).collect();
    let shown = |events: &[Arc<Event>]| {
        let requests = events.iter().filter(|event| event.event.kind == EventType::ProviderRequest);
        requests.map(|event| event.event.payload.text().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(shown(&fixture.events(session).await), whole);
    let before = |index: usize| EventNumber(2).plus(2 * index);
    for (index, whole) in whole.iter().enumerate() {
        let page = fixture.log.page(session, before(index), 1).await.unwrap();
        assert_eq!(shown(&page.events), std::slice::from_ref(whole), "read alone");
    }
    // Whatever was read before, in this process: nothing, an earlier one, the same, a later one, one of another chain.
    for first in 0..sent.len() {
        for second in 0..sent.len() {
            let log = Log::new(fixture.db.clone(), Arc::default());
            for index in [first, second] {
                let page = log.page(session, before(index), 100).await.unwrap();
                assert_eq!(shown(&page.events), whole[index..], "from {index} on, {first} before");
                let page = log.page(session, before(index), 1).await.unwrap();
                assert_eq!(shown(&page.events), whole[index..=index], "{index} alone, {first} before");
            }
            let log = Log::new(fixture.db.clone(), Arc::default());
            for index in [first, second, first] {
                let page = log.page(session, before(index), 1).await.unwrap();
                assert_eq!(shown(&page.events), whole[index..=index], "{first}, {second}, {first}: {index}");
            }
        }
    }
}

pub(super) async fn a_session_is_folded_from_its_compaction(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let epoch = fixture.own(session).await.epoch;
    let mut open = opening(session, epoch, key, GateFound::Free);
    let said = "x".repeat(10_000);
    open.events = vec![says(key, &format!(r#"{{"role":"user","content":"{said}"}}"#))];
    fixture.log.append(open.clone()).await.unwrap();
    let answer = |payload: &str| {
        let payload = Payload::Json(json::parse(payload).unwrap());
        NewEvent { payload, ..event(key, EventType::ProviderResponse) }
    };
    let append = async |events| {
        let next = Append { events, ..going_on(&open, None) };
        fixture.log.append(next).await.unwrap()
    };
    let sent = request(&["one"]);
    append(vec![asks(key, &sent)]).await;
    append(vec![answer(r#"{"ok":true,"body":{},"usage":{"input_tokens":3,"output_tokens":4}}"#)]).await;
    append(vec![answer(
        r#"{"ok":true,"purpose":"compaction","body":{},"usage":{"input_tokens":50,"output_tokens":50}}"#,
    )])
    .await;
    append(vec![answer(r#"{"ok":false,"error":"no"}"#)]).await;
    let whole = fixture.log.fold(session).await.unwrap();
    assert!(whole.running() && whole.chain().is_some());
    assert!(whole.bytes() > said.len());

    let preamble = ServerMessage {
        role: Role::User,
        content: json::encode("so far"),
        synthetic: Some(Synthetic::CompactionPreamble),
    };
    let preamble = NewEvent::of(EventId(coordinator::fresh_id()), key, &preamble);
    let completed = |of: EventId| {
        let completed = CompactionCompleted {
            compacted_message_count: 1,
            input_tokens: None,
            preamble_event_id: of,
            summary_event_id: of,
            summary_tokens: None,
        };
        NewEvent::of(EventId(coordinator::fresh_id()), key, &completed)
    };
    append(vec![preamble.clone(), completed(preamble.id)]).await;
    let turn = fixture.log.fold(session).await.unwrap();
    assert!(turn.bytes() < said.len(), "what stands before the preamble is history no more");

    // A broken reference: from the start, never lost context.
    let (session, key) = fixture.session().await;
    let mut open = opening(session, fixture.own(session).await.epoch, key, GateFound::Free);
    let message = says(key, &format!(r#"{{"role":"user","content":"{said}"}}"#));
    open.events = vec![message, completed(EventId(coordinator::fresh_id()))];
    fixture.log.append(open).await.unwrap();
    assert!(fixture.log.fold(session).await.unwrap().bytes() > said.len());
}

pub(super) async fn a_reader_sees_each_event_once_in_order(fixture: &Fixture) {
    let (session, key) = fixture.session().await;
    let (mut reader, row) = Reader::open(&fixture.log, session, async {}).await.unwrap();
    assert_eq!(row.head, EventNumber(1));
    reader.seek(EventNumber::START);
    let write = |log: Log| async move {
        for _ in 0..25 {
            let report = vec![event(key, EventType::SandboxRunning)];
            log.append_free(session, key, report, Side::Nothing).await.unwrap();
        }
    };
    let writers: Vec<_> = (0..8).map(|_| tokio::spawn(write(fixture.log.clone()))).collect();
    let mut seen = Vec::new();
    while seen.len() < 201 {
        let head = reader.head();
        seen.extend(reader.read(head.number).await.unwrap().iter().map(|shown| shown.event.event.id));
        if seen.len() < 201 && reader.seen() == head.number {
            within("what is published", reader.moved(head)).await;
        }
    }
    for writer in writers {
        within("a writer", writer).await.unwrap();
    }
    assert_eq!(seen, fixture.contiguous(session).await);
}
