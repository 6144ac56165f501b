//! What a node looks like on blocked values.

use super::View;
use crate::error::Result;
use crate::graph::{Attribute, Dim, Node, ValueId};
use crate::ops::blocked::{self, DOMAIN, Suits, block};
use crate::ops::window::WindowAttributes;
use crate::tensor::{Tensor, normalise_axis};

/// What a node looks like on blocked values.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) kind: Kind,
    /// The node, apart from its inputs and outputs.
    pub(super) node: Node,
    pub(super) operands: Vec<Option<Operand>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Convolution {
        suits: Suits,
        /// Channels of the input.
        channels: usize,
        /// Arithmetic operations that the blocked kernel saves, in the time of those at the
        /// peak, for each output element.
        saves: f64,
    },
    /// It can do with either layout.
    Either,
}

/// An input of a blocked node.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    /// As it is.
    Same(ValueId),
    /// In its blocked form.
    Blocked(ValueId),
    /// A map without channels, [N, 1, H, W], with one more axis of one element.
    Map(ValueId),
    /// Another constant.
    Constant(Tensor),
}

impl Form {
    pub(super) fn is_convolution(&self) -> bool {
        matches!(self.kind, Kind::Convolution { .. })
    }

    /// The values that are read in their blocked form.
    pub(super) fn blocked(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.operands.iter().flatten().filter_map(|o| match o {
            Operand::Blocked(v) => Some(*v),
            _ => None,
        })
    }
}

/// Functions of one tensor, element by element; further inputs are scalars.
const UNARY: &[&str] = &[
    "Relu",
    "LeakyRelu",
    "ThresholdedRelu",
    "Clip",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Tanh",
    "Elu",
    "Selu",
    "Celu",
    "Gelu",
    "Mish",
    "Softplus",
    "Softsign",
    "Shrink",
    "Erf",
    "Exp",
    "Log",
    "Sqrt",
    "Reciprocal",
    "Abs",
    "Neg",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Sin",
    "Cos",
];

/// Functions of several tensors, element by element.
const BROADCAST: &[&str] =
    &["Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Max", "Min", "Sum", "Mean"];

/// The form of a node, if it has one.
pub(super) fn form(view: &View<'_>, node: &Node) -> Result<Option<Form>> {
    let ours = node.domain == "brigade";
    if !(node.domain.is_empty() || ours) || node.captures > 0 {
        return Ok(None);
    }
    if node.makes().any(|v| view.blockable(v).is_none()) {
        return Ok(None);
    }
    let Some(out) = node.outputs.first().copied().flatten() else { return Ok(None) };
    match node.op.as_str() {
        "FusedConv" if ours => return convolution(view, node, out),
        "Silu" if ours => return Ok(unary(view, node)),
        _ if ours => return Ok(None),
        "Conv" => return convolution(view, node, out),
        _ => {}
    }
    Ok(match node.op.as_str() {
        op if UNARY.contains(&op) => unary(view, node),
        op if BROADCAST.contains(&op) => broadcast(view, node, out)?,
        "Concat" => concat(view, node),
        "Split" => split(view, node),
        "Slice" => slice(view, node),
        "Pad" => pad(view, node),
        "Resize" | "Upsample" => resize(view, node),
        "MaxPool" if node.makes().count() == 1 => pool(view, node, "BlockedMaxPool"),
        "AveragePool" => pool(view, node, "BlockedAveragePool"),
        "GlobalAveragePool" => global_average(view, node),
        "ReduceMean" if means_over_space(view, node) => global_average(view, node),
        _ => None,
    })
}

/// A copy of the node without inputs and outputs.
fn bare(node: &Node) -> Node {
    Node { inputs: Vec::new(), outputs: Vec::new(), ..node.clone() }
}

fn internal(node: &Node, op: &str) -> Node {
    Node { op: op.to_owned(), domain: DOMAIN.to_owned(), version: 1, ..bare(node) }
}

fn either(node: Node, operands: Vec<Option<Operand>>) -> Form {
    Form { kind: Kind::Either, node, operands }
}

/// Input 0, if it has a blocked form, with its extents.
fn data<'a>(view: &View<'a>, node: &Node) -> Option<(ValueId, &'a [Dim])> {
    let x = node.inputs.first().copied().flatten()?;
    Some((x, view.blockable(x)?))
}

/// Axes of a plain value.
const RANK: usize = 4;

/// An axis that is the same one in the blocked form: any but that of the channels.
fn spatial_or_batch(axis: i64) -> Option<i64> {
    let axis = normalise_axis(axis, RANK).ok()?;
    if axis == 1 { None } else { i64::try_from(axis).ok() }
}

fn int(node: &mut Node, name: &str, value: usize) {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    node.attributes.insert(name.to_owned(), Attribute::Int(value));
}

fn convolution(view: &View<'_>, node: &Node, out: ValueId) -> Result<Option<Form>> {
    let input = |i: usize| node.inputs.get(i).copied().flatten();
    let (Some(x), Some(w)) = (input(0), input(1)) else { return Ok(None) };
    let Some(weights) = super::super::readers::constant(view.graph, Some(w)) else {
        return Ok(None);
    };
    let (Some(dims), Some(y)) = (view.dims(x), view.dims(out)) else { return Ok(None) };
    let w_shape = weights.shape();
    // Over one axis they stay plain, whose sums go along the channels in order: models of streams
    // carry state for so many steps that another order takes them past their tolerance.
    if w_shape.rank() != RANK || dims.len() != RANK {
        return Ok(None);
    }
    let mut changed = internal(node, "BlockedConv");
    let window = WindowAttributes::read(node)?;
    if window.is_same() {
        // The padding follows from the extents.
        let size: Option<Vec<usize>> = dims[2..].iter().map(Dim::as_extent).collect();
        let Some(size) = size else { return Ok(None) };
        let axes = window.resolve(&size, window.kernel_of(Some(&w_shape[2..]))?)?;
        let pads = axes.iter().map(|a| a.pads[0]).chain(axes.iter().map(|a| a.pads[1]));
        let pads: Vec<i64> = pads.map(|p| i64::try_from(p).unwrap_or(i64::MAX)).collect();
        changed.attributes.remove("auto_pad");
        changed.attributes.insert("pads".to_owned(), Attribute::Ints(pads));
    }
    let suits = blocked::suits(&changed, dims, w_shape)?;
    let suits = Suits { blocked: suits.blocked && view.blockable(x).is_some(), ..suits };
    if !(suits.plain || suits.blocked) {
        return Ok(None);
    }
    let residual = match input(3) {
        Some(z) if view.blockable(z) != Some(y) => return Ok(None),
        z => z.map(Operand::Blocked),
    };
    let operands = vec![
        Some(Operand::Blocked(x)),
        Some(Operand::Same(w)),
        input(2).map(Operand::Same),
        residual,
    ];
    let Some(channels) = dims[1].as_extent() else { return Ok(None) };
    let kind = Kind::Convolution { suits, channels, saves: saves(node, w_shape)? };
    Ok(Some(Form { kind, node: changed, operands }))
}

/// What the blocked kernel saves for each output element: the operations, times what each takes
/// longer today (the shares of the peak that plain and blocked kernels reach).
fn saves(node: &Node, weights: &[usize]) -> Result<f64> {
    let depth: usize = weights[1..].iter().product();
    let strided = node.ints("strides")?.is_some_and(|s| s.iter().any(|s| *s > 1));
    let pointwise = weights[2..].iter().all(|k| *k == 1);
    let plain = match weights[1] {
        1 if weights[0] > 1 && node.int_or("group", 1)? > 1 => 0.2,
        1..=4 => 0.2,
        _ if strided => 0.4,
        _ if pointwise => 0.65,
        _ => 0.54,
    };
    Ok(2.0 * depth as f64 * (1.0 / plain - 1.0 / 0.9))
}

fn unary(view: &View<'_>, node: &Node) -> Option<Form> {
    let (x, _) = data(view, node)?;
    let others = node.inputs.iter().skip(1).map(|v| v.map(Operand::Same));
    Some(either(bare(node), [Some(Operand::Blocked(x))].into_iter().chain(others).collect()))
}

fn broadcast(view: &View<'_>, node: &Node, out: ValueId) -> Result<Option<Form>> {
    // Before version 7 operands are aligned otherwise.
    if node.version < 7 {
        return Ok(None);
    }
    let Some(y) = view.blockable(out) else { return Ok(None) };
    let mut operands = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        let Some(v) = *v else { return Ok(None) };
        match operand(view, v, y)? {
            Some(o) => operands.push(Some(o)),
            None => return Ok(None),
        }
    }
    Ok(Some(either(bare(node), operands)))
}

/// How an operand of an element-wise operator with output `y` is read.
fn operand(view: &View<'_>, v: ValueId, y: &[Dim]) -> Result<Option<Operand>> {
    let Some(d) = view.dims(v) else { return Ok(None) };
    let one = |d: &Dim| d.as_fixed() == Some(1);
    if d.len() > y.len() {
        return Ok(None);
    }
    if d.iter().all(one) {
        return Ok(Some(Operand::Same(v)));
    }
    let constant = view.graph.value(v).constant.as_ref();
    if d.len() < y.len() && constant.is_none() {
        return Ok(None);
    }
    let lead = y.len() - d.len();
    let channels = if lead < 2 { d[1 - lead].clone() } else { Dim::fixed(1) };
    if one(&channels) {
        return Ok(match constant {
            Some(t) => {
                // [N, 1, H, W] with axes of one element in front, and one for the block.
                let mut shape = vec![1; lead];
                shape.extend_from_slice(t.shape());
                shape.push(1);
                Some(Operand::Constant(t.reshape(shape)?))
            }
            // Without contents it has as many axes as the output.
            None => Some(Operand::Map(v)),
        });
    }
    if channels != y[1] {
        return Ok(None);
    }
    Ok(match constant {
        Some(t) if t.dtype() == crate::tensor::DType::F32 => {
            let mut shape = vec![1; lead];
            shape.extend_from_slice(t.shape());
            Some(Operand::Constant(blocked::block_tensor(&t.reshape(shape)?)?))
        }
        Some(_) => None,
        None => view.blockable(v).map(|_| Operand::Blocked(v)),
    })
}

fn concat(view: &View<'_>, node: &Node) -> Option<Form> {
    let axis = match node.int("axis") {
        Ok(Some(axis)) => axis,
        _ => return None,
    };
    let mut operands = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        let v = (*v)?;
        view.blockable(v)?;
        operands.push(Some(Operand::Blocked(v)));
    }
    let axis = i64::try_from(normalise_axis(axis, RANK).ok()?).ok()?;
    let mut node = bare(node);
    node.attributes.insert("axis".to_owned(), Attribute::Int(axis));
    Some(either(node, operands))
}

/// Along the channels, in pieces of whole blocks.
fn split(view: &View<'_>, node: &Node) -> Option<Form> {
    let (x, _) = data(view, node)?;
    let axis = normalise_axis(node.int_or("axis", 0).ok()?, RANK).ok()?;
    let mut changed = bare(node);
    if axis != 1 {
        return None;
    }
    int(&mut changed, "axis", 1);
    let blocks = |v: &Option<ValueId>| {
        let channels = view.blockable((*v)?)?[1].as_extent()?;
        i64::try_from(channels / block()).ok()
    };
    let blocks: Vec<i64> = node.outputs.iter().map(blocks).collect::<Option<_>>()?;
    changed.attributes.remove("num_outputs");
    let mut operands = vec![Some(Operand::Blocked(x))];
    if node.version < 13 {
        changed.attributes.insert("split".to_owned(), Attribute::Ints(blocks));
    } else {
        changed.attributes.remove("split");
        operands.push(Some(Operand::Constant(Tensor::of_i64(&blocks))));
    }
    Some(either(changed, operands))
}

/// Along other axes than the channels.
fn slice(view: &View<'_>, node: &Node) -> Option<Form> {
    let (x, _) = data(view, node)?;
    let input = |i: usize| node.inputs.get(i).copied().flatten();
    let (starts, ends) = (input(1)?, input(2)?);
    let axes = view.ints(node, 3)?;
    let axes: Vec<i64> = axes.into_iter().map(spatial_or_batch).collect::<Option<_>>()?;
    Some(either(
        bare(node),
        vec![
            Some(Operand::Blocked(x)),
            Some(Operand::Same(starts)),
            Some(Operand::Same(ends)),
            Some(Operand::Constant(Tensor::of_i64(&axes))),
            input(4).map(Operand::Same),
        ],
    ))
}

/// Around other axes than the channels.
fn pad(view: &View<'_>, node: &Node) -> Option<Form> {
    let (x, _) = data(view, node)?;
    let given = |i: usize| node.inputs.get(i).copied().flatten().is_some();
    let name = if node.version < 2 { "paddings" } else { "pads" };
    let attribute = node.ints(name).ok()?.map(<[i64]>::to_vec);
    let pads = match &attribute {
        Some(pads) => pads.clone(),
        None => view.ints(node, 1)?,
    };
    let axes = match given(3) {
        true => view.ints(node, 3)?,
        false => vec![0, 1, 2, 3],
    };
    if pads.len() != 2 * axes.len() {
        return None;
    }
    let mut all = vec![0; 10];
    for (i, axis) in axes.iter().enumerate() {
        let around = (pads[i], pads[axes.len() + i]);
        match spatial_or_batch(*axis) {
            Some(axis) => {
                let axis = usize::try_from(axis).ok()?;
                (all[axis], all[axis + 5]) = around;
            }
            None if around == (0, 0) => {}
            None => return None,
        }
    }
    let mut changed = bare(node);
    let mut operands = vec![Some(Operand::Blocked(x))];
    if attribute.is_some() {
        changed.attributes.insert(name.to_owned(), Attribute::Ints(all));
    } else {
        operands.push(Some(Operand::Constant(Tensor::of_i64(&all))));
        operands.push(node.inputs.get(2).copied().flatten().map(Operand::Same));
    }
    Some(either(changed, operands))
}

/// By constant factors or to constant sizes, not along batch or channels.
fn resize(view: &View<'_>, node: &Node) -> Option<Form> {
    let (x, dims) = data(view, node)?;
    let out = view.dims(node.outputs.first().copied().flatten()?)?;
    let crops = node.string("coordinate_transformation_mode").ok()? == Some("tf_crop_and_resize");
    let kept = node.string("keep_aspect_ratio_policy").ok()?.is_some_and(|p| p != "stretch");
    if out.get(..2) != dims.get(..2) || crops || kept {
        return None;
    }
    let old = node.op == "Upsample" || node.version < 11;
    let mut changed = bare(node);
    let axes = node.ints("axes").ok()?.map(|axes| -> Option<Vec<usize>> {
        axes.iter().map(|a| normalise_axis(*a, 4).ok()).collect()
    });
    let axes = match axes {
        Some(axes) => axes?,
        None => vec![0, 1, 2, 3],
    };
    changed.attributes.remove("axes");
    // Scale or size of all axes, with those that are not resized as they are.
    let spread = |values: &[f32]| -> Option<Vec<f32>> {
        let mut all = vec![1.0; 5];
        if values.len() != axes.len() {
            return None;
        }
        for (axis, v) in axes.iter().zip(values) {
            if *axis < 2 && *v != 1.0 {
                return None;
            }
            all[*axis] = *v;
        }
        Some(all)
    };
    if node.op == "Upsample" && node.version < 7 {
        return None;
    }
    if let Some(scales) = node.floats("scales").ok()? {
        changed.attributes.insert("scales".to_owned(), Attribute::Floats(spread(scales)?));
        return Some(either(changed, vec![Some(Operand::Blocked(x))]));
    }
    let port = if old { 1 } else { 2 };
    let constant = |i: usize| {
        let v = node.inputs.get(i).copied().flatten()?;
        view.graph.value(v).constant.as_ref().filter(|t| !t.is_empty())
    };
    let mut operands = vec![Some(Operand::Blocked(x)), None, None, None];
    if let Some(scales) = constant(port) {
        let scales = spread(scales.as_slice::<f32>().ok()?)?;
        operands[port] = Some(Operand::Constant(Tensor::new([5], scales).ok()?));
        operands.truncate(port + 1);
        return Some(either(changed, operands));
    }
    let sizes = (!old).then(|| constant(3)).flatten()?.to_i64s().ok()?;
    let [height, width] = [2, 3].map(|axis| {
        let at = axes.iter().position(|a| *a == axis)?;
        sizes.get(at).copied()
    });
    // Sizes of two axes only; the others keep theirs.
    changed.attributes.insert("axes".to_owned(), Attribute::Ints(vec![2, 3]));
    operands[3] = Some(Operand::Constant(Tensor::of_i64(&[height?, width?])));
    Some(either(changed, operands))
}

fn pool(view: &View<'_>, node: &Node, op: &str) -> Option<Form> {
    let (x, _) = data(view, node)?;
    let mut changed = internal(node, op);
    changed.attributes.remove("storage_order");
    Some(either(changed, vec![Some(Operand::Blocked(x))]))
}

fn global_average(view: &View<'_>, node: &Node) -> Option<Form> {
    let (x, _) = data(view, node)?;
    let mut changed = internal(node, "BlockedGlobalAveragePool");
    changed.attributes.clear();
    Some(either(changed, vec![Some(Operand::Blocked(x))]))
}

/// Whether a `ReduceMean` is a global average pooling.
fn means_over_space(view: &View<'_>, node: &Node) -> bool {
    if data(view, node).is_none() {
        return false;
    }
    let axes = match node.ints("axes") {
        Ok(Some(axes)) => Some(axes.to_vec()),
        _ => view.ints(node, 1),
    };
    let axes: Option<Vec<usize>> =
        axes.and_then(|axes| axes.iter().map(|a| normalise_axis(*a, RANK).ok()).collect());
    let Some(mut axes) = axes else { return false };
    axes.sort_unstable();
    axes == [2, 3] && node.int_or("keepdims", 1).is_ok_and(|keep| keep != 0)
}
