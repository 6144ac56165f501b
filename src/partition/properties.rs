//! Random graphs under random maps, checked against a naive merge and a toy interpreter.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::segments::computing_nodes;
use super::*;
use crate::graph::{Fact, Graph, NodeId, ValueId};
use crate::tensor::Tensor;

/// Recipe of a node: which earlier values it reads, how many outputs it has, its operator.
type Recipe = (Vec<(prop::sample::Index, bool)>, u8, u8);

fn build(inputs: usize, recipes: &[Recipe], outputs: &[prop::sample::Index]) -> Graph {
    let mut graph = Graph::new("random");
    let mut pool: Vec<ValueId> = Vec::new();
    for i in 0..inputs {
        pool.push(graph.add_input(format!("x{i}"), Fact::unknown()).unwrap());
    }
    for i in 0..2 {
        pool.push(graph.add_constant(format!("c{i}"), Tensor::scalar(7 + i64::from(i))).unwrap());
    }
    pool.push(graph.add_param("p0", Fact::unknown()).unwrap());
    for (i, (reads, makes, op)) in recipes.iter().enumerate() {
        let inputs: Vec<Option<ValueId>> =
            reads.iter().map(|(at, there)| there.then(|| *at.get(&pool))).collect();
        let made: Vec<Option<ValueId>> = (0..=*makes)
            .map(|o| {
                (o != 1).then(|| graph.add_value(format!("v{i}_{o}"), Fact::unknown()).unwrap())
            })
            .collect();
        let op = if *op == 0 { "RandomNormal" } else { "Toy" };
        graph.add_node(format!("n{i}"), op, inputs, made.clone());
        pool.extend(made.into_iter().flatten());
    }
    graph.set_outputs(outputs.iter().map(|o| *o.get(&pool)));
    graph
}

fn graphs() -> impl Strategy<Value = Graph> {
    let read = (any::<prop::sample::Index>(), prop::bool::weighted(0.9));
    let recipe = (prop::collection::vec(read, 0..4), 0u8..3, 0u8..12);
    let outputs = prop::collection::vec(any::<prop::sample::Index>(), 1..5);
    (1usize..3, prop::collection::vec(recipe, 0..28), outputs)
        .prop_map(|(inputs, recipes, outputs)| build(inputs, &recipes, &outputs))
}

/// A map from as many random numbers as there are nodes.
fn map_of(graph: &Graph, picks: &[(u8, u8)], devices: u8, stages: u8) -> DeviceMap {
    DeviceMap::from_placements(graph, |id, _| {
        let (d, s) = picks.get(id.index()).copied().unwrap_or((0, 0));
        Placement {
            device: DeviceId::cpu(u32::from(d % devices)),
            stage: (s % (stages + 1) > 0).then(|| u32::from(s % (stages + 1))),
            stage_id: None,
        }
    })
}

/// Runs a graph on whole numbers; order of inputs, node and output index all count.
fn toy(graph: &Graph, inputs: &[i64]) -> Vec<i64> {
    let mut values: HashMap<ValueId, i64> = HashMap::new();
    for (i, info) in graph.values().iter().enumerate() {
        if let Some(t) = &info.constant {
            values.insert(ValueId(i as u32), t.item::<i64>().unwrap());
        } else if info.param {
            values.insert(ValueId(i as u32), info.name.bytes().map(i64::from).sum());
        }
    }
    values.extend(graph.inputs().iter().copied().zip(inputs.iter().copied()));
    for node in graph.nodes() {
        let number: i64 = node.name[1..].parse().unwrap();
        let mut sum = number;
        for v in &node.inputs {
            let x = v.map_or(-1, |v| values[&v]);
            sum = sum.wrapping_mul(31).wrapping_add(x);
        }
        for (o, v) in node.outputs.iter().enumerate() {
            if let Some(v) = v {
                values.insert(*v, sum.wrapping_add(o as i64 * 1000));
            }
        }
    }
    graph.outputs().iter().map(|v| values[v]).collect()
}

/// Runs the segments one after the other, over their wiring alone.
fn toy_split(graph: &Graph, split: &Segmentation, inputs: &[i64]) -> Vec<i64> {
    let mut made: Vec<Vec<i64>> = Vec::new();
    for segment in split.segments() {
        let given: Vec<i64> = segment
            .inputs
            .iter()
            .map(|source| match *source {
                Source::Input(i) => inputs[i],
                Source::Segment { index, output } => made[index][output],
            })
            .collect();
        made.push(toy(&segment.graph, &given));
    }
    assert_eq!(split.outputs().len(), graph.outputs().len());
    let last = split.outputs().iter().map(|source| match source {
        OutputSource::Input(i) => inputs[*i],
        OutputSource::Segment { index, output } => made[*index][*output],
        OutputSource::Constant(t) => t.item::<i64>().unwrap(),
        OutputSource::Param(name) => name.bytes().map(i64::from).sum(),
    });
    last.collect()
}

/// Whether groups of nodes wait for each other, by depth-first search.
fn cyclic(edges: &BTreeSet<(usize, usize)>, count: usize) -> bool {
    fn visit(at: usize, edges: &BTreeSet<(usize, usize)>, state: &mut [u8]) -> bool {
        state[at] = 1;
        for (_, next) in edges.range((at, 0)..(at + 1, 0)) {
            if state[*next] == 1 || (state[*next] == 0 && visit(*next, edges, state)) {
                return true;
            }
        }
        state[at] = 2;
        false
    }
    let mut state = vec![0; count];
    (0..count).any(|i| state[i] == 0 && visit(i, edges, &mut state))
}

/// Pairs of foreign groups, producer first.
fn quotient(graph: &Graph, group: &HashMap<NodeId, usize>) -> BTreeSet<(usize, usize)> {
    let producers = graph.producers();
    let mut edges = BTreeSet::new();
    for (id, node) in graph.node_ids() {
        for p in node.reads().filter_map(|v| producers[v.index()]) {
            if let (Some(a), Some(b)) = (group.get(&p), group.get(&id))
                && a != b
            {
                edges.insert((*a, *b));
            }
        }
    }
    edges
}

/// The plain greedy merge: each node joins the latest group of its placement that closes no cycle.
fn greedy(graph: &Graph, map: &DeviceMap) -> usize {
    let mut group: HashMap<NodeId, usize> = HashMap::new();
    let mut places: Vec<Placement> = Vec::new();
    for id in computing_nodes(graph) {
        let place = map.placement(id).unwrap();
        let mut joined = false;
        for g in (0..places.len()).rev().filter(|g| places[*g] == *place) {
            group.insert(id, g);
            if !cyclic(&quotient(graph, &group), places.len()) {
                joined = true;
                break;
            }
        }
        if !joined {
            group.insert(id, places.len());
            places.push(place.clone());
        }
    }
    places.len()
}

fn check(graph: &Graph, map: &DeviceMap) -> Result<(), TestCaseError> {
    let split = Segmentation::new(graph, map).unwrap();
    let computing: BTreeSet<NodeId> = computing_nodes(graph).into_iter().collect();
    let mut group: HashMap<NodeId, usize> = HashMap::new();
    let mut times = vec![0; graph.nodes().len()];
    for (index, segment) in split.segments().iter().enumerate() {
        prop_assert_eq!(segment.index, index);
        segment.graph.validate().unwrap();
        prop_assert_eq!(segment.inputs.len(), segment.graph.inputs().len());
        prop_assert_eq!(segment.nodes.len(), segment.graph.nodes().len());
        for (id, node) in segment.nodes.iter().zip(segment.graph.nodes()) {
            times[id.index()] += 1;
            prop_assert_eq!(&node.name, &graph.node(*id).name);
            if computing.contains(id) {
                group.insert(*id, index);
                let place = map.placement(*id).unwrap();
                prop_assert_eq!(&segment.device, &place.device);
                prop_assert_eq!(segment.stage, place.stage);
            }
        }
        for (input, source) in segment.inputs.iter().enumerate() {
            let target = Target::Segment { index, input };
            match *source {
                Source::Input(i) => prop_assert!(split.input_targets(i).contains(&target)),
                Source::Segment { index: from, output } => {
                    prop_assert!(from < index, "segment {index} reads of {from}");
                    prop_assert!(split.output_targets(from, output).contains(&target));
                }
            }
        }
        for (output, v) in segment.graph.outputs().iter().enumerate() {
            let targets = split.output_targets(index, output);
            prop_assert!(!targets.is_empty(), "nobody wants output {output} of {index}");
            let name = &segment.graph.value(*v).name;
            for t in targets {
                let wanted = match *t {
                    Target::Output(o) => graph.value(graph.outputs()[o]).name.clone(),
                    Target::Segment { index, input } => {
                        let g = &split.segments()[index].graph;
                        g.value(g.inputs()[input]).name.clone()
                    }
                };
                prop_assert_eq!(name, &wanted);
            }
        }
    }
    for (id, n) in graph.node_ids().map(|(id, _)| (id, times[id.index()])) {
        prop_assert!(if computing.contains(&id) { n == 1 } else { n >= 1 }, "node {id:?}: {n}");
    }

    let count = split.segments().len();
    prop_assert!(count <= greedy(graph, map).max(usize::from(!graph.nodes().is_empty())));
    let edges = quotient(graph, &group);
    for a in 0..count {
        for b in a + 1..count {
            let (x, y) = (&split.segments()[a], &split.segments()[b]);
            if (&x.device, x.stage) == (&y.device, y.stage) {
                let merged = |g: usize| if g == b { a } else { g };
                let edges: BTreeSet<(usize, usize)> = edges
                    .iter()
                    .map(|(p, c)| (merged(*p), merged(*c)))
                    .filter(|(p, c)| p != c)
                    .collect();
                prop_assert!(cyclic(&edges, count), "segments {a} and {b} could be one");
            }
        }
    }

    let inputs: Vec<i64> = (0..graph.inputs().len() as i64).map(|i| 100 + 17 * i).collect();
    prop_assert_eq!(toy_split(graph, &split, &inputs), toy(graph, &inputs));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn scenario_02_any_map_on_any_graph_is_acyclic_and_exact(
        graph in graphs(),
        picks in prop::collection::vec(any::<(u8, u8)>(), 28),
        devices in 1u8..4,
        stages in 0u8..3,
    ) {
        check(&graph, &map_of(&graph, &picks, devices, stages))?;
    }

    #[test]
    fn stages_are_as_many_as_asked(graph in graphs(), stages in 1usize..6, devices in 1u32..3) {
        let computing = computing_nodes(&graph);
        let devices: Vec<DeviceId> = (0..devices).map(DeviceId::cpu).collect();
        let cost = |id: NodeId| (id.index() % 4) as f64;
        let map = DeviceMap::balanced(&graph, &devices, stages, &cost, &|_| 4.0);
        if stages > computing.len() {
            let error = map.unwrap_err();
            prop_assert_eq!(error.kind(), crate::ErrorKind::Plan);
            let limit = format!("at most {}", computing.len());
            prop_assert!(error.to_string().contains(&limit), "{}", error);
            return Ok(());
        }
        let map = map.unwrap();
        check(&graph, &map)?;
        let split = Segmentation::new(&graph, &map).unwrap();
        prop_assert_eq!(split.segments().len(), stages);
        for (i, segment) in split.segments().iter().enumerate() {
            prop_assert_eq!(&segment.device, &devices[i % devices.len()]);
        }
    }
}

#[test]
fn a_long_alternating_chain_is_cut_at_each_change() {
    const NODES: usize = 10_000;
    let mut graph = Graph::new("long");
    let mut last = graph.add_input("x", Fact::unknown()).unwrap();
    for i in 0..NODES {
        let next = graph.add_value(format!("v{i}"), Fact::unknown()).unwrap();
        graph.add_node(format!("n{i}"), "Toy", [Some(last)], [Some(next)]);
        last = next;
    }
    graph.set_outputs([last]);
    let map = DeviceMap::from_placements(&graph, |id, _| DeviceId::cpu(id.0 % 2).into());
    let split = Segmentation::new(&graph, &map).unwrap();
    assert_eq!((split.segments().len(), split.edges().len()), (NODES, NODES - 1));
    assert_eq!(toy_split(&graph, &split, &[5]), toy(&graph, &[5]));
}

proptest! {
    #[test]
    fn no_text_makes_a_plan_panic(
        text in r#"\{"schema":1(,"(rules|threads|in_flight|replicas)":(\[.{0,40}\]|\{.{0,40}\}|.{0,9})){0,3}\}"#,
    ) {
        let _ = Plan::parse(&text);
        let _ = text.parse::<Matcher>();
        let _ = text.parse::<DeviceId>();
    }
}
