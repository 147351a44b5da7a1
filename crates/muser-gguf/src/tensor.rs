//! Describes the tensors of a GGUF file's directory, and checks their names, types and
//! shapes.

use crate::{Fault, GgmlType, MAX_DIMS, MAX_TENSOR_NAME_BYTES};

/// A tensor as the directory of a GGUF file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The tensor's name, unique in the file.
    pub name: String,
    /// The tensor's 1 to 4 dimensions, each at least 1, in GGUF order: `dims[0]` is the
    /// row length, adjacent in memory.
    pub dims: Vec<u64>,
    /// The ggml type in which the tensor's elements are stored.
    pub ty: GgmlType,
    /// Byte offset in the file of the tensor's data.
    pub offset: u64,
    /// Size of the tensor's data in bytes, without padding.
    pub byte_len: u64,
    /// Number of elements of the tensor: the product of its dimensions.
    pub n_elements: u64,
}

impl TensorInfo {
    /// Returns the length of the tensor's rows in elements, `dims[0]`.
    #[must_use]
    pub fn row_elements(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// Returns the number of the tensor's rows: the product of all dimensions but the
    /// first.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.n_elements / self.row_elements().max(1)
    }
}

/// Checks the length in bytes of a tensor's name before the name is read.
pub(crate) fn check_name_length(len: u64) -> Result<(), Fault> {
    if len == 0 || len > MAX_TENSOR_NAME_BYTES {
        return Err(Fault::TensorNameLength { found: len });
    }
    Ok(())
}

/// Checks the number of a tensor's dimensions before they are read.
pub(crate) fn check_dim_count(n: u64) -> Result<(), Fault> {
    if n == 0 || n > u64::from(MAX_DIMS) {
        return Err(Fault::DimCount { found: n });
    }
    Ok(())
}

/// Returns the tensor type with this number in a GGUF file, or the fault that ggml has
/// none or has removed it.
pub(crate) fn check_type(id: u32) -> Result<GgmlType, Fault> {
    GgmlType::from_id(id).ok_or_else(|| match GgmlType::removed_name(id) {
        Some(name) => Fault::RemovedType { found: id, name },
        None => Fault::UnknownType { found: id },
    })
}

/// Returns the number of elements of a tensor of these dimensions. Each dimension must
/// be at least 1, and the product at most `i64::MAX`, as in ggml.
pub(crate) fn check_dims(dims: &[u64]) -> Result<u64, Fault> {
    if let Some(dim) = (0..).zip(dims).find_map(|(i, &d)| (d == 0).then_some(i)) {
        return Err(Fault::DimZero { dim });
    }
    dims.iter()
        .try_fold(1u64, |n, &d| n.checked_mul(d))
        .filter(|&n| i64::try_from(n).is_ok())
        .ok_or_else(|| Fault::Elements {
            dims: dims.to_vec(),
        })
}

/// Returns the size in bytes of a tensor of `n_elements` in rows of `dims[0]`, without
/// and with padding to `alignment`.
pub(crate) fn check_bytes(
    dims: &[u64],
    n_elements: u64,
    ty: GgmlType,
    alignment: u32,
) -> Result<(u64, u64), Fault> {
    let row = dims.first().copied().unwrap_or(0);
    if !row.is_multiple_of(ty.block_elements()) {
        return Err(Fault::RowLength { ty, found: row });
    }
    // A row is whole blocks, so the size of all rows can be computed at once.
    let bytes = ty.row_bytes(n_elements);
    bytes
        .and_then(|bytes| Some((bytes, bytes.checked_next_multiple_of(alignment.into())?)))
        .ok_or_else(|| Fault::Bytes {
            ty,
            dims: dims.to_vec(),
        })
}
