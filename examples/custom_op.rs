//! An operator of one's own: a row with shape inference and a CPU closure, used beside the built-in
//! ones, checked by its own case, and streamed through two device actors.
//!
//! ```sh
//! cargo run --release --example custom_op
//! ```

#![allow(clippy::print_stdout)]

use brigade::extend::*;
use brigade::ops::builder::GraphBuilder;
use brigade::{Result, pipeline::compile_with};

/// `com.example.SoftClip`: `x / (1 + |x| / limit)`, which keeps small numbers and never passes
/// ± limit.
static SOFT_CLIP: OpDef = OpDef {
    name: "SoftClip",
    domain: "com.example",
    since: 1,
    attributes: &[AttributeDef::optional("limit", AttributeKind::Float)],
    inputs: &[Port::required("X", types::F32S)],
    outputs: &[Port::required("Y", types::F32S)],
    // The output has the dtype and the shape of the input, symbols included.
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    // Each element stands for itself, so a batch may be cut along any axis.
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |p| {
        let limit = p.node.float("limit")?.unwrap_or(1.0);
        Ok(kernel_fn(move |io| {
            // In place where nobody else holds the input.
            let mut y = io.take_tensor(0)?;
            for v in y.as_mut_slice::<f32>()? {
                *v /= 1.0 + v.abs() / limit;
            }
            io.emit(y);
            Ok(())
        }))
    },
    cases,
};

/// What every device that runs the operator must give.
fn cases() -> Vec<Case> {
    let tensor = |v: [f32; 3]| Tensor::new([3], v.to_vec()).expect("three elements");
    vec![
        Case::new("SoftClip", 1, "half the limit at the limit")
            .domain("com.example")
            .attr("limit", 2.0)
            .input(tensor([-2.0, 0.0, 6.0]))
            .output(tensor([-1.0, 0.0, 1.5]))
            .close(1e-6, 0.0),
    ]
}

fn main() -> Result<()> {
    let registry = Registry::default().with_op(&SOFT_CLIP);

    for case in (SOFT_CLIP.cases)() {
        let (graph, inputs) = case.graph()?;
        let device = registry.device(&DeviceId::cpu(0))?;
        let segment = device.compile(graph, &CompileOptions::default())?;
        let mut instance = segment.instance(InstanceOptions::for_this_thread())?;
        let outputs = instance.run(inputs.into_iter().map(|(_, v)| v).collect())?;
        case.compare(&outputs).map_err(|why| Error::new(ErrorKind::Kernel, why))?;
        println!("case `{}` passes", case.name);
    }

    // relu(x) · w, softly clipped: the operator is named by its domain.
    let mut g = GraphBuilder::with_registry("clipped", registry.ops().clone());
    let x = g.input("x", DType::F32, ["N".into(), 4.into()])?;
    let w = g.constant(Tensor::new([4, 2], vec![0.5_f32; 8])?)?;
    let h = g.relu(x)?;
    let h = g.matmul(h, w)?;
    let y = g.op("com.example.SoftClip", &[h], &[("limit", 3.0.into())])?;
    println!("inferred: {}", g.fact(y));
    let graph = g.finish([("y", y)])?;

    // Without the registry the operator is refused, by name.
    let refusal = compile_with(graph.clone(), &DeviceId::cpu(0), &CompileOptions::default());
    println!("without its row: {}", refusal.expect_err("the row is not built in"));

    // Streamed: the operator runs in the second of two segments.
    let pipeline =
        Pipeline::builder(graph).registry(registry).stages(2, &["cpu:0", "cpu:1"])?.spawn()?;
    let items: Vec<Tensor> =
        (0..8).map(|n| Tensor::new([1, 4], vec![n as f32; 4])).collect::<Result<_>>()?;
    for (n, outputs) in pipeline.stream(items.into_iter().map(|x| [("x", x)])).enumerate() {
        let outputs = outputs?;
        let got = outputs[0].tensor()?.as_slice::<f32>()?[0];
        let sum = 2.0 * n as f32;
        assert!((got - sum / (1.0 + sum / 3.0)).abs() < 1e-6, "item {n} gave {got}");
        println!("item {n}: {sum} -> {got:.4}");
    }
    Ok(())
}
