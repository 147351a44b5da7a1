//! [`Null`]: a backend that computes nothing and takes no memory.
//!
//! It accepts every operation and checks no shape. Its buffers hold no values; reading
//! one returns zeros. With a [`Hook`](crate::hook::Hook) around it, a forward pass lists
//! the operations of a model: the byte budget (bytes and operations of a pass, from a
//! file's header alone) counts them.

use crate::{
    Attention, Backend, BackendInfo, KvLayout, Lane, Matrix, MatrixInfo, OpError, Plan, RopeSpec,
    Subset, Weight,
};
use std::borrow::Cow;
use std::ops::Range;

/// A backend that computes nothing and accepts every operation, so that a forward pass
/// only lists a model's operations.
#[derive(Clone, Copy, Debug)]
pub struct Null {
    /// The lane (arithmetic) that the computing-nothing backend reports; the forward
    /// pass depends on it.
    pub lane: Lane,
}

/// A buffer of a backend that computes nothing: its width in values, and no values.
#[derive(Clone, Copy, Debug)]
pub struct Width(usize);

impl Backend for Null {
    type Buffer = Width;
    type Set = Vec<MatrixInfo>;
    type Table = MatrixInfo;
    type Vector = usize;
    type Rope = ();
    type Kv = ();
    type Batch<'kv> = Plan;

    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: "null",
            lane: self.lane,
            level: "null".to_owned(),
            threads: 1,
        }
    }

    fn bind_set(&self, set: Vec<Matrix>) -> Result<Vec<MatrixInfo>, OpError> {
        Ok(set.iter().map(|m| m.weight.info()).collect())
    }

    fn bind_table(&self, table: Weight) -> Result<MatrixInfo, OpError> {
        Ok(table.info())
    }

    fn bind_vector(&self, values: Vec<f32>) -> Result<usize, OpError> {
        Ok(values.len())
    }

    fn bind_rope(&self, _: RopeSpec) -> Result<(), OpError> {
        Ok(())
    }

    fn matrices(&self, set: &Vec<MatrixInfo>) -> Vec<MatrixInfo> {
        set.clone()
    }

    fn table(&self, table: &MatrixInfo) -> MatrixInfo {
        table.clone()
    }

    fn vector_len(&self, vector: &usize) -> usize {
        *vector
    }

    fn width(&self, buffer: &Width) -> usize {
        buffer.0
    }

    fn plan<'a>(&self, batch: &'a Plan) -> &'a Plan {
        batch
    }

    fn buffer(&self, _: usize, width: usize) -> Result<Width, OpError> {
        Ok(Width(width))
    }

    fn write(&self, _: &mut Width, _: &[f32]) -> Result<(), OpError> {
        Ok(())
    }

    fn read<'a>(&self, buffer: &'a Width, rows: usize) -> Result<Cow<'a, [f32]>, OpError> {
        Ok(Cow::Owned(vec![0.0; rows * buffer.0]))
    }

    fn kv(&self, _: &[KvLayout]) {}

    fn batch(&self, plan: Plan, _: Vec<&mut ()>) -> Result<Plan, OpError> {
        Ok(plan)
    }

    fn copy_rows(
        &self,
        _: usize,
        _: &Width,
        _: usize,
        _: &mut Width,
        _: usize,
    ) -> Result<(), OpError> {
        Ok(())
    }

    fn gather(&self, _: &Plan, _: &Width, _: &mut Width) -> Result<(), OpError> {
        Ok(())
    }

    fn embed(&self, _: &Plan, _: &MatrixInfo, _: &mut Width) -> Result<(), OpError> {
        Ok(())
    }

    fn project(
        &self,
        _: usize,
        _: &Vec<MatrixInfo>,
        _: Range<usize>,
        _: &Width,
        _: &mut [&mut Width],
    ) -> Result<(), OpError> {
        Ok(())
    }

    fn rms_norm(
        &self,
        _: usize,
        _: &Width,
        _: Option<&usize>,
        _: f32,
        _: &mut Width,
    ) -> Result<(), OpError> {
        Ok(())
    }

    fn head_norm(&self, _: usize, _: &mut Width, _: &usize, _: f32) -> Result<(), OpError> {
        Ok(())
    }

    fn add_rms_norm(
        &self,
        _: usize,
        _: &mut Width,
        _: &Width,
        _: &usize,
        _: f32,
    ) -> Result<(), OpError> {
        Ok(())
    }

    fn add(&self, _: usize, _: &mut Width, _: &Width) -> Result<(), OpError> {
        Ok(())
    }

    fn rope(&self, _: &Plan, _: Subset, (): &(), _: &mut Width) -> Result<(), OpError> {
        Ok(())
    }

    fn attention(
        &self,
        _: &mut Plan,
        _: usize,
        _: &Attention,
        _: Subset,
        _: &Width,
        _: &Width,
        _: &Width,
        _: &mut Width,
    ) -> Result<(), OpError> {
        Ok(())
    }

    fn sigmoid_gate(&self, _: usize, _: &mut Width, _: &Width) -> Result<(), OpError> {
        Ok(())
    }

    fn silu_product(&self, _: usize, _: &mut Width, _: &Width) -> Result<(), OpError> {
        Ok(())
    }

    fn soft_cap(&self, _: usize, _: &mut Width, _: f32, _: Option<f32>) -> Result<(), OpError> {
        Ok(())
    }
}
