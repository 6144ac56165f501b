//! What the device computes: the cases of its operators, and a real model.

use brigade::pipeline::compile_in;
use brigade::{CompileOptions, Registry};

use super::order::cuda;
use super::process::on_standin;
use super::{models, operators};

#[test]
fn every_operator_that_the_device_has_passes_its_cases() {
    let name = "conformance::every_operator_that_the_device_has_passes_its_cases";
    on_standin(name, &[], || {
        eprintln!("on cuda:0 {}", operators::pass_their_cases(&cuda(0)));
    });
}

#[test]
fn a_cnn_runs_on_the_gpu_alone() {
    on_standin("conformance::a_cnn_runs_on_the_gpu_alone", &[], || {
        let Some(model) = models::one("ppocr-cls") else { return };
        let case = model.cases.iter().find(|c| c.name == "up-and-down").unwrap();
        let options = CompileOptions::default();
        let run = compile_in(model.graph(), &cuda(0), &options, &Registry::default()).unwrap();
        let outputs = brigade::check::run_call(&run, case).unwrap();
        let report = brigade::check::compare_outputs(case, &run.output_names(), &outputs);
        assert_eq!(report.status, brigade::check::Status::Passed, "{report:?}");
        eprintln!("on cuda:0 ppocr-cls");
    });
}
