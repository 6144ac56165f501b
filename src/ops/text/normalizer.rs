//! `StringNormalizer`.

use super::strings;
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::case::Case;
use crate::ops::def::types::STRINGS;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, Prepare, batch, cost};
use crate::tensor::{DType, Tensor};

/// Strings without stop words, in upper or lower case. Case is changed as Unicode says, whatever
/// the attribute `locale` is.
pub(in crate::ops) static STRING_NORMALIZER: OpDef = OpDef {
    name: "StringNormalizer",
    domain: "",
    since: 10,
    attributes: &[
        AttributeDef::optional("case_change_action", AttributeKind::String),
        AttributeDef::optional("is_case_sensitive", AttributeKind::Int),
        AttributeDef::optional("locale", AttributeKind::String),
        AttributeDef::optional("stopwords", AttributeKind::Strings),
    ],
    inputs: &[Port::required("X", STRINGS)],
    outputs: &[Port::required("Y", STRINGS)],
    infer: |i| {
        let count = i.fresh();
        let shape = i.rank(0).map(|r| match r {
            1 => vec![count],
            _ => vec![Dim::fixed(1), count],
        });
        i.set(0, Some(DType::String), shape);
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |p| Ok(Box::new(Normalizer::of(p)?)),
    cases: || {
        let x = || strings(&[4], &["monday", "Tuesday", "wednesday", "MONDAY"]);
        let new = |name: &str| {
            Case::new("StringNormalizer", 10, name)
                .attr("stopwords", vec!["monday".to_owned()])
                .input(x())
        };
        vec![
            new("upper case, whatever the case")
                .attr("case_change_action", "UPPER")
                .output(strings(&[2], &["TUESDAY", "WEDNESDAY"])),
            new("as it is written")
                .attr("is_case_sensitive", 1)
                .output(strings(&[3], &["Tuesday", "wednesday", "MONDAY"])),
            Case::new("StringNormalizer", 10, "nothing is left")
                .attr("stopwords", vec!["a".to_owned()])
                .attr("case_change_action", "LOWER")
                .input(strings(&[1, 2], &["a", "A"]))
                .output(strings(&[1, 1], &[""])),
        ]
    },
};

#[derive(Debug)]
enum Change {
    None,
    Lower,
    Upper,
}

#[derive(Debug)]
struct Normalizer {
    change: Change,
    sensitive: bool,
    stop: Vec<String>,
}

impl Normalizer {
    fn of(p: &Prepare<'_>) -> Result<Self> {
        let change = match p.node.string("case_change_action")?.unwrap_or("NONE") {
            "NONE" => Change::None,
            "LOWER" => Change::Lower,
            "UPPER" => Change::Upper,
            other => bail!(
                Graph,
                "attribute `case_change_action` is `{other}`, expected NONE, LOWER or UPPER"
            ),
        };
        let sensitive = p.node.int_or("is_case_sensitive", 0)? != 0;
        let stop = p.node.strings("stopwords")?.unwrap_or(&[]);
        let fold = |s: &String| if sensitive { s.clone() } else { s.to_lowercase() };
        Ok(Self { change, sensitive, stop: stop.iter().map(fold).collect() })
    }
}

impl CpuKernel for Normalizer {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let lead = match &x.shape()[..] {
            [_] => vec![],
            [1, _] => vec![1],
            _ => bail!(Shape, "the input is {}, expected [C] or [1,C]", x.describe()),
        };
        let stays = |s: &&String| {
            let folded;
            let s = if self.sensitive {
                *s
            } else {
                folded = s.to_lowercase();
                &folded
            };
            !self.stop.contains(s)
        };
        let change = |s: &String| match self.change {
            Change::None => s.clone(),
            Change::Lower => s.to_lowercase(),
            Change::Upper => s.to_uppercase(),
        };
        let mut left: Vec<String> = x.as_strings()?.iter().filter(stays).map(change).collect();
        if left.is_empty() {
            left.push(String::new());
        }
        let mut shape = lead;
        shape.push(left.len());
        io.emit(Tensor::from_strings(shape, left)?);
        Ok(())
    }
}
