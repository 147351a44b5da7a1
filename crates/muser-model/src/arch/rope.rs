//! Reads the metadata keys of rotary position encodings (RoPE), which architectures
//! share.

use super::Keys;
use crate::spec::{Factors, MAX_POSITIONS, Scaling};
use crate::{ModelError, Role};

impl Keys<'_> {
    /// Reads the factor by which RoPE's angles are scaled down, from the metadata key's
    /// present or old name, and returns it with the name found. The factor is 1 without
    /// such a key, and for the value 0, which means "no scaling" in files in
    /// circulation.
    pub(super) fn rope_factor(&self) -> Result<(&'static str, f32), ModelError> {
        const NAMES: [&str; 2] = ["rope.scaling.factor", "rope.scale_linear"];
        let mut found = (NAMES[0], 1.0);
        for suffix in NAMES {
            match self.opt_number(suffix)? {
                None | Some(0.0 | 1.0) => {}
                Some(factor) if found.1 == 1.0 => {
                    found = (suffix, self.check_positive(suffix, factor)?);
                }
                Some(factor) if factor == found.1 => {}
                Some(factor) => {
                    return Err(self.refused(suffix, format!("{} {}", found.0, found.1), factor));
                }
            }
        }
        Ok(found)
    }

    /// Reads from the metadata how the angles of the rotary position encoding (RoPE)
    /// are scaled: linearly if no key says how, and not at all by a factor of 1.
    /// `context` is the number of positions that the model was trained on.
    pub(super) fn rope_scaling(&self, context: usize) -> Result<Scaling, ModelError> {
        const TYPE: &str = "rope.scaling.type";
        const ORIGINAL: &str = "rope.scaling.original_context_length";
        let kind = self.opt_text(TYPE)?.unwrap_or("linear");
        let (_, factor) = self.rope_factor()?;
        let original = self.opt_size(ORIGINAL, MAX_POSITIONS)?.unwrap_or(context);
        let attn_factor = self.opt_positive("rope.scaling.attn_factor")?;
        let attn_factor = attn_factor.unwrap_or(1.0);
        Ok(match kind {
            "none" => Scaling::Unscaled,
            "linear" if factor == 1.0 && attn_factor == 1.0 => Scaling::Unscaled,
            "linear" => Scaling::Linear {
                factor,
                attn_factor,
            },
            "yarn" => Scaling::Yarn {
                factor,
                original,
                attn_factor,
            },
            "longrope" => Scaling::Long {
                factor,
                original,
                attn_factor,
            },
            other => return Err(self.refused(TYPE, "none, linear, yarn or longrope", other)),
        })
    }

    /// Returns whether the file has no tensor, one tensor or two whose values divide
    /// the angles of the rotary position encoding (RoPE).
    pub(super) fn rope_factors(&self) -> Factors {
        let has = |role: Role| self.has(&role.tensor_name(0));
        if has(Role::RopeLong) || has(Role::RopeShort) {
            Factors::LongAndShort
        } else if has(Role::RopeFactors) {
            Factors::One
        } else {
            Factors::Absent
        }
    }
}
