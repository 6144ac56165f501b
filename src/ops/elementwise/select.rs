//! `Where` and `Clip`.

use super::limited::CONSUMED_INPUTS;
use super::number::Number;
use super::{Broadcast, fits, for_wide, same_dtype, same_dtypes, spread, wide, writable};
use crate::error::{Result, bail, err};
use crate::graph::Dim;
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::def::types::{ANY, BOOLS, NUMBERS};
use crate::ops::{
    AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare, Threads, batch, cost,
};
use crate::tensor::{DType, Tensor, cast};

/// `X` where the condition holds, else `Y`.
pub(in crate::ops) static WHERE: OpDef = OpDef {
    name: "Where",
    domain: "",
    since: 9,
    attributes: &[],
    inputs: &[
        Port::required("condition", BOOLS),
        Port::required("X", ANY),
        Port::required("Y", ANY),
    ],
    outputs: &[Port::required("output", ANY)],
    infer: infer_where,
    batch: batch::elementwise,
    cost: cost::elementwise,
    prepare: |_| Ok(Box::new(Where)),
    cases: where_cases,
};

fn infer_where(i: &mut Infer<'_>) -> Result<()> {
    let dtype = same_dtypes(i, 1..3)?;
    let shape = i.broadcast(&[0, 1, 2])?;
    let elements = followed_where(i);
    i.set(0, dtype, shape);
    i.set_elements(0, elements);
    Ok(())
}

fn followed_where(i: &Infer<'_>) -> Option<Vec<Dim>> {
    if (0..3).any(|k| i.rank(k).is_none_or(|r| r > 1)) {
        return None;
    }
    let (c, x, y) = (i.ints(0)?, i.elements(1)?, i.elements(2)?);
    let lens = [c.len(), x.len(), y.len()];
    let count = *lens.iter().find(|n| **n != 1).unwrap_or(&1);
    if lens.iter().any(|n| *n != 1 && *n != count) {
        return None;
    }
    let at = |len: usize, k: usize| if len == 1 { 0 } else { k };
    (0..count)
        .map(|k| {
            let holds = *c.get(at(c.len(), k))? != 0;
            let from = if holds { &x } else { &y };
            from.get(at(from.len(), k)).cloned()
        })
        .collect()
}

#[derive(Debug)]
struct Where;

impl CpuKernel for Where {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (c, x, y) = (io.tensor(0)?, io.tensor(1)?, io.tensor(2)?);
        same_dtype(x, y)?;
        let dtype = x.dtype();
        let plan = Broadcast::new([c.shape(), x.shape(), y.shape()])?;
        let c = c.as_slice::<bool>()?;
        if dtype == DType::String {
            let (x, y) = (x.as_strings()?, y.as_strings()?);
            let x: Vec<&str> = x.iter().map(String::as_str).collect();
            let y: Vec<&str> = y.iter().map(String::as_str).collect();
            let mut picked = vec![""; plan.shape.elements()];
            plan.zip(io.threads(), c, &x, &y, &mut picked, |c, x, y| if c { x } else { y });
            let owned = picked.into_iter().map(str::to_owned).collect();
            io.emit(Tensor::from_strings(plan.shape, owned)?);
            return Ok(());
        }
        let mut out = io.allocate(dtype, plan.shape.clone())?;
        // Elements are only moved, so that their size is all that counts.
        let threads = io.threads();
        match dtype.size() {
            1 => select::<u8>(threads, &plan, c, x, y, &mut out)?,
            2 => select::<u16>(threads, &plan, c, x, y, &mut out)?,
            4 => select::<u32>(threads, &plan, c, x, y, &mut out)?,
            8 => select::<u64>(threads, &plan, c, x, y, &mut out)?,
            _ => bail!(Unsupported, "{dtype} is not selected from"),
        }
        io.emit(out);
        Ok(())
    }
}

fn select<T: bytemuck::Pod + Send + Sync>(
    threads: &Threads,
    plan: &Broadcast<3>,
    c: &[bool],
    x: &Tensor,
    y: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let misaligned = |e| err!(Internal, "elements of a tensor: {e}");
    let x: &[T] = bytemuck::try_cast_slice(x.as_bytes()).map_err(misaligned)?;
    let y: &[T] = bytemuck::try_cast_slice(y.as_bytes()).map_err(misaligned)?;
    let to: &mut [T] = bytemuck::try_cast_slice_mut(out.as_mut_bytes()?).map_err(misaligned)?;
    plan.zip(threads, c, x, y, to, |c, x, y| if c { x } else { y });
    Ok(())
}

/// Every element no smaller than `min` and no larger than `max`: attributes before version 11,
/// optional scalar inputs from then on.
pub(in crate::ops) static CLIP: OpDef = OpDef {
    name: "Clip",
    domain: "",
    since: 1,
    attributes: &[
        CONSUMED_INPUTS,
        AttributeDef::optional("min", AttributeKind::Float),
        AttributeDef::optional("max", AttributeKind::Float),
    ],
    inputs: &[
        Port::required("input", NUMBERS),
        Port::optional("min", NUMBERS),
        Port::optional("max", NUMBERS),
    ],
    outputs: &[Port::required("output", NUMBERS)],
    infer: |i| {
        let dtype = same_dtypes(i, 0..i.input_count())?;
        let shape = i.shape(0);
        let elements = followed_clip(i);
        i.set(0, dtype, shape);
        i.set_elements(0, elements);
        Ok(())
    },
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: prepare_clip,
    cases: clip_cases,
};

fn followed_clip(i: &Infer<'_>) -> Option<Vec<Dim>> {
    let bound = |k: usize| -> Option<Option<Dim>> {
        if !i.has(k) {
            return Some(None);
        }
        match i.elements(k)?.as_slice() {
            [b] => Some(Some(b.clone())),
            _ => None,
        }
    };
    let (dtype, low, high) = (i.dtype(0)?, bound(1)?, bound(2)?);
    let mut out = Vec::new();
    for mut d in i.elements(0)? {
        if let Some(low) = &low {
            d = d.larger(low);
        }
        if let Some(high) = &high {
            d = d.smaller(high);
        }
        out.push(Some(d).filter(|d| fits(dtype, d))?);
    }
    Some(out)
}

#[derive(Debug)]
struct Clip {
    /// Bounds from attributes.
    bounds: [Option<f32>; 2],
}

fn prepare_clip(p: &Prepare<'_>) -> Result<Box<dyn CpuKernel>> {
    let bounds = [p.node.float("min")?, p.node.float("max")?];
    if p.node.version < 11 {
        if p.has(1) || p.has(2) {
            bail!(Graph, "before version 11 `min` and `max` are attributes, not inputs");
        }
    } else if bounds != [None; 2] {
        bail!(Graph, "from version 11 on `min` and `max` are inputs, not attributes");
    }
    Ok(Box::new(Clip { bounds }))
}

impl CpuKernel for Clip {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let dtype = io.tensor(0)?.dtype();
        let computed = wide(dtype);
        let mut bounds: [Option<Tensor>; 2] = [None, None];
        for (k, bound) in bounds.iter_mut().enumerate() {
            if let Some(b) = io.optional(k + 1)? {
                same_dtype(io.tensor(0)?, b)?;
                if b.len() != 1 {
                    let name = ["min", "max"][k];
                    bail!(Shape, "`{name}` must be one number, got {}", b.describe());
                }
                *bound = Some(cast(b, computed)?);
            } else if let Some(v) = self.bounds[k] {
                *bound = Some(cast(&Tensor::scalar(v), computed)?);
            }
        }
        let mut x = writable(io)?;
        for_wide!(computed, T => {
            let bound = |t: &Option<Tensor>, open: T| -> Result<T> {
                t.as_ref().map_or(Ok(open), |t| Ok(t.as_slice::<T>()?[0]))
            };
            let low = bound(&bounds[0], T::LOWEST)?;
            let high = bound(&bounds[1], T::HIGHEST)?;
            spread(io.threads(), x.as_mut_slice::<T>()?, 1, |_, xs| {
                for x in xs {
                    // The element goes second, so that it stays where it is NaN.
                    let raised = if low > *x { low } else { *x };
                    *x = if high < raised { high } else { raised };
                }
            });
        }, _ => bail!(DType, "{dtype} is not a number"));
        io.emit(cast(&x, dtype)?);
        Ok(())
    }
}

fn where_cases() -> Vec<Case> {
    let new = |name: &str| Case::new("Where", 16, name);
    let strings = |s: &[&str]| {
        let owned = s.iter().map(|s| (*s).to_owned()).collect();
        Tensor::from_strings([s.len()], owned).ok()
    };
    let mut cases = vec![
        new("same shape")
            .input(filled(&[2, 2], &[true, false, true, true]))
            .input(filled(&[2, 2], &[1f32, 2., 3., 4.]))
            .input(filled(&[2, 2], &[9f32, 8., 7., 6.]))
            .output(filled(&[2, 2], &[1f32, 8., 3., 4.])),
        new("mask against a scalar")
            .input(filled(&[1, 3], &[true, false, false]))
            .input(counted(&[2, 3]))
            .constant(Tensor::scalar(-1f32))
            .output(filled(&[2, 3], &[0f32, -1., -1., 3., -1., -1.])),
        new("scalar against values")
            .input(filled(&[2, 3], &[true, false, false, false, true, true]))
            .input(Tensor::scalar(-1f32))
            .input(counted(&[2, 3]))
            .output(filled(&[2, 3], &[-1f32, 1., 2., 3., -1., -1.])),
        new("all broadcast")
            .input(filled(&[2, 1], &[true, false]))
            .input(filled(&[3], &[1i64, 2, i64::MAX]))
            .input(filled(&[1, 1], &[i64::MIN]))
            .output(filled(&[2, 3], &[1, 2, i64::MAX, i64::MIN, i64::MIN, i64::MIN])),
        new("f16 keeps its bits")
            .input(filled(&[2], &[false, true]))
            .input(as_dtype(&filled(&[2], &[1f32, f32::NAN]), DType::F16))
            .input(as_dtype(&filled(&[2], &[0.1f32, 2.]), DType::F16))
            .output(as_dtype(&filled(&[2], &[0.1f32, f32::NAN]), DType::F16)),
        new("bools, empty")
            .input(filled(&[1], &[true]))
            .input(filled::<bool>(&[0], &[]))
            .input(filled(&[1], &[false]))
            .output(filled::<bool>(&[0], &[])),
    ];
    if let (Some(x), Some(y), Some(z)) =
        (strings(&["a", "b"]), strings(&["c"]), strings(&["a", "c"]))
    {
        cases.push(new("strings").input(filled(&[2], &[true, false])).input(x).input(y).output(z));
    }
    cases
}

fn clip_cases() -> Vec<Case> {
    let x = filled(&[4], &[-2f32, 0.5, 7., f32::NAN]);
    vec![
        Case::new("Clip", 13, "both bounds")
            .input(x.clone())
            .constant(Tensor::scalar(0f32))
            .constant(Tensor::scalar(6f32))
            .output(filled(&[4], &[0f32, 0.5, 6., f32::NAN])),
        Case::new("Clip", 13, "no lower bound")
            .input(x.clone())
            .absent()
            .input(Tensor::scalar(1f32))
            .output(filled(&[4], &[-2f32, 0.5, 1., f32::NAN])),
        Case::new("Clip", 13, "no bounds").input(x.clone()).output(x.clone()),
        Case::new("Clip", 13, "no bounds of whole numbers")
            .input(filled(&[2], &[i32::MIN, 7]))
            .output(filled(&[2], &[i32::MIN, 7])),
        Case::new("Clip", 13, "crossed bounds: the upper one wins")
            .input(filled(&[3], &[0f32, 3., 9.]))
            .input(Tensor::scalar(5f32))
            .input(Tensor::scalar(1f32))
            .output(filled(&[3], &[1f32, 1., 1.])),
        Case::new("Clip", 6, "attributes")
            .attr("min", 0f32)
            .attr("max", 6f32)
            .input(x.clone())
            .output(filled(&[4], &[0f32, 0.5, 6., f32::NAN])),
        Case::new("Clip", 12, "i64 is exact")
            .input(filled(&[3], &[9_007_199_254_740_993i64, i64::MIN, 5]))
            .input(Tensor::scalar(-9_007_199_254_740_993i64))
            .absent()
            .output(filled(&[3], &[9_007_199_254_740_993i64, -9_007_199_254_740_993, 5])),
        Case::new("Clip", 13, "f16")
            .input(as_dtype(&filled(&[2], &[-1f32, 9.]), DType::F16))
            .input(Tensor::scalar(half::f16::from_f32(0.)))
            .input(Tensor::scalar(half::f16::from_f32(6.)))
            .output(as_dtype(&filled(&[2], &[0f32, 6.]), DType::F16)),
    ]
}
