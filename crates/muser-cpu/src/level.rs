//! The instruction-set levels (scalar, avx2, avx512) of the CPU backend, as [`Level`],
//! detected at run time.

#[cfg(target_arch = "x86_64")]
use muser_levels::features;
use std::fmt;
use std::str::FromStr;

/// An instruction-set level: the CPU features that kernels are compiled for. Kernels of
/// all levels compute the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The scalar level: portable code, without vector extensions.
    Scalar,
    /// The avx2 level: AVX2 with FMA and F16C (x86-64-v3).
    Avx2,
    /// The avx512 level: AVX-512 F, BW, DQ, VL and VNNI, in addition to the features of
    /// [`Avx2`](Self::Avx2).
    Avx512,
}

impl Level {
    /// Every instruction-set level, the lowest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// Returns the instruction-set level's name on command lines: `scalar`, `avx2` or
    /// `avx512`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Returns whether this machine's CPU has every feature of the instruction-set level.
    pub fn is_available(self) -> bool {
        self.missing().is_empty()
    }

    /// Returns the CPU features of the instruction-set level that this machine lacks.
    pub fn missing(self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            macro_rules! need {
                ($($feature:tt,)*) => {{
                    $(if !std::arch::is_x86_feature_detected!($feature) {
                        missing.push($feature);
                    })*
                }};
            }
            match self {
                Self::Scalar => {}
                Self::Avx2 => features!(avx2 => need),
                Self::Avx512 => features!(avx512 => need),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        if self > Self::Scalar {
            missing.push("x86-64");
        }
        missing
    }

    /// Returns the instruction-set levels that this machine has, the best last.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|l| l.is_available()).collect()
    }

    /// Returns the best instruction-set level that this machine has.
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .rfind(|l| l.is_available())
            .unwrap_or(Self::Scalar)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a text that is no name of an instruction-set level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown level {0:?}: expected scalar, avx2 or avx512")]
pub struct UnknownLevel(String);

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(s: &str) -> Result<Self, UnknownLevel> {
        Self::ALL
            .into_iter()
            .find(|l| l.name() == s)
            .ok_or_else(|| UnknownLevel(s.to_owned()))
    }
}
