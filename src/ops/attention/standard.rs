//! `Attention` of ai.onnx.

use super::core::{Bias, Rule, Scores, after, attend, count, join_heads, split_heads};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{ALL, FLOATS, I64S};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

/// Attention of queries to keys, whose values are what comes out; with what was kept from before.
pub(in crate::ops) static ATTENTION: OpDef = OpDef {
    name: "Attention",
    domain: "",
    since: 23,
    attributes: &[
        AttributeDef::optional("is_causal", AttributeKind::Int),
        AttributeDef::optional("kv_num_heads", AttributeKind::Int),
        AttributeDef::optional("q_num_heads", AttributeKind::Int),
        AttributeDef::optional("qk_matmul_output_mode", AttributeKind::Int),
        AttributeDef::optional("scale", AttributeKind::Float),
        AttributeDef::optional("softcap", AttributeKind::Float),
        AttributeDef::optional("softmax_precision", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("Q", FLOATS),
        Port::required("K", FLOATS),
        Port::required("V", FLOATS),
        Port::optional("attn_mask", ALL),
        Port::optional("past_key", FLOATS),
        Port::optional("past_value", FLOATS),
        Port::optional("nonpad_kv_seqlen", I64S),
    ],
    outputs: &[
        Port::required("Y", FLOATS),
        Port::optional("present_key", FLOATS),
        Port::optional("present_value", FLOATS),
        Port::optional("qk_matmul_output", FLOATS),
    ],
    infer,
    batch: batch::mixes,
    cost: |q| cost::Cost { flops: 8.0 * q.output_elements(), bytes: q.bytes() },
    prepare: |p| Ok(Box::new(Attention::of(p.node)?)),
    cases,
};

#[derive(Debug)]
struct Attention {
    causal: bool,
    heads: Option<[usize; 2]>,
    scores: Option<Scores>,
    scale: Option<f64>,
    cap: f64,
}

impl Attention {
    fn of(node: &Node) -> Result<Self> {
        let scores = match node.int_or("qk_matmul_output_mode", 0)? {
            0 => Scores::Raw,
            1 => Scores::Capped,
            2 => Scores::Biased,
            3 => Scores::Softmax,
            other => bail!(Graph, "attribute `qk_matmul_output_mode` is {other}"),
        };
        let heads = match (node.int("q_num_heads")?, node.int("kv_num_heads")?) {
            (Some(q), Some(kv)) => Some([count(q, "q_num_heads")?, count(kv, "kv_num_heads")?]),
            _ => None,
        };
        Ok(Self {
            causal: node.int_or("is_causal", 0)? != 0,
            heads,
            scores: node.outputs.get(3).copied().flatten().map(|_| scores),
            scale: node.float("scale")?.map(f64::from),
            cap: node.float_or("softcap", 0.0)?.into(),
        })
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let this = Attention::of(i.node)?;
    let dtype = i.dtype(0);
    for k in 0..4 {
        i.set(k, dtype, None);
    }
    let (Some(q), Some(k), Some(v)) = (i.shape(0), i.shape(1), i.shape(2)) else { return Ok(()) };
    // As [batch, heads, rows, depth].
    let four = |s: &[Dim], which: usize| -> Option<[Dim; 4]> {
        match (s, this.heads) {
            ([b, h, r, d], _) => Some([b.clone(), h.clone(), r.clone(), d.clone()]),
            ([b, r, w], Some(heads)) => {
                let h = Dim::of(heads[which]);
                Some([b.clone(), h.clone(), r.clone(), w.floor_div(&h)])
            }
            _ => None,
        }
    };
    let (Some(qh), Some(kh), Some(vh)) = (four(&q, 0), four(&k, 1), four(&v, 1)) else {
        return Ok(());
    };
    let past =
        if i.has(4) { i.shape(4).and_then(|s| s.get(2).cloned()) } else { Some(Dim::fixed(0)) };
    let keys = match past {
        Some(past) => past + kh[2].clone(),
        None => i.fresh(),
    };
    let [b, h, s, _] = qh;
    let y = if q.len() == 4 {
        vec![b.clone(), h.clone(), s.clone(), vh[3].clone()]
    } else {
        vec![b.clone(), s.clone(), h.clone() * vh[3].clone()]
    };
    i.set(0, dtype, Some(y));
    let kept = |x: [Dim; 4]| Some(vec![x[0].clone(), x[1].clone(), keys.clone(), x[3].clone()]);
    i.set(1, i.dtype(1), kept(kh));
    i.set(2, i.dtype(2), kept(vh));
    i.set(3, dtype, Some(vec![b, h, s, keys]));
    Ok(())
}

impl CpuKernel for Attention {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let flat = io.tensor(0)?.rank() == 3;
        let heads = |k: usize, which: usize| -> Result<Tensor> {
            let x = io.tensor(k)?;
            match (x.rank(), self.heads) {
                (3, Some(heads)) => split_heads(io, x, heads[which]),
                (3, None) => {
                    bail!(Graph, "the numbers of heads are not given for {}", x.describe())
                }
                _ => Ok(x.clone()),
            }
        };
        let (q, k, v) = (heads(0, 0)?, heads(1, 1)?, heads(2, 1)?);
        let past = io.optional(4)?.filter(|p| p.rank() == 4).map_or(0, |p| p.shape()[2]);
        let (k, v) = (after(io, io.optional(4)?, &k)?, after(io, io.optional(5)?, &v)?);
        let (&[b, _, s, d], &[_, _, t, _]) = (&q.shape()[..], &k.shape()[..]) else {
            bail!(Shape, "queries {} and keys {}", q.describe(), k.describe());
        };
        let lengths = io.optional(6)?.map(Tensor::to_i64s).transpose()?;
        let bias = self.bias(io.optional(3)?, lengths.as_deref(), past, [b, q.shape()[1], s, t])?;
        let rule = Rule {
            scale: self.scale.unwrap_or(1.0 / (d as f64).sqrt()),
            cap: self.cap,
            scores: self.scores,
        };
        let (mut y, scores) = attend(io, [&q, &k, &v], bias.as_ref(), rule)?;
        if flat {
            y = join_heads(io, &y)?;
        }
        io.emit(y);
        if io.output_count() > 1 {
            io.emit(k);
            io.emit(v);
            io.emit(scores.unwrap_or(Tensor::zeros(DType::F32, [0])?));
        }
        Ok(())
    }
}

impl Attention {
    /// Everything that says which keys a query sees, as numbers to add.
    fn bias(
        &self,
        mask: Option<&Tensor>,
        lengths: Option<&[i64]>,
        past: usize,
        [b, h, s, t]: [usize; 4],
    ) -> Result<Option<Bias>> {
        if mask.is_none() && lengths.is_none() && !self.causal {
            return Ok(None);
        }
        if let Some(l) = lengths.filter(|l| l.len() != b) {
            bail!(Shape, "`nonpad_kv_seqlen` is {l:?}, for {b} items");
        }
        let mut shape = [1, 1, s, t];
        let mut given = Vec::new();
        let mut own = [1_usize; 4];
        if let Some(mask) = mask {
            let values = if mask.dtype() == DType::Bool {
                let open = |m: &bool| if *m { 0.0 } else { f64::NEG_INFINITY };
                mask.as_slice::<bool>()?.iter().map(open).collect()
            } else {
                cast(mask, DType::F64)?.as_slice::<f64>()?.to_vec()
            };
            if mask.rank() > 4 || mask.rank() == 0 {
                bail!(Shape, "`attn_mask` is {}", mask.describe());
            }
            own[4 - mask.rank()..].copy_from_slice(mask.shape());
            let fits = (own[0] == 1 || own[0] == b)
                && (own[1] == 1 || own[1] == h)
                && (own[2] == 1 || own[2] == s)
                && own[3] <= t;
            if !fits {
                bail!(Shape, "`attn_mask` is {}, for [{b},{h},{s},{t}] scores", mask.describe());
            }
            shape[..2].copy_from_slice(&own[..2]);
            given = values;
        }
        if lengths.is_some() {
            shape[0] = b;
        }
        let [sb, sh, ..] = shape;
        let mut values = Vec::with_capacity(sb * sh * s * t);
        for item in 0..sb {
            for head in 0..sh {
                for row in 0..s {
                    for key in 0..t {
                        let length = lengths.map(|l| l[item]);
                        let first = length.map_or(past as i64, |l| l - s as i64);
                        let hidden = (self.causal && key as i64 > row as i64 + first)
                            || length.is_some_and(|l| key as i64 >= l);
                        // A mask that is too short hides the rest; one value goes for all keys.
                        let one = own[3] == 1 && t != 1;
                        let at = [item, head, row, if one { 0 } else { key }];
                        let mask = match mask {
                            None => 0.0,
                            Some(_) if at[3] >= own[3] => f64::NEG_INFINITY,
                            Some(_) => {
                                let place = (0..4).fold(0, |p, k| p * own[k] + at[k] % own[k]);
                                given[place]
                            }
                        };
                        values.push(if hidden { f64::NEG_INFINITY } else { mask });
                    }
                }
            }
        }
        Ok(Some(Bias { values, batch: sb, heads: sh }))
    }
}

fn cases() -> Vec<Case> {
    let q = || filled(&[1, 1, 2, 2], &[1.0_f32, 0.0, 0.0, 2.0]);
    let k = || filled(&[1, 1, 2, 2], &[1.0_f32, 1.0, -1.0, 2.0]);
    let v = || filled(&[1, 1, 2, 1], &[10.0_f32, 20.0]);
    let new =
        |name: &str| Case::new("Attention", 23, name).attr("scale", 1.0_f32).close(1e-5, 1e-5);
    vec![
        new("everything is seen")
            .input(q())
            .input(k())
            .input(v())
            .output(filled(&[1, 1, 2, 1], &[11.192_029_f32, 18.807_97])),
        new("only what came before")
            .attr("is_causal", 1)
            .input(q())
            .input(k())
            .input(v())
            .output(filled(&[1, 1, 2, 1], &[10.0_f32, 18.807_97])),
        new("a mask")
            .input(q())
            .input(k())
            .input(v())
            .input(filled(&[2, 2], &[false, true, false, false]))
            .output(filled(&[1, 1, 2, 1], &[20.0_f32, 0.0])),
        new("what was kept, rows of heads")
            .attr("q_num_heads", 2)
            .attr("kv_num_heads", 1)
            .input(filled(&[1, 1, 4], &[1.0_f32, 0.0, 0.0, 2.0]))
            .input(filled(&[1, 1, 2], &[-1.0_f32, 2.0]))
            .input(filled(&[1, 1, 1], &[20.0_f32]))
            .absent()
            .input(filled(&[1, 1, 1, 2], &[1.0_f32, 1.0]))
            .input(filled(&[1, 1, 1, 1], &[10.0_f32]))
            .output(filled(&[1, 1, 2], &[11.192_029_f32, 18.807_97]))
            .output(k())
            .output(v()),
    ]
}
