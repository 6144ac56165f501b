//! The operators that there are kernels for.

use super::site::{Site, device_scalar};
use super::{Made, elementwise, movement, product, rows, windows};
use crate::error::{Result, bail};
use crate::graph::{Fact, Node};
use crate::tensor::DType;

/// An operator that there is a kernel for.
pub struct Row {
    /// The domain; empty for ai.onnx.
    pub domain: &'static str,
    /// The operator.
    pub op: &'static str,
    /// Whether it works element by element, so that it may be part of a chain.
    pub elementwise: bool,
    /// How many of the first inputs kernels read; the others decide extents.
    pub reads: usize,
    /// The dtypes that kernels read.
    pub types: &'static [DType],
    refuse: fn(&Node, &[Option<Fact>]) -> Option<String>,
    pub(super) lower: fn(&Site<'_>) -> Result<Made>,
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.domain, self.op)
    }
}

const F: &[DType] = &[DType::F32];
const B: &[DType] = &[DType::Bool];
/// Numbers whose arithmetic is the same on 32 bits.
const NUMBERS: &[DType] = &[DType::F32, DType::I32, DType::U32];
/// Numbers that are compared or chosen from: those of 64 bits may be narrowed.
const ORDERED: &[DType] = &[DType::F32, DType::I32, DType::U32, DType::I64];
/// Elements that are moved.
const ANY: &[DType] = &[DType::F32, DType::I32, DType::U32, DType::I64, DType::Bool];
const U: &[DType] = &[DType::U32];
/// Numbers whose bits are taken: those of 64 bits that fit 32 do so afterwards, too.
const WHOLE: &[DType] = &[DType::I32, DType::U32, DType::I64];

const WHOLE_RANGES: &[DType] = &[DType::F32, DType::I32, DType::I64];

const ALL: usize = usize::MAX;

fn never(_: &Node, _: &[Option<Fact>]) -> Option<String> {
    None
}

/// As operands are broadcast since operator set 7.
fn old_broadcast(node: &Node, _: &[Option<Fact>]) -> Option<String> {
    let old =
        node.version < 7 && (node.int_or("broadcast", 0).unwrap_or(1) != 0 || node.op == "PRelu");
    old.then(|| "it does not broadcast as before operator set 7".to_owned())
}

fn dtype(facts: &[Option<Fact>], i: usize) -> Option<DType> {
    facts.get(i)?.as_ref()?.dtype
}

fn whole_division(node: &Node, facts: &[Option<Fact>]) -> Option<String> {
    if dtype(facts, 0) != Some(DType::F32) {
        return Some("a division by zero of whole numbers would go unnoticed".to_owned());
    }
    old_broadcast(node, facts)
}

fn remainder(node: &Node, _: &[Option<Fact>]) -> Option<String> {
    let floats = node.int_or("fmod", 0).unwrap_or(0) != 0;
    (!floats).then(|| "a division by zero of whole numbers would go unnoticed".to_owned())
}

fn condition(_: &Node, facts: &[Option<Fact>]) -> Option<String> {
    (dtype(facts, 0) != Some(DType::Bool)).then(|| "its condition is not bool".to_owned())
}

fn exponent(node: &Node, facts: &[Option<Fact>]) -> Option<String> {
    if dtype(facts, 0) != Some(DType::F32) {
        return Some("it takes powers of f32 only".to_owned());
    }
    old_broadcast(node, facts)
}

fn negative(_: &Node, facts: &[Option<Fact>]) -> Option<String> {
    let unsigned = dtype(facts, 0) == Some(DType::U32);
    unsigned.then(|| "it takes no negative of u32".to_owned())
}

fn conversion(node: &Node, facts: &[Option<Fact>]) -> Option<String> {
    let from = dtype(facts, 0);
    let to = match node.op.as_str() {
        "CastLike" => dtype(facts, 1),
        _ => {
            node.int_or("to", 0).ok().and_then(|t| i32::try_from(t).ok()).and_then(DType::from_onnx)
        }
    };
    let Some(to) = to else { return Some("what it converts to is not known".to_owned()) };
    if device_scalar(to).is_none() {
        return Some(format!("it does not convert to {to}"));
    }
    let proven = matches!(from, Some(DType::I32 | DType::I64 | DType::Bool));
    (to == DType::I64 && !proven)
        .then(|| "that the whole numbers fit 32 bits is not proven".to_owned())
}

fn approximation(node: &Node, _: &[Option<Fact>]) -> Option<String> {
    let mode = node.string("approximate").ok().flatten().unwrap_or("none");
    (!matches!(mode, "none" | "tanh")).then(|| format!("it does not know `approximate={mode}`"))
}

fn training(node: &Node, facts: &[Option<Fact>]) -> Option<String> {
    if node.int_or("training_mode", 0).unwrap_or(1) != 0 || node.inputs.len() > 5 {
        return Some("it does not train".to_owned());
    }
    let by_channel = node.int_or("spatial", 1).unwrap_or(0) != 0;
    let _ = facts;
    (!by_channel).then(|| "it normalises by channel, not by element".to_owned())
}

fn dropped(node: &Node, _: &[Option<Fact>]) -> Option<String> {
    let trains = node.inputs.get(2).copied().flatten().is_some() || node.version < 7;
    trains.then(|| "it drops nothing: it does not train".to_owned())
}

fn windowed(node: &Node, facts: &[Option<Fact>]) -> Option<String> {
    let rank = facts.first().and_then(Option::as_ref).and_then(Fact::rank);
    match rank {
        Some(3 | 4) => {}
        Some(n) => {
            return Some(format!("its windows are over 1 or 2 axes, not {}", n.saturating_sub(2)));
        }
        None => return Some("the number of axes is not known".to_owned()),
    }
    let ceil = node.int_or("ceil_mode", 0).unwrap_or(1) != 0;
    if ceil && node.op != "MaxPool" {
        return Some("it does not round the extents of a mean up".to_owned());
    }
    let norm = node.op == "LpPool" && !(1..=2).contains(&node.int_or("p", 2).unwrap_or(0));
    norm.then(|| "it knows the first and the second norm only".to_owned())
}

fn resized(node: &Node, _: &[Option<Fact>]) -> Option<String> {
    let crops = node
        .string("coordinate_transformation_mode")
        .is_ok_and(|m| m == Some("tf_crop_and_resize"));
    crops.then(|| "it takes no elements from outside of the input".to_owned())
}

fn sums(node: &Node, facts: &[Option<Fact>]) -> Option<String> {
    let floats =
        matches!(node.op.as_str(), "ReduceMean" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp");
    match dtype(facts, 0) {
        Some(DType::F32) => None,
        Some(DType::I64) if !matches!(node.op.as_str(), "ReduceMax" | "ReduceMin") => {
            Some("that sums of i64 fit 32 bits is not proven".to_owned())
        }
        _ if floats => Some("it takes means and roots of f32 only".to_owned()),
        _ => None,
    }
}

fn indexed(_: &Node, facts: &[Option<Fact>]) -> Option<String> {
    let fits = matches!(dtype(facts, 1), Some(DType::I32 | DType::I64));
    (!fits).then(|| "its indices are not i32 or i64".to_owned())
}

fn multiplied(node: &Node, facts: &[Option<Fact>]) -> Option<String> {
    let rank = |i: usize| facts.get(i).and_then(Option::as_ref).and_then(Fact::rank);
    (node.op != "Gemm" && (rank(0) == Some(0) || rank(1) == Some(0)))
        .then(|| "a scalar has no product".to_owned())
}

fn norm(node: &Node, _: &[Option<Fact>]) -> Option<String> {
    let p = node.int_or("p", 2).unwrap_or(0);
    (!(1..=2).contains(&p)).then(|| "it knows the first and the second norm only".to_owned())
}

/// What is always known beforehand where extents are.
fn unknown(_: &Site<'_>) -> Result<Made> {
    bail!(Unsupported, "extents that depend on data")
}

fn same(_: &Site<'_>) -> Result<Made> {
    Ok(Made::Same)
}

const fn row(
    op: &'static str,
    reads: usize,
    types: &'static [DType],
    refuse: fn(&Node, &[Option<Fact>]) -> Option<String>,
    lower: fn(&Site<'_>) -> Result<Made>,
) -> Row {
    Row { domain: "", op, elementwise: false, reads, types, refuse, lower }
}

const fn element(
    op: &'static str,
    types: &'static [DType],
    refuse: fn(&Node, &[Option<Fact>]) -> Option<String>,
    lower: fn(&Site<'_>) -> Result<Made>,
) -> Row {
    Row { domain: "", op, elementwise: true, reads: ALL, types, refuse, lower }
}

impl Row {
    const fn of(self, domain: &'static str) -> Self {
        Self { domain, ..self }
    }
}

const MICROSOFT: &str = "com.microsoft";

/// Every operator that there is a kernel for.
pub static TABLE: &[Row] = &[
    // Element by element.
    element("Add", NUMBERS, old_broadcast, elementwise::binary),
    element("Sub", NUMBERS, old_broadcast, elementwise::binary),
    element("Mul", NUMBERS, old_broadcast, elementwise::binary),
    element("Div", NUMBERS, whole_division, elementwise::binary),
    element("Mod", F, remainder, elementwise::binary),
    element("Pow", NUMBERS, exponent, elementwise::power),
    element("PRelu", F, old_broadcast, elementwise::binary),
    element("Max", ORDERED, never, elementwise::variadic),
    element("Min", ORDERED, never, elementwise::variadic),
    element("Sum", F, never, elementwise::variadic),
    element("Mean", F, never, elementwise::variadic),
    element("Equal", ANY, old_broadcast, elementwise::binary),
    element("Less", ORDERED, old_broadcast, elementwise::binary),
    element("LessOrEqual", ORDERED, old_broadcast, elementwise::binary),
    element("Greater", ORDERED, old_broadcast, elementwise::binary),
    element("GreaterOrEqual", ORDERED, old_broadcast, elementwise::binary),
    element("And", B, old_broadcast, elementwise::binary),
    element("Or", B, old_broadcast, elementwise::binary),
    element("Xor", B, old_broadcast, elementwise::binary),
    element("BitwiseAnd", WHOLE, never, elementwise::binary),
    element("BitwiseOr", WHOLE, never, elementwise::binary),
    element("BitwiseXor", WHOLE, never, elementwise::binary),
    element("BitwiseNot", WHOLE, never, elementwise::unary),
    element("BitShift", U, never, elementwise::binary),
    element("Where", ANY, condition, elementwise::choice),
    element("Clip", ORDERED, never, elementwise::clip),
    element("Cast", ANY, conversion, elementwise::cast),
    Row { reads: 1, ..element("CastLike", ANY, conversion, elementwise::cast) },
    element("BatchNormalization", F, training, elementwise::batch_norm),
    element("Relu", NUMBERS, never, elementwise::unary),
    element("Abs", NUMBERS, never, elementwise::unary),
    element("Neg", NUMBERS, negative, elementwise::unary),
    element("Sign", NUMBERS, never, elementwise::unary),
    element("Not", B, never, elementwise::unary),
    element("IsNaN", F, never, elementwise::unary),
    element("IsInf", F, never, elementwise::unary),
    element("Exp", F, never, elementwise::unary),
    element("Log", F, never, elementwise::unary),
    element("Tanh", F, never, elementwise::unary),
    element("Sigmoid", F, never, elementwise::unary),
    element("Erf", F, never, elementwise::unary),
    element("Sqrt", F, never, elementwise::unary),
    element("Reciprocal", F, never, elementwise::unary),
    element("Floor", F, never, elementwise::unary),
    element("Ceil", F, never, elementwise::unary),
    element("Round", F, never, elementwise::unary),
    element("LeakyRelu", F, never, elementwise::unary),
    element("ThresholdedRelu", F, never, elementwise::unary),
    element("HardSigmoid", F, never, elementwise::unary),
    element("HardSwish", F, never, elementwise::unary),
    element("Elu", F, never, elementwise::unary),
    element("Selu", F, never, elementwise::unary),
    element("Celu", F, never, elementwise::unary),
    element("Softplus", F, never, elementwise::unary),
    element("Softsign", F, never, elementwise::unary),
    element("Mish", F, never, elementwise::unary),
    element("Shrink", F, never, elementwise::unary),
    element("Sin", F, never, elementwise::unary),
    element("Cos", F, never, elementwise::unary),
    element("Tan", F, never, elementwise::unary),
    element("Asin", F, never, elementwise::unary),
    element("Acos", F, never, elementwise::unary),
    element("Atan", F, never, elementwise::unary),
    element("Sinh", F, never, elementwise::unary),
    element("Cosh", F, never, elementwise::unary),
    element("Asinh", F, never, elementwise::unary),
    element("Acosh", F, never, elementwise::unary),
    element("Atanh", F, never, elementwise::unary),
    element("Gelu", F, approximation, elementwise::unary),
    element("Silu", F, never, elementwise::unary).of("brigade"),
    element("Swish", F, never, elementwise::unary),
    element("QuickGelu", F, never, elementwise::unary).of(MICROSOFT),
    element("Gelu", F, never, elementwise::bias_gelu).of(MICROSOFT),
    element("BiasGelu", F, never, elementwise::bias_gelu).of(MICROSOFT),
    element("FastGelu", F, never, elementwise::bias_gelu).of(MICROSOFT),
    // Rows.
    row("ReduceSum", 1, ORDERED, sums, rows::reduce),
    row("ReduceMean", 1, F, sums, rows::reduce),
    row("ReduceMax", 1, ORDERED, sums, rows::reduce),
    row("ReduceMin", 1, ORDERED, sums, rows::reduce),
    row("ReduceProd", 1, NUMBERS, sums, rows::reduce),
    row("ReduceL1", 1, NUMBERS, sums, rows::reduce),
    row("ReduceL2", 1, F, sums, rows::reduce),
    row("ReduceSumSquare", 1, NUMBERS, sums, rows::reduce),
    row("ReduceLogSum", 1, F, sums, rows::reduce),
    row("ReduceLogSumExp", 1, F, sums, rows::reduce),
    row("GlobalAveragePool", 1, F, never, rows::planes),
    row("GlobalMaxPool", 1, F, never, rows::planes),
    row("ArgMax", 1, ORDERED, never, rows::arg),
    row("ArgMin", 1, ORDERED, never, rows::arg),
    row("Softmax", 1, F, never, rows::softmax),
    row("LogSoftmax", 1, F, never, rows::softmax),
    row("Hardmax", 1, F, never, rows::softmax),
    row("LpNormalization", 1, F, norm, rows::lp_normalise),
    row("LayerNormalization", ALL, F, never, rows::layer),
    row("RMSNormalization", ALL, F, never, rows::layer),
    row("SimplifiedLayerNormalization", ALL, F, never, rows::layer),
    row("InstanceNormalization", ALL, F, never, rows::group),
    row("GroupNormalization", ALL, F, never, rows::group),
    row("MeanVarianceNormalization", 1, F, never, rows::mean_variance),
    // Elements moved.
    row("Identity", 1, ANY, never, same),
    row("Dropout", 1, ANY, dropped, same),
    row("Reshape", 1, ANY, never, same),
    row("Flatten", 1, ANY, never, same),
    row("Squeeze", 1, ANY, never, same),
    row("Unsqueeze", 1, ANY, never, same),
    row("Transpose", 1, ANY, never, movement::transpose),
    row("Concat", ALL, ANY, never, movement::concat),
    row("Split", 1, ANY, never, movement::split),
    row("Slice", 1, ANY, never, movement::slice),
    row("Expand", 1, ANY, never, movement::expand),
    row("Tile", 1, ANY, never, movement::tile),
    row("Pad", 1, ANY, never, movement::pad),
    row("Gather", 2, ANY, indexed, movement::gather),
    row("GatherElements", 2, ANY, indexed, movement::gather_elements),
    row("DepthToSpace", 1, ANY, never, movement::blocks),
    row("SpaceToDepth", 1, ANY, never, movement::blocks),
    row("ConstantOfShape", 0, ANY, never, movement::constant_of_shape),
    row("GatherND", 2, ANY, indexed, movement::gather_nd),
    row("Range", 0, WHOLE_RANGES, never, movement::range),
    row("Shape", 0, ANY, never, unknown),
    row("Size", 0, ANY, never, unknown),
    // Products and windows.
    row("MatMul", 2, F, multiplied, product::matmul),
    row("FusedMatMul", ALL, F, multiplied, product::matmul).of("brigade"),
    row("Gemm", ALL, F, never, product::gemm),
    row("FusedGemm", ALL, F, never, product::gemm).of("brigade"),
    row("Conv", ALL, F, windowed, windows::convolve),
    row("FusedConv", ALL, F, windowed, windows::convolve).of("brigade"),
    row("ConvTranspose", ALL, F, windowed, windows::transposed),
    row("Resize", 1, F, resized, windows::resize),
    row("Upsample", 1, F, never, windows::resize),
    row("MaxPool", 1, F, windowed, windows::pool),
    row("AveragePool", 1, F, windowed, windows::pool),
    row("LpPool", 1, F, windowed, windows::pool),
];

/// The row of a node's operator.
pub fn row_of(node: &Node) -> Option<&'static Row> {
    TABLE.iter().find(|r| r.op == node.op && r.domain == node.domain)
}

/// Whether there are kernels for a node whose inputs have these facts; `limit` is the largest
/// buffer that the device binds, in bytes. Where they hold less than the graph asks for, how.
///
/// # Errors
/// Why not, in words.
pub fn supports(node: &Node, facts: &[Option<Fact>], limit: u64) -> Result<Option<String>, String> {
    let op = node.op.as_str();
    let Some(row) = row_of(node) else {
        if !TABLE.iter().any(|r| r.domain == node.domain) {
            return Err("it has no kernel for operators of this domain".to_owned());
        }
        return Err(format!("it has no kernel for {op}"));
    };
    if is_extent_arithmetic(row, facts) {
        return Ok(Some("its i64 are taken for extents, which are known beforehand".to_owned()));
    }
    let mut narrowed = None;
    for fact in facts.iter().take(row.reads).flatten() {
        match fact.dtype {
            Some(d) if row.types.contains(&d) => {
                if d == DType::I64 {
                    narrowed = Some("its i64 are kept in 32 bits, which is checked".to_owned());
                }
            }
            Some(other) => {
                return Err(format!("it computes {op} in {}, not in {other}", names(row)));
            }
            None => {
                return Err(format!("it computes in {}, and the dtype is not known", names(row)));
            }
        }
        let elements = fact.concrete_shape().map(|s| s.iter().product::<usize>() as u64);
        if elements.is_some_and(|n| n.saturating_mul(4) > limit) {
            return Err(format!("a tensor of {fact} is larger than the {limit} bytes it binds"));
        }
    }
    if op != "Split" && node.outputs.iter().skip(1).any(Option::is_some) {
        return Err(format!("it gives only the first output of {op}"));
    }
    match (row.refuse)(node, facts) {
        Some(why) => Err(why),
        None => Ok(narrowed),
    }
}

/// Whether a node works on a few numbers of 64 bits, as arithmetic of extents does.
fn is_extent_arithmetic(row: &Row, facts: &[Option<Fact>]) -> bool {
    const FEW: usize = 8;
    let few = |f: &Fact| {
        f.dtype == Some(DType::I64)
            && f.concrete_shape().is_some_and(|s| s.len() <= 1 && s.iter().all(|n| *n <= FEW))
    };
    matches!(row.op, "Add" | "Sub" | "Mul" | "Div" | "Neg") && facts.iter().flatten().all(few)
}

fn names(row: &Row) -> String {
    let names: Vec<String> = row.types.iter().map(ToString::to_string).collect();
    names.join(", ")
}
