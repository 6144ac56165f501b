//! The discrete Fourier transform of one row, of any length.

use std::f64::consts::PI;

/// A complex number.
pub(super) type Complex = [f64; 2];

fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// A transform of one length, made ready once.
#[derive(Debug)]
pub(super) struct Fourier {
    length: usize,
    inverse: bool,
    /// The chirp of Bluestein's algorithm and the transform of its mirror, where the length is no
    /// power of two.
    chirp: Option<(Vec<Complex>, Vec<Complex>)>,
}

impl Fourier {
    /// The transform of `length` numbers; the inverse one divides by the length.
    pub(super) fn new(length: usize, inverse: bool) -> Self {
        let chirp = (length > 1 && !length.is_power_of_two()).then(|| {
            let padded = (2 * length - 1).next_power_of_two();
            let sign = if inverse { PI } else { -PI };
            let chirp: Vec<Complex> = (0..length)
                .map(|k| {
                    // k² modulo 2n, so that the angle stays exact.
                    let square = (k as u128 * k as u128 % (2 * length as u128)) as f64;
                    let angle = sign * square / length as f64;
                    [angle.cos(), angle.sin()]
                })
                .collect();
            let mut mirror = vec![[0.0; 2]; padded];
            for (k, c) in chirp.iter().enumerate() {
                let conjugate = [c[0], -c[1]];
                mirror[k] = conjugate;
                mirror[(padded - k) % padded] = conjugate;
            }
            radix2(&mut mirror, false);
            (chirp, mirror)
        });
        Self { length, inverse, chirp }
    }

    /// Transforms a row in place.
    pub(super) fn apply(&self, row: &mut [Complex]) {
        match &self.chirp {
            None => radix2(row, self.inverse),
            Some((chirp, mirror)) => {
                let mut padded = vec![[0.0; 2]; mirror.len()];
                for ((p, x), c) in padded.iter_mut().zip(row.iter()).zip(chirp) {
                    *p = times(*x, *c);
                }
                radix2(&mut padded, false);
                padded.iter_mut().zip(mirror).for_each(|(p, m)| *p = times(*p, *m));
                radix2(&mut padded, true);
                let scale = 1.0 / mirror.len() as f64;
                for ((x, p), c) in row.iter_mut().zip(&padded).zip(chirp) {
                    *x = times([p[0] * scale, p[1] * scale], *c);
                }
            }
        }
        if self.inverse {
            let scale = 1.0 / self.length as f64;
            row.iter_mut().for_each(|x| *x = [x[0] * scale, x[1] * scale]);
        }
    }
}

/// Cooley and Tukey, for a power of two; without the scale of the inverse.
fn radix2(x: &mut [Complex], inverse: bool) {
    let n = x.len();
    if n < 2 {
        return;
    }
    let bits = n.trailing_zeros();
    for i in 0..n {
        let j = i.reverse_bits() >> (usize::BITS - bits);
        if i < j {
            x.swap(i, j);
        }
    }
    let sign = if inverse { 2.0 * PI } else { -2.0 * PI };
    let mut half = 1;
    while half < n {
        let step = sign / (2 * half) as f64;
        for k in 0..half {
            let (sin, cos) = (step * k as f64).sin_cos();
            for start in (k..n).step_by(2 * half) {
                let odd = times(x[start + half], [cos, sin]);
                let even = x[start];
                x[start] = [even[0] + odd[0], even[1] + odd[1]];
                x[start + half] = [even[0] - odd[0], even[1] - odd[1]];
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_agrees_with_the_definition_and_comes_back() {
        for n in [1_usize, 2, 3, 5, 8, 12, 17, 64, 100] {
            let x: Vec<Complex> =
                (0..n).map(|k| [(k as f64 * 1.3).sin(), (k as f64 * 0.7).cos()]).collect();
            let mut fast = x.clone();
            Fourier::new(n, false).apply(&mut fast);
            for (k, got) in fast.iter().enumerate() {
                let mut want = [0.0; 2];
                for (j, v) in x.iter().enumerate() {
                    let angle = -2.0 * PI * ((j * k) % n) as f64 / n as f64;
                    let t = times(*v, [angle.cos(), angle.sin()]);
                    want = [want[0] + t[0], want[1] + t[1]];
                }
                for c in 0..2 {
                    assert!((got[c] - want[c]).abs() < 1e-9, "{n} {k}: {got:?} {want:?}");
                }
            }
            Fourier::new(n, true).apply(&mut fast);
            for (a, b) in fast.iter().zip(&x) {
                assert!((a[0] - b[0]).abs() < 1e-10 && (a[1] - b[1]).abs() < 1e-10);
            }
        }
    }
}
