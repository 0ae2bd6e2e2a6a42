//! Ports that stay reserved, across processes, while a server is stopped and started again.
//!
//! They lie below the range that the kernel hands out by itself, so neither a mock on port 0 nor an outgoing connection
//! can take one in between; a locked file per port keeps other tests away.

use std::fs::File;
use std::net::TcpListener;

/// First and last port that may be taken.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// A reserved port on 127.0.0.1.
#[derive(Debug)]
pub struct Port {
    /// The number.
    pub number: u16,
    _lock: File,
}

impl Port {
    /// Takes one that nobody uses.
    pub fn reserve() -> Self {
        let dir = std::env::temp_dir().join("bae-test-ports");
        std::fs::create_dir_all(&dir).expect("a directory for port locks");
        let span = u32::from(RANGE.end - RANGE.start);
        let first = std::process::id().wrapping_mul(7919) % span;
        for step in 0..span {
            let number = RANGE.start + ((first + step * 13) % span) as u16;
            let Ok(lock) = File::create(dir.join(number.to_string())) else { continue };
            if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _lock: lock };
            }
        }
        panic!("no free port in {RANGE:?}");
    }
}
