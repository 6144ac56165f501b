//! `GraphProto` messages: names are looked up, and what subgraphs capture is made explicit.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::attribute::Read;
use super::{Importer, Opsets, domain_of, fact, pb, some_of};
use crate::error::{Result, bail, err};
use crate::graph::{Attribute, Fact, Graph, Node, ValueId, ValueInfo};
use crate::tensor::Tensor;

/// What a subgraph takes from the graph around it: the outer value and its own.
pub(super) type Captured = Vec<(ValueId, ValueId)>;

/// A graph that is being built.
#[derive(Default)]
pub(super) struct Scope {
    graph: Graph,
    by_name: HashMap<String, ValueId>,
    captured: Captured,
}

/// A node of the file, or of a function in it, with the operator sets that it is written for.
pub(super) struct SourceNode {
    pub(super) proto: pb::NodeProto,
    pub(super) opsets: Rc<Opsets>,
}

impl Importer<'_> {
    /// Builds a graph, and says what it takes from those around it.
    ///
    /// All values are defined before any node is built, so that the order of nodes in the file
    /// does not matter and an inner name hides an outer one throughout.
    pub(super) fn build(
        &mut self,
        mut proto: pb::GraphProto,
        opsets: &Rc<Opsets>,
    ) -> Result<(Graph, Captured)> {
        if self.scopes.len() > self.limits.max_depth {
            let max = self.limits.max_depth;
            bail!(Limit, "subgraphs are nested more than {max} deep");
        }
        let top = self.scopes.is_empty();
        let mut graph = Graph::new(proto.name.take().unwrap_or_default());
        graph.opsets = Opsets::clone(opsets);
        if let Some(doc) = proto.doc_string.take().filter(|d| top && !d.is_empty()) {
            graph.metadata.insert("onnx.graph.doc_string".to_owned(), doc);
        }
        self.scopes.push(Scope { graph, ..Scope::default() });

        self.define_inputs(&proto, top)?;
        self.define_initialisers(std::mem::take(&mut proto.initializer), top)?;
        self.define_sparse(std::mem::take(&mut proto.sparse_initializer), top)?;
        let mut nodes = Vec::with_capacity(proto.node.len());
        self.expand(std::mem::take(&mut proto.node), opsets, 0, &mut nodes)?;
        self.name_nodes(&mut nodes);
        let nodes = self.define_node_outputs(nodes)?;
        for node in nodes {
            let (name, op) = labels(&node.proto);
            let node = self.node(node).map_err(|e| e.with_node(&name, &op))?;
            self.scope().graph.nodes.push(node);
        }
        self.define_outputs(&proto.output, top)?;

        let Some(mut scope) = self.scopes.pop() else {
            return Err(crate::Error::internal("the stack of graphs is empty"));
        };
        if scope.graph.sort()? {
            self.sorted.push(format!("graph `{}`", scope.graph.name));
        }
        Ok((scope.graph, scope.captured))
    }

    fn scope(&mut self) -> &mut Scope {
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// Adds a value to the graph at hand.
    fn define(&mut self, name: &str, fact: Fact, constant: Option<Tensor>) -> Result<ValueId> {
        self.count_value()?;
        let scope = self.scope();
        let fact = constant.as_ref().map_or(fact, Fact::of);
        let info = ValueInfo { name: name.to_owned(), fact, constant, param: false };
        let id = scope.graph.push_value(info)?;
        if scope.by_name.insert(name.to_owned(), id).is_some() {
            let graph = &scope.graph.name;
            return Err(err!(Duplicate, "graph `{graph}` defines `{name}` twice")
                .with_help("each name may be an input, an initialiser or an output of one node"));
        }
        Ok(id)
    }

    fn define_inputs(&mut self, proto: &pb::GraphProto, top: bool) -> Result<()> {
        let dense = proto.initializer.iter().filter_map(|t| t.name.as_deref());
        let sparse = proto.sparse_initializer.iter().filter_map(sparse_name);
        let defaults: HashSet<&str> = dense.chain(sparse).collect();
        let mut constants = Vec::new();
        for input in &proto.input {
            let name = input.name.as_deref().unwrap_or_default();
            if name.is_empty() {
                bail!(Format, "an input of graph `{}` has no name", self.scope().graph.name);
            }
            if top && defaults.contains(name) {
                constants.push(name);
                continue;
            }
            let limits = self.limits;
            let graph = &mut self.scope().graph;
            let fact = match fact::read(input.r#type.as_ref(), graph, top, limits) {
                Ok(fact) => fact,
                Err(e) if e.kind() == crate::ErrorKind::Unsupported => {
                    self.unsupported.push(format!("input `{name}`: {}", e.message()));
                    Fact::unknown()
                }
                Err(e) => return Err(e.within(&format!("input `{name}`"))),
            };
            let id = self.define(name, fact, None)?;
            self.scope().graph.inputs.push(id);
        }
        if self.overridable && !constants.is_empty() {
            self.notices
                .push(format!("inputs with a default are constants here: {}", some_of(&constants)));
        }
        Ok(())
    }

    fn define_initialisers(&mut self, tensors: Vec<pb::TensorProto>, top: bool) -> Result<()> {
        let fed = self.fed(top);
        for (i, proto) in tensors.into_iter().enumerate() {
            let Some(name) = proto.name.clone().filter(|n| !n.is_empty()) else {
                bail!(Format, "initialiser {i} of graph `{}` has no name", self.scope().graph.name);
            };
            if fed.contains(&name) {
                continue;
            }
            let tensor = self.tensor(proto, &|| format!("initialiser `{name}`"))?;
            self.define(&name, Fact::unknown(), tensor)?;
        }
        Ok(())
    }

    fn define_sparse(&mut self, tensors: Vec<pb::SparseTensorProto>, top: bool) -> Result<()> {
        let fed = self.fed(top);
        for (i, proto) in tensors.into_iter().enumerate() {
            let Some(name) = sparse_name(&proto).filter(|n| !n.is_empty()).map(str::to_owned)
            else {
                let graph = &self.scope().graph.name;
                bail!(Format, "sparse initialiser {i} of graph `{graph}` has no name");
            };
            if fed.contains(&name) {
                continue;
            }
            let tensor = self.sparse(proto, &|| format!("sparse initialiser `{name}`"))?;
            self.define(&name, Fact::unknown(), tensor)?;
        }
        Ok(())
    }

    /// The inputs of the graph at hand that are no constants, whatever initialisers there are: in a
    /// subgraph, whoever runs it feeds all of its inputs; at the top, none of them has a default.
    fn fed(&mut self, top: bool) -> HashSet<String> {
        match top {
            true => HashSet::new(),
            false => self.scope().graph.input_names().map(str::to_owned).collect(),
        }
    }

    /// Gives each node a name of its own.
    fn name_nodes(&mut self, nodes: &mut [SourceNode]) {
        let mut taken: HashSet<String> =
            nodes.iter().filter_map(|n| n.proto.name.clone()).filter(|n| !n.is_empty()).collect();
        let mut seen: HashSet<String> = HashSet::with_capacity(nodes.len());
        let mut next: HashMap<String, usize> = HashMap::new();
        for (i, node) in nodes.iter_mut().enumerate() {
            let (name, op) = labels(&node.proto);
            if !name.is_empty() && seen.insert(name.clone()) {
                continue;
            }
            let base = if name.is_empty() { op } else { name.clone() };
            let number = next.entry(base.clone()).or_insert(0);
            let new = loop {
                *number = i.max(*number + 1);
                let candidate = format!("{base}_{number}");
                if taken.insert(candidate.clone()) {
                    break candidate;
                }
            };
            if !name.is_empty() {
                self.renamed.push(format!("`{name}` is now `{new}`"));
            }
            seen.insert(new.clone());
            node.proto.name = Some(new);
        }
    }

    /// Defines what nodes make; those that are constants are done with.
    fn define_node_outputs(&mut self, nodes: Vec<SourceNode>) -> Result<Vec<SourceNode>> {
        let mut rest = Vec::with_capacity(nodes.len());
        for mut node in nodes {
            let (name, op) = labels(&node.proto);
            let at = |e: crate::Error| e.with_node(&name, &op);
            if op.is_empty() {
                bail!(Format, "node `{name}` has no operator");
            }
            let constant = op == "Constant" && domain_of(node.proto.domain.as_deref()).is_empty();
            if constant {
                let attributes = std::mem::take(&mut node.proto.attribute);
                let tensor = self.constant(attributes, &name).map_err(at)?;
                let [output] = node.proto.output.as_slice() else {
                    return Err(at(err!(Format, "it does not have one output")));
                };
                if !output.is_empty() {
                    self.define(output, Fact::unknown(), tensor).map_err(at)?;
                }
                continue;
            }
            for output in node.proto.output.iter().filter(|o| !o.is_empty()) {
                self.define(output, Fact::unknown(), None).map_err(at)?;
            }
            rest.push(node);
        }
        Ok(rest)
    }

    fn define_outputs(&mut self, outputs: &[pb::ValueInfoProto], top: bool) -> Result<()> {
        for output in outputs {
            let name = output.name.as_deref().unwrap_or_default();
            let Some(id) = self.resolve(self.scopes.len() - 1, name)? else {
                let graph = &self.scope().graph.name;
                bail!(Graph, "output `{name}` of graph `{graph}` is made by no node");
            };
            let limits = self.limits;
            let graph = &mut self.scope().graph;
            graph.outputs.push(id);
            // A dtype that is not known here is found by inference, or refused by name there.
            let declared = fact::read(output.r#type.as_ref(), graph, false, limits);
            let value = graph.value_mut(id);
            if top && value.fact == Fact::unknown() {
                value.fact = declared.unwrap_or_default();
            }
        }
        Ok(())
    }

    /// The value called `name` in the graph at `depth`. One of a graph around it is brought in:
    /// a constant as a constant, anything else as captured.
    fn resolve(&mut self, depth: usize, name: &str) -> Result<Option<ValueId>> {
        if let Some(id) = self.scopes[depth].by_name.get(name) {
            return Ok(Some(*id));
        }
        if depth == 0 {
            return Ok(None);
        }
        let Some(outer) = self.resolve(depth - 1, name)? else { return Ok(None) };
        self.count_value()?;
        let info = self.scopes[depth - 1].graph.value(outer).clone();
        let captured = info.constant.is_none();
        let scope = &mut self.scopes[depth];
        let inner = scope.graph.push_value(info)?;
        scope.by_name.insert(name.to_owned(), inner);
        if captured {
            scope.captured.push((outer, inner));
        }
        Ok(Some(inner))
    }

    fn node(&mut self, source: SourceNode) -> Result<Node> {
        let SourceNode { proto, opsets } = source;
        let (name, op) = labels(&proto);
        let domain = domain_of(proto.domain.as_deref()).to_owned();
        // Found missing with all else that is, when the operators are looked up.
        let version = opsets.get(&domain).copied().unwrap_or(Node::UNDECLARED);
        let mut inputs = Vec::with_capacity(proto.input.len());
        let depth = self.scopes.len() - 1;
        for input in &proto.input {
            if input.is_empty() {
                inputs.push(None);
                continue;
            }
            match self.resolve(depth, input)? {
                Some(id) => inputs.push(Some(id)),
                None => bail!(
                    Graph,
                    "it reads `{input}`, which is made by no node, and is neither an input nor a \
                     constant"
                ),
            }
        }
        let by_name = &self.scopes[depth].by_name;
        let outputs = proto.output.iter().map(|o| by_name.get(o).copied()).collect();

        let mut attributes = std::collections::BTreeMap::new();
        let mut subgraphs = Vec::new();
        for a in proto.attribute {
            let key = a.name.clone().unwrap_or_default();
            let read = self
                .attribute(a, &opsets, &name)
                .map_err(|e| e.within(&format!("attribute `{key}`")))?;
            let value = match read {
                Read::Plain(value) => value,
                Read::Unsupported => continue,
                Read::Subgraph(graph, captured) => {
                    subgraphs.push((key.clone(), captured));
                    Attribute::Graph(Box::new(graph))
                }
            };
            if attributes.insert(key.clone(), value).is_some() {
                bail!(Format, "it has two attributes named `{key}`");
            }
        }
        let mut node = Node { name, op, domain, version, inputs, outputs, attributes, captures: 0 };
        self.share_captures(&mut node, subgraphs)?;
        Ok(node)
    }

    /// Makes what any subgraph of `node` captures a last input of the node and of all of them.
    fn share_captures(
        &mut self,
        node: &mut Node,
        mut subgraphs: Vec<(String, Captured)>,
    ) -> Result<()> {
        subgraphs.sort_by(|a, b| a.0.cmp(&b.0));
        let mut all: Vec<ValueId> = Vec::new();
        let mut seen = HashSet::new();
        for (outer, _) in subgraphs.iter().flat_map(|s| &s.1) {
            if seen.insert(*outer) {
                all.push(*outer);
            }
        }
        if all.is_empty() {
            return Ok(());
        }
        for (key, captured) in &subgraphs {
            let Some(Attribute::Graph(graph)) = node.attributes.get_mut(key) else { continue };
            let own: HashMap<ValueId, ValueId> = captured.iter().copied().collect();
            let mut names: HashSet<String> = graph.values.iter().map(|v| v.name.clone()).collect();
            for outer in &all {
                let inner = match own.get(outer) {
                    Some(inner) => *inner,
                    None => {
                        self.count_value()?;
                        let mut info = self.scope().graph.value(*outer).clone();
                        // A value of this subgraph alone may have the outer one's name.
                        info.name = unique(info.name, &mut names);
                        graph.push_value(info)?
                    }
                };
                graph.inputs.push(inner);
            }
        }
        node.captures = all.len();
        node.inputs.extend(all.into_iter().map(Some));
        Ok(())
    }
}

/// The name of a sparse initialiser, which is that of its values.
pub(super) fn sparse_name(proto: &pb::SparseTensorProto) -> Option<&str> {
    proto.values.as_ref()?.name.as_deref()
}

/// `name`, or `name` with a number that makes it new to `taken`.
pub(super) fn unique(name: String, taken: &mut HashSet<String>) -> String {
    if taken.insert(name.clone()) {
        return name;
    }
    let mut number = 2usize;
    loop {
        let candidate = format!("{name}_{number}");
        if taken.insert(candidate.clone()) {
            return candidate;
        }
        number += 1;
    }
}

/// The node's name and operator.
pub(super) fn labels(node: &pb::NodeProto) -> (String, String) {
    (node.name.clone().unwrap_or_default(), node.op_type.clone().unwrap_or_default())
}
