//! `brigade.DequantMatMul`.

use super::{BYTES, FORMAT, extents, format, matrix, q8_block};
use crate::error::{Result, bail};
use crate::kernels::{BlockFormat, dequant_matmul};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::{CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::tensor::DType;

/// `x · decode(w)ᵀ`, where `w` is rows of whole blocks of `format`, one row for each column of
/// the output.
pub(in crate::ops) static DEQUANT_MATMUL: OpDef = OpDef {
    name: "DequantMatMul",
    domain: "brigade",
    since: 1,
    attributes: &[FORMAT],
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
    prepare: |p| Ok(Box::new(DequantMatMul { format: format(p.node)? })),
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
}

impl CpuKernel for DequantMatMul {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let w = matrix(io.tensor(1)?, self.format)?;
        let Some((&k, lead)) = x.shape().split_last() else {
            bail!(Shape, "input `x` is a scalar");
        };
        if k != w.cols() {
            bail!(Shape, "input `x` is {}, the weights have rows of {}", x.describe(), w.cols());
        }
        let m: usize = lead.iter().product();
        let mut shape = lead.to_vec();
        shape.push(w.rows());
        let mut out = io.allocate(DType::F32, shape)?;
        let threads = io.threads().for_work(m.saturating_mul(k).saturating_mul(w.rows()));
        dequant_matmul(x.as_slice::<f32>()?, m, w, out.as_mut_slice::<f32>()?, threads)?;
        io.emit(out);
        Ok(())
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
    x[1] = 1.0;
    v.push(
        Case::new("DequantMatMul", 1, "blocks of 256")
            .domain("brigade")
            .attr("format", "Q4_K")
            .input(filled(&[1, 256], &x))
            .constant(filled(&[1, 144], &block))
            .output(filled(&[1, 1], &[0.5_f32 * 127.0 - 1.5])),
    );
    v
}
