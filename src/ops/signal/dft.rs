//! `DFT`.

use super::fourier::{Complex, Fourier};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{FLOATS, INDICES};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast, element_count, normalise_axis};

/// The discrete Fourier transform along an axis; the last axis holds real and imaginary parts. The
/// inverse of a one-sided transform gives real numbers alone.
pub(in crate::ops) static DFT: OpDef = OpDef {
    name: "DFT",
    domain: "",
    since: 17,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        AttributeDef::optional("inverse", AttributeKind::Int),
        AttributeDef::optional("onesided", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("input", FLOATS),
        Port::optional("dft_length", INDICES),
        Port::optional("axis", INDICES),
    ],
    outputs: &[Port::required("output", FLOATS)],
    infer,
    batch: batch::leading,
    cost: cost::transcendental,
    prepare: |p| Ok(Box::new(Dft::of(p.node)?)),
    cases,
};

#[derive(Debug)]
struct Dft {
    /// The attribute of version 17, or what the input of version 20 defaults to.
    axis: i64,
    inverse: bool,
    onesided: bool,
}

impl Dft {
    fn of(node: &Node) -> Result<Self> {
        let default = if node.version < 20 { 1 } else { -2 };
        Ok(Self {
            axis: node.int_or("axis", default)?,
            inverse: node.int_or("inverse", 0)? != 0,
            onesided: node.int_or("onesided", 0)? != 0,
        })
    }

    /// Whether half of what is transformed follows from the other half, and what comes out is real.
    fn to_real(&self) -> bool {
        self.inverse && self.onesided
    }

    /// Fills a row with the numbers `at(0)`, `at(1)`, … that are there.
    fn fill(&self, row: &mut [Complex], at: impl Fn(usize) -> Complex) {
        let length = row.len();
        if !self.to_real() {
            row.iter_mut().enumerate().for_each(|(k, v)| *v = at(k));
            return;
        }
        for k in 0..=length / 2 {
            let [real, imaginary] = at(k);
            // What is its own mirror image is real.
            let mirror = (length - k) % length;
            let imaginary = if mirror == k { 0.0 } else { imaginary };
            row[mirror] = [real, -imaginary];
            row[k] = [real, imaginary];
        }
    }

    /// The axis of a tensor of `rank`, which is not the last one.
    fn axis(&self, given: Option<i64>, rank: usize) -> Result<usize> {
        let axis = normalise_axis(given.unwrap_or(self.axis), rank)?;
        if axis + 1 == rank {
            bail!(Shape, "axis {axis} holds the parts of the numbers; it cannot be transformed");
        }
        Ok(axis)
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let this = Dft::of(i.node)?;
    let given = i.ints(2).and_then(|v| v.first().copied());
    let known = !i.has(2) || given.is_some();
    let shape = match i.shape(0) {
        Some(mut shape) if known => {
            let axis = this.axis(given, shape.len())?;
            if i.has(1) {
                shape[axis] = match i.elements(1).as_deref() {
                    Some([n]) => n.clone(),
                    _ => i.fresh(),
                };
            } else if this.to_real() {
                shape[axis] = (shape[axis].clone() - Dim::fixed(1)) * Dim::fixed(2);
            }
            if this.onesided && !this.inverse {
                shape[axis] = shape[axis].floor_div(&Dim::fixed(2)) + Dim::fixed(1);
            }
            if let Some(last) = shape.last_mut() {
                *last = Dim::fixed(if this.to_real() { 1 } else { 2 });
            }
            Some(shape)
        }
        Some(shape) => Some(i.fresh_shape(shape.len())),
        None => None,
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

fn one(t: Option<&Tensor>, name: &str) -> Result<Option<i64>> {
    match t {
        None => Ok(None),
        Some(t) => match t.to_i64s()?[..] {
            [v] => Ok(Some(v)),
            _ => bail!(Shape, "input `{name}` is {}, expected one number", t.describe()),
        },
    }
}

impl CpuKernel for Dft {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let parts = x.shape().last().copied().unwrap_or(0);
        if !(1..=2).contains(&parts) {
            bail!(Shape, "the last axis of {} does not hold 1 or 2 parts", x.describe());
        }
        let axis = self.axis(one(io.optional(2)?, "axis")?, x.rank())?;
        let extent = x.shape()[axis];
        let length = match one(io.optional(1)?, "dft_length")? {
            None if self.to_real() && extent < 2 => {
                bail!(
                    Shape,
                    "{} has {extent} numbers along axis {axis}, too few for the inverse \
                              of a one-sided transform; give `dft_length`",
                    x.describe()
                )
            }
            None if self.to_real() => 2 * (extent - 1),
            None => extent,
            Some(n) => match usize::try_from(n) {
                Ok(n) if n > 0 => n,
                _ => bail!(Shape, "`dft_length` is {n}, expected at least 1"),
            },
        };
        let made = if self.onesided && !self.inverse { length / 2 + 1 } else { length };
        let gives = if self.to_real() { 1 } else { 2 };
        let mut shape = x.shape().to_vec();
        shape[axis] = made;
        if let Some(last) = shape.last_mut() {
            *last = gives;
        }
        element_count(&shape, 8)?;
        // Rows are padded to a power of two of up to four times their length.
        element_count(&[length, 4], 16)?;
        let outer: usize = x.shape()[..axis].iter().product();
        let inner: usize = x.shape()[axis + 1..x.rank() - 1].iter().product();
        let wide = cast(x, DType::F64)?;
        let from = wide.as_slice::<f64>()?;
        let mut out = Tensor::zeros(DType::F64, shape)?;
        let to = out.as_mut_slice::<f64>()?;
        let fourier = Fourier::new(length, self.inverse);
        let mut row: Vec<Complex> = vec![[0.0; 2]; length];
        for o in 0..outer {
            for i in 0..inner {
                self.fill(&mut row, |k| {
                    let at = ((o * extent + k) * inner + i) * parts;
                    match (k < extent, parts) {
                        (false, _) => [0.0; 2],
                        (true, 1) => [from[at], 0.0],
                        (true, _) => [from[at], from[at + 1]],
                    }
                });
                fourier.apply(&mut row);
                for (k, v) in row.iter().take(made).enumerate() {
                    let at = ((o * made + k) * inner + i) * gives;
                    to[at..at + gives].copy_from_slice(&v[..gives]);
                }
            }
        }
        io.emit(cast(&out, x.dtype())?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let x = || filled(&[1, 4, 1], &[1.0_f32, 2.0, 3.0, 4.0]);
    let want = [10.0_f32, 0.0, -2.0, 2.0, -2.0, 0.0, -2.0, -2.0];
    let new = |version: i64, name: &str| Case::new("DFT", version, name).close(1e-6, 1e-6);
    vec![
        new(17, "real numbers").input(x()).output(filled(&[1, 4, 2], &want)),
        new(20, "one side").attr("onesided", 1).input(x()).output(filled(&[1, 3, 2], &want[..6])),
        new(20, "the inverse, along a given axis")
            .attr("inverse", 1)
            .input(filled(&[4, 1, 2], &want))
            .absent()
            .input(filled(&[], &[0_i64]))
            .output(filled(&[4, 1, 2], &[1.0_f32, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0])),
        new(20, "the inverse of one side")
            .attr("inverse", 1)
            .attr("onesided", 1)
            .input(filled(&[1, 3, 2], &want[..6]))
            .output(x()),
        new(17, "the inverse of one side of an odd number")
            .attr("inverse", 1)
            .attr("onesided", 1)
            .input(filled(&[1, 2, 2], &[6.0_f32, 9.0, -1.5, 0.866_025_4]))
            .input(filled(&[], &[3_i64]))
            .output(filled(&[1, 3, 1], &[1.0_f32, 2.0, 3.0])),
        new(20, "three of them")
            .input(x())
            .input(filled(&[], &[3_i64]))
            .output(filled(&[1, 3, 2], &[6.0_f32, 0.0, -1.5, 0.866_025_4, -1.5, -0.866_025_4])),
    ]
}
