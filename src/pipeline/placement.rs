//! Placements that ask the devices of a registry, or the operators' cost.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::device::{Device, DeviceId, LinkFigures, Support};
use crate::error::Result;
use crate::graph::{Fact, Graph, Node, NodeId, ValueId};
use crate::ops::cost::{Cost, CostQuery};
use crate::partition::DeviceMap;
use crate::registry::Registry;
use crate::tensor::{DType, Shape};

/// Each node on `primary` if that supports it, else on `fallback`.
///
/// # Errors
/// If a device is not there or cannot say what it runs, or some nodes can run on neither; all of them
/// are named.
pub fn fallback(
    graph: &Graph,
    primary: &DeviceId,
    fallback: &DeviceId,
    registry: &Registry,
) -> Result<DeviceMap> {
    let place: HashMap<&str, usize> =
        graph.nodes().iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
    let mut devices = HashMap::new();
    for id in [primary, fallback] {
        let device = registry.device(id)?;
        devices.insert(id.clone(), supports_all(device.as_ref(), graph)?);
    }
    DeviceMap::auto_fallback(graph, primary, fallback, &|id, _, node| {
        let answers = devices.get(id).zip(place.get(node.name.as_str()));
        match answers.and_then(|(all, at)| all.get(*at)) {
            Some(support) => support.clone(),
            None => Support::No("no such device".to_owned()),
        }
    })
}

/// Whether a device can run each node of a graph, in order.
///
/// # Errors
/// If that cannot be found out; names the device.
pub(crate) fn supports_all(device: &dyn Device, graph: &Graph) -> Result<Vec<Support>> {
    let nodes: Vec<(&Node, Vec<Option<Fact>>)> =
        graph.nodes().iter().map(|node| (node, facts(graph, node))).collect();
    device.supports_graph(graph, &nodes).map_err(|e| e.with_device(device.id().to_string()))
}

/// As [`fallback`], but a primary device that is not usable here leaves everything to the
/// fallback; what its user should hear of that is returned beside the map.
///
/// # Errors
/// If the fallback device is not there, or cannot run some nodes.
pub fn fallback_if_present(
    graph: &Graph,
    primary: &DeviceId,
    fallback_to: &DeviceId,
    registry: &Registry,
) -> Result<(DeviceMap, Option<String>)> {
    match registry.device(primary) {
        Ok(_) => Ok((fallback(graph, primary, fallback_to, registry)?, None)),
        Err(why) => {
            registry.device(fallback_to)?;
            let notice = format!("everything runs on `{fallback_to}`: {}", why.headline());
            Ok((DeviceMap::single(fallback_to.clone()), Some(notice)))
        }
    }
}

/// `stages` contiguous segments of about equal analytic cost, over the devices in turn. Where a device
/// knows what the way to its neighbour takes ([`Device::link_to`]), that counts beside the costs, as
/// [`DeviceMap::balanced_over`] says.
///
/// # Errors
/// If there are fewer nodes than stages, or no device.
pub fn balanced(
    graph: &Graph,
    devices: &[DeviceId],
    stages: usize,
    registry: &Registry,
    symbols: &dyn Fn(&str) -> Option<i64>,
) -> Result<DeviceMap> {
    let costs = node_costs(graph, registry, symbols);
    let seconds = |id: NodeId| seconds(costs[id.index()]);
    let bytes = |v: ValueId| value_bytes(graph, v, symbols);
    // Each pair is asked once, since it may be measured for it.
    let links = RefCell::new(HashMap::new());
    let link = |from: &DeviceId, to: &DeviceId| {
        if let Some(known) = links.borrow().get(&(from.clone(), to.clone())) {
            return *known;
        }
        let found = link_between(registry, from, to);
        links.borrow_mut().insert((from.clone(), to.clone()), found);
        found
    };
    DeviceMap::balanced_over(graph, devices, stages, &seconds, &bytes, &link)
}

/// What the way between two devices takes, where one of them knows; `None` within one memory.
pub(crate) fn link_between(
    registry: &Registry,
    from: &DeviceId,
    to: &DeviceId,
) -> Option<LinkFigures> {
    let known = |a: &DeviceId, b: &DeviceId| registry.device(a).ok()?.link_to(b);
    if from == to { None } else { known(from, to).or_else(|| known(to, from)) }
}

/// The peaks that analytic costs are turned into times with: those of one present-day core. Only
/// their ratio matters for a balance.
const PEAK_FLOPS: f64 = 80e9;
const PEAK_BYTES: f64 = 15e9;

/// About what a cost takes on one present-day core.
pub fn seconds(cost: Cost) -> f64 {
    cost.seconds(PEAK_FLOPS, PEAK_BYTES)
}

/// The extent that an unknown symbol is taken for where nobody gave one.
const ASSUMED_EXTENT: i64 = 64;

fn facts(graph: &Graph, node: &Node) -> Vec<Option<Fact>> {
    node.inputs.iter().map(|v| v.map(|v| graph.value(v).fact.clone())).collect()
}

/// The concrete dtype and shape of a value, with assumed extents for unknown symbols.
fn concrete(
    graph: &Graph,
    value: ValueId,
    symbols: &dyn Fn(&str) -> Option<i64>,
) -> Option<(DType, Shape)> {
    let fact = &graph.value(value).fact;
    let lookup = |s: &str| symbols(s).or(Some(ASSUMED_EXTENT));
    let shape = fact.shape.as_ref()?;
    let dims: Option<Vec<usize>> =
        shape.iter().map(|d| d.evaluate(&lookup).and_then(|v| usize::try_from(v).ok())).collect();
    let dims = dims?;
    crate::tensor::element_count(&dims, 8).ok()?;
    Some((fact.dtype?, dims.into()))
}

/// The analytic cost of each node; `symbols` gives the extents that are known.
pub fn node_costs(
    graph: &Graph,
    registry: &Registry,
    symbols: &dyn Fn(&str) -> Option<i64>,
) -> Vec<Cost> {
    let known = |v: &Option<ValueId>| v.and_then(|v| concrete(graph, v, symbols));
    graph
        .nodes()
        .iter()
        .map(|node| {
            let inputs: Vec<_> = node.inputs.iter().map(known).collect();
            let outputs: Vec<_> = node.outputs.iter().map(known).collect();
            let query = CostQuery { node, inputs: &inputs, outputs: &outputs };
            registry.ops().get(&node.domain, &node.op).map_or(Cost::default(), |d| (d.cost)(&query))
        })
        .collect()
}

/// Bytes of a value; `symbols` gives the extents that are known.
pub fn value_bytes(graph: &Graph, value: ValueId, symbols: &dyn Fn(&str) -> Option<i64>) -> f64 {
    concrete(graph, value, symbols).map_or(0.0, |(d, s)| (s.elements() * d.size()) as f64)
}
