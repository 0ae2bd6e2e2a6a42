//! Measures what one durable write costs on the disk of a run. No commit can be faster, and often it is most of a turn.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::stats::Latency;

const WRITES: usize = 200;
const BLOCK: [u8; 4096] = [b'x'; 4096];

/// Appends blocks to a file in `directory`, each synchronised to the disk, and removes the file.
pub(crate) fn durable_writes(directory: &Path) -> anyhow::Result<Latency> {
    let path = directory.join("durable-writes");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
    let mut latency = Latency::new();
    for _ in 0..WRITES {
        let begin = Instant::now();
        file.write_all(&BLOCK)?;
        file.sync_data()?;
        latency.record(begin.elapsed());
    }
    std::fs::remove_file(&path)?;
    Ok(latency)
}
