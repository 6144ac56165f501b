//! The graph as a table of values and a list of nodes.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::{Fact, Node};
use crate::error::{Error, ErrorKind, Result, err};
use crate::tensor::{Tensor, Value};

/// The index of a value in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub(crate) u32);

/// The index of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub(crate) u32);

impl ValueId {
    /// The value at a place in the graph's list.
    pub(crate) fn at(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// The index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A value: an input, a constant, a parameter, or what a node makes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueInfo {
    /// A name that is unique in its graph.
    pub name: String,
    /// What is known of it.
    pub fact: Fact,
    /// Its contents, if they are known.
    pub constant: Option<Tensor>,
    /// Whether it is a parameter: bound before the first run, not fed on each.
    pub param: bool,
}

/// A graph of nodes over named values.
///
/// Nodes stand in a topological order: each reads inputs, constants, parameters and what earlier
/// nodes made ([`validate`](Self::validate) checks it).
///
/// ```
/// use brigade::graph::{Dim, Fact, Graph, Node};
/// use brigade::DType;
/// let mut graph = Graph::new("double");
/// let x = graph.add_input("x", Fact::new(DType::F32, [Dim::symbol("N")])).unwrap();
/// let y = graph.add_value("y", Fact::unknown()).unwrap();
/// graph.add_node("add", "Add", [Some(x), Some(x)], [Some(y)]);
/// graph.set_outputs([y]);
/// graph.validate().unwrap();
/// assert_eq!(graph.nodes().len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// The graph's name.
    pub name: String,
    /// Metadata of the file that it came from.
    pub metadata: BTreeMap<String, String>,
    /// Operator-set version by domain; `""` is ai.onnx.
    pub opsets: BTreeMap<String, i64>,
    pub(crate) values: Vec<ValueInfo>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) inputs: Vec<ValueId>,
    pub(crate) outputs: Vec<ValueId>,
    fresh: u32,
}

/// The operator-set version of graphs that are built by hand.
pub(crate) const DEFAULT_OPSET: i64 = 21;

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            opsets: BTreeMap::from([(String::new(), DEFAULT_OPSET)]),
            ..Self::default()
        }
    }

    /// An empty graph with this one's metadata and opsets, whose fresh symbols clash with none of
    /// this one's: what a part of this graph is built in.
    pub(crate) fn part(&self, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            metadata: self.metadata.clone(),
            opsets: self.opsets.clone(),
            fresh: self.fresh,
            ..Self::default()
        }
    }

    /// Adds a value that a node will make.
    ///
    /// # Errors
    /// If the table is full (2³² values).
    pub fn add_value(&mut self, name: impl Into<String>, fact: Fact) -> Result<ValueId> {
        self.push_value(ValueInfo { name: name.into(), fact, constant: None, param: false })
    }

    /// Adds an input.
    ///
    /// # Errors
    /// As [`Self::add_value`].
    pub fn add_input(&mut self, name: impl Into<String>, fact: Fact) -> Result<ValueId> {
        let id = self.add_value(name, fact)?;
        self.inputs.push(id);
        Ok(id)
    }

    /// Adds a constant.
    ///
    /// # Errors
    /// As [`Self::add_value`].
    pub fn add_constant(&mut self, name: impl Into<String>, tensor: Tensor) -> Result<ValueId> {
        self.push_value(ValueInfo {
            name: name.into(),
            fact: Fact::of(&tensor),
            constant: Some(tensor),
            param: false,
        })
    }

    /// Adds a parameter: a value that is bound before the first run.
    ///
    /// # Errors
    /// As [`Self::add_value`].
    pub fn add_param(&mut self, name: impl Into<String>, fact: Fact) -> Result<ValueId> {
        self.push_value(ValueInfo { name: name.into(), fact, constant: None, param: true })
    }

    pub(crate) fn push_value(&mut self, info: ValueInfo) -> Result<ValueId> {
        let id = u32::try_from(self.values.len())
            .map_err(|_| err!(Limit, "graph `{}` has too many values", self.name))?;
        self.values.push(info);
        Ok(ValueId(id))
    }

    /// Adds a node of the ai.onnx domain without attributes; change it through what is returned.
    pub fn add_node(
        &mut self,
        name: impl Into<String>,
        op: impl Into<String>,
        inputs: impl IntoIterator<Item = Option<ValueId>>,
        outputs: impl IntoIterator<Item = Option<ValueId>>,
    ) -> &mut Node {
        let version = self.opsets.get("").copied().unwrap_or(DEFAULT_OPSET);
        self.nodes.push(Node {
            name: name.into(),
            op: op.into(),
            domain: String::new(),
            version,
            inputs: inputs.into_iter().collect(),
            outputs: outputs.into_iter().collect(),
            attributes: BTreeMap::new(),
            captures: 0,
        });
        let last = self.nodes.len() - 1;
        &mut self.nodes[last]
    }

    /// Turns an input into a constant, so that passes can compute with it. It is no input any
    /// more.
    ///
    /// ```
    /// use brigade::graph::{Dim, Fact, Graph};
    /// use brigade::{DType, Tensor};
    /// let mut graph = Graph::new("g");
    /// let sr = graph.add_input("sr", Fact::concrete(DType::I64, &[]))?;
    /// graph.bind_input("sr", Tensor::scalar(16_000_i64))?;
    /// assert!(graph.inputs().is_empty());
    /// assert!(graph.value(sr).constant.is_some());
    /// # Ok::<(), brigade::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such input, or it is declared with another dtype or shape.
    pub fn bind_input(&mut self, name: &str, tensor: Tensor) -> Result<()> {
        let Some(at) = self.inputs.iter().position(|v| self.value(*v).name == name) else {
            let names: Vec<String> = self.input_names().map(|n| format!("`{n}`")).collect();
            return Err(err!(UnknownName, "graph `{}` has no input `{name}`", self.name)
                .with_help(format!("its inputs are {}", names.join(", "))));
        };
        let id = self.inputs[at];
        let fact = &self.value(id).fact;
        let dtype_differs = fact.dtype.is_some_and(|d| d != tensor.dtype());
        if let Err(why) = fact.admits(&Value::from(tensor.clone())) {
            let kind = if dtype_differs { ErrorKind::DType } else { ErrorKind::Shape };
            return Err(Error::new(kind, format!("input `{name}`: {why}")));
        }
        self.inputs.remove(at);
        let info = self.value_mut(id);
        info.fact = Fact::of(&tensor);
        info.constant = Some(tensor);
        Ok(())
    }

    /// Declares the outputs, in order.
    pub fn set_outputs(&mut self, outputs: impl IntoIterator<Item = ValueId>) {
        self.outputs = outputs.into_iter().collect();
    }

    /// The nodes, in a topological order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes with their ids.
    pub fn node_ids(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// The values.
    pub fn values(&self) -> &[ValueInfo] {
        &self.values
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &ValueInfo {
        &self.values[id.index()]
    }

    /// A value, for changing.
    pub fn value_mut(&mut self, id: ValueId) -> &mut ValueInfo {
        &mut self.values[id.index()]
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The names of the inputs, in order.
    pub fn input_names(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|v| self.value(*v).name.as_str())
    }

    /// The names of the outputs, in order.
    pub fn output_names(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().map(|v| self.value(*v).name.as_str())
    }

    /// The value with this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|v| v.name == name).map(|i| ValueId(i as u32))
    }

    /// Forgets the contents of large constants, which whoever compiled the graph has by now; what
    /// they are is still known. Small ones are kept, because shapes are made of them.
    pub(crate) fn release_constants(&mut self) {
        const LARGE_BYTES: usize = 16 << 10;
        for info in &mut self.values {
            if info.constant.as_ref().is_some_and(|t| t.bytes() >= LARGE_BYTES) {
                info.constant = None;
            }
        }
    }

    /// The parameters that have no contents yet.
    pub fn unbound_params(&self) -> impl Iterator<Item = &ValueInfo> {
        self.values.iter().filter(|v| v.param && v.constant.is_none())
    }

    /// Which node makes each value.
    pub fn producers(&self) -> Vec<Option<NodeId>> {
        let mut out = vec![None; self.values.len()];
        for (id, node) in self.node_ids() {
            for v in node.makes() {
                out[v.index()] = Some(id);
            }
        }
        out
    }

    /// Which nodes read each value, in order, each once.
    pub fn consumers(&self) -> Vec<Vec<NodeId>> {
        let mut out: Vec<Vec<NodeId>> = vec![Vec::new(); self.values.len()];
        for (id, node) in self.node_ids() {
            for v in node.reads() {
                if out[v.index()].last() != Some(&id) {
                    out[v.index()].push(id);
                }
            }
        }
        out
    }

    /// A symbol that the graph does not use yet.
    pub fn fresh_symbol(&mut self) -> super::Dim {
        self.fresh += 1;
        super::Dim::symbol(format!("?{}", self.fresh))
    }

    /// How many nodes there are of each operator, subgraphs included.
    pub fn op_counts(&self) -> BTreeMap<String, usize> {
        fn walk(graph: &Graph, counts: &mut BTreeMap<String, usize>) {
            for node in &graph.nodes {
                *counts.entry(node.qualified_op()).or_insert(0) += 1;
                for (_, sub) in node.subgraphs() {
                    walk(sub, counts);
                }
            }
        }
        let mut counts = BTreeMap::new();
        walk(self, &mut counts);
        counts
    }

    /// Keeps only what the outputs need: drops nodes and values that nothing reads, and renumbers.
    /// Inputs and parameters stay, so that the interface does not change. Says whether there was
    /// anything to drop; if not, nothing has another number.
    pub fn compact(&mut self) -> bool {
        let mut used = vec![false; self.values.len()];
        for v in self.outputs.iter().chain(&self.inputs) {
            used[v.index()] = true;
        }
        for (v, info) in used.iter_mut().zip(&self.values) {
            *v |= info.param;
        }
        let mut keep = vec![false; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if node.makes().any(|v| used[v.index()]) {
                keep[i] = true;
                for v in node.reads().chain(node.makes()) {
                    used[v.index()] = true;
                }
            }
        }
        if used.iter().all(|used| *used) && keep.iter().all(|keep| *keep) {
            return false;
        }
        let mut flags = keep.iter();
        self.nodes.retain(|_| flags.next().copied().unwrap_or(false));
        let mut new_ids: HashMap<u32, ValueId> = HashMap::new();
        let old = std::mem::take(&mut self.values);
        for (i, info) in old.into_iter().enumerate() {
            if used[i] {
                new_ids.insert(i as u32, ValueId(self.values.len() as u32));
                self.values.push(info);
            }
        }
        let map = |v: &mut ValueId| {
            if let Some(new) = new_ids.get(&v.0) {
                *v = *new;
            }
        };
        self.inputs.iter_mut().for_each(map);
        self.outputs.iter_mut().for_each(map);
        for node in &mut self.nodes {
            node.inputs.iter_mut().chain(&mut node.outputs).flatten().for_each(map);
        }
        true
    }

    /// Puts a node of a unary operator behind every input and in front of every output.
    ///
    /// # Errors
    /// If the table of values is full.
    #[cfg(feature = "onnx")]
    pub(crate) fn wrap_ports(&mut self, op: &str) -> Result<()> {
        let mut front = Vec::new();
        for k in 0..self.inputs.len() {
            let (fed, fact) = (self.inputs[k], self.value(self.inputs[k]).fact.clone());
            let inner = self.add_value(format!("{}/fed", self.value(fed).name), fact)?;
            for node in &mut self.nodes {
                node.inputs.iter_mut().flatten().filter(|v| **v == fed).for_each(|v| *v = inner);
            }
            self.outputs.iter_mut().filter(|v| **v == fed).for_each(|v| *v = inner);
            self.add_node(format!("{op}/fed/{k}"), op, [Some(fed)], [Some(inner)]);
            front.extend(self.nodes.pop());
        }
        self.nodes.splice(0..0, front);
        for k in 0..self.outputs.len() {
            let made = self.outputs[k];
            let name = self.value(made).name.clone();
            self.value_mut(made).name = format!("{name}/made/{k}");
            let fact = Fact { shape: None, ..self.value(made).fact.clone() };
            let outer = self.add_value(name, fact)?;
            self.add_node(format!("{op}/made/{k}"), op, [Some(made)], [Some(outer)]);
            self.outputs[k] = outer;
        }
        Ok(())
    }

    /// Replaces every use of `from` (by nodes and as an output) by `to`.
    pub fn replace_uses(&mut self, from: ValueId, to: ValueId) {
        for node in &mut self.nodes {
            for v in node.inputs.iter_mut().flatten().filter(|v| **v == from) {
                *v = to;
            }
        }
        for v in self.outputs.iter_mut().filter(|v| **v == from) {
            *v = to;
        }
    }
}
