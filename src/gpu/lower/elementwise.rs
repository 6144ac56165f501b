//! Element-wise operators, as links of chains.

use std::sync::Arc;

use super::Made;
use super::site::{
    Site, Step, broadcast_strides, eight, flat_groups, joined, shape_of, signed, word, wrapped,
};
use crate::error::{Result, bail};
use crate::gpu::families::elementwise::{Argument, Binary, Chain, Link, Unary};
use crate::gpu::families::{AXES, FLAT};
use crate::gpu::ir::Scalar;
use crate::graph::{Node, ValueId};
use crate::tensor::{DType, Shape, broadcast_shapes, strides};

/// Most links of a chain.
pub(super) const MOST_LINKS: usize = 16;

/// A tensor that a chain reads, and its strides along the axes of the output.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) value: ValueId,
    pub(super) scalar: Scalar,
    pub(super) strides: Vec<usize>,
}

/// A chain on its way.
#[derive(Clone, Debug)]
pub(super) struct Fused {
    pub(super) chain: Chain,
    pub(super) leaves: Vec<Leaf>,
    pub(super) output: ValueId,
    scalar: Scalar,
    shape: Shape,
}

impl Fused {
    /// Puts the chain of a leaf in its place.
    pub(super) fn splice(&mut self, leaf: usize, inner: &Self) {
        let shift = inner.chain.links.len();
        // Leaves of the inner chain that are read already are read once.
        let mut from_inner = Vec::new();
        let mut leaves = self.leaves.clone();
        leaves.remove(leaf);
        for l in &inner.leaves {
            let same = |k: &Leaf| k.value == l.value && k.strides == l.strides;
            from_inner.push(leaves.iter().position(same).unwrap_or_else(|| {
                leaves.push(l.clone());
                leaves.len() - 1
            }));
        }
        let of_inner = |a: &Argument| match a {
            Argument::Leaf(i) => Argument::Leaf(from_inner[*i]),
            Argument::Link(i) => Argument::Link(*i),
        };
        let of_outer = |a: &Argument| match a {
            Argument::Leaf(i) if *i == leaf => Argument::Link(shift - 1),
            Argument::Leaf(i) => Argument::Leaf(if *i > leaf { i - 1 } else { *i }),
            Argument::Link(i) => Argument::Link(i + shift),
        };
        let mut links: Vec<(Link, Vec<Argument>)> = Vec::new();
        links.extend(inner.chain.links.iter().map(|(l, a)| (*l, a.iter().map(of_inner).collect())));
        links.extend(self.chain.links.iter().map(|(l, a)| (*l, a.iter().map(of_outer).collect())));
        self.chain = Chain { links };
        self.leaves = leaves;
    }

    /// The launch.
    pub(super) fn step(&self) -> Result<Step> {
        let steps: Vec<Vec<isize>> = self.leaves.iter().map(|l| signed(&l.strides)).collect();
        let (extents, steps) = joined(&self.shape, &steps);
        let flat = extents.is_empty() || (extents.len() == 1 && steps.iter().all(|s| s[0] == 1));
        let count = self.shape.elements();
        let (groups, across) = flat_groups(count, FLAT);
        let mut words = vec![word(count), across, word(extents.len()), 0];
        words.extend(eight(&extents)?);
        for s in &steps {
            words.extend(wrapped::<AXES>(s)?);
        }
        let scalars: Vec<Scalar> = self.leaves.iter().map(|l| l.scalar).collect();
        let kernel = Arc::new(self.chain.kernel(&scalars, self.scalar, flat));
        let reads = self.leaves.iter().map(|l| l.value).collect();
        Ok(Step { kernel, reads, writes: self.output, words, groups, product: None })
    }
}

impl Site<'_> {
    pub(super) fn chain(&self, chain: Chain, leaves: Vec<Leaf>) -> Result<Made> {
        let output = self.output()?;
        let (scalar, shape) = (self.scalar_of(output)?, self.out_shape()?);
        Ok(Made::Chain(Fused { chain, leaves, output, scalar, shape }))
    }

    /// A link over inputs that are broadcast.
    fn link(&self, link: Link, inputs: &[usize]) -> Result<Made> {
        let leaves = self.broadcast_leaves(inputs)?;
        self.chain(Chain::of(link, leaves.len()), leaves)
    }

    fn broadcast_leaves(&self, inputs: &[usize]) -> Result<Vec<Leaf>> {
        let out = self.out_shape()?;
        let shapes: Vec<Shape> = inputs.iter().map(|i| self.shape(*i)).collect::<Result<_>>()?;
        let all: Vec<&[usize]> = shapes.iter().map(|s| &s[..]).collect();
        if broadcast_shapes(&all)? != out {
            bail!(Shape, "operands {all:?} do not give {out}");
        }
        inputs
            .iter()
            .zip(&shapes)
            .map(|(i, s)| {
                let (value, scalar) = (self.input(*i)?, self.scalar(*i)?);
                Ok(Leaf { value, scalar, strides: broadcast_strides(s, &out) })
            })
            .collect()
    }
}

pub(super) fn unary(site: &Site<'_>) -> Result<Made> {
    keeps_numbers(site)?;
    match unary_of(site.node)? {
        Some(f) => site.link(Link::Unary(f), &[0]),
        None => bail!(Unsupported, "no kernel"),
    }
}

/// The function of one tensor that a node is, if it is one.
///
/// # Errors
/// If an attribute is of another kind.
pub(super) fn unary_of(node: &Node) -> Result<Option<Unary>> {
    let float = |name: &str, default: f32| node.float_or(name, default);
    Ok(Some(match node.op.as_str() {
        "Relu" => Unary::Relu,
        "LeakyRelu" => Unary::LeakyRelu(float("alpha", 0.01)?),
        "Clip" => Unary::Clip(float("min", f32::NEG_INFINITY)?, float("max", f32::INFINITY)?),
        "Sigmoid" => Unary::Sigmoid,
        "HardSigmoid" => Unary::HardSigmoid(float("alpha", 0.2)?, float("beta", 0.5)?),
        "HardSwish" => Unary::HardSwish,
        "Silu" => Unary::Swish(1.0),
        "Swish" => Unary::Swish(float("alpha", 1.0)?),
        "QuickGelu" => Unary::Swish(float("alpha", 1.702)?),
        "Gelu" => match node.string("approximate")?.unwrap_or("none") {
            "tanh" => Unary::GeluByTanh,
            _ => Unary::Gelu,
        },
        "Tanh" => Unary::Tanh,
        "Exp" => Unary::Exp,
        "Log" => Unary::Log,
        "Sqrt" => Unary::Sqrt,
        "Abs" => Unary::Abs,
        "Neg" => Unary::Neg,
        "Reciprocal" => Unary::Reciprocal,
        "Erf" => Unary::Erf,
        "Floor" => Unary::Floor,
        "Ceil" => Unary::Ceil,
        "Round" => Unary::Round,
        "Sign" => Unary::Sign,
        "ThresholdedRelu" => Unary::ThresholdedRelu(float("alpha", 1.0)?),
        "Elu" => Unary::Elu(float("alpha", 1.0)?),
        "Selu" => Unary::Selu(float("alpha", 1.673_263_2)?, float("gamma", 1.050_701)?),
        "Celu" => Unary::Celu(float("alpha", 1.0)?),
        "Softplus" => Unary::Softplus,
        "Softsign" => Unary::Softsign,
        "Mish" => Unary::Mish,
        "Shrink" => Unary::Shrink(float("bias", 0.0)?, float("lambd", 0.5)?),
        "Sin" => Unary::Sin,
        "Cos" => Unary::Cos,
        "Tan" => Unary::Tan,
        "Asin" => Unary::Asin,
        "Acos" => Unary::Acos,
        "Atan" => Unary::Atan,
        "Sinh" => Unary::Sinh,
        "Cosh" => Unary::Cosh,
        "Asinh" => Unary::Asinh,
        "Acosh" => Unary::Acosh,
        "Atanh" => Unary::Atanh,
        "Not" => Unary::Not,
        "BitwiseNot" => Unary::BitwiseNot,
        "IsNaN" => Unary::IsNan,
        "IsInf" => Unary::IsInf(
            node.int_or("detect_negative", 1)? != 0,
            node.int_or("detect_positive", 1)? != 0,
        ),
        _ => return Ok(None),
    }))
}

fn binary_of(node: &Node) -> Result<Option<Binary>> {
    Ok(Some(match node.op.as_str() {
        "Add" | "Sum" | "Mean" => Binary::Add,
        "Sub" => Binary::Sub,
        "Mul" => Binary::Mul,
        "Div" => Binary::Div,
        "PRelu" => Binary::PRelu,
        "Max" => Binary::Max,
        "Min" => Binary::Min,
        "Pow" => Binary::Pow,
        "Equal" => Binary::Equal,
        "Less" => Binary::Less,
        "LessOrEqual" => Binary::LessOrEqual,
        "Greater" => Binary::Greater,
        "GreaterOrEqual" => Binary::GreaterOrEqual,
        "And" => Binary::And,
        "Or" => Binary::Or,
        "Xor" => Binary::Xor,
        "BitwiseAnd" => Binary::BitwiseAnd,
        "BitwiseOr" => Binary::BitwiseOr,
        "BitwiseXor" => Binary::BitwiseXor,
        "BitShift" => match node.string("direction")?.unwrap_or("") {
            "LEFT" => Binary::ShiftLeft,
            _ => Binary::ShiftRight,
        },
        _ => return Ok(None),
    }))
}

/// # Errors
/// If the operator makes numbers of 64 bits that it did not get.
fn keeps_numbers(site: &Site<'_>) -> Result<()> {
    let dtype = site.graph.value(site.input(0)?).fact.dtype;
    let arithmetic = matches!(site.node.op.as_str(), "Add" | "Sub" | "Mul" | "Div" | "Neg");
    if dtype == Some(DType::I64) && arithmetic {
        bail!(
            Unsupported,
            "that its i64 fit 32 bits is not proven, as they depend on data; place this node on a CPU"
        );
    }
    Ok(())
}

pub(super) fn binary(site: &Site<'_>) -> Result<Made> {
    keeps_numbers(site)?;
    let Some(f) = binary_of(site.node)? else { bail!(Unsupported, "no kernel") };
    debug_assert!(!f.compares() || site.scalar_of(site.output()?)? == Scalar::Bool);
    site.link(Link::Binary(f), &[0, 1])
}

/// `Pow`, where a constant exponent may be a product or a root.
pub(super) fn power(site: &Site<'_>) -> Result<Made> {
    let exponent = site.constant(1).filter(|t| t.len() == 1);
    let exponent = exponent.map(|t| crate::tensor::cast(t, DType::F32)).transpose()?;
    let exponent = exponent.as_ref().and_then(|t| t.as_slice::<f32>().ok()).map(|s| s[0]);
    let same = site.shape(0)? == site.out_shape()?;
    let f = match exponent.filter(|_| same) {
        Some(2.0) => Unary::Square,
        Some(1.0) => Unary::Identity,
        Some(0.5) => Unary::Half,
        Some(-1.0) => Unary::Reciprocal,
        _ if site.scalar(1)? == Scalar::F32 => {
            return site.link(Link::Binary(Binary::Pow), &[0, 1]);
        }
        _ => {
            let leaves = site.broadcast_leaves(&[0, 1])?;
            let cast = (Link::Unary(Unary::Cast(Scalar::F32)), vec![Argument::Leaf(1)]);
            let power = (Link::Binary(Binary::Pow), vec![Argument::Leaf(0), Argument::Link(0)]);
            return site.chain(Chain { links: vec![cast, power] }, leaves);
        }
    };
    site.link(Link::Unary(f), &[0])
}

/// One operation over any number of operands, one after the other.
pub(super) fn variadic(site: &Site<'_>) -> Result<Made> {
    let count = site.node.inputs.len();
    let Some(f) = binary_of(site.node)? else { bail!(Unsupported, "no kernel") };
    if count > crate::gpu::families::elementwise::MOST_LEAVES {
        bail!(Unsupported, "{count} operands at once");
    }
    let leaves = site.broadcast_leaves(&(0..count).collect::<Vec<_>>())?;
    let mut links = Vec::new();
    let mut sum = Argument::Leaf(0);
    for i in 1..count {
        links.push((Link::Binary(f), vec![sum, Argument::Leaf(i)]));
        sum = Argument::Link(links.len() - 1);
    }
    if site.node.op == "Mean" {
        links.push((Link::Unary(Unary::Scale(1.0 / count as f32)), vec![sum]));
    } else if links.is_empty() {
        links.push((Link::Unary(Unary::Identity), vec![sum]));
    }
    site.chain(Chain { links }, leaves)
}

pub(super) fn choice(site: &Site<'_>) -> Result<Made> {
    site.link(Link::Where, &[0, 1, 2])
}

/// `Clip`, whose bounds are attributes or tensors of one element.
pub(super) fn clip(site: &Site<'_>) -> Result<Made> {
    if site.node.inputs.len() < 2 {
        if site.scalar(0)? != Scalar::F32 {
            return site.link(Link::Unary(Unary::Identity), &[0]);
        }
        return unary(site);
    }
    let out = site.out_shape()?;
    let leaf = |i: usize| -> Result<Leaf> {
        if i > 0 && site.shape(i)?.elements() != 1 {
            bail!(Shape, "the bounds of a clip are single numbers");
        }
        let own = if i == 0 { strides(&out) } else { vec![0; out.len()] };
        Ok(Leaf { value: site.input(i)?, scalar: site.scalar(i)?, strides: own })
    };
    let mut leaves = vec![leaf(0)?];
    let mut links = Vec::new();
    let mut x = Argument::Leaf(0);
    for (i, f) in [(1, Binary::AtLeast), (2, Binary::AtMost)] {
        if site.optional(i).is_some() {
            leaves.push(leaf(i)?);
            links.push((Link::Binary(f), vec![x, Argument::Leaf(leaves.len() - 1)]));
            x = Argument::Link(links.len() - 1);
        }
    }
    if links.is_empty() {
        links.push((Link::Unary(Unary::Identity), vec![x]));
    }
    site.chain(Chain { links }, leaves)
}

pub(super) fn batch_norm(site: &Site<'_>) -> Result<Made> {
    let out = site.out_shape()?;
    let mut by_channel = vec![0; out.len()];
    if let Some(channel) = by_channel.get_mut(1) {
        *channel = 1;
    }
    let mut leaves = Vec::new();
    for i in 0..5 {
        let value = site.input(i)?;
        if i > 0 && out.get(1) != Some(&shape_of(site.graph, value)?.elements()) {
            bail!(Shape, "`{}` is not one number a channel", site.graph.value(value).name);
        }
        let own = if i == 0 { strides(&out) } else { by_channel.clone() };
        leaves.push(Leaf { value, scalar: site.scalar(i)?, strides: own });
    }
    let link = Link::Normalise(site.node.float_or("epsilon", 1e-5)?);
    site.chain(Chain::of(link, 5), leaves)
}

/// `Cast` and `CastLike`.
pub(super) fn cast(site: &Site<'_>) -> Result<Made> {
    let dtype = site.graph.value(site.output()?).fact.dtype;
    let (from, to) = (site.scalar(0)?, site.scalar_of(site.output()?)?);
    let narrow = dtype.and_then(narrow_range);
    let links = match narrow {
        // As between all numbers: floats to the nearest that there is, whole numbers by their lowest bits.
        Some((_, lo, hi)) if from == Scalar::F32 => vec![Unary::Clip(lo, hi), Unary::Cast(to)],
        Some((bits, lo, _)) if from != Scalar::Bool => vec![Unary::Low(bits, lo < 0.0)],
        _ if to == from => vec![Unary::Identity],
        _ => vec![Unary::Cast(to)],
    };
    let leaves = site.broadcast_leaves(&[0])?;
    site.chain(Chain::line(links), leaves)
}

/// Bits of a whole number that is narrower than the device's, its least and its largest.
pub(super) fn narrow_range(dtype: DType) -> Option<(u32, f32, f32)> {
    Some(match dtype {
        DType::I8 => (8, -128.0, 127.0),
        DType::U8 => (8, 0.0, 255.0),
        DType::I16 => (16, -32_768.0, 32_767.0),
        DType::U16 => (16, 0.0, 65_535.0),
        _ => return None,
    })
}

/// `BiasGelu` and `FastGelu` of ONNX Runtime: a bias that is broadcast, then the function.
pub(super) fn bias_gelu(site: &Site<'_>) -> Result<Made> {
    let f = if site.node.op == "FastGelu" { Unary::GeluByTanh } else { Unary::Gelu };
    if site.optional(1).is_none() {
        return site.link(Link::Unary(f), &[0]);
    }
    let leaves = site.broadcast_leaves(&[0, 1])?;
    let add = (Link::Binary(Binary::Add), vec![Argument::Leaf(0), Argument::Leaf(1)]);
    let links = vec![add, (Link::Unary(f), vec![Argument::Link(0)])];
    site.chain(Chain { links }, leaves)
}
