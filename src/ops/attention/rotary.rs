//! `RotaryEmbedding`.

use super::core::count;
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{FLOATS, I64S};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

const ATTRIBUTES: &[AttributeDef] = &[
    AttributeDef::optional("interleaved", AttributeKind::Int),
    AttributeDef::optional("num_heads", AttributeKind::Int),
    AttributeDef::optional("rotary_embedding_dim", AttributeKind::Int),
];

/// Pairs of elements turned by angles that depend on their position.
pub(in crate::ops) static ROTARY_EMBEDDING: OpDef = OpDef {
    name: "RotaryEmbedding",
    domain: "",
    since: 23,
    attributes: ATTRIBUTES,
    inputs: &[
        Port::required("X", FLOATS),
        Port::required("cos_cache", FLOATS),
        Port::required("sin_cache", FLOATS),
        Port::optional("position_ids", I64S),
    ],
    outputs: &[Port::required("Y", FLOATS)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::elementwise,
    prepare: |p| Ok(Box::new(Rotary::of(p.node, false)?)),
    cases: || {
        let new = |name: &str| {
            Case::new("RotaryEmbedding", 23, name)
                .input(filled(&[1, 1, 2, 4], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
        };
        vec![
            new("halves")
                .input(filled(&[2, 2], &[1.0_f32, 0.0, 0.0, 0.5]))
                .input(filled(&[2, 2], &[0.0_f32, 1.0, 1.0, 2.0]))
                .input(filled(&[1, 2], &[1_i64, 0]))
                .output(filled(&[1, 1, 2, 4], &[-3.0_f32, -7.0, 1.0, 6.0, 5.0, -8.0, 7.0, 6.0])),
            new("neighbours, some of them")
                .attr("interleaved", 1)
                .attr("rotary_embedding_dim", 2)
                .input(filled(&[1, 2, 1], &[0.0_f32, 1.0]))
                .input(filled(&[1, 2, 1], &[1.0_f32, 0.0]))
                .output(filled(&[1, 1, 2, 4], &[-2.0_f32, 1.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])),
        ]
    },
};

/// [`ROTARY_EMBEDDING`] as ONNX Runtime has it: the positions come second; one position is that
/// of the first row.
pub(in crate::ops) static MS_ROTARY_EMBEDDING: OpDef = OpDef {
    name: "RotaryEmbedding",
    domain: "com.microsoft",
    since: 1,
    attributes: &[
        AttributeDef::optional("interleaved", AttributeKind::Int),
        AttributeDef::optional("is_packed_batching", AttributeKind::Int),
        AttributeDef::optional("num_heads", AttributeKind::Int),
        AttributeDef::optional("rotary_embedding_dim", AttributeKind::Int),
        AttributeDef::optional("scale", AttributeKind::Float),
    ],
    inputs: &[
        Port::required("input", FLOATS),
        Port::required("position_ids", I64S),
        Port::required("cos_cache", FLOATS),
        Port::required("sin_cache", FLOATS),
    ],
    outputs: &[Port::required("output", FLOATS)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::elementwise,
    prepare: |p| {
        if p.node.int_or("is_packed_batching", 0)? != 0 {
            bail!(Unsupported, "attribute `is_packed_batching` is 1");
        }
        Ok(Box::new(Rotary::of(p.node, true)?))
    },
    cases: || {
        vec![
            Case::new("RotaryEmbedding", 1, "rows of heads, from a position on")
                .domain("com.microsoft")
                .attr("num_heads", 2)
                .input(filled(&[1, 2, 4], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
                .input(filled(&[1], &[1_i64]))
                .input(filled(&[3, 1], &[9.0_f32, 0.0, 1.0]))
                .input(filled(&[3, 1], &[9.0_f32, 1.0, 2.0]))
                .output(filled(&[1, 2, 4], &[-2.0_f32, 1.0, -4.0, 3.0, -7.0, 16.0, -9.0, 22.0])),
        ]
    },
};

#[derive(Debug)]
struct Rotary {
    interleaved: bool,
    /// 0: the input tells it by its axes, or by the caches.
    heads: usize,
    width: usize,
    microsoft: bool,
}

impl Rotary {
    fn of(node: &Node, microsoft: bool) -> Result<Self> {
        let number = |name: &str| match node.int_or(name, 0)? {
            0 => Ok(0),
            n => count(n, name),
        };
        Ok(Self {
            interleaved: node.int_or("interleaved", 0)? != 0,
            heads: number("num_heads")?,
            width: number("rotary_embedding_dim")?,
            microsoft,
        })
    }
}

/// The angles: the caches, the elements of a row in them, and the row of each place.
pub(super) struct Angles<'a> {
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
    pub(super) half: usize,
    pub(super) interleaved: bool,
}

impl Angles<'_> {
    /// Turns the first `2 · half` elements of a head by the angles in a row of the caches.
    pub(super) fn turn(&self, head: &mut [f32], row: usize) -> Result<()> {
        let at = row * self.half;
        let (Some(cos), Some(sin)) =
            (self.cos.get(at..at + self.half), self.sin.get(at..at + self.half))
        else {
            bail!(Kernel, "position {row} is beyond the caches of angles");
        };
        if head.len() < 2 * self.half {
            bail!(Shape, "a head of {} elements is turned over {}", head.len(), 2 * self.half);
        }
        for k in 0..self.half {
            let (i, j) = if self.interleaved { (2 * k, 2 * k + 1) } else { (k, k + self.half) };
            let (x, y) = (head[i], head[j]);
            head[i] = cos[k] * x - sin[k] * y;
            head[j] = sin[k] * x + cos[k] * y;
        }
        Ok(())
    }
}

impl CpuKernel for Rotary {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (cos, sin, ids) = if self.microsoft {
            (io.tensor(2)?, io.tensor(3)?, Some(io.tensor(1)?))
        } else {
            (io.tensor(1)?, io.tensor(2)?, io.optional(3)?)
        };
        let x = io.tensor(0)?;
        let half = cos.shape().last().copied().unwrap_or(0);
        if cos.shape() != sin.shape() {
            bail!(Shape, "the caches are {} and {}", cos.describe(), sin.describe());
        }
        let (b, s) = match &x.shape()[..] {
            [b, _, s, _] => (*b, *s),
            [b, s, _] => (*b, *s),
            _ => bail!(Shape, "the input is {}, expected 3 or 4 axes", x.describe()),
        };
        // The head's elements, and how many heads lie side by side in a row.
        let (head, side) = match &x.shape()[..] {
            [.., d] if x.rank() == 4 => (*d, 1),
            [.., width] if self.heads > 0 && width % self.heads == 0 => {
                (width / self.heads, self.heads)
            }
            [.., width]
                if self.microsoft && self.width == 0 && half > 0 && width % (2 * half) == 0 =>
            {
                (2 * half, width / (2 * half))
            }
            _ => bail!(Shape, "{} cannot be cut into {} heads", x.describe(), self.heads),
        };
        let width = if self.width > 0 { self.width } else { head };
        if width != 2 * half || width > head {
            bail!(Shape, "{width} of {head} elements are turned, the caches are for {}", 2 * half);
        }
        let ids = match ids {
            None => {
                if *cos.shape() != [b, s, half] {
                    bail!(Shape, "the caches are {}, expected [{b},{s},{half}]", cos.describe());
                }
                None
            }
            Some(ids) => {
                let given = ids.to_i64s()?;
                let whole: Option<Vec<usize>> =
                    given.iter().map(|p| usize::try_from(*p).ok()).collect();
                match whole {
                    Some(p) if p.len() == b * s && ids.rank() == 2 => Some((p, false)),
                    Some(p) if p.len() == 1 => Some((p, true)),
                    _ => bail!(Shape, "positions are {}, expected [{b},{s}]", ids.describe()),
                }
            }
        };
        let (cos, sin) = (cos.to_f32s()?, sin.to_f32s()?);
        let angles = Angles { cos: &cos, sin: &sin, half, interleaved: self.interleaved };
        let mut out = cast(x, DType::F32)?;
        let rows_of_a_head = if x.rank() == 4 { x.shape()[1] } else { 1 };
        for (k, row) in out.as_mut_slice::<f32>()?.chunks_mut((head * side).max(1)).enumerate() {
            // [batch, heads, rows] or [batch, rows].
            let (item, place) = (k / (rows_of_a_head * s), k % s);
            let position = match &ids {
                None => item * s + place,
                Some((p, true)) => p[0] + place,
                Some((p, false)) => p[item * s + place],
            };
            for head in row.chunks_mut(head) {
                angles.turn(head, position)?;
            }
        }
        let out: Tensor = cast(&out, x.dtype())?;
        io.emit(out);
        Ok(())
    }
}
