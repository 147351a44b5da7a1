//! The command-line options of `cargo xtask compare`, which times llama.cpp and muser.

use crate::level;
use muser_ops::Profile;
use std::path::{Path, PathBuf};

/// Largest number of tokens in all calls of one benchmark sample that has several. The
/// ring buffers of the sliding-window layers, muser's and llama.cpp's, then still hold
/// the window when the KV cache is cut back to the sample's start.
pub(super) const REACH: usize = 256;

/// Which model, call sizes and threads to time against which build of llama.cpp.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(after_help = "\
Builds llama.cpp first, in target/reference: minutes the first time. It needs
g++, cmake and libclang.

Nothing is timed whose logits have not been proved equal. Exit code 1 if they are
not, if a side computed while it should have been idle, or if the record exists.

Examples:
  cargo xtask compare
  cargo xtask compare --model FILE --widths 1,8,256 --record my-machine
  cargo xtask compare --model FILE --widths 1 --depths 0,8192,32768")]
pub struct Options {
    /// Model file, GGUF; without it, the model of this repository
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Time against this build of llama.cpp only, llamacpp-avx2 or
    /// llamacpp-avx512; without it, against every one that the machine can run
    #[arg(long, value_name = "NAME")]
    profile: Option<Profile>,
    /// Widths to time: numbers of tokens in a forward call
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = positive,
          default_value = "1,2,4,8,16,32,256")]
    widths: Vec<usize>,
    /// Depths to time: numbers of positions in the KV cache before a forward call
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = number,
          default_value = "0")]
    depths: Vec<usize>,
    /// Threads of llama.cpp and of muser; without it, as many as the machine has. Calls
    /// of one token are timed on one thread as well
    #[arg(long, value_name = "N", value_parser = positive)]
    threads: Option<usize>,
    /// Number of benchmark rounds; a round is one sample of llama.cpp and of each lane
    /// of muser (strict and pinned arithmetic)
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 5)]
    pub(super) rounds: usize,
    /// Milliseconds, about, that one benchmark sample (a series of timed forward calls)
    /// is to take
    #[arg(long, value_name = "MS", value_parser = positive, default_value_t = 500)]
    sample: usize,
    /// Number of rounds in which llama.cpp and each lane of muser open the model file
    /// in a fresh process, timed; 0 leaves that out
    #[arg(long, value_name = "N", value_parser = number, default_value_t = 3)]
    pub(super) open_rounds: usize,
    /// Let llama.cpp's sliding-window layers keep every position instead of a ring
    /// buffer
    #[arg(long)]
    pub(super) swa_full: bool,
    /// Write the measurements to benches/records as a record of this name
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(super) record: Option<String>,
}

/// One configuration that is timed on llama.cpp and muser: number of threads, depth
/// (positions stored before a call) and width (tokens in a call).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) threads: usize,
    pub(super) depth: usize,
    pub(super) width: usize,
}

fn number(text: &str) -> Result<usize, String> {
    match text.parse() {
        // The largest number is far above any model's context, and a product of two
        // does not overflow.
        Ok(n) if n <= 1 << 24 => Ok(n),
        _ => Err(format!("expected a number up to {}", 1 << 24)),
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match number(text)? {
        0 => Err("expected a number from 1".to_owned()),
        n => Ok(n),
    }
}

fn name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match text.chars().all(fits) && !text.is_empty() {
        true => Ok(text.to_owned()),
        false => Err("expected lower-case letters, digits and hyphens".to_owned()),
    }
}

fn ascending(list: &[usize]) -> Vec<usize> {
    let mut list = list.to_vec();
    list.sort_unstable();
    list.dedup();
    list
}

impl Options {
    /// Returns the path of the model file to time; `root` is the repository.
    pub(super) fn model(&self, root: &Path) -> PathBuf {
        let own = || root.join("models/glimmer-nano-2-q4_k_m.gguf");
        self.model.clone().unwrap_or_else(own)
    }

    /// Returns the reference profiles (builds of llama.cpp) to time against.
    ///
    /// # Errors
    /// The machine cannot run the profile that was asked for, or none at all.
    pub(super) fn profiles(&self) -> Result<Vec<Profile>, String> {
        let Some(profile) = self.profile else {
            let able = |p: &Profile| level(*p).is_available();
            let all: Vec<Profile> = Profile::ALL.into_iter().filter(able).collect();
            return match all.is_empty() {
                true => Err("no profile: this machine lacks AVX2".to_owned()),
                false => Ok(all),
            };
        };
        match level(profile).missing()[..] {
            [] => Ok(vec![profile]),
            ref missing => Err(format!(
                "--profile {profile}: this machine lacks {}",
                missing.join(", ")
            )),
        }
    }

    /// Returns the widths to time (numbers of tokens in a call), ascending, each once.
    pub(super) fn widths(&self) -> Vec<usize> {
        ascending(&self.widths)
    }

    /// Returns the number of threads that llama.cpp and muser are timed with: the
    /// option's, or as many as the machine has.
    pub(super) fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(all)
    }

    /// Returns the time in seconds that a benchmark sample (a series of timed forward
    /// calls) is to take.
    pub(super) fn sample(&self) -> f64 {
        self.sample as f64 / 1e3
    }

    /// Returns the configurations to time, by depth (positions stored before a call),
    /// then by width (tokens in a call). Calls of one token on one thread come first,
    /// and at the smallest depth only: muser has a KV cache for each number of threads,
    /// which would have to be filled up to the depth.
    pub(super) fn points(&self) -> Vec<Point> {
        let (widths, threads) = (self.widths(), self.threads());
        let mut points = Vec::new();
        for (i, depth) in ascending(&self.depths).into_iter().enumerate() {
            for &width in &widths {
                let alone = i == 0 && width == 1 && threads > 1;
                for threads in [alone.then_some(1), Some(threads)].into_iter().flatten() {
                    points.push(Point {
                        threads,
                        depth,
                        width,
                    });
                }
            }
        }
        points
    }

    /// Returns the number of positions in the KV cache that the timed calls need, at
    /// most the model's context.
    ///
    /// # Errors
    /// The widest call at the greatest depth does not fit the context.
    pub(super) fn positions(&self, context: usize) -> Result<usize, String> {
        let deepest = self.depths.iter().copied().max().unwrap_or(0);
        let widest = self.widths.iter().copied().max().unwrap_or(1);
        match deepest + widest {
            n if n > context => Err(format!(
                "depth {deepest} and width {widest}: the model's context is {context}"
            )),
            _ => Ok((deepest + widest.max(REACH)).min(context)),
        }
    }
}

/// Returns how many forward calls make a chain (calls that follow each other) and how
/// many chains make a benchmark sample, if a call takes `seconds` and the sample is to
/// take `sample` seconds.
pub(super) fn calls(seconds: f64, sample: f64, width: usize, room: usize) -> (usize, usize) {
    let wanted = (sample / seconds.max(1e-9)).ceil().clamp(1.0, 1e6) as usize;
    let most = (REACH.min(room) / width.max(1)).max(1);
    let calls = wanted.min(most);
    // Noise comes in bursts: for a tiny model, more than a few dozen chains add
    // no information.
    (calls, wanted.div_ceil(calls).min(32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(words: &[&str]) -> Result<Options, String> {
        let line = Line::try_parse_from([&["compare"], words].concat());
        line.map(|l| l.options).map_err(|e| e.to_string())
    }

    #[test]
    fn words_are_taken_or_refused_by_name() {
        let words = "--model m.gguf --widths 8,1,8 --depths 512,0 --threads 3 --rounds 7 \
                     --sample 250 --open-rounds 0 --record nano-1 --swa-full";
        let words: Vec<&str> = words.split_whitespace().collect();
        let o = parse(&words).unwrap();
        let root = Path::new("/r");
        assert_eq!(o.model(root), Path::new("m.gguf"));
        assert_eq!(
            (o.widths(), ascending(&o.depths)),
            (vec![1, 8], vec![0, 512])
        );
        assert_eq!((o.threads(), o.rounds, o.open_rounds), (3, 7, 0));
        assert!(o.sample() == 0.25 && o.swa_full && o.record.as_deref() == Some("nano-1"));
        let plain = parse(&[]).unwrap();
        assert!(
            plain
                .model(root)
                .ends_with("models/glimmer-nano-2-q4_k_m.gguf")
        );
        assert_eq!(plain.widths(), [1, 2, 4, 8, 16, 32, 256]);
        assert!(!plain.swa_full && plain.record.is_none());
        for bad in [
            &["--widths"][..],
            &["--widths", "0"],
            &["--widths", "1,,2"],
            &["--depths=-1"],
            &["--depths", "99999999999"],
            &["--threads", "0"],
            &["--rounds", "0"],
            &["--record", "a/b"],
            &["--record", ""],
            &["--profile", "llamacpp-sse"],
            &["--quick", "1"],
            &["model.gguf"],
        ] {
            let error = parse(bad).unwrap_err();
            let word = bad[0].trim_end_matches("=-1");
            assert!(error.contains(word), "{bad:?}: {error}");
        }
    }

    #[test]
    fn one_thread_is_for_decode_at_the_smallest_depth() {
        let words = "--widths 1,4 --depths 0,64 --threads 2".split(' ');
        let o = parse(&words.collect::<Vec<_>>()).unwrap();
        let points = o.points().into_iter();
        let points: Vec<_> = points.map(|p| (p.threads, p.depth, p.width)).collect();
        assert_eq!(
            points,
            [(1, 0, 1), (2, 0, 1), (2, 0, 4), (2, 64, 1), (2, 64, 4)]
        );
        let one = parse(&["--threads", "1"]).unwrap();
        assert_eq!(one.points().len(), one.widths().len());
    }

    #[test]
    fn positions_stay_within_the_context() {
        let o = parse(&["--widths", "1,32", "--depths", "0,1000"]).unwrap();
        assert_eq!(o.positions(2048), Ok(1256));
        assert_eq!(o.positions(1100), Ok(1100));
        assert!(o.positions(1031).is_err());
        let wide = parse(&["--widths", "700"]).unwrap();
        assert_eq!(wide.positions(2048), Ok(700));
    }

    #[test]
    fn samples_are_long_enough_and_reach_no_further_than_they_may() {
        assert_eq!(calls(0.1, 0.5, 1, 256), (5, 1));
        assert_eq!(calls(6.0, 0.5, 256, 256), (1, 1));
        // Half a millisecond a token: four chains of 256.
        assert_eq!(calls(5e-4, 0.5, 1, 4096), (256, 4));
        assert_eq!(calls(0.02, 0.5, 256, 4096), (1, 25));
        // Near the end of the context, with room for nine positions.
        assert_eq!(calls(0.1, 0.5, 4, 9), (2, 3));
        assert_eq!(calls(0.0, 0.5, 512, 512), (1, 32));
    }
}
