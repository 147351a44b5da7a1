//! Generates random weights for the tensors of synthetic models, piece by piece.
//!
//! ```text
//! Q4_K, Q5_K   codes, sub-block scales and minima random, 6 bits each;
//!              dmin = d · (largest code) / 2, so that the mean is about zero
//! Q6_K         codes and 8-bit scales random
//! floats       uniform in ±√3 · std, 65,536 steps
//! ```
//!
//! The blocks' scale `d` is chosen for a standard deviation `std` of the weights of 1
//! in the embedding and of `cols^-1/2` in any other matrix, so that a normed input
//! gives outputs near one.

use super::Planned;
use crate::{ModelError, Role};
use muser_quant::{Arithmetic, DType, Layout, bf16, f16};

/// Number of bytes of random weights generated at once.
const CHUNK: usize = 1 << 20;

/// The constant weights of a synthetic model's Q norm, which contain the query scale;
/// the value is that of the release of Muse Glimmer.
const Q_NORM: f32 = 3.87;

/// The random generator SplitMix64 (Steele, Lea and Flood, 2014): a counter and a
/// mixing function. Takes about a nanosecond for eight bytes.
struct Random(u64);

impl Random {
    /// Starts the random stream of one tensor's weights, which depends on the seed and
    /// the tensor's name only.
    fn of(seed: u64, name: &str) -> Self {
        let start = Self(seed).next() ^ 0xcbf2_9ce4_8422_2325;
        let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(name.bytes().fold(start, fnv))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fill(&mut self, out: &mut [u8]) {
        let (words, rest) = out.as_chunks_mut::<8>();
        for word in words {
            *word = self.next().to_le_bytes();
        }
        let last = self.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Generates the random weights of a tensor and gives their bytes to `sink` in pieces
/// of whole blocks.
pub(super) fn fill(
    tensor: &Planned,
    seed: u64,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let mut random = Random::of(seed, &tensor.name);
    if tensor.role.is_vector() {
        return sink(&norm(tensor, &mut random));
    }
    let std = if tensor.role == Role::Embedding {
        1.0
    } else {
        1.0 / (tensor.cols as f32).sqrt()
    };
    let block = tensor.dtype.block_bytes();
    let mut buffer = vec![0; (CHUNK / block * block).min(tensor.bytes as usize)];
    let table = Uniform::new(tensor.dtype, std);
    let mut left = tensor.bytes;
    while left > 0 {
        let n = left.min(buffer.len() as u64);
        let chunk = &mut buffer[..n as usize];
        random.fill(chunk);
        match tensor.dtype.arithmetic() {
            Arithmetic::Groups | Arithmetic::Superblocks => scale(tensor.dtype, chunk, std),
            Arithmetic::Floats if block == 2 => table.halves(chunk),
            Arithmetic::Floats => table.floats(chunk, &mut random),
        }
        sink(chunk)?;
        left -= n;
    }
    Ok(())
}

/// Generates the weights of a synthetic model's RMS norm: normal with mean 1 and
/// deviation 0.1, or the constants of the QK norms.
fn norm(tensor: &Planned, random: &mut Random) -> Vec<u8> {
    let constant = [(Role::QNorm, Q_NORM), (Role::KNorm, 1.0)];
    let constant = constant.into_iter().find(|(role, _)| *role == tensor.role);
    let mut value = || match constant {
        Some((_, value)) => value,
        None => 1.0 + 0.1 * normal(random.next()),
    };
    (0..tensor.cols)
        .flat_map(|_| value().to_le_bytes())
        .collect()
}

/// Returns a nearly normal random number of mean 0 and deviation 1 from 64 random bits:
/// the sum of four uniform 16-bit numbers, less its mean, divided by its standard
/// deviation 65536 / √3.
fn normal(bits: u64) -> f32 {
    let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
    (sum as f32 - 131_070.0) / 37_837.227
}

/// Sets the scales of random quantised blocks so that their values have the standard
/// deviation `std`.
fn scale(dtype: DType, chunk: &mut [u8], std: f32) {
    let Layout {
        factors,
        scales,
        largest_code,
        ..
    } = dtype.layout();
    let largest = f32::from(largest_code);
    let values: &[u16] = match (factors.len(), scales.is_empty()) {
        // With random 6-bit scales sc, minima m and quantised values (codes) q, `sc · q
        // - m · largest / 2` has a standard deviation of about 17.1 times the largest
        // code.
        (2, _) => {
            let d = f16::from_f32(std / (17.1 * largest));
            &[d, f16::from_f32(f16::to_f32(d) * largest / 2.0)]
        }
        // The standard deviation of signed 8-bit scales is 74, that of the quantised
        // values (codes) 18.5.
        (_, false) => &[f16::from_f32(std / (74.0 * 18.5))],
        // Beside their scale `d` the blocks hold only quantised values (codes), uniform
        // from `-largest` to `largest - 1`.
        (_, true) => &[f16::from_f32(std / (largest / 3f32.sqrt()))],
    };
    // The mean of codes that are uniform from `-largest` to `largest - 1` is -1/2; a
    // random sign of the block's scale removes it.
    let random_sign = factors.len() == 1 && scales.is_empty();
    for block in chunk.chunks_exact_mut(dtype.block_bytes()) {
        for (&at, value) in factors.iter().zip(values) {
            let sign = u16::from(block[at + 1] & 0x80) << 8;
            let value = if random_sign { value | sign } else { *value };
            block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Makes uniformly distributed float weights from 16 random bits each. For the two-byte
/// formats (F16 and BF16) a table of 128 KiB maps the random bits to the weight.
struct Uniform {
    step: f32,
    halves: Vec<u16>,
}

impl Uniform {
    fn new(dtype: DType, std: f32) -> Self {
        let step = std * (3f32.sqrt() / 32_768.0);
        let convert = if dtype == DType::F16 {
            f16::from_f32
        } else {
            bf16::from_f32
        };
        let two_bytes = matches!(dtype, DType::F16 | DType::BF16);
        let all = if two_bytes { 0..1 << 16 } else { 0..0 };
        let halves = all.map(|i: u32| convert(uniform(i as u16, step))).collect();
        Self { step, halves }
    }

    fn halves(&self, chunk: &mut [u8]) {
        for v in chunk.as_chunks_mut::<2>().0 {
            *v = self.halves[usize::from(u16::from_le_bytes(*v))].to_le_bytes();
        }
    }

    fn floats(&self, chunk: &mut [u8], random: &mut Random) {
        for four in chunk.chunks_mut(16) {
            let bits = random.next();
            for (i, v) in four.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let bits = (bits >> (16 * i)) as u16;
                *v = uniform(bits, self.step).to_le_bytes();
            }
        }
    }
}

/// Converts 16 random bits to a float, uniform around zero: the middle of the step with
/// that number, of 65,536 steps of width `step`.
fn uniform(bits: u16, step: f32) -> f32 {
    (f32::from(bits) - 32_767.5) * step
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that random rows of each weight format decode to values of mean zero and
    /// of the wanted standard deviation.
    #[test]
    fn weights_have_the_wanted_deviation() {
        for dtype in DType::ALL {
            let (rows, cols) = (64, 1024);
            let tensor = Planned {
                name: "blk.0.ffn_up.weight".to_owned(),
                role: Role::FfnUp,
                dtype,
                rows,
                cols,
                bytes: (dtype.row_bytes(cols).unwrap() * rows) as u64,
            };
            let mut bytes = Vec::new();
            let keep = &mut |chunk: &[u8]| {
                bytes.extend_from_slice(chunk);
                Ok(())
            };
            fill(&tensor, 1, keep).unwrap();
            let mut values = vec![0.0; rows * cols];
            dtype.decode_row(&bytes, &mut values).unwrap();
            let n = values.len() as f64;
            let sum = |f: &dyn Fn(f64) -> f64| values.iter().map(|&v| f(v.into())).sum::<f64>();
            let (mean, square) = (sum(&|v| v) / n, sum(&|v| v * v) / n);
            // Deviation and mean are compared in units of the wanted deviation 1/32.
            assert!(
                (square.sqrt() * 32.0 - 1.0).abs() < 0.03,
                "{dtype} {square}"
            );
            assert!((mean * 32.0).abs() < 0.03, "{dtype} {mean}");
        }
    }

    #[test]
    fn the_generator_is_splitmix64() {
        // These are the first numbers of SplitMix64's reference sequence for the seed
        // 1234567.
        let mut random = Random(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }
}
