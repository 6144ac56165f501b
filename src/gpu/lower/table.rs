//! The operators that there are kernels for.

use super::site::{MOST_GROUPS, Site, device_scalar};
use super::{Made, elementwise, movement, product, quantized, rows, windows};
use crate::error::{Result, bail};
use crate::gpu::families::AXES;
use crate::gpu::families::elementwise::MOST_LEAVES;
use crate::graph::{Fact, Node};
use crate::tensor::{DType, broadcast_shapes, normalise_axis};

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
    /// Whether its second input are indices into the first.
    pub indexed: bool,
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
const ORDERED: &[DType] =
    &[DType::F32, DType::I32, DType::U32, DType::I64, DType::I8, DType::U8, DType::I16, DType::U16];
/// Elements that are moved.
const ANY: &[DType] = &[
    DType::F32,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::Bool,
    DType::I8,
    DType::U8,
    DType::I16,
    DType::U16,
];
const BYTES: &[DType] = &[DType::I8, DType::U8];
/// What a quantised tensor is and what it is made of.
const QUANTIZED: &[DType] = &[DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::F32];
const SIGNED: &[DType] = &[DType::F32, DType::I32];
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

fn condition(_: &Node, facts: &[Option<Fact>]) -> Option<String> {
    (dtype(facts, 0) != Some(DType::Bool)).then(|| "its condition is not bool".to_owned())
}

fn many(node: &Node, _: &[Option<Fact>]) -> Option<String> {
    (node.inputs.len() > MOST_LEAVES)
        .then(|| format!("it takes at most {MOST_LEAVES} operands at once"))
}

fn every_output(node: &Node, _: &[Option<Fact>]) -> Option<String> {
    node.outputs.iter().any(Option::is_none).then(|| "it leaves no output out".to_owned())
}

/// The concrete extents of an input.
fn extents(facts: &[Option<Fact>], i: usize) -> Option<Vec<usize>> {
    facts.get(i)?.as_ref()?.concrete_shape()
}

/// Scale and bias of the shape of what is normalised.
fn scaled(node: &Node, facts: &[Option<Fact>]) -> Option<String> {
    let dims = |i: usize| facts.get(i).and_then(Option::as_ref).and_then(|f| f.shape.as_ref());
    let x = dims(0)?;
    let axis = normalise_axis(node.int_or("axis", -1).ok()?, x.len()).ok()?;
    let differs = (1..3).filter_map(dims).any(|s| s[..] != x[axis..]);
    differs.then(|| "its scale and bias have the shape of what is normalised".to_owned())
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
    let proven = from.is_some_and(|d| d != DType::F32 && d != DType::U32);
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
    let groups = usize::try_from(node.int_or("group", 1).unwrap_or(1)).unwrap_or(1);
    let items = extents(facts, 0).and_then(|x| x.first().copied()).unwrap_or(0);
    if node.op.ends_with("Conv") && items.saturating_mul(groups) > MOST_GROUPS as usize {
        return Some(format!("it takes at most {MOST_GROUPS} items times groups"));
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

fn indexed(_: &Node, facts: &[Option<Fact>]) -> Option<String> {
    let fits = matches!(dtype(facts, 1), Some(DType::I32 | DType::I64));
    (!fits).then(|| "its indices are not i32 or i64".to_owned())
}

fn multiplied(_: &Node, facts: &[Option<Fact>]) -> Option<String> {
    let rank = |i: usize| facts.get(i).and_then(Option::as_ref).and_then(Fact::rank);
    if rank(0) == Some(0) || rank(1) == Some(0) {
        return Some("a scalar has no product".to_owned());
    }
    let lead = |i: usize| -> Option<Vec<usize>> {
        let shape = extents(facts, i)?;
        Some(shape[..shape.len().saturating_sub(2)].to_vec())
    };
    let (a, b) = (lead(0)?, lead(1)?);
    let count: usize = broadcast_shapes(&[&a, &b]).ok()?.iter().product();
    (count > MOST_GROUPS as usize).then(|| format!("it multiplies at most {MOST_GROUPS} at once"))
}

/// One scale, or one for each index along an axis, in f32.
fn quantized(node: &Node, facts: &[Option<Fact>]) -> Option<String> {
    if node.int_or("block_size", 0).unwrap_or(1) != 0 {
        return Some("it does not quantise in blocks".to_owned());
    }
    if dtype(facts, 1) != Some(DType::F32) {
        return Some("its scales are not f32".to_owned());
    }
    let back = node.op == "DequantizeLinear";
    let asked = node.int_or("output_dtype", 0).ok().and_then(|t| i32::try_from(t).ok());
    let asked = asked.filter(|t| *t != 0).map(DType::from_onnx);
    let fits = |d: DType| match back {
        true => d == DType::F32,
        false => elementwise::narrow_range(d).is_some(),
    };
    if asked.is_some_and(|d| !d.is_some_and(fits)) {
        return Some("it does not give the dtype that is asked for".to_owned());
    }
    let (x, zero) = (dtype(facts, 0)?, facts.get(2).and_then(Option::as_ref).map(|f| f.dtype));
    if back {
        if x == DType::F32 {
            return Some("its input is not of whole numbers".to_owned());
        }
        return (x == DType::I32 && zero.is_some())
            .then(|| "it takes no zero point from i32".to_owned());
    }
    if x != DType::F32 {
        return Some("it quantises f32".to_owned());
    }
    zero.is_some_and(|d| d.is_none_or(|d| elementwise::narrow_range(d).is_none()))
        .then(|| "it quantises to 8 or 16 bits".to_owned())
}

/// As [`multiplied`], with one zero point a matrix, or one a row on the left and one a column on the
/// right.
fn multiplied_whole(node: &Node, facts: &[Option<Fact>]) -> Option<String> {
    // The most products of two bytes whose sum has 32 bits whatever they are.
    const DEEPEST: usize = i32::MAX as usize / (255 * 255);
    if extents(facts, 0).and_then(|s| s.last().copied()).is_some_and(|k| k > DEEPEST) {
        return Some(format!("it sums over more than {DEEPEST} products"));
    }
    let points = |i: usize| extents(facts, i).map(|s| s.iter().product::<usize>());
    let stacked = extents(facts, 0).is_some_and(|s| s.len() > 2);
    if points(2).is_some_and(|n| n != 1) && stacked {
        return Some("its left zero points are not those of one matrix".to_owned());
    }
    let columns =
        extents(facts, 1).and_then(|s| if s.len() < 2 { Some(1) } else { s.last().copied() });
    if points(3).is_some_and(|n| n != 1 && Some(n) != columns) {
        return Some("its right zero points are not one a column".to_owned());
    }
    multiplied(node, facts)
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
    Row { domain: "", op, elementwise: false, reads, indexed: false, types, refuse, lower }
}

const fn element(
    op: &'static str,
    types: &'static [DType],
    refuse: fn(&Node, &[Option<Fact>]) -> Option<String>,
    lower: fn(&Site<'_>) -> Result<Made>,
) -> Row {
    Row { domain: "", op, elementwise: true, reads: ALL, indexed: false, types, refuse, lower }
}

impl Row {
    const fn of(self, domain: &'static str) -> Self {
        Self { domain, ..self }
    }

    const fn indexed(self) -> Self {
        Self { indexed: true, ..self }
    }
}

const MICROSOFT: &str = "com.microsoft";

/// Every operator that there is a kernel for.
pub static TABLE: &[Row] = &[
    // Element by element.
    element("Add", NUMBERS, old_broadcast, elementwise::binary),
    element("Sub", NUMBERS, old_broadcast, elementwise::binary),
    element("Mul", NUMBERS, old_broadcast, elementwise::binary),
    element("Div", F, old_broadcast, elementwise::binary),
    element("Pow", F, old_broadcast, elementwise::power),
    element("PRelu", F, old_broadcast, elementwise::binary),
    element("Max", ORDERED, many, elementwise::variadic),
    element("Min", ORDERED, many, elementwise::variadic),
    element("Sum", F, many, elementwise::variadic),
    element("Mean", F, many, elementwise::variadic),
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
    Row { reads: 2, ..element("CastLike", ANY, conversion, elementwise::cast) },
    element("BatchNormalization", F, training, elementwise::batch_norm),
    element("Relu", NUMBERS, never, elementwise::unary),
    element("Abs", NUMBERS, never, elementwise::unary),
    element("Neg", SIGNED, never, elementwise::unary),
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
    row("ReduceSum", 1, NUMBERS, never, rows::reduce),
    row("ReduceMean", 1, F, never, rows::reduce),
    row("ReduceMax", 1, ORDERED, never, rows::reduce),
    row("ReduceMin", 1, ORDERED, never, rows::reduce),
    row("ReduceProd", 1, NUMBERS, never, rows::reduce),
    row("ReduceL1", 1, NUMBERS, never, rows::reduce),
    row("ReduceL2", 1, F, never, rows::reduce),
    row("ReduceSumSquare", 1, NUMBERS, never, rows::reduce),
    row("ReduceLogSum", 1, F, never, rows::reduce),
    row("ReduceLogSumExp", 1, F, never, rows::reduce),
    row("GlobalAveragePool", 1, F, never, rows::planes),
    row("GlobalMaxPool", 1, F, never, rows::planes),
    row("ArgMax", 1, ORDERED, never, rows::arg),
    row("ArgMin", 1, ORDERED, never, rows::arg),
    row("Softmax", 1, F, never, rows::softmax),
    row("LogSoftmax", 1, F, never, rows::softmax),
    row("Hardmax", 1, F, never, rows::softmax),
    row("LpNormalization", 1, F, norm, rows::lp_normalise),
    row("LayerNormalization", ALL, F, scaled, rows::layer),
    row("RMSNormalization", ALL, F, scaled, rows::layer),
    row("SimplifiedLayerNormalization", ALL, F, scaled, rows::layer),
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
    row("Split", 1, ANY, every_output, movement::split),
    row("Slice", 1, ANY, never, movement::slice),
    row("Expand", 1, ANY, never, movement::expand),
    row("Tile", 1, ANY, never, movement::tile),
    row("Pad", 1, ANY, never, movement::pad),
    row("Gather", 2, ANY, indexed, movement::gather).indexed(),
    row("GatherElements", 2, ANY, indexed, movement::gather_elements).indexed(),
    row("DepthToSpace", 1, ANY, never, movement::blocks),
    row("SpaceToDepth", 1, ANY, never, movement::blocks),
    row("ConstantOfShape", 0, ANY, never, movement::constant_of_shape),
    row("GatherND", 2, ANY, indexed, movement::gather_nd).indexed(),
    row("Range", 0, WHOLE_RANGES, never, movement::range),
    row("Shape", 0, ANY, never, unknown),
    row("Size", 0, ANY, never, unknown),
    // Quantised numbers.
    row("QuantizeLinear", ALL, QUANTIZED, quantized, quantized::quantize),
    row("DequantizeLinear", ALL, QUANTIZED, quantized, quantized::dequantize),
    row("QuantizeLinear", ALL, QUANTIZED, quantized, quantized::quantize).of(MICROSOFT),
    row("DequantizeLinear", ALL, QUANTIZED, quantized, quantized::dequantize).of(MICROSOFT),
    row("DynamicQuantizeLinear", 1, F, never, quantized::dynamic),
    row("MatMulInteger", ALL, BYTES, multiplied_whole, product::matmul_integer),
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
    for (i, fact) in facts.iter().take(row.reads).enumerate() {
        let Some(fact) = fact else { continue };
        match fact.dtype {
            // An exponent may be a whole number.
            Some(DType::I32 | DType::U32) if op == "Pow" && i == 1 => {}
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
        if fact.rank().is_some_and(|r| r > AXES) {
            return Err(format!("it takes at most {AXES} axes"));
        }
        let elements = fact.concrete_shape().map(|s| s.iter().product::<usize>() as u64);
        if elements.is_some_and(|n| n.saturating_mul(4) > limit) {
            return Err(format!("a tensor of {fact} is larger than the {limit} bytes it binds"));
        }
    }
    if !matches!(op, "Split" | "DynamicQuantizeLinear")
        && node.outputs.iter().skip(1).any(Option::is_some)
    {
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
