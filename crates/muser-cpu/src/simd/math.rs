//! exp, sigmoid, SiLU and tanh of vectors: `muser_ops::math` lane by lane.
//!
//! One body for all levels. Branches of the scalar text become selections:
//! both sides are computed, about 25 instructions for tanh.

/// Defines `exp`, `sigmoid`, `silu` and `tanh` in a level's module.
macro_rules! functions {
    ($($features:literal)?) => {
        use muser_ops::math as constants;

        /// e^x in each lane.
        #[inline]
        $(#[target_feature(enable = $features)])?
        pub(crate) fn exp(x: V) -> V {
            let x = max(splat(constants::EXP_MIN), min(splat(constants::EXP_MAX), x));
            let n = round(mul(x, splat(constants::LOG2_E)));
            let r = fma(n, splat(-constants::LN2_HI), x);
            let r = fma(n, splat(-constants::LN2_LO), r);
            let [c0, c1, c2, c3, c4] = constants::EXP_POLY;
            let mut p = splat(c4);
            for c in [c3, c2, c1, c0, 1.0, 1.0] {
                p = fma(p, r, splat(c));
            }
            scale_by_power(p, n)
        }

        /// 1 / (1 + e^-x) in each lane.
        #[inline]
        $(#[target_feature(enable = $features)])?
        pub(crate) fn sigmoid(x: V) -> V {
            let one = splat(1.0);
            div(one, add(one, exp(negate(x))))
        }

        /// x / (1 + e^-x) in each lane.
        #[inline]
        $(#[target_feature(enable = $features)])?
        pub(crate) fn silu(x: V) -> V {
            div(x, add(splat(1.0), exp(negate(x))))
        }

        /// -x: the subtraction from -0 is exact, signed zeros included.
        #[inline]
        $(#[target_feature(enable = $features)])?
        fn negate(x: V) -> V {
            sub(splat(-0.0), x)
        }

        /// tanh x in each lane.
        #[inline]
        $(#[target_feature(enable = $features)])?
        pub(crate) fn tanh(x: V) -> V {
            let a = abs(x);
            let z = mul(a, a);
            let [c0, c1, c2, c3, c4] = constants::TANH_POLY;
            let mut p = splat(c4);
            for c in [c3, c2, c1, c0] {
                p = fma(p, z, splat(c));
            }
            let small = fma(mul(a, z), p, a);
            let one = splat(1.0);
            let large = sub(one, div(splat(2.0), add(exp(add(a, a)), one)));
            copysign(select_lt(a, splat(constants::TANH_SPLIT), small, large), x)
        }
    };
}

pub(crate) use functions;
