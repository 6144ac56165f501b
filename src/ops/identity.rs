//! `Identity`.

use super::case::Case;
use super::def::types::STORED;
use super::{CpuKernel, Io, OpDef, Port, batch, cost};
use crate::error::Result;
use crate::tensor::Tensor;

/// The input itself.
pub(super) static IDENTITY: OpDef = OpDef {
    name: "Identity",
    domain: "",
    since: 1,
    attributes: &[],
    inputs: &[Port::required("input", STORED)],
    outputs: &[Port::required("output", STORED)],
    infer: |i| {
        if let Some(known) = i.known(0).cloned() {
            i.set_known(0, known);
        }
        Ok(())
    },
    batch: batch::unary,
    cost: cost::free,
    prepare: |_| Ok(Box::new(Identity)),
    cases,
};

#[derive(Debug)]
struct Identity;

impl CpuKernel for Identity {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take(0)?;
        io.emit(x);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let x = Tensor::of_i64(&[1, -2, 16_777_217]);
    vec![Case::new("Identity", 16, "i64").input(x.clone()).output(x)]
}
