//! `LabelEncoder`.

use std::collections::HashMap;
use std::hash::Hash;

use super::DOMAIN;
use crate::error::{Result, bail};
use crate::graph::{Attribute, Node};
use crate::ops::case::{Case, filled};
use crate::ops::text::strings;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

const KEYS: &[DType] = &[DType::String, DType::I64, DType::F32, DType::I32, DType::I16, DType::F64];

/// Each element replaced by the value of its key, or by a default.
pub(in crate::ops) static LABEL_ENCODER: OpDef = OpDef {
    name: "LabelEncoder",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        AttributeDef::optional("classes_strings", AttributeKind::Strings),
        AttributeDef::optional("default_float", AttributeKind::Float),
        AttributeDef::optional("default_int64", AttributeKind::Int),
        AttributeDef::optional("default_string", AttributeKind::String),
        AttributeDef::optional("default_tensor", AttributeKind::Tensor),
        AttributeDef::optional("keys_floats", AttributeKind::Floats),
        AttributeDef::optional("keys_int64s", AttributeKind::Ints),
        AttributeDef::optional("keys_strings", AttributeKind::Strings),
        AttributeDef::optional("keys_tensor", AttributeKind::Tensor),
        AttributeDef::optional("values_floats", AttributeKind::Floats),
        AttributeDef::optional("values_int64s", AttributeKind::Ints),
        AttributeDef::optional("values_strings", AttributeKind::Strings),
        AttributeDef::optional("values_tensor", AttributeKind::Tensor),
    ],
    inputs: &[Port::required("X", KEYS)],
    outputs: &[Port::required("Y", KEYS)],
    infer: |i| {
        let dtype = Encoder::of(i.node, i.dtype(0)).map(|e| e.values.dtype()).ok();
        i.set(0, dtype, i.shape(0));
        Ok(())
    },
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |p| Ok(Box::new(Encoder::of(p.node, p.dtype(0))?)),
    cases: || {
        let new =
            |version: i64, name: &str| Case::new("LabelEncoder", version, name).domain(DOMAIN);
        vec![
            new(2, "strings to numbers")
                .attr("keys_strings", ["a", "b"].map(str::to_owned).to_vec())
                .attr("values_int64s", vec![7_i64, 9])
                .attr("default_int64", -3)
                .input(strings(&[3], &["b", "x", "a"]))
                .output(filled(&[3], &[9_i64, -3, 7])),
            new(2, "numbers to floats")
                .attr("keys_int64s", vec![1_i64, 2])
                .attr("values_floats", vec![0.5_f32, 1.5])
                .input(filled(&[3, 1], &[2_i64, 1, 9]))
                .output(filled(&[3, 1], &[1.5_f32, 0.5, 0.0])),
            new(4, "tensors")
                .attr("keys_tensor", strings(&[2], &["a", "b"]))
                .attr("values_tensor", filled(&[2], &[1_i16, 2]))
                .attr("default_tensor", filled(&[1], &[42_i16]))
                .input(strings(&[2], &["b", "?"]))
                .output(filled(&[2], &[2_i16, 42])),
            new(2, "NaN is a key")
                .attr("keys_floats", vec![f32::NAN, 1.0])
                .attr("values_strings", ["none", "one"].map(str::to_owned).to_vec())
                .input(filled(&[3], &[f32::NAN, 1.0, 2.0]))
                .output(strings(&[3], &["none", "one", "_Unused"])),
            new(1, "the place in a list")
                .attr("classes_strings", ["a", "b"].map(str::to_owned).to_vec())
                .attr("default_int64", -1)
                .input(strings(&[2], &["b", "c"]))
                .output(filled(&[2], &[1_i64, -1])),
        ]
    },
};

#[derive(Debug)]
enum Keys {
    Strings(HashMap<String, usize>),
    /// Whole numbers of any width.
    Numbers(HashMap<i64, usize>),
    /// The bits of f64; all NaNs are one.
    Floats(HashMap<u64, usize>),
}

#[derive(Debug)]
struct Encoder {
    keys: Keys,
    /// The values, with the default behind them.
    values: Tensor,
}

fn bits(v: f64) -> u64 {
    // 0 and -0 are equal.
    if v.is_nan() { f64::NAN.to_bits() } else { (v + 0.0).to_bits() }
}

fn index<T: Hash + Eq>(keys: impl IntoIterator<Item = T>) -> HashMap<T, usize> {
    keys.into_iter().enumerate().map(|(k, key)| (key, k)).collect()
}

fn doubles(t: &Tensor) -> Result<Vec<f64>> {
    Ok(cast(t, DType::F64)?.as_slice::<f64>()?.to_vec())
}

/// The attribute of a kind, whatever it is of, as a tensor.
fn listed(node: &Node, what: &str) -> Result<Option<Tensor>> {
    for kind in ["tensor", "strings", "int64s", "floats"] {
        match node.attributes.get(&format!("{what}_{kind}")) {
            Some(Attribute::Tensor(t)) => return Ok(Some(t.clone())),
            Some(Attribute::Strings(s)) => {
                return Tensor::from_strings([s.len()], s.clone()).map(Some);
            }
            Some(Attribute::Ints(v)) => return Ok(Some(Tensor::of_i64(v))),
            Some(Attribute::Floats(v)) => return Tensor::new([v.len()], v.clone()).map(Some),
            _ => {}
        }
    }
    Ok(None)
}

impl Encoder {
    fn of(node: &Node, input: Option<DType>) -> Result<Self> {
        let (keys, values) = if node.version < 2 {
            let Some(classes) = node.strings("classes_strings")? else {
                bail!(Graph, "attribute `classes_strings` is missing");
            };
            let names = Tensor::from_strings([classes.len()], classes.to_vec())?;
            let places = Tensor::of_i64(&(0..classes.len() as i64).collect::<Vec<_>>());
            if input == Some(DType::String) { (names, places) } else { (places, names) }
        } else {
            let (Some(keys), Some(values)) = (listed(node, "keys")?, listed(node, "values")?)
            else {
                bail!(Graph, "the attributes of keys or of values are missing");
            };
            (keys, values)
        };
        if keys.len() != values.len() {
            bail!(Graph, "there are {} keys and {} values", keys.len(), values.len());
        }
        let default = match node.tensor("default_tensor")? {
            Some(t) if t.len() == 1 => t.reshape([1])?,
            Some(t) => bail!(Graph, "attribute `default_tensor` is {}", t.describe()),
            None => match values.dtype() {
                DType::String => {
                    let text = node.string("default_string")?.unwrap_or("_Unused");
                    Tensor::from_strings([1], vec![text.to_owned()])?
                }
                d if d.is_float() => {
                    let zero = node.float_or("default_float", -0.0)?;
                    cast(&Tensor::new([1], vec![zero])?, d)?
                }
                d => cast(&Tensor::of_i64(&[node.int_or("default_int64", -1)?]), d)?,
            },
        };
        if default.dtype() != values.dtype() {
            bail!(Graph, "the values are {}, the default {}", values.dtype(), default.dtype());
        }
        let values = values.reshape([values.len()])?;
        let values = match values.dtype() {
            DType::String => {
                let mut all = values.as_strings()?.to_vec();
                all.extend_from_slice(default.as_strings()?);
                Tensor::from_strings([all.len()], all)?
            }
            _ => Tensor::concat(&[values, default], 0)?,
        };
        let keys = match keys.dtype() {
            DType::String => Keys::Strings(index(keys.as_strings()?.iter().cloned())),
            d if d.is_float() => Keys::Floats(index(doubles(&keys)?.into_iter().map(bits))),
            _ => Keys::Numbers(index(keys.to_i64s()?)),
        };
        Ok(Self { keys, values })
    }
}

impl CpuKernel for Encoder {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let last = self.values.len() - 1;
        let of = |found: Option<&usize>| found.copied().unwrap_or(last);
        let places: Vec<usize> = match (&self.keys, x.dtype()) {
            (Keys::Strings(keys), DType::String) => {
                x.as_strings()?.iter().map(|s| of(keys.get(s))).collect()
            }
            (Keys::Floats(keys), d) if d.is_float() => {
                doubles(x)?.into_iter().map(|v| of(keys.get(&bits(v)))).collect()
            }
            (Keys::Numbers(keys), d) if d.is_int() => {
                x.to_i64s()?.iter().map(|n| of(keys.get(n))).collect()
            }
            (_, d) => bail!(DType, "the input is {d}, the keys are not"),
        };
        let picked = crate::ops::movement::Picked { offsets: &places, run: 1, outer: 1, step: 0 };
        let out = crate::ops::movement::produce(io, &[&self.values], x.shape().clone(), &picked)?;
        io.emit(out);
        Ok(())
    }
}
