//! Activations, and products that end in one: `Gelu` and its kin, `FusedMatMul`, `FusedGemm`,
//! `FusedConv`, `Swish`.

use super::MICROSOFT;
use super::{BASE, Sketch, infer, prepare};
use crate::error::{Result, bail};
use crate::graph::{Attribute, ValueId};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::window::{AUTO_PAD, DILATIONS, KERNEL_SHAPE, PADS, STRIDES};
use crate::ops::{AttributeDef, AttributeKind, OpDef, Port, batch};

const X: Port = Port::required("X", FLOATS);
const Y: &[Port] = &[Port::required("Y", FLOATS)];

macro_rules! rows {
    ($($(#[$doc:meta])* $def:ident $name:literal $domain:expr, since $since:literal,
        $attributes:expr, $inputs:expr, $batch:expr, $build:ident, $cases:expr;)*) => { $(
        $(#[$doc])*
        pub(in crate::ops) static $def: OpDef = OpDef {
            name: $name,
            domain: $domain,
            since: $since,
            attributes: $attributes,
            inputs: $inputs,
            outputs: Y,
            infer: |i| infer(i, $build),
            batch: $batch,
            prepare: |p| prepare(p, $build),
            cases: $cases,
            ..BASE
        };
    )* };
}
rows! {
    /// `x/2 · (1 + erf(x / √2))`.
    MS_GELU "Gelu" MICROSOFT, since 1, &[], &[X], batch::unary, gelu,
        || gelu_cases("Gelu");
    /// [`MS_GELU`] of the sum of the input and a bias.
    BIAS_GELU "BiasGelu" MICROSOFT, since 1, &[], &[X, Port::required("B", FLOATS)],
        batch::elementwise, gelu,
        || vec![
            Case::new("BiasGelu", 1, "a bias").domain(MICROSOFT)
                .input(filled(&[2, 2], &[0.0_f32, 1.0, -2.0, 3.0]))
                .input(filled(&[2], &[1.0_f32, -1.0]))
                .output(filled(&[2, 2], &[0.841_344_8_f32, 0.0, -0.158_655_25, 1.954_499_7]))
                .close(1e-6, 1e-6),
        ];
    /// The approximation of [`MS_GELU`] by tanh, of the sum of the input and perhaps a bias.
    FAST_GELU "FastGelu" MICROSOFT, since 1, &[], &[X, Port::optional("bias", FLOATS)],
        batch::elementwise, fast_gelu,
        || vec![
            Case::new("FastGelu", 1, "without a bias").domain(MICROSOFT)
                .input(filled(&[3], &[-1.0_f32, 0.0, 2.0]))
                .output(filled(&[3], &[-0.158_808_f32, 0.0, 1.954_597_7]))
                .close(1e-5, 1e-5),
            Case::new("FastGelu", 1, "a bias").domain(MICROSOFT)
                .input(filled(&[1, 2], &[-2.0_f32, 1.0]))
                .input(filled(&[2], &[1.0_f32, 1.0]))
                .output(filled(&[1, 2], &[-0.158_808_f32, 1.954_597_7]))
                .close(1e-5, 1e-5),
        ];
    /// `x · sigmoid(alpha · x)`.
    QUICK_GELU "QuickGelu" MICROSOFT, since 1,
        &[AttributeDef::optional("alpha", AttributeKind::Float)], &[X], batch::unary, quick_gelu,
        || vec![
            Case::new("QuickGelu", 1, "as it is").domain(MICROSOFT)
                .input(filled(&[3], &[-1.0_f32, 0.0, 2.0]))
                .output(filled(&[3], &[-0.154_201_42_f32, 0.0, 1.935_655_4]))
                .close(1e-5, 1e-5),
        ];
    /// `x · sigmoid(alpha · x)`.
    SWISH "Swish" "", since 24,
        &[AttributeDef::optional("alpha", AttributeKind::Float)], &[X], batch::unary, swish,
        || vec![
            Case::new("Swish", 24, "as it is")
                .input(filled(&[3], &[-1.0_f32, 0.0, 2.0]))
                .output(filled(&[3], &[-0.268_941_43_f32, 0.0, 1.761_594_2]))
                .close(1e-5, 1e-5),
            Case::new("Swish", 24, "steeper").attr("alpha", 1.702_f32)
                .input(filled(&[1], &[2.0_f32]))
                .output(filled(&[1], &[1.935_655_4_f32]))
                .close(1e-5, 1e-5),
        ];
    /// `alpha · A · B`, each perhaps with its last two axes exchanged.
    FUSED_MATMUL "FusedMatMul" MICROSOFT, since 1,
        &[
            AttributeDef::optional("alpha", AttributeKind::Float),
            AttributeDef::optional("transA", AttributeKind::Int),
            AttributeDef::optional("transB", AttributeKind::Int),
            AttributeDef::optional("transBatchA", AttributeKind::Int),
            AttributeDef::optional("transBatchB", AttributeKind::Int),
        ],
        &[Port::required("A", FLOATS), Port::required("B", FLOATS)], batch::mixes, matmul,
        || vec![
            Case::new("FusedMatMul", 1, "exchanged and scaled").domain(MICROSOFT)
                .attr("alpha", 0.5_f32).attr("transB", 1)
                .input(filled(&[1, 2], &[1.0_f32, 2.0]))
                .input(filled(&[3, 2], &[1.0_f32, 0.0, 0.0, 1.0, 1.0, 1.0]))
                .output(filled(&[1, 3], &[0.5_f32, 1.0, 1.5])),
            Case::new("FusedMatMul", 1, "the batch behind the rows").domain(MICROSOFT)
                .attr("transBatchA", 1)
                .input(filled(&[1, 2, 1], &[3.0_f32, 4.0]))
                .input(filled(&[2, 1, 1], &[10.0_f32, 100.0]))
                .output(filled(&[2, 1, 1], &[30.0_f32, 400.0])),
        ];
    /// `Gemm` and an activation.
    FUSED_GEMM "FusedGemm" MICROSOFT, since 1,
        &[
            AttributeDef::optional("activation", AttributeKind::String),
            AttributeDef::optional("activation_alpha", AttributeKind::Float),
            AttributeDef::optional("activation_beta", AttributeKind::Float),
            AttributeDef::optional("activation_gamma", AttributeKind::Float),
            AttributeDef::optional("alpha", AttributeKind::Float),
            AttributeDef::optional("beta", AttributeKind::Float),
            AttributeDef::optional("transA", AttributeKind::Int),
            AttributeDef::optional("transB", AttributeKind::Int),
        ],
        &[Port::required("A", FLOATS), Port::required("B", FLOATS), Port::optional("C", FLOATS)],
        batch::mixes, gemm,
        || vec![
            Case::new("FusedGemm", 1, "leaky").domain(MICROSOFT)
                .attr("activation", "LeakyRelu").attr("activation_alpha", 0.5_f32)
                .input(filled(&[1, 2], &[1.0_f32, -2.0]))
                .input(filled(&[2, 2], &[1.0_f32, 2.0, 1.0, 0.0]))
                .input(filled(&[2], &[0.5_f32, 0.5]))
                .output(filled(&[1, 2], &[-0.25_f32, 2.5])),
        ];
    /// `Conv`, a sum and an activation.
    FUSED_CONV "FusedConv" MICROSOFT, since 1,
        &[
            AttributeDef::optional("activation", AttributeKind::String),
            AttributeDef::optional("activation_params", AttributeKind::Floats),
            AUTO_PAD, DILATIONS, KERNEL_SHAPE, PADS, STRIDES,
            AttributeDef::optional("group", AttributeKind::Int),
        ],
        &[X, Port::required("W", FLOATS), Port::optional("B", FLOATS), Port::optional("Z", FLOATS)],
        batch::mixes, conv,
        || vec![
            Case::new("FusedConv", 1, "a sum, then no less than zero").domain(MICROSOFT)
                .attr("activation", "Relu")
                .input(filled(&[1, 1, 1, 3], &[1.0_f32, 2.0, 3.0]))
                .constant(filled(&[1, 1, 1, 2], &[1.0_f32, -1.0]))
                .absent()
                .input(filled(&[1, 1, 1, 2], &[0.5_f32, 2.0]))
                .output(filled(&[1, 1, 1, 2], &[0.0_f32, 1.0])),
        ];
}

fn gelu_cases(op: &'static str) -> Vec<Case> {
    vec![
        Case::new(op, 1, "as it is")
            .domain(MICROSOFT)
            .input(filled(&[3], &[-1.0_f32, 0.0, 2.0]))
            .output(filled(&[3], &[-0.158_655_25_f32, 0.0, 1.954_499_7]))
            .close(1e-6, 1e-6),
    ]
}

fn with_bias(s: &mut Sketch<'_>) -> Result<ValueId> {
    let x = s.input(0)?;
    match s.optional(1) {
        Some(bias) => s.op("Add", &[x, bias], &[]),
        None => Ok(x),
    }
}

fn gelu(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let x = with_bias(s)?;
    Ok(vec![s.op("Gelu", &[x], &[])?])
}

fn fast_gelu(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let x = with_bias(s)?;
    Ok(vec![s.op("Gelu", &[x], &[("approximate", "tanh".into())])?])
}

fn gated(s: &mut Sketch<'_>, alpha: f32) -> Result<Vec<ValueId>> {
    let x = s.input(0)?;
    let alpha = s.number(alpha.into(), 0)?;
    let scaled = s.op("Mul", &[x, alpha], &[])?;
    let gate = s.op("Sigmoid", &[scaled], &[])?;
    Ok(vec![s.op("Mul", &[x, gate], &[])?])
}

fn quick_gelu(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let alpha = s.node.float_or("alpha", 1.702)?;
    gated(s, alpha)
}

fn swish(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let alpha = s.node.float_or("alpha", 1.0)?;
    gated(s, alpha)
}

/// An operand as `MatMul` takes it.
fn operand(s: &mut Sketch<'_>, k: usize, flip: &str, batch: &str) -> Result<ValueId> {
    let x = s.input(k)?;
    let (flip, batch) = (s.node.int_or(flip, 0)? != 0, s.node.int_or(batch, 0)? != 0);
    let rank = s.dims(k)?.len();
    if rank < 2 || !flip && !batch {
        return Ok(x);
    }
    let mut order: Vec<i64> = (0..rank as i64).collect();
    if batch {
        // The batch stands between the axes of the matrices.
        let rows = order.remove(0);
        order.insert(rank - 2, rows);
    }
    if flip {
        order.swap(rank - 2, rank - 1);
    }
    s.op("Transpose", &[x], &[("perm", order.into())])
}

fn matmul(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let a = operand(s, 0, "transA", "transBatchA")?;
    let b = operand(s, 1, "transB", "transBatchB")?;
    let y = s.op("MatMul", &[a, b], &[])?;
    let alpha = s.node.float_or("alpha", 1.0)?;
    if alpha == 1.0 {
        return Ok(vec![y]);
    }
    let alpha = s.number(alpha.into(), 0)?;
    Ok(vec![s.op("Mul", &[y, alpha], &[])?])
}

/// An activation by its name, with its parameters.
fn activated(s: &mut Sketch<'_>, x: ValueId, name: &str, p: &[f32]) -> Result<ValueId> {
    let p = |k: usize, default: f32| Attribute::Float(p.get(k).copied().unwrap_or(default));
    let attributes = match name {
        "" => return Ok(x),
        "Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign" | "HardSwish" => vec![],
        "LeakyRelu" => vec![("alpha", p(0, 0.01))],
        "Elu" | "ThresholdedRelu" => vec![("alpha", p(0, 1.0))],
        "HardSigmoid" => vec![("alpha", p(0, 0.2)), ("beta", p(1, 0.5))],
        "Clip" => {
            let mut bound = |k, default| match p(k, default) {
                Attribute::Float(v) => s.number(v.into(), 0),
                _ => s.number(default.into(), 0),
            };
            let (low, high) = (bound(0, f32::MIN)?, bound(1, f32::MAX)?);
            return s.op("Clip", &[x, low, high], &[]);
        }
        other => bail!(Unsupported, "attribute `activation` is `{other}`"),
    };
    s.op(name, &[x], &attributes)
}

fn gemm(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let (a, b) = (s.input(0)?, s.input(1)?);
    let attributes = s.passed(&["alpha", "beta", "transA", "transB"]);
    let y = s.apply("Gemm", &[Some(a), Some(b), s.optional(2)], &attributes, 1)?[0];
    let name = s.node.string("activation")?.unwrap_or_default().to_owned();
    let mut parameters = Vec::new();
    for which in ["activation_alpha", "activation_beta", "activation_gamma"] {
        parameters.extend(s.node.float(which)?);
    }
    Ok(vec![activated(s, y, &name, &parameters)?])
}

fn conv(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let (x, w) = (s.input(0)?, s.input(1)?);
    let attributes =
        s.passed(&["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"]);
    let mut y = s.apply("Conv", &[Some(x), Some(w), s.optional(2)], &attributes, 1)?[0];
    if let Some(z) = s.optional(3) {
        y = s.op("Add", &[y, z], &[])?;
    }
    let name = s.node.string("activation")?.unwrap_or_default().to_owned();
    let parameters = s.node.floats("activation_params")?.unwrap_or(&[]).to_vec();
    Ok(vec![activated(s, y, &name, &parameters)?])
}
