//! The error of exp, sigmoid, SiLU and tanh over all 2^32 inputs.
//!
//! Truth is the f64 function of the `libm` crate: its own error, about one f64
//! ulp, is 2^-29 of the f32 ulp in which errors are given here. The figures stand in
//! `docs/numerics.md`; the walk takes minutes a function and core.

use muser_ops::math;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

/// A function with what it should be.
struct Function {
    name: &'static str,
    computed: fn(f32) -> f32,
    truth: fn(f64) -> f64,
    /// Where an error is stated: below -88.72… the e^-x inside sigmoid and
    /// SiLU overflows and the result is zero, as the contract has it.
    domain: fn(f32) -> bool,
    /// The bound that the contract promises, in ulp.
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

/// What a walk found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Worst {
    /// The largest error in the domain, in ulp, and its input.
    ulp: f64,
    at: f32,
    /// Inputs in the domain, NaN aside.
    inputs: u64,
    /// Of those, results that are not the true value rounded to nearest.
    not_nearest: u64,
    /// Inputs outside the domain.
    outside: u64,
    /// The largest absolute error outside it.
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

/// Walks the bit patterns `first ..= last`.
fn walk(f: &Function, first: u32, last: u32) -> Worst {
    let mut worst = Worst::default();
    for x in (first..=last).map(f32::from_bits) {
        let (got, want) = ((f.computed)(x), (f.truth)(f64::from(x)));
        let ulp = math::ulp_error(got, want);
        if x.is_nan() {
            // A NaN that becomes a number is infinitely wrong.
            if ulp > worst.ulp {
                (worst.ulp, worst.at) = (ulp, x);
            }
            continue;
        }
        if !(f.domain)(x) {
            worst.outside += 1;
            // -inf / inf is NaN here as there; NaN compares as no error.
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

/// Inputs that a thread takes at a time: 256 pieces in all.
const PIECE: u32 = 1 << 24;

/// Walks every bit pattern with all cores.
fn walk_all(f: &Function, threads: usize) -> Worst {
    let next = AtomicU32::new(0);
    let work = || {
        let mut worst = Worst::default();
        loop {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            let Some(first) = piece.checked_mul(PIECE).filter(|_| piece < 256) else {
                return worst;
            };
            worst.merge(walk(f, first, first + (PIECE - 1)));
            eprint!("\r{}: {:3} %", f.name, (piece + 1) * 100 / 256);
            // Progress is worth no error.
            std::io::stderr().flush().ok();
        }
    };
    let mut worst = Worst::default();
    std::thread::scope(|s| {
        let handles: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        for handle in handles {
            match handle.join() {
                Ok(part) => worst.merge(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    eprint!("\r");
    worst
}

/// `cargo xtask math`: the functions of these names, or all.
pub(crate) fn command(names: &[&str]) -> Result<(), String> {
    for name in names {
        if FUNCTIONS.iter().all(|f| f.name != *name) {
            let known: Vec<_> = FUNCTIONS.iter().map(|f| f.name).collect();
            return Err(format!(
                "math: {name} is not a function here: expected one of {}",
                known.join(", ")
            ));
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut broken = Vec::new();
    for f in &FUNCTIONS {
        if !names.is_empty() && !names.contains(&f.name) {
            continue;
        }
        let w = walk_all(f, threads);
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
    match broken[..] {
        [] => Ok(()),
        _ => Err(format!("beyond the promised bound: {}", broken.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One binade and the NaNs: the walk itself, not the bound.
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
    fn unknown_names_are_refused() {
        assert!(command(&["sin"]).unwrap_err().contains("sin"));
    }
}
