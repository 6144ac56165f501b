use crate::graph::{Attribute, Dim, Fact, Graph, Node, ValueId};
use crate::ops::case::compare;
use crate::ops::{CompileOptions, OpRegistry, Program, RunContext};
use crate::passes::{optimise_cpu_segment, optimise_segment};
use crate::tensor::{DType, Tensor, Value};

/// Numbers in -0.5..0.5 without a pattern.
fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let mut state = (seed as u32).wrapping_mul(2_654_435_761).wrapping_add(1);
    let values = (0..n).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    });
    Tensor::new(shape, values.collect()).unwrap()
}

/// A graph that is built step by step, and what it is fed.
struct Net {
    graph: Graph,
    feeds: Vec<Tensor>,
}

impl Net {
    fn new() -> Self {
        Self { graph: Graph::new("g"), feeds: Vec::new() }
    }

    /// An input whose batch, height and width are symbols.
    fn input(&mut self, shape: &[usize]) -> ValueId {
        let k = self.feeds.len();
        let dims: Vec<Dim> = (0..shape.len())
            .map(|a| if a == 1 { Dim::of(shape[1]) } else { Dim::symbol(format!("d{a}")) })
            .collect();
        self.feeds.push(numbers(shape, k + 1));
        self.graph.add_input(format!("x{k}"), Fact::new(DType::F32, dims)).unwrap()
    }

    fn fixed_input(&mut self, shape: &[usize]) -> ValueId {
        let k = self.feeds.len();
        self.feeds.push(numbers(shape, k + 1));
        self.graph.add_input(format!("x{k}"), Fact::concrete(DType::F32, shape)).unwrap()
    }

    fn constant(&mut self, t: Tensor) -> ValueId {
        let name = format!("c{}", self.graph.values().len());
        self.graph.add_constant(name, t).unwrap()
    }

    fn node(&mut self, op: &str, inputs: &[ValueId]) -> ValueId {
        let n = self.graph.values().len();
        let out = self.graph.add_value(format!("v{n}"), Fact::unknown()).unwrap();
        self.graph.add_node(format!("n{n}"), op, inputs.iter().map(|v| Some(*v)), [Some(out)]);
        out
    }

    fn set(&mut self, name: &str, value: impl Into<Attribute>) {
        self.graph.nodes.last_mut().unwrap().attributes.insert(name.to_owned(), value.into());
    }

    /// A convolution with bias that keeps the size.
    fn conv(&mut self, x: ValueId, [oc, ic, kh, kw]: [usize; 4]) -> ValueId {
        let seed = self.graph.values().len();
        let w = self.constant(numbers(&[oc, ic, kh, kw], seed));
        let b = self.constant(numbers(&[oc], seed + 1));
        let y = self.node("Conv", &[x, w, b]);
        let (h, w) = ((kh / 2) as i64, (kw / 2) as i64);
        self.set("pads", vec![h, w, h, w]);
        y
    }

    fn finish(&mut self, outputs: &[ValueId]) {
        self.graph.set_outputs(outputs.iter().copied());
    }

    fn run(&self, graph: &Graph) -> Vec<Value> {
        let registry = OpRegistry::default();
        let program = Program::compile(graph, &registry, &CompileOptions::default()).unwrap();
        let feeds = self.feeds.iter().map(|t| t.clone().into()).collect();
        program.run(feeds, &RunContext::default()).unwrap()
    }

    /// Checks that the pass changes no output (beyond rounding) and returns the graph after it.
    fn blocked(&self) -> Graph {
        let (registry, options) = (OpRegistry::default(), CompileOptions::default());
        let mut plain = self.graph.clone();
        optimise_segment(&mut plain, &registry, &options).unwrap();
        let mut blocked = self.graph.clone();
        optimise_cpu_segment(&mut blocked, &registry, &options).unwrap();
        for (a, b) in self.run(&blocked).iter().zip(&self.run(&plain)) {
            compare(a.tensor().unwrap(), b.tensor().unwrap(), 1e-4, 1e-4).unwrap();
        }
        // What is blocked is so throughout: every value that says so has five axes.
        for v in blocked.values().iter().filter(|v| v.name.ends_with(" (blocked)")) {
            assert_eq!(v.fact.rank(), Some(5), "{}", v.name);
        }
        blocked
    }

    /// The operators after the pass, those of the blocked domain without it.
    fn ops(&self) -> Vec<String> {
        self.blocked().nodes().iter().map(|n| n.op.clone()).collect()
    }
}

fn count(ops: &[String], op: &str) -> usize {
    ops.iter().filter(|o| *o == op).count()
}

#[test]
fn convolutions_in_a_row_are_reordered_at_both_ends_alone() {
    let mut net = Net::new();
    let x = net.input(&[2, 32, 7, 9]);
    let a = net.conv(x, [16, 32, 3, 3]);
    let b = net.conv(a, [24, 16, 1, 1]);
    let c = net.conv(b, [32, 24, 3, 3]);
    let y = net.node("Relu", &[c]);
    net.finish(&[y]);
    let ops = ["ToBlocked", "BlockedConv", "BlockedConv", "BlockedConv", "FromBlocked"];
    assert_eq!(net.ops(), ops);
}

#[test]
fn names_stay_those_of_the_user() {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 20, 20]);
    let a = net.conv(x, [16, 3, 3, 3]);
    let b = net.conv(a, [16, 16, 3, 3]);
    net.finish(&[b]);
    let before: Vec<String> = net.graph.nodes().iter().map(|n| n.name.clone()).collect();
    let graph = net.blocked();
    let after: Vec<String> = graph.nodes().iter().map(|n| n.name.clone()).collect();
    assert_eq!(after[..2], before[..]);
    let name = |v: ValueId| graph.value(v).name.clone();
    let made: Vec<String> = graph.nodes().iter().flat_map(Node::makes).map(name).collect();
    let a = &net.graph.value(a).name;
    assert_eq!(made[0], format!("{a} (blocked)"));
    assert_eq!(
        graph.output_names().collect::<Vec<_>>(),
        net.graph.output_names().collect::<Vec<_>>()
    );
}

#[test]
fn observers_see_plain_values() {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 20, 21]);
    let a = net.conv(x, [16, 3, 3, 3]);
    let r = net.node("LeakyRelu", &[a]);
    let b = net.conv(r, [16, 16, 3, 3]);
    net.finish(&[b]);
    let registry = OpRegistry::default();
    let mut seen: Vec<Vec<(String, Tensor)>> = Vec::new();
    for disabled in [vec![], vec!["blocked-layout".to_owned()]] {
        let options = CompileOptions { disabled_passes: disabled, ..CompileOptions::default() };
        let mut graph = net.graph.clone();
        optimise_cpu_segment(&mut graph, &registry, &options).unwrap();
        let program = Program::compile(&graph, &registry, &options).unwrap();
        let mut nodes = Vec::new();
        let feeds = net.feeds.iter().map(|t| t.clone().into()).collect();
        let observe = &mut |name: &str, _: &str, made: &[Value]| {
            nodes.push((name.to_owned(), made[0].tensor().unwrap().clone()));
        };
        program.run_observed(feeds, &RunContext::default(), observe).unwrap();
        seen.push(nodes);
    }
    let mut compared = 0;
    for (name, blocked) in &seen[0] {
        if let Some((_, plain)) = seen[1].iter().find(|(n, _)| n == name) {
            compare(blocked, plain, 1e-4, 1e-4).unwrap();
            compared += 1;
        }
    }
    assert_eq!(compared, seen[1].len());
}

#[test]
fn a_residual_block_stays_blocked() {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 17, 19]);
    let stem = net.conv(x, [32, 3, 3, 3]);
    let stem = net.node("Relu", &[stem]);
    let a = net.conv(stem, [32, 32, 3, 3]);
    let a = net.node("Relu", &[a]);
    let b = net.conv(a, [32, 32, 3, 3]);
    let s = net.node("Add", &[b, stem]);
    let y = net.node("Relu", &[s]);
    net.finish(&[y]);
    assert_eq!(net.ops(), ["BlockedConv", "BlockedConv", "BlockedConv", "FromBlocked"]);
}

#[test]
fn squeeze_and_excite_gates_are_free() {
    let mut net = Net::new();
    let x = net.input(&[2, 3, 17, 13]);
    let stem = net.conv(x, [32, 3, 3, 3]);
    let pooled = net.node("GlobalAveragePool", &[stem]);
    let squeezed = net.conv(pooled, [8, 32, 1, 1]);
    let squeezed = net.node("Relu", &[squeezed]);
    let gate = net.conv(squeezed, [32, 8, 1, 1]);
    let gate = net.node("HardSigmoid", &[gate]);
    let scaled = net.node("Mul", &[stem, gate]);
    let y = net.conv(scaled, [16, 32, 3, 3]);
    net.finish(&[y]);
    let ops = net.ops();
    assert_eq!(count(&ops, "BlockedGlobalAveragePool"), 1, "{ops:?}");
    assert_eq!(count(&ops, "ToBlocked"), 0, "{ops:?}");
    assert_eq!(count(&ops, "FromBlocked"), 1, "{ops:?}");
    // Gates of channels that fall into no blocks are computed plain and read blocked.
    let mut net = Net::new();
    let x = net.input(&[2, 3, 17, 13]);
    let stem = net.conv(x, [32, 3, 3, 3]);
    let pooled = net.node("GlobalAveragePool", &[stem]);
    let squeezed = net.conv(pooled, [6, 32, 1, 1]);
    let gate = net.conv(squeezed, [32, 6, 1, 1]);
    let scaled = net.node("Mul", &[stem, gate]);
    let y = net.conv(scaled, [16, 32, 3, 3]);
    net.finish(&[y]);
    let ops = net.ops();
    assert_eq!(count(&ops, "BlockedConv"), 3, "{ops:?}");
    assert_eq!(count(&ops, "Conv"), 1, "{ops:?}");
}

#[test]
fn depthwise_separable_convolutions_stay_blocked() {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 21, 23]);
    let a = net.conv(x, [24, 3, 3, 3]);
    let d = net.conv(a, [24, 1, 5, 5]);
    net.set("group", 24_i64);
    net.set("strides", vec![2_i64, 2]);
    let p = net.conv(d, [40, 24, 1, 1]);
    let y = net.node("HardSwish", &[p]);
    net.finish(&[y]);
    assert_eq!(net.ops(), ["BlockedConv", "BlockedConv", "BlockedConv", "FromBlocked"]);
}

#[test]
fn joins_cuts_and_pools_stay_blocked() {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 18, 20]);
    let a = net.conv(x, [16, 3, 3, 3]);
    let b = net.conv(a, [24, 16, 3, 3]);
    let joined = net.node("Concat", &[a, b]);
    net.set("axis", -3_i64);
    let max = net.node("MaxPool", &[joined]);
    net.set("kernel_shape", vec![3_i64, 3]);
    net.set("strides", vec![2_i64, 2]);
    net.set("ceil_mode", 1_i64);
    let average = net.node("AveragePool", &[max]);
    net.set("kernel_shape", vec![2_i64, 2]);
    net.set("pads", vec![0_i64, 0, 1, 1]);
    let pads = net.constant(Tensor::of_i64(&[0, 0, 1, 2, 0, 0, 0, 1]));
    let padded = net.node("Pad", &[average, pads]);
    let [starts, ends, axes] = [[1], [-1], [-1]].map(|v| net.constant(Tensor::of_i64(&v)));
    let sliced = net.node("Slice", &[padded, starts, ends, axes]);
    let roi = net.constant(Tensor::new([0], Vec::<f32>::new()).unwrap());
    let scales = net.constant(Tensor::new([4], vec![1.0_f32, 1.0, 2.0, 2.0]).unwrap());
    let large = net.node("Resize", &[sliced, roi, scales]);
    net.set("mode", "linear");
    let lengths = net.constant(Tensor::of_i64(&[16, 24]));
    let n = net.graph.values().len();
    let parts = [0, 1].map(|k| net.graph.add_value(format!("p{n}{k}"), Fact::unknown()).unwrap());
    net.graph.add_node("split", "Split", [Some(large), Some(lengths)], parts.map(Some));
    net.set("axis", 1_i64);
    let y = net.conv(parts[0], [16, 16, 3, 3]);
    let z = net.conv(parts[1], [16, 24, 3, 3]);
    net.finish(&[y, z]);
    let ops = net.ops();
    assert_eq!(count(&ops, "ToBlocked"), 0, "{ops:?}");
    assert_eq!(count(&ops, "FromBlocked"), 2, "{ops:?}");
    assert_eq!(count(&ops, "BlockedConv"), 4, "{ops:?}");
    assert_eq!(count(&ops, "BlockedMaxPool") + count(&ops, "BlockedAveragePool"), 2, "{ops:?}");
}

#[test]
fn operands_of_every_broadcast_form_are_read_blocked() {
    let mut net = Net::new();
    let x = net.input(&[2, 3, 9, 11]);
    let other = net.input(&[2, 16, 9, 11]);
    let map = net.input(&[2, 1, 9, 11]);
    let a = net.conv(x, [16, 3, 3, 3]);
    let channels = net.constant(numbers(&[16, 1, 1], 7));
    let pixels = net.constant(numbers(&[9, 11], 8));
    let half = net.constant(Tensor::scalar(0.5_f32));
    // The first of them is read twice, so that it is not folded into the convolution.
    let b = net.node("PRelu", &[a, channels]);
    let c = net.node("Sub", &[b, a]);
    let d = net.node("Mul", &[channels, c]);
    let e = net.node("Max", &[d, other, half]);
    let f = net.node("Mul", &[e, map]);
    let g = net.node("Add", &[pixels, f]);
    let y = net.conv(g, [16, 16, 3, 3]);
    net.finish(&[y]);
    let ops = net.ops();
    assert_eq!(count(&ops, "BlockedConv"), 2, "{ops:?}");
    assert_eq!(count(&ops, "ToBlocked"), 1, "{ops:?}");
    assert_eq!(count(&ops, "FromBlocked"), 1, "{ops:?}");
    assert_eq!(count(&ops, "Unsqueeze"), 1, "{ops:?}");
}

#[test]
fn a_value_is_reordered_once_for_all_its_readers() {
    let mut net = Net::new();
    let x = net.input(&[1, 32, 12, 12]);
    let a = net.conv(x, [32, 32, 3, 3]);
    let b = net.conv(x, [32, 32, 3, 3]);
    let turned = net.node("Transpose", &[a]);
    let softmax = net.node("Softmax", &[a]);
    let joined = net.node("Add", &[a, b]);
    let y = net.conv(joined, [32, 32, 3, 3]);
    net.finish(&[turned, softmax, y, a]);
    let ops = net.ops();
    assert_eq!(count(&ops, "ToBlocked"), 1, "{ops:?}");
    assert_eq!(count(&ops, "FromBlocked"), 2, "{ops:?}");
    assert_eq!(count(&ops, "BlockedConv"), 3, "{ops:?}");
}

#[test]
fn what_saves_less_than_its_reorders_stays_plain() {
    // A small pointwise convolution between plain values.
    let mut net = Net::new();
    let x = net.input(&[1, 16, 12, 12]);
    let x = net.node("Softmax", &[x]);
    let y = net.conv(x, [16, 16, 1, 1]);
    net.finish(&[y]);
    assert_eq!(net.ops(), ["Softmax", "Conv"]);
    // Channels in no whole blocks.
    let mut net = Net::new();
    let x = net.input(&[1, 16, 12, 12]);
    let y = net.conv(x, [12, 16, 3, 3]);
    net.finish(&[y]);
    assert_eq!(net.ops(), ["Conv"]);
    // A pass that is left out.
    let mut net = Net::new();
    let x = net.input(&[1, 32, 12, 12]);
    let y = net.conv(x, [32, 32, 3, 3]);
    net.finish(&[y]);
    assert_eq!(net.ops(), ["ToBlocked", "BlockedConv", "FromBlocked"]);
    let disabled_passes = vec!["blocked-layout".to_owned()];
    let options = CompileOptions { disabled_passes, ..CompileOptions::default() };
    let mut graph = net.graph.clone();
    optimise_cpu_segment(&mut graph, &OpRegistry::default(), &options).unwrap();
    assert_eq!(graph.nodes()[0].op, "Conv");
}

#[test]
fn convolutions_over_one_axis_stay_plain() {
    let mut net = Net::new();
    let x = net.input(&[2, 32, 31]);
    let w = net.constant(numbers(&[24, 32, 3], 5));
    let a = net.node("Conv", &[x, w]);
    net.set("strides", vec![2_i64]);
    net.set("pads", vec![1_i64, 0]);
    let r = net.node("Sigmoid", &[a]);
    let bias = net.constant(numbers(&[24, 1], 9));
    let r = net.node("Sub", &[r, bias]);
    let w = net.constant(numbers(&[16, 24, 5], 6));
    let y = net.node("Conv", &[r, w]);
    net.finish(&[y]);
    assert_eq!(count(&net.ops(), "BlockedConv"), 0);
}

#[test]
fn a_column_is_a_row() {
    let mut net = Net::new();
    let x = net.fixed_input(&[2, 32, 31, 1]);
    let a = net.conv(x, [24, 32, 5, 1]);
    let y = net.conv(a, [16, 24, 3, 1]);
    net.finish(&[y]);
    assert_eq!(net.ops(), ["ToBlocked", "BlockedConv", "BlockedConv", "FromBlocked"]);
}

#[test]
fn padding_that_follows_from_the_size_is_resolved_where_that_is_known() {
    for fixed in [true, false] {
        let mut net = Net::new();
        let shape = [1, 32, 15, 18];
        let x = if fixed { net.fixed_input(&shape) } else { net.input(&shape) };
        let w = net.constant(numbers(&[16, 32, 3, 3], 5));
        let y = net.node("Conv", &[x, w]);
        net.set("auto_pad", "SAME_UPPER");
        net.set("strides", vec![2_i64, 2]);
        net.finish(&[y]);
        assert_eq!(count(&net.ops(), "BlockedConv"), usize::from(fixed));
    }
}
