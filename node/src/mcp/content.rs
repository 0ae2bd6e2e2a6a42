//! Tool results as the model sees them: the `content` of a `tool_result`, in blocks that every provider accepts.
//!
//! Texts are copied as they are written in JSON, up to a limit; a text is never blank, because providers refuse that.
//! Images of the types that providers know become image blocks; everything else becomes a text that says what it was.

use engine::json::{Object, Raw, array, built, encode, string};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The most bytes of text in one result; what is longer is truncated and marked as such.
const MAX_TEXT: usize = 1024 * 1024;
/// The most characters of base64 in one image; providers refuse more.
const MAX_IMAGE: usize = 5 * 1024 * 1024;
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// The content of a `CallToolResult`. Its `structuredContent` is used only if there is nothing else.
pub(crate) fn content_blocks(result: &Raw) -> Raw {
    let object = Object::parse(result).unwrap_or_default();
    let mut blocks = Blocks { text: String::from("["), room: MAX_TEXT, cut: 0 };
    for block in object.get("content").and_then(array).unwrap_or_default() {
        match Object::parse(block) {
            Some(members) => blocks.add(block, &members),
            None => blocks.text(block.get()),
        }
    }
    if blocks.is_empty()
        && let Some(structured) = object.get("structuredContent").filter(|value| value.get() != "null")
    {
        blocks.text(structured.get());
    }
    blocks.finish()
}

struct Blocks {
    text: String,
    room: usize,
    cut: usize,
}

impl Blocks {
    fn add(&mut self, block: &RawValue, members: &Object<'_>) {
        match members.str("type").as_deref() {
            Some("text") => match members.get("text") {
                Some(text) => self.text_token(text),
                None => self.text(block.get()),
            },
            Some("image") => self.image(members),
            Some("audio") => self.text(&not_shown("audio", members, "data")),
            Some("resource") => self.resource(block, members),
            Some("resource_link") => self.text(&link(members)),
            _ => self.text(block.get()),
        }
    }

    /// Adds a JSON string, which keeps its escapes unless it is truncated.
    fn text_token(&mut self, token: &RawValue) {
        let Some(text) = string(token) else { return self.text(token.get()) };
        if text.trim().is_empty() {
            return;
        }
        if text.len() <= self.room {
            self.room -= text.len();
            self.push(r#"{"type":"text","text":"#, token.get(), "}");
        } else {
            self.text(&text);
        }
    }

    fn text(&mut self, text: &str) {
        let kept = &text[..text.floor_char_boundary(self.room)];
        self.room -= kept.len();
        self.cut += text.len() - kept.len();
        if kept.len() < text.len() {
            // Nothing that follows is shown, because text after a gap would mislead.
            self.room = 0;
        }
        if !kept.trim().is_empty() {
            self.push(r#"{"type":"text","text":"#, encode(kept).get(), "}");
        }
    }

    fn image(&mut self, members: &Object<'_>) {
        let kind = members.str("mimeType").map(|kind| kind.to_ascii_lowercase());
        let data = members.get("data").filter(|data| (3..=MAX_IMAGE).contains(&data.get().len()));
        match (kind, data) {
            (Some(kind), Some(data)) if IMAGES.contains(&kind.as_str()) && string(data).is_some() => {
                let head = format!(r#"{{"type":"image","source":{{"type":"base64","media_type":"{kind}","data":"#);
                self.push(&head, data.get(), "}}");
            }
            _ => self.text(&not_shown("image", members, "data")),
        }
    }

    fn resource(&mut self, block: &RawValue, members: &Object<'_>) {
        let Some(resource) = members.get("resource").and_then(Object::parse) else { return self.text(block.get()) };
        match resource.str("text") {
            Some(text) => {
                let uri = resource.str("uri").unwrap_or_default();
                self.text(&format!("[resource {uri}]\n{text}"));
            }
            None => self.text(&not_shown("resource", &resource, "blob")),
        }
    }

    fn push(&mut self, head: &str, value: &str, tail: &str) {
        if !self.is_empty() {
            self.text.push(',');
        }
        self.text.push_str(head);
        self.text.push_str(value);
        self.text.push_str(tail);
    }

    fn is_empty(&self) -> bool {
        self.text.len() == 1
    }

    fn finish(mut self) -> Raw {
        if self.cut > 0 {
            let note = format!("[output cut: {} more bytes are not shown]", self.cut);
            self.push(r#"{"type":"text","text":"#, encode(&note).get(), "}");
        }
        if self.is_empty() {
            self.push(r#"{"type":"text","text":"#, r#""(no output)""#, "}");
        }
        self.text.push(']');
        built(self.text)
    }
}

fn not_shown(what: &str, members: &Object<'_>, data: &str) -> String {
    let uri = members.str("uri").map(|uri| format!(" {uri}")).unwrap_or_default();
    let kind = members.str("mimeType").unwrap_or(Cow::Borrowed("unknown type"));
    let size = members.str(data).map_or(0, |data| data.len());
    format!("[{what}{uri} ({kind}, {size} characters of base64) is not shown]")
}

fn link(members: &Object<'_>) -> String {
    let mut text = format!("[resource link] {}", members.str("uri").unwrap_or_default());
    for member in ["name", "title", "description", "mimeType"] {
        if let Some(value) = members.str(member) {
            text.push_str(&format!("\n{member}: {value}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::json::parse;

    fn shown(result: &str) -> String {
        content_blocks(&parse(result).unwrap()).get().to_owned()
    }

    fn text(text: &str) -> String {
        format!(r#"[{{"type":"text","text":{}}}]"#, encode(text).get())
    }

    #[test]
    fn texts_are_verbatim_and_never_blank() {
        let result = r#"{"content":[{"type":"text","text":"a\u00e9\n1.10"},{"type":"text","text":" \n"}]}"#;
        assert_eq!(shown(result), r#"[{"type":"text","text":"a\u00e9\n1.10"}]"#);
        for nothing in [r#"{"content":[]}"#, "{}", r#"{"content":[{"type":"text","text":""}]}"#] {
            assert_eq!(shown(nothing), text("(no output)"), "{nothing}");
        }
    }

    #[test]
    fn structured_content_counts_only_alone() {
        assert_eq!(shown(r#"{"content":[],"structuredContent":{"n":1.10}}"#), text(r#"{"n":1.10}"#));
        let both = r#"{"content":[{"type":"text","text":"x"}],"structuredContent":{"n":1}}"#;
        assert_eq!(shown(both), text("x"));
    }

    #[test]
    fn images_of_known_kinds_are_shown() {
        let block = |kind: &str| format!(r#"{{"content":[{{"type":"image","mimeType":"{kind}","data":"AAAA"}}]}}"#);
        assert_eq!(
            shown(&block("image/PNG")),
            r#"[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]"#
        );
        assert_eq!(
            shown(&block("image/svg+xml")),
            text("[image (image/svg+xml, 4 characters of base64) is not shown]")
        );
    }

    #[test]
    fn other_kinds_become_text() {
        let cases = [
            (
                r#"{"type":"audio","mimeType":"audio/wav","data":"AA"}"#,
                "[audio (audio/wav, 2 characters of base64) is not shown]",
            ),
            (r#"{"type":"resource","resource":{"uri":"file:///a","text":"hello"}}"#, "[resource file:///a]\nhello"),
            (
                r#"{"type":"resource","resource":{"uri":"file:///a","blob":"AAA"}}"#,
                "[resource file:///a (unknown type, 3 characters of base64) is not shown]",
            ),
            (r#"{"type":"resource_link","uri":"file:///a","name":"a"}"#, "[resource link] file:///a\nname: a"),
            (r#"{"type":"hologram","x":1.10}"#, r#"{"type":"hologram","x":1.10}"#),
        ];
        for (block, expected) in cases {
            assert_eq!(shown(&format!(r#"{{"content":[{block}]}}"#)), text(expected), "{block}");
        }
    }

    #[test]
    fn long_output_is_cut_at_a_character_and_marked() {
        let long = "é".repeat(MAX_TEXT);
        let result = format!(r#"{{"content":[{{"type":"text","text":"x{long}"}},{{"type":"text","text":"tail"}}]}}"#);
        let shown: Vec<serde_json::Value> = serde_json::from_str(&shown(&result)).unwrap();
        assert_eq!(shown.len(), 2);
        assert_eq!(shown[0]["text"].as_str().unwrap().len(), MAX_TEXT - 1);
        let cut = 2 * MAX_TEXT + 1 - (MAX_TEXT - 1) + 4;
        assert_eq!(shown[1]["text"], format!("[output cut: {cut} more bytes are not shown]"));
    }
}
