//! Measures the error of muser's exp, sigmoid, SiLU and tanh over all 2^32 inputs, and
//! whether expf and tanhf of the pinned lane (llama.cpp's arithmetic) equal the
//! platform's to the bit.
//!
//! The true value is that of the f64 function of the `libm` crate: its own error, about
//! one f64 ulp, is 2^-29 of the f32 ulp in which errors are given here. The figures
//! stand in `docs/numerics.md`; measuring takes minutes for each function.

use muser_ops::math;
use muser_ops::pinned::glibc;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

/// A mathematical function of muser whose error is measured, with the exact function
/// that it approximates.
struct Function {
    name: &'static str,
    computed: fn(f32) -> f32,
    truth: fn(f64) -> f64,
    /// Returns whether the function's error at an input is stated in ulp. Below -88.72…
    /// it is not for sigmoid and SiLU: the e^-x inside overflows and the result is zero
    /// by definition.
    domain: fn(f32) -> bool,
    /// Largest error that the function may have, in ulp; `None` if `docs/numerics.md`
    /// promises no bound.
    bound: Option<f64>,
}

const FUNCTIONS: [Function; 4] = [
    Function {
        name: "exp",
        computed: math::exp,
        truth: libm::exp,
        domain: |_| true,
        bound: Some(2.0),
    },
    Function {
        name: "sigmoid",
        computed: math::sigmoid,
        truth: |x| 1.0 / (1.0 + libm::exp(-x)),
        domain: |x| math::exp(-x).is_finite(),
        bound: None,
    },
    Function {
        name: "silu",
        computed: math::silu,
        truth: |x| x / (1.0 + libm::exp(-x)),
        domain: |x| math::exp(-x).is_finite(),
        bound: None,
    },
    Function {
        name: "tanh",
        computed: math::tanh,
        truth: libm::tanh,
        domain: |_| true,
        bound: None,
    },
];

/// A mathematical function of muser whose results must have the bits of another
/// function's.
struct Twin {
    name: &'static str,
    computed: fn(f32) -> f32,
    truth: fn(f32) -> f32,
}

/// The functions that must have the bits of the platform's math library, which Rust's
/// f32 methods call.
const TWINS: [Twin; 2] = [
    Twin {
        name: "expf",
        computed: glibc::expf,
        truth: f32::exp,
    },
    Twin {
        name: "tanhf",
        computed: glibc::tanhf,
        truth: f32::tanh,
    },
];

/// Counts the f32 inputs with bit patterns `first ..= last` for which the results of
/// muser and of the platform differ; a NaN equals any NaN.
fn differing(t: &Twin, first: u32, last: u32) -> u64 {
    let differs = |x: f32| {
        let (a, b) = ((t.computed)(x), (t.truth)(x));
        a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan())
    };
    let inputs = (first..=last).map(f32::from_bits);
    inputs.filter(|&x| differs(x)).count() as u64
}

/// Errors of a mathematical function over a range of inputs: the largest ones, and
/// numbers of inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Worst {
    /// Largest error of the function, in ulp, over the inputs at which it is stated in
    /// ulp.
    ulp: f64,
    at: f32,
    /// Number of f32 inputs at which the function's error is stated in ulp, NaN
    /// excluded.
    inputs: u64,
    /// Number of f32 inputs for which the function's result is not the true value
    /// rounded to nearest, among those whose error is stated in ulp.
    not_nearest: u64,
    /// Number of f32 inputs at which the function's error is not stated in ulp.
    outside: u64,
    /// Largest absolute error of the function over the inputs at which it is not stated
    /// in ulp.
    outside_error: f64,
}

impl Worst {
    fn merge(&mut self, other: Self) {
        if other.ulp > self.ulp {
            (self.ulp, self.at) = (other.ulp, other.at);
        }
        self.inputs += other.inputs;
        self.not_nearest += other.not_nearest;
        self.outside += other.outside;
        self.outside_error = self.outside_error.max(other.outside_error);
    }
}

/// Computes a function for the f32 inputs with the bit patterns `first ..= last` and
/// returns its largest errors.
fn walk(f: &Function, first: u32, last: u32) -> Worst {
    let mut worst = Worst::default();
    for x in (first..=last).map(f32::from_bits) {
        let (got, want) = ((f.computed)(x), (f.truth)(f64::from(x)));
        let ulp = math::ulp_error(got, want);
        if x.is_nan() {
            // `ulp_error` is infinite if a NaN becomes a number.
            if ulp > worst.ulp {
                (worst.ulp, worst.at) = (ulp, x);
            }
            continue;
        }
        if !(f.domain)(x) {
            worst.outside += 1;
            // -inf / inf is NaN in both functions: no error.
            let error = match got.is_nan() == want.is_nan() {
                true => (f64::from(got) - want).abs(),
                false => f64::INFINITY,
            };
            if error > worst.outside_error {
                worst.outside_error = error;
            }
            continue;
        }
        worst.inputs += 1;
        worst.not_nearest += u64::from(got != want as f32 && !want.is_nan());
        if ulp > worst.ulp {
            (worst.ulp, worst.at) = (ulp, x);
        }
    }
    worst
}

/// Number of f32 inputs that a thread computes at a time: all 2^32 are 256 such pieces.
const PIECE: u32 = 1 << 24;

/// Calls `part(first, last)` for pieces of all 2^32 f32 bit patterns on `threads`
/// threads, and then `merge` with each result.
fn walk_all<T: Send>(
    name: &str,
    threads: usize,
    part: impl Fn(u32, u32) -> T + Sync,
    mut merge: impl FnMut(T),
) {
    let next = AtomicU32::new(0);
    let work = || {
        let mut found = Vec::new();
        loop {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            let Some(first) = piece.checked_mul(PIECE).filter(|_| piece < 256) else {
                return found;
            };
            found.push(part(first, first + (PIECE - 1)));
            eprint!("\r{name}: {:3} %", (piece + 1) * 100 / 256);
            // A failure to print progress is ignored.
            std::io::stderr().flush().ok();
        }
    };
    std::thread::scope(|s| {
        let handles: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        for handle in handles {
            match handle.join() {
                Ok(found) => found.into_iter().for_each(&mut merge),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    eprint!("\r");
}

/// Returns the names of all functions that `cargo xtask math` can measure.
pub(crate) fn names() -> Vec<&'static str> {
    let functions = FUNCTIONS.iter().map(|f| f.name);
    functions.chain(TWINS.iter().map(|t| t.name)).collect()
}

/// Runs `cargo xtask math`: measures the errors of the functions of these names, or of
/// all.
pub(crate) fn command(names: &[String]) -> Result<(), String> {
    let asked = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut broken = Vec::new();
    for f in FUNCTIONS.iter().filter(|f| asked(f.name)) {
        let mut w = Worst::default();
        let part = |first, last| walk(f, first, last);
        walk_all(f.name, threads, part, |found| w.merge(found));
        println!(
            "{:8} {:.4} ulp at {:e} ({:#010x}); {:.4} % of {} not nearest; {} outside the domain, \
             off by at most {:e}",
            f.name,
            w.ulp,
            w.at,
            w.at.to_bits(),
            100.0 * w.not_nearest as f64 / w.inputs as f64,
            w.inputs,
            w.outside,
            w.outside_error,
        );
        if f.bound.is_some_and(|bound| w.ulp > bound) {
            broken.push(f.name);
        }
    }
    for t in TWINS.iter().filter(|t| asked(t.name)) {
        let mut sum = 0;
        let part = |first, last| differing(t, first, last);
        walk_all(t.name, threads, part, |found| sum += found);
        println!(
            "{:8} {sum} of 2^32 inputs differ from the platform's",
            t.name
        );
        if sum > 0 {
            broken.push(t.name);
        }
    }
    match broken[..] {
        [] => Ok(()),
        _ => Err(format!("not as promised: {}", broken.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the search for a function's largest error on a few inputs of one binade;
    /// does not test the bound of the error.
    #[test]
    fn a_walk_finds_the_worst_input() {
        let off = Function {
            name: "off",
            computed: |x| if x == 1.5 { 1.5000005 } else { x },
            truth: |x| x,
            domain: |_| true,
            bound: None,
        };
        let w = walk(&off, 1.25f32.to_bits(), 1.75f32.to_bits());
        assert_eq!((w.at, w.ulp, w.not_nearest), (1.5, 4.0, 1));
        assert_eq!(w.inputs, 1 + (1 << 22));
    }

    #[test]
    fn a_nan_that_turns_into_a_number_is_found() {
        let f = Function {
            name: "zero",
            computed: |_| 0.0,
            truth: |x| x,
            domain: |_| true,
            bound: None,
        };
        let nan = f32::NAN.to_bits();
        assert_eq!(walk(&f, nan, nan).ulp, f64::INFINITY);
    }

    #[test]
    fn outside_the_domain_the_error_is_absolute() {
        let silu = &FUNCTIONS[2];
        let (near, far) = ((-89.0f32).to_bits(), (-90.0f32).to_bits());
        let w = walk(silu, near, far);
        assert_eq!(w.inputs, 0);
        assert!(w.outside_error > 1e-38 && w.outside_error < 1e-36);
        let minus_inf = f32::NEG_INFINITY.to_bits();
        assert_eq!(walk(silu, minus_inf, minus_inf).outside_error, 0.0);
    }

    #[test]
    fn a_twin_that_differs_is_counted() {
        let t = Twin {
            name: "off",
            computed: |x| if x == 1.5 { 1.5000001 } else { x },
            truth: |x| x,
        };
        assert_eq!(differing(&t, 1.25f32.to_bits(), 1.75f32.to_bits()), 1);
        assert_eq!(differing(&t, f32::NAN.to_bits(), f32::NAN.to_bits()), 0);
    }
}
