//! A multi-layer perceptron whole, split and streamed: what a boundary costs, and what streaming
//! over two devices gains.
//!
//! 8 × (x · W + b, Relu) with W f32[1024,1024], b f32[32,1024] and x f32[32,1024]: 0.537 GFLOP a
//! batch. `cargo bench --bench mlp` prints the median time of a batch, GFLOP/s and the share of the
//! multiply-add peak of as many threads, measured in the same run, beside the figures of rlx 0.2.19
//! for the same work on 2 cores. It stops if the outputs of two ways to run it disagree.

#![allow(clippy::print_stdout)]

mod measure;

use std::time::Instant;

use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::{
    CompileOptions, DType, DeviceId, DeviceMap, HeteroExecutable, Pipeline, Result, Tensor,
};
use measure::{fma_peak, numbers, time};

const LAYERS: usize = 8;
const ROWS: usize = 32;
const WIDTH: usize = 1024;

/// Batches of one round of streaming.
const BATCHES: usize = 32;
/// Rounds of streaming, of which the median counts.
const ROUNDS: usize = 9;

/// Milliseconds a batch of rlx 0.2.19 on 2 cores: without a BLAS and one worker thread, and with
/// OpenBLAS.
const RLX_WHOLE: &str = "18.5 / 9.5";
const RLX_SPLIT: &str = "26.7 / 16.3";
const RLX_FED_AHEAD: &str = "10.1 / 4.95";

fn mlp() -> Result<Graph> {
    let mut g = GraphBuilder::new("mlp");
    let mut h = g.input("x", DType::F32, [ROWS.into(), WIDTH.into()])?;
    for layer in 0..LAYERS {
        let w = g.param(&format!("w{layer}"), DType::F32, &[WIDTH, WIDTH])?;
        let b = g.param(&format!("b{layer}"), DType::F32, &[ROWS, WIDTH])?;
        h = g.matmul(h, w)?;
        h = g.add(h, b)?;
        h = g.relu(h)?;
    }
    g.finish([("y", h)])
}

/// Weights of a size that keeps the size of what they multiply.
fn params() -> Result<Vec<(String, Tensor)>> {
    let scale = |v: &[f32], by: f32| v.iter().map(|x| x * by).collect::<Vec<f32>>();
    let (w, b) = (numbers(LAYERS * WIDTH * WIDTH), numbers(LAYERS * ROWS * WIDTH));
    let mut out = Vec::new();
    for layer in 0..LAYERS {
        let of = |all: &[f32], len: usize| all[layer * len..(layer + 1) * len].to_vec();
        let weights = scale(&of(&w, WIDTH * WIDTH), (6.0 / WIDTH as f32).sqrt());
        out.push((format!("w{layer}"), Tensor::new([WIDTH, WIDTH], weights)?));
        let bias = scale(&of(&b, ROWS * WIDTH), 0.1);
        out.push((format!("b{layer}"), Tensor::new([ROWS, WIDTH], bias)?));
    }
    Ok(out)
}

/// `segments` segments of as many layers each, alternating between two CPU devices.
fn map(graph: &Graph, segments: usize) -> DeviceMap {
    let mut node = 0;
    DeviceMap::from_fn(graph, |_| {
        let layer = node * LAYERS / graph.nodes().len();
        node += 1;
        let segment = layer * segments / LAYERS;
        DeviceId::cpu(u32::from(segment % 2 == 1))
    })
}

/// The first row of the output, in f64 and loops.
fn first_row(params: &[(String, Tensor)], x: &Tensor) -> Result<Vec<f64>> {
    let mut h: Vec<f64> = x.as_slice::<f32>()?[..WIDTH].iter().map(|v| f64::from(*v)).collect();
    for layer in params.chunks(2) {
        let (w, b) = (layer[0].1.as_slice::<f32>()?, layer[1].1.as_slice::<f32>()?);
        let mut next: Vec<f64> = b[..WIDTH].iter().map(|v| f64::from(*v)).collect();
        for (k, row) in w.chunks(WIDTH).enumerate() {
            next.iter_mut().zip(row).for_each(|(n, w)| *n += h[k] * f64::from(*w));
        }
        h = next.iter().map(|v| v.max(0.0)).collect();
    }
    Ok(h)
}

/// Multiply-add peak of so many threads at once, in GFLOP/s.
fn peak(threads: usize) -> f64 {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(fma_peak)).collect();
        all.into_iter().map(|t| t.join().unwrap_or(f64::NAN)).sum()
    })
}

fn line(name: &str, threads: usize, seconds: f64, peak: f64, rlx: &str) {
    let flops = 2.0 * (LAYERS * ROWS * WIDTH * WIDTH) as f64 / seconds / 1e9;
    println!(
        "{name:46} {threads:7} {:8.2} {flops:9.1} {:7.1} %   {rlx}",
        seconds * 1e3,
        100.0 * flops / peak
    );
}

fn main() -> Result<()> {
    let graph = mlp()?;
    let params = params()?;
    let x = Tensor::new([ROWS, WIDTH], numbers(ROWS * WIDTH))?;
    let peaks = [peak(1), peak(2)];
    println!("multiply-add peak: {:.1} GFLOP/s on one thread, {:.1} on two", peaks[0], peaks[1]);
    println!(
        "{:46} {:>7} {:>8} {:>9} {:>9}   rlx 0.2.19, ms (plain / OpenBLAS)",
        "f32, 0.537 GFLOP a batch", "threads", "ms", "GFLOP/s", "of peak"
    );

    let mut expected: Option<Tensor> = None;
    let mut agree = |got: &Tensor| -> Result<()> {
        let Some(expected) = &expected else {
            let by_hand = first_row(&params, &x)?;
            for (got, want) in got.as_slice::<f32>()?.iter().zip(&by_hand) {
                assert!((f64::from(*got) - want).abs() <= 1e-4 * want.abs().max(1.0));
            }
            expected = Some(got.clone());
            return Ok(());
        };
        for (a, b) in got.as_slice::<f32>()?.iter().zip(expected.as_slice::<f32>()?) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} where the whole gives {b}");
        }
        Ok(())
    };

    let mut whole_seconds = [0.0; 2];
    for (segments, rlx) in [(1, RLX_WHOLE), (4, RLX_SPLIT)] {
        for threads in [1, 2] {
            let options = CompileOptions { threads, ..CompileOptions::default() };
            let split = HeteroExecutable::compile(graph.clone(), &map(&graph, segments), &options)?;
            assert_eq!(split.num_segments(), segments);
            for (name, tensor) in &params {
                split.bind(name, tensor.clone())?;
            }
            let run = || split.run_typed(&[("x", x.clone())]);
            agree(run()?[0].1.tensor()?)?;
            let flops = 2.0 * (LAYERS * ROWS * WIDTH * WIDTH) as f64;
            let median = time(flops, || {
                std::hint::black_box(run().is_ok());
            })
            .median;
            let name = if segments == 1 {
                whole_seconds[threads - 1] = median;
                "one segment, sequential".to_owned()
            } else {
                let more = 100.0 * (median / whole_seconds[threads - 1] - 1.0);
                format!("{segments} segments, sequential ({more:+.1} % of one)")
            };
            line(&name, threads, median, peaks[threads - 1], rlx);
        }
    }

    for segments in [2, 4] {
        let pipeline = Pipeline::builder(graph.clone())
            .placement(map(&graph, segments))
            .params(params.clone())
            .spawn()?;
        let sequential = pipeline.sequential().run_typed(&[("x", x.clone())])?;
        agree(sequential[0].1.tensor()?)?;
        let mut seconds = Vec::with_capacity(ROUNDS);
        // The first round warms up.
        for round in 0..=ROUNDS {
            let start = Instant::now();
            let mut results = Vec::with_capacity(BATCHES);
            for result in pipeline.stream((0..BATCHES).map(|_| [("x", x.clone())])) {
                results.push(result?);
            }
            let took = start.elapsed().as_secs_f64() / BATCHES as f64;
            assert_eq!(results.len(), BATCHES);
            for result in &results {
                assert_eq!(result[0], sequential[0].1, "streamed is not sequential");
            }
            if round > 0 {
                seconds.push(took);
            }
        }
        seconds.sort_by(f64::total_cmp);
        let name = format!(
            "{segments} segments on 2 devices, streaming {} in flight",
            pipeline.in_flight_limit()
        );
        line(&name, 2, seconds[ROUNDS / 2], peaks[1], RLX_FED_AHEAD);
    }
    Ok(())
}
