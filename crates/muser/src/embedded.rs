//! The embedded model: a GGUF file inside the `muser` binary, which commands use when
//! `--model` names no other.

/// The embedded model's name in messages, in place of a path.
pub(crate) const NAME: &str = "the embedded model";

/// Returns the bytes of the embedded model's GGUF file,
/// `models/glimmer-nano-2-q4_k_m.gguf`.
#[cfg(feature = "embedded")]
pub(crate) fn file() -> Option<&'static [u8]> {
    // Aligned like a mapped file, so that a kernel's loads cross no more cache
    // lines here than there.
    #[repr(C, align(64))]
    struct Aligned<T: ?Sized>(T);
    static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../models/glimmer-nano-2-q4_k_m.gguf"
    )));
    Some(&FILE.0)
}

/// Returns `None` in place of the embedded model's file: this build is without the feature
/// `embedded`.
#[cfg(not(feature = "embedded"))]
pub(crate) fn file() -> Option<&'static [u8]> {
    None
}
