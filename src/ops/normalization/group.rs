//! `InstanceNormalization` and `GroupNormalization`.

use super::moments;
use crate::error::{Result, bail};
use crate::ops::case::{Case, as_dtype, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::elementwise::{CONSUMED_INPUTS, Float, spread_work, writable};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

/// Normalisation of each channel of each item.
pub(in crate::ops) static INSTANCE_NORMALIZATION: OpDef = OpDef {
    name: "InstanceNormalization",
    domain: "",
    since: 1,
    attributes: &[CONSUMED_INPUTS, AttributeDef::optional("epsilon", AttributeKind::Float)],
    inputs: &[
        Port::required("input", FLOATS),
        Port::required("scale", FLOATS),
        Port::required("B", FLOATS),
    ],
    outputs: &[Port::required("output", FLOATS)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::leading,
    cost: |q| cost::Cost { flops: 8.0 * q.input_elements(0), bytes: q.bytes() },
    prepare: |p| {
        let epsilon = p.node.float_or("epsilon", 1e-5)?.into();
        Ok(Box::new(GroupNorm { epsilon, groups: Groups::EachChannel }))
    },
    cases: instance_cases,
};

/// Normalisation of each of `num_groups` groups of channels of each item. Scale and bias are of
/// each group before version 21 and of each channel from then on.
pub(in crate::ops) static GROUP_NORMALIZATION: OpDef = OpDef {
    name: "GroupNormalization",
    domain: "",
    since: 18,
    attributes: &[
        AttributeDef::optional("epsilon", AttributeKind::Float),
        AttributeDef::required("num_groups", AttributeKind::Int),
        AttributeDef::optional("stash_type", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("X", FLOATS),
        Port::required("scale", FLOATS),
        Port::required("bias", FLOATS),
    ],
    outputs: &[Port::required("Y", FLOATS)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::leading,
    cost: |q| cost::Cost { flops: 8.0 * q.input_elements(0), bytes: q.bytes() },
    prepare: |p| {
        let count = p.node.required_int("num_groups")?;
        let Some(count) = usize::try_from(count).ok().filter(|c| *c > 0) else {
            bail!(Graph, "attribute `num_groups` is {count}; it must be positive");
        };
        let groups = Groups::Count { count, by_group: p.node.version < 21 };
        let epsilon = p.node.float_or("epsilon", 1e-5)?.into();
        Ok(Box::new(GroupNorm { epsilon, groups }))
    },
    cases: group_cases,
};

#[derive(Clone, Copy, Debug)]
enum Groups {
    EachChannel,
    Count { count: usize, by_group: bool },
}

#[derive(Debug)]
struct GroupNorm {
    epsilon: f64,
    groups: Groups,
}

impl CpuKernel for GroupNorm {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let dtype = x.dtype();
        if x.rank() < 2 {
            bail!(Shape, "it needs a batch and a channel axis, got {}", x.describe());
        }
        let channels = x.shape()[1];
        let inner: usize = x.shape()[2..].iter().product();
        let (groups, parameters) = match self.groups {
            Groups::EachChannel => (channels, channels),
            Groups::Count { count, by_group } => (count, if by_group { count } else { channels }),
        };
        if channels % groups.max(1) != 0 {
            bail!(Shape, "{channels} channels do not fall into {groups} groups");
        }
        for k in 1..3 {
            let t = io.tensor(k)?;
            if t.len() != parameters {
                let name = ["scale", "bias"][k - 1];
                bail!(Shape, "`{name}` needs {parameters} elements, got {}", t.describe());
            }
        }
        let of_group = channels / groups.max(1);
        // A parameter of a group is one of each of its channels.
        let spacing = if parameters == channels { 1 } else { of_group.max(1) };
        let (scale, bias) = (io.tensor(1)?.clone(), io.tensor(2)?.clone());
        let mut x = writable(io)?;
        match x.dtype() {
            DType::F32 => self.apply::<f32>(io, &mut x, [scale, bias], of_group, inner, spacing)?,
            DType::F64 => self.apply::<f64>(io, &mut x, [scale, bias], of_group, inner, spacing)?,
            other => bail!(DType, "expected floats, got {other}"),
        }
        io.emit(cast(&x, dtype)?);
        Ok(())
    }
}

impl GroupNorm {
    fn apply<T: Float>(
        &self,
        io: &Io<'_>,
        x: &mut Tensor,
        parameters: [Tensor; 2],
        of_group: usize,
        inner: usize,
        spacing: usize,
    ) -> Result<()> {
        let channels = x.shape()[1];
        let [scale, bias] = parameters;
        let (scale, bias) = (cast(&scale, T::DTYPE)?, cast(&bias, T::DTYPE)?);
        let (scale, bias) = (scale.as_slice::<T>()?, bias.as_slice::<T>()?);
        let xs = x.as_mut_slice::<T>()?;
        if xs.is_empty() {
            return Ok(());
        }
        let (work, row) = (xs.len(), of_group * inner);
        spread_work(io.threads(), xs, row, work, |first, xs| {
            for (r, group) in xs.chunks_exact_mut(row).enumerate() {
                let (mean, deviation) = moments(group, self.epsilon);
                let channel = (first + r) * of_group % channels;
                for (c, xs) in group.chunks_exact_mut(inner).enumerate() {
                    let p = (channel + c) / spacing;
                    let (factor, bias) = (deviation.times(scale[p]), bias[p]);
                    for x in xs {
                        *x = x.minus(mean).times(factor).plus(bias);
                    }
                }
            }
        });
        Ok(())
    }
}

fn instance_cases() -> Vec<Case> {
    let new = |name: &str| Case::new("InstanceNormalization", 6, name);
    let x = filled(&[1, 2, 1, 3], &[-1f32, 0., 1., 2., 3., 7.]);
    let (scale, bias) = (filled(&[2], &[1f32, 1.5]), filled(&[2], &[0f32, 1.]));
    // By numpy in double precision.
    let y = filled(
        &[1, 2, 1, 3],
        &[-1.224_735_6f32, 0., 1.224_735_6, -0.388_728_66, 0.305_635_67, 3.083_093],
    );
    vec![
        new("two channels")
            .input(x.clone())
            .constant(scale.clone())
            .constant(bias.clone())
            .output(y.clone())
            .close(1e-6, 5e-7),
        new("f16")
            .input(as_dtype(&x, DType::F16))
            .constant(as_dtype(&scale, DType::F16))
            .constant(as_dtype(&bias, DType::F16))
            .output(as_dtype(&y, DType::F16))
            .close(1e-3, 1e-3),
        new("epsilon")
            .attr("epsilon", 1f32)
            .input(filled(&[2, 1, 2], &[0f32, 2., 5., 5.]))
            .constant(filled(&[1], &[2f32]))
            .constant(filled(&[1], &[1f32]))
            .output(filled(&[2, 1, 2], &[-0.414_213_57f32, 2.414_213_6, 1., 1.]))
            .close(1e-6, 5e-7),
    ]
}

fn group_cases() -> Vec<Case> {
    let x = filled(&[1, 4, 1], &[0f32, 2., 5., 9.]);
    let new = |version: i64, name: &str| {
        Case::new("GroupNormalization", version, name)
            .attr("num_groups", 2i64)
            .attr("epsilon", 0f32)
            .input(x.clone())
    };
    vec![
        new(18, "scale of each group")
            .constant(filled(&[2], &[1f32, 10.]))
            .constant(filled(&[2], &[0f32, 1.]))
            .output(filled(&[1, 4, 1], &[-1f32, 1., -9., 11.]))
            .close(1e-6, 5e-7),
        new(21, "scale of each channel")
            .constant(filled(&[4], &[1f32, 2., 3., 4.]))
            .constant(filled(&[4], &[0f32, 0., 1., 1.]))
            .output(filled(&[1, 4, 1], &[-1f32, 2., -2., 5.]))
            .close(1e-6, 5e-7),
    ]
}
