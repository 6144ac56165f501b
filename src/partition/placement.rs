//! Which node runs where.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::balance;
use super::names::{list, nearest};
use super::segments::computing_nodes;
use super::{DeviceId, LinkFigures, Plan, Support};
use crate::error::{Result, bail, err};
use crate::graph::{Graph, Node, NodeId, ValueId};

/// Where one node runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The device.
    pub device: DeviceId,
    /// A stage of a pipeline: nodes of different stages are in different segments, also on one
    /// device.
    pub stage: Option<u32>,
    /// The fixed datapath that these nodes stand for: a worker that owns it runs it in their place.
    pub stage_id: Option<Arc<str>>,
}

impl From<DeviceId> for Placement {
    fn from(device: DeviceId) -> Self {
        Self { device, stage: None, stage_id: None }
    }
}

impl Placement {
    /// Stands for a fixed datapath, which is named so.
    ///
    /// ```
    /// use brigade::partition::Placement;
    /// let device: brigade::DeviceId = "fpga/datapath".parse()?;
    /// let fft = Placement::from(device).stage_id("fft-1024");
    /// assert_eq!(fft.stage_id.as_deref(), Some("fft-1024"));
    /// # Ok::<(), brigade::Error>(())
    /// ```
    #[must_use]
    pub fn stage_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.stage_id = Some(id.into());
        self
    }
}

/// Something about a placement that its user should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A node that the first device refused.
    FellBack {
        /// The node's name.
        node: String,
        /// Its operator.
        op: String,
        /// The device that refused it.
        from: DeviceId,
        /// The device that it is on.
        to: DeviceId,
        /// Why it was refused.
        why: String,
    },
    /// A node that runs with less range or precision than the graph states.
    Narrowed {
        /// The node's name.
        node: String,
        /// Its operator.
        op: String,
        /// The device that it is on.
        device: DeviceId,
        /// Why, and how.
        why: String,
    },
    /// A rule of a plan that places no node.
    UnusedRule {
        /// Which rule, from 0.
        rule: usize,
        /// What it matches.
        pattern: String,
        /// Whether it matches nodes that earlier rules had placed already.
        shadowed: bool,
    },
    /// A plan gives threads to a device that nothing is placed on.
    UnusedThreads {
        /// The device.
        device: DeviceId,
    },
    /// A plan names a model by its hash, and the model's hash was not given.
    ModelNotCompared,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FellBack { node, op, from, to, why } => {
                write!(f, "node `{node}` ({op}) runs on `{to}`, as `{from}` refuses it: {why}")
            }
            Self::Narrowed { node, op, device, why } => {
                write!(f, "node `{node}` ({op}) is narrowed on `{device}`: {why}")
            }
            Self::UnusedRule { rule, pattern, shadowed: false } => {
                write!(f, "rule {rule} of the plan (`{pattern}`) matches no node")
            }
            Self::UnusedRule { rule, pattern, shadowed: true } => {
                write!(
                    f,
                    "rule {rule} of the plan (`{pattern}`) only matches nodes of earlier rules"
                )
            }
            Self::UnusedThreads { device } => {
                write!(f, "the plan gives threads to `{device}`, but places no node on it")
            }
            Self::ModelNotCompared => {
                f.write_str("the plan's model_sha256 was not compared: the model has no hash here")
            }
        }
    }
}

/// What a map knows of the graph that it was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    nodes: usize,
    names: u64,
}

impl Fingerprint {
    fn of(graph: &Graph) -> Self {
        // FNV-1a, with a byte between names that no UTF-8 has.
        let mut names = 0xcbf2_9ce4_8422_2325_u64;
        for node in graph.nodes() {
            for b in node.name.bytes().chain([0xff]) {
                names = (names ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        Self { nodes: graph.nodes().len(), names }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Places {
    /// All nodes of any graph.
    Everywhere(Placement),
    /// The nodes of one graph, by id.
    Nodes { of: Fingerprint, places: Vec<Placement> },
}

/// Which node runs on which device.
///
/// Each constructor places every node. A map fits the graph that it was made for and no other
/// (only [`single`](Self::single) fits any); using it with another one is an error.
///
/// ```
/// use brigade::graph::{Fact, Graph, NodeId};
/// use brigade::partition::{DeviceMap, Support};
/// let mut graph = Graph::new("g");
/// let x = graph.add_input("x", Fact::unknown()).unwrap();
/// let y = graph.add_value("y", Fact::unknown()).unwrap();
/// graph.add_node("det", "Det", [Some(x)], [Some(y)]);
/// graph.set_outputs([y]);
///
/// let (gpu, cpu) = ("wgpu".parse().unwrap(), "cpu".parse().unwrap());
/// let map = DeviceMap::auto_fallback(&graph, &gpu, &cpu, &|device, _, node| {
///     if *device == cpu || node.op != "Det" {
///         Support::Yes
///     } else {
///         Support::No("it has no kernel for it".to_owned())
///     }
/// })
/// .unwrap();
/// assert_eq!(map.devices().collect::<Vec<_>>(), [&cpu]);
/// assert_eq!(
///     map.notices()[0].to_string(),
///     "node `det` (Det) runs on `cpu:0`, as `wgpu:0` refuses it: it has no kernel for it",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMap {
    places: Places,
    /// Nodes that run only where they are, and so do not follow their readers.
    pinned: BTreeSet<NodeId>,
    notices: Vec<Notice>,
}

impl DeviceMap {
    /// All nodes on one device; fits any graph.
    pub fn single(device: DeviceId) -> Self {
        let places = Places::Everywhere(device.into());
        Self { places, pinned: BTreeSet::new(), notices: Vec::new() }
    }

    /// Each node on the device that `device` says.
    pub fn from_fn(graph: &Graph, mut device: impl FnMut(&Node) -> DeviceId) -> Self {
        Self::from_placements(graph, |_, node| device(node).into())
    }

    /// Each node where `place` says, with stages.
    pub fn from_placements(
        graph: &Graph,
        mut place: impl FnMut(NodeId, &Node) -> Placement,
    ) -> Self {
        let places = graph.node_ids().map(|(id, node)| place(id, node)).collect();
        Self {
            places: Places::Nodes { of: Fingerprint::of(graph), places },
            pinned: BTreeSet::new(),
            notices: Vec::new(),
        }
    }

    /// Each node on `primary` if that supports it, else on `fallback`.
    ///
    /// [`notices`](Self::notices) lists each node that fell back or is narrowed, with the reason.
    ///
    /// # Errors
    /// If the graph is not well formed, or some nodes are supported by neither device; all of them
    /// are named, with the reasons.
    pub fn auto_fallback(
        graph: &Graph,
        primary: &DeviceId,
        fallback: &DeviceId,
        supports: &dyn Fn(&DeviceId, &Graph, &Node) -> Support,
    ) -> Result<Self> {
        graph.validate()?;
        let mut map = Self::from_placements(graph, |_, _| primary.clone().into());
        let Places::Nodes { places, .. } = &mut map.places else { return Ok(map) };
        let mut homeless: Vec<String> = Vec::new();
        for (id, node) in graph.node_ids() {
            let (name, op) = (node.name.clone(), node.qualified_op());
            let mut narrowed = |device: &DeviceId, why| {
                let (node, op, device) = (name.clone(), op.clone(), device.clone());
                map.notices.push(Notice::Narrowed { node, op, device, why });
            };
            let refusal = match supports(primary, graph, node) {
                Support::Yes => continue,
                Support::Narrowed(why) => {
                    narrowed(primary, why);
                    continue;
                }
                Support::No(why) => why,
            };
            match supports(fallback, graph, node) {
                Support::Yes => {}
                Support::Narrowed(why) => narrowed(fallback, why),
                Support::No(why) => {
                    homeless.push(format!(
                        "`{name}` ({op}): on `{primary}` {refusal}; on `{fallback}` {why}"
                    ));
                    continue;
                }
            }
            places[id.index()] = fallback.clone().into();
            map.pinned.insert(id);
            map.notices.push(Notice::FellBack {
                node: name,
                op,
                from: primary.clone(),
                to: fallback.clone(),
                why: refusal,
            });
        }
        if !homeless.is_empty() {
            let (count, all) = (homeless.len(), homeless.join("\n  "));
            bail!(
                Unsupported,
                "{count} nodes of graph `{}` run neither on `{primary}` nor on `{fallback}`:\n  {all}",
                graph.name
            );
        }
        Ok(map)
    }

    /// `stages` contiguous stages over the nodes in their order, stage *i* on
    /// `devices[i % devices.len()]`.
    ///
    /// The costliest stage is as cheap as it can be, or up to 5 % dearer where that moves fewer
    /// bytes from stage to stage. `cost` is what an item costs on the node, in any unit; `bytes`
    /// is the size of a value. Nodes that compute from constants alone go with their readers and
    /// are not asked about.
    ///
    /// # Errors
    /// If the graph is not well formed, there are no devices, no stages, more stages than
    /// [`computing_nodes`], or a cost or a size is negative or not finite.
    pub fn balanced(
        graph: &Graph,
        devices: &[DeviceId],
        stages: usize,
        cost: &dyn Fn(NodeId) -> f64,
        bytes: &dyn Fn(ValueId) -> f64,
    ) -> Result<Self> {
        Self::balanced_over(graph, devices, stages, cost, bytes, &|_, _| None)
    }

    /// As [`balanced`](Self::balanced), between devices that what crosses has to be carried between:
    /// `link` says what that takes, from the device of a stage to that of the next, and `None` where
    /// it takes next to nothing. `cost` is in seconds then.
    ///
    /// While items stream, a link carries one item as others are computed. So the throughput is
    /// bounded by the costliest stage or by the link that is occupied longest by what crosses it: the
    /// greater of them is as small as it can be. Among the cuts for which it is so, or up to 5 % above,
    /// that one is taken whose transfers, latencies included, take the least time in all, since that
    /// is how long an item is on its way.
    ///
    /// ```
    /// use std::time::Duration;
    /// use brigade::device::{DeviceId, LinkFigures};
    /// use brigade::DType;
    /// use brigade::graph::{Fact, Graph};
    /// use brigade::partition::{DeviceMap, Segmentation};
    /// // Four nodes of a millisecond each; what the third one makes is small.
    /// let mut graph = Graph::new("g");
    /// let mut last = graph.add_input("x", Fact::concrete(DType::F32, &[1 << 18])).unwrap();
    /// for (n, length) in [1 << 18, 1 << 18, 16, 16].into_iter().enumerate() {
    ///     let next = graph.add_value(format!("v{n}"), Fact::concrete(DType::F32, &[length])).unwrap();
    ///     graph.add_node(format!("n{n}"), "Relu", [Some(last)], [Some(next)]);
    ///     last = next;
    /// }
    /// graph.set_outputs([last]);
    /// let size = |v| brigade::partition::bytes_of(&graph.value(v).fact, &|_| None).unwrap() as f64;
    /// let devices = ["a/cpu".parse().unwrap(), "b/cpu".parse().unwrap()];
    /// let nodes_of_first = |bytes_per_s| {
    ///     let link = LinkFigures::new(Duration::from_micros(100), bytes_per_s);
    ///     let link = |_: &DeviceId, _: &DeviceId| Some(link);
    ///     let map = DeviceMap::balanced_over(&graph, &devices, 2, &|_| 1e-3, &size, &link).unwrap();
    ///     Segmentation::new(&graph, &map).unwrap().segments()[0].nodes.len()
    /// };
    /// // A megabyte takes 0.1 ms over the one link and 100 ms over the other.
    /// assert_eq!((nodes_of_first(10 << 30), nodes_of_first(10 << 20)), (2, 3));
    /// ```
    ///
    /// # Errors
    /// As [`balanced`](Self::balanced).
    pub fn balanced_over(
        graph: &Graph,
        devices: &[DeviceId],
        stages: usize,
        cost: &dyn Fn(NodeId) -> f64,
        bytes: &dyn Fn(ValueId) -> f64,
        link: &dyn Fn(&DeviceId, &DeviceId) -> Option<LinkFigures>,
    ) -> Result<Self> {
        graph.validate()?;
        let nodes = computing_nodes(graph);
        let sane = |x: f64, what: &str, name: &str| {
            if x.is_finite() && x >= 0.0 {
                return Ok(x);
            }
            Err(err!(Plan, "the {what} of `{name}` is given as {x}")
                .with_help("it must be a finite number that is not negative"))
        };
        if stages == 0 {
            return Err(err!(Plan, "no stages asked for").with_help("ask for one stage or more"));
        }
        if stages > nodes.len() {
            return Err(too_many_stages(graph, stages, nodes.len()));
        }
        let mut costs = Vec::with_capacity(nodes.len());
        let mut position = vec![None; graph.nodes().len()];
        for (i, id) in nodes.iter().enumerate() {
            costs.push(sane(cost(*id), "cost", &graph.node(*id).name)?);
            position[id.index()] = Some(i);
        }
        // A value crosses each cut between its maker and its last reader.
        let consumers = graph.consumers();
        let mut change = vec![0.0; nodes.len() + 1];
        for (id, node) in graph.node_ids() {
            let Some(made) = position[id.index()] else { continue };
            for v in node.makes() {
                let last = consumers[v.index()].iter().filter_map(|c| position[c.index()]).max();
                if let Some(last) = last.filter(|last| *last > made) {
                    let size = sane(bytes(v), "size", &graph.value(v).name)?;
                    change[made + 1] += size;
                    change[last + 1] -= size;
                }
            }
        }
        let mut level = 0.0;
        let crossing: Vec<f64> = change
            .iter()
            .take(nodes.len())
            .map(|c| {
                level += c;
                f64::max(level, 0.0)
            })
            .collect();
        let pair = |stage: usize| {
            let device = |stage: usize| devices.get(stage % devices.len().max(1));
            device(stage).zip(device(stage + 1))
        };
        let links: Vec<Option<LinkFigures>> = (0..stages - 1)
            .map(|stage| pair(stage).filter(|(a, b)| a != b).and_then(|(a, b)| link(a, b)))
            .collect();
        Self::contiguous(graph, devices, &balance::cuts(&costs, &crossing, &links))
    }

    /// Contiguous stages over [`computing_nodes`]: a stage begins at the first node and at each
    /// of `cuts`, which count those nodes; stage *i* is on `devices[i % devices.len()]`.
    ///
    /// # Errors
    /// If the graph is not well formed, there are no devices, or the cuts do not grow, or are not
    /// inside.
    pub fn contiguous(graph: &Graph, devices: &[DeviceId], cuts: &[usize]) -> Result<Self> {
        graph.validate()?;
        if devices.is_empty() {
            return Err(err!(Plan, "no device given for the stages")
                .with_help("name one device or more, such as `cpu:0`"));
        }
        let nodes = computing_nodes(graph);
        let mut from = 0;
        for cut in cuts {
            if *cut <= from || *cut >= nodes.len() {
                if cuts.len() >= nodes.len() {
                    return Err(too_many_stages(graph, cuts.len() + 1, nodes.len()));
                }
                bail!(
                    Plan,
                    "cannot cut in front of node {cut}: graph `{}` has {} computing nodes, and \
                     the stage begins at {from}",
                    graph.name,
                    nodes.len()
                );
            }
            from = *cut;
        }
        let stage_of = |i: usize| cuts.partition_point(|c| *c <= i);
        let mut stages: Vec<Option<usize>> = vec![None; graph.nodes().len()];
        for (i, id) in nodes.iter().enumerate() {
            stages[id.index()] = Some(stage_of(i));
        }
        // Other nodes follow their readers anyhow; here they are shown with the first of them.
        let consumers = graph.consumers();
        for (id, node) in graph.node_ids().collect::<Vec<_>>().into_iter().rev() {
            if stages[id.index()].is_none() {
                let readers = node.makes().flat_map(|v| &consumers[v.index()]);
                stages[id.index()] = readers.filter_map(|c| stages[c.index()]).min();
            }
        }
        let one = cuts.is_empty();
        Ok(Self::from_placements(graph, |id, _| {
            let stage = stages[id.index()].unwrap_or(0);
            Placement {
                device: devices[stage % devices.len()].clone(),
                // A single stage is not told apart from anything.
                stage: u32::try_from(stage).ok().filter(|_| !one),
                stage_id: None,
            }
        }))
    }

    /// Each node on the device that `names` gives, by name; those not named on `default`.
    ///
    /// # Errors
    /// If names are not those of nodes (all of them are listed, with the nearest node), a name is
    /// given two devices, or nodes have neither a device nor a default.
    pub fn from_names<S: AsRef<str>>(
        graph: &Graph,
        names: impl IntoIterator<Item = (S, DeviceId)>,
        default: Option<DeviceId>,
    ) -> Result<Self> {
        let known: HashMap<&str, usize> =
            graph.nodes().iter().enumerate().map(|(i, n)| (n.name.as_str(), i)).collect();
        let mut places: Vec<Option<DeviceId>> = vec![None; known.len().max(graph.nodes().len())];
        let (mut unknown, mut twice) = (BTreeMap::new(), BTreeSet::new());
        for (name, device) in names {
            let name = name.as_ref();
            match known.get(name) {
                None => {
                    unknown.insert(name.to_owned(), device);
                }
                Some(i) => {
                    let old = places[*i].replace(device.clone());
                    if old.is_some_and(|old| old != device) {
                        twice.insert(name.to_owned());
                    }
                }
            }
        }
        if !unknown.is_empty() {
            let all: Vec<String> = unknown
                .keys()
                .map(|name| match nearest(name, graph.nodes().iter().map(|n| n.name.as_str())) {
                    Some(near) => format!("`{name}` (nearest: `{near}`)"),
                    None => format!("`{name}`"),
                })
                .collect();
            return Err(err!(
                UnknownName,
                "no node of graph `{}` is called {}",
                graph.name,
                all.join(", ")
            )
            .with_help("names are matched whole; `brigade inspect` lists the nodes"));
        }
        if !twice.is_empty() {
            let all = list(&twice.into_iter().collect::<Vec<_>>());
            bail!(Duplicate, "nodes are given two devices: {all}");
        }
        let bare: Vec<&str> = graph
            .nodes()
            .iter()
            .zip(&places)
            .filter(|(_, p)| p.is_none())
            .map(|(n, _)| n.name.as_str())
            .collect();
        let Some(default) = default.or_else(|| bare.is_empty().then(|| DeviceId::cpu(0))) else {
            return Err(unplaced(graph, &bare));
        };
        Ok(Self::from_placements(graph, |id, _| {
            places[id.index()].take().unwrap_or_else(|| default.clone()).into()
        }))
    }

    /// As the plan file at `path` says; `model_sha256` is the hash of the model's file, if it has
    /// one.
    ///
    /// # Errors
    /// As [`Plan::read`] and [`Plan::resolve`].
    pub fn from_file(graph: &Graph, path: &Path, model_sha256: Option<&str>) -> Result<Self> {
        Plan::read(path)?.resolve(graph, model_sha256)
    }

    /// Where a node runs.
    ///
    /// # Errors
    /// If the map's graph has no such node.
    pub fn placement(&self, node: NodeId) -> Result<&Placement> {
        match &self.places {
            Places::Everywhere(place) => Ok(place),
            Places::Nodes { of, places } => places.get(node.index()).ok_or_else(|| {
                err!(
                    Plan,
                    "this device map places {} nodes, and not node {}",
                    of.nodes,
                    node.index()
                )
            }),
        }
    }

    /// The devices that nodes are placed on, each once, in order.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceId> {
        let all: BTreeSet<&DeviceId> = match &self.places {
            Places::Everywhere(place) => BTreeSet::from([&place.device]),
            Places::Nodes { places, .. } => places.iter().map(|p| &p.device).collect(),
        };
        all.into_iter()
    }

    /// What its user should hear of: nodes that fell back, rules that place nothing.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    pub(super) fn push_notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    pub(super) fn pin(&mut self, node: NodeId) {
        self.pinned.insert(node);
    }

    /// The one placement of a map that fits any graph.
    pub(super) fn everywhere(&self) -> Option<&Placement> {
        match &self.places {
            Places::Everywhere(place) => Some(place),
            Places::Nodes { .. } => None,
        }
    }

    /// Whether the node runs only where it is placed.
    pub(super) fn is_pinned(&self, node: NodeId) -> bool {
        self.pinned.contains(&node)
    }

    /// Whether the map was made for this graph.
    ///
    /// # Errors
    /// If it was made for another one.
    pub fn check(&self, graph: &Graph) -> Result<()> {
        let Places::Nodes { of, .. } = &self.places else { return Ok(()) };
        let here = Fingerprint::of(graph);
        if *of == here {
            return Ok(());
        }
        let how = if of.nodes == here.nodes {
            "whose nodes have other names".to_owned()
        } else {
            format!("with {} nodes", of.nodes)
        };
        Err(err!(
            Plan,
            "the device map was made for another graph ({how}) than `{}` ({} nodes)",
            graph.name,
            here.nodes
        )
        .with_help("make the map from the graph that is compiled, after its passes"))
    }
}

fn too_many_stages(graph: &Graph, stages: usize, nodes: usize) -> crate::Error {
    err!(
        Plan,
        "{stages} stages asked for, but graph `{}` has only {nodes} nodes that compute from \
        its inputs",
        graph.name
    )
    .with_help(format!("ask for at most {nodes} stages"))
}

/// Nodes that nothing places.
pub(super) fn unplaced(graph: &Graph, names: &[&str]) -> crate::Error {
    err!(Plan, "{} nodes of graph `{}` have no device: {}", names.len(), graph.name, list(names))
        .with_help("place them, or give a default device")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::graph::Fact;
    use crate::partition::Segmentation;

    fn chain(ops: &[&str]) -> Graph {
        let mut g = Graph::new("chain");
        let mut last = g.add_input("x", Fact::unknown()).unwrap();
        for (i, op) in ops.iter().enumerate() {
            let next = g.add_value(format!("v{i}"), Fact::unknown()).unwrap();
            g.add_node(format!("layer{i}"), *op, [Some(last)], [Some(next)]);
            last = next;
        }
        g.set_outputs([last]);
        g
    }

    fn device(name: &str) -> DeviceId {
        name.parse().unwrap()
    }

    fn placed(graph: &Graph, map: &DeviceMap) -> Vec<String> {
        graph.node_ids().map(|(id, _)| map.placement(id).unwrap().device.to_string()).collect()
    }

    #[test]
    fn a_map_of_another_graph_is_refused() {
        let (g, longer) = (chain(&["Relu", "Tanh"]), chain(&["Relu", "Tanh", "Relu"]));
        let map = DeviceMap::from_fn(&g, |_| DeviceId::cpu(0));
        map.check(&g).unwrap();
        let error = Segmentation::new(&longer, &map).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Plan);
        assert!(error.message().contains("2 nodes") && error.message().contains("3 nodes"));
        let mut renamed = g.clone();
        renamed.nodes[0].name = "other".to_owned();
        let error = Segmentation::new(&renamed, &map).unwrap_err();
        assert!(error.message().contains("other names"), "{error}");
        Segmentation::new(&longer, &DeviceMap::single(DeviceId::cpu(0))).unwrap();
        assert!(map.placement(NodeId(7)).is_err());
    }

    #[test]
    fn fallen_back_nodes_are_listed_with_reasons() {
        let g = chain(&["Relu", "NonZero", "Gemm", "Relu"]);
        let (gpu, cpu) = (device("wgpu"), device("cpu"));
        let map = DeviceMap::auto_fallback(&g, &gpu, &cpu, &|d, _, node| match node.op.as_str() {
            "NonZero" if *d == gpu => Support::No("no kernel".to_owned()),
            "Gemm" if *d == gpu => Support::Narrowed("i64 as i32".to_owned()),
            _ => Support::Yes,
        })
        .unwrap();
        assert_eq!(placed(&g, &map), ["wgpu:0", "cpu:0", "wgpu:0", "wgpu:0"]);
        let said: Vec<String> = map.notices().iter().map(Notice::to_string).collect();
        assert_eq!(
            said,
            [
                "node `layer1` (NonZero) runs on `cpu:0`, as `wgpu:0` refuses it: no kernel",
                "node `layer2` (Gemm) is narrowed on `wgpu:0`: i64 as i32",
            ]
        );
    }

    #[test]
    fn nodes_that_run_nowhere_are_all_named() {
        let g = chain(&["Relu", "Foo", "Bar"]);
        let error = DeviceMap::auto_fallback(&g, &device("wgpu"), &device("cpu"), &|d, _, n| {
            if n.op == "Relu" { Support::Yes } else { Support::No(format!("not on {d}")) }
        })
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for part in ["`layer1` (Foo)", "`layer2` (Bar)", "not on wgpu:0", "not on cpu:0"] {
            assert!(error.message().contains(part), "{error}");
        }
    }

    #[test]
    fn scenario_07_everything_fallen_back_is_the_single_device_plan() {
        let g = chain(&["Relu", "Tanh", "Gemm"]);
        let (gpu, cpu) = (device("cuda"), device("cpu"));
        let map = DeviceMap::auto_fallback(&g, &gpu, &cpu, &|d, _, _| {
            if *d == cpu { Support::Yes } else { Support::No("absent".to_owned()) }
        })
        .unwrap();
        let split = Segmentation::new(&g, &map).unwrap();
        let plain = Segmentation::new(&g, &DeviceMap::single(cpu)).unwrap();
        assert_eq!((split.segments().len(), plain.segments().len()), (1, 1));
        assert_eq!(split.segments()[0].graph, plain.segments()[0].graph);
        assert_eq!(split.segments()[0].device, plain.segments()[0].device);
        assert_eq!(map.notices().len(), 3);
    }

    #[test]
    fn scenario_01_stages_are_as_many_as_asked_or_an_error() {
        let g = chain(&["Relu", "Tanh", "Gemm"]);
        let two = [device("cpu:0"), device("cpu:1")];
        let map = DeviceMap::balanced(&g, &two, 3, &|_| 1.0, &|_| 1.0).unwrap();
        let split = Segmentation::new(&g, &map).unwrap();
        let got: Vec<String> = split.devices().map(DeviceId::to_string).collect();
        assert_eq!(got, ["cpu:0", "cpu:1", "cpu:0"]);
        let one_device = DeviceMap::balanced(&g, &two[..1], 2, &|_| 1.0, &|_| 1.0).unwrap();
        assert_eq!(Segmentation::new(&g, &one_device).unwrap().segments().len(), 2);

        let fails = |devices: &[DeviceId], stages, cost: f64, word: &str| {
            let error = DeviceMap::balanced(&g, devices, stages, &|_| cost, &|_| 1.0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Plan);
            assert!(error.to_string().contains(word), "{error}");
        };
        fails(&two, 4, 1.0, "only 3 nodes");
        fails(&two, 0, 1.0, "no stages");
        fails(&[], 2, 1.0, "no device");
        fails(&two, 2, f64::NAN, "`layer0`");
        fails(&two, 2, -1.0, "`layer0`");
    }

    #[test]
    fn cuts_are_where_they_are_asked_for() {
        let g = chain(&["Relu"; 5]);
        let map = DeviceMap::contiguous(&g, &[device("cpu")], &[1, 4]).unwrap();
        let split = Segmentation::new(&g, &map).unwrap();
        let sizes: Vec<usize> = split.segments().iter().map(|s| s.nodes.len()).collect();
        assert_eq!(sizes, [1, 3, 1]);
        for wrong in [&[0][..], &[5], &[3, 3], &[4, 2], &[1, 2, 3, 4, 4]] {
            let error = DeviceMap::contiguous(&g, &[device("cpu")], wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Plan, "{wrong:?}");
        }
    }

    #[test]
    fn balance_weighs_costs() {
        let g = chain(&["Relu"; 6]);
        let cost = |id: NodeId| if id.index() == 0 { 5.0 } else { 1.0 };
        let two = [device("cpu:0"), device("cpu:1")];
        let map = DeviceMap::balanced(&g, &two, 2, &cost, &|_| 1.0).unwrap();
        let split = Segmentation::new(&g, &map).unwrap();
        assert_eq!(split.segments()[0].nodes.len(), 1);
    }

    #[test]
    fn names_place_nodes() {
        let g = chain(&["Relu", "Tanh", "Gemm"]);
        let named = [("layer0", device("cpu:1")), ("layer2", device("cpu:2"))];
        let map = DeviceMap::from_names(&g, named.clone(), Some(device("cpu"))).unwrap();
        assert_eq!(placed(&g, &map), ["cpu:1", "cpu:0", "cpu:2"]);
        let error = DeviceMap::from_names(&g, named, None).unwrap_err();
        assert!(error.kind() == ErrorKind::Plan && error.message().contains("`layer1`"), "{error}");

        let wrong =
            [("layr0", device("cpu")), ("softmax", device("cpu")), ("layer1", device("cpu"))];
        let error = DeviceMap::from_names(&g, wrong, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownName);
        assert!(error.message().contains("`layr0` (nearest: `layer0`)"), "{error}");
        assert!(error.message().contains("`softmax`"), "{error}");

        let twice = [("layer0", device("cpu")), ("layer0", device("cpu:1"))];
        let error = DeviceMap::from_names(&g, twice, Some(device("cpu"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Duplicate);
    }
}
