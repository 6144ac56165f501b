//! `MatMul` and `brigade.FusedMatMul`.

use super::packed::Packed;
use super::plain::{self, View};
use super::{Layout, TYPES, product_batch, product_cost, product_dims};
use crate::error::{Result, bail};
use crate::kernels::{
    Activation, Bias, Epilogue, MatMut, MatRef, Parallel, Residual, Rhs, Serial, gemm,
};
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::def::types::F32S;
use crate::ops::epilogue::{self, ACTIVATION, ACTIVATION_PARAMS, RESIDUAL_AFTER};
use crate::ops::{
    AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Precision, Prepare, Threads,
};
use crate::tensor::{DType, Tensor, cast, for_dtypes};

/// The product of two (stacks of) matrices, as numpy's `matmul`.
pub(in crate::ops) static MATMUL: OpDef = OpDef {
    name: "MatMul",
    domain: "",
    since: 1,
    attributes: &[],
    inputs: &[Port::required("A", TYPES), Port::required("B", TYPES)],
    outputs: &[Port::required("Y", TYPES)],
    infer,
    batch: product_batch,
    cost: product_cost,
    prepare: |p| Ok(Box::new(MatMul::new(p)?)),
    cases,
};

/// `act(alpha · A · B + bias + Z)`, or with `residual_after_activation` `act(alpha · A · B +
/// bias) + Z`: `bias` has one axis, `Z` is of the output's shape.
pub(in crate::ops) static FUSED_MATMUL: OpDef = OpDef {
    name: "FusedMatMul",
    domain: "brigade",
    since: 1,
    attributes: &[
        ACTIVATION,
        ACTIVATION_PARAMS,
        RESIDUAL_AFTER,
        AttributeDef::optional("alpha", AttributeKind::Float),
    ],
    inputs: &[
        Port::required("A", F32S),
        Port::required("B", F32S),
        Port::optional("bias", F32S),
        Port::optional("Z", F32S),
    ],
    outputs: &[Port::required("Y", F32S)],
    infer,
    batch: |q| {
        if q.axes.get(2).copied().flatten().is_some() {
            return Err("the bias carries the batch".to_owned());
        }
        let flow = product_batch(q)?;
        match (flow.first().copied().flatten(), q.axes.get(3).copied().flatten()) {
            _ if q.node.inputs.get(3).copied().flatten().is_none() => Ok(flow),
            (Some(y), Some(z)) if y == z => Ok(flow),
            (None, None) => Ok(flow),
            _ => Err("the residual carries the batch on another axis than the product".into()),
        }
    },
    cost: product_cost,
    prepare: |p| Ok(Box::new(MatMul::fused(p)?)),
    cases: fused_cases,
};

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let shape = product_dims(i)?;
    i.set(0, i.dtype(0).or(i.dtype(1)), shape);
    Ok(())
}

/// The constant right operand: one packed matrix for each of its leading indices.
#[derive(Debug)]
struct PackedRight {
    shape: Vec<usize>,
    matrices: Vec<Packed>,
}

impl PackedRight {
    /// Packs a float tensor; `None` for other dtypes, which are read as they are.
    fn new(b: &Tensor, precision: Precision) -> Result<Option<Self>> {
        if !matches!(b.dtype(), DType::F32 | DType::F16 | DType::BF16) || b.rank() == 0 {
            return Ok(None);
        }
        let b = cast(b, DType::F32)?;
        let (k, n) = match &b.shape()[..] {
            [k] => (*k, 1),
            [.., k, n] => (*k, *n),
            [] => return Ok(None),
        };
        let count: usize = b.shape()[..b.rank().saturating_sub(2)].iter().product();
        let data = b.as_slice::<f32>()?;
        let matrices = (0..count)
            .map(|i| {
                Packed::new(MatRef::row_major(&data[i * k * n..(i + 1) * k * n], k, n)?, precision)
            })
            .collect::<Result<_>>()?;
        Ok(Some(Self { shape: b.shape().to_vec(), matrices }))
    }
}

#[derive(Debug)]
struct MatMul {
    right: Option<PackedRight>,
    alpha: f32,
    activation: Activation,
    residual_after: bool,
}

impl MatMul {
    fn new(p: &Prepare<'_>) -> Result<Self> {
        let right = match p.constant(1) {
            Some(b) => PackedRight::new(b, p.options.precision)?,
            None => None,
        };
        Ok(Self { right, alpha: 1.0, activation: Activation::None, residual_after: false })
    }

    fn fused(p: &Prepare<'_>) -> Result<Self> {
        Ok(Self {
            alpha: p.node.float_or("alpha", 1.0)?,
            activation: epilogue::activation(p.node)?,
            residual_after: epilogue::residual_after(p.node)?,
            ..Self::new(p)?
        })
    }

    fn run_f32(&self, io: &Io<'_>, a: &Tensor, b: Option<&Tensor>) -> Result<Tensor> {
        let b_shape = match (&self.right, b) {
            (Some(packed), _) => &packed.shape[..],
            (None, Some(b)) => &b.shape()[..],
            (None, None) => bail!(Missing, "input `B` is missing"),
        };
        let layout = Layout::new(a.shape(), b_shape)?;
        let (m, k, n) = (layout.m, layout.k, layout.n);
        let bias = io.optional(2)?;
        if let Some(t) = bias
            && t.shape()[..] != [n]
        {
            bail!(Shape, "the bias is {}, the product has {n} columns", t.describe());
        }
        let bias = match bias {
            Some(t) => Bias::PerColumn(t.as_slice()?),
            None => Bias::None,
        };
        let residual = io.optional(3)?;
        if let Some(z) = residual
            && z.shape()[..] != layout.out[..]
        {
            bail!(Shape, "the residual is {}, the product {:?}", z.describe(), layout.out);
        }
        let residual = residual.map(|z| z.as_slice::<f32>()).transpose()?;
        let mut out = io.allocate(DType::F32, &layout.out[..])?;
        let y = out.as_mut_slice::<f32>()?;
        if y.is_empty() {
            return Ok(out);
        }
        let a = a.as_slice::<f32>()?;
        let b = b.map(|b| b.as_slice::<f32>()).transpose()?.unwrap_or(&[]);
        let right = |i: usize| -> Result<Rhs<'_>> {
            Ok(match &self.right {
                Some(packed) => Rhs::from(&packed.matrices[i]),
                None => Rhs::Plain(MatRef::row_major(&b[i * k * n..(i + 1) * k * n], k, n)?),
            })
        };
        let epilogue = |at: usize| Epilogue {
            alpha: self.alpha,
            beta: 0.0,
            bias,
            residual: residual.map(|z| Residual {
                data: &z[at..],
                row_stride: n,
                after_activation: self.residual_after,
            }),
            activation: self.activation,
        };
        if layout.is_flat() {
            let rows = layout.count() * m;
            let (lhs, y) = (MatRef::row_major(a, rows, k)?, MatMut::row_major(y, rows, n)?);
            let threads = io.threads().for_work(rows.saturating_mul(k).saturating_mul(n));
            gemm(lhs, right(0)?, y, &epilogue(0), threads)?;
            return Ok(out);
        }
        let one = |i: usize, y: &mut [f32], threads: &dyn Parallel| -> Result<()> {
            let (l, r) = layout.operands(i);
            let lhs = MatRef::row_major(&a[l * m * k..(l + 1) * m * k], m, k)?;
            let y = MatMut::row_major(y, m, n)?;
            Ok(gemm(lhs, right(r)?, y, &epilogue(i * m * n), threads)?)
        };
        let each = m.saturating_mul(k).saturating_mul(n);
        let all = io.threads().for_work(each.saturating_mul(layout.count()));
        if all.threads() == 1 {
            for (i, y) in y.chunks_exact_mut(m * n).enumerate() {
                one(i, y, &Serial)?;
            }
        } else if layout.count() >= io.threads().count() {
            io.threads().try_split_rows(y, m * n, |first, chunk| {
                for (i, y) in chunk.chunks_exact_mut(m * n).enumerate() {
                    one(first + i, y, &Serial)?;
                }
                Ok(())
            })?;
        } else {
            for (i, y) in y.chunks_exact_mut(m * n).enumerate() {
                one(i, y, io.threads())?;
            }
        }
        Ok(out)
    }
}

impl CpuKernel for MatMul {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let a = io.tensor(0)?;
        let b = io.optional(1)?;
        let y = match a.dtype() {
            DType::F32 => self.run_f32(io, a, b)?,
            dtype @ (DType::F16 | DType::BF16) => {
                let (a, b) = (cast(a, DType::F32)?, b.map(|b| cast(b, DType::F32)).transpose()?);
                cast(&self.run_f32(io, &a, b.as_ref())?, dtype)?
            }
            dtype => {
                let b = io.tensor(1)?;
                let layout = Layout::new(a.shape(), b.shape())?;
                let mut out = io.allocate(dtype, &layout.out[..])?;
                for_dtypes!(dtype, T, {
                    let (a, b) = (a.as_slice::<T>()?, b.as_slice::<T>()?);
                    stacked(&layout, a, b, out.as_mut_slice::<T>()?, io.threads());
                }, bail!(DType, "no product of {dtype} is implemented"),
                    F64 f64, I32 i32, I64 i64, U32 u32, U64 u64);
                out
            }
        };
        io.emit(y);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        input != 1 || self.right.is_none()
    }
}

/// The products of two stacks of matrices, `[count, m, k]` and `[count, k, n]`, of one dtype.
///
/// # Errors
/// If the shapes do not go together, or the dtype has no product.
pub(in crate::ops) fn products(io: &Io<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let dtype = a.dtype();
    if matches!(dtype, DType::F16 | DType::BF16) {
        return cast(&products(io, &cast(a, DType::F32)?, &cast(b, DType::F32)?)?, dtype);
    }
    let layout = Layout::new(a.shape(), b.shape())?;
    let (m, k, n) = (layout.m, layout.k, layout.n);
    let mut out = io.allocate(dtype, &layout.out[..])?;
    if dtype == DType::F32 {
        let (a, b) = (a.as_slice::<f32>()?, b.as_slice::<f32>()?);
        let y = out.as_mut_slice::<f32>()?;
        let threads = io.threads().for_work(m.saturating_mul(k).saturating_mul(n));
        for (i, y) in y.chunks_exact_mut((m * n).max(1)).enumerate() {
            let (l, r) = layout.operands(i);
            let left = MatRef::row_major(&a[l * m * k..(l + 1) * m * k], m, k)?;
            let right = MatRef::row_major(&b[r * k * n..(r + 1) * k * n], k, n)?;
            gemm(left, right, MatMut::row_major(y, m, n)?, &Epilogue::default(), threads)?;
        }
        return Ok(out);
    }
    for_dtypes!(dtype, T, {
        let (a, b) = (a.as_slice::<T>()?, b.as_slice::<T>()?);
        stacked(&layout, a, b, out.as_mut_slice::<T>()?, io.threads());
    }, bail!(DType, "no product of {dtype} is implemented"),
        F64 f64, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64);
    Ok(out)
}

/// Every product of the stacks, in plain loops.
fn stacked<T: plain::Ring>(layout: &Layout, a: &[T], b: &[T], out: &mut [T], threads: &Threads) {
    let (m, k, n) = (layout.m, layout.k, layout.n);
    if out.is_empty() {
        return;
    }
    for (i, out) in out.chunks_exact_mut(m * n).enumerate() {
        let (l, r) = layout.operands(i);
        let a = View::new(&a[l * m * k..], m, k, false);
        let b = View::new(&b[r * k * n..], k, n, false);
        plain::multiply(a, b, out, k, n, threads);
    }
}

fn cases() -> Vec<Case> {
    let mut v = Vec::new();
    for constant in [false, true] {
        let mut add = |name: &str, a: &[usize], b: &[usize], y: &[usize], want: &[f32]| {
            let name = if constant { format!("{name}, B constant") } else { name.to_owned() };
            let c = Case::new("MatMul", 13, name).input(counted(a));
            let c = if constant { c.constant(counted(b)) } else { c.input(counted(b)) };
            v.push(c.output(filled(y, want)));
        };
        let flat = [10.0, 13.0, 28.0, 40.0, 46.0, 67.0, 64.0, 94.0];
        let stacks = [10.0, 13.0, 28.0, 40.0, 172.0, 193.0, 244.0, 274.0];
        let left = [10.0, 13.0, 28.0, 40.0, 28.0, 31.0, 100.0, 112.0];
        let both =
            [left.as_slice(), &[46.0, 67.0, 64.0, 94.0, 172.0, 193.0, 244.0, 274.0]].concat();
        add("stacks", &[2, 2, 3], &[2, 3, 2], &[2, 2, 2], &stacks);
        add("one right matrix", &[2, 2, 3], &[3, 2], &[2, 2, 2], &flat);
        add("one left matrix", &[2, 3], &[2, 3, 2], &[2, 2, 2], &left);
        add("both broadcast", &[2, 1, 2, 3], &[1, 2, 3, 2], &[2, 2, 2, 2], &both);
        add("vector by vector", &[3], &[3], &[], &[5.0]);
        add("vector by matrices", &[3], &[2, 3, 2], &[2, 2], &[10.0, 13.0, 28.0, 31.0]);
        add("matrices by vector", &[2, 2, 3], &[3], &[2, 2], &[5.0, 14.0, 23.0, 32.0]);
        add("an empty sum", &[2, 0], &[0, 2], &[2, 2], &[0.0; 4]);
        add("no rows", &[0, 3], &[3, 2], &[0, 2], &[]);
        add("no matrices", &[0, 2, 3], &[0, 3, 2], &[0, 2, 2], &[]);
    }
    for dtype in [DType::F16, DType::BF16, DType::F64, DType::U32] {
        let to = |t: &Tensor| as_dtype(t, dtype);
        v.push(
            Case::new("MatMul", 13, dtype.name())
                .input(to(&counted(&[2, 3])))
                .input(to(&counted(&[3, 2])))
                .output(to(&filled(&[2, 2], &[10.0_f32, 13.0, 28.0, 40.0]))),
        );
    }
    let big = (1_i64 << 53) + 1;
    v.push(
        Case::new("MatMul", 13, "i64 beyond 2^53")
            .input(filled(&[1, 2], &[big, 1]))
            .input(filled(&[2, 1], &[1_i64, 1]))
            .output(filled(&[1, 1], &[big + 1])),
    );
    v.push(
        Case::new("MatMul", 13, "i32 wraps around")
            .input(filled(&[1, 1], &[i32::MAX]))
            .input(filled(&[1, 1], &[2_i32]))
            .output(filled(&[1, 1], &[-2_i32])),
    );
    v
}

fn fused_cases() -> Vec<Case> {
    let case = |name: &str| {
        Case::new("FusedMatMul", 1, name)
            .domain("brigade")
            .input(counted(&[2, 3]))
            .constant(counted(&[3, 2]))
    };
    vec![
        case("bias and Relu")
            .attr("activation", "Relu")
            .constant(filled(&[2], &[-20.0_f32, 1.0]))
            .output(filled(&[2, 2], &[0.0_f32, 14.0, 8.0, 41.0])),
        case("residual before Clip")
            .attr("activation", "Clip")
            .attr("activation_params", vec![0.0_f32, 30.0])
            .absent()
            .input(filled(&[2, 2], &[-11.0_f32, 1.0, 1.0, 1.0]))
            .output(filled(&[2, 2], &[0.0_f32, 14.0, 29.0, 30.0])),
        case("scale, residual after Relu")
            .attr("activation", "Relu")
            .attr("alpha", -0.5_f32)
            .attr("residual_after_activation", 1)
            .constant(filled(&[2], &[6.0_f32, 1.0]))
            .input(filled(&[2, 2], &[-1.0_f32, -2.0, -3.0, -4.0]))
            .output(filled(&[2, 2], &[0.0_f32, -2.0, -3.0, -4.0])),
        Case::new("FusedMatMul", 1, "residual of a stack")
            .domain("brigade")
            .input(counted(&[2, 2, 3]))
            .input(counted(&[2, 3, 2]))
            .absent()
            .input(counted(&[2, 2, 2]))
            .output(filled(&[2, 2, 2], &[10.0_f32, 14.0, 30.0, 43.0, 176.0, 198.0, 250.0, 281.0])),
    ]
}
