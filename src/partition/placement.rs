//! Which node runs where.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use super::names::{list, nearest};
use super::{DeviceId, Notice, Plan, Support};
use crate::error::{Result, bail, err};
use crate::graph::{Graph, Node, NodeId};

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

/// Whether the nodes on a device can stand for a fixed datapath of this name.
///
/// # Errors
/// If the name is empty, or the device is none of a worker.
pub(super) fn check_stage_id(device: &DeviceId, id: &str) -> Result<()> {
    if id.is_empty() {
        return Err(err!(Plan, "the stage_id is empty")
            .with_help("name the datapath that the worker owns, or leave it out"));
    }
    if device.worker().is_none() {
        return Err(err!(
            Plan,
            "the nodes stand for the fixed datapath `{id}`, which `{device}` is not"
        )
        .with_help("place them on the worker that owns the datapath, as `WORKER/datapath`"));
    }
    Ok(())
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
