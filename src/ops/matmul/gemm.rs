//! `Gemm` and `brigade.FusedGemm`.

use std::borrow::Cow;

use super::TYPES;
use super::packed::Packed;
use super::plain::{self, Ring, View};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::kernels::{Activation, Bias, Epilogue, MatMut, MatRef, Residual, Rhs, gemm};
use crate::ops::batch::{BatchFlow, BatchQuery};
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::cost::{Cost, CostQuery};
use crate::ops::def::types::F32S;
use crate::ops::epilogue::{self, ACTIVATION, ACTIVATION_PARAMS};
use crate::ops::{
    AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare, Threads,
};
use crate::tensor::{DType, Tensor, cast, element_count, for_dtypes};

const ALPHA: AttributeDef = AttributeDef::optional("alpha", AttributeKind::Float);
const BETA: AttributeDef = AttributeDef::optional("beta", AttributeKind::Float);
const TRANS_A: AttributeDef = AttributeDef::optional("transA", AttributeKind::Int);
const TRANS_B: AttributeDef = AttributeDef::optional("transB", AttributeKind::Int);
/// Once allowed C to be broadcast, which it now always may.
const BROADCAST: AttributeDef = AttributeDef::optional("broadcast", AttributeKind::Int).until(6);

/// `alpha · A' · B' + beta · C` of matrices, each perhaps transposed.
pub(in crate::ops) static GEMM: OpDef = OpDef {
    name: "Gemm",
    domain: "",
    since: 1,
    attributes: &[ALPHA, BETA, TRANS_A, TRANS_B, BROADCAST],
    inputs: &[Port::required("A", TYPES), Port::required("B", TYPES), Port::optional("C", TYPES)],
    outputs: &[Port::required("Y", TYPES)],
    infer,
    batch,
    cost,
    prepare: |p| Ok(Box::new(Gemm::new(p)?)),
    cases,
};

/// `act(alpha · A' · B' + beta · C)`.
pub(in crate::ops) static FUSED_GEMM: OpDef = OpDef {
    name: "FusedGemm",
    domain: "brigade",
    since: 1,
    attributes: &[ALPHA, BETA, TRANS_A, TRANS_B, ACTIVATION, ACTIVATION_PARAMS],
    inputs: &[Port::required("A", F32S), Port::required("B", F32S), Port::optional("C", F32S)],
    outputs: &[Port::required("Y", F32S)],
    infer,
    batch,
    cost,
    prepare: |p| {
        let activation = epilogue::activation(p.node)?;
        Ok(Box::new(Gemm { activation, ..Gemm::new(p)? }))
    },
    cases: fused_cases,
};

fn transposed(node: &Node) -> Result<(bool, bool)> {
    Ok((node.int_or("transA", 0)? != 0, node.int_or("transB", 0)? != 0))
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let (trans_a, trans_b) = transposed(i.node)?;
    let matrix = |input: usize, name: &str| -> Result<_> {
        match i.shape(input) {
            Some(s) if s.len() != 2 => {
                bail!(Shape, "input `{name}` has {} axes, Gemm multiplies matrices", s.len())
            }
            s => Ok(s),
        }
    };
    let shape = match (matrix(0, "A")?, matrix(1, "B")?) {
        (Some(a), Some(b)) => {
            let (m, ka) = (&a[usize::from(trans_a)], &a[usize::from(!trans_a)]);
            let (kb, n) = (&b[usize::from(trans_b)], &b[usize::from(!trans_b)]);
            if let (Some(x), Some(y)) = (ka.as_fixed(), kb.as_fixed())
                && x != y
            {
                bail!(Shape, "A has {x} columns, B {y} rows (after transposition)");
            }
            Some(vec![m.clone(), n.clone()])
        }
        _ => None,
    };
    i.set(0, i.dtype(0).or(i.dtype(1)), shape);
    Ok(())
}

fn batch(q: &BatchQuery<'_>) -> BatchFlow {
    if q.is_free() {
        return q.everywhere(None);
    }
    let axis = |i: usize| q.axes.get(i).copied().flatten();
    let trans_a = transposed(q.node).map_err(|e| e.to_string())?.0;
    if axis(1).is_some() {
        return Err("the right operand carries the batch".to_owned());
    }
    if axis(0) != Some(usize::from(trans_a)) {
        return Err("the batch is not along the rows of the left operand".to_owned());
    }
    if let (Some(c), None) = (q.shapes.get(2).and_then(Option::as_ref), axis(2))
        && c.len() == 2
        && c[0].as_fixed() != Some(1)
    {
        return Err("C has rows of its own".to_owned());
    }
    if axis(2).is_some_and(|a| a != 0 || q.rank(2) != Some(2)) {
        return Err("C carries the batch on another axis than its rows".to_owned());
    }
    if q.node.inputs.get(2).copied().flatten().is_some() && q.rank(2).is_none() {
        return Err("the rank of C is not known".to_owned());
    }
    q.everywhere(Some(0))
}

fn cost(q: &CostQuery<'_>) -> Cost {
    let trans_a = transposed(q.node).is_ok_and(|t| t.0);
    let a = q.inputs.first().and_then(Option::as_ref);
    let k = a.and_then(|(_, s)| s.get(usize::from(!trans_a)).copied()).unwrap_or(1);
    Cost { flops: 2.0 * q.output_elements() * k as f64, bytes: q.bytes() }
}

#[derive(Debug)]
struct Gemm {
    alpha: f32,
    beta: f32,
    trans_a: bool,
    trans_b: bool,
    activation: Activation,
    /// B, where it is constant and f32, f16 or bf16.
    packed: Option<Packed>,
    /// beta · C, where C is constant and B packed.
    addend: Option<Tensor>,
}

impl Gemm {
    fn new(p: &Prepare<'_>) -> Result<Self> {
        let (trans_a, trans_b) = transposed(p.node)?;
        let beta = p.node.float_or("beta", 1.0)?;
        let narrow = |t: &&Tensor| matches!(t.dtype(), DType::F32 | DType::F16 | DType::BF16);
        let packed = match p.constant(1).filter(narrow).filter(|b| b.rank() == 2) {
            Some(b) => {
                let b = cast(b, DType::F32)?;
                let view = MatRef::row_major(b.as_slice()?, b.shape()[0], b.shape()[1])?;
                let view = if trans_b { view.transposed() } else { view };
                Some(Packed::new(view, p.options.precision)?)
            }
            None => None,
        };
        let addend = match p.constant(2).filter(narrow) {
            Some(c) if packed.is_some() => {
                let mut c = cast(c, DType::F32)?;
                if beta != 1.0 {
                    c.as_mut_slice::<f32>()?.iter_mut().for_each(|x| *x *= beta);
                }
                Some(c)
            }
            _ => None,
        };
        Ok(Self {
            alpha: p.node.float_or("alpha", 1.0)?,
            beta,
            trans_a,
            trans_b,
            activation: Activation::None,
            packed,
            addend,
        })
    }

    /// m, k and n for operands of these shapes.
    fn extents(&self, a: &[usize], b: Option<&[usize]>) -> Result<(usize, usize, usize)> {
        let turned = |s: &[usize], trans: bool, name: &str| match s {
            [r, c] => Ok(if trans { (*c, *r) } else { (*r, *c) }),
            _ => bail!(Shape, "input `{name}` has shape {s:?}, Gemm multiplies matrices"),
        };
        let (m, k) = turned(a, self.trans_a, "A")?;
        let (kb, n) = match (b, &self.packed) {
            (_, Some(p)) => (p.depth(), p.cols()),
            (Some(b), None) => turned(b, self.trans_b, "B")?,
            (None, None) => bail!(Missing, "input `B` is missing"),
        };
        if k != kb {
            bail!(Shape, "A has {k} columns, B {kb} rows (after transposition)");
        }
        element_count(&[m, n], 8)?;
        Ok((m, k, n))
    }

    fn run_f32(
        &self,
        io: &Io<'_>,
        a: &Tensor,
        b: Option<&Tensor>,
        c: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (m, k, n) = self.extents(a.shape(), b.map(|b| &b.shape()[..]))?;
        let mut out = io.allocate(DType::F32, [m, n])?;
        let lhs = View::new(a.as_slice()?, m, k, self.trans_a);
        let lhs = MatRef::new(lhs.data, m, k, lhs.row, lhs.col)?;
        let rhs = match (&self.packed, b) {
            (Some(p), _) => Rhs::from(p),
            (None, Some(b)) => {
                let v = View::new(b.as_slice()?, k, n, self.trans_b);
                Rhs::Plain(MatRef::new(v.data, k, n, v.row, v.col)?)
            }
            (None, None) => bail!(Missing, "input `B` is missing"),
        };
        let (c, scaled) = match (&self.addend, c) {
            (Some(c), _) => (Some(c), true),
            (None, c) => (c, self.beta == 1.0),
        };
        let values: Cow<'_, [f32]> = match c {
            Some(_) if self.beta == 0.0 => Cow::Borrowed(&[]),
            Some(c) if scaled => Cow::Borrowed(c.as_slice()?),
            Some(c) => c.as_slice::<f32>()?.iter().map(|x| x * self.beta).collect(),
            None => Cow::Borrowed(&[]),
        };
        let filled;
        let mut epilogue =
            Epilogue { alpha: self.alpha, activation: self.activation, ..Epilogue::default() };
        if let Some(c) = c.filter(|_| self.beta != 0.0) {
            let [rows, cols] = addend_extents(c.shape(), m, n)?;
            if n > 0 && m > 0 {
                match (rows == m, cols == n) {
                    // A matrix first: for m or n of 1 all of them say the same.
                    (true, true) => {
                        let data = &values[..];
                        let row_stride = n;
                        epilogue.residual =
                            Some(Residual { data, row_stride, after_activation: false });
                    }
                    (true, false) => epilogue.bias = Bias::PerRow(&values),
                    (false, true) => epilogue.bias = Bias::PerColumn(&values),
                    (false, false) => {
                        filled = vec![values[0]; n];
                        epilogue.bias = Bias::PerColumn(&filled);
                    }
                }
            }
        }
        let threads = io.threads().for_work(m.saturating_mul(k).saturating_mul(n));
        gemm(lhs, rhs, MatMut::row_major(out.as_mut_slice()?, m, n)?, &epilogue, threads)?;
        Ok(out)
    }

    fn run_plain<T: Ring + Scale>(
        &self,
        a: &Tensor,
        b: &Tensor,
        c: Option<&Tensor>,
        out: &mut Tensor,
        threads: &Threads,
    ) -> Result<()> {
        let (m, k, n) = self.extents(a.shape(), Some(b.shape()))?;
        let y = out.as_mut_slice::<T>()?;
        let a = View::new(a.as_slice::<T>()?, m, k, self.trans_a);
        let b = View::new(b.as_slice::<T>()?, k, n, self.trans_b);
        plain::multiply(a, b, y, k, n, threads);
        if self.alpha != 1.0 {
            y.iter_mut().for_each(|x| *x = x.scale(self.alpha));
        }
        if let Some(c) = c.filter(|_| self.beta != 0.0 && n > 0) {
            let [rows, cols] = addend_extents(c.shape(), m, n)?;
            let c = c.as_slice::<T>()?;
            for (i, line) in y.chunks_exact_mut(n).enumerate() {
                let row = if rows == 1 { 0 } else { i * cols };
                for (j, x) in line.iter_mut().enumerate() {
                    let c = c[row + if cols == 1 { 0 } else { j }];
                    *x = x.plus(if self.beta == 1.0 { c } else { c.scale(self.beta) });
                }
            }
        }
        Ok(())
    }
}

/// Numbers that are scaled by a float attribute.
trait Scale {
    fn scale(self, by: f32) -> Self;
}

impl Scale for f64 {
    fn scale(self, by: f32) -> Self {
        self * Self::from(by)
    }
}

macro_rules! scale_whole {
    ($($t:ty),*) => { $(impl Scale for $t {
        fn scale(self, by: f32) -> Self {
            // A whole factor is exact; any other one truncates.
            if by.fract() == 0.0 && by.abs() < 16_777_216.0 {
                self.wrapping_mul(by as i64 as $t)
            } else {
                (self as f64 * f64::from(by)) as $t
            }
        }
    })* };
}
scale_whole!(i32, i64, u32, u64);

/// The rows and columns of an addend that is to be broadcast to m × n.
fn addend_extents(c: &[usize], m: usize, n: usize) -> Result<[usize; 2]> {
    let extents = match c {
        [] => [1, 1],
        [cols] => [1, *cols],
        [rows, cols] => [*rows, *cols],
        _ => bail!(Shape, "input `C` has shape {c:?}, expected at most 2 axes"),
    };
    if (extents[0] != 1 && extents[0] != m) || (extents[1] != 1 && extents[1] != n) {
        bail!(Shape, "input `C` has shape {c:?}, which does not broadcast to [{m}, {n}]");
    }
    Ok(extents)
}

impl CpuKernel for Gemm {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let a = io.tensor(0)?;
        let (b, c) = (io.optional(1)?, io.optional(2)?);
        let y = match a.dtype() {
            DType::F32 => self.run_f32(io, a, b, c)?,
            dtype @ (DType::F16 | DType::BF16) => {
                let wide = |t: Option<&Tensor>| t.map(|t| cast(t, DType::F32)).transpose();
                let (a, b, c) = (cast(a, DType::F32)?, wide(b)?, wide(c)?);
                cast(&self.run_f32(io, &a, b.as_ref(), c.as_ref())?, dtype)?
            }
            dtype => {
                let b = io.tensor(1)?;
                let (m, _, n) = self.extents(a.shape(), Some(b.shape()))?;
                let mut out = io.allocate(dtype, [m, n])?;
                for_dtypes!(dtype, T, self.run_plain::<T>(a, b, c, &mut out, io.threads())?,
                    bail!(DType, "no product of {dtype} is implemented"),
                    F64 f64, I32 i32, I64 i64, U32 u32, U64 u64);
                out
            }
        };
        io.emit(y);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        match input {
            1 => self.packed.is_none(),
            2 => self.addend.is_none(),
            _ => true,
        }
    }
}

fn cases() -> Vec<Case> {
    let case = |name: &str| Case::new("Gemm", 13, name);
    let want = [10.0_f32, 13.0, 28.0, 40.0];
    let mut v = vec![
        case("no C").input(counted(&[2, 3])).input(counted(&[3, 2])).output(filled(&[2, 2], &want)),
        // [[0,2,4],[1,3,5]] · [[0,3],[1,4],[2,5]] = [[10,28],[13,40]]
        case("both transposed")
            .attr("transA", 1)
            .attr("transB", 1)
            .input(counted(&[3, 2]))
            .input(counted(&[2, 3]))
            .output(filled(&[2, 2], &[10.0_f32, 28.0, 13.0, 40.0])),
        case("alpha, beta and a row, all constant")
            .attr("alpha", 0.5_f32)
            .attr("beta", 2.0_f32)
            .attr("transB", 1)
            .input(counted(&[2, 3]))
            .constant(filled(&[2, 3], &[0.0_f32, 2.0, 4.0, 1.0, 3.0, 5.0]))
            .constant(filled(&[2], &[1.0_f32, -1.0]))
            .output(filled(&[2, 2], &[7.0_f32, 4.5, 16.0, 18.0])),
        case("beta 0 ignores C")
            .attr("beta", 0.0_f32)
            .input(counted(&[2, 3]))
            .input(counted(&[3, 2]))
            .input(filled(&[2], &[f32::NAN, 1.0]))
            .output(filled(&[2, 2], &want)),
        case("an empty sum is C")
            .input(counted(&[2, 0]))
            .input(counted(&[0, 2]))
            .input(filled(&[1, 2], &[3.0_f32, 4.0]))
            .output(filled(&[2, 2], &[3.0_f32, 4.0, 3.0, 4.0])),
        case("no rows")
            .input(counted(&[0, 3]))
            .input(counted(&[3, 2]))
            .input(filled(&[2], &[3.0_f32, 4.0]))
            .output(counted(&[0, 2])),
        case("i64 with a column")
            .attr("beta", 3.0_f32)
            .input(filled(&[2, 1], &[1_i64 << 40, 2]))
            .input(filled(&[1, 2], &[1_i64 << 20, 1]))
            .input(filled(&[2, 1], &[1_i64, -1]))
            .output(filled(&[2, 2], &[(1_i64 << 60) + 3, (1 << 40) + 3, (2 << 20) - 3, -1])),
    ];
    let addends: [(&[usize], &[f32], [f32; 4]); 5] = [
        (&[], &[1.0], [11.0, 14.0, 29.0, 41.0]),
        (&[1], &[1.0], [11.0, 14.0, 29.0, 41.0]),
        (&[1, 2], &[1.0, 2.0], [11.0, 15.0, 29.0, 42.0]),
        (&[2, 1], &[1.0, 2.0], [11.0, 14.0, 30.0, 42.0]),
        (&[2, 2], &[1.0, 2.0, 3.0, 4.0], [11.0, 15.0, 31.0, 44.0]),
    ];
    for (shape, c, want) in addends {
        for dtype in [DType::F32, DType::F16, DType::F64, DType::I32] {
            let to = |t: Tensor| as_dtype(&t, dtype);
            v.push(
                case(&format!("C of shape {shape:?}, {dtype}"))
                    .input(to(counted(&[2, 3])))
                    .input(to(counted(&[3, 2])))
                    .input(to(filled(shape, c)))
                    .output(to(filled(&[2, 2], &want))),
            );
        }
    }
    v
}

fn fused_cases() -> Vec<Case> {
    let case = |name: &str, activation: &str| {
        Case::new("FusedGemm", 1, name)
            .domain("brigade")
            .attr("activation", activation)
            .input(counted(&[2, 3]))
            .constant(counted(&[3, 2]))
    };
    vec![
        case("Relu", "Relu")
            .constant(filled(&[2], &[-20.0_f32, 1.0]))
            .output(filled(&[2, 2], &[0.0_f32, 14.0, 8.0, 41.0])),
        case("HardSigmoid without C", "HardSigmoid")
            .attr("activation_params", vec![0.03125_f32, 0.0])
            .output(filled(&[2, 2], &[0.3125_f32, 0.40625, 0.875, 1.0])),
        case("Tanh of a column", "Tanh")
            .attr("alpha", 0.0_f32)
            .input(filled(&[2, 1], &[0.5_f32, -1.0]))
            .output(filled(&[2, 2], &[0.462_117_16_f32, 0.462_117_16, -0.761_594_2, -0.761_594_2]))
            .close(1e-6, 0.0),
    ]
}
