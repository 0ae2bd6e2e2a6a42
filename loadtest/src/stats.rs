//! Distributions of times. They are kept in nanoseconds with three significant digits and reported in milliseconds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// A distribution of times, to which times are added.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    nanos: Histogram<u64>,
}

/// The figures that are reported of a distribution, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Summary {
    pub count: u64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    pub mean_ms: f64,
}

impl Latency {
    pub(crate) fn new() -> Latency {
        let mut nanos = Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
            .unwrap_or_else(|error| unreachable!("the bounds are constants: {error}"));
        nanos.auto(true);
        Latency { nanos }
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.nanos.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn merge(&mut self, other: &Latency) {
        // Both have the same bounds, so nothing can fall outside.
        let _ = self.nanos.add(&other.nanos);
    }

    pub(crate) fn p50_ms(&self) -> f64 {
        self.at(0.50)
    }

    pub(crate) fn summary(&self) -> Summary {
        Summary {
            count: self.nanos.len(),
            p50_ms: self.at(0.50),
            p90_ms: self.at(0.90),
            p99_ms: self.at(0.99),
            max_ms: milliseconds(self.nanos.max()),
            mean_ms: round(self.nanos.mean() / 1e6),
        }
    }

    fn at(&self, quantile: f64) -> f64 {
        milliseconds(self.nanos.value_at_quantile(quantile))
    }
}

impl FromIterator<Duration> for Latency {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Latency {
        let mut latency = Latency::new();
        for time in times {
            latency.record(time);
        }
        latency
    }
}

fn milliseconds(nanos: u64) -> f64 {
    round(nanos as f64 / 1e6)
}

/// Rounds milliseconds to whole microseconds.
pub(crate) fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_reported_in_milliseconds() {
        let latency: Latency = (1..=100).map(Duration::from_millis).collect();
        let summary = latency.summary();
        assert_eq!(summary.count, 100);
        assert!((summary.p50_ms - 50.0).abs() < 0.1, "{summary:?}");
        assert!((summary.p99_ms - 99.0).abs() < 0.1, "{summary:?}");
        assert!((summary.mean_ms - 50.5).abs() < 0.1, "{summary:?}");
    }

    #[test]
    fn merging_keeps_every_call() {
        let mut all: Latency = [Duration::from_micros(10)].into_iter().collect();
        all.merge(&[Duration::from_micros(30), Duration::ZERO].into_iter().collect());
        assert_eq!(all.summary().count, 3);
    }
}
