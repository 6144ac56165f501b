//! The sliding window of convolution and pooling.

use super::KernelError;

/// How a window of two dimensions moves over an image; all pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Taps.
    pub kernel: [usize; 2],
    /// Distance between neighbouring windows.
    pub strides: [usize; 2],
    /// Distance between neighbouring taps.
    pub dilations: [usize; 2],
    /// Rows and columns added around the image: top, left, bottom, right, as in ONNX.
    pub pads: [usize; 4],
}

impl Window {
    /// A window that visits every position of an unpadded image.
    pub fn new(kernel: [usize; 2]) -> Self {
        Self { kernel, strides: [1, 1], dilations: [1, 1], pads: [0; 4] }
    }

    /// The number of whole windows along each axis of an image of `size`.
    ///
    /// # Errors
    /// When a kernel, stride or dilation is zero, when sizes overflow, or when the padded image
    /// is smaller than the window.
    ///
    /// ```
    /// use brigade::kernels::Window;
    /// let w = Window { strides: [2, 2], pads: [1; 4], ..Window::new([3, 3]) };
    /// assert_eq!(w.output([480, 640])?, [240, 320]);
    /// # Ok::<(), brigade::kernels::KernelError>(())
    /// ```
    pub fn output(&self, size: [usize; 2]) -> Result<[usize; 2], KernelError> {
        let mut out = [0; 2];
        for a in 0..2 {
            let pads = [self.pads[a], self.pads[a + 2]];
            out[a] =
                output_size(size[a], self.kernel[a], self.strides[a], self.dilations[a], pads)?;
        }
        Ok(out)
    }

    /// Refuses zeros and sizes whose index arithmetic could overflow.
    pub(in crate::kernels) fn check(
        &self,
        size: [usize; 2],
        out: [usize; 2],
    ) -> Result<(), KernelError> {
        for a in 0..2 {
            check_axis(
                size[a],
                self.kernel[a],
                self.strides[a],
                self.dilations[a],
                [self.pads[a], self.pads[a + 2]],
                out[a],
            )?;
        }
        Ok(())
    }
}

/// Sizes along one axis stay below this, so that sums of a few of them cannot overflow.
const LIMIT: usize = 1 << 30;

pub(in crate::kernels) fn check_axis(
    size: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pads: [usize; 2],
    out: usize,
) -> Result<(), KernelError> {
    for (operand, v) in [("kernel", kernel), ("stride", stride), ("dilation", dilation)] {
        if v == 0 {
            return Err(KernelError::Invalid {
                operand,
                problem: "is zero: it must be at least 1",
            });
        }
    }
    let reach = |n: usize, step: usize| n.checked_mul(step).is_some_and(|v| v < LIMIT);
    let fits = size < LIMIT
        && pads[0] < LIMIT
        && pads[1] < LIMIT
        && reach(kernel, dilation)
        && reach(out, stride);
    if fits { Ok(()) } else { Err(KernelError::Overflow { operand: "window" }) }
}

/// Whole windows along one axis.
pub(in crate::kernels) fn output_size(
    size: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pads: [usize; 2],
) -> Result<usize, KernelError> {
    check_axis(size, kernel, stride, dilation, pads, 0)?;
    let padded = size + pads[0] + pads[1];
    let reach = (kernel - 1) * dilation + 1;
    let Some(room) = padded.checked_sub(reach) else {
        return Err(KernelError::Invalid {
            operand: "window",
            problem: "is larger than the padded image: there is no output",
        });
    };
    let out = room / stride + 1;
    check_axis(size, kernel, stride, dilation, pads, out)?;
    Ok(out)
}
