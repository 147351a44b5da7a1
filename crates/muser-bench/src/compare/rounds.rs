//! Compares the speed of llama.cpp and muser in one configuration of threads, depth and
//! width. First proves that both compute the right logits, then times rounds of
//! llama.cpp, the strict lane (muser's own arithmetic) and the pinned lane
//! (llama.cpp's).

use super::clock::Overlap;
use super::options::{self, Point};
use super::side::{Answer, Chain, Invariant, Side};
use super::stats::Spread;
use muser_model::{Budget, Want};

/// Names of the three that are compared, in the order of a benchmark round: llama.cpp,
/// the strict lane (muser's own arithmetic), the pinned lane (llama.cpp's).
pub(super) const SIDES: [&str; 3] = ["llama.cpp", "strict", "pinned"];

/// Times of one benchmark sample: successive forward calls on llama.cpp, or on muser in
/// one lane (strict or pinned arithmetic).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Median of the seconds that the sample's forward calls took.
    pub(super) call: f64,
    /// Mean of the seconds that the sample's forward calls took.
    pub(super) mean: f64,
    /// Number of forward calls that the benchmark sample timed.
    pub(super) calls: usize,
}

impl Sample {
    fn of(seconds: &[f64]) -> Self {
        Self {
            call: Spread::of(seconds).median,
            mean: seconds.iter().sum::<f64>() / seconds.len().max(1) as f64,
            calls: seconds.len(),
        }
    }
}

/// The machine's memory bandwidth and int8 peak with one number of threads, from which
/// the shortest possible time of a forward call follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limit {
    pub(super) threads: usize,
    /// The machine's memory read bandwidth in bytes a second.
    pub(super) bandwidth: f64,
    /// The machine's peak of int8 operations a second; `None` at an instruction-set
    /// level (such as scalar) without int8 products.
    pub(super) int8_peak: Option<f64>,
}

impl Limit {
    /// Returns the shortest time in seconds that the machine's bandwidth and int8 peak
    /// allow for a chain of forward calls, and whether bandwidth sets it.
    fn seconds(&self, budget: &Budget, chain: &Chain) -> (f64, bool) {
        let (mut read, mut compute, mut least) = (0.0, 0.0, 0.0);
        for call in 0..chain.calls {
            let at = chain.depth + call * chain.width;
            let pass = budget.forward(at, chain.width, Want::Last);
            let bytes = pass.bytes() as f64 / self.bandwidth;
            let ops = self.int8_peak.map_or(0.0, |peak| pass.flops as f64 / peak);
            read += bytes;
            compute += ops;
            least += bytes.max(ops);
        }
        (least, read >= compute)
    }
}

/// Hashes of the last logits that muser's two lanes (strict and pinned arithmetic)
/// compute in a configuration, checked before it is timed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Proof {
    /// Hash of the last logits in the strict lane (muser's own arithmetic), which must
    /// not depend on the width of the calls.
    pub(super) strict: String,
    /// Hash of the last logits in the pinned lane (llama.cpp's arithmetic in muser).
    pub(super) pinned: String,
    /// Whether llama.cpp's last logits are bit for bit those of the pinned lane
    /// (llama.cpp's arithmetic in muser). `None` where llama.cpp's ring buffer has
    /// wrapped: its sums then have another order.
    pub(super) equal: Option<bool>,
}

/// The measurements of one configuration of threads, depth and width: a row of the
/// table of speeds.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) chain: Chain,
    pub(super) chains: usize,
    pub(super) proof: Proof,
    /// Timed samples, three per benchmark round: of llama.cpp, of the strict lane
    /// (muser's own arithmetic) and of the pinned lane (llama.cpp's).
    pub(super) samples: Vec<[Sample; 3]>,
    /// Largest number of tokens a second that the machine's bandwidth and int8 peak
    /// allow.
    pub(super) limit: f64,
    /// Which limit of the machine bounds the speed: `read` (memory bandwidth) or `int8`
    /// (arithmetic).
    pub(super) bound: &'static str,
}

impl Row {
    /// Returns the seconds of the median forward call, one value per benchmark round.
    /// `side` is an index of [`SIDES`]: llama.cpp or a lane (arithmetic) of muser.
    fn calls(&self, side: usize) -> Vec<f64> {
        self.samples.iter().map(|s| s[side].call).collect()
    }

    /// Returns the speed in tokens a second. `side` is an index of [`SIDES`]: llama.cpp
    /// or a lane (arithmetic) of muser.
    pub(super) fn rate(&self, side: usize) -> Spread {
        Spread::rates(self.chain.width as f64, &self.calls(side))
    }

    /// Returns how many times as fast `side` is as `base`. Both are indices of
    /// [`SIDES`]: llama.cpp or a lane (arithmetic) of muser.
    pub(super) fn speedup(&self, base: usize, side: usize) -> Spread {
        Spread::speedups(&self.calls(base), &self.calls(side))
    }
}

/// llama.cpp and muser's lanes (strict and pinned arithmetic) as they are compared for
/// one reference profile (a build of llama.cpp), with the settings of the benchmark
/// rounds.
pub(super) struct Rounds<'a> {
    pub(super) reference: &'a mut dyn Side,
    pub(super) strict: &'a mut dyn Invariant,
    pub(super) pinned: &'a mut dyn Side,
    /// Process id of the comparator, the program that runs llama.cpp.
    pub(super) process: u32,
    pub(super) budget: &'a Budget,
    pub(super) rounds: usize,
    pub(super) sample: f64,
    /// Number of positions for which the KV caches of llama.cpp and of muser have
    /// room.
    pub(super) room: usize,
    pub(super) swa_full: bool,
    /// CPU time of llama.cpp's process while muser was timed, and of muser's process
    /// while llama.cpp was timed.
    pub(super) overlap: [Overlap; 2],
}

impl Rounds<'_> {
    /// Proves that llama.cpp and muser compute the right logits for a configuration of
    /// threads, depth and width, and then times them.
    pub(super) fn run(&mut self, point: Point, limit: &Limit) -> Result<Row, String> {
        let Point {
            threads,
            depth,
            width,
        } = point;
        let mut chain = Chain {
            threads,
            depth,
            width,
            calls: 1,
            warm: true,
        };
        let first = self.reference.run(&chain)?;
        let seconds = Spread::of(&first.seconds).median;
        let room = self.room.saturating_sub(depth);
        let (calls, chains) = options::calls(seconds, self.sample, width, room);
        chain.calls = calls;
        chain.warm = false;
        let proof = self.prove(&chain)?;
        let mut samples = Vec::with_capacity(self.rounds);
        for _ in 0..self.rounds {
            let mut round = [Sample::default(); 3];
            for (side, sample) in round.iter_mut().enumerate() {
                *sample = self.sample(side, &chain, chains, &proof)?;
            }
            samples.push(round);
        }
        let (least, read) = limit.seconds(self.budget, &chain);
        Ok(Row {
            chain,
            chains,
            proof,
            samples,
            limit: (chain.width * chain.calls) as f64 / least,
            bound: if read { "read" } else { "int8" },
        })
    }

    /// Runs a chain of forward calls on one side of the comparison and adds up the CPU
    /// time that the other, idle process uses meanwhile. `side` is an index of
    /// [`SIDES`]: llama.cpp or a lane (arithmetic) of muser.
    fn ask(&mut self, side: usize, chain: &Chain) -> Result<Answer, String> {
        let (theirs, ours) = (self.process, std::process::id());
        let [their_idle, our_idle] = &mut self.overlap;
        let answer = match side {
            0 => our_idle.during(ours, || self.reference.run(chain)),
            1 => their_idle.during(theirs, || self.strict.run(chain)),
            _ => their_idle.during(theirs, || self.pinned.run(chain)),
        };
        answer.map_err(|e| format!("{}: {e}", SIDES[side.min(2)]))
    }

    /// Computes the last logits of a chain of forward calls on llama.cpp and on both
    /// lanes of muser (strict and pinned arithmetic), and checks that they are right.
    ///
    /// # Errors
    /// The strict lane's row depends on the width of the calls, or the pinned
    /// lane's is not llama.cpp's. A wrong answer is not timed.
    fn prove(&mut self, chain: &Chain) -> Result<Proof, String> {
        let (threads, depth, width) = (chain.threads, chain.depth, chain.width);
        let place = format!("depth {depth}, width {width}, {threads} threads");
        let strict = self.ask(1, chain)?.last;
        let other = self.strict.otherwise(chain)?;
        if strict != other {
            return Err(format!(
                "{place}: the strict lane's logits depend on the width (hash {strict}, in other \
                 calls {other}): a wrong answer is not timed"
            ));
        }
        let (theirs, pinned) = (self.ask(0, chain)?.last, self.ask(2, chain)?.last);
        let equal = self.comparable(chain).then_some(theirs == pinned);
        if equal == Some(false) {
            return Err(format!(
                "{place}: the pinned lane's logits are not llama.cpp's (hash {pinned}, llama.cpp \
                 {theirs}): a wrong answer is not timed"
            ));
        }
        Ok(Proof {
            strict,
            pinned,
            equal,
        })
    }

    /// Returns whether llama.cpp must compute the bits of the pinned lane (llama.cpp's
    /// arithmetic in muser) in this chain of calls. With the settings of its tools it
    /// does until the ring buffer of the sliding-window layers, as long as window and
    /// micro-batch, wraps.
    fn comparable(&self, chain: &Chain) -> bool {
        let end = chain.depth + chain.width * chain.calls;
        let window = self.budget.spec().window();
        self.swa_full || window.is_none_or(|window| end <= window + 512)
    }

    /// Runs and times the chains of forward calls of one benchmark sample, the first
    /// chain after a warm-up call. Each chain must end in the logits that were proved
    /// to be right.
    fn sample(
        &mut self,
        side: usize,
        chain: &Chain,
        chains: usize,
        proof: &Proof,
    ) -> Result<Sample, String> {
        let proved = match side {
            0 => proof.equal.map(|_| &proof.pinned),
            1 => Some(&proof.strict),
            _ => Some(&proof.pinned),
        };
        let mut seconds = Vec::with_capacity(chains * chain.calls);
        for i in 0..chains {
            let warm = i == 0;
            let answer = self.ask(side, &Chain { warm, ..*chain })?;
            if let Some(proved) = proved.filter(|p| **p != answer.last) {
                return Err(format!(
                    "{}: {chain:?}, timed: the logits have hash {}, not {proved}",
                    SIDES[side.min(2)],
                    answer.last
                ));
            }
            seconds.extend(answer.seconds);
        }
        Ok(Sample::of(&seconds))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn row() -> Row {
        let sample = |call: f64| Sample {
            call,
            mean: call,
            calls: 2,
        };
        Row {
            chain: Chain {
                threads: 2,
                depth: 0,
                width: 4,
                calls: 2,
                warm: false,
            },
            chains: 1,
            proof: Proof {
                strict: "a".to_owned(),
                pinned: "b".to_owned(),
                equal: Some(true),
            },
            samples: vec![
                [0.4, 0.2, 0.1].map(sample),
                [0.8, 0.2, 0.2].map(sample),
                [0.4, 0.1, 0.1].map(sample),
            ],
            limit: 80.0,
            bound: "read",
        }
    }

    /// Stands in for llama.cpp or muser in tests: its logits are named by a function of
    /// the chain of calls, and each call takes a second.
    struct Fake<'a>(&'a dyn Fn(&Chain) -> &'static str);

    impl Side for Fake<'_> {
        fn run(&mut self, chain: &Chain) -> Result<Answer, String> {
            let end = chain.depth + chain.width * chain.calls;
            Ok(Answer {
                seconds: vec![1.0; chain.calls],
                last: format!("{end}{}", (self.0)(chain)),
            })
        }
    }

    impl Invariant for Fake<'_> {
        fn otherwise(&mut self, chain: &Chain) -> Result<String, String> {
            let width = chain.width * chain.calls;
            let other = Chain {
                width,
                calls: 1,
                ..*chain
            };
            Ok(self.run(&other)?.last)
        }
    }

    type Wrong = dyn Fn(&Chain) -> &'static str;

    fn budget() -> Budget {
        use muser_model::gguf::Gguf;
        use muser_model::synth::{self, Geometry, Mix};
        let mut file = Vec::new();
        let geometry = Geometry::named("glimmer-tiny").unwrap();
        synth::write(&geometry, Mix::Q4KM, 1, &mut file, &mut |_, _| {}).unwrap();
        Budget::of(&Gguf::from_vec(file).unwrap()).unwrap()
    }

    fn measure(sides: [&Wrong; 3], point: Point, swa_full: bool) -> Result<Row, String> {
        let [mut reference, mut strict, mut pinned] = sides.map(Fake);
        let mut rounds = Rounds {
            reference: &mut reference,
            strict: &mut strict,
            pinned: &mut pinned,
            process: std::process::id(),
            budget: &budget(),
            rounds: 2,
            sample: 3.0,
            room: 4096,
            swa_full,
            overlap: Default::default(),
        };
        let limit = Limit {
            threads: 1,
            bandwidth: 1e9,
            int8_peak: None,
        };
        rounds.run(point, &limit)
    }

    const RIGHT: &Wrong = &|_| "";

    #[test]
    fn right_answers_are_timed() {
        let point = Point {
            threads: 1,
            depth: 5,
            width: 4,
        };
        let row = measure([RIGHT, RIGHT, RIGHT], point, false).unwrap();
        assert_eq!((row.chain.calls, row.chains, row.samples.len()), (3, 1, 2));
        assert!(row.samples.iter().flatten().all(|s| s.calls == 3));
        assert_eq!((row.proof.equal, &*row.proof.strict), (Some(true), "17"));
    }

    #[test]
    fn wrong_answers_are_not_timed() {
        let point = Point {
            threads: 1,
            depth: 5,
            width: 4,
        };
        let warm: &Wrong = &|c| if c.warm && c.calls > 1 { "!" } else { "" };
        let wide: &Wrong = &|c| if c.width == 12 { "!" } else { "" };
        let always: &Wrong = &|_| "!";
        for (sides, words) in [
            ([RIGHT, wide, RIGHT], "depend on the width"),
            ([RIGHT, RIGHT, always], "not llama.cpp's"),
            ([always, RIGHT, RIGHT], "not llama.cpp's"),
            // The logits of the proof are right; the timed ones are not.
            ([warm, RIGHT, RIGHT], "llama.cpp: Chain"),
            ([RIGHT, warm, RIGHT], "strict: Chain"),
            ([RIGHT, RIGHT, warm], "pinned: Chain"),
        ] {
            let error = measure(sides, point, false).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_wrapped_ring_is_not_called_equal() {
        let point = Point {
            threads: 1,
            depth: 3000,
            width: 1,
        };
        let other: &Wrong = &|_| "!";
        let row = measure([other, RIGHT, RIGHT], point, false).unwrap();
        assert_eq!(row.proof.equal, None);
        assert!(measure([other, RIGHT, RIGHT], point, true).is_err());
        let full = measure([RIGHT, RIGHT, RIGHT], point, true).unwrap();
        assert_eq!(full.proof.equal, Some(true));
    }

    #[test]
    fn a_sample_is_its_median_and_mean() {
        let sample = Sample::of(&[1.0, 2.0, 6.0]);
        assert_eq!((sample.call, sample.mean, sample.calls), (2.0, 3.0, 3));
    }

    #[test]
    fn rates_and_ratios_are_by_round() {
        let row = row();
        assert_eq!(row.rate(0).median, 10.0);
        assert_eq!(row.rate(1).max, 40.0);
        let strict = row.speedup(0, 1);
        assert_eq!((strict.median, strict.min, strict.max), (4.0, 2.0, 4.0));
        assert_eq!(row.speedup(1, 2).median, 1.0);
    }

    #[test]
    fn the_limit_is_the_slower_of_reading_and_computing() {
        let budget = budget();
        let chain = Chain {
            threads: 1,
            depth: 3,
            width: 2,
            calls: 2,
            warm: false,
        };
        let passes = [3, 5].map(|at| budget.forward(at, 2, Want::Last));
        let mut limit = Limit {
            threads: 1,
            bandwidth: 1e9,
            int8_peak: None,
        };
        let bytes: u64 = passes.iter().map(|p| p.bytes()).sum();
        let (seconds, read) = limit.seconds(&budget, &chain);
        assert!((seconds - bytes as f64 / 1e9).abs() < 1e-12 && read);
        limit.int8_peak = Some(1e3);
        let flops: u64 = passes.iter().map(|p| p.flops).sum();
        let (seconds, read) = limit.seconds(&budget, &chain);
        assert!((seconds / (flops as f64 / 1e3) - 1.0).abs() < 1e-9 && !read);
    }
}
