//! Products that the library computes, in each precision.

use std::time::{Duration, Instant};

use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::pipeline::compile_in;
use brigade::{CompileOptions, DType, DeviceMap, Pipeline, Precision, Registry, Tensor};

use super::failures::with;
use super::order::{cuda, numbers};
use super::process::{is_inside, on_standin, ran};
use super::standin;

/// `count` products of `[rows,side]` with matrices of `side`, one after the other.
fn products(rows: usize, side: usize, count: usize) -> Graph {
    let mut g = GraphBuilder::new("products");
    let mut x = g.input("x", DType::F32, [rows.into(), side.into()]).unwrap();
    let scale = 1.0 / (side as f32).sqrt();
    let matrix = |seed| {
        let all = numbers(&[side, side], seed);
        let scaled = all.as_slice::<f32>().unwrap().iter().map(|v| v * scale).collect();
        Tensor::new([side, side], scaled).unwrap()
    };
    let weights = [g.constant(matrix(1)).unwrap(), g.constant(matrix(2)).unwrap()];
    for i in 0..count {
        x = g.matmul(x, weights[i % 2]).unwrap();
    }
    g.finish([("y", x)]).unwrap()
}

#[test]
fn a_precision_rounds_what_products_read_and_f32_does_not() {
    on_standin("products::a_precision_rounds_what_products_read_and_f32_does_not", &[], || {
        let registry = Registry::default();
        let x = numbers(&[3, 40], 5);
        let run = |precision: Precision| -> Vec<f32> {
            let options = CompileOptions { precision, ..CompileOptions::default() };
            let run = compile_in(products(3, 40, 2), &cuda(0), &options, &registry).unwrap();
            let y = run.run_typed(&[("x", x.clone())]).unwrap().remove(0).1;
            y.tensor().unwrap().as_slice::<f32>().unwrap().to_vec()
        };
        let exact = run(Precision::F32);
        let error = |precision| {
            let off = |(a, b): (&f32, &f32)| (a - b).abs();
            run(precision).iter().zip(&exact).map(off).fold(0.0, f32::max)
        };
        assert_eq!(error(Precision::F32), 0.0);
        let (tf32, f16, bf16) =
            (error(Precision::Tf32), error(Precision::F16), error(Precision::Bf16));
        assert!(tf32 > 0.0 && tf32 < 4e-3, "{tf32}");
        assert!(f16 > 0.0 && f16 < 4e-3, "{f16}");
        // Three bits fewer.
        assert!(bf16 > 2.0 * tf32 && bf16 < 3e-2, "{bf16}");
    });
}

/// Asks the device itself for what only the library computes.
#[test]
fn refused() {
    if is_inside() {
        let registry = Registry::default();
        let device = registry.device(&cuda(0)).unwrap();
        let options = CompileOptions { precision: Precision::Bf16, ..CompileOptions::default() };
        let made = device.compile(products(3, 40, 2), &options).map(drop);
        println!("\nrefused: {}", made.err().map_or_else(String::new, |e| e.to_string()));
    }
}

#[test]
fn without_the_library_a_precision_is_refused_and_not_ignored() {
    if is_inside() {
        return;
    }
    let Some(folder) = standin::libraries() else { return };
    let some = with(&folder, &["libcuda.so.1", "libnvrtc.so.12"]);
    let ran = ran(some.path(), "products::refused", &[], Duration::from_secs(60));
    assert!(ran.passed && ran.said.contains("does not compute in bf16"), "{}", ran.said);
}

/// For a GPU: `scripts/gpu_check.sh` runs it.
#[test]
#[ignore = "takes minutes without a GPU"]
fn gemm_4096() {
    on_standin("products::gemm_4096", &[], || {
        const SIDE: usize = 4096;
        // Many, so that copies of the host weigh little.
        const COUNT: usize = 256;
        const ITEMS: usize = 6;
        let precision =
            std::env::var("BRIGADE_GEMM_PRECISION").unwrap_or_else(|_| "f32".to_owned());
        let options =
            CompileOptions { precision: precision.parse().unwrap(), ..CompileOptions::default() };
        let pipeline = Pipeline::builder(products(SIDE, SIDE, COUNT))
            .options(options)
            .placement(DeviceMap::single(cuda(0)))
            .in_flight(3)
            .spawn()
            .unwrap();
        let x = numbers(&[SIDE, SIDE], 3);
        let items = |n: usize| (0..n).map(|_| [("x", x.clone())]);
        // Each of the three slots records its launches.
        pipeline.stream(items(10)).for_each(|r| drop(r.unwrap()));
        let start = Instant::now();
        pipeline.stream(items(ITEMS)).for_each(|r| drop(r.unwrap()));
        let seconds = start.elapsed().as_secs_f64();
        let flops = 2.0 * (SIDE as f64).powi(3) * (COUNT * ITEMS) as f64;
        println!(
            "gemm: {:.1} TFLOP/s, with a copy of 64 MiB in and one out each {COUNT} products",
            flops / seconds / 1e12
        );
    });
}
