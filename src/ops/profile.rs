//! Where the time of a program goes: calls, time and work of each node.
//!
//! A [`Profiler`] belongs to a compiled segment; each of its instances writes to a [`Recorder`] of
//! its own. A node that runs a graph of its own (`If`, `Loop`, `Scan`, an operator that is made of
//! others) counts its own time only: the nodes in there have rows of their own, as `outer/inner`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::cost::{Cost, CostQuery};
use crate::graph::Node;
use crate::tensor::{DType, Shape, Tensor, Value};

/// Collects what the instances of a compiled segment record. Clones share what is collected.
#[derive(Clone, Debug, Default)]
pub struct Profiler {
    recorders: Arc<Mutex<Vec<Recorder>>>,
}

/// Records the runs of one instance, which run one after the other.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    tally: Arc<Mutex<Tally>>,
}

/// What a segment did since it was compiled, or between two looks at it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SegmentProfile {
    /// How often the segment ran.
    pub runs: u64,
    /// How long these runs took, in seconds: all nodes, and what lies between them.
    pub seconds: f64,
    /// The nodes that ran, in no particular order.
    pub nodes: Vec<NodeProfile>,
}

/// What one node did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeProfile {
    /// Its name; within a graph of another node `outer/inner`.
    pub name: String,
    /// Its operator, with its domain unless that is ai.onnx.
    pub op: String,
    /// Its place in the program that it belongs to.
    pub place: usize,
    /// How often it ran.
    pub calls: u64,
    /// Its own time in seconds: without that of nodes within it.
    pub seconds: f64,
    /// Arithmetic operations of all calls, by the cost of its operator.
    pub flops: f64,
    /// Bytes read and written in all calls, by the cost of its operator.
    pub bytes: f64,
}

/// What the profile of a node needs to know of it.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) node: Node,
    pub(super) cost: fn(&CostQuery<'_>) -> Cost,
    /// The inputs that are constant: a kernel that packed one is not fed it.
    pub(super) constants: Vec<Option<Tensor>>,
}

type Shapes = Vec<Option<(DType, Shape)>>;

#[derive(Debug, Default)]
struct Tally {
    programs: Vec<ProgramTally>,
    /// The node that runs now, by the place of its program and its own.
    at: Option<(usize, usize)>,
    /// The time of programs that ended within the node that runs now.
    within: Duration,
    runs: u64,
    time: Duration,
}

#[derive(Debug)]
struct ProgramTally {
    id: u64,
    /// The node that runs this program.
    parent: Option<(usize, usize)>,
    steps: Vec<StepTally>,
}

#[derive(Clone, Debug, Default)]
struct StepTally {
    name: String,
    op: String,
    calls: u64,
    time: Duration,
    cost: Cost,
    /// The shapes of the last call, and what it cost by them.
    inputs: Shapes,
    outputs: Shapes,
    last: Option<Cost>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Profiler {
    /// A recorder for one more instance.
    pub fn recorder(&self) -> Recorder {
        let recorder = Recorder::default();
        lock(&self.recorders).push(recorder.clone());
        recorder
    }

    /// What all instances recorded so far. A run that is under way counts when it ends, its nodes as
    /// they end.
    pub fn profile(&self) -> SegmentProfile {
        let mut out = SegmentProfile::default();
        let mut places: HashMap<(String, String, usize), usize> = HashMap::new();
        for recorder in lock(&self.recorders).iter() {
            let tally = lock(&recorder.tally);
            out.runs += tally.runs;
            out.seconds += tally.time.as_secs_f64();
            for program in &tally.programs {
                for (place, step) in program.steps.iter().enumerate().filter(|(_, s)| s.calls > 0) {
                    let key = (tally.path(program, step), step.op.clone(), place);
                    let at = *places.entry(key).or_insert_with_key(|(name, op, place)| {
                        out.nodes.push(NodeProfile::of(name, op, *place));
                        out.nodes.len() - 1
                    });
                    let node = &mut out.nodes[at];
                    node.calls += step.calls;
                    node.seconds += step.time.as_secs_f64();
                    node.flops += step.cost.flops;
                    node.bytes += step.cost.bytes;
                }
            }
        }
        out
    }
}

impl SegmentProfile {
    /// What was recorded after an earlier look.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let key = |n: &NodeProfile| (n.name.clone(), n.op.clone(), n.place);
        let then: HashMap<_, &NodeProfile> = earlier.nodes.iter().map(|n| (key(n), n)).collect();
        let mut out = self.clone();
        out.runs -= earlier.runs.min(out.runs);
        out.seconds -= earlier.seconds;
        for node in &mut out.nodes {
            let Some(then) = then.get(&key(node)) else { continue };
            node.calls -= then.calls.min(node.calls);
            node.seconds -= then.seconds;
            node.flops -= then.flops;
            node.bytes -= then.bytes;
        }
        out.nodes.retain(|n| n.calls > 0);
        out
    }

    /// The time of the runs that no node has, in seconds: handing values from node to node, freeing
    /// them, and recording all this.
    pub fn between_nodes(&self) -> f64 {
        self.seconds - self.nodes.iter().map(|n| n.seconds).sum::<f64>()
    }
}

impl NodeProfile {
    fn of(name: &str, op: &str, place: usize) -> Self {
        let (name, op) = (name.to_owned(), op.to_owned());
        Self { name, op, place, calls: 0, seconds: 0.0, flops: 0.0, bytes: 0.0 }
    }
}

impl Tally {
    fn path(&self, program: &ProgramTally, step: &StepTally) -> String {
        let mut path = step.name.clone();
        let mut parent = program.parent;
        while let Some((outer, place)) = parent {
            path = format!("{}/{path}", self.programs[outer].steps[place].name);
            parent = self.programs[outer].parent;
        }
        path
    }
}

impl Recorder {
    /// Begins a run of the program with this hash, which has so many nodes.
    pub(super) fn enter(&self, id: u64, steps: usize) -> Recording<'_> {
        let mut tally = lock(&self.tally);
        let parent = tally.at;
        let same = |p: &ProgramTally| (p.id, p.parent, p.steps.len()) == (id, parent, steps);
        let known = tally.programs.iter().position(same);
        let program = known.unwrap_or_else(|| {
            let steps = vec![StepTally::default(); steps];
            tally.programs.push(ProgramTally { id, parent, steps });
            tally.programs.len() - 1
        });
        let outer = (parent, tally.within);
        let began = Instant::now();
        Recording { tally: &self.tally, program, outer, began, node_began: began }
    }
}

/// A run of a program that is being recorded; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Recording<'a> {
    tally: &'a Mutex<Tally>,
    program: usize,
    /// The node that runs this program, and the time within it until now.
    outer: (Option<(usize, usize)>, Duration),
    began: Instant,
    node_began: Instant,
}

/// Whether the shapes are the same; they become so.
fn remember<'v>(
    known: &mut Shapes,
    values: impl ExactSizeIterator<Item = Option<(DType, &'v Shape)>> + Clone,
) -> bool {
    let same = known.len() == values.len()
        && known.iter().zip(values.clone()).all(|(k, v)| match (k, v) {
            (Some((d, s)), Some((dtype, shape))) => *d == dtype && s == shape,
            (None, None) => true,
            _ => false,
        });
    if !same {
        *known = values.map(|v| v.map(|(d, s)| (d, s.clone()))).collect();
    }
    same
}

fn typed(value: &Value) -> Option<(DType, &Shape)> {
    value.dtype().zip(value.shape())
}

impl Recording<'_> {
    /// A node is about to run.
    pub(super) fn begin(&mut self, place: usize, subject: &Subject, arguments: &[Option<Value>]) {
        let mut tally = lock(self.tally);
        tally.at = Some((self.program, place));
        tally.within = Duration::ZERO;
        let step = &mut tally.programs[self.program].steps[place];
        if step.name.is_empty() {
            step.name.clone_from(&subject.node.name);
            step.op = subject.node.qualified_op();
        }
        let constant = |port: usize| subject.constants.get(port).and_then(Option::as_ref);
        let inputs = arguments.iter().enumerate().map(|(port, v)| match v {
            Some(v) => typed(v),
            None => constant(port).map(|t| (t.dtype(), t.shape())),
        });
        if !remember(&mut step.inputs, inputs) {
            step.last = None;
        }
        drop(tally);
        self.node_began = Instant::now();
    }

    /// The node ended and made these outputs.
    pub(super) fn end(&mut self, place: usize, subject: &Subject, made: &[Value]) {
        let took = self.node_began.elapsed();
        let mut tally = lock(self.tally);
        let within = std::mem::take(&mut tally.within);
        let step = &mut tally.programs[self.program].steps[place];
        step.calls += 1;
        step.time += took.saturating_sub(within);
        if !remember(&mut step.outputs, made.iter().map(typed)) {
            step.last = None;
        }
        // The work of what runs a graph of its own is that of the nodes in there.
        if !within.is_zero() {
            return;
        }
        let cost = *step.last.get_or_insert_with(|| {
            (subject.cost)(&CostQuery {
                node: &subject.node,
                inputs: &step.inputs,
                outputs: &step.outputs,
            })
        });
        step.cost = step.cost + cost;
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let mut tally = lock(self.tally);
        let (at, within) = self.outer;
        tally.at = at;
        tally.within = within + took;
        if at.is_none() {
            tally.runs += 1;
            tally.time += took;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Attribute, Fact, Graph};
    use crate::ops::builder::GraphBuilder;
    use crate::ops::{CompileOptions, OpRegistry, Program, RunContext, infer_graph};

    fn profiled(graph: &Graph, inputs: &[Vec<Value>]) -> (SegmentProfile, f64) {
        let options = CompileOptions { profile: true, ..CompileOptions::default() };
        let program = Program::compile(graph, &OpRegistry::default(), &options).unwrap();
        let profiler = Profiler::default();
        let context = RunContext { profile: Some(profiler.recorder()), ..RunContext::default() };
        program.run(inputs[0].clone(), &context).unwrap();
        let warm = profiler.profile();
        let began = Instant::now();
        for inputs in inputs {
            program.run(inputs.clone(), &context).unwrap();
        }
        let wall = began.elapsed().as_secs_f64();
        (profiler.profile().since(&warm), wall)
    }

    fn chain() -> Graph {
        let mut g = GraphBuilder::new("chain");
        let x = g.input("x", DType::F32, ["N".into(), 128.into()]).unwrap();
        let w = Tensor::new([128, 128], vec![0.01_f32; 128 * 128]).unwrap();
        let w = g.constant(w).unwrap();
        let mut h = x;
        for _ in 0..6 {
            h = g.matmul(h, w).unwrap();
            h = g.relu(h).unwrap();
        }
        g.finish([("y", h)]).unwrap()
    }

    fn rows(n: usize) -> Vec<Value> {
        vec![Tensor::new([n, 128], vec![0.5_f32; n * 128]).unwrap().into()]
    }

    #[test]
    fn every_node_is_there_with_its_calls_and_its_work() {
        let graph = chain();
        let (profile, _) = profiled(&graph, &[rows(3), rows(5), rows(3)]);
        assert_eq!(profile.runs, 3);
        assert_eq!(profile.nodes.len(), graph.nodes().len());
        for node in graph.nodes() {
            let row = profile.nodes.iter().find(|r| r.name == node.name).unwrap();
            assert_eq!((row.calls, row.op.as_str()), (3, node.op.as_str()));
            // By the shapes of each call: 3, 5 and 3 rows.
            let flops = if node.op == "MatMul" { 2.0 * 11.0 * 128.0 * 128.0 } else { 11.0 * 128.0 };
            assert!((row.flops - flops).abs() < 1e-6, "{}: {} not {flops}", row.name, row.flops);
            assert!(row.bytes > 0.0 && row.seconds > 0.0);
        }
    }

    #[test]
    fn nodes_and_what_is_between_them_add_up_to_the_wall_time() {
        let graph = chain();
        let inputs = vec![rows(256); 2];
        // The median of some runs: another process may come between the two clocks.
        let mut off: Vec<f64> = (0..7)
            .map(|_| {
                let (profile, wall) = profiled(&graph, &inputs);
                let sum: f64 = profile.nodes.iter().map(|n| n.seconds).sum();
                ((sum + profile.between_nodes() - wall) / wall).abs()
            })
            .collect();
        off.sort_by(f64::total_cmp);
        assert!(off[3] < 0.02, "{off:?}");
    }

    #[test]
    fn a_node_with_a_graph_counts_only_its_own_time() {
        let mut body = Graph::new("body");
        let x = body.add_input("bx", Fact::unknown()).unwrap();
        let y = body.add_value("by", Fact::unknown()).unwrap();
        body.add_node("root", "Sqrt", [Some(x)], [Some(y)]);
        body.set_outputs([y]);
        let mut other = Graph::new("other");
        let x = other.add_input("ox", Fact::unknown()).unwrap();
        let y = other.add_value("oy", Fact::unknown()).unwrap();
        other.add_node("negated", "Neg", [Some(x)], [Some(y)]);
        other.set_outputs([y]);

        let mut graph = Graph::new("g");
        let c = graph.add_input("c", Fact::unknown()).unwrap();
        let x = graph.add_input("x", Fact::unknown()).unwrap();
        let y = graph.add_value("y", Fact::unknown()).unwrap();
        let node = graph.add_node("choice", "If", [Some(c), Some(x)], [Some(y)]);
        node.captures = 1;
        node.attributes.insert("then_branch".to_owned(), Attribute::from(body));
        node.attributes.insert("else_branch".to_owned(), Attribute::from(other));
        graph.set_outputs([y]);
        infer_graph(&mut graph, &OpRegistry::default()).unwrap();

        let x = Tensor::new([1 << 18], vec![2.0_f32; 1 << 18]).unwrap();
        let feed = |c: bool| vec![Tensor::scalar(c).into(), x.clone().into()];
        let (profile, _) = profiled(&graph, &[feed(true), feed(false), feed(true)]);
        let row = |name: &str| profile.nodes.iter().find(|r| r.name == name).unwrap();
        assert_eq!((row("choice").calls, row("choice/root").calls), (3, 2));
        assert_eq!(row("choice/negated").calls, 1);
        assert_eq!((row("choice").flops, row("choice").bytes), (0.0, 0.0));
        assert!(row("choice").seconds < row("choice/root").seconds, "{profile:?}");
        assert!(profile.between_nodes() >= 0.0);
    }

    #[test]
    fn a_node_that_is_compiled_anew_for_each_shape_keeps_its_rows() {
        let mut graph = Graph::new("g");
        let x = graph.add_input("x", Fact::unknown()).unwrap();
        let scale = graph.add_input("scale", Fact::unknown()).unwrap();
        let y = graph.add_value("y", Fact::unknown()).unwrap();
        let node = graph.add_node("norm", "RMSNormalization", [Some(x), Some(scale)], [Some(y)]);
        node.version = 23;
        graph.set_outputs([y]);
        infer_graph(&mut graph, &OpRegistry::default()).unwrap();
        let feed = |n: usize| {
            vec![rows(n)[0].clone(), Tensor::new([128], vec![1.0_f32; 128]).unwrap().into()]
        };
        let (one, _) = profiled(&graph, &[feed(2)]);
        let (many, _) = profiled(&graph, &[feed(2), feed(3), feed(4), feed(2)]);
        assert!(one.nodes.len() > 2, "{one:?}");
        assert_eq!(many.nodes.len(), one.nodes.len());
        assert!(many.nodes.iter().all(|n| n.calls == 4), "{many:?}");
    }

    #[test]
    fn a_run_that_fails_ends() {
        let graph = chain();
        let options = CompileOptions { profile: true, ..CompileOptions::default() };
        let program = Program::compile(&graph, &OpRegistry::default(), &options).unwrap();
        let profiler = Profiler::default();
        let context = RunContext { profile: Some(profiler.recorder()), ..RunContext::default() };
        let wrong = vec![Value::from(Tensor::scalar(1_i64))];
        assert!(program.run(wrong, &context).is_err());
        program.run(rows(1), &context).unwrap();
        let profile = profiler.profile();
        // Both are runs from outside: neither is taken for a graph within a node of the other.
        assert!(profile.nodes.iter().all(|n| !n.name.contains('/')), "{profile:?}");
    }
}
