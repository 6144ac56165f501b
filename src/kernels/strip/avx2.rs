//! Taking rows of an image apart, for AVX2.

use std::arch::x86_64::*;

/// The elements at even places of sixteen.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn even(a: __m256, b: __m256) -> __m256 {
    let mixed = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
    _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(mixed))
}

/// Copies every `stride`-th element of `from`, beginning with the first, to `to`.
#[target_feature(enable = "avx2,fma")]
pub(super) fn every(from: &[f32], stride: usize, to: &mut [f32]) {
    let mut done = 0;
    if stride == 2 {
        while done + 8 <= to.len() && 2 * done + 16 <= from.len() {
            // SAFETY: 16 elements to read and 8 to write were checked.
            unsafe {
                let i = from.as_ptr().add(2 * done);
                let v = even(_mm256_loadu_ps(i), _mm256_loadu_ps(i.add(8)));
                _mm256_storeu_ps(to.as_mut_ptr().add(done), v);
            }
            done += 8;
        }
    }
    if done < to.len() {
        super::every(&from[stride * done..], stride, &mut to[done..]);
    }
}
