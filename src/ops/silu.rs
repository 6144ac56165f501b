//! `brigade.Silu`.

use super::case::{Case, filled};
use super::def::types::F32S;
use super::{CpuKernel, Io, OpDef, Port, batch, cost};
use crate::error::Result;
use crate::kernels::math;

/// `x · sigmoid(x)`, also called Swish.
pub(super) static SILU: OpDef = OpDef {
    name: "Silu",
    domain: "brigade",
    since: 1,
    attributes: &[],
    inputs: &[Port::required("X", F32S)],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::unary,
    cost: cost::transcendental,
    prepare: |_| Ok(Box::new(Silu)),
    cases: || {
        vec![
            Case::new("Silu", 1, "five numbers")
                .domain("brigade")
                .input(filled(&[5], &[-100.0_f32, -1.0, 0.0, 1.0, 100.0]))
                .output(filled(&[5], &[0.0_f32, -0.268_941_43, 0.0, 0.731_058_6, 100.0]))
                .close(1e-6, 1e-6),
            Case::new("Silu", 1, "nothing")
                .domain("brigade")
                .input(filled::<f32>(&[0, 2], &[]))
                .output(filled::<f32>(&[0, 2], &[])),
        ]
    },
};

#[derive(Debug)]
struct Silu;

/// Elements that are worked on at a time, so that they stay in the nearest cache.
const BLOCK: usize = 2048;

impl CpuKernel for Silu {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let mut x = io.take_tensor(0)?;
        let shape = x.shape().clone();
        let mut out = if x.is_unique() { None } else { Some(io.allocate(x.dtype(), shape)?) };
        if let Some(out) = &mut out {
            out.as_mut_slice::<f32>()?.copy_from_slice(x.as_slice()?);
        }
        let mut y = out.unwrap_or(x);
        io.threads().split_rows(y.as_mut_slice::<f32>()?, 1, |_, chunk| {
            let mut gate = [0.0_f32; BLOCK];
            for run in chunk.chunks_mut(BLOCK) {
                let gate = &mut gate[..run.len()];
                gate.copy_from_slice(run);
                math::sigmoid(gate);
                run.iter_mut().zip(gate.iter()).for_each(|(x, g)| *x *= g);
            }
        });
        io.emit(y);
        Ok(())
    }
}
