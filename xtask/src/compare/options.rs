//! The command's options.

use muser_cpu::Level;
use muser_ops::{Profile, UnknownProfile};
use std::path::{Path, PathBuf};

/// Tokens that the calls of one sample cover at most, from the depth on: the
/// rings of sliding layers, ours and llama.cpp's, then still hold the window
/// when the sample is taken back. A single call may be longer.
pub(super) const REACH: usize = 256;

/// What to compare.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    pub(super) model: PathBuf,
    pub(super) profiles: Vec<Profile>,
    pub(super) widths: Vec<usize>,
    pub(super) depths: Vec<usize>,
    pub(super) threads: usize,
    pub(super) rounds: usize,
    /// Seconds that a sample lasts about.
    pub(super) sample: f64,
    /// Rounds of opening the file anew; 0 leaves that out.
    pub(super) open_rounds: usize,
    /// Whether llama.cpp's sliding layers keep every position.
    pub(super) swa_full: bool,
    /// The name of the record to write.
    pub(super) record: Option<String>,
}

/// A configuration: what is timed on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) threads: usize,
    pub(super) depth: usize,
    pub(super) width: usize,
}

/// A profile's own level of our kernels.
pub(super) fn level(profile: Profile) -> Level {
    match profile.lanes() {
        16 => Level::Avx512,
        _ => Level::Avx2,
    }
}

fn number(text: &str) -> Result<usize, String> {
    match text.parse() {
        // Far above any model's context, and no product of two overflows.
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

fn list(text: &str, each: fn(&str) -> Result<usize, String>) -> Result<Vec<usize>, String> {
    let mut list = text.split(',').map(each).collect::<Result<Vec<_>, _>>()?;
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

fn name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match text.chars().all(fits) && !text.is_empty() {
        true => Ok(text.to_owned()),
        false => Err("expected lower-case letters, digits and hyphens".to_owned()),
    }
}

impl Options {
    /// Reads the words; `root` is the repository's.
    pub(super) fn parse(root: &Path, words: &[&str]) -> Result<Self, String> {
        let mut o = Self {
            model: root.join("models/glimmer-nano-2-q4_k_m.gguf"),
            profiles: Profile::ALL
                .into_iter()
                .filter(|&p| level(p).is_available())
                .collect(),
            widths: vec![1, 2, 4, 8, 16, 32, 256],
            depths: vec![0],
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            rounds: 5,
            sample: 0.5,
            open_rounds: 3,
            swa_full: false,
            record: None,
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            if word == "--swa-full" {
                o.swa_full = true;
                continue;
            }
            let value = *words
                .next()
                .ok_or_else(|| format!("{word}: an unknown option, or one without its value"))?;
            o.set(word, value)
                .map_err(|e| format!("{word} {value}: {e}"))?;
        }
        if o.profiles.is_empty() {
            return Err("no profile: this machine lacks AVX2".to_owned());
        }
        Ok(o)
    }

    fn set(&mut self, word: &str, value: &str) -> Result<(), String> {
        match word {
            "--model" => self.model = PathBuf::from(value),
            "--profile" => {
                let profile: Profile = value
                    .parse()
                    .map_err(|e: UnknownProfile| format!("unknown: {e}"))?;
                let missing = level(profile).missing();
                if !missing.is_empty() {
                    return Err(format!("this machine lacks {}", missing.join(", ")));
                }
                self.profiles = vec![profile];
            }
            "--widths" => self.widths = list(value, positive)?,
            "--depths" => self.depths = list(value, number)?,
            "--threads" => self.threads = positive(value)?,
            "--rounds" => self.rounds = positive(value)?,
            "--sample" => self.sample = positive(value)? as f64 / 1e3,
            "--open-rounds" => self.open_rounds = number(value)?,
            "--record" => self.record = Some(name(value)?),
            _ => return Err("unknown option".to_owned()),
        }
        Ok(())
    }

    /// The configurations in their order: by depth, then width. Decode on one
    /// thread goes first, at the smallest depth only: each count of threads of
    /// ours has a context of its own to fill.
    pub(super) fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for (i, &depth) in self.depths.iter().enumerate() {
            for &width in &self.widths {
                if i == 0 && width == 1 && self.threads > 1 {
                    points.push(Point {
                        threads: 1,
                        depth,
                        width,
                    });
                }
                points.push(Point {
                    threads: self.threads,
                    depth,
                    width,
                });
            }
        }
        points
    }

    /// Positions that the calls need room for, within a model's context.
    ///
    /// # Errors
    /// One call from the greatest depth does not fit.
    pub(super) fn positions(&self, context: usize) -> Result<usize, String> {
        let deepest = self.depths.last().copied().unwrap_or(0);
        let widest = self.widths.last().copied().unwrap_or(1);
        match deepest + widest {
            n if n > context => Err(format!(
                "depth {deepest} and width {widest}: the model's context is {context}"
            )),
            _ => Ok((deepest + widest.max(REACH)).min(context)),
        }
    }
}

/// Successive calls in a chain, and chains in a sample, for calls of about so
/// many seconds.
pub(super) fn calls(seconds: f64, sample: f64, width: usize, room: usize) -> (usize, usize) {
    let wanted = (sample / seconds.max(1e-9)).ceil().clamp(1.0, 1e6) as usize;
    let most = (REACH.min(room) / width.max(1)).max(1);
    let calls = wanted.min(most);
    // The machine's noise comes in bursts: more than a few dozen chains of a
    // tiny model say nothing new.
    (calls, wanted.div_ceil(calls).min(32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        Options::parse(Path::new("/r"), words)
    }

    #[test]
    fn words_are_taken_or_refused_by_name() {
        let words = "--model m.gguf --widths 8,1,8 --depths 512,0 --threads 3 --rounds 7 \
                     --sample 250 --open-rounds 0 --record nano-1 --swa-full";
        let words: Vec<&str> = words.split_whitespace().collect();
        let o = parse(&words).unwrap();
        assert_eq!(o.model, Path::new("m.gguf"));
        assert_eq!((o.widths, o.depths), (vec![1, 8], vec![0, 512]));
        assert_eq!((o.threads, o.rounds, o.open_rounds), (3, 7, 0));
        assert!(o.sample == 0.25 && o.swa_full && o.record.as_deref() == Some("nano-1"));
        let plain = parse(&[]).unwrap();
        assert!(plain.model.ends_with("models/glimmer-nano-2-q4_k_m.gguf"));
        assert!(!plain.swa_full && plain.record.is_none());
        for bad in [
            &["--widths"][..],
            &["--widths", "0"],
            &["--widths", "1,,2"],
            &["--depths", "-1"],
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
            assert!(error.starts_with(bad[0]), "{bad:?}: {error}");
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
        assert_eq!(one.points().len(), one.widths.len());
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
        // The end of the context.
        assert_eq!(calls(0.1, 0.5, 4, 9), (2, 3));
        assert_eq!(calls(0.0, 0.5, 512, 512), (1, 32));
    }
}
