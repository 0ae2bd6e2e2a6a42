//! Chance that can be repeated: a seed and a name give the same throws in every run.

use std::time::Duration;

/// The dice (SplitMix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Those of `name` under a seed.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a: names differ in a byte or two, and the generator mixes well from there on.
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, fold))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `n` - 1.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A duration in milliseconds.
    pub fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(range.start + self.next() % (range.end - range.start))
    }

    /// Puts a list into another order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_and_name_throw_the_same() {
        let throws = |seed, name| {
            let mut dice = Dice::new(seed, name);
            (0..50).map(|_| dice.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(throws(7, "driver 1"), throws(7, "driver 1"));
        assert_ne!(throws(7, "driver 1"), throws(7, "driver 2"));
        assert_ne!(throws(7, "driver 1"), throws(8, "driver 1"));
        let mut counts = [0; 10];
        let mut dice = Dice::new(1, "fair");
        (0..10_000).for_each(|_| counts[dice.below(10)] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
