//! Weight matrices: a shared view of bytes, with name, format and shape.

use crate::OpError;
use muser_quant::DType;
use std::sync::Arc;

/// A weight matrix: `rows × cols` values of one format, row after row.
///
/// The bytes are a view into their owner, usually the mapped file. Cloning a `Weight`
/// copies no bytes.
#[derive(Clone)]
pub struct Weight {
    name: Arc<str>,
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    dtype: DType,
    rows: usize,
    cols: usize,
}

impl Weight {
    /// Makes a weight of these bytes.
    ///
    /// # Errors
    /// The length of the bytes is not exactly that of `rows` rows of `cols` values in
    /// this format, or the matrix is empty.
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

    /// The number of rows: outputs of the projection.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns: inputs of the projection.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The number of bytes in one row.
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

/// The name, shape and size of a matrix, for profiles and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixInfo {
    /// The tensor's name in the file.
    pub name: Arc<str>,
    /// The number of rows: outputs.
    pub rows: usize,
    /// The number of columns: inputs.
    pub cols: usize,
    /// The number of bytes in all rows.
    pub bytes: u64,
}

impl Weight {
    /// The matrix's name, shape and size.
    pub fn info(&self) -> MatrixInfo {
        MatrixInfo {
            name: Arc::clone(&self.name),
            rows: self.rows,
            cols: self.cols,
            bytes: self.bytes().len() as u64,
        }
    }
}

/// One matrix of a projection set.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The weights.
    pub weight: Weight,
    /// The values that are added to the outputs, one for each row.
    pub bias: Option<Vec<f32>>,
}

impl From<Weight> for Matrix {
    fn from(weight: Weight) -> Self {
        Self { weight, bias: None }
    }
}

impl Matrix {
    /// Returns the weights of a matrix without bias. For backends that add no bias.
    ///
    /// # Errors
    /// The matrix has a bias.
    pub fn without_bias(self) -> Result<Weight, OpError> {
        match self.bias {
            None => Ok(self.weight),
            Some(bias) => Err(OpError::Tensor {
                name: self.weight.name().to_owned(),
                expected: "no bias (this backend adds none)".to_owned(),
                found: format!("one of {} values", bias.len()),
            }),
        }
    }
}

/// Checks that all matrices of a projection set read the same input.
///
/// # Errors
/// A matrix has another number of columns than the first.
pub fn check_set<'a>(set: impl IntoIterator<Item = &'a Weight>) -> Result<(), OpError> {
    let mut cols = None;
    for w in set {
        let want = *cols.get_or_insert(w.cols());
        if want != w.cols() {
            return Err(OpError::Tensor {
                name: w.name().to_owned(),
                expected: format!("{want} columns, as the set's first matrix has"),
                found: w.cols().to_string(),
            });
        }
    }
    Ok(())
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
