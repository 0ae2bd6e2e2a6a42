//! The demo model's memory: its summaries list the user's messages in a form that it can parse again, so that it still
//! knows them after a compaction.

use super::conversation::Conversation;

/// The user message that the server puts before a summary. The user has not written it.
pub(crate) const PREAMBLE: &str = "The earlier part of this conversation was compacted. A summary follows.";

const HEAD: &str = "Summary of the conversation so far.";
const LISTED: usize = 50;
const QUOTED: usize = 200;

/// A summary of everything before the instruction that asked for it.
pub(crate) fn summary(conversation: &Conversation) -> String {
    let said = &conversation.statements[..conversation.statements.len().saturating_sub(1)];
    let mut lines = vec![HEAD.to_owned()];
    lines.push(match said.len() {
        0 => "The user has said nothing yet.".to_owned(),
        1 => "The user sent one message:".to_owned(),
        count => format!("The user sent {count} messages:"),
    });
    let left_out = said.len().saturating_sub(LISTED);
    for (place, statement) in said.iter().enumerate().skip(left_out) {
        // As a JSON string, so that any message stays on one line and can be parsed again.
        lines.push(format!("{}. {}", place + 1, serde_json::Value::from(shortened(statement, QUOTED))));
    }
    if !conversation.called_before.is_empty() {
        let mut counted: Vec<(&str, usize)> = Vec::new();
        for tool in &conversation.called_before {
            match counted.iter_mut().find(|(name, _)| name == tool) {
                Some((_, count)) => *count += 1,
                None => counted.push((tool, 1)),
            }
        }
        let tools: Vec<String> = counted.iter().map(|(name, count)| format!("{name} ({count})")).collect();
        lines.push(format!("Tools used: {}.", tools.join(", ")));
    }
    if let Some(answer) = conversation.last_answer.as_deref().filter(|answer| !answer.starts_with(HEAD)) {
        lines.push(format!("The last answer was: {}", shortened(answer, QUOTED).replace('\n', " ")));
    }
    lines.join("\n")
}

/// The user's messages that a summary lists; `None` when the text is no summary.
pub(crate) fn recall(text: &str) -> Option<Vec<String>> {
    let listed = text.strip_prefix(HEAD)?.lines().filter_map(|line| {
        let (number, quoted) = line.split_once(". ")?;
        number.parse::<usize>().ok()?;
        serde_json::from_str::<String>(quoted).ok()
    });
    Some(listed.collect())
}

/// Whether a message asks for a summary of the conversation, as the instruction of a compaction does.
pub(crate) fn asks_for_summary(text: &str) -> bool {
    let text = text.to_lowercase();
    ["summary", "summarize", "summarise", "summarizing"].iter().any(|word| text.contains(word))
}

/// At most `limit` characters, with an ellipsis where something was cut.
pub(crate) fn shortened(text: &str, limit: usize) -> String {
    let text = text.trim();
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_summary_can_be_remembered() {
        let messages = json!([
            {"role": "user", "content": "first \"line\"\nand second"},
            {"role": "assistant", "content": "You said it."},
            {"role": "user", "content": "then this"},
            {"role": "assistant", "content": "You said that."},
            {"role": "user", "content": "Write a summary of the conversation."},
        ]);
        let conversation = Conversation::read(&json!({"model": "demo", "messages": messages})).unwrap();
        let summary = summary(&conversation);
        assert_eq!(recall(&summary).unwrap(), ["first \"line\"\nand second", "then this"]);
        assert!(summary.contains("The last answer was: You said that."), "{summary}");

        let messages = json!([
            {"role": "user", "content": PREAMBLE},
            {"role": "assistant", "content": [{"type": "text", "text": summary}]},
            {"role": "user", "content": "and now?"},
        ]);
        let conversation = Conversation::read(&json!({"model": "demo", "messages": messages})).unwrap();
        assert_eq!(conversation.statements, ["first \"line\"\nand second", "then this", "and now?"]);
    }

    #[test]
    fn other_texts_are_no_summary() {
        assert_eq!(recall("You said: \"1. x\""), None);
    }

    #[test]
    fn shortening_counts_characters() {
        assert_eq!(shortened("héllo", 2), "hé…");
        assert_eq!(shortened("héllo", 5), "héllo");
    }
}
