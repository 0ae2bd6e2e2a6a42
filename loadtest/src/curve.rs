//! How the server's own share of a turn's time changes with the number of the turn in its session.
//!
//! The whole conversation is sent to the provider in each turn, and comes back in the terminal frame. So a longer
//! conversation costs more even without a server: each row says how many bytes were moved and what moving them costs on
//! this machine. What is left of the own share must not grow.

use serde::Serialize;

use crate::echo::{Echo, Exchange};
use crate::run::Turn;
use crate::stats::{Latency, round};

/// How many exchanges are measured for each size.
const SAMPLES: u32 = 200;

/// The figures of the turns from `first_turn` to `last_turn` of every session.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub first_turn: u32,
    pub last_turn: u32,
    pub own_mean_ms: f64,
    pub own_p50_ms: f64,
    /// The mean size of the terminal frame. The next two are those of the whole stream and of the turn's last request
    /// to the provider.
    pub terminal_bytes: u64,
    pub stream_bytes: u64,
    pub request_bytes: u64,
    /// The median time of bare exchanges that move the same bytes: those of the caller and those of the provider.
    pub bare_ms: f64,
    /// The median own share without the time of the bare exchanges.
    pub rest_ms: f64,
}

/// The ranges of turns that get a row each, for sessions of `turns` turns.
pub(crate) fn ranges(turns: u32) -> Vec<(u32, u32)> {
    let mut ranges = vec![(1, turns.min(10))];
    if turns >= 15 {
        ranges.push((6, 15));
    }
    if turns >= 100 {
        ranges.extend((0..10).map(|tenth| (tenth * turns / 10 + 1, (tenth + 1) * turns / 10)));
    }
    if turns > 20 {
        ranges.push((turns - 9, turns));
    }
    ranges
}

pub(crate) async fn rows(turns: &[Turn], echo: &Echo, length: u32, message_bytes: usize) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (first_turn, last_turn) in ranges(length) {
        let within: Vec<&Turn> = turns.iter().filter(|turn| (first_turn..=last_turn).contains(&turn.number)).collect();
        if within.is_empty() {
            continue;
        }
        let own: Latency = within.iter().map(|turn| turn.own).collect();
        let mean = |bytes: fn(&Turn) -> u64| within.iter().map(|turn| bytes(turn)).sum::<u64>() / within.len() as u64;
        let (terminal_bytes, stream_bytes) = (mean(|turn| turn.terminal_bytes), mean(|turn| turn.stream_bytes));
        let request_bytes = mean(|turn| turn.request_bytes);
        let answered = Exchange { request_bytes: message_bytes, answer_bytes: size(stream_bytes) };
        let asked = Exchange { request_bytes: size(request_bytes), answer_bytes: message_bytes };
        let bare_ms =
            echo.measure(1, SAMPLES, answered).await?.p50_ms() + echo.measure(1, SAMPLES, asked).await?.p50_ms();
        let own = own.summary();
        rows.push(Row {
            first_turn,
            last_turn,
            own_mean_ms: own.mean_ms,
            own_p50_ms: own.p50_ms,
            terminal_bytes,
            stream_bytes,
            request_bytes,
            bare_ms: round(bare_ms),
            rest_ms: round(own.p50_ms - bare_ms),
        });
    }
    Ok(rows)
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_the_beginning_the_tenths_and_the_end() {
        assert_eq!(ranges(5), [(1, 5)]);
        assert_eq!(ranges(30), [(1, 10), (6, 15), (21, 30)]);
        let thousand = ranges(1000);
        assert_eq!((thousand.len(), thousand[2], thousand[11], thousand[12]), (13, (1, 100), (901, 1000), (991, 1000)));
    }
}
