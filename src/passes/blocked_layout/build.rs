//! The graph with its blocked regions.

use std::collections::{HashMap, HashSet};

use super::form::{Form, Kind, Operand};
use super::{View, elements, is_free, reorder_cost};
use crate::error::Result;
use crate::graph::{Fact, Graph, Node, ValueId};
use crate::ops::blocked::{DOMAIN, block_tensor};
use crate::tensor::{DType, Tensor};

/// A graph with blocked regions.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) graph: Graph,
    /// How many convolutions are blocked.
    pub(super) convolutions: usize,
    /// The convolutions (by node) of regions that do not pay.
    pub(super) poor: Vec<usize>,
}

/// Plain inputs with at most so many channels are not worth a reorder: the first layers.
const FEW_CHANNELS: usize = 16;

/// Puts the nodes of a graph down one by one, in the layout that they are to have.
#[derive(Debug)]
pub(super) struct Builder<'a> {
    view: &'a View<'a>,
    forms: &'a [Option<Form>],
    left_out: &'a [bool],
    /// Whether a blocked form of the value saves a reorder.
    wanted: Vec<bool>,
    /// Whether something that has no blocked form reads the value.
    read_plain: Vec<bool>,
    graph: Graph,
    names: HashSet<String>,
    /// The blocked form of a value, as soon as it is there.
    twins: HashMap<ValueId, ValueId>,
    /// The values that are there in blocked form alone.
    blocked_only: HashSet<ValueId>,
    regions: Regions,
    /// Each blocked convolution with a value of its region.
    convolutions: Vec<(usize, ValueId)>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(view: &'a View<'a>, forms: &'a [Option<Form>], left_out: &'a [bool]) -> Self {
        let values = view.graph.values.len();
        let (mut wanted, mut read_plain) = (vec![false; values], vec![false; values]);
        for v in &view.graph.outputs {
            read_plain[v.index()] = true;
        }
        for (i, node) in view.graph.nodes.iter().enumerate().rev() {
            let form = forms[i].as_ref().filter(|_| !left_out[i]);
            let Some(form) = form else {
                node.reads().for_each(|v| read_plain[v.index()] = true);
                continue;
            };
            let wants = match form.kind {
                Kind::Convolution { suits, .. } => suits.blocked,
                Kind::Either => node.makes().any(|v| wanted[v.index()]),
            };
            if wants {
                form.blocked().for_each(|v| wanted[v.index()] = true);
            }
        }
        let mut graph = view.graph.clone();
        graph.nodes.clear();
        graph.opsets.entry(DOMAIN.to_owned()).or_insert(1);
        let names = graph.values.iter().map(|v| v.name.clone());
        let names = names.chain(view.graph.nodes.iter().map(|n| n.name.clone())).collect();
        Self {
            view,
            forms,
            left_out,
            wanted,
            read_plain,
            graph,
            names,
            twins: HashMap::new(),
            blocked_only: HashSet::new(),
            regions: Regions::default(),
            convolutions: Vec::new(),
        }
    }

    pub(super) fn build(mut self) -> Result<Built> {
        for (i, node) in self.view.graph.nodes.iter().enumerate() {
            let form = self.forms[i].as_ref().filter(|_| !self.left_out[i]);
            match form.and_then(|f| Some((f, self.layout(f, node)?))) {
                Some((form, plain_input)) => self.put_blocked(i, node, form, plain_input)?,
                None => {
                    node.reads().try_for_each(|v| self.plain(v))?;
                    self.graph.nodes.push(node.clone());
                }
            }
        }
        for v in self.view.graph.outputs.clone() {
            self.plain(v)?;
        }
        let mut poor = Vec::new();
        for (i, v) in &self.convolutions {
            if self.regions.saves(*v) <= 0.0 {
                poor.push(*i);
            }
        }
        Ok(Built { graph: self.graph, convolutions: self.convolutions.len(), poor })
    }

    /// Whether the node is to be blocked: then, whether it reads its first input plain.
    fn layout(&self, form: &Form, node: &Node) -> Option<bool> {
        let Kind::Convolution { suits, channels, .. } = form.kind else {
            return self.stays_blocked(form, node).then_some(false);
        };
        let x = form.blocked().next()?;
        if suits.blocked && self.twins.contains_key(&x) {
            return Some(false);
        }
        Some(suits.plain && (!suits.blocked || channels <= FEW_CHANNELS))
    }

    /// Whether a node that can do with either layout is better off blocked.
    fn stays_blocked(&self, form: &Form, node: &Node) -> bool {
        if !form.blocked().any(|v| self.twins.contains_key(&v) && !self.view.is_constant(v)) {
            return false;
        }
        if node.makes().any(|v| self.wanted[v.index()]) {
            return true;
        }
        form.blocked().all(|v| {
            let free = self.view.dims(v).is_some_and(is_free);
            let blocked = self.blocked_only.contains(&v) && !self.read_plain[v.index()];
            free || blocked
        })
    }

    fn put_blocked(&mut self, i: usize, node: &Node, form: &Form, plain_input: bool) -> Result<()> {
        let mut inputs = Vec::with_capacity(form.operands.len());
        let mut joined = Vec::new();
        for (port, operand) in form.operands.iter().enumerate() {
            inputs.push(match operand {
                None => None,
                Some(Operand::Same(v)) => {
                    self.plain(*v)?;
                    Some(*v)
                }
                Some(Operand::Blocked(v)) if port == 0 && plain_input => {
                    self.plain(*v)?;
                    Some(*v)
                }
                Some(Operand::Blocked(v)) => {
                    let twin = self.blocked(*v)?;
                    joined.push(*v);
                    Some(twin)
                }
                Some(Operand::Map(v)) => Some(self.map(*v)?),
                Some(Operand::Constant(t)) => {
                    let name = self.name(&format!("{}/{port} (for blocks)", node.name));
                    Some(self.graph.add_constant(name, t.clone())?)
                }
            });
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for v in &node.outputs {
            let Some(v) = *v else {
                outputs.push(None);
                continue;
            };
            let twin = self.twin(v)?;
            self.blocked_only.insert(v);
            joined.push(v);
            outputs.push(Some(twin));
        }
        for pair in joined.windows(2) {
            self.regions.join(pair[0], pair[1]);
        }
        if let (Kind::Convolution { saves, .. }, Some(out)) = (form.kind, joined.last()) {
            let elements = self.view.dims(*out).map_or(0.0, elements);
            self.regions.add(*out, saves * elements);
            self.convolutions.push((i, *out));
        }
        self.graph.nodes.push(Node { inputs, outputs, ..form.node.clone() });
        Ok(())
    }

    /// A name that nothing has.
    fn name(&mut self, wish: &str) -> String {
        let mut name = wish.to_owned();
        let mut n = 1;
        while !self.names.insert(name.clone()) {
            n += 1;
            name = format!("{wish}#{n}");
        }
        name
    }

    /// Adds the blocked form of a value, which a node is about to make.
    fn twin(&mut self, v: ValueId) -> Result<ValueId> {
        let name = self.name(&format!("{} (blocked)", self.graph.value(v).name));
        let fact = Fact { dtype: Some(DType::F32), shape: None };
        let twin = self.graph.add_value(name, fact)?;
        self.twins.insert(v, twin);
        Ok(twin)
    }

    /// The blocked form of a value.
    fn blocked(&mut self, v: ValueId) -> Result<ValueId> {
        if let Some(twin) = self.twins.get(&v) {
            return Ok(*twin);
        }
        if let Some(t) = self.graph.value(v).constant.clone() {
            let name = self.name(&format!("{} (blocked)", self.graph.value(v).name));
            let twin = self.graph.add_constant(name, block_tensor(&t)?)?;
            self.twins.insert(v, twin);
            return Ok(twin);
        }
        let twin = self.twin(v)?;
        self.regions.add(v, -self.view.dims(v).map_or(0.0, reorder_cost));
        self.reorder("ToBlocked", v, twin, v);
        Ok(twin)
    }

    /// Makes sure that the plain form of a value is there.
    fn plain(&mut self, v: ValueId) -> Result<()> {
        if !self.blocked_only.remove(&v) {
            return Ok(());
        }
        let Some(twin) = self.twins.get(&v).copied() else { return Ok(()) };
        self.regions.add(v, -self.view.dims(v).map_or(0.0, reorder_cost));
        self.reorder("FromBlocked", twin, v, v);
        Ok(())
    }

    fn reorder(&mut self, op: &str, from: ValueId, to: ValueId, named: ValueId) {
        let name = self.name(&format!("{}/{op}", self.graph.value(named).name));
        let node = self.graph.add_node(name, op, [Some(from)], [Some(to)]);
        node.domain = DOMAIN.to_owned();
        node.version = 1;
    }

    /// A map without channels, [N, 1, H, W], as [N, 1, H, W, 1].
    fn map(&mut self, v: ValueId) -> Result<ValueId> {
        self.plain(v)?;
        let info = self.graph.value(v);
        let (wish, dtype) = (format!("{} (map)", info.name), info.fact.dtype);
        let axes = self.name(&format!("{wish}/axes"));
        let axes = self.graph.add_constant(axes, Tensor::of_i64(&[4]))?;
        let name = self.name(&wish);
        let out = self.graph.add_value(name.clone(), Fact { dtype, shape: None })?;
        let node = self.name(&format!("{name}/Unsqueeze"));
        self.graph.add_node(node, "Unsqueeze", [Some(v), Some(axes)], [Some(out)]).version = 13;
        Ok(out)
    }
}

/// Values that hang together in blocked form, and what each region saves.
#[derive(Debug, Default)]
struct Regions {
    above: HashMap<ValueId, ValueId>,
    saved: HashMap<ValueId, f64>,
}

impl Regions {
    fn root(&mut self, v: ValueId) -> ValueId {
        let mut root = v;
        while let Some(above) = self.above.get(&root) {
            root = *above;
        }
        if root != v {
            self.above.insert(v, root);
        }
        root
    }

    fn join(&mut self, a: ValueId, b: ValueId) {
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            self.above.insert(b, a);
            let saved = self.saved.remove(&b).unwrap_or(0.0);
            *self.saved.entry(a).or_insert(0.0) += saved;
        }
    }

    fn add(&mut self, v: ValueId, saves: f64) {
        let root = self.root(v);
        *self.saved.entry(root).or_insert(0.0) += saves;
    }

    fn saves(&mut self, v: ValueId) -> f64 {
        let root = self.root(v);
        self.saved.get(&root).copied().unwrap_or(0.0)
    }
}
