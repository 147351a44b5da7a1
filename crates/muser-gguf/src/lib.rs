//! Reads and writes GGUF files: header, metadata, tensor directory, and the
//! memory-mapped arena that holds the weights.
//!
//! A file is parsed once, by safe code over `&[u8]`, and refused as a whole if
//! anything in its header is malformed: what [`Gguf`] returns afterwards is in
//! range, aligned, unique by name and valid UTF-8. Tensor data is never copied:
//! a [`TensorData`] is a range of the shared arena and keeps it alive.
//!
//! ```text
//! byte 0   "GGUF"  u32 version  u64 tensors  u64 keys          24 bytes
//!          keys    × { string key, u32 value type, value }
//!          tensors × { string name, u32 n, n × u64 dim, u32 type, u64 offset }
//!          padding to `general.alignment` (32 when the key is absent)
//!          tensor data, each tensor at data start + its offset
//!
//! string   u64 length, UTF-8 bytes         array   u32 type, u64 length, elements
//! ```
//!
//! Versions 2 and 3, little-endian, are supported. A big-endian file is
//! recognised and refused as such.
//!
//! ```
//! use muser_gguf::{Gguf, GgmlType, Writer};
//!
//! let mut writer = Writer::new();
//! writer.metadata("general.architecture", "example")?;
//! writer.metadata("example.block_count", 2u32)?;
//! writer.tensor("output.weight", &[4, 2], GgmlType::F32)?;
//! let mut data = writer.start(Vec::new())?;
//! data.tensor("output.weight", &[0; 32])?;
//! let bytes = data.finish()?;
//!
//! let gguf = Gguf::from_vec(bytes)?;
//! assert_eq!(gguf.metadata().u64("example.block_count")?, 2);
//! let error = gguf.metadata().u32("general.architecture").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     r#"metadata key "general.architecture" at byte 24: expected u32, found string"#,
//! );
//! let info = gguf.tensor("output.weight").expect("declared above");
//! assert_eq!((info.dims.as_slice(), info.n_elements), ([4, 2].as_slice(), 8));
//! assert_eq!(gguf.tensor_data(info).len(), 32);
//! # Ok::<(), muser_gguf::Error>(())
//! ```
//!
//! # What is refused, and with what
//!
//! An [`Error::Refused`] holds a [`Refusal`]: the [`Place`] (header, key or
//! tensor), the byte offset in the file, and the [`Fault`] with what was expected
//! and what was found. `tests/hostile.rs` has a row for each fault.
//!
//! The size of an allocation is first compared with the bytes that are left of
//! the file. Things that take more memory than bytes in the file are limited in
//! number ([`MAX_KEYS`], [`MAX_TENSORS`], [`MAX_ARRAYS`]), and the header as a
//! whole in size ([`MAX_HEADER_BYTES`]), so that a sparse file of a terabyte
//! costs no more than one of 256 MiB. Text is copied, a vocabulary in two
//! allocations; arrays of numbers and tensor data are not.

#![deny(unsafe_code)]

mod arena;
mod array;
mod cursor;
mod error;
mod ggml_type;
mod gguf;
#[expect(
    unsafe_code,
    reason = "a memory map is unsafe by nature; this module is the only one"
)]
mod map;
mod metadata;
mod read;
mod tensor;
mod value;
mod write;

pub use arena::TensorData;
pub use array::{Array, Strings};
pub use error::{Error, Fault, Place, Refusal};
pub use ggml_type::GgmlType;
pub use gguf::Gguf;
pub use metadata::{Entry, Metadata};
pub use tensor::TensorInfo;
pub use value::{Value, ValueType};
pub use write::{DataWriter, Writer};

/// Maximum size of a GGUF header (metadata and tensor directory) in bytes: 256 MiB. A
/// vocabulary of 202,048 tokens with its merges takes about 10 MB.
pub const MAX_HEADER_BYTES: u64 = 256 << 20;

/// Maximum length of a metadata key in bytes, set by the GGUF format.
pub const MAX_KEY_BYTES: u64 = 65_535;

/// Maximum length of a tensor name in bytes: ggml's limit of 64 without the
/// terminator.
pub const MAX_TENSOR_NAME_BYTES: u64 = 63;

/// Maximum number of metadata keys in a file; typical files have about 50.
pub const MAX_KEYS: u64 = 1 << 16;

/// Maximum number of tensors in a GGUF file; one with a tensor for each of 128 experts
/// in 60 layers has 23,000.
pub const MAX_TENSORS: u64 = 1 << 18;

/// Maximum number of metadata arrays in a file, nested ones included.
pub const MAX_ARRAYS: u64 = 1 << 20;

/// Maximum number of dimensions of a tensor.
pub const MAX_DIMS: u32 = 4;

/// Maximum depth of nested metadata arrays; an array without arrays in it has depth 1.
/// ggml itself reads no nested arrays.
pub const MAX_NESTING: u32 = 4;

/// Alignment of tensor data in bytes if `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// The metadata key that sets the alignment of tensor data.
pub const ALIGNMENT_KEY: &str = "general.alignment";
