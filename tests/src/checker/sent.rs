//! Calls as their clients knew them, when several send at once and nobody knows the whole order: of two calls the one
//! that was accepted before the other was sent goes first.

use super::{Log, Recorded, Rule, Violation, found};
use std::collections::HashMap;
use std::time::Instant;

/// How a call ended for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With a result: it is recorded.
    Answered,
    /// With an error that records nothing.
    Refused,
    /// The client left, or the session ended.
    Unknown,
}

/// A `sendMessage` of one client, retries included.
#[derive(Debug, Clone)]
pub struct Sent {
    /// What its message alone contains, such as `[s1/d2/17]`.
    pub label: String,
    /// When it was sent first.
    pub sent: Instant,
    /// When it was accepted, if its client and the node that accepted it have been there ever since: from then on it
    /// has a place.
    pub accepted: Option<Instant>,
    /// Whether it may answer a pause: then it goes before those who wait for the pause's end.
    pub overtakes: bool,
    /// How it ended.
    pub end: End,
}

/// The label that a client's message carries.
pub fn label(event: &Recorded) -> Option<String> {
    let content = (event.kind == "client.message.send").then(|| event.payload["content"].to_string())?;
    let start = content.find("[s")?;
    let length = content[start..].find(']')?;
    Some(content[start..=start + length].to_owned())
}

impl Log {
    /// Compares with all that clients sent.
    pub fn compare_sent(&self, sent: &[Sent]) -> Vec<Violation> {
        let mut all = Vec::new();
        let mut recorded: HashMap<String, Vec<i64>> = HashMap::new();
        for event in &self.events {
            if let Some(label) = label(event) {
                recorded.entry(label).or_default().push(event.number);
            }
        }
        let mut started: Vec<(&Sent, i64)> = Vec::new();
        for call in sent {
            let numbers = recorded.remove(&call.label).unwrap_or_default();
            match (call.end, numbers.as_slice()) {
                (End::Answered | End::Unknown, [number]) => started.push((call, *number)),
                (End::Refused | End::Unknown, []) => {}
                (end, numbers) => {
                    let what = format!("{} ended {end:?} and is recorded at {numbers:?}", call.label);
                    all.push(found(Rule::Once, what));
                }
            }
        }
        all.extend(recorded.keys().map(|label| found(Rule::Once, format!("nobody sent {label}"))));
        for (earlier, number) in &started {
            let Some(accepted) = earlier.accepted else { continue };
            for (later, before) in &started {
                if later.sent > accepted && before < number && !later.overtakes {
                    let what = format!("{} ({before}) started before {} ({number})", later.label, earlier.label);
                    all.push(found(Rule::Order, what));
                }
            }
        }
        all
    }
}
