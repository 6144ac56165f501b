//! Building graphs by hand: each step infers the shape of what it makes.

use super::OpRegistry;
use super::infer::infer_last;
use crate::error::{Result, bail, err};
use crate::graph::{Attribute, Dim, Fact, Graph, ValueId};
use crate::tensor::{DType, Tensor};

/// An extent of an input: a number or a symbol.
#[derive(Clone, Debug)]
pub struct Extent(Dim);

impl From<usize> for Extent {
    fn from(n: usize) -> Self {
        Self(Dim::of(n))
    }
}

impl From<&str> for Extent {
    fn from(name: &str) -> Self {
        Self(Dim::symbol(name))
    }
}

/// Builds a [`Graph`] step by step. Shapes are inferred, contradictions are found at once.
///
/// ```
/// use brigade::ops::builder::GraphBuilder;
/// use brigade::DType;
/// let mut g = GraphBuilder::new("layer");
/// let x = g.input("x", DType::F32, ["N".into(), 4.into()])?;
/// let w = g.param("w", DType::F32, &[4, 2])?;
/// let y = g.matmul(x, w)?;
/// let y = g.relu(y)?;
/// assert_eq!(g.fact(y).to_string(), "f32[N,2]");
/// let graph = g.finish([("y", y)])?;
/// assert_eq!(graph.nodes().len(), 2);
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    registry: OpRegistry,
    counter: usize,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self::with_registry(name, OpRegistry::default())
    }

    /// An empty graph over these operators.
    pub fn with_registry(name: impl Into<String>, registry: OpRegistry) -> Self {
        Self { graph: Graph::new(name), registry, counter: 0 }
    }

    /// An input.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn input(
        &mut self,
        name: &str,
        dtype: DType,
        shape: impl IntoIterator<Item = Extent>,
    ) -> Result<ValueId> {
        self.unused(name)?;
        self.graph.add_input(name, Fact::new(dtype, shape.into_iter().map(|e| e.0)))
    }

    /// A parameter: bound before the first run.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn param(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<ValueId> {
        self.unused(name)?;
        self.graph.add_param(name, Fact::concrete(dtype, shape))
    }

    /// A constant.
    ///
    /// # Errors
    /// If the graph is full.
    pub fn constant(&mut self, tensor: Tensor) -> Result<ValueId> {
        let name = self.fresh_name("constant");
        self.graph.add_constant(name, tensor)
    }

    /// One application of any operator with one output: `Name` for one of ai.onnx,
    /// `domain.Name` for one of another domain.
    ///
    /// # Errors
    /// If there is no such operator, or the inputs contradict it.
    pub fn op(
        &mut self,
        op: &str,
        inputs: &[ValueId],
        attributes: &[(&str, Attribute)],
    ) -> Result<ValueId> {
        let inputs: Vec<Option<ValueId>> = inputs.iter().map(|v| Some(*v)).collect();
        let out = self.apply(op, &inputs, attributes, 1)?;
        out.first().copied().ok_or_else(|| err!(Internal, "{op} made nothing"))
    }

    /// One application of any operator, named as for [`Self::op`], with several outputs and
    /// optional inputs.
    ///
    /// # Errors
    /// As [`Self::op`].
    pub fn apply(
        &mut self,
        op: &str,
        inputs: &[Option<ValueId>],
        attributes: &[(&str, Attribute)],
        outputs: usize,
    ) -> Result<Vec<ValueId>> {
        for v in inputs.iter().flatten() {
            if v.index() >= self.graph.values().len() {
                bail!(Graph, "{op} reads a value of another graph");
            }
        }
        let (domain, op) = op.rsplit_once('.').unwrap_or(("", op));
        let name = self.fresh_name(op);
        let mut made = Vec::with_capacity(outputs);
        for i in 0..outputs {
            let value = if i == 0 { format!("{name}_out") } else { format!("{name}_out{i}") };
            made.push(self.graph.add_value(value, Fact::unknown())?);
        }
        let node =
            self.graph.add_node(name, op, inputs.iter().copied(), made.iter().map(|v| Some(*v)));
        let since = self.registry.get(domain, op).map_or(1, |def| def.since);
        if domain.is_empty() {
            // An operator of a later operator set than the graph's is meant as it came to be.
            node.version = node.version.max(since);
        } else {
            // Outside of ai.onnx the version that is implemented is the one that is meant.
            node.version = since;
            domain.clone_into(&mut node.domain);
        }
        node.attributes.extend(attributes.iter().map(|(k, a)| ((*k).to_owned(), a.clone())));
        let checked = infer_last(&mut self.graph, &self.registry);
        if let Err(e) = checked {
            self.graph.nodes.pop();
            self.graph.values.truncate(self.graph.values.len() - outputs);
            return Err(e);
        }
        Ok(made)
    }

    /// What is known of a value.
    pub fn fact(&self, value: ValueId) -> &Fact {
        &self.graph.value(value).fact
    }

    /// The graph, with these outputs under these names.
    ///
    /// # Errors
    /// If a name is taken by another value, or the graph is not well formed.
    pub fn finish<'a>(
        mut self,
        outputs: impl IntoIterator<Item = (&'a str, ValueId)>,
    ) -> Result<Graph> {
        let mut ids = Vec::new();
        for (name, v) in outputs {
            let is_made = self.graph.nodes().iter().any(|n| n.makes().any(|m| m == v));
            let current = self.graph.value(v).name.clone();
            if current != name {
                self.unused(name)?;
                if is_made && !ids.contains(&v) {
                    self.graph.value_mut(v).name = name.to_owned();
                    ids.push(v);
                } else {
                    let copy = self.op("Identity", &[v], &[])?;
                    self.graph.value_mut(copy).name = name.to_owned();
                    ids.push(copy);
                }
            } else {
                ids.push(v);
            }
        }
        self.graph.set_outputs(ids);
        self.graph.validate()?;
        Ok(self.graph)
    }

    fn unused(&self, name: &str) -> Result<()> {
        match self.graph.find(name) {
            None => Ok(()),
            Some(_) => bail!(Duplicate, "graph `{}` has a value named `{name}`", self.graph.name),
        }
    }

    fn fresh_name(&mut self, stem: &str) -> String {
        loop {
            let name = format!("{}_{}", stem.to_lowercase(), self.counter);
            self.counter += 1;
            if self.graph.find(&name).is_none() {
                return name;
            }
        }
    }
}

macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident ( $($arg:ident),* ) = $op:literal;)*) => {
        impl GraphBuilder { $(
            $(#[$doc])*
            ///
            /// # Errors
            /// If the inputs contradict the operator.
            pub fn $name(&mut self, $($arg: ValueId),*) -> Result<ValueId> {
                self.op($op, &[$($arg),*], &[])
            }
        )* }
    };
}

verbs! {
    /// `a · b`, with ONNX `MatMul` broadcasting.
    matmul(a, b) = "MatMul";
    /// `a + b`, with broadcasting.
    add(a, b) = "Add";
    /// `a - b`, with broadcasting.
    sub(a, b) = "Sub";
    /// `a * b`, with broadcasting.
    mul(a, b) = "Mul";
    /// `a / b`, with broadcasting.
    div(a, b) = "Div";
    /// `max(x, 0)`.
    relu(x) = "Relu";
    /// `1 / (1 + exp(-x))`.
    sigmoid(x) = "Sigmoid";
    /// `tanh(x)`.
    tanh(x) = "Tanh";
    /// `exp(x)`.
    exp(x) = "Exp";
    /// `sqrt(x)`.
    sqrt(x) = "Sqrt";
}

impl GraphBuilder {
    /// `x` in another shape (0 keeps an extent, -1 is inferred).
    ///
    /// # Errors
    /// If the number of elements differs.
    pub fn reshape(&mut self, x: ValueId, shape: &[i64]) -> Result<ValueId> {
        let shape = self.constant(Tensor::of_i64(shape))?;
        self.op("Reshape", &[x, shape], &[])
    }

    /// `x` with its axes permuted.
    ///
    /// # Errors
    /// If it is no permutation of the axes.
    pub fn transpose(&mut self, x: ValueId, permutation: &[i64]) -> Result<ValueId> {
        self.op("Transpose", &[x], &[("perm", permutation.into())])
    }

    /// Softmax along an axis.
    ///
    /// # Errors
    /// If there is no such axis.
    pub fn softmax(&mut self, x: ValueId, axis: i64) -> Result<ValueId> {
        self.op("Softmax", &[x], &[("axis", axis.into())])
    }

    /// Several values joined along an axis.
    ///
    /// # Errors
    /// If their other extents differ.
    pub fn concat(&mut self, parts: &[ValueId], axis: i64) -> Result<ValueId> {
        self.op("Concat", parts, &[("axis", axis.into())])
    }

    /// `x · decode(w)ᵀ`: a product with weights that stay in blocks of `format` (a name of
    /// [`BLOCK_FORMATS`](crate::kernels::BLOCK_FORMATS)). `x` is f32 `[.., K]`, `w` u8
    /// `[N, bytes of a row]`, the result f32 `[.., N]`.
    ///
    /// `w` is a parameter that [`WeightRef::packed`](crate::WeightRef::packed) is bound to, or a
    /// constant.
    ///
    /// # Errors
    /// If there is no such format, or the extents do not go together.
    ///
    /// ```
    /// use brigade::ops::builder::GraphBuilder;
    /// use brigade::DType;
    /// let mut g = GraphBuilder::new("layer");
    /// let x = g.input("x", DType::F32, ["N".into(), 512.into()])?;
    /// let w = g.param("w", DType::U8, &[64, 2 * 144])?; // 64 rows of two blocks
    /// let y = g.dequant_matmul(x, w, "Q4_K")?;
    /// assert_eq!(g.fact(y).to_string(), "f32[N,64]");
    /// # Ok::<(), brigade::Error>(())
    /// ```
    pub fn dequant_matmul(&mut self, x: ValueId, w: ValueId, format: &str) -> Result<ValueId> {
        self.op("brigade.DequantMatMul", &[x, w], &[("format", format.into())])
    }

    /// Rows of `decode(w)`, by index: an embedding that stays in blocks of `format`. `w` is as for
    /// [`Self::dequant_matmul`], `indices` i32 or i64; the result is f32 `[.., K]`.
    ///
    /// # Errors
    /// If there is no such format, or the extents do not go together.
    pub fn dequant_gather(
        &mut self,
        w: ValueId,
        indices: ValueId,
        format: &str,
    ) -> Result<ValueId> {
        self.op("brigade.DequantGather", &[w, indices], &[("format", format.into())])
    }
}
