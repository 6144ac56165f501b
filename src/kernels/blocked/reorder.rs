//! Between plain and blocked tensors.

use super::BLOCK;
#[cfg(target_arch = "x86_64")]
use super::avx2;
use crate::kernels::KernelError;
use crate::kernels::error::{check_len, checked_product};
use crate::kernels::isa::{Isa, Kind};
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};

/// Brings `x`, [batch, channels, plane], into blocks: `out` is [batch, channels / 8, plane, 8].
///
/// # Errors
/// When the channels are no multiple of [`BLOCK`] or a slice is too short. `out` is then
/// untouched.
///
/// ```
/// use brigade::kernels::{Serial, from_blocked, to_blocked};
/// let x: Vec<f32> = (0..16).map(|v| v as f32).collect();
/// let (mut blocked, mut back) = ([0.0; 16], [0.0; 16]);
/// to_blocked(&x, 1, 8, 2, &mut blocked, &Serial)?;
/// assert_eq!(blocked[..3], [0.0, 2.0, 4.0]);
/// from_blocked(&blocked, 1, 8, 2, &mut back, &Serial)?;
/// assert_eq!(back, x[..]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn to_blocked(
    x: &[f32],
    batch: usize,
    channels: usize,
    plane: usize,
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    reorder_on(Isa::best(), true, x, batch, channels, plane, out, par)
}

/// Brings `x`, [batch, channels / 8, plane, 8], back into `out`, [batch, channels, plane].
///
/// # Errors
/// As for [`to_blocked`].
pub fn from_blocked(
    x: &[f32],
    batch: usize,
    channels: usize,
    plane: usize,
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    reorder_on(Isa::best(), false, x, batch, channels, plane, out, par)
}

pub(super) fn reorder_on(
    isa: Isa,
    to_blocks: bool,
    x: &[f32],
    batch: usize,
    channels: usize,
    plane: usize,
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    check_blocks(channels)?;
    let elements = checked_product("x", &[batch, channels, plane])?;
    check_len("x", x.len(), elements)?;
    check_len("out", out.len(), elements)?;
    if elements == 0 {
        return Ok(());
    }
    let (units, floats) = (batch * channels / BLOCK, plane * BLOCK);
    let parts = par.threads().min(units).max(1);
    let shared = SharedOut::new(out);
    for_each_part(par, parts, &|part| {
        for unit in split_range(units, parts, part, 1) {
            let from = &x[unit * floats..][..floats];
            // SAFETY: `out` holds `units` times `floats` elements; each unit belongs to one part.
            let to =
                unsafe { std::slice::from_raw_parts_mut(shared.ptr().add(unit * floats), floats) };
            match isa.kind() {
                Kind::Scalar if to_blocks => {
                    for (c, line) in from.chunks_exact(plane).enumerate() {
                        let to = to.iter_mut().skip(c).step_by(BLOCK);
                        to.zip(line).for_each(|(o, &v)| *o = v);
                    }
                }
                Kind::Scalar => {
                    for (c, line) in to.chunks_exact_mut(plane).enumerate() {
                        let from = from.iter().skip(c).step_by(BLOCK);
                        line.iter_mut().zip(from).for_each(|(o, &v)| *o = v);
                    }
                }
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA; both
                // slices hold eight planes.
                Kind::Avx2 | Kind::Avx512 => unsafe {
                    let (from, to) = (from.as_ptr(), to.as_mut_ptr());
                    if to_blocks {
                        avx2::reorder::<true>(from, plane, to);
                    } else {
                        avx2::reorder::<false>(from, plane, to);
                    }
                },
            }
        }
    });
    Ok(())
}

/// Refuses a number of channels that does not fall into whole blocks.
pub(super) fn check_blocks(channels: usize) -> Result<(), KernelError> {
    if channels.is_multiple_of(BLOCK) {
        return Ok(());
    }
    Err(KernelError::Invalid {
        operand: "channels",
        problem: "do not fall into blocks of 8: keep the tensor plain",
    })
}
