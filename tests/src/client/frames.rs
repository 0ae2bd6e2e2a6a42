//! The answer of an `/rpc` call: frame by frame while it streams, and as a whole when it is over.

use super::types;
use crate::poll::within;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde_json::Value;

/// An open NDJSON stream. Dropping it cuts the connection.
///
/// Lines are split here and not by `tokio_util`'s `LinesCodec`: that one strips a carriage return and gives out an
/// unfinished last line, and tests must see each byte and each cut as it came.
pub struct Frames {
    bytes: BoxStream<'static, reqwest::Result<Vec<u8>>>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames").field("buffer", &String::from_utf8_lossy(&self.buffer)).finish_non_exhaustive()
    }
}

impl Frames {
    pub(super) fn new(answer: reqwest::Response) -> Self {
        let bytes = answer.bytes_stream().map(|chunk| chunk.map(|bytes| bytes.to_vec()));
        Self { bytes: bytes.boxed(), buffer: Vec::new() }
    }

    /// The next line, empty ones included; `None` at the end, clean or not.
    pub async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                return Some(String::from_utf8(line[..at].to_vec()).expect("a line in UTF-8"));
            }
            match self.bytes.next().await {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// The next frame within the deadline; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            let line = within("the next frame", self.line()).await?;
            if !line.is_empty() {
                return Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")));
            }
        }
    }

    /// The next event's type, skipping nothing.
    pub async fn next_type(&mut self) -> String {
        let frame = self.next().await.expect("another frame");
        frame["params"]["event_type"].as_str().unwrap_or_else(|| panic!("not an event: {frame}")).to_owned()
    }

    /// Reads events until one of that type; returns all of them.
    pub async fn until_type(&mut self, what: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let frame =
                self.next().await.unwrap_or_else(|| panic!("the stream ended before {what}: {:?}", types(&events)));
            assert_eq!(frame["method"], "session.event", "{frame}");
            let done = frame["params"]["event_type"] == what;
            events.push(frame["params"].clone());
            if done {
                return events;
            }
        }
    }

    /// Reads to the end without parsing: the lines as they came.
    pub async fn lines(mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = within("the next line", self.line()).await {
            lines.push(line);
        }
        lines
    }

    /// Reads to the end.
    pub async fn finish(mut self) -> Outcome {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        Outcome { frames }
    }

    /// Whether nothing (no byte) has come, and nothing does within a moment. For *proving* silence use an event that
    /// would have come in between; this only adds that no byte was written before it.
    pub fn is_silent(&mut self) -> bool {
        use futures_util::FutureExt;
        self.buffer.is_empty() && self.bytes.next().now_or_never().is_none()
    }
}

/// All frames of a finished call.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// In order.
    pub frames: Vec<Value>,
}

impl Outcome {
    /// The terminal frame's result.
    pub fn result(&self) -> &Value {
        let last = self.frames.last().unwrap_or_else(|| panic!("an empty stream"));
        last.get("result").unwrap_or_else(|| panic!("no result: {last}"))
    }

    /// The terminal frame's error, as (code, message).
    pub fn error(&self) -> (i64, String) {
        let last = self.frames.last().unwrap_or_else(|| panic!("an empty stream"));
        let error = last.get("error").unwrap_or_else(|| panic!("no error: {last}"));
        (error["code"].as_i64().expect("a code"), error["message"].as_str().expect("a message").to_owned())
    }

    /// `result.events`.
    pub fn events(&self) -> Vec<Value> {
        self.result()["events"].as_array().expect("result.events").clone()
    }

    /// The types of `result.events`.
    pub fn types(&self) -> Vec<String> {
        types(&self.events())
    }

    /// The text of the final message's only text block.
    pub fn text(&self) -> String {
        let content = &self.result()["message"]["content"];
        content[0]["text"].as_str().unwrap_or_else(|| panic!("no text: {content}")).to_owned()
    }

    /// The events that were streamed before the terminal frame.
    pub fn live(&self) -> Vec<Value> {
        self.frames.iter().filter(|f| f["method"] == "session.event").map(|f| f["params"].clone()).collect()
    }
}
