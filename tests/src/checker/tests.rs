//! For each rule a record that is broken on purpose in just that way.

use super::{Accepted, Call, Log, Recorded, Rule, Violation};
use crate::http1::Request;
use serde_json::{Value, json};

fn event(number: i64, epoch: Option<i64>, call: Option<&str>, kind: &str, payload: Value) -> Recorded {
    let from_client = kind.starts_with("client.") || kind == "session.open";
    let call = call.map(str::to_owned);
    Recorded { number, id: format!("evt_{number}"), epoch, call, kind: kind.to_owned(), from_client, payload }
}

/// Two calls: one with a tool, taken over by a second owner, and one plain.
fn good() -> Log {
    let said = |text: &str| json!({"role": "user", "content": text});
    let rows = [
        (None, None, "session.open", json!({})),
        (Some(1), Some("a"), "client.message.send", said("first")),
        (Some(1), Some("a"), "provider.request", json!({"attempt": 1})),
        (None, None, "session.join", json!({})),
        (Some(2), Some("a"), "provider.response", json!({"attempt": 1})),
        (Some(2), Some("a"), "tool.call", json!({"id": "tu_1"})),
        (Some(2), Some("a"), "mcp.request", json!({})),
        (Some(2), Some("a"), "mcp.response", json!({})),
        (Some(2), Some("a"), "tool.result", json!({"tool_use_id": "tu_1"})),
        (Some(2), Some("a"), "server.message.send", json!({})),
        (Some(2), Some("b"), "client.message.send", said("second")),
        (Some(2), Some("b"), "provider.request", json!({"attempt": 1})),
        (Some(2), Some("b"), "provider.response", json!({"attempt": 1})),
        (Some(2), Some("b"), "server.message.send", json!({})),
    ];
    let events: Vec<Recorded> = rows
        .into_iter()
        .zip(1..)
        .map(|((epoch, call, kind, payload), n)| event(n, epoch, call, kind, payload))
        .collect();
    let call = |id: &str, first, last| Call {
        id: id.to_owned(),
        idempotency_key: None,
        first,
        last: Some(last),
        outcome: Some("done".to_owned()),
    };
    Log {
        head: 14,
        epoch: 2,
        state: "open".to_owned(),
        phase: "idle".to_owned(),
        events,
        calls: vec![call("a", 2, 10), call("b", 11, 14)],
    }
}

fn asked(bodies: &[&str]) -> Vec<Request> {
    let request = |body: &&str| Request {
        method: "POST".to_owned(),
        path: "/v1/messages".to_owned(),
        headers: Vec::new(),
        body: body.as_bytes().to_vec(),
    };
    bodies.iter().map(request).collect()
}

fn only(violations: &[Violation], rule: Rule) {
    assert!(!violations.is_empty(), "{rule:?} was not noticed");
    assert!(violations.iter().all(|violation| violation.rule == rule), "{rule:?}: {violations:#?}");
}

/// Breaks the record and expects this rule, and no other, to notice.
fn broken(rule: Rule, how: impl FnOnce(&mut Log)) {
    let mut log = good();
    how(&mut log);
    only(&log.violations(), rule);
}

#[test]
fn a_good_record() {
    let log = good();
    assert_eq!(log.violations(), []);
    assert_eq!(log.compare_accepted(&["first", "second"].map(Accepted::new)), []);
    assert_eq!(log.compare_accepted(&[Accepted::new("first"), Accepted::left("gone"), Accepted::new("second")]), []);
    assert_eq!(log.compare_asked(&asked(&["1", "1", "2"])), []);
    assert_eq!(log.compare_stream(&["evt_9", "evt_10", "evt_12"].map(str::to_owned)), []);
    assert_eq!(log.compare_whole_stream(&["evt_10", "evt_11", "evt_12"].map(str::to_owned)), []);
}

#[test]
fn numbers() {
    broken(Rule::Contiguous, |log| log.head = 15);
    broken(Rule::Contiguous, |log| log.events[3].id = "evt_3".to_owned());
    broken(Rule::Contiguous, |log| {
        // An event that is no part of a turn is missing.
        log.events.remove(3);
    });
}

#[test]
fn epochs() {
    broken(Rule::Epochs, |log| log.events[6].epoch = Some(1));
    broken(Rule::Epochs, |log| log.epoch = 1);
}

#[test]
fn turns() {
    broken(Rule::OneTurn, |log| log.calls[0].last = Some(12));
    broken(Rule::OneTurn, |log| log.events[7].call = Some("b".to_owned()));
    broken(Rule::OneTurn, |log| log.events[12].call = Some("a".to_owned()));
    broken(Rule::OneTurn, |log| log.events[13].call = Some("unknown".to_owned()));
}

#[test]
fn pairs() {
    broken(Rule::Pairs, |log| log.events[8].payload = json!({"tool_use_id": "tu_2"}));
    broken(Rule::Pairs, |log| log.events[8].kind = "mcp.request".to_owned());
    broken(Rule::Pairs, |log| {
        log.events[9] = event(10, Some(2), Some("a"), "tool.result", json!({"tool_use_id": "tu_1"}))
    });
    broken(Rule::Pairs, |log| log.events[4].kind = "provider.request".to_owned());
    broken(Rule::Pairs, |log| log.events[12].kind = "server.note".to_owned());
    broken(Rule::Pairs, |log| log.events[11].kind = "server.note".to_owned());
}

#[test]
fn ends() {
    broken(Rule::End, |log| log.events[9].kind = "session.close".to_owned());
    broken(Rule::End, |log| log.calls[1].last = None);
}

#[test]
fn accepted_calls() {
    let log = good();
    only(&log.compare_accepted(&["first", "lost", "second"].map(Accepted::new)), Rule::Once);
    only(&log.compare_accepted(&[Accepted::new("first")]), Rule::Once);
    let mut twice = good();
    twice.events[10].payload["content"] = json!("first");
    only(&twice.compare_accepted(&[Accepted::new("first")]), Rule::Once);
    only(&log.compare_accepted(&["second", "first"].map(Accepted::new)), Rule::Order);
    assert_eq!(log.compare_accepted(&[Accepted::new("second"), Accepted::overtaking("first")]), []);
}

#[test]
fn streams() {
    let log = good();
    let ids = |ids: &[i64]| ids.iter().map(|id| format!("evt_{id}")).collect::<Vec<_>>();
    for ids in [ids(&[3, 5]), ids(&[3, 4, 4]), ids(&[5, 4]), ids(&[10, 11]), ids(&[14, 15]), ids(&[77])] {
        only(&log.compare_stream(&ids), Rule::Slice);
    }
    only(&log.compare_whole_stream(&ids(&[10, 12])), Rule::Slice);
}

#[test]
fn questions() {
    let log = good();
    only(&log.compare_asked(&asked(&["1"])), Rule::Asked);
    only(&log.compare_asked(&asked(&["1", "2", "3"])), Rule::Asked);
    only(&log.compare_asked(&asked(&["1", "1", "1", "2"])), Rule::Asked);
}

mod sent {
    use super::super::{End, Sent};
    use super::{event, good, only};
    use crate::checker::{Log, Rule};
    use serde_json::json;
    use std::time::{Duration, Instant};

    /// Two messages and a continuation, each with its label.
    fn log() -> Log {
        let mut log = good();
        let result = json!([{"type": "tool_result", "tool_use_id": "tu_1", "content": "[s1/d1/2]"}]);
        let contents = [json!("[s1/d1/1]"), json!("[s1/d2/1]"), result];
        log.events = contents
            .into_iter()
            .zip(1..)
            .map(|(content, n)| event(n, Some(1), None, "client.message.send", json!({"content": content})))
            .collect();
        log
    }

    /// Each sent and accepted a second after the other.
    fn sent() -> Vec<Sent> {
        let begin = Instant::now();
        let calls = ["[s1/d1/1]", "[s1/d2/1]", "[s1/d1/2]"].into_iter().enumerate();
        calls
            .map(|(n, label)| {
                let at = begin + Duration::from_secs(2 * n as u64);
                let accepted = Some(at + Duration::from_secs(1));
                Sent { label: label.to_owned(), sent: at, accepted, overtakes: false, end: End::Answered }
            })
            .collect()
    }

    fn with(change: impl FnOnce(&mut Vec<Sent>)) -> Vec<crate::checker::Violation> {
        let mut sent = sent();
        change(&mut sent);
        log().compare_sent(&sent)
    }

    #[test]
    fn a_good_record() {
        assert_eq!(with(|_| {}), []);
        assert_eq!(with(|sent| sent.iter_mut().for_each(|call| call.end = End::Unknown)), []);
        // Nobody knows which of two goes first while neither had been accepted when the other was sent.
        let at_once = |sent: &mut Vec<Sent>| {
            sent[1].accepted = None;
            sent[0].sent = sent[2].sent + Duration::from_millis(500);
            sent[0].accepted = Some(sent[0].sent + Duration::from_secs(1));
        };
        assert_eq!(with(at_once), []);
    }

    #[test]
    fn each_call_once_or_not_at_all() {
        only(&with(|sent| sent[1].end = End::Refused), Rule::Once);
        only(&with(|sent| sent[1].label = "[s1/d2/9]".to_owned()), Rule::Once);
        only(&with(|sent| drop(sent.pop())), Rule::Once);
        let mut twice = log();
        twice.events.push(twice.events[0].clone());
        only(&twice.compare_sent(&sent()), Rule::Once);
    }

    #[test]
    fn in_the_order_of_acceptance() {
        let late = |sent: &mut Vec<Sent>| {
            let end = sent[2].sent + Duration::from_secs(5);
            sent[0].sent = end;
            sent[0].accepted = Some(end);
        };
        only(&with(late), Rule::Order);
        let overtaking = |sent: &mut Vec<Sent>| {
            late(sent);
            sent[0].overtakes = true;
        };
        assert_eq!(with(overtaking), []);
        let left = |sent: &mut Vec<Sent>| {
            late(sent);
            sent[1].accepted = None;
            sent[2].accepted = None;
        };
        assert_eq!(with(left), []);
    }
}
