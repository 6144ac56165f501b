//! Convolution that reads its input where it lies, for few output channels.
//!
//! Gathering panels costs the same however many output channels share them. Here the channels of
//! a band are laid out as strips instead, in which sixteen neighbouring outputs read sixteen
//! neighbouring floats for every tap, so that the tile reads B through a table of offsets.

use super::ConvEpilogue;
use crate::kernels::aligned::AlignedF32;
use crate::kernels::gemm::PackedA;
use crate::kernels::gemm::block::{DEPTH, Edge, run_tile};
use crate::kernels::gemm::kernel::{Finish, Kernel, Tile};
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};
use crate::kernels::strip::StripPlan;
use crate::kernels::{Isa, Window};
use std::cell::Cell;

/// What gathering a line of a panel costs, in rows of a tile.
const GATHER: usize = 8;
/// Floats of the strips of one band at most: they are to stay in the second-level cache.
const FLOATS: usize = 96 * 1024;

#[derive(Default)]
struct Scratch {
    strips: AlignedF32,
    offsets: Vec<usize>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// Strips of one layer.
#[derive(Clone, Debug)]
pub(super) struct Direct {
    plan: StripPlan,
    window: Window,
    out: [usize; 2],
    channels: usize,
}

impl Direct {
    /// A plan, where this way promises to be faster than gathering. Window and sizes have been
    /// checked and are not empty.
    pub(super) fn new(
        isa: Isa,
        kernel: &Kernel,
        window: Window,
        size: [usize; 2],
        out: [usize; 2],
        channels: usize,
        out_channels: usize,
    ) -> Option<Self> {
        if channels == 0 || !StripPlan::suits(&window) {
            return None;
        }
        // Columns computed for one row of outputs; a narrow tile takes longer than half a tile.
        let (whole, rest) = (out[1] / kernel.cols * kernel.cols, out[1] % kernel.cols);
        let last = match rest {
            0 => 0,
            r if r <= kernel.cols / 2 => kernel.cols * 5 / 8,
            _ => kernel.cols,
        };
        if out_channels.checked_mul(whole + last - out[1])? > GATHER * out[1] {
            return None;
        }
        let plan = StripPlan::within(isa, window, size, out, FLOATS / channels)?;
        Some(Self { plan, window, out, channels })
    }

    /// Convolves; `groups` holds the packed weights of each group.
    pub(super) fn run(
        &self,
        kernel: &'static Kernel,
        groups: &[PackedA],
        x: &[f32],
        batch: usize,
        plane: usize,
        epilogue: &ConvEpilogue<'_>,
        out: &mut [f32],
        par: &dyn Parallel,
    ) {
        let out_plane = self.out[0] * self.out[1];
        let bands = self.plan.bands();
        let units = batch * groups.len() * bands;
        let parts = par.threads().min(units);
        let c = SharedOut::new(out);
        for_each_part(par, parts, &|part| {
            let mut scratch = SCRATCH.take();
            let length = self.plan.floats();
            scratch.strips.reserve(self.channels * length);
            for unit in split_range(units, parts, part, 1) {
                let (image, band) = (unit / bands, unit % bands);
                let packed = &groups[image % groups.len()];
                let input = &x[image * self.channels * plane..][..self.channels * plane];
                for (channel, strip) in
                    scratch.strips.chunks_exact_mut(length).take(self.channels).enumerate()
                {
                    self.plan.fill(&input[channel * plane..][..plane], band, 0.0, strip);
                }
                self.offsets(&mut scratch.offsets);
                let first = image % groups.len() * packed.rows();
                let at = image * packed.rows() * out_plane;
                // SAFETY: `out` holds batch · groups images of `rows` planes; a unit owns its
                // band in each plane of one of them, which starts at `at`.
                unsafe {
                    let c = c.ptr().add(at);
                    self.band(kernel, packed, band, first, at, epilogue, c, &scratch);
                }
            }
            SCRATCH.set(scratch);
        });
    }

    /// Where the strips hold each (channel, row, column) of the window, from an output on.
    fn offsets(&self, offsets: &mut Vec<usize>) {
        let Window { kernel: [kh, _], dilations: [dh, _], .. } = self.window;
        offsets.clear();
        for channel in 0..self.channels {
            for ky in 0..kh {
                let row = channel * self.plan.floats() + ky * dh * self.plan.row();
                offsets.extend(self.plan.columns().iter().map(|column| row + column));
            }
        }
    }

    /// All output channels of one band.
    ///
    /// # Safety
    /// `c` is valid for all planes of the image; nobody else touches the band in them. `scratch`
    /// holds the strips of the band and the offsets.
    unsafe fn band(
        &self,
        kernel: &Kernel,
        packed: &PackedA,
        band: usize,
        first_channel: usize,
        at: usize,
        epilogue: &ConvEpilogue<'_>,
        c: *mut f32,
        scratch: &Scratch,
    ) {
        let (width, out_plane, k) = (self.out[1], self.out[0] * self.out[1], packed.depth());
        let ep = epilogue.rows(first_channel, at, out_plane);
        let rows = self.plan.rows(band);
        let tiles = packed.tiles();
        let mut edge = Edge::new();
        for k0 in (0..k).step_by(DEPTH) {
            let k1 = k.min(k0 + DEPTH);
            for y in rows.clone() {
                let line = (y - rows.start) * self.window.strides[0] * self.plan.row();
                for x in (0..width).step_by(kernel.cols) {
                    let narrow = width - x <= kernel.cols / 2;
                    let full = if narrow { kernel.cols / 2 } else { kernel.cols };
                    // The last tile is moved left until it is whole, unless sums are carried
                    // over in C: it then computes some outputs once more, to the same bits.
                    let x = if k <= DEPTH && !narrow { x.min(width.max(full) - full) } else { x };
                    let position = y * width + x;
                    for t in 0..tiles.count() {
                        let (i0, i1) = (tiles.start(t), tiles.start(t + 1));
                        let height = i1 - i0;
                        let a = packed.data().as_ptr().wrapping_add(i0 * k + k0 * height);
                        let tile = Tile {
                            rows: height,
                            k: k1 - k0,
                            a,
                            a_row: 1,
                            a_k: height,
                            a_next: a,
                            b: scratch.strips.as_ptr().wrapping_add(line + x),
                            b_k: 0,
                            b_next: scratch.strips.as_ptr(),
                            b_at: Some(&scratch.offsets[k0..k1]),
                            c: c.wrapping_add(i0 * out_plane + position),
                            c_row: out_plane,
                            narrow,
                            accumulate: k0 > 0,
                            finish: (k1 == k).then(|| Finish::at(&ep, i0, position)),
                        };
                        // SAFETY: each offset leaves the strips room for a whole tile from any
                        // output on; the tile's rows and columns lie within the band, or are
                        // redirected where fewer columns are left than a tile has.
                        unsafe {
                            run_tile(kernel, tile, kernel.cols.min(width - x), &mut edge);
                        }
                    }
                }
            }
        }
    }
}
