//! The figures of a run, as a table for people and as JSON for programs. Both contain the same figures.

use std::path::Path;

use anyhow::Context;
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::curve::Row;
use crate::run::Failures;
use crate::stats::{Summary, round};

#[derive(Serialize)]
pub(crate) struct Report {
    pub command: &'static str,
    pub settings: Settings,
    /// The measured times, in the order of the table.
    pub latencies: Vec<Latencies>,
    /// The figures that are a single number each.
    pub figures: Vec<Figure>,
    pub failures: Failures,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<Row>,
}

#[derive(Default, Serialize)]
pub(crate) struct Settings {
    pub sessions: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u32>,
    pub message_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
}

#[derive(Serialize)]
pub(crate) struct Latencies {
    pub name: &'static str,
    #[serde(flatten)]
    pub summary: Summary,
}

#[derive(Serialize)]
pub(crate) struct Figure {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
}

impl Figure {
    pub(crate) fn new(name: &'static str, value: f64, unit: &'static str) -> Figure {
        Figure { name, value: round(value), unit }
    }
}

impl Report {
    /// Writes the JSON to the file that was asked for, and shows the tables unless the JSON went to standard output.
    pub(crate) fn publish(&self, json: Option<&Path>) -> anyhow::Result<()> {
        let rendered = || serde_json::to_string_pretty(self).context("the report cannot be written as JSON");
        match json {
            Some(path) if path == Path::new("-") => println!("{}", rendered()?),
            Some(path) => {
                std::fs::write(path, rendered()? + "\n").with_context(|| format!("cannot write {}", path.display()))?;
                println!("{}", self.tables());
            }
            None => println!("{}", self.tables()),
        }
        Ok(())
    }

    /// Whether no call failed.
    pub(crate) fn clean(&self) -> bool {
        self.failures.is_empty()
    }

    fn tables(&self) -> String {
        let mut parts = vec![self.heading(), self.latency_table().to_string()];
        if !self.figures.is_empty() {
            parts.push(self.figure_table().to_string());
        }
        if !self.curve.is_empty() {
            parts.push(
                "Own share by the number of the turn (bare: exchanges of the same bytes without a product)".into(),
            );
            parts.push(self.curve_table().to_string());
        }
        if self.failures.is_empty() {
            parts.push("No call failed.".into());
        } else {
            parts.push(self.failure_table().to_string());
        }
        parts.join("\n")
    }

    fn heading(&self) -> String {
        let Settings { sessions, turns, calls, message_bytes, answer_bytes, provider_ms, rounds } = &self.settings;
        let mut words = vec![format!("{}: {sessions} at a time", self.command)];
        let optional = [
            turns.map(|turns| format!("{turns} turns each")),
            calls.map(|calls| format!("{calls} calls each")),
            Some(format!("messages of {message_bytes} bytes")),
            answer_bytes.map(|bytes| format!("answers of {bytes} bytes")),
            provider_ms.map(|time| format!("provider {time} ms")),
            rounds.filter(|rounds| *rounds > 0).map(|rounds| format!("{rounds} tool rounds")),
        ];
        words.extend(optional.into_iter().flatten());
        words.join(", ")
    }

    fn latency_table(&self) -> Table {
        let mut table = table(&["ms", "p50", "p90", "p99", "max", "mean", "calls"]);
        for Latencies { name, summary } in &self.latencies {
            let Summary { count, p50_ms, p90_ms, p99_ms, max_ms, mean_ms } = *summary;
            let times = [p50_ms, p90_ms, p99_ms, max_ms, mean_ms].map(|time| format!("{time:.3}"));
            let mut cells = vec![(*name).to_owned()];
            cells.extend(times);
            cells.push(count.to_string());
            table.add_row(cells);
        }
        align_right(table)
    }

    fn figure_table(&self) -> Table {
        let mut table = table(&["", "value", "unit"]);
        for Figure { name, value, unit } in &self.figures {
            table.add_row([(*name).to_owned(), value.to_string(), (*unit).to_owned()]);
        }
        align_right(table)
    }

    fn curve_table(&self) -> Table {
        let mut table =
            table(&["turns", "own mean", "own p50", "bare", "rest", "terminal frame", "stream", "to provider"]);
        for row in &self.curve {
            let times = [row.own_mean_ms, row.own_p50_ms, row.bare_ms, row.rest_ms].map(|time| format!("{time:.3}"));
            let sizes = [row.terminal_bytes, row.stream_bytes, row.request_bytes].map(|size| format!("{size} B"));
            let mut cells = vec![format!("{}–{}", row.first_turn, row.last_turn)];
            cells.extend(times);
            cells.extend(sizes);
            table.add_row(cells);
        }
        align_right(table)
    }

    fn failure_table(&self) -> Table {
        let mut table = table(&["failed calls", "count"]);
        for (reason, count) in &self.failures {
            table.add_row([reason.clone(), count.to_string()]);
        }
        align_right(table)
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY).set_header(header.iter().copied());
    table
}

fn align_right(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
