//! The command-line options of `cargo xtask parity`, which compares muser with
//! llama.cpp bit for bit.

use muser_cpu::Level;
use muser_ops::Profile;

/// Which kernels and backends of muser to compare with which build of llama.cpp.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(after_help = "\
Builds llama.cpp first, in target/reference: minutes the first time. It needs
g++, cmake and libclang.

Prints a table by kernel and level. Exit code 1 if a value differs, if a kernel was
not compared at all, or if no profile could be run.

Examples:
  cargo xtask parity --quick
  cargo xtask parity --profile llamacpp-avx2 --only attention --level avx2
  cargo xtask parity --subject oracle --seed 7")]
pub struct Options {
    /// Compare with this build of llama.cpp only, llamacpp-avx2 or
    /// llamacpp-avx512; without it, with every one that the machine can run
    #[arg(long, value_name = "NAME")]
    profile: Option<Profile>,
    /// Seed of the random inputs of the test cases
    #[arg(long, value_name = "N", default_value_t = 20_260_101)]
    pub(super) seed: u64,
    /// Run a quick selection of the test cases, which needs minutes, instead of all of
    /// them
    #[arg(long)]
    pub(super) quick: bool,
    /// Compare only the CPU backend, or only the oracle (the scalar functions that
    /// define the bits); without it, both, the oracle in small cases
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<SubjectKind>,
    /// Compare the CPU backend at this instruction-set level only: scalar, avx2 or
    /// avx512
    #[arg(long, value_name = "NAME")]
    level: Option<Level>,
    /// Run only the groups of test cases whose name holds this text: project/q4_k,
    /// attention, model/nano, ...
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    only: String,
}

/// A backend of muser that the option `--subject` selects for the comparison with
/// llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SubjectKind {
    /// The CPU backend, at every instruction-set level that the machine has.
    Cpu,
    /// The scalar oracle: the functions that define the bits of the pinned lane
    /// (llama.cpp's arithmetic).
    Oracle,
}

impl Options {
    /// Returns the reference profiles (builds of llama.cpp) to compare muser with.
    pub(super) fn profiles(&self) -> Vec<Profile> {
        self.profile.map_or(Profile::ALL.to_vec(), |p| vec![p])
    }

    /// Returns whether `--only` selects the group of test cases of this name.
    pub(super) fn takes(&self, group: &str) -> bool {
        group.contains(&self.only)
    }

    /// Returns whether the oracle (the scalar functions that define the bits) is
    /// compared with llama.cpp. Without `--subject` it is, unless `--level` selects the
    /// CPU backend alone.
    pub(super) fn oracle(&self) -> bool {
        match self.subject {
            Some(SubjectKind::Oracle) => true,
            Some(SubjectKind::Cpu) => false,
            None => self.level.is_none(),
        }
    }

    /// Returns the instruction-set levels (scalar, avx2, avx512) at which the CPU
    /// backend is compared with llama.cpp, the lowest first; none if only the oracle
    /// (the scalar functions that define the bits) was asked for.
    ///
    /// # Errors
    /// The machine lacks the level that was asked for, or `--level` was given
    /// for the oracle, which has no levels.
    pub(super) fn levels(&self) -> Result<Vec<Level>, String> {
        match (self.subject, self.level) {
            (Some(SubjectKind::Oracle), None) => Ok(Vec::new()),
            (Some(SubjectKind::Oracle), Some(_)) => {
                Err("--level is of the CPU backend: not with --subject oracle".to_owned())
            }
            (Some(SubjectKind::Cpu) | None, None) => Ok(Level::available()),
            (Some(SubjectKind::Cpu) | None, Some(level)) if level.is_available() => Ok(vec![level]),
            (Some(SubjectKind::Cpu) | None, Some(level)) => {
                let missing = level.missing().join(", ");
                Err(format!(
                    "level {level} needs {missing}, which this machine lacks"
                ))
            }
        }
    }
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
        let line = Line::try_parse_from([&["parity"], words].concat());
        line.map(|l| l.options).map_err(|e| e.to_string())
    }

    #[test]
    fn words_are_taken_or_refused_by_name() {
        let all = parse(&[]).unwrap();
        assert!(all.oracle() && !all.quick && all.takes("rope"));
        assert_eq!(all.profiles(), Profile::ALL);
        assert_eq!(all.levels().unwrap(), Level::available());
        let words = "--profile llamacpp-avx2 --seed 7 --quick --only model";
        let some = parse(&words.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(some.profiles(), [Profile::LlamaCppAvx2]);
        assert!(some.seed == 7 && some.quick && some.takes("model/nano") && !some.takes("rope"));
        for bad in [
            &["--seed"][..],
            &["--seed", "x"],
            &["--fast", "1"],
            &["--profile", "llamacpp-sse"],
            &["--level", "sse"],
            &["--subject", "gpu"],
            &["--subject", "cpu", "--subject", "oracle"],
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(bad[0]), "{bad:?}: {error}");
        }
    }

    #[test]
    fn a_level_is_of_the_cpu_backend() {
        let one = parse(&["--level", "scalar"]).unwrap();
        assert!(!one.oracle());
        assert_eq!(one.levels(), Ok(vec![Level::Scalar]));
        let oracle = parse(&["--subject", "oracle"]).unwrap();
        assert!(oracle.oracle());
        assert_eq!(oracle.levels(), Ok(vec![]));
        let both = parse(&["--subject", "oracle", "--level", "avx2"]).unwrap();
        assert!(both.levels().is_err());
    }
}
