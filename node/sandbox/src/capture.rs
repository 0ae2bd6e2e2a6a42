//! The output of a command as text: kept up to a bound, counted beyond it.

/// What a command left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// The exit code, as the runtime says; 128 and the signal for a process that was killed.
    pub exit_code: i64,
}

/// One stream of output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// The beginning of the stream, as many bytes of text as were asked for at most. Bytes that are not UTF-8 are shown as U+FFFD.
    pub text: String,
    /// Bytes of the stream that came after that, and were dropped.
    pub dropped: u64,
}

/// Collects one stream. It holds the text and no copy of it, however much is pushed.
#[derive(Debug)]
pub(crate) struct Capture {
    captured: Captured,
    cap: usize,
    /// The beginning of a character whose end has not come yet.
    partial: Vec<u8>,
}

impl Capture {
    pub(crate) fn new(cap: usize) -> Self {
        Self { captured: Captured::default(), cap, partial: Vec::new() }
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        // At most three bytes are kept for later, so this takes few of the new ones.
        while !self.partial.is_empty() && !bytes.is_empty() {
            self.partial.push(bytes[0]);
            bytes = &bytes[1..];
            let whole = std::mem::take(&mut self.partial);
            self.decode(&whole);
        }
        self.decode(bytes);
    }

    /// The captured text. A character that the bound cut in two is dropped whole.
    pub(crate) fn finish(mut self) -> Captured {
        if !self.partial.is_empty() {
            let length = self.partial.len();
            self.append("\u{FFFD}", length);
        }
        self.captured
    }

    fn decode(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.append(chunk.valid(), chunk.valid().len());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && may_go_on(invalid) {
                self.partial = invalid.to_vec();
            } else if !invalid.is_empty() {
                self.append("\u{FFFD}", invalid.len());
            }
        }
    }

    /// Keeps what fits of a text that stands for so many bytes of the stream. After something was dropped, all is.
    fn append(&mut self, text: &str, bytes: usize) {
        let kept = &mut self.captured.text;
        let room = if self.captured.dropped > 0 { 0 } else { text.floor_char_boundary(self.cap - kept.len()) };
        if room > kept.capacity() - kept.len() {
            let wanted = (kept.len() + room).max(2 * kept.capacity()).min(self.cap);
            kept.reserve_exact(wanted - kept.len());
        }
        kept.push_str(&text[..room]);
        // Text that is shown for other bytes is one character, kept whole or not at all.
        let left = if room == text.len() { 0 } else { bytes - room };
        self.captured.dropped += left as u64;
    }
}

/// Whether bytes that are no character may become one by more bytes.
fn may_go_on(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(cap: usize, chunks: &[&[u8]]) -> Captured {
        let mut capture = Capture::new(cap);
        chunks.iter().for_each(|chunk| capture.push(chunk));
        capture.finish()
    }

    #[test]
    fn a_stream_within_its_bound_is_kept_whole() {
        assert_eq!(capture(6, &[b"abc", "dé".as_bytes()]), Captured { text: "abcdé".into(), dropped: 0 });
        assert_eq!(capture(0, &[b""]), Captured { text: String::new(), dropped: 0 });
    }

    #[test]
    fn what_is_beyond_the_bound_is_counted() {
        assert_eq!(capture(4, &[b"abc", b"def", b"ghi"]), Captured { text: "abcd".into(), dropped: 5 });
    }

    #[test]
    fn no_character_is_cut_in_two_by_the_bound() {
        let text = "a€b😀c".as_bytes();
        for cap in 0..=text.len() {
            let captured = capture(cap, &[text]);
            assert!(!captured.text.contains('\u{FFFD}'), "{cap}: {captured:?}");
            assert_eq!(captured.text.len() as u64 + captured.dropped, text.len() as u64);
        }
    }

    #[test]
    fn characters_that_arrive_in_pieces_are_put_together() {
        let text = "a€b😀c\u{FFFD}d".as_bytes();
        for pieces in 1..=4 {
            let chunks: Vec<&[u8]> = text.chunks(pieces).collect();
            assert_eq!(capture(100, &chunks), Captured { text: "a€b😀c\u{FFFD}d".into(), dropped: 0 });
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_shown_as_such_within_the_bound() {
        assert_eq!(capture(9, &[b"a\xFFb"]).text, "a\u{FFFD}b");
        assert_eq!(capture(9, &[b"a\xF0\x9F", b"b"]).text, "a\u{FFFD}b");
        assert_eq!(capture(9, &[b"a\xE2\x82"]).text, "a\u{FFFD}");
        assert_eq!(capture(2, &[b"a\xFFb"]), Captured { text: "a".into(), dropped: 2 });
        let binary: Vec<u8> = (0..100_000u32).map(|n| ((n * 7919) >> 3) as u8).collect();
        let whole = String::from_utf8_lossy(&binary);
        for size in [1, 7, 1000, 100_000] {
            let chunks: Vec<&[u8]> = binary.chunks(size).collect();
            assert_eq!(capture(usize::MAX >> 2, &chunks).text, whole);
            let cut = capture(1000, &chunks);
            assert!(whole.starts_with(&cut.text) && (998..=1000).contains(&cut.text.len()) && cut.dropped > 0);
        }
    }

    #[test]
    fn much_output_costs_no_more_than_its_bound() {
        let mut capture = Capture::new(1 << 20);
        for _ in 0..100 {
            capture.push(&[b'x'; 1 << 20]);
        }
        assert!(capture.captured.text.capacity() <= 1 << 20);
        assert_eq!(capture.finish().dropped, 99 << 20);
    }
}
