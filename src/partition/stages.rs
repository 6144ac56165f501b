//! Placements in contiguous stages.

use super::balance;
use super::segments::computing_nodes;
use super::{DeviceId, DeviceMap, LinkFigures, Placement};
use crate::error::{Result, bail, err};
use crate::graph::{Graph, NodeId, ValueId};

impl DeviceMap {
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
