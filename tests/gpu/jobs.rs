//! What the kernels are tried on: the operators' cases, and graphs that are large enough for groups
//! of threads to work together.

use brigade::gpu::{InputPlace, Lowered, LoweringOptions, Tiling, narrowed, supports};
use brigade::graph::{Fact, Graph};
use brigade::ops::builder::GraphBuilder;
use brigade::ops::{OpRegistry, TABLE, infer_graph};
use brigade::{CompileOptions, DType, DeviceId, DeviceMap, HeteroExecutable, Tensor, Value};

/// A graph that was lowered, with its inputs and what must come out.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) op: &'static str,
    pub(crate) domain: &'static str,
    pub(crate) graph: Graph,
    pub(crate) lowered: Lowered,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) expected: Vec<Tensor>,
    pub(crate) atol: f64,
    pub(crate) rtol: f64,
}

/// The graph with inputs that decide extents bound, lowered.
fn lower(
    mut graph: Graph,
    feeds: &[(String, Value)],
    options: LoweringOptions,
) -> brigade::Result<(Graph, Lowered, Vec<Tensor>)> {
    let decides = brigade::gpu::extent_inputs(&graph);
    let mut inputs = Vec::new();
    for ((name, value), decides) in feeds.iter().zip(decides) {
        let tensor = value.tensor()?.clone();
        if decides {
            graph.bind_input(name, tensor)?;
        } else {
            inputs.push(tensor);
        }
    }
    let known = infer_graph(&mut graph, &OpRegistry::default())?;
    let lowered = Lowered::new(&graph, &known, options)?;
    Ok((graph, lowered, inputs))
}

fn is_supported(graph: &Graph) -> bool {
    graph.nodes().iter().all(|node| {
        let facts: Vec<Option<Fact>> =
            node.inputs.iter().map(|v| v.map(|v| graph.value(v).fact.clone())).collect();
        supports(node, &facts, u64::MAX).is_ok()
    })
}

const TILINGS: [Tiling; 2] = [Tiling::Registers, Tiling::Groups];

/// The cases of the operators' table that kernels are there for.
pub(crate) fn cases() -> Vec<Job> {
    let mut jobs = Vec::new();
    for def in TABLE {
        for case in (def.cases)() {
            let (mut graph, feeds) = case.graph().unwrap();
            if infer_graph(&mut graph, &OpRegistry::default()).is_err() || !is_supported(&graph) {
                continue;
            }
            for tiling in TILINGS {
                let options = LoweringOptions { tiling, ..LoweringOptions::default() };
                let name = format!("{} / {} ({tiling:?})", def.name, case.name);
                let lowered = lower(graph.clone(), &feeds, options);
                let (graph, lowered, inputs) = match lowered {
                    Ok(done) => done,
                    Err(e) if e.kind() == brigade::ErrorKind::Unsupported => {
                        let known = ["fit 32 bits", "does not fit", "rows without elements"];
                        assert!(known.iter().any(|k| e.to_string().contains(k)), "{name}: {e}");
                        continue;
                    }
                    Err(e) => panic!("{name}: {e}"),
                };
                // Numbers that do not fit 32 bits are refused with the item.
                let fits =
                    |(t, place): (&Tensor, &InputPlace)| narrowed(t, place.range, "x").is_ok();
                let own = graph.values().iter().filter_map(|v| v.constant.as_ref());
                let whole = own.filter(|t| t.dtype() == DType::I64);
                if !inputs.iter().zip(&lowered.inputs).all(fits)
                    || whole.into_iter().any(|t| narrowed(t, None, "x").is_err())
                {
                    continue;
                }
                jobs.push(Job {
                    name,
                    op: def.name,
                    domain: def.domain,
                    graph,
                    lowered,
                    inputs,
                    expected: case.expected.clone(),
                    atol: case.atol.max(2e-6),
                    rtol: case.rtol.max(2e-5),
                });
            }
        }
    }
    jobs
}

fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let data = (0..n).map(|i| ((i * 37 + seed * 101 + 11) % 199) as f32 / 100.0 - 0.99);
    Tensor::new(shape, data.collect()).unwrap()
}

/// Graphs by name: of inputs of these shapes, and what is made of them.
type Make =
    fn(&mut GraphBuilder, &[brigade::graph::ValueId]) -> brigade::Result<brigade::graph::ValueId>;

/// Eight tensors of nine elements.
const NINE: &[&[usize]] = &[&[9], &[9], &[9], &[9], &[9], &[9], &[9], &[9]];

const GRAPHS: &[(&str, &[&[usize]], Make)] = &[
    ("product in tiles", &[&[70, 45], &[45, 130]], |g, x| g.matmul(x[0], x[1])),
    ("stack of products", &[&[2, 1, 9, 33], &[3, 33, 70]], |g, x| g.matmul(x[0], x[1])),
    ("transposed gemm", &[&[40, 66], &[35, 40], &[66, 1]], |g, x| {
        let turned = [("transA", 1.into()), ("transB", 1.into()), ("alpha", 0.5_f32.into())];
        g.op("Gemm", x, &turned)
    }),
    ("product and its epilogue", &[&[70, 20], &[20, 70], &[70], &[70, 70]], |g, x| {
        let h = g.matmul(x[0], x[1])?;
        let h = g.add(h, x[2])?;
        let h = g.op("Gelu", &[h], &[])?;
        g.add(h, x[3])
    }),
    ("long softmax", &[&[3, 200]], |g, x| g.softmax(x[0], -1)),
    ("softmax over the middle", &[&[2, 130, 3]], |g, x| g.softmax(x[0], 1)),
    ("long log-softmax", &[&[2, 77]], |g, x| g.op("LogSoftmax", &[x[0]], &[])),
    ("layer norm", &[&[5, 100], &[100], &[100]], |g, x| g.op("LayerNormalization", x, &[])),
    ("layer norm over two axes", &[&[3, 9, 11], &[9, 11]], |g, x| {
        g.op("LayerNormalization", x, &[("axis", 1.into())])
    }),
    ("instance norm", &[&[2, 3, 9, 10], &[3], &[3]], |g, x| g.op("InstanceNormalization", x, &[])),
    ("mean over outer and inner axes", &[&[9, 4, 12]], |g, x| {
        let axes = g.constant(Tensor::of_i64(&[0, 2]))?;
        g.op("ReduceMean", &[x[0], axes], &[])
    }),
    ("largest of all", &[&[7, 5, 6]], |g, x| g.op("ReduceMax", &[x[0]], &[("keepdims", 0.into())])),
    ("least of all", &[&[7, 5, 6]], |g, x| g.op("ReduceMin", &[x[0]], &[])),
    ("norm of rows", &[&[3, 90]], |g, x| g.op("LpNormalization", &[x[0]], &[])),
    ("logarithm of a sum of exponentials", &[&[2, 90]], |g, x| {
        let axes = g.constant(Tensor::of_i64(&[1]))?;
        g.op("ReduceLogSumExp", &[x[0], axes], &[])
    }),
    ("mean of planes", &[&[2, 3, 12, 11]], |g, x| g.op("GlobalAveragePool", &[x[0]], &[])),
    ("convolution in tiles", &[&[2, 5, 13, 11], &[24, 5, 3, 3], &[24]], |g, x| {
        let pads = ("pads", vec![1, 1, 1, 1].into());
        let h = g.op("Conv", x, &[pads, ("strides", vec![2, 1].into())])?;
        g.relu(h)
    }),
    ("grouped convolution in tiles", &[&[1, 6, 9, 9], &[18, 3, 3, 2]], |g, x| {
        g.op("Conv", x, &[("group", 2.into()), ("dilations", vec![2, 1].into())])
    }),
    ("depthwise convolution", &[&[1, 6, 9, 9], &[6, 1, 3, 3]], |g, x| {
        g.op("Conv", x, &[("group", 6.into()), ("pads", vec![1, 1, 1, 1].into())])
    }),
    ("chain", &[&[4, 6], &[6], &[4, 1]], |g, x| {
        let h = g.add(x[0], x[1])?;
        let h = g.tanh(h)?;
        let h = g.mul(h, x[2])?;
        let h = g.op("Erf", &[h], &[])?;
        let h = g.sub(h, x[0])?;
        let c = g.op("Greater", &[h, x[0]], &[])?;
        g.op("Where", &[c, h, x[2]], &[])
    }),
    ("more tensors than a chain reads", NINE, |g, x| {
        let mut h = x[0];
        for x in &x[1..] {
            h = g.add(h, *x)?;
        }
        Ok(h)
    }),
];

/// Graphs whose results the CPU device gives.
pub(crate) fn graphs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for (name, shapes, make) in GRAPHS {
        let mut g = GraphBuilder::new(*name);
        let mut inputs = Vec::new();
        let mut feeds: Vec<(String, Value)> = Vec::new();
        for (i, shape) in shapes.iter().enumerate() {
            let (name, dims) = (format!("x{i}"), shape.iter().map(|n| (*n).into()));
            inputs.push(g.input(&name, DType::F32, dims).unwrap());
            feeds.push((name, numbers(shape, i).into()));
        }
        let y = make(&mut g, &inputs).unwrap();
        let mut graph = g.finish([("y", y)]).unwrap();
        let map = DeviceMap::single(DeviceId::cpu(0));
        let options = CompileOptions::default();
        let oracle = HeteroExecutable::compile(graph.clone(), &map, &options).unwrap();
        let expected: Vec<Tensor> = oracle
            .run_values(feeds.clone())
            .unwrap()
            .iter()
            .map(|v| v.tensor().unwrap().clone())
            .collect();
        let ops = OpRegistry::default();
        let plain = graph.clone();
        brigade::passes::optimise_segment(&mut graph, &ops, &options).unwrap();
        let variants =
            [("as it is", &plain, false), ("chains", &plain, true), ("fused", &graph, true)];
        for (kind, graph, fuse) in variants {
            for tiling in TILINGS {
                let options = LoweringOptions { tiling, fuse };
                let (graph, lowered, inputs) = lower(graph.clone(), &feeds, options).unwrap();
                jobs.push(Job {
                    name: format!("{name}, {kind} ({tiling:?})"),
                    op: "",
                    domain: "",
                    graph,
                    lowered,
                    inputs,
                    expected: expected.clone(),
                    atol: 2e-5,
                    rtol: 2e-5,
                });
            }
        }
    }
    jobs
}
