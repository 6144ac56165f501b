//! Products in bfloat16: how far the outputs of the models are from those in single precision.

use brigade::check::{Kind, run_call, run_steps};
use brigade::{CompileOptions, DType, Precision, Value, compile_with};

use super::models;

/// What an output may be off by: the norm of the difference as a share of the norm of the output. One
/// product is off by about 2^-9 of its operands; what models make of that differs, and is twice to three
/// times what was measured.
fn tolerance(model: &str) -> f64 {
    match model {
        "minilm-int8" => 0.03,
        "silero-vad" | "silero-vad-ifless" => 0.01,
        _ => 0.003,
    }
}

/// The share by which `b` is off `a`; nothing where they are no floats.
fn off(a: &Value, b: &Value) -> Option<f64> {
    let (a, b) = (a.tensor().unwrap(), b.tensor().unwrap());
    assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()));
    if a.dtype() != DType::F32 {
        return None;
    }
    let (a, b) = (a.as_slice::<f32>().unwrap(), b.as_slice::<f32>().unwrap());
    let squares = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        a.iter().zip(b).map(|(a, b)| f(f64::from(*a), f64::from(*b)).powi(2)).sum()
    };
    let (difference, norm) = (squares(&|a, b| a - b), squares(&|a, _| a));
    Some((difference / norm.max(f64::MIN_POSITIVE)).sqrt())
}

#[test]
fn every_case_is_near_its_outputs_in_single_precision() {
    let mut failures = Vec::new();
    let mut other = 0;
    for model in models::all() {
        let compiled = [Precision::F32, Precision::Bf16].map(|precision| {
            let options = CompileOptions { precision, ..CompileOptions::default() };
            compile_with(model.graph(), &"cpu".parse().unwrap(), &options).unwrap()
        });
        let mut worst = 0.0_f64;
        for case in &model.cases {
            let [whole, half] = [&compiled[0], &compiled[1]].map(|executable| match case.kind {
                Kind::Call => run_call(executable, case).unwrap(),
                Kind::Stream(_) => run_steps(executable, case).unwrap(),
            });
            for (i, (a, b)) in whole.iter().zip(&half).enumerate() {
                let Some(off) = off(a, b) else { continue };
                worst = worst.max(off);
                if !(off <= tolerance(&model.id)) {
                    failures.push(format!(
                        "{}/{}: output {i} is off by {off:.1e}",
                        model.id, case.name
                    ));
                }
            }
        }
        other += usize::from(worst > 0.0);
        eprintln!("{}: off by {worst:.1e} at most", model.id);
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    if std::env::var_os("BRIGADE_ONLY").is_none() && !models::all().is_empty() {
        assert!(other >= 5, "only {other} models have products that were rounded");
    }
}
