//! Nodes and their attributes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::depth::nested_graph;
use super::{Graph, ValueId};
use crate::error::{Result, bail};
use crate::tensor::Tensor;

/// An attribute of a node, typed as in ONNX.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Attribute {
    Int(i64),
    #[serde(with = "super::float_text")]
    Float(f32),
    String(String),
    Tensor(Tensor),
    #[serde(deserialize_with = "nested_graph")]
    Graph(Box<Graph>),
    Ints(Vec<i64>),
    #[serde(with = "super::float_text::list")]
    Floats(Vec<f32>),
    Strings(Vec<String>),
    Tensors(Vec<Tensor>),
    #[serde(deserialize_with = "nested_graph")]
    Graphs(Vec<Graph>),
}

impl Attribute {
    /// The kind in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::String(_) => "string",
            Self::Tensor(_) => "tensor",
            Self::Graph(_) => "graph",
            Self::Ints(_) => "ints",
            Self::Floats(_) => "floats",
            Self::Strings(_) => "strings",
            Self::Tensors(_) => "tensors",
            Self::Graphs(_) => "graphs",
        }
    }
}

macro_rules! from_attribute {
    ($($t:ty => $v:ident),*) => { $(
        impl From<$t> for Attribute { fn from(v: $t) -> Self { Self::$v(v.into()) } }
    )* };
}
from_attribute!(i64 => Int, f32 => Float, &str => String, String => String, Tensor => Tensor,
    Vec<i64> => Ints, &[i64] => Ints, Vec<f32> => Floats, Vec<String> => Strings, Graph => Graph);

/// One application of an operator.
///
/// Subgraphs (`If`, `Loop`, `Scan`) take the outer values that they use as explicit inputs: the
/// last [`captures`](Self::captures) inputs of the node are also the last inputs of each of its
/// subgraphs, in the same order. So the inputs of a node are everything that it reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// A name that is unique in its graph.
    pub name: String,
    /// The operator's name, as in ONNX.
    pub op: String,
    /// The operator's domain; empty for ai.onnx.
    pub domain: String,
    /// The version of the operator set that the node was written for, or
    /// [`UNDECLARED`](Self::UNDECLARED).
    pub version: i64,
    /// What it reads; an optional input that is left out is `None`.
    pub inputs: Vec<Option<ValueId>>,
    /// What it makes; an output that nobody asked for is `None`.
    pub outputs: Vec<Option<ValueId>>,
    /// The attributes by name.
    pub attributes: BTreeMap<String, Attribute>,
    /// How many of the last inputs are captured by the subgraphs.
    pub captures: usize,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident $variant:ident $ty:ty, $e:ident => $out:expr;)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// If the attribute is there and of another kind.
        pub fn $name(&self, name: &str) -> Result<Option<$ty>> {
            match self.attributes.get(name) {
                None => Ok(None),
                Some(Attribute::$variant($e)) => Ok(Some($out)),
                Some(other) => Err($crate::error::err!(Graph, "attribute `{name}` is of kind {}, not {}",
                    other.kind(), stringify!($variant).to_lowercase())
                    .with_node(&self.name, &self.op)),
            }
        }
    )* };
}

impl Node {
    /// The [`version`](Self::version) of a node whose operator set the model does not import.
    pub const UNDECLARED: i64 = 0;

    getters! {
        /// A whole number.
        int Int i64, v => *v;
        /// A float.
        float Float f32, v => *v;
        /// A string.
        string String &str, v => v.as_str();
        /// A tensor.
        tensor Tensor &Tensor, v => v;
        /// A subgraph.
        graph Graph &Graph, v => v;
        /// Whole numbers.
        ints Ints &[i64], v => v.as_slice();
        /// Floats.
        floats Floats &[f32], v => v.as_slice();
        /// Strings.
        strings Strings &[String], v => v.as_slice();
    }

    /// A whole number, or `default` where it is left out.
    ///
    /// # Errors
    /// If the attribute is of another kind.
    pub fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// A float, or `default` where it is left out.
    ///
    /// # Errors
    /// If the attribute is of another kind.
    pub fn float_or(&self, name: &str, default: f32) -> Result<f32> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    /// A whole number that must be given.
    ///
    /// # Errors
    /// If the attribute is missing or of another kind.
    pub fn required_int(&self, name: &str) -> Result<i64> {
        match self.int(name)? {
            Some(v) => Ok(v),
            None => bail!(Graph, "node `{}` ({}) lacks its attribute `{name}`", self.name, self.op),
        }
    }

    /// The subgraphs among the attributes, by attribute name.
    pub fn subgraphs(&self) -> impl Iterator<Item = (&str, &Graph)> {
        self.attributes.iter().filter_map(|(k, a)| match a {
            Attribute::Graph(g) => Some((k.as_str(), &**g)),
            _ => None,
        })
    }

    /// The subgraphs among the attributes, for changing.
    pub fn subgraphs_mut(&mut self) -> impl Iterator<Item = &mut Graph> {
        self.attributes.values_mut().filter_map(|a| match a {
            Attribute::Graph(g) => Some(&mut **g),
            _ => None,
        })
    }

    /// Whether it, or a node of its subgraphs, draws random numbers: it may give something else each
    /// time, so that a copy of it is not the same as the original, nor one run the same as another.
    pub fn is_random(&self) -> bool {
        const RANDOM: &[&str] = &[
            "Bernoulli",
            "Multinomial",
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
        ];
        let training = self.op == "Dropout" && self.inputs.get(2).is_some_and(Option::is_some);
        training
            || RANDOM.contains(&self.op.as_str())
            || self.subgraphs().any(|(_, g)| g.nodes().iter().any(Self::is_random))
    }

    /// The values that it reads.
    pub fn reads(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.inputs.iter().flatten().copied()
    }

    /// The values that it makes.
    pub fn makes(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.outputs.iter().flatten().copied()
    }

    /// The operator with its domain, such as `Conv` or `com.microsoft.Gelu`.
    pub fn qualified_op(&self) -> String {
        if self.domain.is_empty() {
            self.op.clone()
        } else {
            format!("{}.{}", self.domain, self.op)
        }
    }
}
