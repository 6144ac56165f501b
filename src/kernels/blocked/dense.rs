//! Dense and grouped convolution.

use super::scalar::{Row, conv_row};
use super::{BLOCK, Call};
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};

pub(super) fn run(call: &Call<'_>, out: &mut [f32], par: &dyn Parallel) {
    portable(call, out, par);
}

/// All rows in portable code, dense or depthwise.
pub(super) fn portable(call: &Call<'_>, out: &mut [f32], par: &dyn Parallel) {
    let [rows, width] = call.out_size;
    let blocks = call.conv.out_channels / BLOCK;
    let all = call.batch * blocks * rows;
    let parts = par.threads().min(all).max(1);
    let shared = SharedOut::new(out);
    for_each_part(par, parts, &|part| {
        for i in split_range(all, parts, part, 1) {
            let row = Row { image: i / rows / blocks, block: i / rows % blocks, y: i % rows };
            // SAFETY: `out` holds `all` rows of `width` blocks, and each row belongs to one part.
            let line = unsafe {
                std::slice::from_raw_parts_mut(shared.ptr().add(i * width * BLOCK), width * BLOCK)
            };
            conv_row(call, row, line);
        }
    });
}
