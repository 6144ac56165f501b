//! `Dropout`.

use super::case::{Case, filled};
use super::def::types::{BOOLS, FLOATS};
use super::elementwise::CONSUMED_INPUTS;
use super::mersenne::MersenneTwister;
use super::random::Generator;
use super::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, cost};
use crate::error::{Result, bail};
use crate::tensor::{DType, Tensor, cast};

/// The input as it is. In training mode, elements are set to 0 with the probability `ratio` and
/// the others are scaled up. With a `seed`, the elements are those of the specification's reference
/// (which draws as numpy does); without one, every run draws others.
pub(super) static DROPOUT: OpDef = OpDef {
    name: "Dropout",
    domain: "",
    since: 1,
    attributes: &[
        CONSUMED_INPUTS,
        AttributeDef::optional("is_test", AttributeKind::Int).until(6),
        AttributeDef::optional("ratio", AttributeKind::Float),
        AttributeDef::optional("seed", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("data", FLOATS),
        Port::optional("ratio", FLOATS),
        Port::optional("training_mode", BOOLS),
    ],
    outputs: &[Port::required("output", FLOATS), Port::optional("mask", &[DType::Bool])],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        // Before version 10 the mask is of the input's dtype.
        let mask = if i.node.version < 10 { i.dtype(0) } else { Some(DType::Bool) };
        i.set(1, mask, i.shape(0));
        Ok(())
    },
    batch: |q| {
        if q.node.inputs.get(2).copied().flatten().is_some() && !q.is_free() {
            return Err("in training mode it draws its mask for the whole batch".to_owned());
        }
        super::batch::unary(q)
    },
    cost: cost::copy,
    prepare: |p| {
        if p.node.version < 7 && p.node.int_or("is_test", 0)? == 0 {
            bail!(Unsupported, "attribute `is_test` is 0; before version 7 that is training");
        }
        let seed = match p.node.int("seed")?.map(u32::try_from) {
            None => None,
            Some(Ok(seed)) => Some(seed),
            Some(Err(_)) => {
                let seed = p.node.int_or("seed", 0)?;
                bail!(Graph, "attribute `seed` is {seed}, expected at least 0 and below 2^32");
            }
        };
        Ok(Box::new(Dropout { seed, bool_mask: p.node.version >= 10 }))
    },
    cases,
};

#[derive(Debug)]
struct Dropout {
    seed: Option<u32>,
    bool_mask: bool,
}

impl CpuKernel for Dropout {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let training = io.optional(2)?.map_or(Ok(false), |t| t.item::<bool>())?;
        let ratio = match io.optional(1)? {
            Some(t) => match t.to_f32s()?[..] {
                [r] if (0.0..1.0).contains(&r) => f64::from(r),
                _ => bail!(Kernel, "input `ratio` is {t:?}, expected one number in 0..1"),
            },
            None => 0.5,
        };
        let x = io.take(0)?;
        let shape = x.tensor()?.shape().clone();
        let dtype = x.tensor()?.dtype();
        let kept = if training && ratio > 0.0 {
            let mut draw: Box<dyn FnMut() -> f64> = match self.seed {
                Some(seed) => {
                    let mut twister = MersenneTwister::new(seed);
                    Box::new(move || twister.uniform())
                }
                None => {
                    let mut generator = Generator::new(None);
                    Box::new(move || generator.uniform())
                }
            };
            let kept: Vec<bool> = (0..shape.elements()).map(|_| draw() >= ratio).collect();
            let mut wide = cast(x.tensor()?, DType::F64)?;
            for (v, kept) in wide.as_mut_slice::<f64>()?.iter_mut().zip(&kept) {
                *v = if *kept { *v / (1.0 - ratio) } else { 0.0 };
            }
            io.emit(cast(&wide, dtype)?);
            kept
        } else {
            io.emit(x);
            vec![true; shape.elements()]
        };
        if io.output_count() > 1 {
            let mask = Tensor::new(shape, kept)?;
            io.emit(if self.bool_mask { mask } else { cast(&mask, dtype)? });
        }
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let x = || filled(&[2, 1], &[1.5_f32, -2.0]);
    vec![
        Case::new("Dropout", 13, "nothing is dropped").input(x()).output(x()),
        Case::new("Dropout", 13, "the mask")
            .input(x())
            .input(filled(&[], &[0.75_f32]))
            .output(x())
            .output(filled(&[2, 1], &[true, true])),
        Case::new("Dropout", 7, "the ratio as an attribute")
            .attr("ratio", 0.1_f32)
            .input(x())
            .output(x()),
        Case::new("Dropout", 6, "for the test").attr("is_test", 1).input(x()).output(x()),
        Case::new("Dropout", 13, "in training, none")
            .input(x())
            .input(filled(&[], &[0.0_f32]))
            .input(filled(&[], &[true]))
            .output(x()),
        // numpy draws 0.5488…, 0.7151…, 0.6027…, 0.5448… for the seed 0.
        Case::new("Dropout", 13, "in training, as the reference draws")
            .attr("seed", 0)
            .input(filled(&[4], &[1.0_f32, 2.0, 3.0, 4.0]))
            .input(filled(&[], &[0.55_f32]))
            .input(filled(&[], &[true]))
            .output(filled(&[4], &[0.0_f32, 4.444_444, 6.666_666_7, 0.0]))
            .output(filled(&[4], &[false, true, true, false]))
            .close(0.0, 1e-6),
    ]
}
