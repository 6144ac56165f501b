//! Elementary functions, reductions, softmax and normalisation on slices.
//!
//! | function | largest error of the vector path | beyond the range |
//! |---|---|---|
//! | [`exp`] | 2 ulp, subnormal results included | 0 below -104, ∞ above 88.73 |
//! | [`log`] | 2 ulp, subnormal arguments included | log 0 = -∞, NaN below 0 |
//! | [`tanh`] | 3 ulp | ±1 |
//! | [`sigmoid`] | 3 ulp of the result, tails included | 0 and 1 |
//! | [`erf`] | 3 ulp | ±1 |
//!
//! NaN gives NaN. The value of an element does not depend on its place in the slice.

mod activate;
#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_rows;
#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod avx512;
// The scalar functions use the standard library where it has them.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod poly;
mod reduce;
mod rows;
pub(in crate::kernels) mod scalar;
mod scalar_rows;

pub use activate::{activate, add_assign};
pub(in crate::kernels) use activate::{activate_on, add_on};
pub use reduce::{Reduce, reduce};
pub use rows::{layer_norm, layer_norm_into, log_softmax, softmax};

use super::{Isa, KernelError, error::check_len, isa::Kind};

macro_rules! unary {
    ($($name:ident, $into:ident: $doc:literal;)*) => { $(
        #[doc = concat!($doc, " of every element, in place.")]
        pub fn $name(x: &mut [f32]) {
            on::$name(Isa::best(), x);
        }

        #[doc = concat!($doc, " of every element of `x` into `out`, which must not be shorter.")]
        pub fn $into(x: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
            check_len("out", out.len(), x.len())?;
            let out = &mut out[..x.len()];
            out.copy_from_slice(x);
            $name(out);
            Ok(())
        }
    )*

    /// The same functions for a stated instruction set.
    mod on {
        use super::{Isa, Kind, scalar};
        $(
        pub(super) fn $name(isa: Isa, x: &mut [f32]) {
            match isa.kind() {
                Kind::Scalar => x.iter_mut().for_each(|v| *v = scalar::$name(*v)),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
                Kind::Avx2 | Kind::Avx512 => unsafe { super::avx2::slice::$name(x) },
            }
        }
        )*
    } };
}

unary! {
    exp, exp_into: "e to the power";
    log, log_into: "Natural logarithm";
    tanh, tanh_into: "Hyperbolic tangent";
    sigmoid, sigmoid_into: "Logistic function 1 / (1 + e^-x)";
    erf, erf_into: "Error function";
}

#[cfg(test)]
mod row_tests;
#[cfg(test)]
mod tests;
