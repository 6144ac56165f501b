//! Taking rows of an image apart, for AVX2.

use super::Run;
use std::arch::x86_64::*;

/// The elements at even places of sixteen.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn even(a: __m256, b: __m256) -> __m256 {
    let mixed = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
    _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(mixed))
}

/// Fills rows: each comes with the row of the image it shows, if it shows any.
#[target_feature(enable = "avx2,fma")]
pub(super) fn fill<'a>(
    runs: &[Run],
    length: usize,
    stride: usize,
    padding: f32,
    lines: impl Iterator<Item = (Option<&'a [f32]>, &'a mut [f32])>,
) {
    for (from, to) in lines {
        let Some(from) = from else {
            pad(to, padding);
            continue;
        };
        let mut start = 0;
        for run in runs {
            line(&from[run.from..], stride, run, padding, &mut to[start..start + length]);
            start += length;
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn pad(part: &mut [f32], padding: f32) {
    if part.len() < 8 {
        for v in part {
            *v = padding;
        }
        return;
    }
    // The last vector may overlap the one before.
    let last = part.len() - 8;
    for at in (0..last).step_by(8).chain([last]) {
        // SAFETY: there are 8 elements from each of these places on.
        unsafe { _mm256_storeu_ps(part.as_mut_ptr().add(at), _mm256_set1_ps(padding)) };
    }
}

/// Fills one run.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn line(from: &[f32], stride: usize, run: &Run, padding: f32, to: &mut [f32]) {
    let have = run.have;
    let (before, to) = to.split_at_mut(run.skip);
    let (body, after) = to.split_at_mut(have);
    pad(before, padding);
    pad(after, padding);
    let mut done = 0;
    // SAFETY: the elements to read and the 8 to write are checked by each condition; the last
    // vector may overlap the one before.
    unsafe {
        match stride {
            1 if have >= 8 && from.len() >= have => {
                let last = have - 8;
                for at in (0..last).step_by(8).chain([last]) {
                    let v = _mm256_loadu_ps(from.as_ptr().add(at));
                    _mm256_storeu_ps(body.as_mut_ptr().add(at), v);
                }
                done = have;
            }
            2 => {
                while done + 8 <= have && 2 * done + 16 <= from.len() {
                    let i = from.as_ptr().add(2 * done);
                    let v = even(_mm256_loadu_ps(i), _mm256_loadu_ps(i.add(8)));
                    _mm256_storeu_ps(body.as_mut_ptr().add(done), v);
                    done += 8;
                }
                if done >= 8 && done < have && 2 * have <= from.len() {
                    let i = from.as_ptr().add(2 * have - 16);
                    let v = even(_mm256_loadu_ps(i), _mm256_loadu_ps(i.add(8)));
                    _mm256_storeu_ps(body.as_mut_ptr().add(have - 8), v);
                    done = have;
                }
            }
            _ => {}
        }
    }
    while done < have {
        body[done] = from[done * stride];
        done += 1;
    }
}
