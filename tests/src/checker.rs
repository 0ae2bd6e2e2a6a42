//! What must hold of a session's whole record, however the cluster was broken: its rows in Postgres (events, calls, the
//! session), what the mock provider was asked, and what clients saw.
//!
//! Nothing here panics over a broken record: each rule returns what it found, so that a load test can count it.

mod rows;
mod sent;
#[cfg(test)]
mod tests;

pub use rows::{Call, Log, Recorded};
pub use sent::{End, Sent, label as label_of};

use crate::http1::Request;
use std::collections::HashSet;

/// Which rule was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Events are numbered 1, 2, 3 … up to the session's head, each id once.
    Contiguous,
    /// The epochs of a turn's events never decrease and never exceed the session's.
    Epochs,
    /// Calls do not overlap: between a call's first and last event no other call writes.
    OneTurn,
    /// Each tool use is answered once, by a result that belongs to it, and each request to a peer has one response.
    Pairs,
    /// Each accepted call is recorded once, or not at all if its client left before it was claimed.
    Once,
    /// Calls start in the order in which they were accepted.
    Order,
    /// A stream's ids are a contiguous slice of the log after the live filter.
    Slice,
    /// The provider was asked what is recorded, and again only by a new owner.
    Asked,
    /// Nothing follows `session.close`, and an idle session has no open call.
    End,
    /// A call is answered in time, with what the API has for it; a session comes to rest; a node recovers.
    Answered,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The broken rule.
    pub rule: Rule,
    /// Where and how.
    pub what: String,
}

fn found(rule: Rule, what: String) -> Violation {
    Violation { rule, what }
}

/// A `sendMessage` that the cluster accepted, as its client knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The message's text, which no other call of the session has.
    pub text: String,
    /// Whether its client left while it waited.
    pub left: bool,
    /// Whether it answered a pause, or hit one of its own: it may overtake.
    pub overtakes: bool,
}

impl Accepted {
    /// One whose client waited for the end.
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), left: false, overtakes: false }
    }

    /// One whose client left.
    pub fn left(text: &str) -> Self {
        Self { left: true, ..Self::new(text) }
    }

    /// The message of a pause's owner, which goes before those who wait for the pause's end.
    pub fn overtaking(text: &str) -> Self {
        Self { overtakes: true, ..Self::new(text) }
    }
}

impl Log {
    /// All rules about the record alone.
    pub fn violations(&self) -> Vec<Violation> {
        let mut all = self.check_numbers();
        all.extend(self.check_epochs());
        all.extend(self.check_turns());
        all.extend(self.check_pairs());
        all.extend(self.check_end());
        all
    }

    fn check_numbers(&self) -> Vec<Violation> {
        let mut ids = HashSet::new();
        let mut all = Vec::new();
        for (event, number) in self.events.iter().zip(1..) {
            if event.number != number {
                all.push(found(Rule::Contiguous, format!("event {number} has the number {}", event.number)));
                break;
            }
            if !ids.insert(&event.id) {
                all.push(found(Rule::Contiguous, format!("{} is there twice, again as {number}", event.id)));
            }
        }
        if self.head != self.events.len() as i64 {
            all.push(found(Rule::Contiguous, format!("head {} over {} events", self.head, self.events.len())));
        }
        all
    }

    fn check_epochs(&self) -> Vec<Violation> {
        let mut highest = 0;
        let mut all = Vec::new();
        for event in &self.events {
            let Some(epoch) = event.epoch else { continue };
            if epoch < highest || epoch > self.epoch {
                let what = format!("epoch {epoch} at {} after {highest}, session {}", event.number, self.epoch);
                all.push(found(Rule::Epochs, what));
            }
            highest = highest.max(epoch);
        }
        all
    }

    fn check_turns(&self) -> Vec<Violation> {
        let mut all = Vec::new();
        let mut calls: Vec<&Call> = self.calls.iter().collect();
        calls.sort_by_key(|call| call.first);
        for pair in calls.windows(2) {
            if pair[0].last.is_none_or(|last| last >= pair[1].first) {
                all.push(found(Rule::OneTurn, format!("{:?} is open when {:?} starts", pair[0], pair[1])));
            }
        }
        for event in &self.events {
            let owner = calls.iter().rev().find(|call| call.first <= event.number);
            let inside = owner.filter(|call| call.last.is_none_or(|last| event.number <= last));
            if event.call.is_some() && event.call.as_ref() != inside.map(|call| &call.id) {
                let what = format!("event {} ({}) is outside its call", event.number, event.kind);
                all.push(found(Rule::OneTurn, what));
            }
        }
        all
    }

    fn check_pairs(&self) -> Vec<Violation> {
        let mut all = Vec::new();
        let mut fail = |event: &Recorded, what: &str| {
            all.push(found(Rule::Pairs, format!("{what}: event {} ({}) {}", event.number, event.kind, event.payload)));
        };
        let mut uses: Vec<&str> = Vec::new();
        let (mut provider, mut mcp) = (None, None);
        for event in &self.events {
            let text = |field: &str| event.payload[field].as_str().unwrap_or_default();
            match event.kind.as_str() {
                "provider.request" if provider.replace(event).is_some() => fail(event, "two provider calls at once"),
                "provider.response" if provider.take().is_none() => fail(event, "a response to no request"),
                "mcp.request" if mcp.replace(event).is_some() => fail(event, "two tool calls at once"),
                "mcp.response" if mcp.take().is_none() => fail(event, "a response to no request"),
                "tool.call" if uses.contains(&text("id")) => fail(event, "a tool use twice"),
                "tool.call" => uses.push(text("id")),
                "tool.result" => match uses.iter().position(|id| *id == text("tool_use_id")) {
                    Some(at) => drop(uses.remove(at)),
                    None => fail(event, "a result of no open tool use"),
                },
                _ => {}
            }
        }
        if self.phase == "idle" && self.state == "open" {
            for id in uses {
                all.push(found(Rule::Pairs, format!("{id} was never answered, and nothing is open")));
            }
            if let Some(event) = provider.or(mcp) {
                all.push(found(Rule::Pairs, format!("event {} has no response", event.number)));
            }
        }
        all
    }

    fn check_end(&self) -> Vec<Violation> {
        let mut all = Vec::new();
        let close = self.events.iter().position(|event| event.kind == "session.close");
        if close.is_some_and(|at| at + 1 != self.events.len()) {
            all.push(found(Rule::End, "something follows session.close".to_owned()));
        }
        if self.phase != "running" && self.state == "open" {
            for call in self.calls.iter().filter(|call| call.last.is_none()) {
                all.push(found(Rule::End, format!("{call:?} is open in a session that is {}", self.phase)));
            }
        }
        all
    }

    /// Compares with what clients sent, in the order in which the cluster accepted it.
    pub fn compare_accepted(&self, accepted: &[Accepted]) -> Vec<Violation> {
        let mut all = Vec::new();
        let said: Vec<(&str, i64)> = self.events.iter().filter_map(|e| Some((e.text()?, e.number))).collect();
        let mut before: Option<(&str, i64)> = None;
        for call in accepted {
            let numbers: Vec<i64> = said.iter().filter(|(text, _)| *text == call.text).map(|(_, n)| *n).collect();
            match numbers[..] {
                [] if call.left => {}
                [number] => {
                    if let Some((text, earlier)) = before
                        && number < earlier
                        && !call.overtakes
                    {
                        all.push(found(Rule::Order, format!("`{}` started before `{text}`", call.text)));
                    }
                    if !call.overtakes {
                        before = Some((&call.text, number));
                    }
                }
                _ => all.push(found(Rule::Once, format!("`{}` is recorded {} times", call.text, numbers.len()))),
            }
        }
        for (text, number) in said {
            if !accepted.iter().any(|call| call.text == text) {
                all.push(found(Rule::Once, format!("nobody sent `{text}`, event {number}")));
            }
        }
        all
    }

    /// Compares with the ids that a live stream brought.
    pub fn compare_stream(&self, ids: &[String]) -> Vec<Violation> {
        let live: Vec<&str> = self.events.iter().filter(|e| !e.from_client).map(|e| e.id.as_str()).collect();
        Self::compare_slice(&live, ids)
    }

    /// Compares with the ids that a stream with client events brought.
    pub fn compare_whole_stream(&self, ids: &[String]) -> Vec<Violation> {
        let every: Vec<&str> = self.events.iter().map(|e| e.id.as_str()).collect();
        Self::compare_slice(&every, ids)
    }

    fn compare_slice(log: &[&str], ids: &[String]) -> Vec<Violation> {
        let Some(first) = ids.first() else { return Vec::new() };
        let Some(start) = log.iter().position(|id| id == first) else {
            return vec![found(Rule::Slice, format!("{first} is not in the log"))];
        };
        for (offset, id) in ids.iter().enumerate() {
            if log.get(start + offset) != Some(&id.as_str()) {
                let wanted = log.get(start + offset);
                return vec![found(Rule::Slice, format!("{id} as number {offset} of a stream, not {wanted:?}"))];
            }
        }
        Vec::new()
    }

    /// Compares with all that a provider was asked, which no other session asks.
    ///
    /// Every question is recorded before it is asked, and the same one is asked again only by a new owner: a node that
    /// goes on although it lost its session asks once too often.
    pub fn compare_asked(&self, requests: &[Request]) -> Vec<Violation> {
        let mut all = Vec::new();
        let (mut recorded, mut answered, mut allowed) = (0, 0, 0);
        let mut open: Option<i64> = None;
        for event in &self.events {
            let Some(epoch) = event.epoch else { continue };
            // Every owner from the one that recorded a question to the one that recorded what came next may have asked
            // it.
            allowed += open.take().map_or(0, |asked| 1 + epoch - asked);
            match event.kind.as_str() {
                "provider.request" => (recorded, open) = (recorded + 1, Some(epoch)),
                "provider.response" => answered += 1,
                _ => {}
            }
        }
        allowed += open.map_or(0, |asked| 1 + self.epoch - asked);
        let bodies: HashSet<&[u8]> = requests.iter().map(|request| request.body.as_slice()).collect();
        if requests.len() < answered {
            all.push(found(Rule::Asked, format!("{answered} responses to {} questions", requests.len())));
        }
        if bodies.len() > recorded {
            all.push(found(Rule::Asked, format!("{} questions, {recorded} recorded", bodies.len())));
        }
        if requests.len() as i64 > allowed {
            let what = format!("asked {} times; the owners of {recorded} requests may {allowed}", requests.len());
            all.push(found(Rule::Asked, what));
        }
        all
    }
}
