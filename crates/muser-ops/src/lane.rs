//! The lanes: which arithmetic a kernel belongs to.

/// The arithmetic of a forward pass.
///
/// A kernel belongs to exactly one lane. A tensor or a width that a lane does
/// not cover is refused by name; no lane falls back to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lane {
    /// One answer: the same bits however it is computed. Version 1.
    #[default]
    Strict,
    /// llama.cpp's own bits, as this reference profile of it computes them.
    /// The width of a batch and, in a long context, the number of threads are
    /// part of the question. Version 1.
    Pinned(Profile),
}

impl Lane {
    /// The name on command lines and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Pinned(_) => "pinned",
        }
    }

    /// The version of the lane's arithmetic. It rises whenever a bit changes.
    pub fn version(self) -> u32 {
        match self {
            Self::Strict | Self::Pinned(_) => 1,
        }
    }

    /// The profile of the pinned lane.
    pub fn profile(self) -> Option<Profile> {
        match self {
            Self::Strict => None,
            Self::Pinned(profile) => Some(profile),
        }
    }

    /// Rows of one micro-batch: longer calls are cut into pieces of so many.
    ///
    /// In the strict lane this moves no bit and 256 rows are enough to compute
    /// at the machine's peak. In the pinned lane the width of a piece decides
    /// its arithmetic, and this is llama.cpp's default `n_ubatch`.
    pub fn micro_batch(self) -> usize {
        match self {
            Self::Strict => 256,
            Self::Pinned(_) => 512,
        }
    }

    /// Whether the width of a batch moves bits. Where it does, no row of a
    /// batch may be left out because nobody reads its result.
    pub fn width_matters(self) -> bool {
        match self {
            Self::Strict => false,
            Self::Pinned(_) => true,
        }
    }
}

impl std::fmt::Display for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Strict => f.pad("strict"),
            Self::Pinned(profile) => f.pad(&format!("pinned/{profile}")),
        }
    }
}

/// A reference profile: a build of llama.cpp and the settings that it runs
/// with, as far as bits depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Built for AVX2, FMA and F16C: float vectors of 8 lanes.
    LlamaCppAvx2,
    /// Built for AVX-512 with VNNI: float vectors of 16 lanes.
    LlamaCppAvx512,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 2] = [Self::LlamaCppAvx2, Self::LlamaCppAvx512];

    /// The name on command lines, in records, and of the comparator's build
    /// file.
    pub fn name(self) -> &'static str {
        match self {
            Self::LlamaCppAvx2 => "llamacpp-avx2",
            Self::LlamaCppAvx512 => "llamacpp-avx512",
        }
    }

    /// Lanes of the build's float vectors: sums of floats are taken in so many
    /// parts.
    pub fn vector_width(self) -> usize {
        match self {
            Self::LlamaCppAvx2 => 8,
            Self::LlamaCppAvx512 => 16,
        }
    }

    /// What the profile fixes: field and value.
    pub fn facts(self) -> [(&'static str, &'static str); 9] {
        let level = match self {
            Self::LlamaCppAvx2 => "AVX2, FMA, F16C (x86-64-v3)",
            Self::LlamaCppAvx512 => "AVX-512 F, CD, BW, DQ, VL, VNNI",
        };
        [
            ("version", "llama-cpp-sys-2 0.1.161 (ggml 0.26.0)"),
            ("compiler", "GCC, -O3, contraction at its default (on)"),
            ("level", level),
            ("math library", "glibc, x86-64 with FMA"),
            ("repacking", "on: Q4_K of rows % 8 == 0 interleaved by 8"),
            ("micro-batch", "n_ubatch 512; a call is a call"),
            ("flash attention", "on (auto)"),
            ("KV cache", "f16, swa_full"),
            (
                "threads",
                "as set here: they cut the KV of single tokens from 512 positions on",
            ),
        ]
    }

    /// Whether this build can compute the lane at all: it calls the platform's
    /// math library where llama.cpp does, and only glibc on x86-64 gives the
    /// profile's bits.
    pub fn is_supported() -> bool {
        cfg!(all(
            target_os = "linux",
            target_env = "gnu",
            target_arch = "x86_64"
        ))
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no profile has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown profile {0:?}: expected llamacpp-avx2 or llamacpp-avx512")]
pub struct UnknownProfile(pub String);

impl std::str::FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        let found = Self::ALL.into_iter().find(|p| p.name() == name);
        found.ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}
