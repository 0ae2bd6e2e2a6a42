//! What the soak counts: how often each class of fault came and how many running turns it hit, how long it took until
//! an interrupted request to the model was sent again, and every broken rule.

use crate::checker::{Rule, Violation};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

macro_rules! classes {
    ($($name:ident = $what:literal),+ $(,)?) => {
        /// A class of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum Class { $($name),+ }

        impl Class {
            /// Every class.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// A short text that says what happens.
            pub fn what(self) -> &'static str {
                match self { $(Self::$name => $what),+ }
            }
        }
    };
}

classes! {
    Killed = "a node is killed (kill -9)",
    Drained = "a node is replaced (SIGTERM)",
    Frozen = "a node freezes for longer than its lease",
    Dozed = "a node freezes for a moment",
    RedisHangs = "a node's way to Redis hangs",
    RedisCut = "a node's connections to Redis are cut",
    DatabaseHangs = "a node's way to the database hangs",
    DatabaseCut = "a node's connections to the database are cut",
    Isolated = "a node reaches neither server",
    RedisEmptied = "Redis is emptied",
    RedisGone = "Redis is stopped and comes back empty",
    RedisPaused = "Redis answers nobody",
    RedisFull = "Redis takes no more writes",
    DatabaseGone = "the database is stopped and started",
    DatabaseDrops = "the database ends every connection",
    RowsLocked = "rows of running sessions are locked",
    KilledInOutage = "a node is killed while Redis is away",
    ClientLeft = "a client hangs up in mid-turn",
    PauseLeft = "a pause is left to expire",
    ProviderFails = "a provider fails",
    ProviderSlow = "a provider takes a second or more",
    ToolFails = "a tool's server fails",
    Closed = "a session is closed in mid-turn",
    Revoked = "a key is revoked in mid-turn",
}

#[derive(Debug, Default)]
struct Counts {
    times: usize,
    hit: usize,
    again: Vec<Duration>,
}

#[derive(Debug, Default)]
struct Inner {
    classes: BTreeMap<Class, Counts>,
    numbers: BTreeMap<&'static str, usize>,
    active: Option<Class>,
    troubles: Vec<(usize, Instant, Option<Instant>)>,
    violations: Vec<(String, Violation)>,
    begun: Option<Instant>,
}

/// The counts of a run, which all actors share.
#[derive(Debug, Default)]
pub(super) struct Stats(Mutex<Inner>);

impl Stats {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a fault and the running turns that it hit.
    pub(super) fn hit(&self, class: Class, turns: usize) {
        let mut inner = self.lock();
        let counts = inner.classes.entry(class).or_default();
        counts.times += 1;
        counts.hit += turns;
    }

    /// Records that a fault begins.
    pub(super) fn begin(&self, class: Class) {
        self.lock().active = Some(class);
    }

    /// Records that the fault is over.
    pub(super) fn end(&self) {
        self.lock().active = None;
    }

    /// The fault that lasts now.
    pub(super) fn active(&self) -> Option<Class> {
        self.lock().active
    }

    /// Records how long after its sender hung up a request to the model was sent again.
    pub(super) fn again(&self, class: Class, after: Duration) {
        self.lock().classes.entry(class).or_default().again.push(after);
    }

    /// Adds `n` to the number with this name.
    pub(super) fn count(&self, what: &'static str, n: usize) {
        *self.lock().numbers.entry(what).or_default() += n;
    }

    /// Records that a node is in trouble: calls that it has accepted may lose their places from now on.
    pub(super) fn trouble(&self, node: usize) {
        self.lock().troubles.push((node, Instant::now(), None));
    }

    /// Records that no node is in trouble any more.
    pub(super) fn well(&self) {
        for (_, _, until) in &mut self.lock().troubles {
            until.get_or_insert_with(Instant::now);
        }
    }

    /// Whether a node was in trouble at any time since `since`.
    pub(super) fn troubled(&self, node: usize, since: Instant) -> bool {
        self.lock().troubles.iter().any(|(at, _, until)| *at == node && until.is_none_or(|until| until > since))
    }

    /// Records broken rules.
    pub(super) fn violated(&self, session: &str, violations: impl IntoIterator<Item = Violation>) {
        for violation in violations {
            eprintln!("{} VIOLATION in {session}: {violation:?}", self.clock());
            self.lock().violations.push((session.to_owned(), violation));
        }
    }

    /// Seconds since the run began.
    pub(super) fn clock(&self) -> String {
        format!("{:7.2}", self.lock().begun.get_or_insert_with(Instant::now).elapsed().as_secs_f64())
    }

    /// Records that something was not answered as it should be.
    pub(super) fn wrong(&self, session: &str, what: String) {
        self.violated(session, [Violation { rule: Rule::Answered, what }]);
    }

    /// The summary, and whether the run succeeded: no rule was broken, and each of the `wanted` classes hit a running
    /// turn.
    pub(super) fn report(&self, wanted: &[Class]) -> (String, bool) {
        let inner = self.lock();
        let mut text =
            String::from("| fault | times | running turns hit | asked again: n, p50, p99 |\n|---|--:|--:|---|\n");
        let mut good = inner.violations.is_empty();
        for class in wanted {
            let none = Counts::default();
            let counts = inner.classes.get(class).unwrap_or(&none);
            let mut again = counts.again.clone();
            again.sort();
            let at = |part: usize| again[(again.len() * part / 100).min(again.len() - 1)].as_millis();
            let again = match again.len() {
                0 => String::new(),
                n => format!("{n}, {} ms, {} ms", at(50), at(99)),
            };
            let _ = writeln!(text, "| {} | {} | {} | {again} |", class.what(), counts.times, counts.hit);
            good &= counts.hit > 0;
        }
        for (what, n) in &inner.numbers {
            let _ = writeln!(text, "{what}: {n}");
        }
        for class in wanted.iter().filter(|class| inner.classes.get(class).is_none_or(|counts| counts.hit == 0)) {
            let _ = writeln!(text, "NOT TESTED: no running turn was hit when {}", class.what());
        }
        let _ = writeln!(text, "violations: {}", inner.violations.len());
        for (session, violation) in &inner.violations {
            let _ = writeln!(text, "  {session}: {violation:?}");
        }
        (text, good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_hit_nothing_and_a_broken_rule_fail_the_run() {
        let stats = Stats::default();
        stats.hit(Class::Killed, 2);
        stats.hit(Class::Drained, 0);
        assert!(stats.report(&[Class::Killed]).1);
        let (text, good) = stats.report(&[Class::Killed, Class::Drained]);
        assert!(!good && text.contains("NOT TESTED: no running turn was hit when a node is replaced"), "{text}");
        stats.wrong("ses_1", "never answered".to_owned());
        let (text, good) = stats.report(&[Class::Killed]);
        assert!(!good && text.contains("never answered"), "{text}");
    }

    #[test]
    fn troubles_end_when_all_is_well() {
        let stats = Stats::default();
        let before = Instant::now();
        stats.trouble(1);
        assert!(stats.troubled(1, before) && !stats.troubled(0, before));
        stats.well();
        assert!(stats.troubled(1, before) && !stats.troubled(1, Instant::now()));
    }
}
