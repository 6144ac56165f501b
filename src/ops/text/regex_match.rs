//! `RegexFullMatch`.

use super::regex::Regex;
use super::strings;
use crate::error::{Result, bail};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{BOOLS, STRINGS};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::DType;

/// Whether a pattern matches the whole of each string.
pub(in crate::ops) static REGEX_FULL_MATCH: OpDef = OpDef {
    name: "RegexFullMatch",
    domain: "",
    since: 20,
    attributes: &[AttributeDef::optional("pattern", AttributeKind::String)],
    inputs: &[Port::required("X", STRINGS)],
    outputs: &[Port::required("Y", BOOLS)],
    infer: |i| {
        i.set(0, Some(DType::Bool), i.shape(0));
        Ok(())
    },
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |p| {
        let pattern = p.node.string("pattern")?.unwrap_or_default();
        match Regex::new(pattern) {
            Ok(regex) => Ok(Box::new(Match { regex })),
            Err(why) => bail!(Graph, "attribute `pattern` is `{pattern}`: {why}"),
        }
    },
    cases: || {
        vec![
            Case::new("RegexFullMatch", 20, "addresses")
                .attr("pattern", r"(\W|^)[\w.\-]{0,25}@(yahoo|gmail)\.com(\W|$)")
                .input(strings(&[2, 2], &["account@gmail.com", "a@hotmail.com", "", "@yahoo.com!"]))
                .output(filled(&[2, 2], &[true, false, false, true])),
            Case::new("RegexFullMatch", 20, "no part is enough")
                .attr("pattern", r"www\.[\w.-]+\.\bcom\b")
                .input(strings(&[2], &["www.google.com", "www.google.com/x"]))
                .output(filled(&[2], &[true, false])),
        ]
    },
};

#[derive(Debug)]
struct Match {
    regex: Regex,
}

impl CpuKernel for Match {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let mut out = io.allocate(DType::Bool, x.shape().clone())?;
        for (o, s) in out.as_mut_slice::<bool>()?.iter_mut().zip(x.as_strings()?) {
            *o = self.regex.matches_all(s);
        }
        io.emit(out);
        Ok(())
    }
}
