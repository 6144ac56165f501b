//! Convolution and pooling on blocked tensors, in single precision.
//!
//! A blocked tensor, NCHW8c, is laid out [batch, channels / 8, height, width, 8]: the eight
//! channels of a block lie side by side, so that a vector holds one position and no window has to
//! be gathered. Only tensors whose channels are a multiple of [`BLOCK`] have this layout; there
//! are no padded channels.
//!
//! Each output is `bias + Σ x · w`, summed in the order (block of input channels, row of the
//! window, column, channel in the block); taps on padding above and below the image are left out.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_depthwise;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_depthwise;
mod dense;
mod depthwise;
mod pool;
mod reorder;
mod scalar;

#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod tests;

use super::aligned::AlignedF32;
use super::conv::{self, check_groups};
use super::error::{check_len, checked_product};
use super::isa::Kind;
use super::parallel::Parallel;
use super::{ConvEpilogue, Isa, KernelError, Window};
pub use pool::{blocked_average_pool2d, blocked_global_average_pool, blocked_max_pool2d};
pub use reorder::{from_blocked, to_blocked};

/// Channels that lie side by side in a blocked tensor.
pub const BLOCK: usize = 8;

/// How the input of a blocked convolution is laid out. Its output is always blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvInput {
    /// [batch, channels, height, width], any number of channels: the first layer of a network.
    Plain,
    /// [batch, channels / 8, height, width, 8].
    Blocked,
}

/// The weights of a convolution with a blocked output, packed once.
#[derive(Clone, Debug)]
pub struct BlockedConv {
    isa: Isa,
    window: Window,
    groups: usize,
    in_channels: usize,
    out_channels: usize,
    input: ConvInput,
    /// Dense and grouped: [block of output channels][block of input channels of its group, or
    /// plain channel][row][column][channel in the block][8]; or [16] for a pair of blocks, see
    /// [`BlockedConv::place`]. Depthwise: [block][row][column][8].
    weights: AlignedF32,
}

impl BlockedConv {
    /// Whether a convolution of this shape can be computed: with one group, any number of plain
    /// input channels or a multiple of 8 blocked ones; with more, a blocked input and either one
    /// channel in and out of each group (depthwise) or multiples of 8. The output channels are
    /// always a multiple of 8.
    ///
    /// ```
    /// use brigade::kernels::{BlockedConv, ConvInput, Window};
    /// let w = Window::new([3, 3]);
    /// assert!(BlockedConv::suits(32, 3, 1, &w, ConvInput::Plain));
    /// assert!(BlockedConv::suits(32, 32, 32, &w, ConvInput::Blocked));
    /// assert!(!BlockedConv::suits(12, 16, 1, &w, ConvInput::Blocked));
    /// ```
    pub fn suits(
        out_channels: usize,
        in_channels: usize,
        groups: usize,
        window: &Window,
        input: ConvInput,
    ) -> bool {
        if window.check([0, 0], [0, 0]).is_err()
            || check_groups(groups, in_channels, out_channels).is_err()
            || in_channels == 0
            || out_channels == 0
            || !out_channels.is_multiple_of(BLOCK)
        {
            return false;
        }
        let (icg, ocg) = (in_channels / groups, out_channels / groups);
        match input {
            ConvInput::Plain => groups == 1,
            ConvInput::Blocked if groups > 1 && icg == 1 && ocg == 1 => true,
            ConvInput::Blocked => icg.is_multiple_of(BLOCK) && ocg.is_multiple_of(BLOCK),
        }
    }

    /// Packs `weights`, laid out [out_channels, in_channels / groups, kernel height, kernel width].
    ///
    /// # Errors
    /// When the shape does not [suit](Self::suits) or the slice is too short.
    pub fn new(
        weights: &[f32],
        out_channels: usize,
        in_channels: usize,
        groups: usize,
        window: Window,
        input: ConvInput,
    ) -> Result<Self, KernelError> {
        Self::for_isa(Isa::best(), weights, out_channels, in_channels, groups, window, input)
    }

    /// [`BlockedConv::new`] for a stated instruction set.
    ///
    /// # Errors
    /// As for [`BlockedConv::new`].
    pub fn for_isa(
        isa: Isa,
        weights: &[f32],
        out_channels: usize,
        in_channels: usize,
        groups: usize,
        window: Window,
        input: ConvInput,
    ) -> Result<Self, KernelError> {
        window.check([0, 0], [0, 0])?;
        check_groups(groups, in_channels, out_channels)?;
        if !Self::suits(out_channels, in_channels, groups, &window, input) {
            return Err(KernelError::Invalid {
                operand: "channels",
                problem: "do not fall into blocks of 8: use the plain convolution",
            });
        }
        let icg = in_channels / groups;
        let taps = checked_product("weights", &window.kernel)?;
        let depth = checked_product("weights", &[icg, taps])?;
        let need = checked_product("weights", &[out_channels, depth])?;
        check_len("weights", weights.len(), need)?;
        let weights = &weights[..need];
        let packed = AlignedF32::zeroed(need);
        let mut conv =
            Self { isa, window, groups, in_channels, out_channels, input, weights: packed };
        // Channels that lie between two taps of one input channel.
        let inner =
            if icg.is_multiple_of(BLOCK) && input == ConvInput::Blocked { BLOCK } else { 1 };
        for (o, filter) in weights.chunks_exact(depth).enumerate() {
            let (first, step) = conv.place(o / BLOCK, depth);
            for (i, &w) in filter.iter().enumerate() {
                let (channel, tap) = (i / taps, i % taps);
                let at = (channel / inner * taps + tap) * inner + channel % inner;
                conv.weights[first + at * step + o % BLOCK] = w;
            }
        }
        Ok(conv)
    }

    /// Where the weights of a block of output channels start, and how far apart the eights lie of
    /// its `depth` input channels and taps. Where vectors hold sixteen floats, neighbouring blocks
    /// of a group lie in pairs, eight beside eight; a block that is left over lies alone.
    fn place(&self, block: usize, depth: usize) -> (usize, usize) {
        let blocks = self.out_channels / self.groups / BLOCK;
        let place = if self.is_depthwise() { 0 } else { block % blocks };
        if self.pairs() && !self.is_depthwise() && (place | 1) < blocks {
            let side = place % 2;
            ((block - side) * depth * BLOCK + side * BLOCK, 2 * BLOCK)
        } else {
            (block * depth * BLOCK, BLOCK)
        }
    }

    /// Whether a vector holds two blocks.
    fn pairs(&self) -> bool {
        match self.isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => true,
            _ => false,
        }
    }

    /// The window.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Input channels of all groups.
    pub fn in_channels(&self) -> usize {
        self.in_channels
    }

    /// Output channels of all groups.
    pub fn out_channels(&self) -> usize {
        self.out_channels
    }

    /// The instruction set that computes it.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The layout of the input.
    pub fn input(&self) -> ConvInput {
        self.input
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.weights.len() * size_of::<f32>()
    }

    fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.in_channels
    }

    /// Input channels that lie side by side.
    fn inner(&self) -> usize {
        match self.input {
            ConvInput::Plain => 1,
            ConvInput::Blocked => BLOCK,
        }
    }
}

/// One call, checked.
#[derive(Clone, Copy)]
struct Call<'a> {
    conv: &'a BlockedConv,
    x: &'a [f32],
    batch: usize,
    size: [usize; 2],
    out_size: [usize; 2],
    epilogue: &'a ConvEpilogue<'a>,
}

/// Convolves `x`, of the layout that `weights` was packed for, into the blocked `out`,
/// [batch, out_channels / 8, height, width, 8] with the size that [`Window::output`] states. The
/// bias of the epilogue has one value per channel; its residual is blocked as the output is. Uses
/// the threads of `par`; the result does not depend on them.
///
/// # Errors
/// When a slice is too short for the shape or the image is smaller than the window. `out` is then
/// untouched.
///
/// ```
/// use brigade::kernels::{BlockedConv, ConvEpilogue, ConvInput, Serial, Window, blocked_conv2d};
/// // Output channel c is the sum of a 2 × 2 window, times c.
/// let w: Vec<f32> = (0..8).flat_map(|c| [c as f32; 4]).collect();
/// let w = BlockedConv::new(&w, 8, 1, 1, Window::new([2, 2]), ConvInput::Plain)?;
/// let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let mut out = [0.0; 16];
/// blocked_conv2d(&x, 1, [2, 3], &w, &ConvEpilogue::default(), &mut out, &Serial)?;
/// assert_eq!(out[..4], [0.0, 12.0, 24.0, 36.0]);
/// assert_eq!(out[8..12], [0.0, 16.0, 32.0, 48.0]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn blocked_conv2d(
    x: &[f32],
    batch: usize,
    size: [usize; 2],
    weights: &BlockedConv,
    epilogue: &ConvEpilogue<'_>,
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let channels = [weights.in_channels, weights.out_channels];
    let (out_size, need, elements) =
        conv::checked(weights.window, batch, size, channels, x, epilogue, out)?;
    if elements == 0 {
        return Ok(());
    }
    let call = Call { conv: weights, x: &x[..need], batch, size, out_size, epilogue };
    let out = &mut out[..elements];
    if weights.is_depthwise() {
        depthwise::run(&call, out, par);
    } else {
        dense::run(&call, out, par);
    }
    Ok(())
}

/// The taps along one axis that fall into the image, for output `o`: from the first to the end.
fn taps_inside(
    o: usize,
    size: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pad: usize,
) -> std::ops::Range<usize> {
    let at = o * stride;
    let first = pad.saturating_sub(at).div_ceil(dilation).min(kernel);
    let end = (size + pad).saturating_sub(at).div_ceil(dilation).min(kernel);
    first..end.max(first)
}
