//! Writes synthetic models: files of random weights in any geometry, for timing and for
//! tests of shapes that no trained model has.
//!
//! The same geometry (sizes), mix (weight formats) and seed give the same bytes on
//! every machine: the values of a tensor depend on the seed and the tensor's name only,
//! and are computed from integers by IEEE operations. Scales are chosen so that
//! activations stay near one through any number of layers.

mod fill;
mod geometry;

pub use geometry::Geometry;

use crate::{ModelError, Role, Spec, arch};
use muser_gguf::{GgmlType, Gguf, Writer};
use muser_ops::Lane;
use muser_quant::DType;
use std::io::Write;

/// A mix: the weight formats of a synthetic model's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// llama.cpp's mix Q4_K_M: V and FFN-down are Q6_K on about half of the layers, the
    /// head is Q5_K, the others are Q4_K.
    Q4KM,
    /// All matrices of the synthetic model have one weight format.
    Uniform(DType),
}

impl Mix {
    /// All mixes: the choices of weight formats for a synthetic model's matrices.
    pub const ALL: [Self; 1 + DType::ALL.len()] = {
        let mut all = [Self::Q4KM; 1 + DType::ALL.len()];
        let mut i = 0;
        while i < DType::ALL.len() {
            all[1 + i] = Self::Uniform(DType::ALL[i]);
            i += 1;
        }
        all
    };

    /// Returns the name of this mix of weight formats: `q4_k_m`, `q4_k`, …, `f32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4KM => "q4_k_m",
            Self::Uniform(dtype) => dtype.key(),
        }
    }

    /// Returns the mix of weight formats of this name, in upper or lower case; `None`
    /// if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        let named = |m: &Self| m.name().eq_ignore_ascii_case(name);
        Self::ALL.into_iter().find(named)
    }

    /// Returns the weight format that this mix gives a matrix of a role, such as V, in
    /// layer `layer` of `layers`.
    pub fn dtype(self, role: Role, layer: usize, layers: usize) -> DType {
        let wide = matches!(role, Role::V | Role::FfnDown);
        match self {
            Self::Uniform(dtype) => dtype,
            Self::Q4KM if role == Role::Head => DType::Q5K,
            Self::Q4KM if wide && more_bits(layer, layers) => DType::Q6K,
            Self::Q4KM => DType::Q4K,
        }
    }

    /// Returns llama.cpp's number for this mix of weight formats, the value of
    /// `general.file_type`.
    fn file_type(self) -> u32 {
        match self {
            Self::Q4KM => 15,
            Self::Uniform(dtype) => dtype.file_type(),
        }
    }
}

/// Returns the GGUF tensor type of a weight format.
pub(crate) fn ggml_type(dtype: DType) -> GgmlType {
    GgmlType::from_id(dtype.ggml_type()).expect("every format of the table has a number in GGUF")
}

/// Returns whether V and FFN-down of a layer have more bits, by llama.cpp's rule for
/// Q4_K_M: in the first and the last eighth of the layers, and in every third one
/// between.
fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// A tensor of a synthetic model that is to be written: its name, role, format and
/// size.
struct Planned {
    name: String,
    role: Role,
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: u64,
}

/// Writes a synthetic model: a GGUF file of random weights, one tensor after the other,
/// so that memory does not grow with the model. Calls `progress(written, total)` with
/// bytes of tensor data.
///
/// # Errors
/// A size of the geometry is out of range; rows are not whole blocks of their
/// format; the output fails.
pub fn write(
    geometry: &Geometry,
    mix: Mix,
    seed: u64,
    out: &mut impl Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ModelError> {
    let plan = plan(geometry, mix)?;
    let total = plan.iter().map(|t| t.bytes).sum();
    let mut data = declare(geometry, mix, &plan)?.start(out)?;
    let mut done = 0;
    for t in &plan {
        fill::fill(t, seed, &mut |chunk| {
            data.chunk(&t.name, chunk)?;
            done += chunk.len() as u64;
            progress(done, total);
            Ok(())
        })?;
    }
    data.finish()?;
    Ok(())
}

/// Returns the GGUF header of the synthetic model that [`write()`] makes, and the
/// length of that file in bytes. The header, extended by a hole to that length, is a
/// valid model file with zero weights that takes next to no disk space.
///
/// # Errors
/// Those of [`write()`].
pub fn header(geometry: &Geometry, mix: Mix) -> Result<(Vec<u8>, u64), ModelError> {
    let plan = plan(geometry, mix)?;
    let mut header = Vec::new();
    let _ = declare(geometry, mix, &plan)?.start(&mut header)?;
    let align = u64::from(muser_gguf::DEFAULT_ALIGNMENT);
    let padded = plan.iter().map(|t| t.bytes.next_multiple_of(align));
    let length = header.len() as u64 + padded.sum::<u64>();
    Ok((header, length))
}

/// Makes a GGUF writer with all metadata and tensors of a synthetic model declared.
fn declare(geometry: &Geometry, mix: Mix, plan: &[Planned]) -> Result<Writer, ModelError> {
    let mut writer = metadata(geometry, mix)?;
    for t in plan {
        let (cols, rows) = (t.cols as u64, t.rows as u64);
        let dims: &[u64] = if t.role.is_vector() {
            &[cols]
        } else {
            &[cols, rows]
        };
        writer.tensor(t.name.as_str(), dims, ggml_type(t.dtype))?;
    }
    Ok(writer)
}

/// Reads the spec of a synthetic model from the metadata that its file would have. So a
/// synthetic file has exactly the tensors that its metadata ask for.
pub(crate) fn spec(geometry: &Geometry) -> Result<Spec, ModelError> {
    geometry.check()?;
    let metadata = metadata(geometry, Mix::Q4KM)?;
    let file = metadata.start(Vec::new())?.finish()?;
    let has = |tensor: &str| !geometry.tied && tensor == Role::Head.tensor_name(0);
    let gguf = Gguf::from_vec(file)?;
    arch::read(gguf.metadata(), &has, Lane::Strict)
}

fn plan(geometry: &Geometry, mix: Mix) -> Result<Vec<Planned>, ModelError> {
    let spec = spec(geometry)?;
    let layers = spec.layers.len();
    let planned = |t: crate::TensorSpec| {
        let (cols, rows) = (t.dims[0], t.dims.iter().skip(1).product::<usize>());
        let dtype = match t.role.is_vector() {
            true => DType::F32,
            false => mix.dtype(t.role, t.layer.unwrap_or(0), layers),
        };
        let bytes = dtype.row_bytes(cols).and_then(|b| b.checked_mul(rows));
        let bytes = bytes.ok_or_else(|| ModelError::Geometry {
            what: "row length",
            expected: format!("a multiple of {} for {dtype}", dtype.block_values()),
            found: format!("{cols} in {}", t.name),
        })?;
        Ok(Planned {
            name: t.name,
            role: t.role,
            dtype,
            rows,
            cols,
            bytes: bytes as u64,
        })
    };
    spec.tensors().map(planned).collect()
}

fn metadata(g: &Geometry, mix: Mix) -> Result<Writer, ModelError> {
    let mut writer = Writer::new();
    writer
        .metadata("general.architecture", g.arch)?
        .metadata("general.name", g.name.as_str())?
        .metadata("general.file_type", mix.file_type())?;
    let arch = g.arch()?;
    for (suffix, value) in (arch.keys)(g) {
        writer.metadata(format!("{}.{suffix}", arch.name), value)?;
    }
    writer.metadata("tokenizer.ggml.model", "none")?;
    Ok(writer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_mix_has_the_release_counts() {
        let six = (0..52).filter(|&i| Mix::Q4KM.dtype(Role::V, i, 52) == DType::Q6K);
        assert_eq!(six.count(), 26);
        assert_eq!(Mix::Q4KM.dtype(Role::Head, 0, 52), DType::Q5K);
        assert_eq!(Mix::Q4KM.dtype(Role::FfnDown, 0, 52), DType::Q6K);
        assert_eq!(Mix::Q4KM.dtype(Role::Q, 0, 52), DType::Q4K);
        for mix in Mix::ALL {
            assert_eq!(Mix::from_name(&mix.name().to_uppercase()), Some(mix));
        }
        assert_eq!(Mix::from_name("q9_0"), None);
    }

    #[test]
    fn the_release_geometry_has_the_release_bytes() {
        let geometry = Geometry::named("glimmer-30b").expect("a named geometry");
        let plan = plan(&geometry, Mix::Q4KM).expect("a sound geometry");
        let values: usize = plan.iter().map(|t| t.rows * t.cols).sum();
        assert_eq!(values, 27_854_794_240);
        // The tensors' bytes are those of the released file less its header and
        // vocabulary.
        let bytes: u64 = plan.iter().map(|t| t.bytes).sum();
        assert!((16_700_000_000..16_756_681_056).contains(&bytes), "{bytes}");
    }
}
