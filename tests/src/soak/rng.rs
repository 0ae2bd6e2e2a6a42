//! A random number generator whose numbers depend only on the seed of the run and a name, so that a run can be
//! repeated.

use std::time::Duration;

/// The generator of one actor.
#[derive(Debug, Clone)]
pub(super) struct Rng(fastrand::Rng);

impl Rng {
    /// The generator of `name` under a seed.
    pub(super) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a: names differ in a byte or two, and the generator mixes well from there on.
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(fastrand::Rng::with_seed(name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, fold)))
    }

    /// A number from 0 to `n` - 1.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0.usize(..n)
    }

    /// True with a probability of `percent` in a hundred.
    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A random duration within this range of milliseconds.
    pub(super) fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.0.u64(range))
    }

    /// Puts a list into another order.
    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        self.0.shuffle(list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_and_name_give_the_same_numbers() {
        let numbers = |seed, name| {
            let mut rng = Rng::new(seed, name);
            (0..50).map(|_| rng.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7, "driver 1"), numbers(7, "driver 1"));
        assert_ne!(numbers(7, "driver 1"), numbers(7, "driver 2"));
        assert_ne!(numbers(7, "driver 1"), numbers(8, "driver 1"));
        let mut counts = [0; 10];
        let mut rng = Rng::new(1, "fair");
        (0..10_000).for_each(|_| counts[rng.below(10)] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
