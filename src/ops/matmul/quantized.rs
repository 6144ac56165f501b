//! `brigade.QMatMul`.

use super::integer::bytes;
use super::{Layout, product_batch, product_cost, product_dims};
use crate::error::{Result, bail, err};
use crate::kernels::{Activation, Grid, PackedQ, QEpilogue, QMatRef, QOut, Spread, qgemm_into};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::epilogue::{self, ACTIVATION, ACTIVATION_PARAMS};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port};
use crate::tensor::{DType, Tensor};

const BYTES: &[DType] = &[DType::U8, DType::I8];

/// The product of (a stack of) matrices of bytes and a matrix of bytes, finished:
/// `act(round_y(a_scale · b_scale · Σ (A - a_zero) · (B - b_zero) + bias) + addend)`, quantised by
/// `z_scale` and `z_zero`. `round_y` quantises by `y_scale` and `y_zero`; with `dequantize` it
/// goes back to floats at once, without it the quantised numbers are the result.
pub(in crate::ops) static QMATMUL: OpDef = OpDef {
    name: "QMatMul",
    domain: "brigade",
    since: 1,
    attributes: &[
        ACTIVATION,
        ACTIVATION_PARAMS,
        AttributeDef::optional("dequantize", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("A", BYTES),
        Port::required("B", BYTES),
        Port::required("a_scale", F32S),
        Port::required("b_scale", F32S),
        Port::optional("a_zero_point", BYTES),
        Port::optional("b_zero_point", BYTES),
        Port::optional("bias", F32S),
        Port::optional("y_scale", F32S),
        Port::optional("y_zero_point", BYTES),
        Port::optional("addend", F32S),
        Port::optional("z_scale", F32S),
        Port::optional("z_zero_point", BYTES),
    ],
    outputs: &[Port::required("Y", &[DType::F32, DType::U8, DType::I8])],
    infer: |i| {
        let shape = product_dims(i)?;
        let zero = |k: usize| if i.has(k) { i.dtype(k) } else { Some(DType::U8) };
        let dtype = if i.has(10) {
            zero(11)
        } else if i.has(7) && i.node.int_or("dequantize", 0)? == 0 {
            zero(8)
        } else {
            Some(DType::F32)
        };
        i.set(0, dtype, shape);
        Ok(())
    },
    batch: |q| {
        if q.axes.iter().skip(1).any(Option::is_some) {
            return Err("something else than its first operand carries the batch".to_owned());
        }
        product_batch(q)
    },
    cost: product_cost,
    prepare: |p| {
        let constant = (1..p.node.inputs.len()).all(|k| !p.has(k) || p.constant(k).is_some());
        let activation = epilogue::activation(p.node)?;
        let back = p.node.int_or("dequantize", 0)? != 0;
        let ready =
            constant.then(|| Ready::new(activation, back, |k| Ok(p.constant(k)))).transpose()?;
        Ok(Box::new(QMatMul { ready, activation, back }))
    },
    cases,
};

/// Everything but the first operand.
#[derive(Debug)]
struct Ready {
    shape: Vec<usize>,
    right: PackedQ,
    a_zero: i32,
    /// Product of both scales: one, or one for each column.
    scales: Vec<f32>,
    bias: Option<Vec<f32>>,
    between: Option<Grid>,
    addend: Option<Vec<f32>>,
    /// What the result is rounded to, unless it is of floats.
    last: Option<Grid>,
    activation: Activation,
}

/// The zero point as numbers; one 0 where there is none.
fn zeros(t: Option<&Tensor>) -> Result<Vec<i32>> {
    let Some(t) = t else { return Ok(vec![0]) };
    Ok(t.to_i64s()?.iter().map(|z| *z as i32).collect())
}

fn one<T: Copy>(values: &[T], name: &str) -> Result<T> {
    match values {
        [v] => Ok(*v),
        _ => bail!(Shape, "input `{name}` has {} values, expected one", values.len()),
    }
}

fn grid(scale: Option<&Tensor>, zero: Option<&Tensor>, name: &str) -> Result<Option<Grid>> {
    let Some(scale) = scale else { return Ok(None) };
    Ok(Some(Grid {
        scale: one(scale.as_slice::<f32>()?, name)?,
        zero: one(&zeros(zero)?, name)?,
        signed: zero.is_some_and(|z| z.dtype() == DType::I8),
    }))
}

impl Ready {
    fn new<'t>(
        activation: Activation,
        back: bool,
        input: impl Fn(usize) -> Result<Option<&'t Tensor>>,
    ) -> Result<Self> {
        let needed = |k: usize| input(k)?.ok_or_else(|| err!(Missing, "input {k} is missing"));
        let b = needed(1)?;
        let &[k, n] = &b.shape()[..] else {
            bail!(Shape, "input `B` is {}, expected a matrix", b.describe());
        };
        let right = PackedQ::new(QMatRef::row_major(bytes(b)?, k, n)?, &zeros(input(5)?)?)?;
        let a_scale = one(needed(2)?.as_slice::<f32>()?, "a_scale")?;
        let b_scale = needed(3)?.as_slice::<f32>()?;
        if b_scale.len() != 1 && b_scale.len() != n {
            bail!(Shape, "input `b_scale` has {} values, B {n} columns", b_scale.len());
        }
        let row = |k: usize, name: &str| -> Result<Option<Vec<f32>>> {
            let Some(t) = input(k)? else { return Ok(None) };
            if t.len() != n {
                bail!(Shape, "input `{name}` is {}, the product has {n} columns", t.describe());
            }
            Ok(Some(t.as_slice::<f32>()?.to_vec()))
        };
        let y = grid(input(7)?, input(8)?, "y_scale")?;
        let z = grid(input(10)?, input(11)?, "z_scale")?;
        let addend = row(9, "addend")?;
        let ends = y.is_some() && !back;
        if ends && (z.is_some() || addend.is_some() || activation != Activation::None) {
            bail!(Graph, "attribute `dequantize` is needed where something follows the rounding");
        }
        Ok(Self {
            shape: vec![k, n],
            right,
            a_zero: one(&zeros(input(4)?)?, "a_zero_point")?,
            scales: b_scale.iter().map(|b| a_scale * b).collect(),
            bias: row(6, "bias")?,
            between: if ends { None } else { y },
            addend,
            last: if ends { y } else { z },
            activation,
        })
    }
}

#[derive(Debug)]
struct QMatMul {
    /// What is known before the run, where all of it is constant.
    ready: Option<Ready>,
    activation: Activation,
    back: bool,
}

impl CpuKernel for QMatMul {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let made;
        let ready = match &self.ready {
            Some(ready) => ready,
            None => {
                made = Ready::new(self.activation, self.back, |k| io.optional(k))?;
                &made
            }
        };
        let a = io.tensor(0)?;
        let layout = Layout::new(a.shape(), &ready.shape)?;
        let (rows, k) = (layout.count() * layout.m, layout.k);
        let lhs = QMatRef::row_major(bytes(a)?, rows, k)?;
        let epilogue = QEpilogue {
            scale: match ready.scales[..] {
                [scale] => Spread::One(scale),
                _ => Spread::Each(&ready.scales),
            },
            bias: ready.bias.as_deref(),
            grid: ready.between,
            addend: ready.addend.as_deref(),
            activation: ready.activation,
        };
        let dtype = match ready.last {
            None => DType::F32,
            Some(Grid { signed: true, .. }) => DType::I8,
            Some(_) => DType::U8,
        };
        let mut y = io.allocate(dtype, &layout.out[..])?;
        let out = match ready.last {
            None => QOut::Floats(y.as_mut_slice()?),
            Some(grid) if grid.signed => QOut::Signed(y.as_mut_slice()?, grid),
            Some(grid) => QOut::Unsigned(y.as_mut_slice()?, grid),
        };
        let threads = io.threads().for_work(rows.saturating_mul(k).saturating_mul(layout.n));
        qgemm_into(lhs, &[ready.a_zero], &ready.right, &epilogue, out, threads)?;
        io.emit(y);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        input == 0 || self.ready.is_none()
    }
}

fn cases() -> Vec<Case> {
    let case = |name: &str| {
        Case::new("QMatMul", 1, name)
            .domain("brigade")
            .input(filled(&[1, 2], &[130_u8, 126]))
            .constant(filled(&[2, 2], &[5_i8, -7, 1, 1]))
            .constant(filled(&[], &[0.5_f32]))
            .constant(filled(&[2], &[1.0_f32, 2.0]))
            .constant(filled(&[], &[128_u8]))
    };
    // (A - 128) · B = [8, -16]; scaled [4, -16].
    vec![
        case("as floats").output(filled(&[1, 2], &[4.0_f32, -16.0])),
        case("a bias, quantised")
            .constant(filled(&[2], &[0_i8, 1]))
            .constant(filled(&[2], &[1.0_f32, 1.0]))
            .constant(filled(&[], &[2.0_f32]))
            .constant(filled(&[], &[10_u8]))
            .output(filled(&[1, 2], &[12_u8, 2])),
        case("rounded, a bias, an activation, quantised")
            .attr("activation", "Relu")
            .attr("dequantize", 1)
            .absent()
            .absent()
            .constant(filled(&[1], &[3.0_f32]))
            .constant(filled(&[1], &[0_i8]))
            .constant(filled(&[2], &[2.0_f32, 2.0]))
            .constant(filled(&[], &[0.25_f32]))
            .constant(filled(&[], &[-128_i8]))
            .output(filled(&[1, 2], &[-108_i8, -128])),
    ]
}
