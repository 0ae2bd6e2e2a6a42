//! Messages as both wire formats take them (docs/api.md 5.7).
//!
//! The log keeps what was said. A provider refuses some of it, and by the API a refused request ends the session, so a
//! message is repaired once, when it becomes part of the history. What comes out depends on the messages before it and
//! on nothing else, so that every node repairs in the same way:
//!
//! - Members that are the server's own (`dispatch` and `caller` of tool uses) are left out.
//! - Blank texts are left out, except for white space beside another text of a user. A message of which nothing is left
//!   is left out.
//! - Ids of tool uses that a format does not take, or that the history has already, are replaced, and with them the ids
//!   in the results. Names of tools are shortened, and other characters than formats take become `_`.
//! - The content of a tool result becomes a string or blocks that formats know; an error says at least that there was no
//!   output.

use super::blocks;
use crate::ids::EventId;
use crate::json::{self, Object, Raw};
use crate::message::Role;
use crate::tools::sendable_name;
use serde_json::value::RawValue;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The longest id of a tool use; OpenAI takes no longer one.
const MAX_ID: usize = 40;
/// The members of a tool use that providers must not see.
const OURS: [&str; 2] = ["dispatch", "caller"];
/// What an error without a text is sent as.
const NO_OUTPUT: &str = "(no output)";
/// The blocks that may stand in a tool result.
const RESULT_BLOCKS: [&str; 4] = ["text", "image", "document", "search_result"];

/// The ids of tool uses that the history has: for each that was said, the one that is sent.
#[derive(Debug, Clone, Default)]
pub(super) struct ToolUseIds {
    sent: HashMap<String, String>,
    taken: HashSet<String>,
}

/// What becomes of one block.
enum Repair {
    Keep,
    Drop,
    Replace(Raw),
}

impl ToolUseIds {
    /// The content to send for a message; none if nothing of it can be sent.
    pub(super) fn repair(&mut self, event: EventId, role: Role, content: &Raw) -> Option<Raw> {
        if json::array(content).is_none() {
            let blank = json::string(content).is_some_and(|text| text.trim().is_empty());
            return (!blank).then(|| Arc::clone(content));
        }
        let said = blocks(content);
        let speaks = role == Role::User && said.iter().any(|block| text_of(block).is_some_and(|text| !blank(&text)));
        let repairs: Vec<Repair> =
            said.iter().enumerate().map(|(place, block)| self.block(event, place, block, speaks)).collect();
        if repairs.iter().all(|repair| matches!(repair, Repair::Keep)) {
            return (!said.is_empty()).then(|| Arc::clone(content));
        }
        let sent: Vec<&Raw> = said
            .iter()
            .zip(&repairs)
            .filter_map(|(block, repair)| match repair {
                Repair::Keep => Some(block),
                Repair::Drop => None,
                Repair::Replace(block) => Some(block),
            })
            .collect();
        (!sent.is_empty()).then(|| json::join(sent.into_iter().map(|block| &**block)))
    }

    /// `speaks` says whether the message is a user's and has a text that is not blank.
    fn block(&mut self, event: EventId, place: usize, block: &Raw, speaks: bool) -> Repair {
        let Some(members) = Object::parse(block) else { return Repair::Keep };
        match members.str("type").as_deref() {
            Some("text") => match members.str("text") {
                Some(text) if text.is_empty() || blank(&text) && !speaks => Repair::Drop,
                _ => Repair::Keep,
            },
            Some("tool_use") => self.tool_use(event, place, &members),
            Some("tool_result") => self.tool_result(&members),
            _ => Repair::Keep,
        }
    }

    fn tool_use(&mut self, event: EventId, place: usize, members: &Object<'_>) -> Repair {
        let said = members.str("id").unwrap_or_default();
        let usable =
            (1..=MAX_ID).contains(&said.len()) && said.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
        let id = if usable && !self.taken.contains(&*said) {
            said.clone().into_owned()
        } else {
            format!("u{}_{place}", event.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        };
        self.taken.insert(id.clone());
        let name = members.str("name").unwrap_or_default();
        let sent_name = sendable_name(&name);
        let stripped = members.without(&OURS);
        let mut replaced: Vec<(&str, Raw)> = Vec::new();
        if id != said {
            replaced.push(("id", json::encode(&id)));
        }
        if sent_name != name {
            replaced.push(("name", json::encode(&*sent_name)));
        }
        let unchanged = replaced.is_empty() && OURS.iter().all(|key| members.get(key).is_none());
        self.sent.insert(said.into_owned(), id);
        if unchanged {
            return Repair::Keep;
        }
        if replaced.is_empty() {
            return Repair::Replace(stripped);
        }
        let replaced: Vec<(&str, &RawValue)> = replaced.iter().map(|(key, value)| (*key, &**value)).collect();
        match Object::parse(&stripped) {
            Some(members) => Repair::Replace(members.with(&replaced)),
            None => Repair::Keep,
        }
    }

    fn tool_result(&self, members: &Object<'_>) -> Repair {
        let said = members.str("tool_use_id").unwrap_or_default();
        let id = self.sent.get(&*said).filter(|sent| **sent != said).map(json::encode);
        let is_error = members.get("is_error").is_some_and(|flag| flag.get() == "true");
        let content = result_content(members.get("content"), is_error);
        let null_flag = members.get("is_error").is_some_and(|flag| flag.get() == "null");
        if id.is_none() && content.is_none() && !null_flag {
            return Repair::Keep;
        }
        let mut replaced: Vec<(&str, &RawValue)> = Vec::new();
        if let Some(id) = &id {
            replaced.push(("tool_use_id", id));
        }
        if let Some(content) = &content {
            replaced.push(("content", content));
        }
        let whole = members.with(&replaced);
        match Object::parse(&whole).filter(|_| null_flag) {
            Some(members) => Repair::Replace(members.without(&["is_error"])),
            None => Repair::Replace(whole),
        }
    }
}

/// The content of a tool result, if it cannot be sent as it is.
fn result_content(content: Option<&RawValue>, is_error: bool) -> Option<Raw> {
    let nothing = || json::encode(if is_error { NO_OUTPUT } else { "" });
    let Some(content) = content.filter(|content| content.get() != "null") else { return is_error.then(nothing) };
    if content.get().starts_with('"') {
        let blank = json::string(content).filter(|text| blank(text));
        return blank.filter(|text| is_error || !text.is_empty()).map(|_| nothing());
    }
    let text = || json::encode(content.get());
    let Some(parts) = json::array(content) else { return Some(text()) };
    let mut kept = Vec::with_capacity(parts.len());
    for part in &parts {
        let Some(members) = Object::parse(part) else { return Some(text()) };
        match members.str("type").as_deref() {
            Some("text") => match members.get("text") {
                Some(said) if json::string(said).is_some_and(|said| blank(&said)) => {}
                Some(said) if said.get().starts_with('"') => kept.push(*part),
                _ => return Some(text()),
            },
            Some(kind) if RESULT_BLOCKS.contains(&kind) => kept.push(part),
            _ => return Some(text()),
        }
    }
    match kept.len() {
        0 => Some(nothing()).filter(|_| is_error || !parts.is_empty()),
        some if some < parts.len() => Some(json::join(kept)),
        _ => None,
    }
}

fn text_of(block: &Raw) -> Option<String> {
    let members = Object::parse(block)?;
    (members.str("type").as_deref() == Some("text")).then(|| members.str("text").map(|text| text.into_owned()))?
}

fn blank(text: &str) -> bool {
    text.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> EventId {
        EventId([n; 16])
    }

    fn sent(role: Role, content: &str) -> Option<String> {
        let content = json::parse(content).expect("json");
        ToolUseIds::default().repair(id(1), role, &content).map(|raw| raw.get().to_owned())
    }

    #[test]
    fn what_can_be_sent_is_not_touched() {
        for content in [
            r#""a text""#,
            r#"[ {"type":"text", "text":"a"}, {"type":"text","text":" \n"}]"#,
            r#"[{"type":"image","source":{"type":"url","url":"u"}}]"#,
            r#"[{"type":"tool_result","tool_use_id":"t1","content":"x"},{"type":"tool_result","tool_use_id":"t2"}]"#,
            r#"[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"x"}],"is_error":true}]"#,
            r#"[{"type":"something new","n":1.10}]"#,
        ] {
            let raw = json::parse(content).expect("json");
            let got = ToolUseIds::default().repair(id(1), Role::User, &raw).expect("sent");
            assert!(Arc::ptr_eq(&got, &raw), "{content}");
        }
    }

    #[test]
    fn blank_texts_are_left_out() {
        for (role, said, expected) in [
            (Role::User, r#"" ""#, None),
            (Role::User, "[]", None),
            (Role::User, r#"[{"type":"text","text":"\n"}]"#, None),
            (
                Role::User,
                r#"[{"type":"text","text":" "},{"type":"image"},{"type":"text","text":""}]"#,
                Some(r#"[{"type":"image"}]"#),
            ),
            (
                Role::User,
                r#"[{"type":"text","text":""},{"type":"text","text":" "},{"type":"text","text":"a"}]"#,
                Some(r#"[{"type":"text","text":" "},{"type":"text","text":"a"}]"#),
            ),
            (Role::Assistant, r#"[{"type":"text","text":""}]"#, None),
            (
                Role::Assistant,
                r#"[{"type":"text","text":" "},{"type":"text","text":"a"}]"#,
                Some(r#"[{"type":"text","text":"a"}]"#),
            ),
        ] {
            assert_eq!(sent(role, said).as_deref(), expected, "{said}");
        }
    }

    #[test]
    fn results_have_a_content_that_formats_know() {
        for (members, expected) in [
            (r#""is_error":true"#, r#""is_error":true,"content":"(no output)""#),
            (r#""content":null,"is_error":true"#, r#""is_error":true,"content":"(no output)""#),
            (r#""content":" ","is_error":true"#, r#""is_error":true,"content":"(no output)""#),
            (r#""content":[],"is_error":true"#, r#""is_error":true,"content":"(no output)""#),
            (r#""content":" ""#, r#""content":"""#),
            (r#""content":[{"type":"text","text":""}]"#, r#""content":"""#),
            (r#""content":7"#, r#""content":"7""#),
            (r#""content":{"a":[1]}"#, r#""content":"{\"a\":[1]}""#),
            (r#""content":["a","b"]"#, r#""content":"[\"a\",\"b\"]""#),
            (r#""content":[{"a":1}]"#, r#""content":"[{\"a\":1}]""#),
            (r#""content":"x","is_error":null"#, r#""content":"x""#),
            (
                r#""content":[{"type":"text","text":" "},{"type":"text","text":"a"}]"#,
                r#""content":[{"type":"text","text":"a"}]"#,
            ),
        ] {
            let said = format!(r#"[{{"type":"tool_result","tool_use_id":"t",{members}}}]"#);
            let expected = format!(r#"[{{"type":"tool_result","tool_use_id":"t",{expected}}}]"#);
            assert_eq!(sent(Role::User, &said), Some(expected));
        }
    }

    #[test]
    fn ids_fit_and_are_used_once() {
        let mut ids = ToolUseIds::default();
        let mut round = |n: u8, said: &str| {
            let said = json::encode(said);
            let uses = json::built(format!(r#"[{{"type":"tool_use","id":{said},"name":"a","input":{{}}}}]"#));
            let results = json::built(format!(r#"[{{"type":"tool_result","tool_use_id":{said},"content":"x"}}]"#));
            let uses = ids.repair(id(n), Role::Assistant, &uses).expect("sent");
            let results = ids.repair(id(n), Role::User, &results).expect("sent");
            let member = |raw: &Raw, key: &str| {
                Object::parse(json::array(raw).expect("an array")[0])
                    .expect("an object")
                    .str(key)
                    .expect("a string")
                    .into_owned()
            };
            assert_eq!(member(&uses, "id"), member(&results, "tool_use_id"));
            member(&uses, "id")
        };
        assert_eq!(round(1, "toolu_1"), "toolu_1");
        assert_eq!(round(2, "toolu_1"), format!("u{}_0", "02".repeat(16)), "used before");
        assert_eq!(round(3, ""), format!("u{}_0", "03".repeat(16)));
        assert_eq!(round(4, "functions.a:0"), format!("u{}_0", "04".repeat(16)));
        assert_eq!(round(5, &"x".repeat(41)), format!("u{}_0", "05".repeat(16)));
        assert_eq!(round(6, &"x".repeat(40)), "x".repeat(40));
    }

    #[test]
    fn names_fit_and_the_servers_own_members_go() {
        let said = r#"[{"type":"tool_use","id":"t","name":"fs.read","input":{"b":1.10},"dispatch":"mcp"}]"#;
        let expected = r#"[{"type":"tool_use","id":"t","input":{"b":1.10},"name":"fs_read"}]"#;
        assert_eq!(sent(Role::Assistant, said).as_deref(), Some(expected));
    }
}
