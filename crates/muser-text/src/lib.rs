//! Turns text into a model's tokens and back: the tokenizer, the streaming detokenizer,
//! chat templates and [`chat`] formats.
//!
//! The crate takes plain data ([`TokenizerSpec`]) and knows no file format.
//! Token lists, merges and templates come from a file that anyone may have
//! written: on none of them does this crate panic, hang or grow without bound.
//!
//! ```
//! use muser_text::{EncodeOptions, Special, StreamDecoder, Tokenizer, TokenizerSpec};
//!
//! let tokenizer = Tokenizer::new(TokenizerSpec {
//!     model: "gpt2".into(),
//!     pre: Some("llama4".into()),
//!     tokens: ["a", "b", "ab", "<|eot|>"].map(String::from).into(),
//!     token_types: Some(vec![1, 1, 1, 3]),
//!     merges: vec!["a b".into()],
//!     eot: Some(3),
//!     ..TokenizerSpec::default()
//! })?;
//! let options = EncodeOptions { special: Special::Parse, add_bos: false };
//! let ids = tokenizer.encode("aba<|eot|>", options)?;
//! assert_eq!(ids, [2, 0, 3]);
//! assert!(tokenizer.eog().contains(3));
//!
//! let mut stream = StreamDecoder::new(&tokenizer, false);
//! assert_eq!(stream.push(2)?, "ab");
//! # Ok::<(), muser_text::Error>(())
//! ```

#![forbid(unsafe_code)]

mod bytes;
pub mod chat;
mod error;
mod spec;
mod special;
mod split;
mod stream;
mod template;
mod tokenizer;

pub use error::Error;
pub use spec::{TokenKind, TokenizerSpec};
pub use stream::StreamDecoder;
pub use template::{ChatTemplate, Message, RenderOptions};
pub use tokenizer::{EncodeOptions, EndOfGeneration, Special, Tokenizer};

/// The result of a call of this crate: a value, or the [`Error`] of a tokenizer, a text
/// or a chat template.
pub type Result<T, E = Error> = std::result::Result<T, E>;
