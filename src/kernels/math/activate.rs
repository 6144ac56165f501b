//! Activations and sums of whole slices.

#[cfg(target_arch = "x86_64")]
use super::avx2_rows;
use super::{Isa, Kind};
use crate::kernels::error::check_len;
use crate::kernels::{Activation, KernelError};

/// Applies an activation to every element, in place.
///
/// ```
/// use brigade::kernels::{Activation, math::activate};
/// let mut x = [-1.0, 0.0, 2.0];
/// activate(Activation::Relu, &mut x);
/// assert_eq!(x, [0.0, 0.0, 2.0]);
/// ```
pub fn activate(activation: Activation, x: &mut [f32]) {
    activate_on(Isa::best(), activation, x);
}

/// [`activate`] for a stated instruction set.
pub(in crate::kernels) fn activate_on(isa: Isa, activation: Activation, x: &mut [f32]) {
    match isa.kind() {
        _ if activation == Activation::None => {}
        Kind::Scalar => x.iter_mut().for_each(|v| *v = activation.apply(*v)),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
        Kind::Avx2 | Kind::Avx512 => unsafe { avx2_rows::activate(activation, x) },
    }
}

/// Adds `y`, which must not be shorter, to `x`, element by element.
///
/// # Errors
/// When `y` is too short. `x` is then untouched.
pub fn add_assign(x: &mut [f32], y: &[f32]) -> Result<(), KernelError> {
    check_len("y", y.len(), x.len())?;
    add_on(Isa::best(), x, y);
    Ok(())
}

/// Adds as many elements as both slices have.
pub(in crate::kernels) fn add_on(isa: Isa, x: &mut [f32], y: &[f32]) {
    match isa.kind() {
        Kind::Scalar => x.iter_mut().zip(y).for_each(|(x, y)| *x += y),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
        Kind::Avx2 | Kind::Avx512 => unsafe { avx2_rows::add(x, y) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Rng, assert_close};

    #[test]
    fn slices_agree_with_single_values() {
        let all = [
            Activation::None,
            Activation::Relu,
            Activation::Clip { lo: -0.5, hi: 0.7 },
            Activation::HardSwish,
            Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
            Activation::Sigmoid,
            Activation::Silu,
            Activation::Gelu,
            Activation::Tanh,
        ];
        let x: Vec<f32> = Rng::new(51).vec(77).iter().map(|v| v * 6.0).collect();
        for &isa in Isa::available() {
            for activation in all {
                let mut y = x.clone();
                activate_on(isa, activation, &mut y);
                let want: Vec<f64> = x.iter().map(|&v| f64::from(activation.apply(v))).collect();
                assert_close(&y, &want, 1e-6, &format!("{activation:?} on {}", isa.name()));
            }
        }
    }

    #[test]
    fn sums_and_short_slices() {
        let mut x: Vec<f32> = (0..21).map(|v| v as f32).collect();
        add_assign(&mut x, &[0.5; 22]).unwrap();
        assert!(x.iter().enumerate().all(|(i, &v)| v == i as f32 + 0.5));
        assert!(add_assign(&mut x, &[0.5; 20]).is_err());
    }
}
