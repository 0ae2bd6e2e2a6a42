//! The metrics of this crate: every instrument with its name, its labels and what it means, and nowhere else.
//!
//! The table below makes the instruments and the reference in docs/telemetry.md. They record through the metrics API of
//! OpenTelemetry into whatever pipeline the program has set up before the first use, and into nothing if there is none:
//! recording is then a call of an empty function. No label holds an id, a name that a client or a model chose, or a
//! text. [`instruments!`](crate::instruments) makes the tables of other crates.

use engine::event::{Event, EventType};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// The upper bounds of the buckets of a duration, in seconds.
const SECONDS: [f64; 17] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36];
/// The same for what usually takes less than a hundredth of a second.
const SHORT_SECONDS: [f64; 16] =
    [0.00032, 0.00064, 0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24];
/// The upper bounds of the buckets of a small number.
const NUMBERS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// What an instrument measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A number at the moment of the question.
    Gauge,
    /// How often values fell into each of some ranges, and their sum.
    Histogram,
}

impl Kind {
    /// The word of the reference.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// An instrument as the reference shows it.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    /// Its OpenTelemetry name.
    pub name: &'static str,
    /// What it measures.
    pub kind: Kind,
    /// `s` for seconds; empty for a number of things.
    pub unit: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it means.
    pub meaning: &'static str,
}

/// An instrument that records when something happens.
pub trait Instrument: Sized {
    /// What it measures.
    const KIND: Kind;
    /// Its unit.
    const UNIT: &'static str;

    /// Makes the instrument.
    fn make(meter: &Meter, definition: &Definition) -> Self;
}

impl Instrument for Counter<u64> {
    const KIND: Kind = Kind::Counter;
    const UNIT: &'static str = "";

    fn make(meter: &Meter, definition: &Definition) -> Self {
        meter.u64_counter(definition.name).with_description(definition.meaning).build()
    }
}

/// A histogram of durations, with the buckets of `B`.
#[derive(Debug)]
pub struct Seconds<B = Long>(Histogram<f64>, PhantomData<B>);

/// A histogram of durations that are usually shorter than a hundredth of a second.
pub type ShortSeconds = Seconds<Short>;

/// The upper bounds of the buckets of a histogram of durations.
pub trait Buckets {
    /// In seconds, in ascending order.
    const BOUNDS: &'static [f64];
}

/// Buckets up to eleven minutes.
#[derive(Debug)]
pub enum Long {}

impl Buckets for Long {
    const BOUNDS: &'static [f64] = &SECONDS;
}

/// Buckets from a third of a millisecond on.
#[derive(Debug)]
pub enum Short {}

impl Buckets for Short {
    const BOUNDS: &'static [f64] = &SHORT_SECONDS;
}

impl<B> Seconds<B> {
    /// Records the time since then.
    pub fn since(&self, then: Instant) {
        self.record(then.elapsed(), &[]);
    }

    /// Records a duration.
    pub fn record(&self, time: Duration, labels: &[KeyValue]) {
        self.0.record(time.as_secs_f64(), labels);
    }
}

impl<B: Buckets> Instrument for Seconds<B> {
    const KIND: Kind = Kind::Histogram;
    const UNIT: &'static str = "s";

    fn make(meter: &Meter, definition: &Definition) -> Self {
        let histogram = meter.f64_histogram(definition.name).with_description(definition.meaning).with_unit("s");
        Self(histogram.with_boundaries(B::BOUNDS.to_vec()).build(), PhantomData)
    }
}

/// A histogram of small numbers.
#[derive(Debug)]
pub struct Numbers(Histogram<u64>);

impl Numbers {
    /// Records a number.
    pub fn record(&self, number: usize) {
        self.0.record(number as u64, &[]);
    }
}

impl Instrument for Numbers {
    const KIND: Kind = Kind::Histogram;
    const UNIT: &'static str = "";

    fn make(meter: &Meter, definition: &Definition) -> Self {
        let histogram = meter.u64_histogram(definition.name).with_description(definition.meaning);
        Self(histogram.with_boundaries(NUMBERS.to_vec()).build())
    }
}

/// Makes a struct of instruments and its catalogue from one table.
#[macro_export]
macro_rules! instruments {
    (
        $(#[$doc:meta])*
        $vis:vis struct $set:ident;
        $($field:ident: $kind:ty = $name:literal [$($label:literal),*] $meaning:literal;)*
    ) => {
        $(#[$doc])*
        $vis struct $set {
            $(#[doc = $meaning] $vis $field: $kind,)*
        }

        impl $set {
            /// Every instrument of the set.
            $vis const CATALOGUE: &'static [$crate::metrics::Definition] =
                &[$($crate::instruments!(@definition $kind, $name, [$($label),*], $meaning),)*];

            /// Makes the instruments.
            $vis fn new(meter: &opentelemetry::metrics::Meter) -> Self {
                Self {
                    $($field: {
                        let definition = $crate::instruments!(@definition $kind, $name, [$($label),*], $meaning);
                        <$kind as $crate::metrics::Instrument>::make(meter, &definition)
                    },)*
                }
            }
        }
    };
    (@definition $kind:ty, $name:literal, [$($label:literal),*], $meaning:literal) => {
        $crate::metrics::Definition {
            name: $name,
            kind: <$kind as $crate::metrics::Instrument>::KIND,
            unit: <$kind as $crate::metrics::Instrument>::UNIT,
            labels: &[$($label),*],
            meaning: $meaning,
        }
    };
}

instruments! {
    /// What this crate counts and measures.
    pub struct Metrics;
    sessions: Counter<u64> = "bae.sessions.total" []
        "sessions that were opened";
    events: Counter<u64> = "bae.events.total" ["type"]
        "events that were committed, by the type of the event";
    lease_acquisitions: Counter<u64> = "bae.lease.acquisitions" []
        "sessions that this node began to own";
    lease_losses: Counter<u64> = "bae.lease.losses" []
        "sessions whose lease another node had taken, as this node noticed";
    fenced: Counter<u64> = "bae.log.fenced" []
        "writes that the database refused because the session has a newer owner";
    append_duration: ShortSeconds = "bae.log.append.duration" []
        "the time from asking for an append of a turn until it was committed";
    append_events: Numbers = "bae.log.append.events" []
        "events of one append";
    commit_writes: Numbers = "bae.log.commit.writes" []
        "writes that shared a commit; SQLite only";
    feed_gaps: Counter<u64> = "bae.feed.gaps" []
        "events that a live reader took from the database because its feed did not have them";
    feed_lag: ShortSeconds = "bae.feed.lag" []
        "the time from a commit on another node until this node was told, by the clocks of the database and of this node";
    inbox_frames: Counter<u64> = "bae.inbox.frames" []
        "frames that were read from the inbox of this node";
    redis_duration: ShortSeconds = "bae.redis.duration" []
        "the time that a script in Redis took, with its way there and back";
    database_wait: ShortSeconds = "bae.database.wait" []
        "how long a statement waited for a connection to Postgres, or a write for the writer of SQLite";
    purged: Counter<u64> = "bae.retention.purged" ["reason"]
        "sessions that were removed with their events: because of their age, or by an operator (admin)";
}

/// The instruments of this crate, made at the first use.
pub fn metrics() -> &'static Metrics {
    static METRICS: LazyLock<Metrics> = LazyLock::new(|| Metrics::new(&opentelemetry::global::meter("bae")));
    &METRICS
}

impl Metrics {
    /// Counts events that were committed.
    pub(crate) fn committed(&self, events: &[Arc<Event>]) {
        for event in events {
            self.events.add(1, &[of_type(event.event.kind)]);
        }
    }
}

fn of_type(kind: EventType) -> KeyValue {
    KeyValue::new("type", kind.as_str())
}
