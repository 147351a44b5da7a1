//! GGUF files: header, metadata, tensor directory, and the memory-mapped arena
//! the weights are read from; and a writer.
//!
//! A file is parsed once, by safe code over `&[u8]`, and everything a caller
//! could trip over later is refused then: what [`Gguf`] hands out afterwards is
//! in range, aligned, unique by name and valid UTF-8. Tensor data is never
//! copied: a [`TensorData`] is a range of the shared arena and keeps it alive.
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
//! Versions 2 and 3, little-endian. A big-endian file is recognised and refused
//! by that name.
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
//! No allocation is sized by a number that has not been compared with what is
//! left of the file. What costs more memory than its bytes in the file is
//! limited in number ([`MAX_KEYS`], [`MAX_TENSORS`], [`MAX_ARRAYS`]), and the
//! header as a whole to [`MAX_HEADER_BYTES`], so a sparse file of a terabyte
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

/// Where the metadata and the tensor directory must end, in bytes from the
/// start of the file: 256 MiB. A vocabulary of 202,048 tokens with its merges
/// takes about 10 MB.
pub const MAX_HEADER_BYTES: u64 = 256 << 20;

/// The longest metadata key in bytes (the format's own limit).
pub const MAX_KEY_BYTES: u64 = 65_535;

/// The longest tensor name in bytes: what ggml loads (64 with its terminator).
pub const MAX_TENSOR_NAME_BYTES: u64 = 63;

/// The most metadata keys; files in use have about 50.
pub const MAX_KEYS: u64 = 1 << 16;

/// The most tensors; a file with a tensor for each of 128 experts in 60 layers
/// has 23,000.
pub const MAX_TENSORS: u64 = 1 << 18;

/// The most metadata arrays, those within others counted.
pub const MAX_ARRAYS: u64 = 1 << 20;

/// The most dimensions a tensor may have.
pub const MAX_DIMS: u32 = 4;

/// The most arrays within one another, the outermost counted. ggml itself reads
/// no nested array at all.
pub const MAX_NESTING: u32 = 4;

/// The alignment of tensor data when `general.alignment` is absent, in bytes.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// The metadata key that sets the alignment of tensor data.
pub const ALIGNMENT_KEY: &str = "general.alignment";
