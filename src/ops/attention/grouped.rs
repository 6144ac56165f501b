//! `GroupQueryAttention`.

use super::core::{Bias, Rule, attend, count, join_heads, split_heads};
use super::rotary::Angles;
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

const WHOLE: &[DType] = &[DType::I32, DType::I64];
const ALONE: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// Causal attention where several heads share keys, with what was kept from before and perhaps
/// turned by the position.
pub(in crate::ops) static GROUP_QUERY_ATTENTION: OpDef = OpDef {
    name: "GroupQueryAttention",
    domain: "com.microsoft",
    since: 1,
    attributes: &[
        AttributeDef::optional("do_rotary", AttributeKind::Int),
        AttributeDef::required("kv_num_heads", AttributeKind::Int),
        AttributeDef::optional("local_window_size", AttributeKind::Int),
        AttributeDef::required("num_heads", AttributeKind::Int),
        AttributeDef::optional("rotary_interleaved", AttributeKind::Int),
        AttributeDef::optional("scale", AttributeKind::Float),
        AttributeDef::optional("smooth_softmax", AttributeKind::Int),
        AttributeDef::optional("softcap", AttributeKind::Float),
    ],
    inputs: &[
        Port::required("query", ALONE),
        Port::optional("key", ALONE),
        Port::optional("value", ALONE),
        Port::optional("past_key", ALONE),
        Port::optional("past_value", ALONE),
        Port::required("seqlens_k", WHOLE),
        Port::required("total_sequence_length", WHOLE),
        Port::optional("cos_cache", FLOATS),
        Port::optional("sin_cache", FLOATS),
        Port::optional("position_ids", WHOLE),
        Port::optional("attention_bias", FLOATS),
    ],
    outputs: &[
        Port::required("output", ALONE),
        Port::optional("present_key", ALONE),
        Port::optional("present_value", ALONE),
    ],
    infer: |i| {
        let dtype = i.dtype(0);
        for k in 0..3 {
            i.set(k, dtype, None);
        }
        let shape = i.shape(0).filter(|q| q.len() == 3);
        if let Some(mut shape) = shape {
            if !i.has(1) {
                let (h, g) =
                    (i.node.required_int("num_heads")?, i.node.required_int("kv_num_heads")?);
                let head = shape[2].floor_div(&Dim::fixed((h + 2 * g).max(1)));
                shape[2] = head * Dim::fixed(h);
            }
            i.set(0, dtype, Some(shape));
        }
        Ok(())
    },
    batch: batch::mixes,
    cost: |q| cost::Cost { flops: 8.0 * q.output_elements(), bytes: q.bytes() },
    prepare: |p| Ok(Box::new(Grouped::of(p.node)?)),
    cases,
};

#[derive(Debug)]
struct Grouped {
    heads: usize,
    groups: usize,
    rotary: bool,
    interleaved: bool,
    /// How many keys back a query sees; `None`: all.
    window: Option<usize>,
    scale: Option<f64>,
    cap: f64,
}

impl Grouped {
    fn of(node: &Node) -> Result<Self> {
        if node.int_or("smooth_softmax", 0)? > 0 {
            bail!(Unsupported, "attribute `smooth_softmax` is 1");
        }
        Ok(Self {
            heads: count(node.required_int("num_heads")?, "num_heads")?,
            groups: count(node.required_int("kv_num_heads")?, "kv_num_heads")?,
            rotary: node.int_or("do_rotary", 0)? != 0,
            interleaved: node.int_or("rotary_interleaved", 0)? != 0,
            window: usize::try_from(node.int_or("local_window_size", -1)?).ok(),
            scale: node.float("scale")?.filter(|s| *s != 0.0).map(f64::from),
            cap: node.float_or("softcap", 0.0)?.into(),
        })
    }
}

impl CpuKernel for Grouped {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (h, g) = (self.heads, self.groups);
        let query = io.tensor(0)?;
        let dtype = query.dtype();
        let &[b, s, width] = &query.shape()[..] else {
            bail!(Shape, "the queries are {}, expected 3 axes", query.describe());
        };
        let (q, k, v) = match (io.optional(1)?, io.optional(2)?) {
            (Some(k), Some(v)) => (query.clone(), k.clone(), v.clone()),
            (None, None) if width % (h + 2 * g) == 0 => {
                let d = width / (h + 2 * g);
                let part = |from: usize, n: usize| query.narrow(2, from * d, n * d);
                (part(0, h)?, part(h, g)?, part(h + g, g)?)
            }
            _ => bail!(Shape, "{} cannot be cut into {h} + 2·{g} heads", query.describe()),
        };
        let heads = |x: &Tensor, n: usize| split_heads(io, &cast(x, DType::F32)?, n);
        let (mut q, mut k, v) = (heads(&q, h)?, heads(&k, g)?, heads(&v, g)?);
        let d = q.shape()[3];
        if *k.shape() != [b, g, s, d] || *v.shape() != [b, g, s, d] {
            bail!(Shape, "keys are {}, values {}, for depth {d}", k.describe(), v.describe());
        }
        let total = match io.tensor(6)?.to_i64s()?[..] {
            [n] => usize::try_from(n).unwrap_or(0),
            _ => bail!(Shape, "`total_sequence_length` is {:?}", io.tensor(6)?),
        };
        let ends = io.tensor(5)?.to_i64s()?;
        // The rows that count, and those that came before, of each item.
        let ends: Option<Vec<usize>> =
            ends.iter().map(|n| usize::try_from(n.checked_add(1)?).ok()).collect();
        let Some(ends) = ends.filter(|e| e.len() == b) else {
            bail!(Shape, "`seqlens_k` is {:?}, for {b} items", io.tensor(5)?);
        };
        let kept = |k: usize| -> Result<Option<Tensor>> {
            let past = io.optional(k)?.map(|t| cast(t, DType::F32)).transpose()?;
            match past {
                Some(p)
                    if p.rank() == 4 && (p.shape()[0], p.shape()[1], p.shape()[3]) == (b, g, d) =>
                {
                    Ok(Some(p))
                }
                Some(p) => bail!(Shape, "what was kept is {}, for [{b},{g},…,{d}]", p.describe()),
                None => Ok(None),
            }
        };
        let (past_k, past_v) = (kept(3)?, kept(4)?);
        let room = past_k.as_ref().map_or(0, |p| p.shape()[2]);
        let first = s == total;
        let before: Vec<usize> =
            ends.iter().map(|e| if first { 0 } else { e.saturating_sub(s) }).collect();
        let t = room.max(total).max(before.iter().max().copied().unwrap_or(0) + s);
        if before.iter().any(|p| *p > room) {
            bail!(Shape, "{before:?} rows came before, only {room} were kept");
        }
        if self.rotary {
            let (Some(cos), Some(sin)) = (io.optional(7)?, io.optional(8)?) else {
                bail!(Missing, "the caches of angles are missing");
            };
            let half = cos.shape().last().copied().unwrap_or(0);
            let (cos, sin) = (cast(cos, DType::F32)?, cast(sin, DType::F32)?);
            let (cos, sin) = (cos.as_slice()?, sin.as_slice()?);
            let angles = Angles { cos, sin, half, interleaved: self.interleaved };
            let ids = io.optional(9)?.map(Tensor::to_i64s).transpose()?;
            if let Some(ids) = ids.as_ref().filter(|p| p.len() != b * s) {
                bail!(Shape, "{} positions are given for {b} times {s} rows", ids.len());
            }
            for x in [&mut q, &mut k] {
                let heads = x.shape()[1];
                for (row, head) in x.as_mut_slice::<f32>()?.chunks_mut(d.max(1)).enumerate() {
                    let (item, place) = (row / (heads * s), row % s);
                    let position = match &ids {
                        Some(ids) => usize::try_from(ids[item * s + place]).unwrap_or(usize::MAX),
                        None => before[item] + place,
                    };
                    angles.turn(head, position)?;
                }
            }
        }
        let joined = |past: Option<&Tensor>, new: &Tensor| -> Result<Tensor> {
            let mut out = Tensor::zeros(DType::F32, [b, g, t, d])?;
            let to = out.as_mut_slice::<f32>()?;
            let new = new.as_slice::<f32>()?;
            let past = past.map(Tensor::as_slice::<f32>).transpose()?;
            for head in 0..b * g {
                let old = before[head / g];
                let to = &mut to[head * t * d..(head + 1) * t * d];
                if let Some(past) = past {
                    to[..room * d].copy_from_slice(&past[head * room * d..(head + 1) * room * d]);
                }
                to[old * d..(old + s) * d].copy_from_slice(&new[head * s * d..(head + 1) * s * d]);
            }
            Ok(out)
        };
        let (k, v) = (joined(past_k.as_ref(), &k)?, joined(past_v.as_ref(), &v)?);
        let added = io.optional(10)?.map(|a| cast(a, DType::F64)).transpose()?;
        let mut heads = 1;
        if let Some(a) = &added {
            let fits = a.rank() == 4
                && (a.shape()[0] == 1 || a.shape()[0] == b)
                && (a.shape()[1] == 1 || a.shape()[1] == h)
                && (a.shape()[2], a.shape()[3]) == (s, t);
            if !fits {
                bail!(Shape, "`attention_bias` is {}, for [{b},{h},{s},{t}]", a.describe());
            }
            heads = a.shape()[1];
        }
        let mut values = Vec::with_capacity(b * heads * s * t);
        for item in 0..b {
            for head in 0..heads {
                for row in 0..s {
                    let at = before[item] + row;
                    for key in 0..t {
                        let far = self.window.is_some_and(|w| key + w <= at);
                        let plus = match &added {
                            Some(a) => {
                                let own = item % a.shape()[0] * heads + head;
                                a.as_slice::<f64>()?[(own * s + row) * t + key]
                            }
                            None => 0.0,
                        };
                        values.push(if key > at || far { f64::NEG_INFINITY } else { plus });
                    }
                }
            }
        }
        let bias = Bias { values, batch: b, heads };
        let rule = Rule {
            scale: self.scale.unwrap_or(1.0 / (d as f64).sqrt()),
            cap: self.cap,
            scores: None,
        };
        let (y, _) = attend(io, [&q, &k, &v], Some(&bias), rule)?;
        io.emit(cast(&join_heads(io, &y)?, dtype)?);
        if io.output_count() > 1 {
            io.emit(cast(&k, dtype)?);
            io.emit(cast(&v, dtype)?);
        }
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |name: &str| {
        Case::new("GroupQueryAttention", 1, name)
            .domain("com.microsoft")
            .attr("num_heads", 2)
            .attr("kv_num_heads", 1)
            .attr("scale", 1.0_f32)
            .close(1e-5, 1e-5)
    };
    let one = |v: i32| filled(&[1], &[v]);
    vec![
        new("one more row")
            .input(filled(&[1, 1, 4], &[1.0_f32, 0.0, 0.0, 2.0]))
            .input(filled(&[1, 1, 2], &[-1.0_f32, 2.0]))
            .input(filled(&[1, 1, 2], &[20.0_f32, 0.0]))
            .input(filled(&[1, 1, 1, 2], &[1.0_f32, 1.0]))
            .input(filled(&[1, 1, 1, 2], &[10.0_f32, 0.0]))
            .input(one(1))
            .input(one(2))
            .output(filled(&[1, 1, 4], &[11.192_029_f32, 0.0, 18.807_97, 0.0]))
            .output(filled(&[1, 1, 2, 2], &[1.0_f32, 1.0, -1.0, 2.0]))
            .output(filled(&[1, 1, 2, 2], &[10.0_f32, 0.0, 20.0, 0.0])),
        new("the first rows, packed, two keys back")
            .attr("local_window_size", 1)
            .input(filled(
                &[1, 2, 8],
                &[
                    1.0_f32, 0.0, 0.0, 2.0, 1.0, 1.0, 10.0, 0.0, 1.0, 0.0, 0.0, 2.0, -1.0, 2.0,
                    20.0, 0.0,
                ],
            ))
            .absent()
            .absent()
            .absent()
            .absent()
            .input(one(1))
            .input(one(2))
            .output(filled(&[1, 2, 4], &[10.0_f32, 0.0, 10.0, 0.0, 20.0, 0.0, 20.0, 0.0])),
    ]
}
