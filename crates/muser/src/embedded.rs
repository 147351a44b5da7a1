//! The model inside the binary.

/// Its name in messages.
pub(crate) const NAME: &str = "the embedded model";

/// Its file, `models/glimmer-nano-2-q4_k_m.gguf`.
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

/// No file: built without the feature `embedded`.
#[cfg(not(feature = "embedded"))]
pub(crate) fn file() -> Option<&'static [u8]> {
    None
}
