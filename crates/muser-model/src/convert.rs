//! Converts the weights of a GGUF file to F16, BF16 or F32.

use crate::bind::{Index, Tensor};
use crate::synth::ggml_type;
use crate::{ModelError, Spec};
use muser_gguf::{DataWriter, Gguf, TensorInfo, Writer};
use muser_quant::{DType, bf16, f16};
use std::collections::HashMap;
use std::io::Write;

const FILE_TYPE: &str = "general.file_type";

/// Number of weights that a conversion decodes at once; at least one row is decoded.
const CHUNK: usize = 1 << 18;

/// Writes a copy of the file `gguf` whose matrices have the weight format `to` and
/// whose vectors (norms) are F32.
///
/// Metadata and the order of tensors stay; `general.file_type` names the new
/// format. Rows are decoded and written one group after the other, so memory does
/// not grow with the model. Calls `progress(written, total)` with bytes of tensor
/// data.
///
/// Quantised formats decode exactly to F32; F16 and BF16 round to nearest, ties to
/// even.
///
/// # Errors
/// A target other than those three; an unknown architecture; a tensor that is
/// missing, unknown, or of a format that nothing decodes; a value that is not finite
/// in the target format (the largest F16 is 65504); a failure of the output.
pub fn convert(
    gguf: &Gguf,
    to: DType,
    out: &mut impl Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ModelError> {
    if to.is_quantized() {
        return Err(ModelError::Target { found: to });
    }
    let spec = Spec::from_gguf(gguf)?;
    let index = Index::new(gguf, &spec)?;
    let by_name: HashMap<&str, &Tensor> =
        index.all().iter().map(|t| (t.name.as_str(), t)).collect();
    // The model's list of tensors and the file have the same tensors, so none is
    // filtered out.
    let in_order = gguf.tensors().iter();
    let in_order = in_order.filter_map(|info| Some((info, *by_name.get(info.name.as_str())?)));
    let target = |tensor: &Tensor| match tensor.role.is_vector() {
        true => DType::F32,
        false => to,
    };
    let mut writer = Writer::new();
    for entry in gguf.metadata().iter() {
        if entry.key == FILE_TYPE {
            writer.metadata(FILE_TYPE, to.file_type())?;
        } else {
            writer.metadata(entry.key.as_str(), entry.value.clone())?;
        }
    }
    if gguf.metadata().get(FILE_TYPE).is_none() {
        writer.metadata(FILE_TYPE, to.file_type())?;
    }
    let mut total = 0u64;
    for (info, tensor) in in_order.clone() {
        let ty = ggml_type(target(tensor));
        writer.tensor(info.name.as_str(), &info.dims, ty)?;
        total = total.saturating_add(ty.row_bytes(info.n_elements).unwrap_or(u64::MAX));
    }
    let mut data = writer.start(out)?;
    let mut done = 0;
    for (info, tensor) in in_order {
        let to = target(tensor);
        write(gguf, info, tensor.dtype, to, &mut data, &mut |bytes| {
            done += bytes;
            progress(done, total);
        })?;
    }
    data.finish()?;
    Ok(())
}

fn write<W: Write>(
    gguf: &Gguf,
    info: &TensorInfo,
    from: DType,
    to: DType,
    data: &mut DataWriter<W>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), ModelError> {
    let bytes = gguf.tensor_data(info);
    // The file is in memory with every row, so the lengths fit `usize`.
    let cols = info.row_elements() as usize;
    let row_bytes = bytes.len() / (info.rows() as usize).max(1);
    let group = (CHUNK / cols).max(1);
    let mut values = vec![0.0f32; cols * group.min(info.rows() as usize)];
    let mut encoded = Vec::with_capacity(values.len() * to.block_bytes());
    let mut row = 0u64;
    for part in bytes.chunks((row_bytes * group).max(1)) {
        let rows = part.len() / row_bytes.max(1);
        let values = &mut values[..rows * cols];
        from.decode_row(part, values)
            .map_err(|source| ModelError::Rows {
                name: info.name.clone(),
                source,
            })?;
        encoded.clear();
        if let Some(at) = encode(values, to, &mut encoded) {
            return Err(ModelError::NotRepresentable {
                name: info.name.clone(),
                row: row + (at / cols) as u64,
                found: values[at],
                to,
            });
        }
        data.chunk(&info.name, &encoded)?;
        progress(encoded.len() as u64);
        row += rows as u64;
    }
    Ok(())
}

/// Appends the weights to `out` in the format `to`. Returns the index of the first one
/// that is not finite in that format; `None` if all are.
fn encode(values: &[f32], to: DType, out: &mut Vec<u8>) -> Option<usize> {
    let mut bad = None;
    for (i, &v) in values.iter().enumerate() {
        let finite = if to == DType::F16 {
            let bits = f16::from_f32(v);
            out.extend_from_slice(&bits.to_le_bytes());
            bits & 0x7c00 != 0x7c00
        } else if to == DType::BF16 {
            let bits = bf16::from_f32(v);
            out.extend_from_slice(&bits.to_le_bytes());
            bits & 0x7f80 != 0x7f80
        } else {
            out.extend_from_slice(&v.to_le_bytes());
            v.is_finite()
        };
        if !finite && bad.is_none() {
            bad = Some(i);
        }
    }
    bad
}
