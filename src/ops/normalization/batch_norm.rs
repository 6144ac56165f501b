//! `BatchNormalization`.

use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::elementwise::{CONSUMED_INPUTS, Float, spread_work, writable};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

/// `(X - mean) / √(var + epsilon) * scale + B` for each channel, axis 1. With
/// `training_mode`, mean and variance are those of the batch, and the running ones come out, too.
pub(in crate::ops) static BATCH_NORMALIZATION: OpDef = OpDef {
    name: "BatchNormalization",
    domain: "",
    since: 1,
    attributes: &[
        CONSUMED_INPUTS,
        AttributeDef::optional("is_test", AttributeKind::Int).until(6),
        AttributeDef::optional("epsilon", AttributeKind::Float),
        AttributeDef::optional("momentum", AttributeKind::Float),
        AttributeDef::optional("spatial", AttributeKind::Int).until(8),
        AttributeDef::optional("training_mode", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("X", FLOATS),
        Port::required("scale", FLOATS),
        Port::required("B", FLOATS),
        Port::required("input_mean", FLOATS),
        Port::required("input_var", FLOATS),
    ],
    outputs: &[
        Port::required("Y", FLOATS),
        Port::optional("running_mean", FLOATS),
        Port::optional("running_var", FLOATS),
        Port::optional("saved_mean", FLOATS),
        Port::optional("saved_var", FLOATS),
    ],
    infer: |i| {
        check(i.node)?;
        i.set(0, i.dtype(0), i.shape(0));
        for (output, input) in [(1, 3), (2, 4)] {
            if i.node.outputs.get(output).copied().flatten().is_some() {
                i.set(output, i.dtype(input), i.shape(input));
            }
        }
        Ok(())
    },
    batch: |q| if trains(q.node) { batch::mixes(q) } else { batch::leading(q) },
    cost: |q| cost::Cost { flops: 4.0 * q.output_elements(), bytes: q.bytes() },
    prepare: |p| {
        check(p.node)?;
        Ok(Box::new(BatchNorm {
            epsilon: p.node.float_or("epsilon", 1e-5)?.into(),
            by_channel: p.node.int_or("spatial", 1)? != 0,
            momentum: trains(p.node)
                .then(|| p.node.float_or("momentum", 0.9).map(f64::from))
                .transpose()?,
        }))
    },
    cases,
};

fn check(node: &Node) -> Result<()> {
    let mode = node.int_or("training_mode", 0)?;
    if !(0..=1).contains(&mode) {
        bail!(Graph, "attribute `training_mode` is {mode}, which is neither 0 nor 1");
    }
    if node.version < 7 && node.int_or("is_test", 0)? == 0 {
        bail!(Unsupported, "attribute `is_test` is 0; only inference is implemented");
    }
    let known = if mode == 1 { 3 } else { 1 };
    if node.outputs.iter().skip(known).any(Option::is_some) {
        bail!(Unsupported, "only the first {known} outputs are implemented in this mode");
    }
    Ok(())
}

/// Whether the batch's own statistics are taken.
fn trains(node: &Node) -> bool {
    node.int_or("training_mode", 0).is_ok_and(|mode| mode == 1)
}

#[derive(Debug)]
struct BatchNorm {
    epsilon: f64,
    /// How much of the running statistics is kept, where those of the batch are taken.
    momentum: Option<f64>,
    /// Whether a channel has one set of parameters, or each of its elements.
    by_channel: bool,
}

impl CpuKernel for BatchNorm {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let (dtype, rank) = (x.dtype(), x.rank());
        if rank < 2 {
            bail!(Shape, "X needs a batch and a channel axis, got {}", x.describe());
        }
        let inner: usize = x.shape()[2..].iter().product();
        let (channels, inner) =
            if self.by_channel { (x.shape()[1], inner) } else { (x.shape()[1] * inner, 1) };
        let mut parameters: [Vec<f64>; 4] = Default::default();
        for (k, p) in parameters.iter_mut().enumerate() {
            let t = io.tensor(k + 1)?;
            if t.len() != channels {
                let name = ["scale", "B", "input_mean", "input_var"][k];
                bail!(
                    Shape,
                    "X needs {channels} of each parameter, but `{name}` is {}",
                    t.describe()
                );
            }
            *p = cast(t, DType::F64)?.as_slice::<f64>()?.to_vec();
        }
        let mut x = writable(io)?;
        let mut running = None;
        if let Some(momentum) = self.momentum {
            let wide = cast(&x, DType::F64)?;
            let batch = statistics(wide.as_slice::<f64>()?, channels, inner);
            let mixed = [0, 1].map(|k| {
                let old = &parameters[k + 2];
                let mix = |(o, n): (&f64, &f64)| o * momentum + n * (1.0 - momentum);
                old.iter().zip(&batch[k]).map(mix).collect::<Vec<f64>>()
            });
            running = Some(mixed);
            let [mean, var] = batch;
            (parameters[2], parameters[3]) = (mean, var);
        }
        let kept = [io.tensor(3)?.dtype(), io.tensor(4)?.dtype()];
        match x.dtype() {
            DType::F32 => self.apply::<f32>(io, &mut x, &parameters, inner)?,
            DType::F64 => self.apply::<f64>(io, &mut x, &parameters, inner)?,
            other => bail!(DType, "expected floats, got {other}"),
        }
        io.emit(cast(&x, dtype)?);
        let wanted = io.output_count();
        for (values, dtype) in
            running.into_iter().flatten().zip(kept).take(wanted.saturating_sub(1))
        {
            io.emit(cast(&Tensor::from_slice([channels], &values)?, dtype)?);
        }
        Ok(())
    }
}

/// Mean and variance (of the whole, not estimated) of each channel.
fn statistics(xs: &[f64], channels: usize, inner: usize) -> [Vec<f64>; 2] {
    let rows = |c: usize| {
        let rows = xs.chunks_exact(inner.max(1)).skip(c).step_by(channels.max(1));
        rows.flatten().copied()
    };
    let mean_of = |values: &mut dyn Iterator<Item = f64>| {
        let (sum, n) = values.fold((0.0, 0_u64), |(s, n), v| (s + v, n + 1));
        sum / n as f64
    };
    let mean: Vec<f64> = (0..channels).map(|c| mean_of(&mut rows(c))).collect();
    let var = (0..channels).map(|c| mean_of(&mut rows(c).map(|x| (x - mean[c]).powi(2)))).collect();
    [mean, var]
}

impl BatchNorm {
    fn apply<T: Float>(
        &self,
        io: &Io<'_>,
        x: &mut Tensor,
        [scale, bias, mean, var]: &[Vec<f64>; 4],
        inner: usize,
    ) -> Result<()> {
        let narrow = |v: &[f64]| v.iter().map(|v| T::narrow(*v)).collect::<Vec<T>>();
        let factors: Vec<f64> =
            scale.iter().zip(var).map(|(s, v)| s / (v + self.epsilon).sqrt()).collect();
        let (factors, bias, mean) = (narrow(&factors), narrow(bias), narrow(mean));
        let channels = mean.len();
        let xs = x.as_mut_slice::<T>()?;
        if xs.is_empty() {
            return Ok(());
        }
        let work = xs.len();
        if inner == 1 {
            spread_work(io.threads(), xs, channels, work, |_, xs| {
                for row in xs.chunks_exact_mut(channels) {
                    for (((x, &m), &f), &b) in row.iter_mut().zip(&mean).zip(&factors).zip(&bias) {
                        *x = x.minus(m).times(f).plus(b);
                    }
                }
            });
        } else {
            spread_work(io.threads(), xs, inner, work, |first, xs| {
                for (r, row) in xs.chunks_exact_mut(inner).enumerate() {
                    let c = (first + r) % channels;
                    let (m, f, b) = (mean[c], factors[c], bias[c]);
                    for x in row {
                        *x = x.minus(m).times(f).plus(b);
                    }
                }
            });
        }
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let with = |case: Case, x: Tensor, dtype: DType| {
        case.input(x)
            .constant(as_dtype(&filled(&[2], &[1f32, 1.5]), dtype))
            .constant(as_dtype(&filled(&[2], &[0f32, 1.]), dtype))
            .constant(as_dtype(&filled(&[2], &[0f32, 3.]), dtype))
            .constant(as_dtype(&filled(&[2], &[1f32, 1.5]), dtype))
    };
    let new = |name: &str| Case::new("BatchNormalization", 15, name);
    // By numpy in double precision.
    let y = filled(&[1, 2, 1, 3], &[-0.999_995f32, 0., 0.999_995, -0.224_740_8, 1., 2.224_740_8]);
    let x = filled(&[1, 2, 1, 3], &[-1f32, 0., 1., 2., 3., 4.]);
    vec![
        with(new("images"), x.clone(), DType::F32).output(y.clone()).close(1e-6, 5e-7),
        with(new("f64"), as_dtype(&x, DType::F64), DType::F64)
            .output(as_dtype(&y, DType::F64))
            .close(1e-6, 0.0),
        with(new("f16"), as_dtype(&x, DType::F16), DType::F16)
            .output(as_dtype(&y, DType::F16))
            .close(1e-3, 1e-3),
        // Mean 1 and 4, variance 1 and 4 of the batch, which the running ones take in by a tenth.
        with(
            new("training").attr("training_mode", 1_i64),
            filled(&[2, 2], &[0f32, 2., 2., 6.]),
            DType::F32,
        )
        .output(filled(&[2, 2], &[-0.999_995f32, -0.499_998_1, 0.999_995, 2.499_998]))
        .output(filled(&[2], &[0.1f32, 3.1]))
        .output(filled(&[2], &[1f32, 1.75]))
        .close(1e-6, 5e-7),
        with(new("rows, with epsilon").attr("epsilon", 0.5f32), counted(&[2, 2]), DType::F32)
            .output(filled(&[2, 2], &[0f32, -1.121_320_3, 1.632_993_2, 1.]))
            .close(1e-6, 5e-7),
        with(
            Case::new("BatchNormalization", 6, "for the test").attr("is_test", 1),
            x.clone(),
            DType::F32,
        )
        .output(y.clone())
        .close(1e-6, 5e-7),
        with(
            Case::new("BatchNormalization", 7, "parameters for each element").attr("spatial", 0),
            filled(&[3, 1, 2], &[-1f32, 2., 0., 3., 1., 4.]),
            DType::F32,
        )
        .output(filled(&[3, 1, 2], &[-0.999_995f32, -0.224_740_8, 0., 1., 0.999_995, 2.224_740_8]))
        .close(1e-6, 5e-7),
        with(
            Case::new("BatchNormalization", 9, "empty"),
            filled::<f32>(&[0, 2, 3], &[]),
            DType::F32,
        )
        .output(filled::<f32>(&[0, 2, 3], &[])),
    ]
}
