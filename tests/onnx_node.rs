//! The ONNX project's test data, on the CPU. `BRIGADE_ONNX_NODE` names the folder of the node tests
//! (`onnx/backend/test/data/node`); without it nothing is run. Everything is run twice: whole, and
//! with every graph cut in two at a point that follows from a number, streamed over two devices.
//! `BRIGADE_ONNX_CUT` holds these numbers, as in `1,2,3`; without it, there is one.
//!
//! Every test that does not pass stands in `EXCEPTIONS` with its reason; one that stands there and
//! passes is an error, too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]
#![cfg(all(feature = "onnx", feature = "image"))]

use std::collections::BTreeSet;
use std::path::PathBuf;

use brigade::check::{OnnxClass, OnnxMode, OnnxSummary, Status, find_onnx_tests, run_onnx_test};

const TRAINING: &str = "an operator of training; only inference is implemented";
const RANDOM: &str = "draws random numbers; those that are expected are of numpy's generator";
const JPEG: &str =
    "differs by at most 2 of 255: the decoder rounds its transform otherwise than libjpeg";
const JPEG_2000: &str = "JPEG 2000 images are refused";
const WRAPS: &str = "expects -236 to wrap around to 20 (or the like), where the specification saturates \
                     to -128; ONNX Runtime 1.32 gives -128, as the test of later onnx releases expects";

/// The tests that do not pass.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("test_adagrad", TRAINING),
    ("test_adagrad_multiple", TRAINING),
    ("test_adam", TRAINING),
    ("test_adam_multiple", TRAINING),
    (
        "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
        "divides by the whole window where it reaches beyond the padding, against its 2-D kin and \
         ONNX Runtime 1.32",
    ),
    ("test_bernoulli", RANDOM),
    ("test_bernoulli_double", RANDOM),
    ("test_bernoulli_double_expanded", RANDOM),
    ("test_bernoulli_expanded", RANDOM),
    ("test_bernoulli_seed", RANDOM),
    ("test_bernoulli_seed_expanded", RANDOM),
    ("test_image_decoder_decode_jpeg2k_rgb", JPEG_2000),
    ("test_image_decoder_decode_jpeg_bgr", JPEG),
    ("test_image_decoder_decode_jpeg_grayscale", JPEG),
    ("test_image_decoder_decode_jpeg_rgb", JPEG),
    ("test_momentum", TRAINING),
    ("test_momentum_multiple", TRAINING),
    ("test_nesterov_momentum", TRAINING),
    ("test_qlinearmatmul_2D_int8_float16", WRAPS),
    ("test_qlinearmatmul_2D_int8_float32", WRAPS),
    ("test_qlinearmatmul_3D_int8_float16", WRAPS),
    ("test_qlinearmatmul_3D_int8_float32", WRAPS),
];

/// Runs all tests; every one but `exceptions` passes, and none of those does. `None` without data.
fn run(mode: OnnxMode, exceptions: &[(&str, &str)]) -> Option<OnnxSummary> {
    let Some(folder) = std::env::var_os("BRIGADE_ONNX_NODE").map(PathBuf::from) else {
        println!("left out: BRIGADE_ONNX_NODE does not name the folder of the node tests");
        return None;
    };
    let tests = find_onnx_tests(&folder).unwrap();
    let summary = OnnxSummary::of(tests.iter().map(|t| run_onnx_test(t, mode)).collect());
    let OnnxSummary { passed, failed, refused, classes, cases } = &summary;
    println!("{mode:?}: {passed} passed, {failed} failed, {refused} refused");
    for c in classes {
        println!("{mode:?}: {}: {} of {} passed", c.class.describe(), c.passed, c.all);
    }
    let known: BTreeSet<&str> = exceptions.iter().map(|(name, _)| *name).collect();
    let unexpected: Vec<String> = cases
        .iter()
        .filter(|c| c.status != Status::Passed && !known.contains(c.case.as_str()))
        .map(|c| format!("{}: {}", c.case, c.reason.as_deref().unwrap_or_default()))
        .collect();
    assert!(unexpected.is_empty(), "{} failed:\n{}", unexpected.len(), unexpected.join("\n"));
    let mended: Vec<&str> = cases
        .iter()
        .filter(|c| c.status == Status::Passed && known.contains(c.case.as_str()))
        .map(|c| c.case.as_str())
        .collect();
    assert!(mended.is_empty(), "these pass; take them out of the list: {mended:?}");
    assert!(*passed > 0, "no node test ran");
    Some(summary)
}

#[test]
fn node_tests_of_the_onnx_package_pass() {
    let Some(summary) = run(OnnxMode::Whole, EXCEPTIONS) else { return };
    // Of a suite as large as that of onnx 1.16 (1,282 tests); a part of it may be run, too.
    if summary.cases.len() >= 1282 {
        assert!(summary.passed > 1157, "{} passed", summary.passed);
        let of = |class| summary.classes.iter().find(|c| c.class == class).unwrap();
        // The others draw random numbers without saying how (3), decode JPEG images (4), or expect
        // what the list disputes (5).
        let standard = of(OnnxClass::Standard);
        assert_eq!((standard.passed, standard.all), (862, 874), "standard dtypes");
        // What is expected of one average pool is wrong: see the list.
        let models = of(OnnxClass::InModels);
        assert_eq!((models.passed, models.all), (461, 462), "operators of real models");
    }
}

#[test]
fn node_tests_pass_cut_in_two_and_streamed() {
    let seeds = std::env::var("BRIGADE_ONNX_CUT").unwrap_or_else(|_| "1".to_owned());
    for seed in seeds.split(',') {
        let seed = seed.trim().parse().expect("BRIGADE_ONNX_CUT holds numbers");
        run(OnnxMode::Cut(seed), EXCEPTIONS);
    }
}
