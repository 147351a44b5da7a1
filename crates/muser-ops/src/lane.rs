//! The lanes: which arithmetic a kernel belongs to.

/// The arithmetic of a forward pass.
///
/// A kernel belongs to exactly one lane. A tensor or a width that a lane does
/// not cover is refused by name; no lane falls back to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lane {
    /// One answer: the same bits however it is computed. Version 1.
    #[default]
    Strict,
}

impl Lane {
    /// The name on command lines and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
        }
    }

    /// The version of the lane's arithmetic. It rises whenever a bit changes.
    pub fn version(self) -> u32 {
        match self {
            Self::Strict => 1,
        }
    }
}

impl std::fmt::Display for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
