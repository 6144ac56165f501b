//! Segments: groups of nodes on one device, each a graph of its own, and how they are joined.

use std::collections::{BTreeMap, HashMap};

use super::grouping::Nodes;
use super::placement::check_stage_id;
use super::{DeviceId, DeviceMap, Placement};
use crate::error::{Result, err};
use crate::graph::{Fact, Graph, NodeId, ValueId};
use crate::tensor::Tensor;

/// Where an input of a segment comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The unsplit graph's input with this index.
    Input(usize),
    /// An output of another segment.
    Segment {
        /// Which segment.
        index: usize,
        /// Which of its outputs.
        output: usize,
    },
}

/// Where an output of the unsplit graph comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputSource {
    /// The graph's input with this index, as it came.
    Input(usize),
    /// An output of a segment.
    Segment {
        /// Which segment.
        index: usize,
        /// Which of its outputs.
        output: usize,
    },
    /// The same tensor for each item.
    Constant(Tensor),
    /// The parameter of this name, as it is bound.
    Param(String),
}

/// Where a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An input of a segment.
    Segment {
        /// Which segment.
        index: usize,
        /// Which of its inputs.
        input: usize,
    },
    /// The unsplit graph's output with this index.
    Output(usize),
}

/// A value that goes from one segment to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// The value's name in the unsplit graph, and in both segments' graphs.
    pub value: String,
    /// Its fact, as in the unsplit graph.
    pub fact: Fact,
    /// The segment that makes it.
    pub from: usize,
    /// Which of that segment's outputs it is.
    pub output: usize,
    /// The segment that reads it.
    pub to: usize,
    /// Which of that segment's inputs it is.
    pub input: usize,
}

/// A group of nodes on one device, as a graph of its own.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its place in the plan, which is a topological order: it reads only from lower ones.
    pub index: usize,
    /// Where it runs.
    pub device: DeviceId,
    /// The stage that its placement asked for, if it did.
    pub stage: Option<u32>,
    /// The fixed datapath that it stands for, if its placement says so.
    pub stage_id: Option<std::sync::Arc<str>>,
    /// Its nodes in the unsplit graph, in order: `nodes[i]` is `graph.nodes()[i]`.
    pub nodes: Vec<NodeId>,
    /// Its graph. Names, facts, symbols, metadata and opsets are those of the unsplit graph;
    /// constants are shared, not copied. Its inputs are the inputs of the unsplit graph that it
    /// reads, then what it reads of other segments; its outputs are what others or the unsplit
    /// graph's outputs need, and it has none if all its nodes are dead.
    pub graph: Graph,
    /// Where each input of `graph` comes from. It is empty only if the segment holds nothing that
    /// depends on an input: random generators, or a graph that is constant altogether.
    pub inputs: Vec<Source>,
}

/// A graph cut into segments by a [`DeviceMap`].
///
/// For any map on any graph the segments form an acyclic graph. Nodes of one device, and of one
/// stage where stages are given, share a segment unless that would close a cycle. Constants and
/// parameters, and nodes that compute from them alone, are copied into each segment that reads
/// them, whatever the map says of them; such nodes whose result nobody but the graph's outputs
/// reads go where there is a segment of their device, else into the first one.
///
/// See the [module](super) for an example.
#[derive(Clone, Debug)]
pub struct Segmentation {
    segments: Vec<Segment>,
    edges: Vec<Edge>,
    outputs: Vec<OutputSource>,
    input_targets: Vec<Vec<Target>>,
    output_targets: Vec<Vec<Vec<Target>>>,
    params: BTreeMap<String, Vec<usize>>,
}

/// Which nodes compute from constants and parameters alone, and so follow what reads them;
/// `pinned` ones do not.
fn followers(graph: &Graph, pinned: &dyn Fn(NodeId) -> bool) -> Vec<bool> {
    let mut constant: Vec<bool> =
        graph.values().iter().map(|v| v.constant.is_some() || v.param).collect();
    for v in graph.inputs() {
        constant[v.index()] = false;
    }
    let mut out = Vec::with_capacity(graph.nodes().len());
    for (id, node) in graph.node_ids() {
        let follows = !pinned(id) && !node.is_random() && node.reads().all(|v| constant[v.index()]);
        if follows {
            for v in node.makes() {
                constant[v.index()] = true;
            }
        }
        out.push(follows);
    }
    out
}

/// The nodes that a placement moves: all but those that compute from constants and parameters
/// alone. There can be at most as many stages as there are of these.
pub fn computing_nodes(graph: &Graph) -> Vec<NodeId> {
    let follows = followers(graph, &|_| false);
    graph.node_ids().map(|(id, _)| id).filter(|id| !follows[id.index()]).collect()
}

impl Segmentation {
    /// Cuts `graph` by `map`.
    ///
    /// # Errors
    /// If the graph is not well formed ([`Graph::validate`]), or the map was made for another one.
    pub fn new(graph: &Graph, map: &DeviceMap) -> Result<Self> {
        graph.validate()?;
        map.check(graph)?;
        let split = Split::new(graph, map)?;
        let (mut segments, mut edges) = (Vec::new(), Vec::new());
        let mut params: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut input_targets = vec![Vec::new(); graph.inputs().len()];
        let mut output_targets: Vec<Vec<Vec<Target>>> =
            split.made.iter().map(|made| vec![Vec::new(); made.len()]).collect();
        for index in 0..split.members.len() {
            let (segment, reads) = split.segment(index)?;
            if let Some(id) = &segment.stage_id {
                check_stage_id(&segment.device, id)
                    .map_err(|e| e.within(&format!("segment {index}")))?;
            }
            for (input, (source, value)) in segment.inputs.iter().zip(reads).enumerate() {
                let target = Target::Segment { index, input };
                match *source {
                    Source::Input(i) => input_targets[i].push(target),
                    Source::Segment { index: from, output } => {
                        output_targets[from][output].push(target);
                        let info = graph.value(value);
                        let (value, fact) = (info.name.clone(), info.fact.clone());
                        edges.push(Edge { value, fact, from, output, to: index, input });
                    }
                }
            }
            for v in segment.graph.values().iter().filter(|v| v.param) {
                params.entry(v.name.clone()).or_default().push(index);
            }
            segments.push(segment);
        }
        let mut outputs = Vec::with_capacity(graph.outputs().len());
        for (i, v) in graph.outputs().iter().enumerate() {
            let source = split.output(*v)?;
            match source {
                OutputSource::Input(input) => input_targets[input].push(Target::Output(i)),
                OutputSource::Segment { index, output } => {
                    output_targets[index][output].push(Target::Output(i));
                }
                OutputSource::Constant(_) | OutputSource::Param(_) => {}
            }
            outputs.push(source);
        }
        edges.sort_by_key(|e| (e.from, e.output, e.to));
        Ok(Self { segments, edges, outputs, input_targets, output_targets, params })
    }

    /// The segments, in a topological order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Forgets the weights of segments that have been compiled.
    pub(crate) fn release_constants(&mut self) {
        for segment in &mut self.segments {
            segment.graph.release_constants();
        }
    }

    /// Everything that goes from one segment to another, by producer.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Where each output of the unsplit graph comes from, in its order.
    pub fn outputs(&self) -> &[OutputSource] {
        &self.outputs
    }

    /// Where the unsplit graph's input with this index goes; nowhere if nothing reads it or there
    /// is no such input.
    pub fn input_targets(&self, input: usize) -> &[Target] {
        self.input_targets.get(input).map_or(&[], Vec::as_slice)
    }

    /// Where this output of this segment goes; nowhere if there is none such.
    pub fn output_targets(&self, segment: usize, output: usize) -> &[Target] {
        self.output_targets.get(segment).and_then(|o| o.get(output)).map_or(&[], Vec::as_slice)
    }

    /// The segments that hold the parameter of this name; none if nothing reads it.
    pub fn param_segments(&self, name: &str) -> &[usize] {
        self.params.get(name).map_or(&[], Vec::as_slice)
    }

    /// The device of each segment, in order.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceId> {
        self.segments.iter().map(|s| &s.device)
    }
}

/// Which segment each node is in, and what each segment has to give to others.
struct Split<'a> {
    graph: &'a Graph,
    producers: Vec<Option<NodeId>>,
    input_index: HashMap<ValueId, usize>,
    /// Per segment, its placement and its nodes in order.
    places: Vec<Placement>,
    members: Vec<Vec<NodeId>>,
    /// The segment of each node that does not follow its readers.
    home: Vec<Option<usize>>,
    /// Per segment, its outputs.
    made: Vec<Vec<ValueId>>,
    /// Which output of which segment a value is.
    made_at: HashMap<ValueId, (usize, usize)>,
}

impl<'a> Split<'a> {
    fn new(graph: &'a Graph, map: &DeviceMap) -> Result<Self> {
        let producers = graph.producers();
        let follows = followers(graph, &|id| map.is_pinned(id));
        let mut input_index = HashMap::new();
        for (i, v) in graph.inputs().iter().enumerate() {
            input_index.entry(*v).or_insert(i);
        }

        let mut keys_of: HashMap<&Placement, usize> = HashMap::new();
        let mut placed = Vec::new();
        let mut position = vec![usize::MAX; graph.nodes().len()];
        let mut nodes = Nodes { keys: Vec::new(), sources: Vec::new() };
        for (id, node) in graph.node_ids().filter(|(id, _)| !follows[id.index()]) {
            position[id.index()] = placed.len();
            placed.push(id);
            let next = keys_of.len();
            nodes.keys.push(*keys_of.entry(map.placement(id)?).or_insert(next));
            let mut sources: Vec<usize> = node
                .reads()
                .filter_map(|v| producers[v.index()])
                .filter(|p| !follows[p.index()])
                .map(|p| position[p.index()])
                .collect();
            sources.sort_unstable();
            sources.dedup();
            nodes.sources.push(sources);
        }
        let groups = nodes.group();
        let count = groups.iter().max().map_or(0, |m| m + 1);
        let mut home = vec![None; graph.nodes().len()];
        let mut members: Vec<Vec<NodeId>> = vec![Vec::new(); count];
        let mut places: Vec<Option<Placement>> = vec![None; count];
        for (id, group) in placed.iter().zip(&groups) {
            home[id.index()] = Some(*group);
            members[*group].push(*id);
            places[*group].get_or_insert(map.placement(*id)?.clone());
        }
        let mut places: Vec<Placement> = places.into_iter().flatten().collect();

        // Followers whose only readers are the graph's outputs, or nobody.
        let consumers = graph.consumers();
        let is_output: Vec<bool> = {
            let mut out = vec![false; graph.values().len()];
            graph.outputs().iter().for_each(|v| out[v.index()] = true);
            out
        };
        for (id, node) in graph.node_ids().filter(|(id, _)| follows[id.index()]) {
            let read = node.makes().any(|v| !consumers[v.index()].is_empty());
            if read && !node.makes().any(|v| is_output[v.index()]) {
                continue;
            }
            let place = map.placement(id)?;
            if places.is_empty() {
                places.push(place.clone());
                members.push(Vec::new());
            }
            let same = places.iter().position(|p| p == place);
            let near = || places.iter().position(|p| p.device == place.device);
            let group = same.or_else(near).unwrap_or(0);
            home[id.index()] = Some(group);
            members[group].push(id);
        }

        // Each segment takes along the followers that its nodes need.
        let mut taken_by = vec![usize::MAX; graph.nodes().len()];
        for (group, members) in members.iter_mut().enumerate() {
            for id in members.iter() {
                taken_by[id.index()] = group;
            }
            let mut next = 0;
            while next < members.len() {
                let reads = graph.node(members[next]).reads();
                for p in reads.filter_map(|v| producers[v.index()]) {
                    if follows[p.index()] && taken_by[p.index()] != group {
                        taken_by[p.index()] = group;
                        members.push(p);
                    }
                }
                next += 1;
            }
            members.sort_unstable();
        }

        let mut made = vec![Vec::new(); members.len()];
        let mut made_at = HashMap::new();
        for (id, node) in graph.node_ids() {
            let Some(group) = home[id.index()] else { continue };
            for v in node.makes() {
                let foreign = consumers[v.index()]
                    .iter()
                    .any(|c| !follows[c.index()] && home[c.index()] != Some(group));
                // A follower is copied to where it is read.
                if is_output[v.index()] || (foreign && !follows[id.index()]) {
                    made_at.insert(v, (group, made[group].len()));
                    made[group].push(v);
                }
            }
        }
        Ok(Self { graph, producers, input_index, places, members, home, made, made_at })
    }

    /// The segment, with the unsplit graph's value behind each of its inputs.
    fn segment(&self, index: usize) -> Result<(Segment, Vec<ValueId>)> {
        let members = &self.members[index];
        let made_here: std::collections::HashSet<ValueId> =
            members.iter().flat_map(|id| self.graph.node(*id).makes()).collect();
        let mut sources: Vec<(Source, ValueId)> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for v in members.iter().flat_map(|id| self.graph.node(*id).reads()) {
            if !seen.insert(v) {
                continue;
            }
            if let Some(i) = self.input_index.get(&v) {
                sources.push((Source::Input(*i), v));
            } else if !made_here.contains(&v) && self.producers[v.index()].is_some() {
                let (index, output) = *self.made_at.get(&v).ok_or_else(|| self.lost(v))?;
                sources.push((Source::Segment { index, output }, v));
            }
        }
        sources.sort_unstable_by_key(|(source, _)| match *source {
            Source::Input(i) => (0, i, 0),
            Source::Segment { index, output } => (1, index, output),
        });

        let mut graph = self.graph.part(format!("{}#{index}", self.graph.name));
        let mut ids: HashMap<ValueId, ValueId> = HashMap::new();
        for (_, v) in &sources {
            let info = self.graph.value(*v);
            ids.insert(*v, graph.add_input(info.name.clone(), info.fact.clone())?);
        }
        for id in members {
            let mut node = self.graph.node(*id).clone();
            for v in node.inputs.iter_mut().chain(&mut node.outputs).flatten() {
                *v = match ids.get(v) {
                    Some(new) => *new,
                    None => {
                        let new = graph.push_value(self.graph.value(*v).clone())?;
                        ids.insert(*v, new);
                        new
                    }
                };
            }
            graph.nodes.push(node);
        }
        let outputs: Option<Vec<ValueId>> =
            self.made[index].iter().map(|v| ids.get(v).copied()).collect();
        graph.set_outputs(outputs.ok_or_else(|| err!(Internal, "a segment lacks its output"))?);
        let place = &self.places[index];
        let (inputs, values) = sources.into_iter().unzip();
        let segment = Segment {
            index,
            device: place.device.clone(),
            stage: place.stage,
            stage_id: place.stage_id.clone(),
            nodes: members.clone(),
            graph,
            inputs,
        };
        Ok((segment, values))
    }

    fn output(&self, value: ValueId) -> Result<OutputSource> {
        if let Some(i) = self.input_index.get(&value) {
            return Ok(OutputSource::Input(*i));
        }
        if let Some((index, output)) = self.made_at.get(&value) {
            return Ok(OutputSource::Segment { index: *index, output: *output });
        }
        let info = self.graph.value(value);
        match &info.constant {
            // A parameter may be bound anew.
            _ if info.param => Ok(OutputSource::Param(info.name.clone())),
            Some(tensor) => Ok(OutputSource::Constant(tensor.clone())),
            None => Err(self.lost(value)),
        }
    }

    fn lost(&self, value: ValueId) -> crate::Error {
        let name = &self.graph.value(value).name;
        let home = self.producers[value.index()].and_then(|p| self.home[p.index()]);
        err!(Internal, "no segment gives out `{name}` (its node is in segment {home:?})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::graph::Dim;

    fn by_prefix(graph: &Graph) -> DeviceMap {
        DeviceMap::from_fn(graph, |n| DeviceId::cpu(u32::from(n.name.starts_with('b'))))
    }

    /// Nodes by name, what they read and what they make (values are named after their node).
    fn graph(nodes: &[(&str, &[&str])], outputs: &[&str]) -> Graph {
        let mut g = Graph::new("g");
        g.add_input("x", Fact::unknown()).unwrap();
        g.add_constant("c", Tensor::scalar(3_i64)).unwrap();
        g.add_param("w", Fact::new(DType::F32, [Dim::fixed(4)])).unwrap();
        for (name, reads) in nodes {
            let inputs: Vec<Option<ValueId>> = reads.iter().map(|r| g.find(r)).collect();
            assert!(inputs.iter().all(Option::is_some));
            let made = g.add_value((*name).to_owned(), Fact::unknown()).unwrap();
            g.add_node((*name).to_owned(), "Op", inputs, [Some(made)]);
        }
        let outputs: Vec<ValueId> = outputs.iter().map(|o| g.find(o).unwrap()).collect();
        g.set_outputs(outputs);
        g
    }

    fn names(split: &Segmentation) -> Vec<Vec<&str>> {
        split
            .segments()
            .iter()
            .map(|s| s.graph.nodes().iter().map(|n| n.name.as_str()).collect())
            .collect()
    }

    #[test]
    fn scenario_02_two_interleaved_chains_are_two_segments() {
        let mut nodes: Vec<(String, String)> = Vec::new();
        for i in 0..16 {
            for side in ["a", "b"] {
                let read = if i == 0 { "x".to_owned() } else { format!("{side}{}", i - 1) };
                nodes.push((format!("{side}{i}"), read));
            }
        }
        let reads: Vec<[&str; 1]> = nodes.iter().map(|(_, r)| [r.as_str()]).collect();
        let nodes: Vec<(&str, &[&str])> =
            nodes.iter().zip(&reads).map(|((n, _), r)| (n.as_str(), &r[..])).collect();
        let g = graph(&nodes, &["a15", "b15"]);
        let split = Segmentation::new(&g, &by_prefix(&g)).unwrap();
        assert_eq!(split.segments().len(), 2);
        assert!(split.edges().is_empty());
        assert_eq!(split.input_targets(0).len(), 2);
    }

    #[test]
    fn scenario_02_a_diamond_over_two_devices_is_three_segments() {
        let g = graph(
            &[("a0", &["x"]), ("a1", &["a0"]), ("b0", &["a0"]), ("a2", &["a1", "b0"])],
            &["a2"],
        );
        let split = Segmentation::new(&g, &by_prefix(&g)).unwrap();
        assert_eq!(split.segments().len(), 3);
        assert_eq!(names(&split)[1], ["b0"]);
        assert_eq!(names(&split)[2].last(), Some(&"a2"));
        for e in split.edges() {
            assert!(e.from < e.to);
        }
        let single = Segmentation::new(&g, &DeviceMap::single(DeviceId::cpu(0))).unwrap();
        assert_eq!(names(&single), [["a0", "a1", "b0", "a2"]]);
    }

    #[test]
    fn islands_of_one_device_are_one_segment() {
        let g = graph(&[("a0", &["x"]), ("a1", &["x"]), ("a2", &["x"])], &["a0", "a1", "a2"]);
        let split = Segmentation::new(&g, &by_prefix(&g)).unwrap();
        assert_eq!(split.segments().len(), 1);
    }

    #[test]
    fn scenario_04_constants_follow_their_consumers() {
        // `b_scale` computes from a constant and is mapped elsewhere than its only reader.
        let g = graph(
            &[("b_scale", &["c"]), ("a0", &["x", "b_scale"]), ("a1", &["a0", "c", "w"])],
            &["a1"],
        );
        let split = Segmentation::new(&g, &by_prefix(&g)).unwrap();
        assert_eq!(names(&split), [["b_scale", "a0", "a1"]]);
        assert_eq!(split.segments()[0].inputs, [Source::Input(0)]);
        let inner = &split.segments()[0].graph;
        let copy = inner.value(inner.find("c").unwrap()).constant.clone().unwrap();
        let original = g.value(g.find("c").unwrap()).constant.clone().unwrap();
        assert_eq!(copy.as_bytes().as_ptr(), original.as_bytes().as_ptr(), "shared, not copied");
    }

    #[test]
    fn scenario_10_shared_weights_reach_all_their_segments() {
        let g = graph(&[("a0", &["x", "w"]), ("b0", &["a0"]), ("a1", &["b0", "w"])], &["a1"]);
        let split = Segmentation::new(&g, &by_prefix(&g)).unwrap();
        assert_eq!(split.param_segments("w"), [0, 2]);
        assert!(split.param_segments("nothing").is_empty());
    }

    #[test]
    fn random_nodes_are_not_copied() {
        let mut g = graph(&[("b_noise", &["c"]), ("a0", &["x", "b_noise"])], &["a0", "b_noise"]);
        g.nodes[0].op = "RandomNormal".to_owned();
        let split = Segmentation::new(&g, &by_prefix(&g)).unwrap();
        assert_eq!(names(&split), [["b_noise"], ["a0"]]);
        assert_eq!(split.segments()[0].device, DeviceId::cpu(1));
    }

    #[test]
    fn what_a_device_refuses_does_not_follow_onto_it() {
        let g = graph(&[("k", &["c"]), ("a0", &["x", "k"])], &["a0"]);
        let (gpu, cpu) = ("wgpu".parse().unwrap(), DeviceId::cpu(0));
        let map = DeviceMap::auto_fallback(&g, &gpu, &cpu, &|d, _, n| {
            if *d == gpu && n.name == "k" {
                crate::partition::Support::No("i64".to_owned())
            } else {
                crate::partition::Support::Yes
            }
        })
        .unwrap();
        let split = Segmentation::new(&g, &map).unwrap();
        assert_eq!(names(&split), [["k"], ["a0"]]);
    }

    #[test]
    fn outputs_may_be_inputs_and_constants() {
        let g = graph(&[("k", &["c"]), ("a0", &["x"])], &["x", "c", "w", "a0", "k", "a0"]);
        let split = Segmentation::new(&g, &by_prefix(&g)).unwrap();
        assert_eq!(names(&split), [["k", "a0"]]);
        let segment = |output| OutputSource::Segment { index: 0, output };
        assert_eq!(
            split.outputs(),
            [
                OutputSource::Input(0),
                OutputSource::Constant(Tensor::scalar(3_i64)),
                OutputSource::Param("w".to_owned()),
                segment(1),
                segment(0),
                segment(1),
            ]
        );
        assert_eq!(split.output_targets(0, 1), [Target::Output(3), Target::Output(5)]);
        assert!(split.output_targets(0, 9).is_empty() && split.input_targets(9).is_empty());

        let mut nothing = Graph::new("nothing");
        let x = nothing.add_input("x", Fact::unknown()).unwrap();
        nothing.set_outputs([x]);
        let split = Segmentation::new(&nothing, &DeviceMap::single(DeviceId::cpu(0))).unwrap();
        assert!(split.segments().is_empty());
        assert_eq!(split.outputs(), [OutputSource::Input(0)]);
    }

    #[test]
    fn scenario_03_boundaries_keep_names_facts_and_symbols() {
        let mut g = graph(&[("a0", &["x"]), ("b0", &["a0"])], &["b0"]);
        let fact = Fact::new(DType::F32, [Dim::symbol("N"), Dim::symbol("W") / Dim::fixed(2)]);
        let a0 = g.find("a0").unwrap();
        g.value_mut(a0).fact = fact.clone();
        g.metadata.insert("labels".to_owned(), "cat,dog".to_owned());
        let _ = g.fresh_symbol();
        let split = Segmentation::new(&g, &by_prefix(&g)).unwrap();
        assert_eq!((split.edges()[0].value.as_str(), &split.edges()[0].fact), ("a0", &fact));
        for segment in split.segments() {
            let inner = &segment.graph;
            assert_eq!(inner.value(inner.find("a0").unwrap()).fact, fact);
            assert_eq!((&inner.metadata, &inner.opsets), (&g.metadata, &g.opsets));
            assert_eq!(inner.clone().fresh_symbol(), g.clone().fresh_symbol());
        }
    }

    #[test]
    fn malformed_graphs_are_refused() {
        let mut g = graph(&[("a0", &["x"]), ("a1", &["a0"])], &["a1"]);
        g.nodes.swap(0, 1);
        assert!(Segmentation::new(&g, &DeviceMap::single(DeviceId::cpu(0))).is_err());
    }
}
