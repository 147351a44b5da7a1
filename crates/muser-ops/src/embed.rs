//! The embedding lookup: the row of a token, decoded from its packed weight format.

use crate::{OpError, Weight};

/// Decodes a token's row of the embedding table into `out`, which is `table.cols()`
/// long.
///
/// # Errors
/// `out` has another length, or the table has no such row.
pub fn embed(table: &Weight, token: u32, out: &mut [f32]) -> Result<(), OpError> {
    OpError::check("embed", "width", table.cols(), out.len())?;
    let row = token as usize;
    if row >= table.rows() {
        return Err(OpError::Token {
            token,
            vocab: table.rows(),
        });
    }
    table
        .dtype()
        .decode_row(table.row(row), out)
        .map_err(|e| OpError::WeightBytes {
            name: table.name().to_owned(),
            dtype: table.dtype(),
            rows: table.rows(),
            cols: table.cols(),
            expected: e.to_string(),
            found: table.row(row).len(),
        })
}
