//! The ONNX project's test data, on the CPU. `BRIGADE_ONNX_NODE` names the folder of the node tests
//! (`onnx/backend/test/data/node`); without it nothing is run. Everything is run twice: whole, and
//! with every graph cut in two at a point that follows from a number, streamed over two devices.
//! `BRIGADE_ONNX_CUT` holds these numbers, as in `1,2,3`; without it, there is one.
//!
//! Every test that does not pass stands in `EXCEPTIONS` with its reason; one that stands there and
//! passes is an error, too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]
#![cfg(feature = "onnx")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use brigade::check::{OnnxClass, OnnxMode, OnnxSummary, Status, find_onnx_tests, run_onnx_test};

const TRAINING: &str = "an operator of training; only inference is implemented";
const RANDOM: &str = "draws random numbers; those that are expected are of numpy's generator";
const DROPPED: &str = "drops elements at random; those that are expected are of numpy's generator";
const IMAGE: &str = "decodes compressed images, which is left to the application";
const WRAPS: &str = "what is expected wraps around where the specification saturates";

/// The tests that do not pass.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("test_adagrad", TRAINING),
    ("test_adagrad_multiple", TRAINING),
    ("test_adam", TRAINING),
    ("test_adam_multiple", TRAINING),
    (
        "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
        "divides by the whole window where it reaches beyond the padding, against its 2-D kin",
    ),
    ("test_bernoulli", RANDOM),
    ("test_bernoulli_double", RANDOM),
    ("test_bernoulli_double_expanded", RANDOM),
    ("test_bernoulli_expanded", RANDOM),
    ("test_bernoulli_seed", RANDOM),
    ("test_bernoulli_seed_expanded", RANDOM),
    ("test_image_decoder_decode_bmp_rgb", IMAGE),
    ("test_image_decoder_decode_jpeg2k_rgb", IMAGE),
    ("test_image_decoder_decode_jpeg_bgr", IMAGE),
    ("test_image_decoder_decode_jpeg_grayscale", IMAGE),
    ("test_image_decoder_decode_jpeg_rgb", IMAGE),
    ("test_image_decoder_decode_png_rgb", IMAGE),
    ("test_image_decoder_decode_pnm_rgb", IMAGE),
    ("test_image_decoder_decode_tiff_rgb", IMAGE),
    ("test_image_decoder_decode_webp_rgb", IMAGE),
    ("test_momentum", TRAINING),
    ("test_momentum_multiple", TRAINING),
    ("test_nesterov_momentum", TRAINING),
    ("test_training_dropout", DROPPED),
    ("test_training_dropout_default", DROPPED),
    ("test_training_dropout_default_mask", DROPPED),
    ("test_training_dropout_mask", DROPPED),
    ("test_qlinearmatmul_2D_int8_float16", WRAPS),
    ("test_qlinearmatmul_2D_int8_float32", WRAPS),
    ("test_qlinearmatmul_3D_int8_float16", WRAPS),
    ("test_qlinearmatmul_3D_int8_float32", WRAPS),
];

/// The tests that do not pass only when the graph is cut and streamed.
const CUT_EXCEPTIONS: &[(&str, &str)] = &[
    ("test_optional_has_element_empty_no_input_name_optional_input", SOURCE),
    ("test_optional_has_element_empty_no_input_name_tensor_input", SOURCE),
    ("test_optional_has_element_empty_no_input_optional_input", SOURCE),
    ("test_optional_has_element_empty_no_input_tensor_input", SOURCE),
];
const SOURCE: &str = "has no inputs, so that nothing says when its first segment fires";

/// Runs all tests; every one but `exceptions` passes, and none of those does. `None` without data.
fn run(mode: OnnxMode, exceptions: &[&[(&str, &str)]]) -> Option<OnnxSummary> {
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
    let known: BTreeSet<&str> =
        exceptions.iter().copied().flatten().map(|(name, _)| *name).collect();
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
    let Some(summary) = run(OnnxMode::Whole, &[EXCEPTIONS]) else { return };
    // Of a suite as large as that of onnx 1.16 (1,282 tests); a part of it may be run, too.
    if summary.cases.len() >= 1282 {
        assert!(summary.passed > 1157, "{} passed", summary.passed);
        let of = |class| summary.classes.iter().find(|c| c.class == class).unwrap();
        // The others draw random numbers (7), decode images (9), or expect what the list disputes (5).
        let standard = of(OnnxClass::Standard);
        assert_eq!((standard.passed, standard.all), (853, 874), "standard dtypes");
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
        run(OnnxMode::Cut(seed), &[EXCEPTIONS, CUT_EXCEPTIONS]);
    }
}
