//! Taking rows of an image apart, for AVX2.

use std::arch::x86_64::*;

/// The elements at even places of sixteen.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn even(a: __m256, b: __m256) -> __m256 {
    let mixed = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
    _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(mixed))
}

/// Writes `padding`, then `have` elements of `from` taken `stride` apart, then `padding` again.
#[target_feature(enable = "avx2,fma")]
pub(super) fn line(
    from: &[f32],
    stride: usize,
    skip: usize,
    have: usize,
    padding: f32,
    to: &mut [f32],
) {
    let fill = |part: &mut [f32]| {
        let (vectors, rest) = part.as_chunks_mut::<8>();
        for v in vectors {
            // SAFETY: there are 8 elements.
            unsafe { _mm256_storeu_ps(v.as_mut_ptr(), _mm256_set1_ps(padding)) };
        }
        for v in rest {
            *v = padding;
        }
    };
    let (before, to) = to.split_at_mut(skip);
    let (body, after) = to.split_at_mut(have);
    fill(before);
    fill(after);
    let mut done = 0;
    // SAFETY: the elements to read and the 8 to write are checked by each condition.
    unsafe {
        match stride {
            1 => {
                while done + 8 <= have.min(from.len()) {
                    let v = _mm256_loadu_ps(from.as_ptr().add(done));
                    _mm256_storeu_ps(body.as_mut_ptr().add(done), v);
                    done += 8;
                }
            }
            2 => {
                while done + 8 <= have && 2 * done + 16 <= from.len() {
                    let i = from.as_ptr().add(2 * done);
                    let v = even(_mm256_loadu_ps(i), _mm256_loadu_ps(i.add(8)));
                    _mm256_storeu_ps(body.as_mut_ptr().add(done), v);
                    done += 8;
                }
            }
            _ => {}
        }
    }
    for (i, v) in body.iter_mut().enumerate().skip(done) {
        *v = from[i * stride];
    }
}
