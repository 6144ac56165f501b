//! `softmax(scale · Q · Kᵀ + bias) · V` over heads, and heads brought into one layout.

use crate::error::{Result, bail};
use crate::kernels::{Epilogue, MatMut, MatRef, Serial, gemm};
use crate::ops::Io;
use crate::ops::Threads;
use crate::ops::elementwise::Float;
use crate::ops::matmul::plain::{self, View};
use crate::ops::movement::{Strided, walked};
use crate::tensor::{DType, Tensor, cast, strides};

/// A float that attention is computed in.
pub(super) trait Real: Float {
    /// `out = alpha · a · b`, of `m` × `k` and `k` × `n` elements, where `b` may lie transposed.
    fn product(
        a: &[Self],
        b: &[Self],
        transposed: bool,
        extents: [usize; 3],
        alpha: f64,
        out: &mut [Self],
    ) -> Result<()>;
}

impl Real for f32 {
    fn product(
        a: &[Self],
        b: &[Self],
        transposed: bool,
        [m, k, n]: [usize; 3],
        alpha: f64,
        out: &mut [Self],
    ) -> Result<()> {
        let right = if transposed {
            MatRef::row_major(b, n, k)?.transposed()
        } else {
            MatRef::row_major(b, k, n)?
        };
        let epilogue = Epilogue { alpha: alpha as Self, ..Epilogue::default() };
        let (left, out) = (MatRef::row_major(a, m, k)?, MatMut::row_major(out, m, n)?);
        Ok(gemm(left, right, out, &epilogue, &Serial)?)
    }
}

impl Real for f64 {
    fn product(
        a: &[Self],
        b: &[Self],
        transposed: bool,
        [m, k, n]: [usize; 3],
        alpha: f64,
        out: &mut [Self],
    ) -> Result<()> {
        let (left, right) = (View::new(a, m, k, false), View::new(b, k, n, transposed));
        plain::multiply(left, right, out, k, n, &Threads::single());
        out.iter_mut().for_each(|o| *o *= alpha);
        Ok(())
    }
}

/// What the scores that are given out as well are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scores {
    Raw,
    Capped,
    Biased,
    Softmax,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) scale: f64,
    /// Scores are kept within ± this, smoothly; 0: they are not.
    pub(super) cap: f64,
    /// Which scores are given out, if any.
    pub(super) scores: Option<Scores>,
}

/// What is added to the scores: `[batch or 1, heads or 1, queries, keys]`, -∞ where a key is not
/// seen.
pub(super) struct Bias {
    pub(super) values: Vec<f64>,
    pub(super) batch: usize,
    pub(super) heads: usize,
}

/// Attention of `[batch, heads, queries, depth]` to `[batch, groups, keys, depth]`, where every
/// group of keys serves as many heads; also the scores, if the rule asks for them.
///
/// # Errors
/// If the shapes do not go together.
pub(super) fn attend(
    io: &Io<'_>,
    [q, k, v]: [&Tensor; 3],
    bias: Option<&Bias>,
    rule: Rule,
) -> Result<(Tensor, Option<Tensor>)> {
    let dtype = q.dtype();
    let computed = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (q, k, v) = (cast(q, computed)?, cast(k, computed)?, cast(v, computed)?);
    let (out, scores) = match computed {
        DType::F64 => typed::<f64>(io, [&q, &k, &v], bias, rule)?,
        _ => typed::<f32>(io, [&q, &k, &v], bias, rule)?,
    };
    Ok((cast(&out, dtype)?, scores.map(|s| cast(&s, dtype)).transpose()?))
}

fn typed<T: Real>(
    io: &Io<'_>,
    [q, k, v]: [&Tensor; 3],
    bias: Option<&Bias>,
    rule: Rule,
) -> Result<(Tensor, Option<Tensor>)> {
    let (&[b, h, s, d], &[kb, g, t, kd], &[vb, vg, vt, vd]) =
        (&q.shape()[..], &k.shape()[..], &v.shape()[..])
    else {
        bail!(Shape, "heads are {}, {}, {}", q.describe(), k.describe(), v.describe());
    };
    if (kb, kd, vb, vg, vt) != (b, d, b, g, t) || g == 0 || h % g != 0 {
        bail!(
            Shape,
            "queries {}, keys {} and values {} do not go together",
            q.describe(),
            k.describe(),
            v.describe()
        );
    }
    if let Some(bias) = bias
        && ((bias.batch != 1 && bias.batch != b)
            || (bias.heads != 1 && bias.heads != h)
            || bias.values.len() != bias.batch * bias.heads * s * t)
    {
        bail!(Shape, "a bias of {} values for {b}·{h}·{s}·{t} scores", bias.values.len());
    }
    let (qs, ks, vs) = (q.as_slice::<T>()?, k.as_slice::<T>()?, v.as_slice::<T>()?);
    let mut out = io.allocate(T::DTYPE, [b, h, s, vd])?;
    let mut kept = match rule.scores {
        Some(_) => Tensor::zeros(T::DTYPE, [b, h, s, t])?,
        None => Tensor::zeros(T::DTYPE, [0])?,
    };
    let one = |i: usize, out: &mut [T], kept: &mut [T]| -> Result<()> {
        let (item, head) = (i / h, i % h);
        let group = item * g + head / (h / g);
        let mut scores = vec![T::ZERO; s * t];
        let (query, key) =
            (&qs[i * s * d..(i + 1) * s * d], &ks[group * t * d..(group + 1) * t * d]);
        T::product(query, key, true, [s, d, t], rule.scale, &mut scores)?;
        let mut keep = |which: Scores, scores: &[T]| {
            if rule.scores == Some(which) {
                kept.copy_from_slice(scores);
            }
        };
        keep(Scores::Raw, &scores);
        if rule.cap > 0.0 {
            let cap = T::lit(rule.cap);
            scores.iter_mut().for_each(|x| *x = cap.times(Float::tanh(x.over(cap))));
        }
        keep(Scores::Capped, &scores);
        let bias = bias.map(|bias| {
            let own = (item % bias.batch) * bias.heads + head % bias.heads;
            &bias.values[own * s * t..(own + 1) * s * t]
        });
        if let Some(bias) = bias {
            scores.iter_mut().zip(bias).for_each(|(x, b)| *x = x.plus(T::lit(*b)));
        }
        keep(Scores::Biased, &scores);
        for (r, row) in scores.chunks_mut(t.max(1)).enumerate() {
            // A query that sees no key gets nothing.
            let blind =
                bias.is_some_and(|b| b[r * t..(r + 1) * t].iter().all(|b| *b == f64::NEG_INFINITY));
            if blind {
                row.fill(T::ZERO);
            } else {
                softmax(row);
            }
        }
        keep(Scores::Softmax, &scores);
        let value = &vs[group * t * vd..(group + 1) * t * vd];
        T::product(&scores, value, false, [s, t, vd], 1.0, out)
    };
    let each = s * vd;
    let to = out.as_mut_slice::<T>()?;
    if rule.scores.is_some() {
        let kept = kept.as_mut_slice::<T>()?;
        for i in 0..b * h {
            let scores = &mut kept[i * s * t..(i + 1) * s * t];
            one(i, &mut to[i * each..(i + 1) * each], scores)?;
        }
    } else {
        io.threads().try_split_rows(to, each.max(1), |first, chunk| {
            for (i, out) in chunk.chunks_mut(each.max(1)).enumerate() {
                one(first + i, out, &mut [])?;
            }
            Ok(())
        })?;
    }
    Ok((out, rule.scores.map(|_| kept)))
}

fn softmax<T: Real>(row: &mut [T]) {
    if T::softmax(row) {
        return;
    }
    let most = row.iter().copied().fold(T::LOWEST, T::larger);
    row.iter_mut().for_each(|x| *x = x.minus(most));
    T::exp_all(row);
    let sum = row.iter().copied().fold(T::ZERO, T::plus);
    row.iter_mut().for_each(|x| *x = x.over(sum));
}

/// `[batch, rows, heads · depth]` as `[batch, heads, rows, depth]`.
pub(super) fn split_heads(io: &Io<'_>, x: &Tensor, heads: usize) -> Result<Tensor> {
    let &[b, s, width] = &x.shape()[..] else {
        bail!(Shape, "{} has no heads side by side", x.describe());
    };
    if heads == 0 || width % heads != 0 {
        bail!(Shape, "{} cannot be cut into {heads} heads", x.describe());
    }
    exchanged(io, &x.reshape([b, s, heads, width / heads])?)
}

/// `[batch, heads, rows, depth]` as `[batch, rows, heads · depth]`.
pub(super) fn join_heads(io: &Io<'_>, x: &Tensor) -> Result<Tensor> {
    let &[b, h, s, d] = &x.shape()[..] else {
        bail!(Internal, "{} has no heads", x.describe());
    };
    exchanged(io, x)?.reshape([b, s, h * d])
}

/// The two axes in the middle of four exchanged.
pub(super) fn exchanged(io: &Io<'_>, x: &Tensor) -> Result<Tensor> {
    let &[a, b, c, d] = &x.shape()[..] else {
        bail!(Shape, "{} does not have four axes", x.describe());
    };
    let own: Vec<isize> = strides(x.shape()).into_iter().map(|s| s as isize).collect();
    let walk = Strided::new(0, &[a, c, b, d], &[own[0], own[2], own[1], own[3]]);
    walked(io, x, [a, c, b, d], &walk)
}

/// What was kept from before, and what is new behind it, along the rows of each head.
pub(super) fn after(io: &Io<'_>, past: Option<&Tensor>, new: &Tensor) -> Result<Tensor> {
    match past {
        None => Ok(new.clone()),
        Some(past) => crate::ops::concat::concat(io, &[past, new], 2),
    }
}

/// A number of heads from an attribute.
pub(super) fn count(n: i64, name: &str) -> Result<usize> {
    match usize::try_from(n).ok().filter(|n| (1..1 << 20).contains(n)) {
        Some(n) => Ok(n),
        None => bail!(Graph, "attribute `{name}` is {n}, expected at least 1"),
    }
}
