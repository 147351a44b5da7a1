//! Describes the architectures that muser runs. Each has one source file, which turns
//! metadata into a [`Spec`], and the sizes of a synthetic model into metadata. No other
//! code depends on an architecture's name.

mod glimmer;
mod keys;
mod llama;
mod rope;

use crate::synth::Geometry;
use crate::{ModelError, Spec};
use keys::{Keys, refused};
use muser_gguf::{Metadata, Value};
use muser_ops::Lane;

const ARCHITECTURE: &str = "general.architecture";

/// Describes an architecture, such as `llama`: how its metadata keys are read and
/// written.
pub(crate) struct Arch {
    /// The architecture's name in `general.architecture`, and the prefix of its
    /// metadata keys.
    pub(crate) name: &'static str,
    /// Reads the model's spec from the metadata keys of a file. What no key says, such
    /// as a bias, it reads from the presence of a tensor.
    read: fn(&Keys<'_>) -> Result<Spec, ModelError>,
    /// Returns a synthetic model's sizes as metadata keys without their prefix, from
    /// which [`Arch::read`] reads the same sizes back.
    pub(crate) keys: fn(&Geometry) -> Vec<(&'static str, Value)>,
    /// Metadata keys that occur in files of this architecture and change no result. Any
    /// other key that `read` does not ask for is refused by name, because it may ask
    /// for arithmetic that the forward pass does not compute.
    harmless: &'static [&'static str],
    /// Whether the pinned lane (llama.cpp's arithmetic) covers the architecture.
    pinned: bool,
    /// The names of the fields of [`Geometry`] (a synthetic model's sizes) that this
    /// architecture does not use.
    pub(crate) unused: &'static [&'static str],
}

/// Returns the metadata keys of a synthetic model's sizes that all architectures share.
fn sizes(g: &Geometry) -> Vec<(&'static str, Value)> {
    vec![
        ("block_count", size(g.layers)),
        ("context_length", size(g.context)),
        ("embedding_length", size(g.hidden)),
        ("feed_forward_length", size(g.ffn)),
        ("attention.head_count", size(g.heads)),
        ("attention.head_count_kv", size(g.kv_heads)),
        ("attention.key_length", size(g.head_dim)),
        ("attention.value_length", size(g.head_dim)),
    ]
}

/// Makes the metadata value of a synthetic model's size, which is bounded far below
/// 2^32.
fn size(n: usize) -> Value {
    Value::from(n as u32)
}

/// The descriptions of all architectures that muser knows.
pub(crate) const ALL: [&Arch; 2] = [&glimmer::ARCH, &llama::ARCH];

/// The names of all architectures that muser knows, as `general.architecture` gives
/// them.
pub const NAMES: [&str; ALL.len()] = {
    let mut names = [""; ALL.len()];
    let mut i = 0;
    while i < ALL.len() {
        names[i] = ALL[i].name;
        i += 1;
    }
    names
};

/// Returns the architecture of this name, such as `llama`; `None` if it is not known.
pub(crate) fn named(name: &str) -> Option<&'static Arch> {
    ALL.into_iter().find(|arch| arch.name == name)
}

/// Reads the spec of a model from its metadata, with the defaults of a lane (strict or
/// pinned arithmetic). `has` says whether the file has a tensor of a name.
pub(crate) fn read(
    metadata: &Metadata,
    has: &dyn Fn(&str) -> bool,
    lane: Lane,
) -> Result<Spec, ModelError> {
    let name = metadata.string(ARCHITECTURE)?;
    let Some(arch) = named(name) else {
        let expected = format!("one of {}", NAMES.join(", "));
        return Err(refused(ARCHITECTURE, expected, name));
    };
    if lane.profile().is_some() && !arch.pinned {
        let covered = ALL.into_iter().filter(|a| a.pinned).map(|a| a.name);
        let covered: Vec<_> = covered.collect();
        let expected = format!("{} in the pinned lane", covered.join(" or "));
        return Err(refused(ARCHITECTURE, expected, name));
    }
    match metadata.opt_u32("split.count")? {
        None | Some(0 | 1) => {}
        Some(parts) => {
            let expected = "a model in one file";
            return Err(refused("split.count", expected, format!("{parts} files")));
        }
    }
    let keys = Keys::new(metadata, has, arch.name, lane);
    let spec = (arch.read)(&keys)?;
    keys.check_all_asked(arch.harmless)?;
    Ok(spec)
}
