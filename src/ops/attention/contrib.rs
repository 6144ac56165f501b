//! `MultiHeadAttention` and `Attention` of ONNX Runtime.

use super::core::{Bias, Rule, after, attend, count, join_heads, split_heads};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::kernels::{Epilogue, MatMut, MatRef, gemm};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::elementwise::Broadcast;
use crate::ops::matmul::{Packed, products};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

const MASKS: &[DType] = &[DType::I32];

/// Attention of projected queries, keys and values, with their heads side by side.
pub(in crate::ops) static MULTI_HEAD_ATTENTION: OpDef = OpDef {
    name: "MultiHeadAttention",
    domain: "com.microsoft",
    since: 1,
    attributes: &[
        AttributeDef::optional("mask_filter_value", AttributeKind::Float),
        AttributeDef::required("num_heads", AttributeKind::Int),
        AttributeDef::optional("scale", AttributeKind::Float),
        AttributeDef::optional("unidirectional", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("query", FLOATS),
        Port::optional("key", FLOATS),
        Port::optional("value", FLOATS),
        Port::optional("bias", FLOATS),
        Port::optional("key_padding_mask", MASKS),
        Port::optional("attention_bias", FLOATS),
        Port::optional("past_key", FLOATS),
        Port::optional("past_value", FLOATS),
    ],
    outputs: &[
        Port::required("output", FLOATS),
        Port::optional("present_key", FLOATS),
        Port::optional("present_value", FLOATS),
    ],
    infer: |i| {
        let dtype = i.dtype(0);
        for k in 0..3 {
            i.set(k, dtype, None);
        }
        if let (Some(q), Some(v)) = (i.shape(0), i.shape(2))
            && q.len() == 3
            && v.len() == 3
        {
            i.set(0, dtype, Some(vec![q[0].clone(), q[1].clone(), v[2].clone()]));
        }
        Ok(())
    },
    batch: batch::mixes,
    cost: |q| cost::Cost { flops: 8.0 * q.output_elements(), bytes: q.bytes() },
    prepare: |p| Ok(Box::new(MultiHead { common: Common::of(p.node)? })),
    cases: multi_head_cases,
};

/// Attention whose queries, keys and values are one projection of the input.
pub(in crate::ops) static MS_ATTENTION: OpDef = OpDef {
    name: "Attention",
    domain: "com.microsoft",
    since: 1,
    attributes: &[
        AttributeDef::optional("do_rotary", AttributeKind::Int),
        AttributeDef::optional("mask_filter_value", AttributeKind::Float),
        AttributeDef::required("num_heads", AttributeKind::Int),
        AttributeDef::optional("past_present_share_buffer", AttributeKind::Int),
        AttributeDef::optional("qkv_hidden_sizes", AttributeKind::Ints),
        AttributeDef::optional("rotary_embedding_dim", AttributeKind::Int),
        AttributeDef::optional("scale", AttributeKind::Float),
        AttributeDef::optional("unidirectional", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("input", FLOATS),
        Port::required("weights", FLOATS),
        Port::optional("bias", FLOATS),
        Port::optional("mask_index", MASKS),
        Port::optional("past", FLOATS),
        Port::optional("attention_bias", FLOATS),
    ],
    outputs: &[Port::required("output", FLOATS), Port::optional("present", FLOATS)],
    infer: |i| {
        let sizes = i.node.ints("qkv_hidden_sizes")?.map(<[i64]>::to_vec);
        let width = match sizes.as_deref() {
            Some(&[.., v]) => Some(Dim::fixed(v)),
            _ => i.shape(1).and_then(|w| w.get(1).map(|w| w.floor_div(&Dim::fixed(3)))),
        };
        let shape = match (i.shape(0), width) {
            (Some(x), Some(width)) if x.len() == 3 => Some(vec![x[0].clone(), x[1].clone(), width]),
            _ => None,
        };
        i.set(0, i.dtype(0), shape);
        i.set(1, i.dtype(0), None);
        Ok(())
    },
    batch: batch::mixes,
    cost: |q| cost::Cost { flops: 8.0 * q.output_elements(), bytes: q.bytes() },
    prepare: |p| {
        for name in ["do_rotary", "past_present_share_buffer"] {
            if p.node.int_or(name, 0)? != 0 {
                bail!(Unsupported, "attribute `{name}` is 1");
            }
        }
        let sizes = p.node.ints("qkv_hidden_sizes")?.map(<[i64]>::to_vec);
        let weights = p.constant(1).filter(|w| w.dtype() == DType::F32 && w.rank() == 2);
        let weights = weights.map(|w| {
            let matrix = MatRef::row_major(w.as_slice()?, w.shape()[0], w.shape()[1])?;
            Packed::new(matrix, p.options.precision)
        });
        let weights = weights.transpose()?;
        Ok(Box::new(Projected { common: Common::of(p.node)?, sizes, weights }))
    },
    cases: projected_cases,
};

#[derive(Debug)]
struct Common {
    heads: usize,
    causal: bool,
    scale: Option<f64>,
    /// What is added to the scores of keys that are hidden.
    hidden: f64,
}

impl Common {
    fn of(node: &Node) -> Result<Self> {
        Ok(Self {
            heads: count(node.required_int("num_heads")?, "num_heads")?,
            causal: node.int_or("unidirectional", 0)? != 0,
            scale: node.float("scale")?.filter(|s| *s != 0.0).map(f64::from),
            hidden: node.float_or("mask_filter_value", -10_000.0)?.into(),
        })
    }

    fn rule(&self, depth: usize) -> Rule {
        let scale = self.scale.unwrap_or(1.0 / (depth as f64).sqrt());
        Rule { scale, cap: 0.0, scores: None }
    }

    /// The masks as numbers to add to `[batch, heads, queries, keys]` scores.
    fn bias(
        &self,
        mask: Option<&Tensor>,
        added: Option<&Tensor>,
        [b, h, s, t]: [usize; 4],
    ) -> Result<Option<Bias>> {
        if mask.is_none() && added.is_none() && !self.causal {
            return Ok(None);
        }
        let (mut heads, mut plane) = (1, Vec::new());
        if let Some(added) = added {
            let &[ab, ah, q, k] = &added.shape()[..] else {
                bail!(Shape, "`attention_bias` is {}, expected 4 axes", added.describe());
            };
            if (ab != 1 && ab != b) || (ah != 1 && ah != h) || (q, k) != (s, t) {
                bail!(Shape, "`attention_bias` is {}, for [{b},{h},{s},{t}]", added.describe());
            }
            heads = ah;
            let wide = cast(added, DType::F64)?;
            let wide = wide.as_slice::<f64>()?;
            plane =
                (0..b).flat_map(|i| &wide[i % ab * ah * s * t..][..ah * s * t]).copied().collect();
        }
        let mut values = if plane.is_empty() { vec![0.0; b * heads * s * t] } else { plane };
        let given = mask.map(Tensor::to_i64s).transpose()?.unwrap_or_default();
        // Whether a mask hides a key from a query.
        let shape = mask.map(|m| m.shape().to_vec()).unwrap_or_default();
        let seen = |i: usize, q: usize, k: usize| -> bool {
            match shape[..] {
                [] => true,
                [n] if n == b => (k as i64) < given[i],
                // Where it ends, then where it begins.
                [_] => (k as i64) < given[i] && k as i64 >= given[b + i],
                [_, _] => given[i * t + k] != 0,
                _ => given[(i * s + q) * t + k] != 0,
            }
        };
        let fits = match shape[..] {
            [] => true,
            [n] => n == b || n == 2 * b,
            [n, k] => (n, k) == (b, t),
            [n, q, k] => (n, q, k) == (b, s, t),
            _ => false,
        };
        if !fits {
            bail!(Unsupported, "a mask of shape {shape:?} for [{b},{h},{s},{t}] scores");
        }
        for (at, v) in values.iter_mut().enumerate() {
            let (k, q, i) = (at % t, at / t % s, at / (t * s * heads));
            if !seen(i, q, k) {
                *v += self.hidden;
            }
            if self.causal && k + s > q + t {
                *v = f64::NEG_INFINITY;
            }
        }
        Ok(Some(Bias { values, batch: b, heads }))
    }
}

#[derive(Debug)]
struct MultiHead {
    common: Common,
}

/// Columns `from..from + count` of the last axis plus a part of a bias.
fn biased(io: &Io<'_>, x: &Tensor, bias: Option<&Tensor>, from: usize) -> Result<Tensor> {
    let Some(bias) = bias else { return Ok(x.clone()) };
    let width = x.shape().last().copied().unwrap_or(0);
    if bias.rank() != 1 || bias.len() < from + width {
        bail!(Shape, "the bias is {}, for columns {from}..+{width}", bias.describe());
    }
    added(io, x, &bias.narrow(0, from, width)?)
}

fn added(io: &Io<'_>, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let dtype = x.dtype();
    let (x, y) = (cast(x, DType::F64)?, cast(y, DType::F64)?);
    let plan = Broadcast::new([x.shape(), y.shape()])?;
    let mut out = io.allocate(DType::F64, plan.shape.clone())?;
    let (a, b) = (x.as_slice::<f64>()?, y.as_slice::<f64>()?);
    plan.zip(io.threads(), a, b, out.as_mut_slice::<f64>()?, |a, b| a + b);
    cast(&out, dtype)
}

impl CpuKernel for MultiHead {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let h = self.common.heads;
        let bias = io.optional(3)?;
        let query = io.tensor(0)?;
        // Heads side by side: [batch, rows, heads · depth] each.
        let (q, k, v) = match (query.rank(), io.optional(1)?, io.optional(2)?) {
            (3, Some(k), Some(v)) => (query.clone(), k.clone(), v.clone()),
            (5, None, None) => {
                let &[b, s, heads, 3, d] = &query.shape()[..] else {
                    bail!(Shape, "packed queries are {}", query.describe());
                };
                let part = |k: usize| -> Result<Tensor> {
                    let flat = query.reshape([b * s * heads, 3 * d])?;
                    flat.narrow(1, k * d, d)?.reshape([b, s, heads * d])
                };
                (part(0)?, part(1)?, part(2)?)
            }
            (3, Some(kv), None) if kv.rank() == 5 => {
                let &[b, t, heads, 2, d] = &kv.shape()[..] else {
                    bail!(Shape, "packed keys are {}", kv.describe());
                };
                let part = |k: usize| -> Result<Tensor> {
                    let flat = kv.reshape([b * t * heads, 2 * d])?;
                    flat.narrow(1, k * d, d)?.reshape([b, t, heads * d])
                };
                (query.clone(), part(0)?, part(1)?)
            }
            _ => bail!(Unsupported, "queries {} with these keys and values", query.describe()),
        };
        let (qw, kw) = (q.shape()[2], if k.rank() == 3 { k.shape()[2] } else { 0 });
        let q = split_heads(io, &biased(io, &q, bias, 0)?, h)?;
        // Keys of another sequence may come in heads already.
        let heads = |x: &Tensor, from: usize| match x.rank() {
            4 => Ok(x.clone()),
            _ => split_heads(io, &biased(io, x, bias, from)?, h),
        };
        let (k, v) = (heads(&k, qw)?, heads(&v, qw + kw)?);
        let (k, v) = (after(io, io.optional(6)?, &k)?, after(io, io.optional(7)?, &v)?);
        let (&[b, _, s, d], &[_, _, t, _]) = (&q.shape()[..], &k.shape()[..]) else {
            bail!(Shape, "queries {} and keys {}", q.describe(), k.describe());
        };
        let bias = self.common.bias(io.optional(4)?, io.optional(5)?, [b, h, s, t])?;
        let (y, _) = attend(io, [&q, &k, &v], bias.as_ref(), self.common.rule(d))?;
        io.emit(join_heads(io, &y)?);
        if io.output_count() > 1 {
            io.emit(k);
            io.emit(v);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Projected {
    common: Common,
    sizes: Option<Vec<i64>>,
    /// Where they are constant.
    weights: Option<Packed>,
}

impl Projected {
    /// The input's rows times the weights.
    fn projected(&self, io: &Io<'_>, x: &Tensor, rows: usize, depth: usize) -> Result<Tensor> {
        let Some(weights) = &self.weights else {
            let w = io.tensor(1)?;
            let &[own, width] = &w.shape()[..] else {
                bail!(Shape, "the input is {}, the weights {}", x.describe(), w.describe());
            };
            let flat = x.reshape([1, rows, depth])?;
            return products(io, &flat, &w.reshape([1, own, width])?)?.reshape([rows, width]);
        };
        let width = weights.cols();
        if weights.depth() != depth {
            let own = weights.depth();
            bail!(Shape, "the input is {}, the weights f32[{own},{width}]", x.describe());
        }
        let mut out = io.allocate(DType::F32, [rows, width])?;
        let threads = io.threads().for_work(rows.saturating_mul(depth).saturating_mul(width));
        let left = MatRef::row_major(x.as_slice()?, rows, depth)?;
        let y = MatMut::row_major(out.as_mut_slice()?, rows, width)?;
        gemm(left, weights, y, &Epilogue::default(), threads)?;
        Ok(out)
    }
}

impl CpuKernel for Projected {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let &[b, s, depth] = &x.shape()[..] else {
            bail!(Shape, "the input is {}, expected [batch,rows,depth]", x.describe());
        };
        let mut all = self.projected(io, x, b * s, depth)?;
        let width = all.shape()[1];
        let third = width / 3;
        let sizes: Vec<usize> = match &self.sizes {
            None => vec![third; 3],
            Some(sizes) => sizes.iter().filter_map(|n| usize::try_from(*n).ok()).collect(),
        };
        if sizes.len() != 3 || sizes.iter().sum::<usize>() != width {
            bail!(Shape, "the weights have {width} columns, for {sizes:?} of the three parts");
        }
        if let Some(bias) = io.optional(2)? {
            all = added(io, &all, bias)?;
        }
        let h = self.common.heads;
        let part = |from: usize, n: usize| -> Result<Tensor> {
            split_heads(io, &all.narrow(1, from, n)?.reshape([b, s, n])?, h)
        };
        let q = part(0, sizes[0])?;
        let (mut k, mut v) = (part(sizes[0], sizes[1])?, part(sizes[0] + sizes[1], sizes[2])?);
        if let Some(past) = io.optional(4)? {
            let &[2, pb, ph, p, d] = &past.shape()[..] else {
                bail!(Shape, "`past` is {}, expected [2,batch,heads,rows,depth]", past.describe());
            };
            let half = |k: usize| past.narrow(0, k, 1)?.reshape([pb, ph, p, d]);
            k = after(io, Some(&half(0)?), &k)?;
            v = after(io, Some(&half(1)?), &v)?;
        }
        let (d, t) = (q.shape()[3], k.shape()[2]);
        let bias = self.common.bias(io.optional(3)?, io.optional(5)?, [b, h, s, t])?;
        let (y, _) = attend(io, [&q, &k, &v], bias.as_ref(), self.common.rule(d))?;
        io.emit(join_heads(io, &y)?);
        if io.output_count() > 1 {
            let mut shape = vec![1];
            shape.extend_from_slice(k.shape());
            let present = crate::ops::concat::concat(
                io,
                &[&k.reshape(shape.clone())?, &v.reshape(shape)?],
                0,
            )?;
            io.emit(present);
        }
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        input != 1 || self.weights.is_none()
    }
}

fn multi_head_cases() -> Vec<Case> {
    let new = |name: &str| {
        Case::new("MultiHeadAttention", 1, name)
            .domain("com.microsoft")
            .attr("num_heads", 1)
            .attr("scale", 1.0_f32)
            .input(filled(&[1, 2, 2], &[1.0_f32, 0.0, 0.0, 2.0]))
            .input(filled(&[1, 2, 2], &[1.0_f32, 1.0, -1.0, 2.0]))
            .input(filled(&[1, 2, 1], &[10.0_f32, 20.0]))
            .close(1e-5, 1e-5)
    };
    vec![
        new("everything is seen").output(filled(&[1, 2, 1], &[11.192_029_f32, 18.807_97])),
        new("only what came before")
            .attr("unidirectional", 1)
            .output(filled(&[1, 2, 1], &[10.0_f32, 18.807_97])),
        new("a padded key and a bias")
            .input(filled(&[5], &[0.0_f32, 0.0, 0.0, 0.0, 1.0]))
            .input(filled(&[1, 2], &[1_i32, 0]))
            .output(filled(&[1, 2, 1], &[11.0_f32, 11.0])),
        new("what is added to the scores")
            .absent()
            .absent()
            .input(filled(&[1, 1, 2, 2], &[0.0_f32, 2.0, 2.0, 0.0]))
            .output(filled(&[1, 2, 1], &[15.0_f32, 15.0])),
    ]
}

fn projected_cases() -> Vec<Case> {
    // Queries, keys and values are the first column, the second, and their sum plus 1.
    let new = |name: &str| {
        Case::new("Attention", 1, name)
            .domain("com.microsoft")
            .attr("num_heads", 1)
            .input(filled(&[1, 2, 2], &[1.0_f32, 2.0, 0.0, 1.0]))
            .constant(filled(&[2, 3], &[1.0_f32, 0.0, 1.0, 0.0, 1.0, 1.0]))
            .constant(filled(&[3], &[0.0_f32, 0.0, 1.0]))
            .close(1e-5, 1e-5)
    };
    vec![
        new("everything is seen").output(filled(&[1, 2, 1], &[3.462_117_2_f32, 3.0])),
        new("the first key alone, and what is kept")
            .input(filled(&[1], &[1_i32]))
            .output(filled(&[1, 2, 1], &[4.0_f32, 4.0]))
            .output(filled(&[2, 1, 1, 2, 1], &[2.0_f32, 1.0, 4.0, 2.0])),
    ]
}
