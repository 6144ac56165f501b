//! What happens to a sum before it is stored: bias, residual, activation.

use super::math;

/// An element-wise function applied to each output as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// The value itself.
    #[default]
    None,
    /// `max(0, x)`; NaN stays NaN.
    Relu,
    /// `min(hi, max(lo, x))`; NaN stays NaN.
    Clip {
        /// Lower bound.
        lo: f32,
        /// Upper bound.
        hi: f32,
    },
    /// `x · clamp(x / 6 + 1/2, 0, 1)`.
    HardSwish,
    /// `clamp(alpha · x + beta, 0, 1)`.
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `x · sigmoid(x)`, also called Swish.
    Silu,
    /// `x/2 · (1 + erf(x / √2))`.
    Gelu,
    /// Hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// Bounds that express this activation as a clamp, where a clamp is all it is.
    pub(in crate::kernels) fn bounds(self) -> Option<(f32, f32)> {
        match self {
            Self::None => Some((f32::NEG_INFINITY, f32::INFINITY)),
            Self::Relu => Some((0.0, f32::INFINITY)),
            Self::Clip { lo, hi } => Some((lo, hi)),
            _ => None,
        }
    }

    /// The activation of one value, in portable code.
    ///
    /// ```
    /// use brigade::kernels::Activation;
    /// assert_eq!(Activation::Relu.apply(-2.0), 0.0);
    /// assert_eq!(Activation::HardSwish.apply(3.0), 3.0);
    /// ```
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Self::None => x,
            Self::Relu => clip(x, 0.0, f32::INFINITY),
            Self::Clip { lo, hi } => clip(x, lo, hi),
            Self::HardSwish => x * clip(x * (1.0 / 6.0) + 0.5, 0.0, 1.0),
            Self::HardSigmoid { alpha, beta } => clip(x * alpha + beta, 0.0, 1.0),
            Self::Sigmoid => math::scalar::sigmoid(x),
            Self::Silu => x * math::scalar::sigmoid(x),
            Self::Gelu => 0.5 * x * (1.0 + math::scalar::erf(x * std::f32::consts::FRAC_1_SQRT_2)),
            Self::Tanh => x.tanh(),
        }
    }
}

/// A clamp that keeps NaN and, for crossed bounds, answers `hi`, as ONNX's Clip does.
pub(in crate::kernels) fn clip(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x < lo { lo } else { x };
    if x > hi { hi } else { x }
}

/// One value per row or per column, added to the sums.
#[derive(Clone, Copy, Debug, Default)]
pub enum Bias<'a> {
    /// Nothing is added.
    #[default]
    None,
    /// `bias[i]` is added to row `i` of the output (an output channel of a convolution).
    PerRow(&'a [f32]),
    /// `bias[j]` is added to column `j` of the output (an output feature of a linear layer).
    PerColumn(&'a [f32]),
}

/// A matrix of the output's shape that is added to it.
#[derive(Clone, Copy, Debug)]
pub struct Residual<'a> {
    /// The values, row after row.
    pub data: &'a [f32],
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Whether it is added to the activated value instead of to the sum.
    pub after_activation: bool,
}

/// What is done to the sums: `act(alpha · sum + beta · C + bias + residual)`, or, for a residual
/// after the activation, `act(alpha · sum + beta · C + bias) + residual`.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// Scale of the sums, normally 1.
    pub alpha: f32,
    /// Scale of what the output held before, normally 0 (it is then never read).
    pub beta: f32,
    /// Value per row or column.
    pub bias: Bias<'a>,
    /// Matrix of the output's shape.
    pub residual: Option<Residual<'a>>,
    /// Applied before the store.
    pub activation: Activation,
}

impl Default for Epilogue<'_> {
    fn default() -> Self {
        Self {
            alpha: 1.0,
            beta: 0.0,
            bias: Bias::None,
            residual: None,
            activation: Activation::None,
        }
    }
}
