//! Pooling of blocked values.

use super::{BLOCK, DOMAIN, blocked_dims, plain_dims, plain_shape};
use crate::error::{Result, bail, err};
use crate::graph::Dim;
use crate::kernels::{
    AveragePool, blocked_average_pool2d, blocked_global_average_pool, blocked_max_pool2d,
};
use crate::ops::conv::{Extents, window_of};
use crate::ops::def::types::F32S;
use crate::ops::pool::cost;
use crate::ops::window::{
    AUTO_PAD, CEIL_MODE, DILATIONS, KERNEL_SHAPE, PADS, STRIDES, WindowAttributes, padded_axes,
};
use crate::ops::{
    AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare, batch, cost as costs,
    kernel_fn,
};
use crate::tensor::{DType, element_count};

const X: &[Port] = &[Port::required("X", F32S)];
const Y: &[Port] = &[Port::required("Y", F32S)];

/// The largest element under each window.
pub(super) static MAX_POOL: OpDef = OpDef {
    name: "BlockedMaxPool",
    domain: DOMAIN,
    since: 1,
    attributes: &[KERNEL_SHAPE, STRIDES, DILATIONS, PADS, AUTO_PAD, CEIL_MODE],
    inputs: X,
    outputs: Y,
    infer,
    batch: batch::leading,
    cost,
    prepare: |p| Ok(Box::new(Pool::new(p, None)?)),
    cases: Vec::new,
};

/// The mean under each window.
pub(super) static AVERAGE_POOL: OpDef = OpDef {
    name: "BlockedAveragePool",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        KERNEL_SHAPE,
        STRIDES,
        DILATIONS,
        PADS,
        AUTO_PAD,
        CEIL_MODE,
        AttributeDef::optional("count_include_pad", AttributeKind::Int),
    ],
    inputs: X,
    outputs: Y,
    infer,
    batch: batch::leading,
    cost,
    prepare: |p| {
        let padding = p.node.int_or("count_include_pad", 0)? != 0;
        let count = if padding { AveragePool::IncludePad } else { AveragePool::ExcludePad };
        Ok(Box::new(Pool::new(p, Some(count))?))
    },
    cases: Vec::new,
};

/// The mean of each channel.
pub(super) static GLOBAL_AVERAGE_POOL: OpDef = OpDef {
    name: "BlockedGlobalAveragePool",
    domain: DOMAIN,
    since: 1,
    attributes: &[],
    inputs: X,
    outputs: Y,
    infer: |i| {
        let shape = match i.shape(0) {
            Some(x) if x.len() != 5 => bail!(Shape, "a blocked value has 5 axes, not {}", x.len()),
            Some(mut x) => {
                x[2..4].fill(Dim::fixed(1));
                Some(x)
            }
            None => None,
        };
        i.set(0, i.dtype(0), shape);
        Ok(())
    },
    batch: batch::leading,
    cost: costs::reduction,
    prepare: |_| {
        Ok(kernel_fn(|io| {
            let x = io.tensor(0)?;
            let plain = plain_shape(x.shape())?;
            let (planes, plane) = (plain[0] * plain[1], plain[2] * plain[3]);
            let mut out = io.allocate(DType::F32, [plain[0], plain[1] / BLOCK, 1, 1, BLOCK])?;
            if plane == 0 && !out.is_empty() {
                bail!(Shape, "input `X` is {}: there is nothing to pool", x.describe());
            }
            blocked_global_average_pool(x.as_slice()?, planes, plane, out.as_mut_slice()?)?;
            io.emit(out);
            Ok(())
        }))
    },
    cases: Vec::new,
};

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let window = WindowAttributes::read(i.node)?;
    let kernel: Vec<Option<usize>> = window.kernel_of(None)?.iter().copied().map(Some).collect();
    let shape = match i.shape(0) {
        Some(x) => {
            let x = plain_dims(&x)?;
            let mut y: Vec<Dim> = x[..2].to_vec();
            y.extend(window.dims(i, &x[2..], &kernel)?);
            let blocked = blocked_dims(&y);
            Some(blocked.ok_or_else(|| err!(Shape, "{y:?} has no blocked form"))?)
        }
        None => None,
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

#[derive(Debug)]
struct Pool {
    window: WindowAttributes,
    /// What a mean divides by; nothing for a maximum.
    average: Option<AveragePool>,
}

impl Pool {
    fn new(p: &Prepare<'_>, average: Option<AveragePool>) -> Result<Self> {
        Ok(Self { window: WindowAttributes::read(p.node)?, average })
    }
}

impl CpuKernel for Pool {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let plain = plain_shape(x.shape())?;
        let (batch, channels) = (plain[0], plain[1]);
        let axes = self.window.resolve(&plain[2..], self.window.kernel_of(None)?)?;
        let [h, v] = padded_axes::<2>(&axes)?;
        let e = Extents { batch, in_channels: channels, out_channels: channels, groups: 1, axes };
        let shape = [batch, channels / BLOCK, h.out, v.out, BLOCK];
        element_count(&shape, 8)?;
        let (window, size, out_size) = (window_of(&e)?, [h.size, v.size], [h.out, v.out]);
        let mut out = io.allocate(DType::F32, shape)?;
        let (planes, threads) = (batch * channels, io.threads());
        let (x, y) = (x.as_slice()?, out.as_mut_slice()?);
        match self.average {
            Some(count) => {
                blocked_average_pool2d(x, planes, size, &window, count, out_size, y, threads)?;
            }
            None => blocked_max_pool2d(x, planes, size, &window, out_size, y, threads)?,
        }
        io.emit(out);
        Ok(())
    }
}
