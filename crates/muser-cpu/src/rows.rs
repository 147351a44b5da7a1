//! Cuts buffers into parts for the tasks that a thread team shares.
//!
//! It has three safe functions: [`for_chunks`] cuts a slice into chunks of one length,
//! [`for_parts`] at given ends, and [`for_tiles`] cuts several output buffers of shape
//! `[columns, rows]` into ranges of rows, which are stripes and no slices. `unsafe` in
//! this module: giving disjoint parts of a `&mut` slice to several threads.

use crate::team::Team;
use std::marker::PhantomData;
use std::ops::Range;

/// A `&mut [T]` whose disjoint parts are given to several threads.
struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer stands for a `&mut [T]`; parts of it may be used from
// other threads as long as they do not overlap, which each use states.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            owner: PhantomData,
        }
    }
}

/// Cuts `data` into chunks of `chunk` values and calls `f(i, chunk i)` for each, shared
/// among the team's threads. The last chunk may be shorter.
pub(crate) fn for_chunks<T: Send>(
    team: &mut Team,
    data: &mut [T],
    chunk: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    let parts = Parts::new(data);
    team.run(parts.len.div_ceil(chunk), &|i| {
        let parts = &parts;
        let at = i * chunk;
        let n = chunk.min(parts.len - at);
        // SAFETY: `run` gives each i to one task; the ranges at.. of different
        // i do not overlap and end at `len`; the data outlives `run`.
        f(i, unsafe {
            std::slice::from_raw_parts_mut(parts.start.add(at), n)
        });
    });
}

/// Cuts `data` into consecutive parts, part i ending at `ends[i]`, and calls `f(i, part
/// i)` for each, shared among the team's threads. Values after the last end are not
/// touched.
///
/// # Panics
/// If the ends do not ascend, or the last one is past the data.
pub(crate) fn for_parts<T: Send>(
    team: &mut Team,
    data: &mut [T],
    ends: &[usize],
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    assert!(ends.is_sorted() && ends.last().is_none_or(|&end| end <= data.len()));
    let parts = Parts::new(data);
    team.run(ends.len(), &|i| {
        let parts = &parts;
        let at = if i == 0 { 0 } else { ends[i - 1] };
        // SAFETY: `run` gives each i to one task; the ranges between ascending
        // ends do not overlap and end inside the data, both checked above; the
        // data outlives `run`.
        f(i, unsafe {
            std::slice::from_raw_parts_mut(parts.start.add(at), ends[i] - at)
        });
    });
}

/// A tile of a matrix product's output `[columns, width]`: a range of rows in every
/// column, for writing.
///
/// The value of a row and column of the output lies at `column · width + row`.
pub(crate) struct Tile<'a> {
    start: *mut f32,
    len: usize,
    width: usize,
    /// The index of the weight matrix's row whose results are row 0 of the output tile.
    first: usize,
    rows: usize,
    /// The index of the output's column that is column 0 of the tile.
    column: usize,
    owner: PhantomData<&'a mut [f32]>,
}

impl Tile<'_> {
    /// Returns a tile of the same rows of a product's output that begins `columns`
    /// columns later.
    pub(crate) fn after(&mut self, columns: usize) -> Tile<'_> {
        Tile {
            column: self.column + columns,
            ..*self
        }
    }

    /// Returns the number of rows of the weight matrix whose results the tile holds.
    #[inline]
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Writes results of consecutive rows of one column to a tile of a product's
    /// output, from `row` on. Values past the tile's last row are dropped: kernels
    /// compute whole blocks of rows.
    ///
    /// # Panics
    /// If the tile has no row `row`, or the output no such column.
    #[inline]
    pub(crate) fn set(&mut self, column: usize, row: usize, values: &[f32]) {
        assert!(row < self.rows, "row {row} of a tile of {}", self.rows);
        let n = values.len().min(self.rows - row);
        let at = (self.column + column) * self.width + self.first + row;
        assert!(at + n <= self.len, "column {column} of a tile");
        // SAFETY: rows row .. row + n are inside this tile's own rows of the
        // column, which no other tile shares, and inside the buffer.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.start.add(at), n) };
    }
}

/// The output `[columns, width]` of one matrix of a projection set (matrices that
/// multiply the same input).
pub(crate) struct Output<'a> {
    /// The buffer of the product's output, at least `columns · width` values.
    pub(crate) values: &'a mut [f32],
    /// The number of rows in the weight matrix: the values in one column of the output.
    pub(crate) width: usize,
    /// The number of rows of the weight matrix that one task computes.
    pub(crate) tile: usize,
}

/// Calls `f(index of the output, rows, tile)` for every tile (range of rows) of every
/// product's output, all of them shared among the team's threads as one pool of tasks.
pub(crate) fn for_tiles(
    team: &mut Team,
    outputs: &mut [Output<'_>],
    f: impl Fn(usize, Range<usize>, &mut Tile<'_>) + Sync,
) {
    let counts: Vec<usize> = outputs.iter().map(|o| o.width.div_ceil(o.tile)).collect();
    let cuts: Vec<(Parts<'_, f32>, usize, usize)> = outputs
        .iter_mut()
        .map(|o| (Parts::new(o.values), o.width, o.tile))
        .collect();
    team.run(counts.iter().sum(), &|mut i| {
        let mut which = 0;
        while i >= counts[which] {
            i -= counts[which];
            which += 1;
        }
        let (parts, width, size) = &cuts[which];
        let rows = i * size..((i + 1) * size).min(*width);
        // `run` gives each (output, range of rows) to one task, so the tiles
        // are disjoint; the buffers outlive `run`.
        let mut tile = Tile {
            start: parts.start,
            len: parts.len,
            width: *width,
            first: rows.start,
            rows: rows.len(),
            column: 0,
            owner: PhantomData,
        };
        f(which, rows, &mut tile);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_slice_once() {
        let mut team = Team::new(3).unwrap();
        let mut data = vec![0usize; 1000];
        for_chunks(&mut team, &mut data, 7, |i, c| {
            c.iter_mut().for_each(|v| *v += i + 1)
        });
        assert!(data.iter().enumerate().all(|(at, &v)| v == at / 7 + 1));
    }

    #[test]
    fn parts_end_at_the_given_ends() {
        let mut team = Team::new(3).unwrap();
        let mut data = vec![0usize; 20];
        for_parts(&mut team, &mut data, &[3, 3, 10, 17], |i, part| {
            part.iter_mut().for_each(|v| *v += i + 1)
        });
        let want = [(1, 3), (3, 7), (4, 7), (0, 3)];
        let want: Vec<usize> = want.into_iter().flat_map(|(v, n)| vec![v; n]).collect();
        assert_eq!(data, want);
    }

    #[test]
    fn tiles_cover_every_row_of_every_column_once() {
        let mut team = Team::new(2).unwrap();
        let (mut a, mut b) = (vec![0.0; 3 * 10], vec![0.0; 3 * 5]);
        let mut outputs = [
            Output {
                values: &mut a,
                width: 10,
                tile: 4,
            },
            Output {
                values: &mut b,
                width: 5,
                tile: 4,
            },
        ];
        for_tiles(&mut team, &mut outputs, |which, rows, tile| {
            for column in 0..3 {
                for r in (0..tile.rows()).step_by(4) {
                    let first = (100 * which + 10 * column + rows.start + r) as f32;
                    // Sets four values even if fewer rows are left.
                    tile.set(column, r, &[first, first + 1.0, first + 2.0, first + 3.0]);
                }
            }
        });
        for column in 0..3 {
            for row in 0..10 {
                assert_eq!(a[column * 10 + row], (10 * column + row) as f32);
            }
            for row in 0..5 {
                assert_eq!(b[column * 5 + row], (100 + 10 * column + row) as f32);
            }
        }
    }
}
