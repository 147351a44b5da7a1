//! Rotary position encoding (RoPE), with tables of angles that are computed on demand for
//! 64 positions at a time.

use super::Cpu;
use crate::buffer::Buffer;
use crate::rows::for_chunks;
use muser_ops::attention::CHUNK;
use muser_ops::pinned::check_head;
use muser_ops::{Lane, OpError, Plan, RopeFrequencies, RopeSpec, RopeTable, Subset};
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// A rotary position encoding on the CPU, with the cosines and sines computed so far.
///
/// All passes, layers and sequences share the angles. A table of 64 positions takes 32
/// KB at 64 pairs. A full context of 131,072 positions takes 64 MB, less than a
/// hundredth of its K and V.
#[derive(Debug)]
pub struct Rope {
    frequencies: RopeFrequencies,
    /// The tables of cosines and sines, 64 positions each, by position / 64.
    pages: RwLock<HashMap<usize, RopeTable>>,
}

impl Rope {
    /// Makes a rotary position encoding: computes its frequencies, and no tables of
    /// angles yet.
    ///
    /// # Errors
    /// The lane does not cover the head size.
    pub(super) fn new(lane: Lane, rope: RopeSpec) -> Result<Self, OpError> {
        match lane {
            Lane::Strict => {}
            Lane::Pinned(_) => check_head("rope", rope.head_dim)?,
        }
        Ok(Self {
            frequencies: RopeFrequencies::new(lane, rope),
            pages: RwLock::default(),
        })
    }

    /// Computes the rotary encoding's tables of cosines and sines for these positions,
    /// as far as they are missing.
    fn make(&self, positions: impl Iterator<Item = usize>) {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let mut missing: Vec<usize> = positions
            .map(|p| p / CHUNK)
            .filter(|page| !pages.contains_key(page))
            .collect();
        drop(pages);
        if missing.is_empty() {
            return;
        }
        missing.dedup();
        let made: Vec<_> = missing
            .into_iter()
            .map(|page| (page, self.frequencies.table(page * CHUNK, CHUNK)))
            .collect();
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        pages.extend(made);
    }
}

impl Cpu {
    /// Applies rotary position encoding to a subset of a batch's rows: rotates each
    /// head by the angles of its row's position.
    pub(super) fn rotate(
        &self,
        plan: &Plan,
        subset: Subset,
        rope: &Rope,
        x: &mut Buffer,
    ) -> Result<(), OpError> {
        let (rows, width) = (plan.count(subset), x.width());
        let head = (2 * rope.frequencies.pairs()).max(1);
        OpError::check("rope", "values past whole heads", 0, width % head)?;
        let x = x.rows_mut("rope", rows, width)?;
        let positions: Vec<usize> = (0..rows).map(|r| plan.position(subset, r)).collect();
        rope.make(positions.iter().copied());
        let pages = rope.pages.read().unwrap_or_else(PoisonError::into_inner);
        let tables: Vec<(&[f32], &[f32])> = positions
            .iter()
            .map(|p| pages[&(p / CHUNK)].row(p % CHUNK))
            .collect();
        for_chunks(&mut self.lock().team, x, width, |r, x| {
            let (cos, sin) = tables[r];
            match self.lane {
                Lane::Strict => self.table.rope(x, cos, sin),
                Lane::Pinned(_) => self.table.rope_pinned(x, cos, sin),
            }
        });
        Ok(())
    }
}
