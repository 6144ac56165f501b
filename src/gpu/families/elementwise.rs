//! Chains of functions of single elements, with broadcasting: one kernel, one store.

use super::{AXES, FLAT};
use crate::gpu::ir::{Builder, Expr, Function, Kernel, Operand, Scalar, Var, select};
use crate::gpu::math;

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::gpu) enum Unary {
    Identity,
    Relu,
    LeakyRelu(f32),
    Clip(f32, f32),
    Sigmoid,
    HardSigmoid(f32, f32),
    HardSwish,
    /// `x / (1 + e^(-alpha x))`.
    Swish(f32),
    Gelu,
    GeluByTanh,
    Tanh,
    Exp,
    Log,
    Sqrt,
    Abs,
    Neg,
    Reciprocal,
    Erf,
    Floor,
    Ceil,
    Round,
    Sign,
    ThresholdedRelu(f32),
    Elu(f32),
    Selu(f32, f32),
    Celu(f32),
    Softplus,
    Softsign,
    Mish,
    /// Bias and lambda.
    Shrink(f32, f32),
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Asinh,
    Acosh,
    Atanh,
    Square,
    /// The power 1/2: as the root, but of the negative infinity the positive one.
    Half,
    Not,
    BitwiseNot,
    IsNan,
    /// Whether it is an infinity: the negative one, the positive one.
    IsInf(bool, bool),
    Cast(Scalar),
    /// The lowest so many bits of a whole number, signed or not.
    Low(u32, bool),
    /// Times a number.
    Scale(f32),
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::gpu) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    PRelu,
    Max,
    Min,
    Pow,
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
    Xor,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    ShiftLeft,
    ShiftRight,
    /// The first, not below the second; NaN stays.
    AtLeast,
    /// The first, not above the second; NaN stays.
    AtMost,
}

/// A link of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::gpu) enum Link {
    Unary(Unary),
    Binary(Binary),
    /// The second where the first holds, else the third.
    Where,
    /// `(x - mean) / sqrt(variance + epsilon) * scale + bias` of x, scale, bias, mean, variance.
    Normalise(f32),
}

/// What a link takes: an element that the kernel reads, or what an earlier link gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::gpu) enum Argument {
    Leaf(usize),
    Link(usize),
}

/// Links in the order in which they are computed; the last one gives what is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::gpu) struct Chain {
    pub(in crate::gpu) links: Vec<(Link, Vec<Argument>)>,
}

/// Most tensors that a chain reads: its words fit the table of every adapter.
pub(in crate::gpu) const MOST_LEAVES: usize = 6;

/// The first word of the strides of a leaf.
pub(in crate::gpu) const STRIDES: u32 = 4 + AXES as u32;

impl Unary {
    /// The function of `x`. Comparisons keep NaN where the driver does.
    pub(in crate::gpu) fn of(self, b: &mut Builder, x: impl Into<Expr>) -> Expr {
        let x: Var = b.bind(x);
        match self {
            Self::Identity => x.into(),
            Self::Relu => match x.ty {
                Scalar::F32 => select(x.lt(0.0), 0.0, x),
                Scalar::I32 => select(x.lt(0_i32), 0_i32, x),
                _ => x.into(),
            },
            Self::LeakyRelu(alpha) => select(x.lt(0.0), x * alpha, x),
            Self::Clip(lo, hi) => math::clip(b, x, lo, hi),
            Self::Sigmoid => math::sigmoid(x),
            Self::HardSigmoid(alpha, beta) => math::clip(b, x * alpha + beta, 0.0, 1.0),
            Self::HardSwish => x * math::clip(b, x * (1.0 / 6.0) + 0.5, 0.0, 1.0),
            Self::Swish(alpha) => x / ((-(x * alpha)).exp() + 1.0),
            Self::Gelu => math::gelu(b, x),
            Self::GeluByTanh => math::gelu_by_tanh(b, x),
            Self::Tanh => math::tanh(b, x),
            Self::Exp => x.exp(),
            Self::Log => math::ln(b, x),
            Self::Sqrt => x.sqrt(),
            Self::Abs if x.ty == Scalar::U32 => x.into(),
            Self::Abs => x.abs(),
            Self::Neg => -x,
            Self::Reciprocal => Expr::from(1.0) / x,
            Self::Erf => math::erf(b, x),
            Self::Floor => x.call(Function::Floor),
            Self::Ceil => x.call(Function::Ceil),
            Self::Round => x.call(Function::Round),
            Self::Sign => match x.ty {
                Scalar::F32 => select(x.gt(0.0), 1.0, select(x.lt(0.0), -1.0, x)),
                Scalar::I32 => select(x.gt(0_i32), 1_i32, select(x.lt(0_i32), -1_i32, 0_i32)),
                _ => x.min(1_u32),
            },
            Self::ThresholdedRelu(alpha) => select(x.gt(alpha), x, 0.0),
            Self::Elu(alpha) => {
                let low = math::exp_m1(b, x) * alpha;
                select(x.lt(0.0), low, x)
            }
            Self::Selu(alpha, gamma) => {
                let low = math::exp_m1(b, x) * alpha;
                select(x.lt(0.0), low, x) * gamma
            }
            Self::Celu(alpha) => {
                let inner = b.bind(x * (1.0 / alpha));
                let low = math::exp_m1(b, inner) * alpha;
                select(x.lt(0.0), low, x)
            }
            Self::Softplus => math::softplus(b, x),
            Self::Softsign => x / (x.abs() + 1.0),
            Self::Mish => {
                let s = math::softplus(b, x);
                let s = b.bind(s);
                x * math::tanh(b, s)
            }
            Self::Shrink(bias, lambda) => {
                let high = select(x.gt(lambda), x - bias, 0.0);
                select(x.lt(-lambda), x + bias, high)
            }
            Self::Sin => math::wave(b, x, false),
            Self::Cos => math::wave(b, x, true),
            Self::Tan => math::tan(b, x),
            Self::Asin => math::asin(b, x),
            Self::Acos => Expr::from(std::f32::consts::FRAC_PI_2) - math::asin(b, x),
            Self::Atan => math::atan(b, x),
            Self::Sinh => math::sinh(b, x),
            Self::Cosh => math::cosh(b, x),
            Self::Asinh => math::asinh(b, x),
            Self::Acosh => math::acosh(x),
            Self::Atanh => math::atanh(x),
            Self::Square => x * x,
            Self::Half => {
                let lowest = x.bits(Scalar::U32).equals(0xff80_0000_u32);
                select(lowest, f32::INFINITY, (x + 0.0).sqrt())
            }
            Self::Not | Self::BitwiseNot => !Expr::from(x),
            Self::IsNan => math::is_nan(x),
            Self::IsInf(negative, positive) => {
                let bits = b.bind(x.bits(Scalar::U32));
                match (negative, positive) {
                    (true, true) => (bits & 0x7fff_ffff_u32).equals(0x7f80_0000_u32),
                    (true, false) => bits.equals(0xff80_0000_u32),
                    (false, true) => bits.equals(0x7f80_0000_u32),
                    (false, false) => false.into(),
                }
            }
            Self::Cast(ty) => math::cast(b, x, ty),
            Self::Low(bits, true) => {
                let above = 32 - bits;
                (x.bits(Scalar::I32) << above) >> above
            }
            Self::Low(bits, false) => x.bits(Scalar::U32) & ((1_u32 << bits) - 1),
            Self::Scale(by) => x * by,
        }
    }
}

impl Binary {
    fn of(self, b: &mut Builder, x: Var, y: Var) -> Expr {
        match self {
            Self::Add => x + y,
            Self::Sub => x - y,
            Self::Mul => x * y,
            Self::Div => x / y,
            Self::PRelu => select(x.lt(0.0), x * y, x),
            Self::Max if x.ty == Scalar::F32 => select(x.lt(y).or(math::is_nan(y)), y, x),
            Self::Min if x.ty == Scalar::F32 => select(x.gt(y).or(math::is_nan(y)), y, x),
            Self::Max => x.max(y),
            Self::Min => x.min(y),
            Self::Pow => math::power(b, x, y),
            Self::Equal => x.equals(y),
            Self::Less => x.lt(y),
            Self::LessOrEqual => x.le(y),
            Self::Greater => x.gt(y),
            Self::GreaterOrEqual => x.ge(y),
            Self::And => x.and(y),
            Self::Or => x.or(y),
            Self::Xor if x.ty == Scalar::Bool => x.differs(y),
            Self::BitwiseAnd => x & y,
            Self::BitwiseOr => x | y,
            Self::Xor | Self::BitwiseXor => x ^ y,
            Self::ShiftLeft => select(y.lt(32_u32), x << (y & 31_u32), 0_u32),
            Self::ShiftRight => select(y.lt(32_u32), x >> (y & 31_u32), 0_u32),
            Self::AtLeast => select(x.lt(y), y, x),
            Self::AtMost => select(x.gt(y), y, x),
        }
    }

    /// Whether it is true or false.
    pub(in crate::gpu) fn compares(self) -> bool {
        use Binary::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
        matches!(self, Equal | Less | LessOrEqual | Greater | GreaterOrEqual)
    }
}

impl Chain {
    /// The chain of one link over as many leaves.
    pub(in crate::gpu) fn of(link: Link, leaves: usize) -> Self {
        Self { links: vec![(link, (0..leaves).map(Argument::Leaf).collect())] }
    }

    /// One function after the other, of one leaf.
    pub(in crate::gpu) fn line(functions: impl IntoIterator<Item = Unary>) -> Self {
        let mut chain = Self::default();
        for f in functions {
            let from = match chain.links.len() {
                0 => Argument::Leaf(0),
                n => Argument::Link(n - 1),
            };
            chain.links.push((Link::Unary(f), vec![from]));
        }
        chain
    }

    /// What the chain gives of its leaves.
    fn write(&self, b: &mut Builder, leaves: &[Var]) -> Expr {
        let mut made: Vec<Var> = Vec::with_capacity(self.links.len());
        for (link, arguments) in &self.links {
            let a: Vec<Var> = arguments
                .iter()
                .map(|a| match a {
                    Argument::Leaf(i) => leaves[*i],
                    Argument::Link(i) => made[*i],
                })
                .collect();
            let e = match (link, &a[..]) {
                (Link::Unary(f), &[x]) => f.of(b, x),
                (Link::Binary(f), &[x, y]) => f.of(b, x, y),
                (Link::Where, &[c, x, y]) => select(c, x, y),
                (Link::Normalise(epsilon), &[x, scale, bias, mean, variance]) => {
                    (x - mean) / (variance + *epsilon).sqrt() * scale + bias
                }
                _ => f32::NAN.into(),
            };
            made.push(b.bind(e));
        }
        made.last().map_or_else(|| leaves[0].into(), |v| (*v).into())
    }

    /// Its name: that of its links.
    fn name(&self) -> String {
        let link = |l: &(Link, Vec<Argument>)| {
            let text = match l.0 {
                Link::Unary(f) => format!("{f:?}"),
                Link::Binary(f) => format!("{f:?}"),
                Link::Where => "where".to_owned(),
                Link::Normalise(_) => "normalise".to_owned(),
            };
            let word = text.split('(').next().unwrap_or_default();
            word.to_ascii_lowercase()
        };
        self.links.iter().map(link).collect::<Vec<_>>().join("_")
    }

    /// The kernel. Words: count, threads in a row of groups, axes, 0; extents (8); strides (8) of
    /// each leaf. Where all lie as the output does, `flat`, axes and strides are not looked at.
    pub(in crate::gpu) fn kernel(&self, leaves: &[Scalar], output: Scalar, flat: bool) -> Kernel {
        let words4 = 3 + 2 * leaves.len();
        let mut b = Builder::new(&self.name(), words4, [FLAT, 1, 1], output);
        let buffers: Vec<_> = leaves.iter().map(|ty| b.input(*ty)).collect();
        let i = b.flat();
        let at: Vec<Var> = if flat {
            leaves.iter().map(|_| i).collect()
        } else {
            let strides: Vec<u32> =
                (0..leaves.len()).map(|k| STRIDES + (AXES * k) as u32).collect();
            let axes = b.word(2);
            b.positions(i, axes, 4, &strides)
        };
        let read: Vec<Var> =
            buffers.iter().zip(at).map(|(buffer, at)| b.bind(b.load(*buffer, at))).collect();
        let made = self.write(&mut b, &read);
        b.store(i, made);
        b.finish()
    }
}
