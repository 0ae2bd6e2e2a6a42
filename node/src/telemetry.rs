//! What the program tells about itself while it runs: the catalogues of its metrics and its spans.
//!
//! Everything that is counted, measured or traced is named here and nowhere else (the coordinator has a catalogue of its
//! own for what it knows alone), and docs/telemetry.md is made from it. What records is all over the program; where it
//! goes is decided by [`crate::export`]. Nothing in a label, a span or an attribute is a secret, a message, the input or
//! output of a tool, or a text of a provider (ARCHITECTURE.md, invariants of absence). Labels of metrics are small
//! closed sets: no ids, and no names that a client or a model chose.

pub(crate) mod context;
pub(crate) mod metrics;
pub(crate) mod model;
#[cfg(test)]
mod reference;
pub(crate) mod spans;

use serde::Deserialize;

/// Which version of the GenAI conventions of OpenTelemetry names the metrics and attributes of model calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Naming {
    /// The first release of the conventions' own repository.
    #[default]
    #[serde(rename = "v0.1")]
    V01,
    /// The last names from before.
    #[serde(rename = "v1.41")]
    V141,
    /// Both.
    #[serde(rename = "both")]
    Both,
}

impl Naming {
    /// Whether the names of v0.1 are used.
    pub(crate) fn new_names(self) -> bool {
        matches!(self, Naming::V01 | Naming::Both)
    }

    /// Whether the names of v1.41 are used.
    pub(crate) fn old_names(self) -> bool {
        matches!(self, Naming::V141 | Naming::Both)
    }
}
