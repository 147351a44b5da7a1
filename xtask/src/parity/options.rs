//! The command's options.

use muser_cpu::Level;
use muser_ops::{Profile, UnknownProfile};

/// What to run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    pub(super) profiles: Vec<Profile>,
    pub(super) seed: u64,
    pub(super) quick: bool,
    pub(super) cpu: bool,
    pub(super) oracle: bool,
    /// The one level of the CPU backend; `None` takes all that there are.
    level: Option<Level>,
    /// Only groups whose names hold this.
    only: String,
}

impl Options {
    pub(super) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut o = Self {
            profiles: Profile::ALL.to_vec(),
            seed: 20_260_101,
            quick: false,
            cpu: true,
            oracle: true,
            level: None,
            only: String::new(),
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            if word == "--quick" {
                o.quick = true;
                continue;
            }
            let known = ["--profile", "--seed", "--subject", "--level", "--only"];
            if !known.contains(&word) {
                let known = known.join(", ");
                return Err(format!(
                    "unknown option {word:?}: expected --quick, {known}"
                ));
            }
            let value = *words
                .next()
                .ok_or_else(|| format!("{word} needs a value"))?;
            let about = |e: String| format!("{word} {value}: {e}");
            match word {
                "--profile" => {
                    let profile = value.parse();
                    o.profiles = vec![profile.map_err(|e: UnknownProfile| e.to_string())?];
                }
                "--seed" => o.seed = value.parse().map_err(|e| about(format!("{e}")))?,
                "--level" => {
                    let level = value.parse();
                    o.level = Some(level.map_err(|e: muser_cpu::UnknownLevel| e.to_string())?);
                }
                "--subject" => match value {
                    "cpu" => o.oracle = false,
                    "oracle" => o.cpu = false,
                    _ => return Err(about("expected cpu or oracle".to_owned())),
                },
                _ => value.clone_into(&mut o.only),
            }
        }
        if !o.cpu && !o.oracle {
            return Err("--subject cpu and --subject oracle exclude each other".to_owned());
        }
        if o.level.is_some() {
            // One level is asked for: nothing else.
            o.oracle = false;
            if !o.cpu {
                return Err("--level is of the CPU backend: not with --subject oracle".to_owned());
            }
        }
        Ok(o)
    }

    /// Whether the group is among those asked for.
    pub(super) fn takes(&self, group: &str) -> bool {
        group.contains(&self.only)
    }

    /// The levels to compare, the lowest first.
    pub(super) fn levels(&self) -> Result<Vec<Level>, String> {
        match self.level {
            None => Ok(Level::available()),
            Some(level) if level.is_available() => Ok(vec![level]),
            Some(level) => {
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

    #[test]
    fn words_are_taken_or_refused_by_name() {
        let all = Options::parse(&[]).unwrap();
        assert!(all.cpu && all.oracle && !all.quick && all.takes("rope"));
        assert_eq!(all.profiles, Profile::ALL);
        let some = [
            "--profile",
            "llamacpp-avx2",
            "--seed",
            "7",
            "--quick",
            "--only",
            "model",
        ];
        let some = Options::parse(&some).unwrap();
        assert_eq!(some.profiles, [Profile::LlamaCppAvx2]);
        assert!(some.seed == 7 && some.quick && some.takes("model/nano") && !some.takes("rope"));
        let one = Options::parse(&["--level", "scalar"]).unwrap();
        assert!(one.cpu && !one.oracle);
        for bad in [
            &["--seed"][..],
            &["--seed", "x"],
            &["--fast", "1"],
            &["--profile", "llamacpp-sse"],
            &["--level", "sse"],
            &["--subject", "gpu"],
            &["--subject", "oracle", "--level", "avx2"],
            &["--subject", "cpu", "--subject", "oracle"],
        ] {
            assert!(Options::parse(bad).is_err(), "{bad:?}");
        }
    }
}
