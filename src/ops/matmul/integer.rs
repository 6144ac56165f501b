//! `MatMulInteger`.

use std::ops::Range;

use super::{Layout, product_batch, product_cost, product_dims};
use crate::error::{Result, bail};
use crate::kernels::{Bytes, PackedQ, QMatRef, qgemm};
use crate::ops::case::{Case, filled};
use crate::ops::{CpuKernel, Io, OpDef, Port, Prepare, Threads};
use crate::tensor::{DType, Tensor, cast};

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
    /// B packed, where it and its zero point are constant: one matrix for each leading index.
    right: Option<(Vec<PackedQ>, Vec<usize>)>,
}

pub(super) fn bytes(t: &Tensor) -> Result<Bytes<'_>> {
    Ok(match t.dtype() {
        DType::U8 => Bytes::Unsigned(t.as_slice()?),
        _ => Bytes::Signed(t.as_slice()?),
    })
}

/// Part of the elements.
fn slice(bytes: Bytes<'_>, range: Range<usize>) -> Bytes<'_> {
    match bytes {
        Bytes::Signed(b) => Bytes::Signed(&b[range]),
        Bytes::Unsigned(b) => Bytes::Unsigned(&b[range]),
    }
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
            (Some(b), zero) if b.rank() > 1 && (zero.is_some() || !p.has(3)) => pack(b, zero)?,
            _ => None,
        };
        Ok(Self { right })
    }
}

/// B with its zero point, packed; `None` where each of its matrices has zero points of its own.
fn pack(b: &Tensor, zero: Option<&Tensor>) -> Result<Option<(Vec<PackedQ>, Vec<usize>)>> {
    let &[ref lead @ .., k, n] = &b.shape()[..] else { return Ok(None) };
    let zero = match zero {
        Some(z) => cast(z, DType::I32)?.as_slice::<i32>()?.to_vec(),
        None => vec![0],
    };
    if zero.len() != 1 && zero.len() != n {
        return Ok(None);
    }
    let data = bytes(b)?;
    let matrices = (0..lead.iter().product::<usize>())
        .map(|i| {
            let part = slice(data, i * k * n..(i + 1) * k * n);
            Ok(PackedQ::new(QMatRef::row_major(part, k, n)?, &zero)?)
        })
        .collect::<Result<_>>()?;
    Ok(Some((matrices, b.shape().to_vec())))
}

impl CpuKernel for MatMulInteger {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let a = io.tensor(0)?;
        let zero = io.optional(2)?;
        let mut out;
        match &self.right {
            Some((packed, shape)) => {
                let layout = Layout::new(a.shape(), shape)?;
                let (m, k, n) = (layout.m, layout.k, layout.n);
                out = io.allocate(DType::I32, &layout.out[..])?;
                let y = out.as_mut_slice::<i32>()?;
                let zero = match zero {
                    Some(z) => cast(z, DType::I32)?.as_slice::<i32>()?.to_vec(),
                    None => vec![0],
                };
                if y.is_empty() {
                    io.emit(out);
                    return Ok(());
                }
                let data = bytes(a)?;
                if layout.is_flat() && (zero.len() == 1 || zero.len() == layout.count() * m) {
                    let lhs = QMatRef::row_major(data, layout.count() * m, k)?;
                    qgemm(lhs, &zero, &packed[0], y, n, io.threads())?;
                    io.emit(out);
                    return Ok(());
                }
                if zero.len() != 1 && zero.len() != m {
                    bail!(Shape, "input `a_zero_point` has {} values, A {m} rows", zero.len());
                }
                for (i, y) in y.chunks_exact_mut(m * n).enumerate() {
                    let (l, r) = layout.operands(i);
                    let part = slice(data, l * m * k..(l + 1) * m * k);
                    let lhs = QMatRef::row_major(part, m, k)?;
                    qgemm(lhs, &zero, &packed[r], y, n, io.threads())?;
                }
            }
            None => {
                let b = io.tensor(1)?;
                let layout = Layout::new(a.shape(), b.shape())?;
                let left = centred(a, zero, 2, "a_zero_point")?;
                let right = centred(b, io.optional(3)?, 1, "b_zero_point")?;
                out = io.allocate(DType::I32, &layout.out[..])?;
                multiply(&layout, &left, &right, out.as_mut_slice()?, io.threads());
            }
        }
        io.emit(out);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        !matches!(input, 1 | 3) || self.right.is_none()
    }
}

/// The products in plain loops.
fn multiply(layout: &Layout, left: &[i16], right: &[i16], out: &mut [i32], threads: &Threads) {
    let (m, k, n) = (layout.m, layout.k, layout.n);
    threads.split_rows(out, n, |first, chunk| {
        for (row, line) in chunk.chunks_exact_mut(n.max(1)).enumerate() {
            let (product, i) = ((first + row) / m, (first + row) % m);
            let (l, r) = layout.operands(product);
            line.fill(0);
            let left = &left[(l * m + i) * k..][..k];
            for (p, x) in left.iter().enumerate() {
                let x = i32::from(*x);
                let right = &right[(r * k + p) * n..][..n];
                for (o, y) in line.iter_mut().zip(right) {
                    *o = o.wrapping_add(x * i32::from(*y));
                }
            }
        }
    });
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
        case("stacks, B constant")
            .input(filled(&[2, 1, 2], &[1_u8, 2, 3, 4]))
            .constant(filled(&[2, 2, 1], &[1_i8, -1, 2, -2]))
            .output(filled(&[2, 1, 1], &[-1_i32, -2])),
        case("zero points of rows and columns, B constant")
            .input(a.clone())
            .constant(b.clone())
            .input(filled(&[2], &[1_u8, 2]))
            .constant(filled(&[2], &[0_i8, 127]))
            .output(filled(&[2, 2], &[1_i32, -47_879, 127, -125])),
        // A - [1,2] = [[9],[18]], times 3 and -1
        case("zero points of rows, times a stack")
            .input(filled(&[2, 1], &[10_u8, 20]))
            .input(filled(&[2, 1, 1], &[3_i8, -1]))
            .input(filled(&[2], &[1_u8, 2]))
            .output(filled(&[2, 2, 1], &[27_i32, 54, -9, -18])),
        // A - [1,2] = [[-1,127,254],[-1,0,1]], B - [0,127] = [[-128,0],[1,-127],[-1,-125]]
        case("zero points of rows and columns")
            .input(a)
            .input(b)
            .input(filled(&[2], &[1_u8, 2]))
            .input(filled(&[2], &[0_i8, 127]))
            .output(filled(&[2, 2], &[1_i32, -47_879, 127, -125])),
    ]
}
