//! `MaxUnpool`.

use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{FLOATS, I64S};
use crate::ops::window::{KERNEL_SHAPE, PADS, STRIDES, sizes};
use crate::ops::{CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast, element_count, strides};

/// Maxima put back where their indices say; everything else is 0.
pub(in crate::ops) static MAX_UNPOOL: OpDef = OpDef {
    name: "MaxUnpool",
    domain: "",
    since: 9,
    attributes: &[KERNEL_SHAPE, PADS, STRIDES],
    inputs: &[
        Port::required("X", FLOATS),
        Port::required("I", I64S),
        Port::optional("output_shape", I64S),
    ],
    outputs: &[Port::required("output", FLOATS)],
    infer,
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |p| Ok(Box::new(Unpool::of(p.node)?)),
    cases,
};

#[derive(Debug)]
struct Unpool {
    kernel: Vec<usize>,
    strides: Vec<usize>,
    pads: Vec<usize>,
}

impl Unpool {
    fn of(node: &Node) -> Result<Self> {
        let Some(kernel) = sizes(node, "kernel_shape", 1)? else {
            bail!(Graph, "attribute `kernel_shape` is missing");
        };
        let n = kernel.len();
        let strides = sizes(node, "strides", 1)?.unwrap_or_else(|| vec![1; n]);
        let pads = sizes(node, "pads", 0)?.unwrap_or_else(|| vec![0; 2 * n]);
        if strides.len() != n || pads.len() != 2 * n {
            bail!(Graph, "attributes `strides` {strides:?} and `pads` {pads:?} for {n} axes");
        }
        Ok(Self { kernel, strides, pads })
    }

    /// The extents that were pooled.
    fn shape(&self, x: &[usize]) -> Result<Vec<usize>> {
        if x.len() != self.kernel.len() + 2 {
            bail!(Shape, "an input of shape {x:?} and a kernel {:?}", self.kernel);
        }
        let mut out = x[..2].to_vec();
        for (k, n) in x[2..].iter().enumerate() {
            let pads = self.pads[k] + self.pads[k + self.kernel.len()];
            let grown = n.saturating_sub(1).checked_mul(self.strides[k]);
            let Some(extent) = grown.and_then(|g| (g + self.kernel[k]).checked_sub(pads)) else {
                bail!(Shape, "axis {} of {x:?} cannot be unpooled", k + 2);
            };
            out.push(extent);
        }
        element_count(&out, 8)?;
        Ok(out)
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let this = Unpool::of(i.node)?;
    let shape = match (i.has(2), i.elements(2), i.shape(0)) {
        (true, elements, _) => elements,
        (false, _, Some(x)) if x.len() == this.kernel.len() + 2 => {
            let mut out = x[..2].to_vec();
            for (k, n) in x[2..].iter().enumerate() {
                let pads = this.pads[k] + this.pads[k + this.kernel.len()];
                let rest = this.kernel[k] as i64 - this.strides[k] as i64 - pads as i64;
                out.push(n.clone() * Dim::of(this.strides[k]) + Dim::fixed(rest));
            }
            Some(out)
        }
        _ => None,
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

impl CpuKernel for Unpool {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, indices) = (io.tensor(0)?, io.tensor(1)?);
        if x.shape() != indices.shape() {
            bail!(Shape, "the input is {}, its indices {}", x.describe(), indices.describe());
        }
        let pooled = self.shape(x.shape())?;
        let shape = match io.optional(2)? {
            None => pooled.clone(),
            Some(given) => {
                let given = given.to_i64s()?;
                let shape: Option<Vec<usize>> =
                    given.iter().map(|n| usize::try_from(*n).ok()).collect();
                match shape {
                    Some(s) if s.len() == pooled.len() => s,
                    _ => bail!(Shape, "`output_shape` is {given:?}, for {}", x.describe()),
                }
            }
        };
        element_count(&shape, 8)?;
        let (all, own) = (strides(&pooled), strides(&shape));
        let wide = cast(x, DType::F64)?;
        let count: usize = pooled.iter().product();
        let mut out = Tensor::zeros(DType::F64, shape.clone())?;
        let to = out.as_mut_slice::<f64>()?;
        for (v, index) in wide.as_slice::<f64>()?.iter().zip(indices.as_slice::<i64>()?) {
            let Some(at) = usize::try_from(*index).ok().filter(|i| *i < count) else {
                bail!(Kernel, "an index is {index}; the pooled tensor {pooled:?} has {count}");
            };
            // Indices count in what was pooled; a given shape is that, cut or grown at the end.
            let mut target = 0;
            let mut inside = true;
            for k in 0..shape.len() {
                let i = at / all[k] % pooled[k];
                inside &= i < shape[k];
                target += i * own[k];
            }
            if inside {
                to[target] = *v;
            }
        }
        io.emit(cast(&out, x.dtype())?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |name: &str| {
        Case::new("MaxUnpool", 11, name)
            .attr("kernel_shape", vec![2_i64])
            .attr("strides", vec![2_i64])
            .input(filled(&[1, 1, 2], &[5.0_f32, 6.0]))
            .input(filled(&[1, 1, 2], &[1_i64, 2]))
    };
    vec![
        new("as it was").output(filled(&[1, 1, 4], &[0.0_f32, 5.0, 6.0, 0.0])),
        new("longer")
            .input(filled(&[3], &[1_i64, 1, 5]))
            .output(filled(&[1, 1, 5], &[0.0_f32, 5.0, 6.0, 0.0, 0.0])),
    ]
}
