//! The ONNX project's test data, on the CPU. `BRIGADE_ONNX_NODE` names the folder of the node tests
//! (`onnx/backend/test/data/node`); without it nothing is run. `BRIGADE_ONNX_CUT` cuts every graph
//! in two at a point that follows from its number, and streams it over two devices.
//!
//! Every test that does not pass stands in `EXCEPTIONS` with its reason; one that stands there and
//! passes is an error, too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]
#![cfg(feature = "onnx")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use brigade::check::{OnnxMode, OnnxSummary, Status, find_onnx_tests, run_onnx_test};

const TRAINING: &str = "an operator of training; only inference is implemented";
const RANDOM: &str = "draws random numbers; those that are expected are of numpy's generator";
const DROPPED: &str = "drops elements at random; those that are expected are of numpy's generator";
const IMAGE: &str = "decodes compressed images, which is left to the application";
const NOT_YET: &str = "not implemented yet";

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
    ("test_ai_onnx_ml_array_feature_extractor", NOT_YET),
    ("test_ai_onnx_ml_binarizer", NOT_YET),
    ("test_ai_onnx_ml_label_encoder_string_int", NOT_YET),
    ("test_ai_onnx_ml_label_encoder_string_int_no_default", NOT_YET),
    ("test_ai_onnx_ml_label_encoder_tensor_mapping", NOT_YET),
    ("test_ai_onnx_ml_label_encoder_tensor_value_only_mapping", NOT_YET),
    ("test_ai_onnx_ml_tree_ensemble_set_membership", NOT_YET),
    ("test_ai_onnx_ml_tree_ensemble_single_tree", NOT_YET),
    ("test_batchnorm_epsilon_training_mode", NOT_YET),
    ("test_batchnorm_example_training_mode", NOT_YET),
    ("test_qlinearconv", NOT_YET),
    ("test_qlinearmatmul_2D_int8_float16", NOT_YET),
    ("test_qlinearmatmul_2D_int8_float32", NOT_YET),
    ("test_qlinearmatmul_2D_uint8_float16", NOT_YET),
    ("test_qlinearmatmul_2D_uint8_float32", NOT_YET),
    ("test_qlinearmatmul_3D_int8_float16", NOT_YET),
    ("test_qlinearmatmul_3D_int8_float32", NOT_YET),
    ("test_qlinearmatmul_3D_uint8_float16", NOT_YET),
    ("test_qlinearmatmul_3D_uint8_float32", NOT_YET),
];

#[test]
fn node_tests_of_the_onnx_package_pass() {
    let Some(folder) = std::env::var_os("BRIGADE_ONNX_NODE").map(PathBuf::from) else {
        println!("left out: BRIGADE_ONNX_NODE does not name the folder of the node tests");
        return;
    };
    let cut = std::env::var("BRIGADE_ONNX_CUT").ok().map(|n| n.parse().expect("a number"));
    let mode = cut.map_or(OnnxMode::Whole, OnnxMode::Cut);
    let tests = find_onnx_tests(&folder).unwrap();
    let summary = OnnxSummary::of(tests.iter().map(|t| run_onnx_test(t, mode)).collect());
    let OnnxSummary { passed, failed, refused, cases } = &summary;
    println!("{passed} passed, {failed} failed, {refused} refused");
    let known: BTreeSet<&str> = EXCEPTIONS.iter().map(|(name, _)| *name).collect();
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
}
