//! `MatMulInteger`.

use super::{Layout, product_batch, product_cost, product_dims};
use crate::error::{Result, bail};
use crate::ops::case::{Case, filled};
use crate::ops::{CpuKernel, Io, OpDef, Port, Prepare};
use crate::tensor::{DType, Tensor};

const BYTES: &[DType] = &[DType::U8, DType::I8];

/// The product of two (stacks of) matrices of bytes, less their zero points, in i32.
pub(in crate::ops) static MATMUL_INTEGER: OpDef = OpDef {
    name: "MatMulInteger",
    domain: "",
    since: 10,
    attributes: &[],
    inputs: &[
        Port::required("A", BYTES),
        Port::required("B", BYTES),
        Port::optional("a_zero_point", BYTES),
        Port::optional("b_zero_point", BYTES),
    ],
    outputs: &[Port::required("Y", &[DType::I32])],
    infer: |i| {
        let shape = product_dims(i)?;
        i.set(0, Some(DType::I32), shape);
        Ok(())
    },
    batch: |q| {
        if q.axes.iter().skip(2).any(Option::is_some) {
            return Err("a zero point carries the batch".to_owned());
        }
        let one = |i: usize| {
            q.node.inputs.get(i).copied().flatten().is_none()
                || q.shapes
                    .get(i)
                    .and_then(Option::as_ref)
                    .is_some_and(|s| s.iter().all(|d| d.as_fixed() == Some(1)))
        };
        if !q.is_free() && !one(2) {
            return Err("a_zero_point may have one value a row".to_owned());
        }
        if q.axes.get(1).copied().flatten().is_some() && !one(3) {
            return Err("b_zero_point may have one value a column".to_owned());
        }
        product_batch(q)
    },
    cost: product_cost,
    prepare: |p| Ok(Box::new(MatMulInteger::new(p)?)),
    cases,
};

#[derive(Debug)]
struct MatMulInteger {
    /// B less its zero point, where both are constant, and B's shape.
    right: Option<(Vec<i16>, Vec<usize>)>,
}

/// The elements as i16.
fn widen(t: &Tensor) -> Result<Vec<i16>> {
    Ok(match t.dtype() {
        DType::U8 => t.as_slice::<u8>()?.iter().map(|x| i16::from(*x)).collect(),
        _ => t.as_slice::<i8>()?.iter().map(|x| i16::from(*x)).collect(),
    })
}

/// `t` less its zero point, which is one value, or one for each index along `axis` from the end.
fn centred(t: &Tensor, zero: Option<&Tensor>, from_end: usize, name: &str) -> Result<Vec<i16>> {
    let mut values = widen(t)?;
    let Some(zero) = zero else { return Ok(values) };
    let z = widen(zero)?;
    if let [z] = z[..] {
        if z != 0 {
            values.iter_mut().for_each(|v| *v -= z);
        }
        return Ok(values);
    }
    let shape = t.shape();
    let Some(axis) = shape.rank().checked_sub(from_end) else {
        bail!(Shape, "input `{name}` is {}, expected one value", zero.describe());
    };
    let (extent, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>().max(1));
    let lead: usize = shape[..axis].iter().product();
    let shared = z.len() == extent;
    if !shared && z.len() != lead * extent {
        bail!(Shape, "input `{name}` is {}, the matrix {}", zero.describe(), t.describe());
    }
    for (i, run) in values.chunks_mut(inner).enumerate() {
        let z = z[if shared { i % extent } else { i }];
        run.iter_mut().for_each(|v| *v -= z);
    }
    Ok(values)
}

impl MatMulInteger {
    fn new(p: &Prepare<'_>) -> Result<Self> {
        let right = match (p.constant(1), p.constant(3)) {
            (Some(b), zero) if zero.is_some() || !p.has(3) => {
                Some((centred(b, zero, 1, "b_zero_point")?, b.shape().to_vec()))
            }
            _ => None,
        };
        Ok(Self { right })
    }
}

impl CpuKernel for MatMulInteger {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let a = io.tensor(0)?;
        let left = centred(a, io.optional(2)?, 2, "a_zero_point")?;
        let runtime;
        let (right, b_shape) = match &self.right {
            Some((values, shape)) => (values, shape),
            None => {
                let b = io.tensor(1)?;
                let values = centred(b, io.optional(3)?, 1, "b_zero_point")?;
                runtime = (values, b.shape().to_vec());
                (&runtime.0, &runtime.1)
            }
        };
        let layout = Layout::new(a.shape(), b_shape)?;
        let (m, k, n) = (layout.m, layout.k, layout.n);
        let mut out = io.allocate(DType::I32, &layout.out[..])?;
        let y = out.as_mut_slice::<i32>()?;
        io.threads().split_rows(y, n, |first, chunk| {
            for (row, line) in chunk.chunks_exact_mut(n.max(1)).enumerate() {
                let (product, i) = ((first + row) / m, (first + row) % m);
                let (l, r) = layout.operands(product);
                line.fill(0);
                let left = &left[(l * m + i) * k..(l * m + i + 1) * k];
                for (p, x) in left.iter().enumerate() {
                    let x = i32::from(*x);
                    let right = &right[(r * k + p) * n..(r * k + p + 1) * n];
                    for (o, y) in line.iter_mut().zip(right) {
                        *o = o.wrapping_add(x * i32::from(*y));
                    }
                }
            }
        });
        io.emit(out);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        !matches!(input, 1 | 3) || self.right.is_none()
    }
}

fn cases() -> Vec<Case> {
    let case = |name: &str| Case::new("MatMulInteger", 10, name);
    let a = filled(&[2, 3], &[0_u8, 128, 255, 1, 2, 3]);
    let b = filled(&[3, 2], &[-128_i8, 127, 1, 0, -1, 2]);
    vec![
        case("no zero points")
            .input(a.clone())
            .input(b.clone())
            .output(filled(&[2, 2], &[-127_i32, 510, -129, 133])),
        // A - 128 = [[-128,0,127],[-127,-126,-125]], B - 1 = [[-129,126],[0,-1],[-2,1]]
        case("one zero point each, B constant")
            .input(a.clone())
            .constant(b.clone())
            .constant(filled(&[], &[128_u8]))
            .constant(filled(&[1], &[1_i8]))
            .output(filled(&[2, 2], &[16_258_i32, -16_001, 16_633, -16_001])),
        // A - [1,2] = [[-1,127,254],[-1,0,1]], B - [0,127] = [[-128,0],[1,-127],[-1,-125]]
        case("zero points of rows and columns")
            .input(a)
            .input(b)
            .input(filled(&[2], &[1_u8, 2]))
            .input(filled(&[2], &[0_i8, 127]))
            .output(filled(&[2, 2], &[1_i32, -47_879, 127, -125])),
    ]
}
