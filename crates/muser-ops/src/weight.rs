//! A weight matrix: bytes that somebody else keeps alive, with their shape.

use crate::OpError;
use muser_quant::DType;
use std::sync::Arc;

/// `rows × cols` values of one format, row after row, a row `cols` long.
///
/// The bytes are a view into whatever owns them (the mapped file); cloning a
/// `Weight` copies no weight.
#[derive(Clone)]
pub struct Weight {
    name: Arc<str>,
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    dtype: DType,
    rows: usize,
    cols: usize,
}

impl Weight {
    /// A weight over these bytes, refused unless their length is exactly what
    /// format and shape ask for.
    pub fn new(
        name: &str,
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
        dtype: DType,
        rows: usize,
        cols: usize,
    ) -> Result<Self, OpError> {
        let found = bytes.as_ref().len();
        let want = dtype.row_bytes(cols).and_then(|r| r.checked_mul(rows));
        if want != Some(found) || rows == 0 || cols == 0 {
            let expected = match want {
                Some(0) => "empty (zero rows or columns are refused)".to_owned(),
                Some(n) => format!("{n} bytes"),
                None => format!(
                    "no whole number of {}-value blocks or too large",
                    dtype.block_values()
                ),
            };
            let name = name.to_owned();
            return Err(OpError::WeightBytes {
                name,
                dtype,
                rows,
                cols,
                expected,
                found,
            });
        }
        Ok(Self {
            name: name.into(),
            bytes: Arc::new(bytes),
            dtype,
            rows,
            cols,
        })
    }

    /// The tensor's name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The format of the values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Outputs of the projection.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of the projection.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.bytes().len() / self.rows
    }

    /// All bytes, row after row.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// The bytes of one row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[u8] {
        let n = self.row_bytes();
        &self.bytes()[row * n..][..n]
    }
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} [{}, {}] {}",
            self.name, self.cols, self.rows, self.dtype
        )
    }
}
