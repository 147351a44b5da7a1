//! The CPU backend's buffers of activations, [`Buffer`]: `[rows, width]` f32, aligned to
//! a cache line.

use muser_ops::OpError;

/// One cache line of activations: 16 f32 values, aligned to 64 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A buffer of the CPU backend: activations, `[rows, width]` f32.
#[derive(Clone, Debug)]
pub struct Buffer {
    width: usize,
    len: usize,
    lines: Vec<Line>,
}

impl Buffer {
    /// Allocates a buffer of `rows` rows of `width` activations, all zero.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn new(rows: usize, width: usize) -> Result<Self, OpError> {
        let refused = || OpError::Memory {
            what: "a buffer of activations",
            bytes: (rows as u64).saturating_mul(width as u64).saturating_mul(4),
            left: "no more memory".to_owned(),
        };
        let len = rows.checked_mul(width).ok_or_else(refused)?;
        let mut lines = Vec::new();
        let reserved = lines.try_reserve_exact(len.div_ceil(16));
        reserved.map_err(|_| refused())?;
        lines.resize(len.div_ceil(16), Line([0.0; 16]));
        Ok(Self { width, len, lines })
    }

    /// Returns the number of activations in a row of the buffer.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Returns all activations of the buffer, row after row.
    pub(crate) fn values(&self) -> &[f32] {
        &lines_as_values(&self.lines)[..self.len]
    }

    /// Returns all activations of the buffer, row after row, for writing.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        &mut lines_as_values_mut(&mut self.lines)[..self.len]
    }

    /// Returns the activations of the buffer's first `rows` rows.
    ///
    /// # Errors
    /// The buffer has another width or fewer rows. The error names the operation `op`.
    pub(crate) fn rows(
        &self,
        op: &'static str,
        rows: usize,
        width: usize,
    ) -> Result<&[f32], OpError> {
        self.check(op, rows, width)?;
        Ok(&self.values()[..rows * width])
    }

    /// Returns the activations of the buffer's first `rows` rows, for writing.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub(crate) fn rows_mut(
        &mut self,
        op: &'static str,
        rows: usize,
        width: usize,
    ) -> Result<&mut [f32], OpError> {
        self.check(op, rows, width)?;
        Ok(&mut self.values_mut()[..rows * width])
    }

    fn check(&self, op: &'static str, rows: usize, width: usize) -> Result<(), OpError> {
        OpError::check(op, "width", width, self.width)?;
        OpError::check_room(op, "values in the buffer", rows * width, self.len)
    }
}

fn lines_as_values(lines: &[Line]) -> &[f32] {
    // SAFETY: a line is 16 f32 without padding (`repr(C)`, 64 bytes, 64-byte
    // alignment), so `n` lines are `16 n` values of a stricter alignment.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 16) }
}

fn lines_as_values_mut(lines: &mut [Line]) -> &mut [f32] {
    // SAFETY: as above; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 16) }
}

const _: () = assert!(size_of::<Line>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_larger_than_memory_is_refused() {
        assert!(Buffer::new(3, 5).is_ok());
        let error = Buffer::new(1 << 40, 1 << 20).unwrap_err().to_string();
        assert!(error.starts_with("a buffer of activations: "), "{error}");
        assert!(Buffer::new(usize::MAX, 2).is_err());
    }
}
