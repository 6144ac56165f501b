//! Random graphs of real operators under random device maps: any map compiles, to segments that
//! form no cycle, and the split computes what the unsplit graph does, sequentially and streamed.

#![allow(clippy::unwrap_used)]

use brigade::graph::{Graph, ValueId};
use brigade::ops::builder::GraphBuilder;
use brigade::partition::Source;
use brigade::{
    CompileOptions, DType, DeviceId, DeviceMap, HeteroExecutable, Pipeline, Result, Tensor, Value,
    compile_with,
};
use proptest::prelude::*;

/// One more step of a graph: which operation, and which of the values so far it reads.
type Step = (u8, usize, usize);

/// The columns of the f32 tensors.
const WIDTH: usize = 4;

/// Values so far: f32[N,4] and i64[N,4], each with at least one.
struct Values {
    floats: Vec<ValueId>,
    ints: Vec<ValueId>,
}

/// A constant f32[4,4] whose rows keep the size of what they multiply.
fn weights(seed: usize) -> Tensor {
    let data = (0..WIDTH * WIDTH).map(|i| ((i * 7 + seed * 13) % 9) as f32 / 16.0 - 0.25);
    Tensor::new([WIDTH, WIDTH], data.collect()).unwrap()
}

fn extend(g: &mut GraphBuilder, values: &mut Values, (op, a, b): Step) -> Result<()> {
    let float = |i: usize| values.floats[i % values.floats.len()];
    let int = |i: usize| values.ints[i % values.ints.len()];
    let (x, y) = (float(a), float(b));
    match op {
        // Nothing grows much: where a large number cancels out, the tolerance would say nothing.
        0 => {
            let half = g.constant(Tensor::scalar(0.5_f32))?;
            let sum = g.add(x, y)?;
            values.floats.push(g.mul(sum, half)?);
        }
        1 => {
            let t = g.tanh(x)?;
            values.floats.push(t);
            values.floats.push(g.mul(t, y)?);
        }
        2 => values.floats.push(g.relu(x)?),
        3 => {
            let w = g.constant(weights(b))?;
            values.floats.push(g.matmul(x, w)?);
        }
        4 => {
            let both = g.concat(&[x, y], 1)?;
            let parts = g.constant(Tensor::of_i64(&[WIDTH as i64, WIDTH as i64]))?;
            let halves =
                g.apply("Split", &[Some(both), Some(parts)], &[("axis", 1_i64.into())], 2)?;
            values.floats.extend(halves);
        }
        5 => {
            // Rotated by a column.
            let parts = g.constant(Tensor::of_i64(&[1, 3]))?;
            let cut = g.apply("Split", &[Some(x), Some(parts)], &[("axis", 1_i64.into())], 2)?;
            values.floats.push(g.concat(&[cut[1], cut[0]], 1)?);
        }
        6 => {
            let last = (b % 4) as f32;
            let c = g.constant(Tensor::new([WIDTH], vec![0.5_f32, -1.0, 2.0, last])?)?;
            values.floats.push(g.sub(x, c)?);
        }
        7 => {
            let shape = g.op("Shape", &[y], &[])?;
            values.floats.push(g.op("Reshape", &[x, shape], &[])?);
        }
        8 => values.floats.push(g.softmax(x, 1)?),
        9 => values.ints.push(g.add(int(a), int(b))?),
        10 => {
            // What it computes from is constant.
            let (c, d) = (Tensor::scalar(3_i64), Tensor::scalar(1 + b as i64));
            let (c, d) = (g.constant(c)?, g.constant(d)?);
            let k = g.mul(c, d)?;
            values.ints.push(g.add(int(a), k)?);
        }
        11 => {
            let small = g.constant(Tensor::scalar(1e-8_f32))?;
            let cast = g.op("Cast", &[int(a)], &[("to", 1_i64.into())])?;
            values.floats.push(g.mul(cast, small)?);
        }
        _ => values.ints.push(g.sub(int(a), int(b))?),
    }
    Ok(())
}

/// A graph over `x` and `ids`, whose outputs are the last few values of both dtypes and one from
/// the middle.
fn build(steps: &[Step]) -> Graph {
    let mut g = GraphBuilder::new("random");
    let x = g.input("x", DType::F32, ["N".into(), WIDTH.into()]).unwrap();
    let ids = g.input("ids", DType::I64, ["N".into(), WIDTH.into()]).unwrap();
    let mut values = Values { floats: vec![x], ints: vec![ids] };
    for step in steps {
        extend(&mut g, &mut values, *step).unwrap();
    }
    let mut outputs: Vec<ValueId> = Vec::new();
    for list in [&values.floats, &values.ints] {
        outputs.extend(list.iter().rev().take(3));
        outputs.push(list[list.len() / 2]);
    }
    outputs.sort();
    outputs.dedup();
    let names: Vec<String> = (0..outputs.len()).map(|i| format!("out{i}")).collect();
    g.finish(names.iter().map(String::as_str).zip(outputs)).unwrap()
}

/// Item `n` of a stream; the number of rows differs by item.
fn item(n: usize) -> [(&'static str, Tensor); 2] {
    let rows = 1 + n % 3;
    let number = |i: usize| ((i * 31 + n * 57 + 5) % 41) as f32 / 20.0 - 1.0;
    let floats = (0..rows * WIDTH).map(number).collect();
    let ints = (0..rows * WIDTH).map(|i| 16_777_217 - (i * n) as i64).collect();
    let shape = [rows, WIDTH];
    [("x", Tensor::new(shape, floats).unwrap()), ("ids", Tensor::new(shape, ints).unwrap())]
}

fn tensors(values: impl IntoIterator<Item = Value>) -> Vec<Tensor> {
    values.into_iter().map(|v| v.into_tensor().unwrap()).collect()
}

/// Whole numbers exactly, floats within 1e-5 of the largest one.
fn assert_close(got: &[Tensor], expected: &[Tensor]) {
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert_eq!(g.describe(), e.describe());
        if e.dtype() != DType::F32 {
            assert_eq!(g, e);
            continue;
        }
        let (g, e) = (g.as_slice::<f32>().unwrap(), e.as_slice::<f32>().unwrap());
        let largest = e.iter().fold(1.0_f32, |most, v| most.max(v.abs()));
        for (a, b) in g.iter().zip(e) {
            assert!(b.is_finite() && (a - b).abs() <= 1e-5 * largest, "{a} for {b}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        // A failure prints the graph; its file would be looked for beside `lib.rs`.
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn scenarios_2_and_4_any_map_gives_what_the_unsplit_graph_gives(
        steps in prop::collection::vec((0_u8..13, 0_usize..64, 0_usize..64), 1..24),
        devices in prop::collection::vec(0_u32..3, 1..32),
        in_flight in 1_usize..5,
    ) {
        let graph = build(&steps);
        let mut at = 0;
        let map = DeviceMap::from_fn(&graph, |_| {
            at += 1;
            DeviceId::cpu(devices[at % devices.len()])
        });
        let options = CompileOptions::default();
        let whole = compile_with(graph.clone(), &DeviceId::cpu(0), &options).unwrap();
        let split = HeteroExecutable::compile(graph.clone(), &map, &options).unwrap();

        // Each segment reads of earlier ones only.
        for segment in split.split().segments() {
            for source in &segment.inputs {
                if let Source::Segment { index, .. } = source {
                    prop_assert!(*index < segment.index);
                }
            }
        }

        let mut sequential = Vec::new();
        for n in 0..6 {
            let outputs = |e: &HeteroExecutable| {
                tensors(e.run_typed(&item(n)).unwrap().into_iter().map(|(_, v)| v))
            };
            let got = outputs(&split);
            assert_close(&got, &outputs(&whole));
            sequential.push(got);
        }

        let pipeline =
            Pipeline::builder(graph).placement(map).in_flight(in_flight).spawn().unwrap();
        let streamed: Vec<_> =
            pipeline.stream((0..6).map(item)).map(|r| tensors(r.unwrap())).collect();
        prop_assert_eq!(streamed, sequential);
    }
}
