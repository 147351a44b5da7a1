//! The lanes: the two arithmetics, muser's own and llama.cpp's, that a forward pass can
//! be computed in.

/// A lane: the arithmetic of a forward pass, either muser's own (strict) or llama.cpp's
/// (pinned).
///
/// A backend is opened for one lane. A weight format or a head size that the lane
/// does not cover is an error that names the tensor or the operation; no lane falls
/// back to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lane {
    /// The strict lane: muser's own arithmetic, specified in `docs/numerics.md`, with
    /// the same bits for any backend, instruction set, thread count and batch width.
    /// Version 1.
    #[default]
    Strict,
    /// The pinned lane: the bits that llama.cpp computes in this reference profile (a
    /// build with its settings), specified in `docs/parity.md`. They depend on the width
    /// of the batch and, in a long context, on the number of threads. Version 1.
    Pinned(Profile),
}

impl Lane {
    /// Returns the name of the arithmetic on command lines and in records: `strict`
    /// (muser's own) or `pinned` (llama.cpp's).
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Pinned(_) => "pinned",
        }
    }

    /// Returns the version of the lane's arithmetic. It rises with every change that
    /// changes a bit of a result.
    pub fn version(self) -> u32 {
        match self {
            Self::Strict | Self::Pinned(_) => 1,
        }
    }

    /// Returns the profile (the build of llama.cpp) whose bits the pinned lane computes;
    /// `None` in the strict lane (muser's own arithmetic).
    pub fn profile(self) -> Option<Profile> {
        match self {
            Self::Strict => None,
            Self::Pinned(profile) => Some(profile),
        }
    }

    /// Returns the number of rows (tokens) in a micro-batch, the most that a forward
    /// pass computes at once: a longer call is cut into micro-batches.
    ///
    /// In the strict lane (muser's own arithmetic) the cut moves no bit, and 256 rows
    /// are enough to reach the machine's peak. In the pinned lane (llama.cpp's) the
    /// width of a micro-batch decides its arithmetic; 512 is llama.cpp's default
    /// `n_ubatch`.
    pub fn micro_batch(self) -> usize {
        match self {
            Self::Strict => 256,
            Self::Pinned(_) => 512,
        }
    }

    /// Returns whether, in this lane's arithmetic, the bits of a row of activations
    /// depend on the width of its batch. Where they do, a backend computes every row of
    /// a batch, also those whose result is not read.
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

/// A reference profile: a build of llama.cpp and the settings it runs with, as far
/// as they decide the bits of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// A build of llama.cpp for AVX2, FMA and F16C: float vectors of 8 elements.
    LlamaCppAvx2,
    /// A build of llama.cpp for AVX-512 with VNNI: float vectors of 16 elements.
    LlamaCppAvx512,
}

impl Profile {
    /// All reference profiles: the builds of llama.cpp whose bits muser can compute.
    pub const ALL: [Self; 2] = [Self::LlamaCppAvx2, Self::LlamaCppAvx512];

    /// Returns the reference profile's name (`llamacpp-avx2`, …) on command lines and in
    /// records, and that of the build configuration of the comparator (llama.cpp as a
    /// process).
    pub fn name(self) -> &'static str {
        match self {
            Self::LlamaCppAvx2 => "llamacpp-avx2",
            Self::LlamaCppAvx512 => "llamacpp-avx512",
        }
    }

    /// Returns the number of elements in the float vectors of this build of llama.cpp,
    /// which sums floats in as many partial sums: so it decides the order of every float
    /// sum.
    pub fn vector_width(self) -> usize {
        match self {
            Self::LlamaCppAvx2 => 8,
            Self::LlamaCppAvx512 => 16,
        }
    }

    /// Returns the settings of llama.cpp that the reference profile (a build of it)
    /// fixes, as pairs of field and value for people to read.
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

    /// Returns whether this build of muser can compute the pinned lane (llama.cpp's
    /// arithmetic). The lane calls the platform's math library where llama.cpp does, and
    /// only glibc on x86-64 Linux gives the profile's bits.
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

/// The error for a name that is not that of a reference profile (a build of llama.cpp),
/// with the name.
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
