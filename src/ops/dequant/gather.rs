//! `brigade.DequantGather`.

use super::weights::{Weights, product_packs};
use super::{BYTES, FORMAT, extents, format, matrix, q8_block};
use crate::error::Result;
use crate::kernels::{BlockFormat, KernelError};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{F32S, INDICES};
use crate::ops::gather::index;
use crate::ops::{CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::tensor::DType;
use std::sync::Arc;

/// Rows of `decode(w)`, by index, where `w` is rows of whole blocks of `format`.
pub(in crate::ops) static DEQUANT_GATHER: OpDef = OpDef {
    name: "DequantGather",
    domain: "brigade",
    since: 1,
    attributes: &[FORMAT],
    inputs: &[Port::required("w", BYTES), Port::required("indices", INDICES)],
    outputs: &[Port::required("y", F32S)],
    infer,
    batch: |q| match q.axes.first().copied().flatten() {
        Some(_) => Err("its weights carry the batch".into()),
        None => q.everywhere(q.axes.get(1).copied().flatten()),
    },
    // Only what is picked is read.
    cost: |q| {
        let picked = q.output_elements();
        let row = q.inputs.first().and_then(Option::as_ref).and_then(|(_, s)| s.last().copied());
        let k = q.outputs.first().and_then(Option::as_ref).and_then(|(_, s)| s.last().copied());
        let packed = row.unwrap_or(0) as f64 / k.unwrap_or(1).max(1) as f64;
        cost::Cost { flops: picked, bytes: picked * (4.0 + packed) + 8.0 * q.input_elements(1) }
    },
    prepare: |p| {
        let format = format(p.node)?;
        // Nothing is packed for rows alone: of a mapped file only those that are asked for are read.
        let shared = product_packs(p, 0, format);
        let weights = if shared { p.ready.get(p, 0)? } else { None };
        Ok(Box::new(DequantGather { format, weights }))
    },
    cases,
};

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let format = format(i.node)?;
    let w = extents(i, 0, format)?;
    let shape = match (i.shape(1), w) {
        (Some(mut shape), Some((_, k))) => {
            shape.push(k);
            Some(shape)
        }
        _ => None,
    };
    i.set(0, Some(DType::F32), shape);
    Ok(())
}

/// Decodes a row.
type Row<'a> = dyn Fn(usize, &mut [f32]) -> std::result::Result<(), KernelError> + Sync + 'a;

#[derive(Debug)]
struct DequantGather {
    format: &'static BlockFormat,
    /// The weights, where a product has packed them.
    weights: Option<Arc<Weights>>,
}

impl CpuKernel for DequantGather {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let stored;
        let (n, k, row): (_, _, &Row<'_>) = match self.weights.as_deref() {
            Some(Weights::Packed(w)) => (w.rows(), w.cols(), &|i, out| w.decode_row(i, out)),
            _ => {
                stored = matrix(io.tensor(0)?, self.format)?;
                (stored.rows(), stored.cols(), &|i, out| stored.decode_row(i, out))
            }
        };
        let indices = io.tensor(1)?;
        let rows: Vec<usize> =
            indices.to_i64s()?.into_iter().map(|v| index(v, n, 0)).collect::<Result<_>>()?;
        let mut shape = indices.shape().to_vec();
        shape.push(k);
        let mut out = io.allocate(DType::F32, shape)?;
        let y = out.as_mut_slice::<f32>()?;
        if k > 0 {
            io.threads().try_split_rows(y, k, |first, chunk| {
                for (i, y) in rows[first..].iter().zip(chunk.chunks_exact_mut(k)) {
                    row(*i, y)?;
                }
                Ok(())
            })?;
        }
        io.emit(out);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        input != 0 || self.weights.is_none()
    }
}

fn cases() -> Vec<Case> {
    let w = [q8_block(&[6, -2]), q8_block(&[0, 0, 4]), q8_block(&[-128, 127])].concat();
    let mut y = vec![0.0_f32; 3 * 32];
    y[..2].copy_from_slice(&[-64.0, 63.5]);
    y[32..34].copy_from_slice(&[3.0, -1.0]);
    y[64..66].copy_from_slice(&[-64.0, 63.5]);
    let case = |name: &str| {
        Case::new("DequantGather", 1, name)
            .domain("brigade")
            .attr("format", "Q8_0")
            .constant(filled(&[3, 34], &w))
    };
    vec![
        case("rows, one from the end")
            .input(filled(&[3, 1], &[2_i64, 0, -1]))
            .output(filled(&[3, 1, 32], &y)),
        case("i32 indices").input(filled(&[3], &[2_i32, 0, 2])).output(filled(&[3, 32], &y)),
        case("one row").input(filled(&[], &[2_i64])).output(filled(&[32], &y[..32])),
        case("none").input(filled::<i64>(&[0], &[])).output(filled::<f32>(&[0, 32], &[])),
    ]
}
