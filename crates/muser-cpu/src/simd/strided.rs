//! Views of weight rows for the transposing kernels. [`Strided`]: rows a constant
//! number of bytes apart. [`Word`]: the 32-bit types in a line of a slab (weight rows
//! transposed, one vector element per row).

use std::marker::PhantomData;

/// A type of 32 bits without padding, for which every bit pattern is valid, so that
/// vectors can be stored to arrays of it.
///
/// # Safety
/// The type has four bytes, no padding and no invalid value.
pub(crate) unsafe trait Word: Copy {}

// SAFETY: four bytes, every pattern a value.
unsafe impl Word for f32 {}
// SAFETY: as above.
unsafe impl Word for i32 {}
// SAFETY: as above.
unsafe impl Word for [u8; 4] {}
// SAFETY: as above.
unsafe impl Word for [i16; 2] {}

/// A view of `L` weight rows that begin `stride` bytes apart; `B` bytes of each may be
/// read.
///
/// One pointer and the stride address all rows. Sixteen slices would be sixteen pointers in
/// memory and a check for each load.
#[derive(Clone, Copy)]
pub(crate) struct Strided<'a, const L: usize, const B: usize> {
    first: *const u8,
    stride: usize,
    owner: PhantomData<&'a [u8]>,
}

impl<'a, const L: usize, const B: usize> Strided<'a, L, B> {
    /// Makes a view of `L` rows, `stride` bytes apart, of which the first begins at the
    /// start of `bytes`.
    ///
    /// # Panics
    /// If the last row would end past the end of `bytes`.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], stride: usize) -> Self {
        const { assert!(L > 0) };
        let end = (L - 1).checked_mul(stride).and_then(|n| n.checked_add(B));
        assert!(end.is_some_and(|end| end <= bytes.len()));
        Self {
            first: bytes.as_ptr(),
            stride,
            owner: PhantomData,
        }
    }

    /// Returns `N` bytes of a row of the view, from the row's byte `at` on.
    ///
    /// # Panics
    /// If there is no such row, or the bytes end past its `B` bytes.
    #[inline]
    pub(crate) fn bytes<const N: usize>(self, row: usize, at: usize) -> &'a [u8; N] {
        assert!(row < L && at <= B && N <= B - at);
        // SAFETY: `new` has checked that row L - 1 has B bytes inside the slice
        // that is borrowed for 'a, and every earlier row lies before it; the
        // assertion keeps row and place inside that.
        unsafe { &*self.first.add(row * self.stride + at).cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_begins_a_stride_after_the_one_before() {
        let bytes: Vec<u8> = (0..30).collect();
        let rows: Strided<'_, 3, 8> = Strided::new(&bytes, 11);
        assert_eq!(rows.bytes::<2>(0, 0), &[0, 1]);
        assert_eq!(rows.bytes::<3>(2, 5), &[27, 28, 29]);
    }

    #[test]
    #[should_panic(expected = "end <= bytes.len()")]
    fn a_row_past_the_end_is_refused() {
        let _: Strided<'_, 3, 9> = Strided::new(&[0; 30], 11);
    }

    #[test]
    #[should_panic(expected = "row < L")]
    fn bytes_past_the_end_of_a_row_are_refused() {
        let rows: Strided<'_, 3, 8> = Strided::new(&[0; 30], 11);
        rows.bytes::<4>(1, 5);
    }
}
