//! `ConvInteger`.

use super::{Extents, GROUP, cost, group, infer, plain};
use crate::error::{Result, bail};
use crate::ops::case::{Case, filled};
use crate::ops::window::{AUTO_PAD, DILATIONS, KERNEL_SHAPE, PADS, STRIDES, WindowAttributes};
use crate::ops::{CpuKernel, Io, OpDef, Port, batch};
use crate::tensor::{DType, Tensor, cast};

const BYTES: &[DType] = &[DType::U8, DType::I8];

/// The convolution of bytes, less their zero points, in i32.
pub(in crate::ops) static CONV_INTEGER: OpDef = OpDef {
    name: "ConvInteger",
    domain: "",
    since: 10,
    attributes: &[KERNEL_SHAPE, STRIDES, DILATIONS, PADS, AUTO_PAD, GROUP],
    inputs: &[
        Port::required("x", BYTES),
        Port::required("w", BYTES),
        Port::optional("x_zero_point", BYTES),
        Port::optional("w_zero_point", BYTES),
    ],
    outputs: &[Port::required("y", &[DType::I32])],
    infer: |i| infer(i, Some(DType::I32)),
    batch: batch::leading,
    cost,
    prepare: |p| {
        let (window, groups) = (WindowAttributes::read(p.node)?, group(p.node)?);
        Ok(Box::new(ConvInteger { window, groups }))
    },
    cases,
};

#[derive(Debug)]
struct ConvInteger {
    window: WindowAttributes,
    groups: usize,
}

/// The elements as i32, less the zero point: one value, or one for each output channel.
fn centred(t: &Tensor, zero: Option<&Tensor>, name: &str) -> Result<Vec<i32>> {
    let mut values = cast(t, DType::I32)?.as_slice::<i32>()?.to_vec();
    let Some(zero) = zero else { return Ok(values) };
    let z = cast(zero, DType::I32)?;
    let z = z.as_slice::<i32>()?;
    if z.len() != 1 && (name == "x_zero_point" || z.len() != t.shape()[0]) {
        bail!(Shape, "input `{name}` is {}, expected one value", zero.describe());
    }
    let run = if z.is_empty() { 0 } else { values.len() / z.len() };
    for (values, z) in values.chunks_mut(run.max(1)).zip(z) {
        values.iter_mut().for_each(|v| *v -= z);
    }
    Ok(values)
}

impl CpuKernel for ConvInteger {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, w) = (io.tensor(0)?, io.tensor(1)?);
        let e = Extents::new(x.shape(), w.shape(), self.groups, &self.window)?;
        let (x, w) = (
            centred(x, io.optional(2)?, "x_zero_point")?,
            centred(w, io.optional(3)?, "w_zero_point")?,
        );
        let mut out = io.allocate(DType::I32, e.shape())?;
        plain::convolve(&e, &x, &w, None, out.as_mut_slice::<i32>()?, io.threads())?;
        io.emit(out);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    // The example of the specification: 3×3 of 2…10 less 1, windows of 2×2 ones.
    let x = filled(&[1, 1, 3, 3], &[2_u8, 3, 4, 5, 6, 7, 8, 9, 10]);
    let w = filled(&[1, 1, 2, 2], &[1_u8; 4]);
    let case = |name: &str| Case::new("ConvInteger", 10, name).input(x.clone()).input(w.clone());
    vec![
        case("a zero point")
            .input(filled(&[], &[1_u8]))
            .output(filled(&[1, 1, 2, 2], &[12_i32, 16, 24, 28])),
        case("padding counts as the zero point")
            .attr("pads", vec![1_i64, 1, 1, 1])
            .input(filled(&[], &[1_u8]))
            .output(filled(
                &[1, 1, 4, 4],
                &[1_i32, 3, 5, 3, 5, 12, 16, 9, 11, 24, 28, 15, 7, 15, 17, 9],
            )),
        Case::new("ConvInteger", 10, "a zero point for each channel")
            .input(filled(&[1, 1, 2, 1], &[1_i8, -2]))
            .input(filled(&[2, 1, 1, 1], &[5_i8, 5]))
            .absent()
            .input(filled(&[2], &[3_i8, 6]))
            .output(filled(&[1, 2, 2, 1], &[2_i32, -4, -1, 2])),
    ]
}
