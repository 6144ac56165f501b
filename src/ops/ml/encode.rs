//! Features put together and encoded: `CategoryMapper`, `OneHotEncoder`, `ArrayFeatureExtractor`,
//! `FeatureVectorizer`, `Binarizer`.

use std::collections::HashMap;

use super::{DOMAIN, FEATURES, Labels, rows};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::case::{Case, filled, iota};
use crate::ops::def::types::{ANY, F32S, I64S, NUMBERS};
use crate::ops::movement::{Picked, produce};
use crate::ops::text::strings;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

/// Strings to numbers, or numbers to strings.
pub(in crate::ops) static CATEGORY_MAPPER: OpDef = OpDef {
    name: "CategoryMapper",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        AttributeDef::required("cats_int64s", AttributeKind::Ints),
        AttributeDef::required("cats_strings", AttributeKind::Strings),
        AttributeDef::optional("default_int64", AttributeKind::Int),
        AttributeDef::optional("default_string", AttributeKind::String),
    ],
    inputs: &[Port::required("X", &[DType::String, DType::I64])],
    outputs: &[Port::required("Y", &[DType::String, DType::I64])],
    infer: |i| {
        let dtype = i.dtype(0).map(|d| match d {
            DType::String => DType::I64,
            _ => DType::String,
        });
        i.set(0, dtype, i.shape(0));
        Ok(())
    },
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |p| {
        let numbers = p.node.ints("cats_int64s")?.unwrap_or(&[]);
        let names = p.node.strings("cats_strings")?.unwrap_or(&[]);
        if numbers.len() != names.len() {
            bail!(Graph, "there are {} numbers and {} strings", numbers.len(), names.len());
        }
        Ok(Box::new(Mapper {
            numbers: names.iter().cloned().zip(numbers.iter().copied()).collect(),
            names: numbers.iter().copied().zip(names.iter().cloned()).collect(),
            number: p.node.int_or("default_int64", -1)?,
            name: p.node.string("default_string")?.unwrap_or("_Unused").to_owned(),
        }))
    },
    cases: || {
        let new = |name: &str| {
            Case::new("CategoryMapper", 1, name)
                .domain(DOMAIN)
                .attr("cats_int64s", vec![5_i64, 6])
                .attr("cats_strings", ["a", "b"].map(str::to_owned).to_vec())
        };
        vec![
            new("to numbers").input(strings(&[2], &["b", "c"])).output(filled(&[2], &[6_i64, -1])),
            new("to strings")
                .input(filled(&[2, 1], &[5_i64, 0]))
                .output(strings(&[2, 1], &["a", "_Unused"])),
        ]
    },
};

#[derive(Debug)]
struct Mapper {
    numbers: HashMap<String, i64>,
    names: HashMap<i64, String>,
    number: i64,
    name: String,
}

impl CpuKernel for Mapper {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let shape = x.shape().clone();
        let out = if x.dtype() == DType::String {
            let number = |s: &String| self.numbers.get(s).copied().unwrap_or(self.number);
            Tensor::new(shape, x.as_strings()?.iter().map(number).collect::<Vec<i64>>())?
        } else {
            let name = |n: &i64| self.names.get(n).unwrap_or(&self.name).clone();
            Tensor::from_strings(shape, x.as_slice::<i64>()?.iter().map(name).collect())?
        };
        io.emit(out);
        Ok(())
    }
}

/// A new last axis with 1 at the place of each element's category.
pub(in crate::ops) static ONE_HOT_ENCODER: OpDef = OpDef {
    name: "OneHotEncoder",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        AttributeDef::optional("cats_int64s", AttributeKind::Ints),
        AttributeDef::optional("cats_strings", AttributeKind::Strings),
        AttributeDef::optional("zeros", AttributeKind::Int),
    ],
    inputs: &[Port::required(
        "X",
        &[DType::String, DType::F32, DType::F64, DType::I32, DType::I64],
    )],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        let count = Labels::of(i.node, "cats_int64s", "cats_strings")?.len();
        let shape = i.shape(0).map(|mut s| {
            s.push(Dim::of(count));
            s
        });
        i.set(0, Some(DType::F32), shape);
        Ok(())
    },
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |p| {
        let categories = Labels::of(p.node, "cats_int64s", "cats_strings")?;
        Ok(Box::new(OneHot { categories, zeros: p.node.int_or("zeros", 1)? != 0 }))
    },
    cases: || {
        vec![
            Case::new("OneHotEncoder", 1, "numbers")
                .domain(DOMAIN)
                .attr("cats_int64s", vec![1_i64, 2])
                .input(filled(&[3], &[2.0_f32, 1.0, 9.0]))
                .output(filled(&[3, 2], &[0.0_f32, 1.0, 1.0, 0.0, 0.0, 0.0])),
            Case::new("OneHotEncoder", 1, "strings")
                .domain(DOMAIN)
                .attr("cats_strings", ["a", "b"].map(str::to_owned).to_vec())
                .attr("zeros", 0)
                .input(strings(&[1, 2], &["b", "a"]))
                .output(filled(&[1, 2, 2], &[0.0_f32, 1.0, 1.0, 0.0])),
        ]
    },
};

#[derive(Debug)]
struct OneHot {
    categories: Labels,
    zeros: bool,
}

impl CpuKernel for OneHot {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let found: Vec<Option<usize>> = match (&self.categories, x.dtype()) {
            (Labels::Strings(all), DType::String) => {
                x.as_strings()?.iter().map(|s| all.iter().position(|c| c == s)).collect()
            }
            (Labels::Numbers(all), d) if d != DType::String => {
                let numbers = cast(x, DType::I64)?;
                let place = |n: &i64| all.iter().position(|c| c == n);
                numbers.as_slice::<i64>()?.iter().map(place).collect()
            }
            (_, d) => bail!(DType, "the input is {d}, the categories are not"),
        };
        let width = self.categories.len();
        let mut shape = x.shape().to_vec();
        shape.push(width);
        crate::tensor::element_count(&shape, 4)?;
        let mut out = Tensor::zeros(DType::F32, shape)?;
        let to = out.as_mut_slice::<f32>()?;
        for (k, place) in found.into_iter().enumerate() {
            match place {
                Some(place) => to[k * width + place] = 1.0,
                None if self.zeros => {}
                None => bail!(Kernel, "element {k} is of no category, and `zeros` is 0"),
            }
        }
        io.emit(out);
        Ok(())
    }
}

/// The columns with given numbers.
pub(in crate::ops) static ARRAY_FEATURE_EXTRACTOR: OpDef = OpDef {
    name: "ArrayFeatureExtractor",
    domain: DOMAIN,
    since: 1,
    attributes: &[],
    inputs: &[Port::required("X", ANY), Port::required("Y", I64S)],
    outputs: &[Port::required("Z", ANY)],
    infer: |i| {
        let count = i.shape(1).map(|s| Dim::product(&s));
        let shape = match (i.shape(0), count) {
            (Some(x), Some(count)) if !x.is_empty() => {
                let mut shape = x[..x.len() - 1].to_vec();
                if shape.is_empty() {
                    shape.push(Dim::fixed(1));
                }
                shape.push(count);
                Some(shape)
            }
            _ => None,
        };
        i.set(0, i.dtype(0), shape);
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |_| Ok(Box::new(Extract)),
    cases: || {
        let new = |name: &str| Case::new("ArrayFeatureExtractor", 1, name).domain(DOMAIN);
        vec![
            new("columns")
                .input(iota(&[2, 3]))
                .input(filled(&[2], &[2_i64, 0]))
                .output(filled(&[2, 2], &[2_i64, 0, 5, 3])),
            new("of one row")
                .input(iota(&[3]))
                .input(filled(&[1, 1], &[1_i64]))
                .output(filled(&[1, 1], &[1_i64])),
        ]
    },
};

#[derive(Debug)]
struct Extract;

impl CpuKernel for Extract {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let Some((&columns, lead)) = x.shape().split_last() else {
            bail!(Shape, "the input is a scalar, expected columns");
        };
        let mut offsets = Vec::new();
        for n in io.tensor(1)?.as_slice::<i64>()? {
            match usize::try_from(*n).ok().filter(|n| *n < columns) {
                Some(n) => offsets.push(n),
                None => bail!(Kernel, "column {n} is asked for, there are {columns}"),
            }
        }
        let outer = lead.iter().product();
        let mut shape = if lead.is_empty() { vec![1] } else { lead.to_vec() };
        shape.push(offsets.len());
        let picked = Picked { offsets: &offsets, run: 1, outer, step: columns };
        let out = produce(io, &[x], shape, &picked)?;
        io.emit(out);
        Ok(())
    }
}

/// The features of all inputs side by side; each is cut or filled up with zeros to its width.
pub(in crate::ops) static FEATURE_VECTORIZER: OpDef = OpDef {
    name: "FeatureVectorizer",
    domain: DOMAIN,
    since: 1,
    attributes: &[AttributeDef::optional("inputdimensions", AttributeKind::Ints)],
    inputs: &[Port::variadic("X", FEATURES, 1)],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        i.set(0, Some(DType::F32), None);
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |p| {
        let widths = p.node.ints("inputdimensions")?;
        let count = p.node.inputs.len();
        let widths = match widths {
            None => vec![None; count],
            Some(w) if w.len() == count => {
                w.iter().map(|n| usize::try_from(*n).ok().filter(|n| *n < 1 << 30)).collect()
            }
            Some(w) => bail!(Graph, "attribute `inputdimensions` is {w:?}, for {count} inputs"),
        };
        Ok(Box::new(Vectorize { widths }))
    },
    cases: || {
        vec![
            Case::new("FeatureVectorizer", 1, "side by side")
                .domain(DOMAIN)
                .attr("inputdimensions", vec![1_i64, 3])
                .input(filled(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0]))
                .input(filled(&[2, 2], &[5_i64, 6, 7, 8]))
                .output(filled(&[2, 4], &[1.0_f32, 5.0, 6.0, 0.0, 3.0, 7.0, 8.0, 0.0])),
        ]
    },
};

#[derive(Debug)]
struct Vectorize {
    widths: Vec<Option<usize>>,
}

impl CpuKernel for Vectorize {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let mut parts = Vec::new();
        for (k, width) in self.widths.iter().enumerate() {
            let (t, n, own) = rows(io.tensor(k)?)?;
            parts.push((t, n, own, width.unwrap_or(own)));
        }
        let count = parts.first().map_or(0, |p| p.1);
        let total: usize = parts.iter().map(|p| p.3).sum();
        crate::tensor::element_count(&[count, total], 4)?;
        let mut out = Tensor::zeros(DType::F32, [count, total])?;
        let to = out.as_mut_slice::<f32>()?;
        let mut at = 0;
        for (t, n, own, width) in &parts {
            if *n != count {
                bail!(Shape, "inputs have {count} and {n} rows");
            }
            let from = t.as_slice::<f32>()?;
            let copied = *own.min(width);
            for row in 0..count {
                to[row * total + at..][..copied].copy_from_slice(&from[row * own..][..copied]);
            }
            at += width;
        }
        io.emit(out);
        Ok(())
    }
}

/// 1 where an element is above the threshold, else 0.
pub(in crate::ops) static BINARIZER: OpDef = OpDef {
    name: "Binarizer",
    domain: DOMAIN,
    since: 1,
    attributes: &[AttributeDef::optional("threshold", AttributeKind::Float)],
    inputs: &[Port::required("X", NUMBERS)],
    outputs: &[Port::required("Y", NUMBERS)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |p| Ok(Box::new(Binarizer { threshold: p.node.float_or("threshold", 0.0)?.into() })),
    cases: || {
        vec![
            Case::new("Binarizer", 1, "floats")
                .domain(DOMAIN)
                .attr("threshold", 1.0_f32)
                .input(filled(&[3], &[0.5_f32, 1.0, 1.5]))
                .output(filled(&[3], &[0.0_f32, 0.0, 1.0])),
            Case::new("Binarizer", 1, "whole numbers")
                .domain(DOMAIN)
                .input(filled(&[2, 1], &[-1_i64, 1]))
                .output(filled(&[2, 1], &[0_i64, 1])),
        ]
    },
};

#[derive(Debug)]
struct Binarizer {
    threshold: f64,
}

impl CpuKernel for Binarizer {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let wide = cast(x, DType::F64)?;
        let above = |v: &f64| u8::from(*v > self.threshold);
        let bits: Vec<u8> = wide.as_slice::<f64>()?.iter().map(above).collect();
        let out = cast(&Tensor::new(x.shape().clone(), bits)?, x.dtype())?;
        io.emit(out);
        Ok(())
    }
}
