//! `ScatterElements` (before version 11: `Scatter`) and `ScatterND`: a tensor with some elements
//! replaced or combined with updates.

use half::{bf16, f16};

use super::case::{Case, ints, of};
use super::def::types::{ANY, I64S, INDICES};
use super::gather::{batch_elementwise_along, element_offsets, tuple_offsets, tuples};
use super::movement::{Item, Mover, altered, writable};
use super::{
    AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare, Threads, cost,
};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::tensor::{Element, Tensor, for_dtypes};

const ALONG: &[AttributeDef] = &[
    AttributeDef::optional("axis", AttributeKind::Int),
    AttributeDef::optional("reduction", AttributeKind::String),
];
const ELEMENT_INPUTS: &[Port] = &[
    Port::required("data", ANY),
    Port::required("indices", INDICES),
    Port::required("updates", ANY),
];

const OUTPUT: &[Port] = &[Port::required("output", ANY)];

/// The older name of `ScatterElements`.
pub(super) static SCATTER: OpDef =
    OpDef { name: "Scatter", since: 9, cases: scatter_cases, ..elements() };

/// Single elements: all coordinates but one are those of the update.
pub(super) static SCATTER_ELEMENTS: OpDef = elements();

const fn elements() -> OpDef {
    OpDef {
        name: "ScatterElements",
        domain: "",
        since: 11,
        attributes: ALONG,
        inputs: ELEMENT_INPUTS,
        outputs: OUTPUT,
        infer: |i| {
            check_dtypes(i)?;
            i.set(0, i.dtype(0), i.shape(0));
            Ok(())
        },
        batch: |q| {
            let axis = q.node.int_or("axis", 0).map_err(|e| e.to_string())?;
            batch_elementwise_along(q, axis)
        },
        cost: cost::copy,
        prepare: |p| {
            let axis = p.node.int_or("axis", 0)?;
            Ok(Box::new(Scatter { reduction: reduction(p.node)?, place: Place::Along(axis) }))
        },
        cases: scatter_elements_cases,
    }
}

/// Slices at tuples of coordinates.
pub(super) static SCATTER_ND: OpDef = OpDef {
    name: "ScatterND",
    domain: "",
    since: 11,
    attributes: &[AttributeDef::optional("reduction", AttributeKind::String)],
    inputs: &[
        Port::required("data", ANY),
        Port::required("indices", I64S),
        Port::required("updates", ANY),
    ],
    outputs: OUTPUT,
    infer: |i| {
        check_dtypes(i)?;
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: |q| {
        if q.is_free() {
            return q.everywhere(None);
        }
        // The slices that are updated carry the batch, on an axis that is not indexed.
        let indices = q.shapes.get(1).and_then(Option::as_ref).ok_or("its shapes are not known")?;
        let depth = indices.last().and_then(Dim::as_extent);
        let depth = depth.ok_or("how many coordinates it takes is not known")?;
        match q.axes {
            [Some(data), None, Some(updates)]
                if *data >= depth && *updates == indices.len() - 1 + data - depth =>
            {
                q.everywhere(Some(*data))
            }
            _ => Err("its indices mix the items of the batch".to_owned()),
        }
    },
    cost: cost::copy,
    prepare: |p: &Prepare<'_>| {
        Ok(Box::new(Scatter { reduction: reduction(p.node)?, place: Place::Tuples }))
    },
    cases: scatter_nd_cases,
};

fn check_dtypes(i: &Infer<'_>) -> Result<()> {
    if let (Some(a), Some(b)) = (i.dtype(0), i.dtype(2))
        && a != b
    {
        bail!(DType, "`updates` of dtype {b} cannot go into `data` of dtype {a}");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reduction {
    Replace,
    Add,
    Multiply,
    Max,
    Min,
}

fn reduction(node: &Node) -> Result<Reduction> {
    Ok(match node.string("reduction")?.unwrap_or("none") {
        "none" => Reduction::Replace,
        "add" => Reduction::Add,
        "mul" => Reduction::Multiply,
        "max" => Reduction::Max,
        "min" => Reduction::Min,
        other => bail!(Graph, "`reduction` is `{other}`; use none, add, mul, max or min"),
    })
}

#[derive(Debug)]
enum Place {
    Along(i64),
    Tuples,
}

#[derive(Debug)]
struct Scatter {
    reduction: Reduction,
    place: Place,
}

impl CpuKernel for Scatter {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take_tensor(0)?;
        let (indices, updates) = (io.tensor(1)?, io.tensor(2)?);
        let (offsets, run, need) = match self.place {
            Place::Along(axis) => {
                (element_offsets(x.shape(), indices, axis)?, 1, indices.shape().to_vec())
            }
            Place::Tuples => {
                let (depth, count) = tuples(indices, x.rank(), 0)?;
                let mut need = indices.shape()[..indices.rank() - 1].to_vec();
                need.extend_from_slice(&x.shape()[depth..]);
                let run = x.shape()[depth..].iter().product();
                (tuple_offsets(indices, x.shape(), depth, count)?, run, need)
            }
        };
        if updates.shape() != need.as_slice() {
            bail!(Shape, "`updates` has shape {}, expected {need:?}", updates.shape());
        }
        let out = match self.reduction {
            Reduction::Replace => altered(io, x, &[updates], &Placed { offsets: &offsets, run })?,
            reduction => combined(io, x, updates, &offsets, run, reduction)?,
        };
        io.emit(out);
        Ok(())
    }
}

/// Runs of the source go to given offsets, in order.
struct Placed<'a> {
    offsets: &'a [usize],
    run: usize,
}

impl Mover for Placed<'_> {
    fn fill<T: Item>(&self, sources: &[&[T]], out: &mut [T], _: &Threads) -> Result<()> {
        let [source, ..] = sources else { bail!(Internal, "nothing to scatter") };
        for (&at, run) in self.offsets.iter().zip(source.chunks(self.run.max(1))) {
            out[at..at + self.run].clone_from_slice(run);
        }
        Ok(())
    }
}

/// The arithmetic of reductions; whole numbers wrap, NaN wins.
trait Combine: Element {
    fn combine(self, other: Self, how: Reduction) -> Self;
}

macro_rules! combine {
    ($($t:ty: $add:expr, $mul:expr;)*) => { $(
        impl Combine for $t {
            #[allow(clippy::eq_op)]
            fn combine(self, other: Self, how: Reduction) -> Self {
                match how {
                    Reduction::Replace => other,
                    Reduction::Add => $add(self, other),
                    Reduction::Multiply => $mul(self, other),
                    Reduction::Max => if self > other || self != self { self } else { other },
                    Reduction::Min => if self < other || self != self { self } else { other },
                }
            }
        }
    )* };
}
combine! {
    f32: |a, b| a + b, |a, b| a * b;
    f64: |a, b| a + b, |a, b| a * b;
    f16: |a, b| a + b, |a, b| a * b;
    bf16: |a, b| a + b, |a, b| a * b;
    i8: Self::wrapping_add, Self::wrapping_mul;
    i16: Self::wrapping_add, Self::wrapping_mul;
    i32: Self::wrapping_add, Self::wrapping_mul;
    i64: Self::wrapping_add, Self::wrapping_mul;
    u8: Self::wrapping_add, Self::wrapping_mul;
    u16: Self::wrapping_add, Self::wrapping_mul;
    u32: Self::wrapping_add, Self::wrapping_mul;
    u64: Self::wrapping_add, Self::wrapping_mul;
    bool: |a, b| a | b, |a, b| a & b;
}

fn combined(
    io: &Io<'_>,
    mut x: Tensor,
    updates: &Tensor,
    offsets: &[usize],
    run: usize,
    how: Reduction,
) -> Result<Tensor> {
    let dtype = x.dtype();
    if dtype == crate::DType::String {
        bail!(Unsupported, "strings cannot be combined by `reduction`");
    }
    writable(io, &mut x)?;
    for_dtypes!(dtype, T, {
        let out = x.as_mut_slice::<T>()?;
        for (&at, update) in offsets.iter().zip(updates.as_slice::<T>()?.chunks(run.max(1))) {
            for (o, u) in out[at..at + run].iter_mut().zip(update) {
                *o = o.combine(*u, how);
            }
        }
    }, bail!(Unsupported, "`reduction` of dtype {dtype} is not implemented"),
        F32 f32, F64 f64, F16 f16, BF16 bf16, I8 i8, I16 i16, I32 i32, I64 i64,
        U8 u8, U16 u16, U32 u32, U64 u64, Bool bool);
    Ok(x)
}

fn scatter_cases() -> Vec<Case> {
    vec![
        Case::new("Scatter", 9, "axis 1")
            .attr("axis", 1)
            .input(of(&[1, 5], vec![1.0_f32, 2.0, 3.0, 4.0, 5.0]))
            .input(ints(&[1, 2], vec![1, 3]))
            .input(of(&[1, 2], vec![1.1_f32, 2.1]))
            .output(of(&[1, 5], vec![1.0_f32, 1.1, 3.0, 2.1, 5.0])),
    ]
}

fn scatter_elements_cases() -> Vec<Case> {
    let new = |name| Case::new("ScatterElements", 18, name);
    vec![
        new("axis 0")
            .input(ints(&[3, 3], vec![0; 9]))
            .input(ints(&[2, 3], vec![1, 0, 2, 0, 2, 1]))
            .input(ints(&[2, 3], vec![10, 11, 12, 20, 21, 22]))
            .output(ints(&[3, 3], vec![20, 11, 0, 10, 0, 22, 0, 21, 12])),
        new("add twice to one element, negative")
            .attr("axis", -1)
            .attr("reduction", "add")
            .input(ints(&[1, 3], vec![1, 2, 16_777_217]))
            .input(ints(&[1, 2], vec![-1, 2]))
            .input(ints(&[1, 2], vec![1, 1]))
            .output(ints(&[1, 3], vec![1, 2, 16_777_219])),
        new("max")
            .attr("reduction", "max")
            .input(of(&[2], vec![1.0_f32, 5.0]))
            .input(ints(&[2], vec![0, 1]))
            .input(of(&[2], vec![3.0_f32, 4.0]))
            .output(of(&[2], vec![3.0_f32, 5.0])),
    ]
}

fn scatter_nd_cases() -> Vec<Case> {
    let new = |name| Case::new("ScatterND", 18, name);
    vec![
        new("elements")
            .input(of(&[8], vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
            .input(ints(&[4, 1], vec![4, 3, 1, -1]))
            .input(of(&[4], vec![9.0_f32, 10.0, 11.0, 12.0]))
            .output(of(&[8], vec![1.0_f32, 11.0, 3.0, 10.0, 9.0, 6.0, 7.0, 12.0])),
        new("slices")
            .input(ints(&[2, 2], vec![1, 2, 3, 4]))
            .input(ints(&[1, 1], vec![1]))
            .input(ints(&[1, 2], vec![8, 9]))
            .output(ints(&[2, 2], vec![1, 2, 8, 9])),
        new("multiply by repeated indices")
            .attr("reduction", "mul")
            .input(of(&[2], vec![2.0_f32, 3.0]))
            .input(ints(&[2, 1], vec![0, 0]))
            .input(of(&[2], vec![5.0_f32, 7.0]))
            .output(of(&[2], vec![70.0_f32, 3.0])),
        new("nothing to scatter")
            .input(ints(&[2], vec![1, 2]))
            .input(ints(&[0, 1], vec![]))
            .input(ints(&[0], vec![]))
            .output(ints(&[2], vec![1, 2])),
    ]
}
