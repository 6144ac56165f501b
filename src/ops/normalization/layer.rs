//! `LayerNormalization`.

use std::sync::atomic::{AtomicBool, Ordering};

use super::moments;
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::batch::{BatchFlow, BatchQuery};
use crate::ops::case::{Case, as_dtype, filled};
use crate::ops::def::types::{F32S, FLOATS};
use crate::ops::elementwise::{Broadcast, Float, spread, spread_work, wide};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::tensor::{DType, Tensor, broadcast_shapes, cast, normalise_axis};

/// `(X - mean) / √(var + epsilon) * Scale + B` over all axes from `axis` on; the mean and
/// `1 / √(var + epsilon)` as further outputs.
pub(in crate::ops) static LAYER_NORMALIZATION: OpDef = OpDef {
    name: "LayerNormalization",
    domain: "",
    // Version 17 made what ONNX Runtime wrote before a part of the standard.
    since: 1,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        AttributeDef::optional("epsilon", AttributeKind::Float),
        AttributeDef::optional("stash_type", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("X", FLOATS),
        Port::required("Scale", FLOATS),
        Port::optional("B", FLOATS),
    ],
    outputs: &[
        Port::required("Y", FLOATS),
        Port::optional("Mean", F32S),
        Port::optional("InvStdDev", F32S),
    ],
    infer,
    batch,
    cost: |q| cost::Cost { flops: 8.0 * q.input_elements(0), bytes: q.bytes() },
    prepare: |p| Ok(Box::new(LayerNorm::of(p.node)?)),
    cases,
};

#[derive(Debug)]
struct LayerNorm {
    axis: i64,
    epsilon: f64,
}

impl LayerNorm {
    fn of(node: &Node) -> Result<Self> {
        let stash = node.int_or("stash_type", 1)?;
        if stash != 1 {
            bail!(Unsupported, "attribute `stash_type` is {stash}; only 1 (f32) is implemented");
        }
        Ok(Self { axis: node.int_or("axis", -1)?, epsilon: node.float_or("epsilon", 1e-5)?.into() })
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let norm = LayerNorm::of(i.node)?;
    let shape = i.shape(0);
    let statistics = match &shape {
        Some(dims) => {
            let axis = normalise_axis(norm.axis, dims.len())?;
            let one = Dim::fixed(1);
            let keep = |(k, d): (usize, &Dim)| if k < axis { d.clone() } else { one.clone() };
            Some(dims.iter().enumerate().map(keep).collect::<Vec<_>>())
        }
        None => None,
    };
    i.set(0, i.dtype(0), shape);
    for k in 1..3 {
        i.set(k, Some(DType::F32), statistics.clone());
    }
    Ok(())
}

fn batch(q: &BatchQuery<'_>) -> BatchFlow {
    if q.axes.iter().skip(1).any(Option::is_some) {
        return Err("its scale or bias carries the batch".to_owned());
    }
    let Some(carrier) = q.axes.first().copied().flatten() else { return q.everywhere(None) };
    let rank = q.rank(0).ok_or("the rank of its input is not known")?;
    let norm = LayerNorm::of(q.node).map_err(|e| e.to_string())?;
    let axis = normalise_axis(norm.axis, rank).map_err(|e| e.to_string())?;
    if carrier >= axis {
        return Err("it normalises over the batch axis".to_owned());
    }
    // A scale with rows of its own along the batch axis would be cut, too.
    for k in 1..q.shapes.len() {
        let own = q.shapes[k].as_ref().and_then(|s| {
            let at = (carrier + s.len()).checked_sub(rank)?;
            s.get(at).map(|d| d.as_fixed() != Some(1))
        });
        if own == Some(true) {
            return Err(format!("input {k} has rows of its own along the batch axis"));
        }
    }
    q.everywhere(Some(carrier))
}

impl CpuKernel for LayerNorm {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let dtype = x.dtype();
        let axis = normalise_axis(self.axis, x.rank())?;
        for k in 1..3 {
            if let Some(t) = io.optional(k)? {
                let common = broadcast_shapes(&[x.shape(), t.shape()])?;
                if common != *x.shape() {
                    let name = ["Scale", "B"][k - 1];
                    bail!(Shape, "`{name}`, {}, does not fit X, {}", t.describe(), x.describe());
                }
            }
        }
        let computed = wide(dtype);
        let x = cast(x, computed)?;
        let scale = cast(io.tensor(1)?, computed)?;
        let bias = io.optional(2)?.map(|b| cast(b, computed)).transpose()?;
        let [y, mean, deviation] = match computed {
            DType::F32 => self.apply::<f32>(io, &x, &scale, bias.as_ref(), axis)?,
            DType::F64 => self.apply::<f64>(io, &x, &scale, bias.as_ref(), axis)?,
            other => bail!(DType, "expected floats, got {other}"),
        };
        io.emit(cast(&y, dtype)?);
        if io.output_count() > 1 {
            io.emit(cast(&mean, DType::F32)?);
            io.emit(cast(&deviation, DType::F32)?);
        }
        Ok(())
    }
}

impl LayerNorm {
    fn apply<T: Float>(
        &self,
        io: &Io<'_>,
        x: &Tensor,
        scale: &Tensor,
        bias: Option<&Tensor>,
        axis: usize,
    ) -> Result<[Tensor; 3]> {
        let n: usize = x.shape()[axis..].iter().product();
        let mut kept = x.shape().clone();
        kept[axis..].fill(1);
        let mut mean = io.allocate(T::DTYPE, kept.clone())?;
        let mut deviation = io.allocate(T::DTYPE, kept)?;
        let mut y = io.allocate(T::DTYPE, x.shape().clone())?;
        let xs = x.as_slice::<T>()?;
        let scales = scale.as_slice::<T>()?;
        let biases = bias.map(Tensor::as_slice::<T>).transpose()?;
        let of_a_row = n > 0 && scales.len() == n && biases.is_none_or(|b| b.len() == n);
        if of_a_row && io.output_count() == 1 {
            let missing = AtomicBool::new(false);
            spread(io.threads(), y.as_mut_slice::<T>()?, n, |first, out| {
                out.copy_from_slice(&xs[first * n..][..out.len()]);
                if !T::layer_norm(out, scales, biases, self.epsilon) {
                    missing.store(true, Ordering::Relaxed);
                }
            });
            if !missing.into_inner() {
                return Ok([y, mean, deviation]);
            }
        }
        let (means, deviations) = (mean.as_mut_slice::<T>()?, deviation.as_mut_slice::<T>()?);
        if n == 0 {
            means.fill(T::narrow(f64::NAN));
            deviations.fill(T::narrow(f64::NAN));
            return Ok([y, mean, deviation]);
        }
        // Means and deviations first, each row's side by side.
        let mut both: Vec<(T, T)> = vec![(T::ZERO, T::ZERO); means.len()];
        spread_work(io.threads(), &mut both, 1, xs.len(), |first, both| {
            for (b, row) in both.iter_mut().zip(xs[first * n..].chunks_exact(n)) {
                *b = moments(row, self.epsilon);
            }
        });
        for ((m, d), b) in means.iter_mut().zip(deviations.iter_mut()).zip(&both) {
            (*m, *d) = *b;
        }
        let out = y.as_mut_slice::<T>()?;
        if of_a_row {
            spread_work(io.threads(), out, n, xs.len(), |first, out| {
                let rows = xs[first * n..].chunks_exact(n).zip(&both[first..]);
                for (out, (row, &(m, d))) in out.chunks_exact_mut(n).zip(rows) {
                    match biases {
                        Some(biases) => {
                            let affine = scales.iter().zip(biases);
                            for ((o, &x), (&s, &b)) in out.iter_mut().zip(row).zip(affine) {
                                *o = x.minus(m).times(d).times(s).plus(b);
                            }
                        }
                        None => {
                            for ((o, &x), &s) in out.iter_mut().zip(row).zip(scales) {
                                *o = x.minus(m).times(d).times(s);
                            }
                        }
                    }
                }
            });
        } else {
            for ((out, row), &(m, d)) in out.chunks_exact_mut(n).zip(xs.chunks_exact(n)).zip(&both)
            {
                for (o, &x) in out.iter_mut().zip(row) {
                    *o = x.minus(m).times(d);
                }
            }
            let plan = Broadcast::new([x.shape(), scale.shape()])?;
            plan.zip_in_place(io.threads(), out, scales, 1, T::times);
            if let (Some(bias), Some(biases)) = (bias, biases) {
                let plan = Broadcast::new([x.shape(), bias.shape()])?;
                plan.zip_in_place(io.threads(), out, biases, 1, T::plus);
            }
        }
        Ok([y, mean, deviation])
    }
}

fn cases() -> Vec<Case> {
    let new = |name: &str| Case::new("LayerNormalization", 17, name);
    let x = filled(&[2, 3], &[1f32, 2., 3., 10., 20., 60.]);
    let scale = filled(&[3], &[1f32, 2., 0.5]);
    let bias = filled(&[3], &[0f32, 1., -1.]);
    // By numpy in double precision.
    let y = filled(
        &[2, 3],
        &[-1.224_735_6f32, 1., -0.387_632_2, -0.925_820_1, 0.074_179_9, -0.305_634_9],
    );
    let mean = filled(&[2, 1], &[2f32, 30.]);
    let deviation = filled(&[2, 1], &[1.224_735_7f32, 0.046_291_005]);
    vec![
        new("three outputs")
            .input(x.clone())
            .constant(scale.clone())
            .constant(bias.clone())
            .output(y.clone())
            .output(mean)
            .output(deviation)
            .close(1e-6, 5e-7),
        new("one output, no bias")
            .input(x.clone())
            .input(filled(&[3], &[1f32, 1., 1.]))
            .output(filled(
                &[2, 3],
                &[-1.224_735_6f32, 0., 1.224_735_6, -0.925_820_1, -0.462_910_05, 1.388_730_2],
            ))
            .close(1e-6, 5e-7),
        new("over two axes, scale broadcast")
            .attr("axis", 1i64)
            .attr("epsilon", 0.75f32)
            .input(filled(&[1, 2, 2], &[1f32, 2., 3., 4.]))
            .input(Tensor::scalar(2f32))
            .input(filled(&[2, 1], &[0f32, 1.]))
            .output(filled(&[1, 2, 2], &[-2.121_320_3f32, -0.707_106_8, 1.707_106_8, 3.121_320_3]))
            .close(1e-6, 5e-7),
        new("f16")
            .input(as_dtype(&x, DType::F16))
            .constant(as_dtype(&scale, DType::F16))
            .constant(as_dtype(&bias, DType::F16))
            .output(as_dtype(&y, DType::F16))
            .close(1e-3, 1e-3),
        new("empty")
            .input(filled::<f32>(&[0, 3], &[]))
            .constant(scale)
            .output(filled::<f32>(&[0, 3], &[])),
    ]
}
