//! Dense and grouped convolution: which tiles cover an image, and in which order.
//!
//! The output of one image and group is cut into units of some rows and columns whose input stays
//! in the second-level cache. Within a unit each span of one to four blocks of output channels
//! passes over it, and within that each piece of the input channels whose weights stay in the
//! first-level cache; the sums wait in the output between two pieces. Neither cut changes the
//! order of a sum.
//!
//! Windows that touch the left or right border read a strip, a copy of the rows of the unit with
//! their zeros; all others read the image in place. Rows of taps above and below are left out.

use super::scalar::{Row, conv_row};
use super::{BLOCK, Call};
use crate::kernels::isa::Kind;
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};

pub(super) fn run(call: &Call<'_>, out: &mut [f32], par: &dyn Parallel) {
    match call.conv.isa.kind() {
        Kind::Scalar => portable(call, out, par),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512 => tiles::run(call, out, par),
    }
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

#[cfg(target_arch = "x86_64")]
mod tiles {
    use super::super::avx2::{self, Finish, LINE, Loop, Tile, fetch};
    use super::super::avx512;
    use super::super::{BLOCK, Call, ConvInput, taps_inside};
    use crate::kernels::aligned::AlignedF32;
    use crate::kernels::math::{activate_on, add_on};
    use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};
    use crate::kernels::{Activation, Window};
    use std::cell::Cell;
    use std::ops::Range;

    thread_local! {
        static BUFFER: Cell<AlignedF32> = Cell::default();
    }

    /// Floats of input that a unit may see: half of a second-level cache of 512 KiB.
    const UNIT_FLOATS: usize = 64 * 1024;
    /// Floats that no unit may pass: dilations can be any number.
    const MOST_FLOATS: usize = 1 << 25;
    /// Outputs of a unit, in one block of channels.
    const UNIT_POSITIONS: usize = 2048;
    /// Floats of weights that one pass over a unit reads: under half of a first-level cache.
    const PIECE_FLOATS: usize = 3584;
    /// What tiles there are: how many blocks of output channels, as how many vectors, by how many
    /// positions at most.
    type Shapes = &'static [(usize, usize, usize)];
    /// Twelve sums, the weights of each block and an input fill the registers.
    const EIGHTS: Shapes = &[(1, 1, 8), (2, 2, 6), (3, 3, 4), (4, 4, 2)];
    /// With twice as many registers, whose vectors hold two blocks; a last odd block has the tiles
    /// of one. The widest are for few positions alone.
    const SIXTEENS: Shapes = &[(1, 1, 8), (2, 1, 14), (4, 2, 12), (8, 4, 3)];
    /// Widths of units are multiples of this, so that whole tiles fill them.
    const WIDTH_STEP: usize = 12;

    /// Neighbouring blocks of output channels that share a tile.
    #[derive(Clone, Copy, Debug)]
    struct Span {
        first: usize,
        blocks: usize,
    }

    /// Neighbouring tiles of equal width that read from the same place.
    #[derive(Clone, Copy, Debug)]
    struct Run {
        x: usize,
        width: usize,
        count: usize,
        /// The strip that is read instead of the image.
        strip: Option<usize>,
    }

    /// A copy of some columns of the rows of a unit, for every channel.
    #[derive(Clone, Copy, Debug)]
    struct Strip {
        /// First output position that it serves, and their number.
        x: usize,
        len: usize,
        /// Columns of the input.
        columns: usize,
        /// Where it starts in the buffer.
        at: usize,
    }

    /// How one call is cut.
    struct Plan<'a> {
        call: &'a Call<'a>,
        window: Window,
        size: [usize; 2],
        out_size: [usize; 2],
        /// Input channels side by side; blocks of them in a group.
        inner: usize,
        blocks: usize,
        /// Taps that a kernel unrolls, and how often it repeats that in a row of taps.
        unroll: usize,
        repeats: usize,
        unit: [usize; 2],
        /// Outputs left of `inside.start` and from `inside.end` on touch the border.
        inside: Range<usize>,
        /// Whether neighbouring blocks of output channels share a vector.
        pairs: bool,
        shapes: Shapes,
        spans: Vec<Span>,
    }

    impl<'a> Plan<'a> {
        /// Nothing where the strips would take more memory than any real layer needs.
        fn new(call: &'a Call<'a>) -> Option<Self> {
            let c = call.conv;
            let inner = c.inner();
            let blocks = c.in_channels / c.groups / inner;
            let (mut size, mut out_size) = (call.size, call.out_size);
            if c.window == Window::new([1, 1]) {
                // The rows of a pointwise convolution are one long row.
                size = [1, size[0] * size[1]];
                out_size = size;
            }
            let Window { kernel: [kh, kw], strides: [sy, sx], dilations: [dy, dx], pads } =
                c.window;
            let (unroll, repeats) = match c.input {
                ConvInput::Blocked => (BLOCK, kw),
                ConvInput::Plain if dx > 1 || sx > 2 => (1, kw),
                ConvInput::Plain => {
                    let unroll = [7, 5, 3, 2, 1].into_iter().find(|u| kw.is_multiple_of(*u));
                    let unroll = unroll.unwrap_or(1);
                    (unroll, kw / unroll)
                }
            };
            let reach = (kw - 1) * dx;
            let end = (size[1] + pads[1]).checked_sub(reach).map_or(0, |room| room.div_ceil(sx));
            let start = pads[1].div_ceil(sx).min(out_size[1]);
            let inside = start..end.min(out_size[1]).max(start);
            // Input floats that n outputs along each axis see.
            let channels = blocks * inner;
            let floats = |rows: usize, width: usize| {
                let line = channels.saturating_mul((width - 1) * sx + reach + 1);
                line.saturating_mul((rows - 1) * sy + (kh - 1) * dy + 1)
            };
            let [rows, width] = out_size;
            let fits = |r: usize, w: usize| r * w <= UNIT_POSITIONS && floats(r, w) <= UNIT_FLOATS;
            let mut parts = 1;
            let cut = |parts: usize| width.div_ceil(parts).next_multiple_of(WIDTH_STEP).min(width);
            while !fits(1, cut(parts)) && cut(parts) > 4 * WIDTH_STEP {
                parts += 1;
            }
            let columns = cut(parts);
            let mut unit_rows = 1;
            while unit_rows < rows && fits(unit_rows + 1, columns) {
                unit_rows += 1;
            }
            let unit_rows = rows.div_ceil(rows.div_ceil(unit_rows));
            if floats(unit_rows, columns) > MOST_FLOATS {
                return None;
            }
            let pairs = c.pairs();
            let shapes = match (pairs, c.input) {
                // The kernels for plain input have no tiles of more than two blocks.
                (true, ConvInput::Plain) => &SIXTEENS[..2],
                (true, ConvInput::Blocked) => SIXTEENS,
                (false, ConvInput::Plain) => &EIGHTS[..2],
                (false, ConvInput::Blocked) => EIGHTS,
            };
            let spans = spans(c.out_channels / c.groups / BLOCK, columns, shapes, pairs);
            Some(Self {
                call,
                window: c.window,
                size,
                out_size,
                inner,
                blocks,
                unroll,
                repeats,
                unit: [unit_rows, columns],
                inside,
                pairs,
                shapes,
                spans,
            })
        }

        /// Units of one image and group along each axis.
        fn units(&self) -> [usize; 2] {
            [0, 1].map(|a| self.out_size[a].div_ceil(self.unit[a]))
        }

        /// Floats from one input block, or plain channel, to the next.
        fn in_plane(&self) -> usize {
            self.size[0] * self.size[1] * self.inner
        }

        /// The strips of the outputs `xs`, and the floats that they hold in `rows` rows.
        fn strips(&self, xs: &Range<usize>, rows: usize) -> (Vec<Strip>, usize) {
            // A tile that touches the border reaches this far beyond the outputs that do.
            let more = self.shapes.iter().map(|s| s.2).max().unwrap_or(1) - 1;
            let left = xs.start..(self.inside.start + more).min(xs.end);
            let right = self.inside.end.saturating_sub(more).max(xs.start)..xs.end;
            let (touches_left, touches_right) =
                (self.inside.start > xs.start, self.inside.end < xs.end);
            let both = [xs.clone(), 0..0];
            let ranges = match (touches_left, touches_right) {
                (true, true) if left.end >= right.start => both,
                (true, true) => [left, right],
                (true, false) => [left, 0..0],
                (false, true) => [right, 0..0],
                (false, false) => return (Vec::new(), 0),
            };
            let mut floats = 0;
            let (stride, reach) =
                (self.window.strides[1], (self.window.kernel[1] - 1) * self.window.dilations[1]);
            let strip = |r: Range<usize>| {
                let columns = (r.len() - 1) * stride + reach + 1;
                let strip = Strip { x: r.start, len: r.len(), columns, at: floats };
                floats += self.blocks * rows * columns * self.inner;
                strip
            };
            let strips = ranges.into_iter().filter(|r| !r.is_empty()).map(strip).collect();
            (strips, floats)
        }

        /// The tiles of `tile` positions or one less that cover the outputs `xs`.
        fn runs(&self, xs: &Range<usize>, tile: usize, strips: &[Strip], runs: &mut Vec<Run>) {
            runs.clear();
            let tiles = xs.len().div_ceil(tile);
            let (width, wider) = (xs.len() / tiles, xs.len() % tiles);
            let mut x = xs.start;
            for i in 0..tiles {
                let width = width + usize::from(i < wider);
                let inside = x >= self.inside.start && x + width <= self.inside.end;
                let holds = |s: &Strip| s.x <= x && x + width <= s.x + s.len;
                let strip = if inside { None } else { strips.iter().position(holds) };
                match runs.last_mut() {
                    Some(r) if r.width == width && r.strip == strip => r.count += 1,
                    _ => runs.push(Run { x, width, count: 1, strip }),
                }
                x += width;
            }
        }

        /// Copies the input rows `rows` of one group, with zeros beside the image.
        fn copy(&self, s: &Strip, input: &[f32], rows: &Range<usize>, to: &mut [f32]) {
            let width = self.size[1];
            let first = s.x * self.window.strides[1];
            let pad = self.window.pads[1];
            // Columns of the strip before the image, and up to its end.
            let before = pad.saturating_sub(first).min(s.columns);
            let end = (width + pad).saturating_sub(first).min(s.columns).max(before);
            let (before, end, line) =
                (before * self.inner, end * self.inner, s.columns * self.inner);
            let from = (first + before / self.inner).saturating_sub(pad).min(width) * self.inner;
            let mut lines = to[s.at..].chunks_exact_mut(line);
            for g in 0..self.blocks {
                for y in rows.clone() {
                    let Some(line) = lines.next() else { return };
                    let row = &input[g * self.in_plane() + y * width * self.inner..];
                    line[..before].fill(0.0);
                    line[before..end].copy_from_slice(&row[from..][..end - before]);
                    line[end..].fill(0.0);
                }
            }
        }

        /// Computes some spans of one unit.
        ///
        /// # Safety
        /// `out` holds the whole output; nobody else touches the elements of these spans in this
        /// unit meanwhile.
        unsafe fn unit(
            &self,
            image: usize,
            group: usize,
            [rows, xs]: [Range<usize>; 2],
            spans: &[Span],
            out: *mut f32,
        ) {
            let c = self.call.conv;
            let Window { kernel: [kh, kw], strides: [sy, sx], dilations: [dy, dx], pads } =
                self.window;
            let (inner, in_plane) = (self.inner, self.in_plane());
            let icg = self.blocks * inner;
            let channel = image * c.in_channels + group * icg;
            let input = &self.call.x[channel * self.size[0] * self.size[1]..]
                [..icg * self.size[0] * self.size[1]];
            // Input rows that the unit sees.
            let low = (rows.start * sy).saturating_sub(pads[0]).min(self.size[0]);
            let high = (rows.end - 1) * sy + (kh - 1) * dy + 1;
            let high = high.saturating_sub(pads[0]).min(self.size[0]).max(low);
            let seen = low..high;
            let (strips, floats) = self.strips(&xs, seen.len());
            let mut buffer = BUFFER.take();
            buffer.reserve(floats);
            for s in &strips {
                self.copy(s, input, &seen, &mut buffer);
            }
            let epilogue = self.call.epilogue;
            let activation = epilogue.activation;
            let fused = Finish::fuses(activation);
            let out_plane = self.out_size[0] * self.out_size[1] * BLOCK;
            let out_blocks = c.out_channels / BLOCK;
            let row_weights = kw * inner * BLOCK;
            let (w_in, w_out) = (kh * row_weights, self.blocks * kh * row_weights);
            let x_tap = dx * if inner == 1 { self.unroll } else { inner };
            let mut runs = Vec::new();
            for (i, span) in spans.iter().enumerate() {
                let positions = |s: &&(usize, usize, usize)| s.0 == span.blocks;
                let tile = self.shapes.iter().find(positions).map_or(1, |s| s.2);
                // Blocks that lie side by side in the weights.
                let side = if self.pairs && span.blocks > 1 { 2 } else { 1 };
                let row_weights = side * row_weights;
                self.runs(&xs, tile, &strips, &mut runs);
                let block = group * (out_blocks / c.groups) + span.first;
                let weights = &c.weights[block * w_out..][..span.blocks * w_out];
                let bias = epilogue.bias.map(|b| &b[block * BLOCK..][..span.blocks * BLOCK]);
                let tiles = rows.len() * xs.len().div_ceil(tile);
                let piece =
                    if tiles < 4 { self.blocks } else { piece(span.blocks * w_in, self.blocks) };
                let mut g = 0;
                while g < self.blocks {
                    let end = (g + piece).min(self.blocks);
                    // The weights of the next piece, or of the next span's first, are asked for
                    // a row at a time.
                    let next = match spans.get(i + 1) {
                        _ if end < self.blocks => Some((block, span.blocks, end)),
                        Some(s) => Some((block + span.blocks, s.blocks, 0)),
                        None => None,
                    };
                    for (row, y) in rows.clone().enumerate() {
                        if let Some((block, blocks, from)) = next {
                            let side = if self.pairs && blocks > 1 { 2 } else { 1 };
                            let part = split_range(side * piece * w_in, rows.len(), row, LINE);
                            for b in (block..block + blocks).step_by(side) {
                                let end = (b + side) * w_out;
                                let at = b * w_out + side * from * w_in;
                                fetch(c.weights.get(at + part.start..(at + part.end).min(end)));
                            }
                        }
                        let ys = taps_inside(y, self.size[0], kh, sy, dy, pads[0]);
                        // With no row of taps inside, the pointer is never read.
                        let iy = (y * sy + ys.start * dy).saturating_sub(pads[0]);
                        for r in &runs {
                            let (base, row, first, plane) = match r.strip.map(|s| &strips[s]) {
                                Some(s) => {
                                    let line = s.columns * inner;
                                    let y = iy.saturating_sub(low);
                                    let base = buffer.as_ptr().wrapping_add(s.at + y * line);
                                    (base, line, (r.x - s.x) * sx, seen.len() * line)
                                }
                                None => {
                                    let line = self.size[1] * inner;
                                    let base = input.as_ptr().wrapping_add(iy * line);
                                    (base, line, r.x * sx - pads[1], in_plane)
                                }
                            };
                            let at = (image * out_blocks + block) * out_plane
                                + (y * self.out_size[1] + r.x) * BLOCK;
                            let residual = epilogue.residual.map(|r| r[at..].as_ptr());
                            let last = end == self.blocks;
                            let before =
                                residual.filter(|_| last && !epilogue.residual_after_activation);
                            let t = Tile {
                                x: base.wrapping_add(first * inner + g * plane),
                                loops: Loop::nest(
                                    Loop {
                                        count: end - g,
                                        x: plane,
                                        w: side * w_in - ys.len() * row_weights,
                                    },
                                    Loop { count: ys.len(), x: dy * row, w: 0 },
                                    Loop { count: self.repeats, x: x_tap, w: 0 },
                                ),
                                step: sx * inner,
                                w: weights[side * g * w_in + ys.start * row_weights..].as_ptr(),
                                w_out: side * w_out,
                                out: out.wrapping_add(at),
                                out_block: out_plane,
                                bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
                                accumulate: g > 0,
                                finish: Finish {
                                    residual: before.unwrap_or(std::ptr::null()),
                                    activation: match last && fused {
                                        true => activation,
                                        false => Activation::None,
                                    },
                                },
                                count: r.count,
                            };
                            // SAFETY: the input pointer reaches every tap of the tiles that lies
                            // in `ys`, in the image or in a strip; the weights were cut to this
                            // span; the caller owns the outputs.
                            unsafe {
                                if side == 2 {
                                    avx512::run_tiles(&t, r.width, span.blocks, self.unroll);
                                } else {
                                    avx2::run_tiles(&t, r.width, span.blocks, self.unroll);
                                }
                            }
                            let after =
                                residual.filter(|_| last && epilogue.residual_after_activation);
                            if last && (!fused || after.is_some()) {
                                for b in 0..span.blocks {
                                    let len = r.width * r.count * BLOCK;
                                    // SAFETY: the caller owns these outputs; the residual has the
                                    // output's size.
                                    unsafe {
                                        let line = std::slice::from_raw_parts_mut(
                                            out.add(at + b * out_plane),
                                            len,
                                        );
                                        if !fused {
                                            activate_on(c.isa, activation, line);
                                        }
                                        if let Some(r) = after {
                                            let r = r.add(b * out_plane);
                                            let r = std::slice::from_raw_parts(r, len);
                                            add_on(c.isa, line, r);
                                        }
                                    }
                                }
                            }
                        }
                    }
                    g = end;
                }
            }
            BUFFER.set(buffer);
        }
    }

    /// Input blocks of one pass, where each brings `floats` of weights.
    fn piece(floats: usize, blocks: usize) -> usize {
        let most = (PIECE_FLOATS / floats).max(1);
        if floats * blocks <= PIECE_FLOATS * 3 / 2 {
            blocks
        } else {
            blocks.div_ceil(blocks.div_ceil(most))
        }
    }

    /// Cuts `blocks` blocks of output channels into spans, as cheap as the tiles over `width`
    /// outputs let them be. Where blocks lie in `pairs`, only the last of an odd number is alone.
    fn spans(blocks: usize, width: usize, shapes: Shapes, pairs: bool) -> Vec<Span> {
        // Half cycles of one input channel: twice the larger of multiply-adds and loads at two a
        // cycle, and of the four cycles that a chain takes.
        let cost = |&(b, vectors, most): &(usize, usize, usize)| {
            let tiles = width.div_ceil(most);
            let (narrow, wider) = (width / tiles, width % tiles);
            let one = |p: usize| (p * vectors).max(p + vectors).max(8);
            (b, wider * one(narrow + 1) + (tiles - wider) * one(narrow))
        };
        let costs: Vec<(usize, usize)> = shapes.iter().map(cost).collect();
        // The cheapest way to cover the first n blocks, and its last span.
        let mut best = vec![(0, 0)];
        for n in 1..=blocks {
            let fits = |b: usize| b <= n && (!pairs || (n - b).is_multiple_of(2));
            let ways = costs.iter().filter(|(b, _)| fits(*b));
            let ways = ways.map(|&(b, cost)| (best[n - b].0 + cost, b));
            // Of equal ways the one with two blocks, whose weights are read least often.
            let way = ways.min_by_key(|&(cost, b)| (cost, b.abs_diff(2)));
            best.push(way.unwrap_or((0, 1)));
        }
        let mut spans = Vec::new();
        let mut end = blocks;
        while end > 0 {
            let n = best[end].1;
            end -= n;
            spans.push(Span { first: end, blocks: n });
        }
        spans.reverse();
        spans
    }

    pub(super) fn run(call: &Call<'_>, out: &mut [f32], par: &dyn Parallel) {
        let Some(plan) = Plan::new(call) else {
            return super::portable(call, out, par);
        };
        let groups = call.conv.groups;
        let [down, across] = plan.units();
        let jobs = call.batch * groups * down * across;
        // Where there are few units, the output channels are cut too.
        let splits = match par.threads() {
            0 | 1 => 1,
            threads => (4 * threads).div_ceil(jobs).clamp(1, plan.spans.len()),
        };
        let shared = SharedOut::new(out);
        let work = jobs * splits;
        let parts = if par.threads() > 1 { work } else { 1 };
        for_each_part(par, parts, &|part| {
            for i in split_range(work, parts, part, 1) {
                let (job, split) = (i / splits, i % splits);
                let (unit, job) = (job % (down * across), job / (down * across));
                let cut = |a: usize, i: usize| {
                    i * plan.unit[a]..((i + 1) * plan.unit[a]).min(plan.out_size[a])
                };
                let area = [cut(0, unit / across), cut(1, unit % across)];
                let spans = &plan.spans[split_range(plan.spans.len(), splits, split, 1)];
                // SAFETY: the output was checked to hold every image; each unit and span is one job.
                unsafe { plan.unit(job / groups, job % groups, area, spans, shared.ptr()) };
            }
        });
    }
}
