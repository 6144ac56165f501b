//! `brigade.DequantMatMul`.

use super::weights::Weights;
use super::{BYTES, FORMAT, extents, format, matrix, q8_block};
use crate::error::{Result, bail};
use crate::kernels::{BlockFormat, Epilogue, MatMut, MatRef, dequant_matmul, gemm};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::tensor::DType;
use std::sync::Arc;

/// `x · decode(w)ᵀ`, where `w` is rows of whole blocks of `format`, one row for each column of
/// the output. Where `w` is constant and the format has a kernel, the blocks of `x` are rounded to
/// 8 bits, unless `exact` is 1.
pub(in crate::ops) static DEQUANT_MATMUL: OpDef = OpDef {
    name: "DequantMatMul",
    domain: "brigade",
    since: 1,
    attributes: &[FORMAT, AttributeDef::optional("exact", AttributeKind::Int)],
    inputs: &[Port::required("x", F32S), Port::required("w", BYTES)],
    outputs: &[Port::required("y", F32S)],
    infer,
    batch: |q| match (q.axes.first().copied().flatten(), q.rank(0)) {
        _ if q.axes.iter().skip(1).any(Option::is_some) => {
            Err("its weights carry the batch".into())
        }
        (Some(axis), Some(rank)) if axis + 1 == rank => Err("it sums over the batch axis".into()),
        (Some(_), None) => Err("the rank of its first operand is not known".into()),
        (axis, _) => q.everywhere(axis),
    },
    cost: |q| {
        let k = q.inputs.first().and_then(Option::as_ref).and_then(|(_, s)| s.last().copied());
        cost::Cost { flops: 2.0 * k.unwrap_or(1) as f64 * q.output_elements(), bytes: q.bytes() }
    },
    prepare: |p| {
        Ok(Box::new(DequantMatMul {
            format: format(p.node)?,
            exact: p.node.int_or("exact", 0)? != 0,
            weights: p.ready.get(p, 1)?,
        }))
    },
    cases,
};

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let format = format(i.node)?;
    let w = extents(i, 1, format)?;
    let shape = match i.shape(0) {
        Some(mut shape) => {
            let Some(last) = shape.last_mut() else { bail!(Shape, "input `x` is a scalar") };
            if let Some((_, k)) = &w
                && let (Some(have), Some(k)) = (last.as_extent(), k.as_extent())
                && have != k
            {
                let name = format.name;
                bail!(Shape, "input `x` has rows of {have}, the weights ({name}) rows of {k}");
            }
            *last = match w {
                Some((n, _)) => n,
                None => i.fresh(),
            };
            Some(shape)
        }
        None => None,
    };
    i.set(0, Some(DType::F32), shape);
    Ok(())
}

#[derive(Debug)]
struct DequantMatMul {
    format: &'static BlockFormat,
    exact: bool,
    /// The weights, where they are constant.
    weights: Option<Arc<Weights>>,
}

impl CpuKernel for DequantMatMul {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let fed = match &self.weights {
            Some(_) => None,
            None => Some(matrix(io.tensor(1)?, self.format)?),
        };
        let (n, depth) = match (&fed, self.weights.as_deref()) {
            (Some(w), _) => (w.rows(), w.cols()),
            (_, Some(Weights::Packed(w))) => (w.rows(), w.cols()),
            (_, Some(Weights::Decoded(w))) => (w.cols(), w.depth()),
            (None, None) => bail!(Missing, "input `w` is missing"),
        };
        let Some((&k, lead)) = x.shape().split_last() else {
            bail!(Shape, "input `x` is a scalar");
        };
        if k != depth {
            bail!(Shape, "input `x` is {}, the weights have rows of {depth}", x.describe());
        }
        let m: usize = lead.iter().product();
        let mut shape = lead.to_vec();
        shape.push(n);
        let mut out = io.allocate(DType::F32, shape)?;
        let threads = io.threads().for_work(m.saturating_mul(k).saturating_mul(n));
        let (x, y) = (x.as_slice::<f32>()?, out.as_mut_slice::<f32>()?);
        match (fed, self.weights.as_deref()) {
            (Some(w), _) => dequant_matmul(x, m, w, y, threads)?,
            (_, Some(Weights::Packed(w))) if self.exact => w.multiply_exact(x, m, y, threads)?,
            (_, Some(Weights::Packed(w))) => w.multiply(x, m, y, threads)?,
            (_, Some(Weights::Decoded(w))) => {
                let (x, y) = (MatRef::row_major(x, m, k)?, MatMut::row_major(y, m, n)?);
                gemm(x, w, y, &Epilogue::default(), threads)?;
            }
            (None, None) => bail!(Missing, "input `w` is missing"),
        }
        io.emit(out);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        input != 1 || self.weights.is_none()
    }
}

fn cases() -> Vec<Case> {
    let mut v = Vec::new();
    for constant in [false, true] {
        let w = [q8_block(&[6, -2]), q8_block(&[0, 0, 4]), q8_block(&[-128, 127])].concat();
        let w = filled(&[3, 34], &w);
        let mut x = vec![0.0_f32; 64];
        x[..3].copy_from_slice(&[1.0, 3.0, -2.0]);
        x[32..35].copy_from_slice(&[127.0, 0.0, 1.0]);
        let case = |name: &str, lead: &[usize], x: &[f32], y: &[f32]| {
            let name = if constant { format!("{name}, w constant") } else { name.to_owned() };
            let (mut from, mut to) = (lead.to_vec(), lead.to_vec());
            from.push(32);
            to.push(3);
            let c = Case::new("DequantMatMul", 1, name).domain("brigade").attr("format", "Q8_0");
            let c = c.input(filled(&from, x));
            let c = if constant { c.constant(w.clone()) } else { c.input(w.clone()) };
            // Half a step of the input's rounding, times the weights.
            c.output(filled(&to, y)).close(3.0 / 254.0 * 128.0, 1e-6)
        };
        let want = [0.0, -4.0, 126.5, 381.0, 2.0, -8128.0];
        v.push(case("a vector", &[], &x[..32], &want[..3]));
        v.push(case("rows", &[2], &x, &want).close(0.5 * 128.0, 1e-6));
        v.push(case("a stack", &[2, 1], &x, &want).close(0.5 * 128.0, 1e-6));
        v.push(case("no rows", &[0], &[], &[]));
    }
    // Block d: the first weight is d · s · q - dmin · m = 1 · 1 · 2 - 0.5 · 3.
    let mut block = vec![0_u8; 144];
    block[..4].copy_from_slice(&[0x00, 0x3C, 0x00, 0x38]);
    (block[4], block[8], block[16]) = (1, 3, 2);
    let mut x = vec![0.0_f32; 256];
    x[0] = 127.0;
    x[1] = 0.125;
    let long = |name: &str| {
        Case::new("DequantMatMul", 1, name)
            .domain("brigade")
            .attr("format", "Q4_K")
            .input(filled(&[1, 256], &x))
    };
    let w = filled(&[1, 144], &block);
    let exact = filled(&[1, 1], &[0.5_f32 * 127.0 - 1.5 * 0.125]);
    v.push(
        long("blocks of 256, w constant").constant(w.clone()).output(filled(&[1, 1], &[63.5_f32])),
    );
    v.push(long("blocks of 256").input(w.clone()).output(exact.clone()));
    v.push(long("exact, w constant").attr("exact", 1).constant(w).output(exact));
    // -1, 0 and 1 times 0.5: no kernel multiplies in this format.
    let mut ternary = vec![0b0101_0101_u8; 66];
    (ternary[0], ternary[1], ternary[64], ternary[65]) = (0b0101_0110, 0b0101_0100, 0x00, 0x38);
    v.push(
        Case::new("DequantMatMul", 1, "a format without a kernel, w constant")
            .domain("brigade")
            .attr("format", "TQ2_0")
            .input(filled(&[1, 256], &x))
            .constant(filled(&[1, 66], &ternary))
            .output(filled(&[1, 1], &[0.5_f32 * (127.0 - 0.125)])),
    );
    v
}
