//! `StringConcat`.

use super::strings;
use crate::error::Result;
use crate::ops::case::Case;
use crate::ops::def::types::STRINGS;
use crate::ops::elementwise::Broadcast;
use crate::ops::{CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor};

/// Two strings one after the other, with broadcasting.
pub(in crate::ops) static STRING_CONCAT: OpDef = OpDef {
    name: "StringConcat",
    domain: "",
    since: 20,
    attributes: &[],
    inputs: &[Port::required("X", STRINGS), Port::required("Y", STRINGS)],
    outputs: &[Port::required("Z", STRINGS)],
    infer: |i| {
        let shape = i.broadcast(&[0, 1])?;
        i.set(0, Some(DType::String), shape);
        Ok(())
    },
    batch: batch::elementwise,
    cost: cost::copy,
    prepare: |_| Ok(Box::new(Concat)),
    cases: || {
        let new =
            |name: &str| Case::new("StringConcat", 20, name).input(strings(&[2, 1], &["abc", ""]));
        vec![
            new("side by side")
                .input(strings(&[2, 1], &["def", "ß"]))
                .output(strings(&[2, 1], &["abcdef", "ß"])),
            new("one for all")
                .input(strings(&[1], &["!"]))
                .output(strings(&[2, 1], &["abc!", "!"])),
        ]
    },
};

#[derive(Debug)]
struct Concat;

impl CpuKernel for Concat {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (a, b) = (io.tensor(0)?, io.tensor(1)?);
        let plan = Broadcast::new([a.shape(), b.shape()])?;
        let words = |t: &Tensor| -> Result<Vec<usize>> { Ok((0..t.as_strings()?.len()).collect()) };
        let mut pairs = vec![(0, 0); plan.shape.elements()];
        plan.zip(io.threads(), &words(a)?, &words(b)?, &mut pairs, |x, y| (x, y));
        let (a, b) = (a.as_strings()?, b.as_strings()?);
        let joined = pairs.into_iter().map(|(x, y)| format!("{}{}", a[x], b[y])).collect();
        io.emit(Tensor::from_strings(plan.shape, joined)?);
        Ok(())
    }
}
