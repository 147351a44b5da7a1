//! What the commands that measure (`bench`, `profile`, …) share: the model and the backend,
//! the tokens to compute, the hash of their logits, and the spread of the measurements.

use crate::backend::{self, Device};
use crate::cli::Common;
use crate::exit::BadModel;
use crate::load;
use muser_cpu::Level;
use muser_engine::Token;
use muser_gguf::Gguf;
use muser_model::{ModelError, Transformer};
use muser_ops::{Backend, BackendInfo};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// Returns the number of bytes that a measurement of read bandwidth goes over: `mib` MiB
/// (`--buffer`), or enough to exceed the processor's caches.
pub(crate) fn buffer(mib: Option<u32>) -> usize {
    mib.map_or_else(muser_cpu::beyond_caches, |mib| (mib as usize) << 20)
}

/// What a command measures: the opened model file that the command line names, and the
/// backend that computes it.
pub(crate) struct Subject {
    /// The model's name in messages: its file's path, or words for the embedded model.
    pub(crate) name: String,
    /// The model's GGUF file, opened.
    pub(crate) gguf: Gguf,
    /// The backend that computes: the CPU with its threads, instruction-set level and lane
    /// (the arithmetic).
    pub(crate) device: Arc<Device>,
}

impl Subject {
    /// Opens the model file and the backend that the command line names.
    pub(crate) fn open(common: &Common) -> anyhow::Result<Self> {
        let (name, gguf) = load::file(common.model.as_deref())?;
        let device = backend::open(common)?;
        Ok(Self { name, gguf, device })
    }

    /// Opens a second backend, which differs only in the kernels: those of the best other
    /// instruction-set level but scalar, or of the same level if the machine has no other.
    pub(crate) fn second(&self, common: &Common) -> anyhow::Result<Arc<Device>> {
        let own = self.device.level();
        let mut others = Level::available().into_iter();
        let other = others.rfind(|&l| l != own && l != Level::Scalar);
        let common = Common {
            level: Some(other.unwrap_or(own)),
            threads: Some(self.device.info().threads),
            ..common.clone()
        };
        backend::open(&common)
    }

    /// Loads the model's weights on a backend, without the tokenizer, which is not needed to
    /// measure and takes time to build.
    pub(crate) fn on<B: Backend>(&self, backend: Arc<B>) -> anyhow::Result<Transformer<B>> {
        let bad = |e: ModelError| BadModel {
            path: self.name.clone(),
            source: e.into(),
        };
        Ok(Transformer::load(&self.gguf, backend).map_err(bad)?)
    }
}

/// How logits are computed: the lane (the arithmetic) with its version, the
/// instruction-set level and the number of threads.
#[derive(serde::Serialize)]
pub(crate) struct Setting {
    lane: String,
    lane_version: u32,
    level: String,
    threads: usize,
}

impl Setting {
    /// Makes a setting (lane, that is the arithmetic, instruction-set level and threads)
    /// from a backend's description.
    pub(crate) fn of(info: &BackendInfo) -> Self {
        Self {
            lane: info.lane.to_string(),
            lane_version: info.lane.version(),
            level: info.level.clone(),
            threads: info.threads,
        }
    }
}

/// Formats lane (the arithmetic), instruction-set level and threads for people:
/// `strict v1, avx2, 2 threads`.
impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { lane, level, .. } = self;
        let (version, threads) = (self.lane_version, self.threads);
        write!(f, "{lane} v{version}, {level}, {threads} threads")
    }
}

/// Makes `n` pseudo-random token ids below `vocab`, the same on every call: the cost of a
/// token does not depend on its id.
pub(crate) fn tokens(n: usize, vocab: usize) -> Vec<Token> {
    let mut state = 1u64;
    let next = || {
        // Knuth's linear congruential generator for MMIX; the high half of its state is the
        // more random one.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // The cast loses nothing: a vocabulary has fewer than 2^24 tokens.
        ((state >> 32) % vocab as u64) as Token
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// A hasher of rows of logits: computes the SHA-256 of their values as little-endian f32,
/// row after row.
#[derive(Clone, Default)]
pub(crate) struct RowHash {
    hash: Sha256,
    bytes: Vec<u8>,
}

impl RowHash {
    /// Adds one row of logits to the SHA-256.
    pub(crate) fn add(&mut self, row: &[f32]) {
        self.bytes.clear();
        self.bytes.extend(row.iter().flat_map(|l| l.to_le_bytes()));
        self.hash.update(&self.bytes);
    }

    /// Returns the SHA-256 of the rows of logits added so far, in hexadecimal.
    pub(crate) fn hex(self) -> String {
        let hash = self.hash.finalize();
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The median, the smallest and the largest of repeated measurements.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Computes median, smallest and largest of some measurements; zeros if there are
    /// none.
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let n = sorted.len();
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Self {
                median: 0.0,
                min: 0.0,
                max: 0.0,
            };
        };
        Self {
            median: (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
            min,
            max,
        }
    }

    /// Divides an amount of work, `what`, by the median, smallest and largest of its
    /// times: turns times into rates, of which the longest time gives the lowest.
    pub(crate) fn rate(self, what: f64) -> Self {
        Self {
            median: what / self.median,
            min: what / self.max,
            max: what / self.min,
        }
    }
}

/// Formats the median, smallest and largest of measurements for people: `12.3
/// (11.9-12.4)`.
impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} ({:.1}-{:.1})", self.median, self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even() {
        let odd = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        // The fastest time is the highest rate.
        let rate = odd.rate(6.0);
        assert_eq!((rate.median, rate.min, rate.max), (3.0, 2.0, 6.0));
        assert_eq!(rate.to_string(), "3.0 (2.0-6.0)");
        assert_eq!(Spread::of(&[]).max, 0.0);
    }

    #[test]
    fn tokens_are_of_the_vocabulary_and_many() {
        let ids = tokens(1000, 300);
        assert!(ids.iter().all(|&t| t < 300));
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert!(distinct.len() > 250);
        assert_eq!(ids[..10], tokens(10, 300));
    }

    #[test]
    fn the_hash_is_of_all_rows() {
        let hash = |rows: &[&[f32]]| {
            let mut hash = RowHash::default();
            rows.iter().for_each(|row| hash.add(row));
            hash.hex()
        };
        assert_eq!(hash(&[&[1.0], &[2.0]]), hash(&[&[1.0, 2.0]]));
        assert_ne!(hash(&[&[0.0]]), hash(&[&[-0.0]]));
        assert_eq!(hash(&[])[..8], *"e3b0c442");
    }
}
