//! Depthwise convolution.

use super::{Call, dense};
use crate::kernels::parallel::Parallel;

pub(super) fn run(call: &Call<'_>, out: &mut [f32], par: &dyn Parallel) {
    dense::portable(call, out, par);
}
