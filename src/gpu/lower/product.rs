//! `MatMul`, `Gemm` and their fused forms.

use super::Made;
use super::site::{
    MOST_GROUPS, Site, Step, broadcast_strides, joined, shape_of, signed, word, words, wrapped,
};
use crate::error::{Result, bail};
use crate::gpu::families::elementwise::Unary;
use crate::gpu::families::product::{self, Epilogue, Layout};
use crate::graph::ValueId;
use crate::tensor::{Shape, broadcast_shapes};

/// A stack of products of matrices in a form that libraries have, all rows packed:
/// `y = activation(alpha * a * b + bias + residual)`.
///
/// A launch that has one reads `a`, `b`, then the bias and the residual as far as they are there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductCall {
    /// Rows of `a`, columns of `b`, and what is summed over.
    pub extents: [usize; 3],
    /// Whether `a` lies by columns.
    pub a_by_columns: bool,
    /// Whether `b` lies by columns.
    pub b_by_columns: bool,
    /// How many products there are.
    pub count: usize,
    /// Elements from one `a` to the next and from one `b` to the next; 0: the same for all.
    pub steps: [usize; 2],
    /// What the sum is multiplied with.
    pub alpha: f32,
    /// Whether there is a bias: a number for each column.
    pub bias: bool,
    /// Whether there is a residual: of the shape of `y`.
    pub residual: bool,
    /// Whether the activation is `max(x, 0)`; else there is none.
    pub relu: bool,
}

struct Product {
    extents: [usize; 3],
    /// Strides along rows and columns.
    a: [usize; 2],
    b: [usize; 2],
    bias: [usize; 2],
    alpha: f32,
    beta: f32,
    batch: Vec<usize>,
    /// Strides of both operands along the batch.
    steps: [Vec<usize>; 2],
    epilogue: Epilogue,
    reads: Vec<ValueId>,
}

impl Product {
    /// Itself in the form that libraries have, if it fits; `batch` and `steps` are the batch with
    /// adjacent axes joined.
    fn call(&self, batch: &[usize], steps: &[Vec<isize>]) -> Option<ProductCall> {
        let [m, n, k] = self.extents;
        let by_columns = |strides: [usize; 2], [rows, columns]: [usize; 2]| match strides {
            s if s == [columns, 1] => Some(false),
            s if s == [1, rows] => Some(true),
            _ => None,
        };
        let (count, steps) = match (batch, &steps[0][..], &steps[1][..]) {
            ([], _, _) => (1, [0, 0]),
            ([count], [a], [b]) => (*count, [usize::try_from(*a).ok()?, usize::try_from(*b).ok()?]),
            _ => return None,
        };
        let Epilogue { bias, residual, activation } = self.epilogue;
        let relu = match activation {
            Unary::Identity => false,
            Unary::Relu => true,
            _ => return None,
        };
        let fits = (!bias || (self.bias == [0, 1] && self.beta == 1.0))
            && !(relu && residual == Some(true))
            && self.extents.iter().all(|n| *n > 0);
        fits.then_some(ProductCall {
            extents: self.extents,
            a_by_columns: by_columns(self.a, [m, k])?,
            b_by_columns: by_columns(self.b, [k, n])?,
            count,
            steps,
            alpha: self.alpha,
            bias,
            residual: residual.is_some(),
            relu,
        })
    }
}

impl Site<'_> {
    /// The activation that a fused node names.
    fn activation(&self) -> Result<Unary> {
        use crate::ops::Activation as A;
        Ok(match crate::ops::epilogue::activation(self.node)? {
            A::None => Unary::Identity,
            A::Relu => Unary::Relu,
            A::Clip { lo, hi } => Unary::Clip(lo, hi),
            A::HardSwish => Unary::HardSwish,
            A::HardSigmoid { alpha, beta } => Unary::HardSigmoid(alpha, beta),
            A::Sigmoid => Unary::Sigmoid,
            A::Silu => Unary::Swish(1.0),
            A::Gelu => Unary::Gelu,
            A::Tanh => Unary::Tanh,
        })
    }

    pub(super) fn epilogue(&self, bias: bool, residual: Option<usize>) -> Result<Epilogue> {
        let after = crate::ops::epilogue::residual_after(self.node)?;
        let residual = residual.and_then(|i| self.optional(i));
        if let Some(v) = residual
            && shape_of(self.graph, v)? != self.out_shape()?
        {
            bail!(Shape, "the residual does not have the shape of the output");
        }
        Ok(Epilogue { bias, residual: residual.map(|_| after), activation: self.activation()? })
    }

    fn product(&self, p: Product) -> Result<Made> {
        let [m, n, k] = p.extents;
        let count: usize = p.batch.iter().product();
        let (batch, steps) = joined(&p.batch, &p.steps.each_ref().map(|s| signed(s)));
        if count > MOST_GROUPS as usize {
            bail!(Unsupported, "{count} products at once, at most {MOST_GROUPS}");
        }
        let mut all = vec![word(m), word(n), word(k), word(batch.len())];
        all.extend(words::<4>(&[p.a[0], p.a[1], p.b[0], p.b[1]])?);
        all.extend([word(p.bias[0]), word(p.bias[1]), p.alpha.to_bits(), p.beta.to_bits()]);
        all.extend(words::<4>(&batch)?);
        all.extend(wrapped::<4>(&steps[0])?);
        all.extend(wrapped::<4>(&steps[1])?);
        let layout = Layout::of(self.options.tiling, [m, n]);
        let groups = groups(layout, [m, n], count);
        let kernel = product::product(p.epilogue, layout);
        let call = p.call(&batch, &steps);
        let step = self.step(kernel, p.reads, all, groups)?;
        Ok(Made::Steps(vec![Step { product: call, ..step }]))
    }
}

/// Groups of threads for so many products of so many rows and columns.
fn groups(layout: Layout, [m, n]: [usize; 2], count: usize) -> [u32; 3] {
    let [rows, columns] = layout.span();
    [word(n.div_ceil(columns)), word(m.div_ceil(rows)), word(count)]
}

/// Two stacks of matrices that are broadcast.
struct Stacks {
    /// Rows on the left, columns on the right, and what is summed over.
    extents: [usize; 3],
    batch: Vec<usize>,
    /// Strides of both along the batch.
    steps: [Vec<usize>; 2],
}

impl Stacks {
    /// The first two inputs.
    fn of(site: &Site<'_>) -> Result<Self> {
        let (a, b) = (site.shape(0)?, site.shape(1)?);
        let (m, k) = match &a[..] {
            [k] => (1, *k),
            [.., m, k] => (*m, *k),
            [] => bail!(Shape, "a scalar has no product"),
        };
        let (kb, n) = match &b[..] {
            [k] => (*k, 1),
            [.., k, n] => (*k, *n),
            [] => bail!(Shape, "a scalar has no product"),
        };
        if k != kb {
            bail!(Shape, "the left operand is {a}, the right one {b}");
        }
        let lead = |s: &Shape| s[..s.rank().saturating_sub(2)].to_vec();
        let (a_lead, b_lead) = (lead(&a), lead(&b));
        let batch = broadcast_shapes(&[&a_lead, &b_lead])?;
        let scaled = |lead: &[usize], size: usize| -> Vec<usize> {
            broadcast_strides(lead, &batch).iter().map(|s| s * size).collect()
        };
        let steps = [scaled(&a_lead, m * k), scaled(&b_lead, k * n)];
        Ok(Self { extents: [m, n, k], batch: batch.to_vec(), steps })
    }
}

/// `MatMulInteger`.
pub(super) fn matmul_integer(site: &Site<'_>) -> Result<Made> {
    let Stacks { extents: [m, n, k], batch, steps } = Stacks::of(site)?;
    let count: usize = batch.iter().product();
    if count > MOST_GROUPS as usize {
        bail!(Unsupported, "{count} products at once, at most {MOST_GROUPS}");
    }
    // The stride of zero points: one for all, or one for each line of the only matrix.
    let stride = |input: usize, lines: usize, shared: bool| -> Result<u32> {
        let Some(v) = site.optional(input) else { return Ok(0) };
        match shape_of(site.graph, v)?.elements() {
            1 => Ok(0),
            points if points == lines && shared => Ok(1),
            points => {
                let name = &site.graph.value(v).name;
                bail!(
                    Unsupported,
                    "`{name}` has {points} zero points for {lines} lines of a matrix"
                )
            }
        }
    };
    let strides = [stride(2, m, site.shape(0)?.rank() <= 2)?, stride(3, n, true)?];
    let (batch, steps) = joined(&batch, &steps.each_ref().map(|s| signed(s)));
    let mut words = vec![word(m), word(n), word(k), word(batch.len())];
    words.extend([word(k), 1, word(n), 1, strides[0], strides[1], 0, 0]);
    words.extend(self::words::<4>(&batch)?);
    words.extend(wrapped::<4>(&steps[0])?);
    words.extend(wrapped::<4>(&steps[1])?);
    let reads = (0..4).filter_map(|i| site.optional(i)).collect();
    let zeros = [site.optional(2).is_some(), site.optional(3).is_some()];
    let types = [site.scalar(0)?, site.scalar(1)?];
    let layout = Layout::of(site.options.tiling, [m, n]);
    let kernel = product::whole_product(types, zeros, layout);
    Ok(Made::Steps(vec![site.step(kernel, reads, words, groups(layout, [m, n], count))?]))
}

pub(super) fn matmul(site: &Site<'_>) -> Result<Made> {
    let Stacks { extents: [m, n, k], batch, steps } = Stacks::of(site)?;
    let fused = site.node.op == "FusedMatMul" && site.node.domain == "brigade";
    let bias = if fused { site.optional(2) } else { None };
    if let Some(v) = bias
        && shape_of(site.graph, v)?.elements() != n
    {
        bail!(Shape, "the bias is not one number a column");
    }
    let residual = if fused { site.optional(3) } else { None };
    let epilogue = if fused { site.epilogue(bias.is_some(), Some(3))? } else { Epilogue::NONE };
    let reads = [Some(site.input(0)?), Some(site.input(1)?), bias, residual];
    let alpha = if fused { site.node.float_or("alpha", 1.0)? } else { 1.0 };
    site.product(Product {
        extents: [m, n, k],
        a: [k, 1],
        b: [n, 1],
        bias: [0, 1],
        alpha,
        beta: 1.0,
        steps,
        batch,
        epilogue,
        reads: reads.into_iter().flatten().collect(),
    })
}

pub(super) fn gemm(site: &Site<'_>) -> Result<Made> {
    let (a, b) = (site.shape(0)?, site.shape(1)?);
    let turned = |name: &str| site.node.int_or(name, 0).map(|v| v != 0);
    let (trans_a, trans_b) = (turned("transA")?, turned("transB")?);
    let (&[ra, ca], &[rb, cb]) = (&a[..], &b[..]) else {
        bail!(Shape, "operands {a} and {b} are not matrices");
    };
    let (m, k, a) = if trans_a { (ca, ra, [1, ca]) } else { (ra, ca, [ca, 1]) };
    let (kb, n, b) = if trans_b { (cb, rb, [1, cb]) } else { (rb, cb, [cb, 1]) };
    if k != kb {
        bail!(Shape, "A has {k} columns, B {kb} rows (after transposition)");
    }
    let beta = site.node.float_or("beta", 1.0)?;
    // C times 0 is nothing, whatever C holds.
    let c = site.optional(2).filter(|_| beta != 0.0);
    let bias = match c {
        Some(v) => {
            let c = shape_of(site.graph, v)?;
            if c.rank() > 2 || broadcast_shapes(&[&c, &[m, n]])?[..] != [m, n] {
                bail!(Shape, "C is {c}, which is not broadcast to [{m},{n}]");
            }
            let s = broadcast_strides(&c, &[m, n]);
            [s[0], s[1]]
        }
        None => [0, 0],
    };
    let activation = if site.node.op == "FusedGemm" { site.activation()? } else { Unary::Identity };
    let epilogue = Epilogue { bias: c.is_some(), residual: None, activation };
    let reads = [Some(site.input(0)?), Some(site.input(1)?), c].into_iter().flatten().collect();
    site.product(Product {
        extents: [m, n, k],
        a,
        b,
        bias,
        alpha: site.node.float_or("alpha", 1.0)?,
        beta,
        batch: Vec::new(),
        steps: [Vec::new(), Vec::new()],
        epilogue,
        reads,
    })
}
