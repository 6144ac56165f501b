//! `TfIdfVectorizer`.

use std::collections::HashMap;

use super::strings;
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, element_count};

/// How often each n-gram of a pool comes in each row, or its weight where it comes.
pub(in crate::ops) static TF_IDF_VECTORIZER: OpDef = OpDef {
    name: "TfIdfVectorizer",
    domain: "",
    since: 9,
    attributes: &[
        AttributeDef::required("max_gram_length", AttributeKind::Int),
        AttributeDef::required("max_skip_count", AttributeKind::Int),
        AttributeDef::required("min_gram_length", AttributeKind::Int),
        AttributeDef::required("mode", AttributeKind::String),
        AttributeDef::required("ngram_counts", AttributeKind::Ints),
        AttributeDef::required("ngram_indexes", AttributeKind::Ints),
        AttributeDef::optional("pool_int64s", AttributeKind::Ints),
        AttributeDef::optional("pool_strings", AttributeKind::Strings),
        AttributeDef::optional("weights", AttributeKind::Floats),
    ],
    inputs: &[Port::required("X", &[DType::I32, DType::I64, DType::String])],
    outputs: &[Port::required("Y", F32S)],
    infer,
    batch: |q| match q.axes.first().copied().flatten() {
        Some(1) => Err("it counts over the batch axis".to_owned()),
        Some(0) if q.rank(0) != Some(2) => Err("it counts over the batch axis".to_owned()),
        _ => batch::leading(q),
    },
    cost: cost::elementwise,
    prepare: |p| Ok(Box::new(TfIdf::of(p.node)?)),
    cases,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Count,
    Weight,
    Both,
}

#[derive(Debug)]
struct TfIdf {
    mode: Mode,
    lengths: std::ops::RangeInclusive<usize>,
    skips: usize,
    /// The n-grams, as the numbers of their items in `words`, with their place in the pool.
    grams: HashMap<Vec<usize>, usize>,
    words: Words,
    /// Where in the output each n-gram of the pool is counted.
    columns: Vec<usize>,
    width: usize,
    weights: Option<Vec<f32>>,
}

/// The items of the pool, numbered.
#[derive(Debug)]
enum Words {
    Numbers(HashMap<i64, usize>),
    Strings(HashMap<String, usize>),
}

fn numbered<T: std::hash::Hash + Eq + Clone>(pool: &[T]) -> (HashMap<T, usize>, Vec<usize>) {
    let mut known = HashMap::new();
    let numbers = pool
        .iter()
        .map(|item| {
            let next = known.len();
            *known.entry(item.clone()).or_insert(next)
        })
        .collect();
    (known, numbers)
}

/// Where in the output the n-grams are counted, and the output's width.
fn columns(node: &Node) -> Result<(Vec<usize>, usize)> {
    let given = node.ints("ngram_indexes")?.unwrap_or(&[]);
    let columns: Option<Vec<usize>> = given.iter().map(|n| usize::try_from(*n).ok()).collect();
    let Some(columns) = columns else {
        bail!(Graph, "attribute `ngram_indexes` is {given:?}; indices cannot be negative");
    };
    let width = columns.iter().max().map_or(0, |c| c.saturating_add(1));
    if width > 1 << 32 {
        bail!(Graph, "attribute `ngram_indexes` goes up to {width}");
    }
    Ok((columns, width))
}

impl TfIdf {
    fn of(node: &Node) -> Result<Self> {
        let mode = match node.string("mode")?.unwrap_or_default() {
            "TF" => Mode::Count,
            "IDF" => Mode::Weight,
            "TFIDF" => Mode::Both,
            other => bail!(Graph, "attribute `mode` is `{other}`, expected TF, IDF or TFIDF"),
        };
        let size = |name: &str, least: i64| {
            let n = node.required_int(name)?;
            match usize::try_from(n) {
                Ok(u) if (least..1 << 20).contains(&n) => Ok(u),
                _ => bail!(Graph, "attribute `{name}` is {n}, expected at least {least}"),
            }
        };
        let lengths = size("min_gram_length", 1)?..=size("max_gram_length", 1)?;
        let (words, pool) = match (node.ints("pool_int64s")?, node.strings("pool_strings")?) {
            (Some(pool), None) => {
                let (words, pool) = numbered(pool);
                (Words::Numbers(words), pool)
            }
            (None, Some(pool)) => {
                let (words, pool) = numbered(pool);
                (Words::Strings(words), pool)
            }
            _ => bail!(Graph, "one of `pool_int64s` and `pool_strings` must be given"),
        };
        let starts = node.ints("ngram_counts")?.unwrap_or(&[]);
        let mut grams = HashMap::new();
        for (k, start) in starts.iter().enumerate() {
            let end = starts.get(k + 1).copied().unwrap_or(pool.len() as i64);
            let part = usize::try_from(*start).ok().zip(usize::try_from(end).ok());
            let Some(part) = part.and_then(|(s, e)| pool.get(s..e)) else {
                bail!(Graph, "attribute `ngram_counts` is {starts:?}, the pool has {}", pool.len());
            };
            if part.len() % (k + 1) != 0 {
                bail!(Graph, "the pool has {} items of {}-grams", part.len(), k + 1);
            }
            for gram in part.chunks_exact(k + 1) {
                let next = grams.len();
                grams.entry(gram.to_vec()).or_insert(next);
            }
        }
        let (columns, width) = columns(node)?;
        let weights = node.floats("weights")?.map(<[f32]>::to_vec);
        if columns.len() < grams.len() || weights.as_ref().is_some_and(|w| w.len() < grams.len()) {
            bail!(
                Graph,
                "the pool has {} n-grams, `ngram_indexes` {} values, `weights` {:?}",
                grams.len(),
                columns.len(),
                weights.map(|w| w.len())
            );
        }
        let skips = size("max_skip_count", 0)?;
        Ok(Self { mode, lengths, skips, grams, words, columns, width, weights })
    }

    /// The numbers of a row's items; `None` for those that the pool lacks.
    fn items(&self, x: &Tensor) -> Result<Vec<Option<usize>>> {
        match (&self.words, x.dtype()) {
            (Words::Strings(words), DType::String) => {
                Ok(x.as_strings()?.iter().map(|s| words.get(s).copied()).collect())
            }
            (Words::Numbers(words), d) if d != DType::String => {
                Ok(x.to_i64s()?.iter().map(|n| words.get(n).copied()).collect())
            }
            _ => bail!(DType, "the input is {}, the pool is not", x.dtype()),
        }
    }

    fn row(&self, items: &[Option<usize>], out: &mut [f32]) {
        let mut counts = vec![0.0_f32; self.grams.len()];
        let mut gram = Vec::new();
        for n in self.lengths.clone() {
            // Single items skip nothing.
            for stride in 1..=if n == 1 { 1 } else { self.skips + 1 } {
                let Some(last) = items.len().checked_sub((n - 1) * stride) else { break };
                for start in 0..last {
                    gram.clear();
                    gram.extend((0..n).map_while(|k| items[start + k * stride]));
                    if gram.len() == n
                        && let Some(id) = self.grams.get(&gram)
                    {
                        counts[*id] += 1.0;
                    }
                }
            }
        }
        for (id, count) in counts.into_iter().enumerate().filter(|(_, c)| *c > 0.0) {
            let weight = self.weights.as_ref().map_or(1.0, |w| w[id]);
            let o = &mut out[self.columns[id]];
            match self.mode {
                Mode::Count => *o += count,
                Mode::Weight => *o = weight,
                Mode::Both => *o += count * weight,
            }
        }
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let (_, width) = columns(i.node)?;
    let shape = match i.shape(0) {
        None => None,
        Some(s) if (1..=2).contains(&s.len()) => {
            let mut out = s[..s.len() - 1].to_vec();
            out.push(Dim::of(width));
            Some(out)
        }
        Some(s) => bail!(Shape, "the input has {} axes, expected 1 or 2", s.len()),
    };
    i.set(0, Some(DType::F32), shape);
    Ok(())
}

impl CpuKernel for TfIdf {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let (mut shape, length) = match &x.shape()[..] {
            [n] => (vec![], *n),
            [rows, n] => (vec![*rows], *n),
            _ => bail!(Shape, "the input is {}, expected [C] or [N,C]", x.describe()),
        };
        let rows = shape.first().copied().unwrap_or(1);
        shape.push(self.width);
        element_count(&shape, 4)?;
        let items = self.items(x)?;
        let mut out = Tensor::zeros(DType::F32, shape)?;
        let to = out.as_mut_slice::<f32>()?;
        for r in 0..rows {
            let row = &mut to[r * self.width..(r + 1) * self.width];
            self.row(&items[r * length..(r + 1) * length], row);
        }
        io.emit(out);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |mode: &str, skips: i64, name: &str| {
        Case::new("TfIdfVectorizer", 9, name)
            .attr("mode", mode)
            .attr("min_gram_length", 1)
            .attr("max_gram_length", 2)
            .attr("max_skip_count", skips)
            .attr("ngram_counts", vec![0_i64, 2])
            .attr("ngram_indexes", vec![0_i64, 2, 1])
    };
    let numbers = |case: Case| {
        case.attr("pool_int64s", vec![1_i64, 2, 1, 3])
            .input(filled(&[2, 4], &[1_i64, 3, 1, 2, 2, 1, 5, 3]))
    };
    vec![
        numbers(new("TF", 0, "counts"))
            .output(filled(&[2, 3], &[2.0_f32, 1.0, 1.0, 1.0, 0.0, 1.0])),
        numbers(new("TF", 1, "with one between"))
            .output(filled(&[2, 3], &[2.0_f32, 1.0, 1.0, 1.0, 1.0, 1.0])),
        numbers(new("TFIDF", 0, "weighted counts").attr("weights", vec![0.5_f32, 3.0, 7.0]))
            .output(filled(&[2, 3], &[1.0_f32, 7.0, 3.0, 0.5, 0.0, 3.0])),
        new("IDF", 0, "weights of strings")
            .attr("weights", vec![0.5_f32, 3.0, 7.0])
            .attr("pool_strings", ["a", "b", "a", "b"].map(str::to_owned).to_vec())
            .input(strings(&[3], &["a", "a", "c"]))
            .output(filled(&[3], &[0.5_f32, 0.0, 0.0])),
    ]
}
