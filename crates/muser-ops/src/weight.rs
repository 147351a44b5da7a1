//! Weight matrices: a shared view of a model file's bytes, with name, format and shape.

use crate::OpError;
use muser_quant::DType;
use std::sync::Arc;

/// A weight matrix: `rows × cols` values of one weight format, row after row.
///
/// The matrix's bytes are a view into their owner, usually the mapped file. Cloning a
/// `Weight` copies no bytes.
#[derive(Clone)]
pub struct Weight {
    name: Arc<str>,
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    dtype: DType,
    rows: usize,
    cols: usize,
}

impl Weight {
    /// Makes a weight matrix of these bytes, after checking that their number fits its
    /// shape and format.
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

    /// Returns the weight tensor's name in the GGUF file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the format in which the matrix's weights are stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of rows of the weight matrix: outputs of the projection.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns of the weight matrix: inputs of the projection.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the number of bytes in one row of the weight matrix.
    pub fn row_bytes(&self) -> usize {
        self.bytes().len() / self.rows
    }

    /// Returns all bytes of the weight matrix, row after row.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// Returns the bytes of one row of the weight matrix.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[u8] {
        let n = self.row_bytes();
        &self.bytes()[row * n..][..n]
    }
}

/// The name, shape and size of a weight matrix, for profiles and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixInfo {
    /// The weight tensor's name in the GGUF file.
    pub name: Arc<str>,
    /// The number of rows of the weight matrix: outputs of its projection.
    pub rows: usize,
    /// The number of columns of the weight matrix: inputs of its projection.
    pub cols: usize,
    /// The number of bytes in all rows of the weight matrix.
    pub bytes: u64,
}

impl Weight {
    /// Returns the weight matrix's name, shape and size.
    pub fn info(&self) -> MatrixInfo {
        MatrixInfo {
            name: Arc::clone(&self.name),
            rows: self.rows,
            cols: self.cols,
            bytes: self.bytes().len() as u64,
        }
    }
}

/// One matrix of a projection set (matrices that multiply the same input), with its
/// bias.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The weights of one matrix of a projection set.
    pub weight: Weight,
    /// The bias values that are added to the projection's outputs, one for each row of
    /// the matrix.
    pub bias: Option<Vec<f32>>,
}

impl From<Weight> for Matrix {
    fn from(weight: Weight) -> Self {
        Self { weight, bias: None }
    }
}

impl Matrix {
    /// Returns the weights of a matrix that has no bias, for backends that add none.
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

/// Checks that all matrices of a projection set read the same input: that all have as
/// many columns as the first.
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
