//! Markers: texts by which the built-in provider knows which turn a request belongs to.
//!
//! A marker is part of the message, so that it reaches the provider through any server. A request repeats the markers
//! of earlier turns with the conversation; the last one is that of the turn itself, because answers contain no marker.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

const OPENING: &[u8] = b"[turn ";
const DIGITS: usize = 16;
const ROUNDS: usize = 2;

/// The size of a marker in bytes.
pub(crate) const SIZE: usize = OPENING.len() + DIGITS + 1 + ROUNDS + 1;

/// The marker of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Marker {
    /// A number that no other turn has, in this run or in others against the same server.
    pub turn: u64,
    /// How many rounds of tools the provider shall ask for before it answers.
    pub rounds: u8,
}

impl Marker {
    /// A message of `bytes` bytes that begins with the marker. It is never shorter than the marker.
    pub(crate) fn message(self, bytes: usize) -> String {
        let mut text = format!("[turn {:016x}/{:02x}]", self.turn, self.rounds);
        filler(&mut text, bytes);
        text
    }

    /// Finds the last marker in the body of a request.
    pub(crate) fn last_in(body: &[u8]) -> Option<Marker> {
        let mut end = body.len();
        while end >= SIZE {
            let start = body[..end].windows(OPENING.len()).rposition(|window| window == OPENING)?;
            if let Some(marker) = body.get(start..start + SIZE).and_then(Marker::parse) {
                return Some(marker);
            }
            end = start + OPENING.len() - 1;
        }
        None
    }

    fn parse(text: &[u8]) -> Option<Marker> {
        let text = std::str::from_utf8(text.strip_prefix(OPENING)?).ok()?;
        let (turn, rounds) = text.strip_suffix(']')?.split_once('/')?;
        Some(Marker { turn: u64::from_str_radix(turn, 16).ok()?, rounds: u8::from_str_radix(rounds, 16).ok()? })
    }
}

/// Lengthens `text` to `bytes` bytes with words, so that it behaves like text when it is compressed or split into
/// tokens.
pub(crate) fn filler(text: &mut String, bytes: usize) {
    const WORDS: &str = " the quick brown fox jumps over the lazy dog and";
    while text.len() < bytes {
        let missing = bytes - text.len();
        text.push_str(&WORDS[..missing.min(WORDS.len())]);
    }
}

/// A random number, for names that must differ between runs.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_marker_of_a_conversation_is_found() {
        let first = Marker { turn: 7, rounds: 0 };
        let second = Marker { turn: u64::MAX, rounds: 3 };
        let body = format!("{{\"a\":\"{}\",\"b\":\"{}\",\"c\":\"[turn x\"}}", first.message(65), second.message(0));
        assert_eq!(Marker::last_in(body.as_bytes()), Some(second));
        assert_eq!(Marker::last_in(first.message(SIZE).as_bytes()), Some(first));
        assert_eq!(Marker::last_in(b"[turn "), None);
        assert_eq!(Marker::last_in(b""), None);
    }

    #[test]
    fn a_message_has_the_size_asked_for() {
        let marker = Marker { turn: 1, rounds: 1 };
        for bytes in [0, SIZE, SIZE + 1, 65, 1000] {
            assert_eq!(marker.message(bytes).len(), bytes.max(SIZE));
        }
    }
}
