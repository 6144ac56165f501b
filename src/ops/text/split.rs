//! `StringSplit`.

use super::strings;
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{I64S, STRINGS};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor};

/// The pieces of each string between delimiters or white space, filled up with empty ones, and how
/// many each has.
pub(in crate::ops) static STRING_SPLIT: OpDef = OpDef {
    name: "StringSplit",
    domain: "",
    since: 20,
    attributes: &[
        AttributeDef::optional("delimiter", AttributeKind::String),
        AttributeDef::optional("maxsplit", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", STRINGS)],
    outputs: &[Port::required("Y", STRINGS), Port::optional("Z", I64S)],
    infer: |i| {
        let most = i.fresh();
        let shape = i.shape(0).map(|mut s: Vec<Dim>| {
            s.push(most);
            s
        });
        i.set(0, Some(DType::String), shape);
        i.set(1, Some(DType::I64), i.shape(0));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |p| {
        let most = p.node.int("maxsplit")?;
        let most = match most {
            None => None,
            Some(n) if n < 0 => None,
            Some(n) => Some(usize::try_from(n).unwrap_or(usize::MAX)),
        };
        let delimiter = p.node.string("delimiter")?.filter(|d| !d.is_empty());
        Ok(Box::new(Split { delimiter: delimiter.map(str::to_owned), most }))
    },
    cases: || {
        let new = |name: &str| Case::new("StringSplit", 20, name);
        vec![
            new("white space")
                .input(strings(&[2], &[" hello  world ", "one"]))
                .output(strings(&[2, 2], &["hello", "world", "one", ""]))
                .output(filled(&[2], &[2_i64, 1])),
            new("a delimiter, at most once")
                .attr("delimiter", "--")
                .attr("maxsplit", 1)
                .input(strings(&[2, 1], &["a--b--c", "--"]))
                .output(strings(&[2, 1, 2], &["a", "b--c", "", ""]))
                .output(filled(&[2, 1], &[2_i64, 2])),
            new("white space, once")
                .attr("maxsplit", 1)
                .input(strings(&[1], &[" a  b c "]))
                .output(strings(&[1, 2], &["a", "b c "]))
                .output(filled(&[1], &[2_i64])),
            new("nothing")
                .input(strings(&[1], &[""]))
                .output(strings(&[1, 0], &[]))
                .output(filled(&[1], &[0_i64])),
        ]
    },
};

#[derive(Debug)]
struct Split {
    delimiter: Option<String>,
    most: Option<usize>,
}

impl Split {
    fn pieces<'a>(&self, text: &'a str) -> Vec<&'a str> {
        match (&self.delimiter, self.most) {
            (Some(d), None) => text.split(d.as_str()).collect(),
            (Some(d), Some(n)) => text.splitn(n.saturating_add(1), d.as_str()).collect(),
            (None, None) => text.split_whitespace().collect(),
            (None, Some(n)) => {
                let mut out = Vec::new();
                let mut rest = text.trim_start();
                while !rest.is_empty() {
                    let end = rest.find(char::is_whitespace).filter(|_| out.len() < n);
                    let Some(end) = end else {
                        out.push(rest);
                        break;
                    };
                    out.push(&rest[..end]);
                    rest = rest[end..].trim_start();
                }
                out
            }
        }
    }
}

impl CpuKernel for Split {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let pieces: Vec<Vec<&str>> = x.as_strings()?.iter().map(|s| self.pieces(s)).collect();
        let most = pieces.iter().map(Vec::len).max().unwrap_or(0);
        let Some(total) = most.checked_mul(pieces.len()).filter(|t| *t < 1 << 32) else {
            bail!(Limit, "{} strings of up to {most} pieces", pieces.len());
        };
        let mut all = Vec::with_capacity(total);
        for pieces in &pieces {
            let fill = std::iter::repeat_n("", most - pieces.len());
            all.extend(pieces.iter().copied().chain(fill).map(str::to_owned));
        }
        let counts: Vec<i64> = pieces.iter().map(|p| p.len() as i64).collect();
        let mut shape = x.shape().to_vec();
        let counts = Tensor::new(shape.clone(), counts)?;
        shape.push(most);
        io.emit(Tensor::from_strings(shape, all)?);
        io.emit(counts);
        Ok(())
    }
}
