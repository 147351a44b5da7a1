//! The lanes: the two arithmetics that a forward pass can be computed in.

/// The arithmetic of a forward pass.
///
/// A backend is opened for one lane. A weight format or a head size that the lane
/// does not cover is an error that names the tensor or the operation; no lane falls
/// back to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lane {
    /// muser's own arithmetic, specified in `docs/numerics.md`: the same bits for
    /// any backend, instruction set, thread count and batch width. Version 1.
    #[default]
    Strict,
    /// The bits that llama.cpp computes in this reference profile, specified in
    /// `docs/parity.md`. They depend on the width of the batch and, in a long
    /// context, on the number of threads. Version 1.
    Pinned(Profile),
}

impl Lane {
    /// The lane's name on command lines and in records: `strict` or `pinned`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Pinned(_) => "pinned",
        }
    }

    /// The version of the lane's arithmetic. It rises with every change that changes
    /// a bit of a result.
    pub fn version(self) -> u32 {
        match self {
            Self::Strict | Self::Pinned(_) => 1,
        }
    }

    /// The profile of the pinned lane; `None` in the strict lane.
    pub fn profile(self) -> Option<Profile> {
        match self {
            Self::Strict => None,
            Self::Pinned(profile) => Some(profile),
        }
    }

    /// The number of rows in a micro-batch: a longer call is cut into micro-batches.
    ///
    /// In the strict lane the cut moves no bit, and 256 rows are enough to reach the
    /// machine's peak. In the pinned lane the width of a micro-batch decides its
    /// arithmetic; 512 is llama.cpp's default `n_ubatch`.
    pub fn micro_batch(self) -> usize {
        match self {
            Self::Strict => 256,
            Self::Pinned(_) => 512,
        }
    }

    /// Whether the bits of a row depend on the width of its batch. Where they do, a
    /// backend computes every row of a batch, also those whose result is not read.
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
    /// A build for AVX2, FMA and F16C: float vectors of 8 elements.
    LlamaCppAvx2,
    /// A build for AVX-512 with VNNI: float vectors of 16 elements.
    LlamaCppAvx512,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 2] = [Self::LlamaCppAvx2, Self::LlamaCppAvx512];

    /// The profile's name on command lines and in records, and that of the
    /// comparator's build configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::LlamaCppAvx2 => "llamacpp-avx2",
            Self::LlamaCppAvx512 => "llamacpp-avx512",
        }
    }

    /// The number of elements in the build's float vectors. llama.cpp sums floats in
    /// as many partial sums, so this decides the order of every float sum.
    pub fn vector_width(self) -> usize {
        match self {
            Self::LlamaCppAvx2 => 8,
            Self::LlamaCppAvx512 => 16,
        }
    }

    /// The facts that the profile fixes, as pairs of field and value for people to
    /// read.
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

    /// Whether this build of muser can compute the pinned lane. The lane calls the
    /// platform's math library where llama.cpp does, and only glibc on x86-64 Linux
    /// gives the profile's bits.
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

/// The error for a name that is not a profile's.
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
