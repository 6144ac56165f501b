//! The test cases; what must come out was computed by ONNX's own implementations.

use crate::ops::case::{Case, as_dtype, filled};
use crate::tensor::{DType, Tensor};

/// Numbers between -5 and 5 over `div`, always the same.
fn wave(shape: &[usize], mul: usize, add: usize, div: f32) -> Tensor {
    let n: usize = shape.iter().product();
    let at = |i: usize| ((i * mul + add) % 11) as f32 - 5.0;
    filled(shape, &(0..n).map(|i| at(i) / div).collect::<Vec<_>>())
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn case(op: &'static str, name: &str, constant: bool) -> Case {
    let name = if constant { format!("{name}, constant weights") } else { name.to_owned() };
    let case = Case::new(op, 14, name).close(2e-6, 2e-6);
    if constant { case.attr("hidden_size", 2) } else { case }
}

trait Weights {
    fn weights(self, constant: bool, tensor: Tensor) -> Self;
}

impl Weights for Case {
    fn weights(self, constant: bool, tensor: Tensor) -> Self {
        if constant { self.constant(tensor) } else { self.input(tensor) }
    }
}

pub(super) fn lstm() -> Vec<Case> {
    [false, true].into_iter().flat_map(lstm_cases).chain(others()).collect()
}

fn lstm_cases(constant: bool) -> Vec<Case> {
    vec![
        case("LSTM", "plain", constant)
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[1, 8, 2], 5, 1, 8.0))
            .weights(constant, wave(&[1, 8, 2], 3, 2, 8.0))
            .input(wave(&[1, 16], 4, 6, 8.0))
            .output(filled(
                &[3, 1, 2, 2],
                &[
                    -0.033_818_49_f32,
                    -0.118_362_35,
                    0.149_753_78,
                    -0.388_113_9,
                    0.083_900_17,
                    -0.399_006_28,
                    0.009_034_462,
                    -0.301_922_8,
                    0.161_469_4,
                    -0.567_951_86,
                    0.143_210_5,
                    -0.549_495_1,
                ],
            ))
            .output(filled(
                &[1, 2, 2],
                &[0.161_469_4_f32, -0.567_951_86, 0.143_210_5, -0.549_495_1],
            ))
            .output(filled(&[1, 2, 2], &[0.529_871_f32, -1.163_392_3, 0.348_000_1, -1.024_473_9])),
        case("LSTM", "all", constant)
            .attr("direction", "bidirectional")
            .attr("clip", 0.3_f32)
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[2, 8, 2], 5, 1, 8.0))
            .weights(constant, wave(&[2, 8, 2], 3, 2, 8.0))
            .input(wave(&[2, 16], 4, 6, 8.0))
            .input(filled(&[2], &[3_i32, 1]))
            .input(wave(&[2, 2, 2], 2, 9, 8.0))
            .input(wave(&[2, 2, 2], 8, 4, 8.0))
            .input(wave(&[2, 6], 6, 5, 8.0))
            .output(filled(
                &[3, 2, 2, 2],
                &[
                    -0.092_358_68_f32,
                    -0.208_414_99,
                    0.180_529_64,
                    -0.063_048_69,
                    -0.049_493_54,
                    0.121_021_97,
                    0.139_127_2,
                    0.062_498_327,
                    -0.000_797_881_34,
                    -0.198_817_18,
                    0.0,
                    0.0,
                    0.037_323_203,
                    0.052_104_473,
                    0.0,
                    0.0,
                    0.064_017_52,
                    -0.205_716_83,
                    0.0,
                    0.0,
                    -0.027_512_46,
                    -0.045_587_98,
                    0.0,
                    0.0,
                ],
            ))
            .output(filled(
                &[2, 2, 2],
                &[
                    0.064_017_52_f32,
                    -0.205_716_83,
                    0.180_529_64,
                    -0.063_048_69,
                    -0.049_493_54,
                    0.121_021_97,
                    0.139_127_2,
                    0.062_498_327,
                ],
            ))
            .output(filled(
                &[2, 2, 2],
                &[
                    0.151_582_55_f32,
                    -0.374_722_66,
                    0.436_290_74,
                    -0.110_200_256,
                    -0.116_831_51,
                    0.219_709_58,
                    0.339_386_2,
                    0.147_932,
                ],
            )),
        case("LSTM", "if", constant)
            .attr("direction", "reverse")
            .attr("input_forget", 1)
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[1, 8, 2], 5, 1, 8.0))
            .weights(constant, wave(&[1, 8, 2], 3, 2, 8.0))
            .absent()
            .input(filled(&[2], &[2_i32, 3]))
            .absent()
            .absent()
            .input(wave(&[1, 6], 6, 5, 8.0))
            .output(filled(
                &[3, 1, 2, 2],
                &[
                    -0.138_635_65_f32,
                    0.115_615_29,
                    0.032_975_268,
                    -0.012_083_684,
                    0.030_620_031,
                    0.0,
                    -0.090_194_21,
                    0.076_798_82,
                    0.0,
                    0.0,
                    0.089_740_1,
                    -0.077_340_75,
                ],
            ))
            .output(filled(
                &[1, 2, 2],
                &[-0.138_635_65_f32, 0.115_615_29, 0.032_975_268, -0.012_083_684],
            ))
            .output(filled(
                &[1, 2, 2],
                &[-0.392_006_4_f32, 0.372_734_55, 0.057_729_2, -0.021_594_3],
            )),
        case("LSTM", "layout", constant)
            .attr("layout", 1)
            .input(wave(&[2, 3, 2], 7, 3, 4.0))
            .weights(constant, wave(&[1, 8, 2], 5, 1, 8.0))
            .weights(constant, wave(&[1, 8, 2], 3, 2, 8.0))
            .absent()
            .absent()
            .input(wave(&[2, 1, 2], 2, 9, 8.0))
            .input(wave(&[2, 1, 2], 8, 4, 8.0))
            .output(filled(
                &[2, 3, 1, 2],
                &[
                    -0.149_833_13_f32,
                    0.083_473_98,
                    -0.036_278_628,
                    -0.036_257_356,
                    0.003_129_832_4,
                    -0.016_130_395,
                    -0.071_251_46,
                    0.126_379_85,
                    0.102_469_206,
                    -0.032_401_03,
                    0.150_933_28,
                    -0.115_490_64,
                ],
            ))
            .output(filled(
                &[2, 1, 2],
                &[0.003_129_832_4_f32, -0.016_130_395, 0.150_933_28, -0.115_490_64],
            ))
            .output(filled(
                &[2, 1, 2],
                &[0.004_797_563_f32, -0.025_919_88, 0.263_741_52, -0.192_015_5],
            )),
        case("LSTM", "acts", constant)
            .attr("activations", names(&["HardSigmoid", "LeakyRelu", "Softsign"]))
            .attr("activation_alpha", vec![0.3_f32, 0.1_f32])
            .attr("activation_beta", vec![0.4_f32])
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[1, 8, 2], 5, 1, 8.0))
            .weights(constant, wave(&[1, 8, 2], 3, 2, 8.0))
            .output(filled(
                &[3, 1, 2, 2],
                &[
                    -0.010_939_416_f32,
                    0.064_371_92,
                    0.068_038_83,
                    -0.008_039_832,
                    0.008_541_207,
                    0.081_965_476,
                    -0.000_109_304_194,
                    0.041_264_217,
                    0.095_660_68,
                    0.027_486_304,
                    0.054_779_023,
                    0.053_527_545,
                ],
            ))
            .output(filled(
                &[1, 2, 2],
                &[0.095_660_68_f32, 0.027_486_304, 0.054_779_023, 0.053_527_545],
            ))
            .output(filled(
                &[1, 2, 2],
                &[0.311_829_45_f32, 0.065_796_05, 0.119_272_41, 0.118_223_3],
            )),
    ]
}

pub(super) fn gru() -> Vec<Case> {
    [false, true].into_iter().flat_map(gru_cases).collect()
}

fn gru_cases(constant: bool) -> Vec<Case> {
    vec![
        case("GRU", "plain", constant)
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[1, 6, 2], 5, 1, 8.0))
            .weights(constant, wave(&[1, 6, 2], 3, 2, 8.0))
            .input(wave(&[1, 12], 4, 6, 8.0))
            .output(filled(
                &[3, 1, 2, 2],
                &[
                    -0.267_540_72_f32,
                    -0.249_192_36,
                    -0.238_559_59,
                    0.209_000_19,
                    -0.413_010_33,
                    0.035_719_64,
                    -0.399_543_7,
                    -0.093_474_224,
                    -0.455_056_6,
                    0.212_343_77,
                    -0.461_023_27,
                    0.105_735_004,
                ],
            ))
            .output(filled(
                &[1, 2, 2],
                &[-0.455_056_6_f32, 0.212_343_77, -0.461_023_27, 0.105_735_004],
            )),
        case("GRU", "lbr", constant)
            .attr("linear_before_reset", 1)
            .attr("direction", "bidirectional")
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[2, 6, 2], 5, 1, 8.0))
            .weights(constant, wave(&[2, 6, 2], 3, 2, 8.0))
            .input(wave(&[2, 12], 4, 6, 8.0))
            .input(filled(&[2], &[1_i32, 3]))
            .input(wave(&[2, 2, 2], 2, 9, 8.0))
            .output(filled(
                &[3, 2, 2, 2],
                &[
                    0.042_661_637_f32,
                    -0.564_064_2,
                    -0.389_221_94,
                    0.077_238_545,
                    0.432_991_68,
                    0.533_482_8,
                    0.215_155_68,
                    0.266_143_3,
                    0.0,
                    0.0,
                    -0.499_225_62,
                    -0.196_470_77,
                    0.0,
                    0.0,
                    0.374_349_53,
                    0.354_723_22,
                    0.0,
                    0.0,
                    -0.468_104_18,
                    0.007_572_815,
                    0.0,
                    0.0,
                    0.180_882_44,
                    -0.061_922_02,
                ],
            ))
            .output(filled(
                &[2, 2, 2],
                &[
                    0.042_661_637_f32,
                    -0.564_064_2,
                    -0.468_104_18,
                    0.007_572_815,
                    0.432_991_68,
                    0.533_482_8,
                    0.215_155_68,
                    0.266_143_3,
                ],
            )),
        case("GRU", "rev", constant)
            .attr("direction", "reverse")
            .attr("clip", 0.25_f32)
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[1, 6, 2], 5, 1, 8.0))
            .weights(constant, wave(&[1, 6, 2], 3, 2, 8.0))
            .input(wave(&[1, 12], 4, 6, 8.0))
            .input(filled(&[2], &[2_i32, 3]))
            .output(filled(
                &[3, 1, 2, 2],
                &[
                    -0.176_074_9_f32,
                    -0.029_826_477,
                    -0.202_598_57,
                    0.111_664_88,
                    -0.122_459_33,
                    0.137_687_5,
                    -0.169_639_65,
                    -0.031_952_143,
                    0.0,
                    0.0,
                    -0.111_012_29,
                    0.133_906_38,
                ],
            ))
            .output(filled(
                &[1, 2, 2],
                &[-0.176_074_9_f32, -0.029_826_477, -0.202_598_57, 0.111_664_88],
            )),
        case("GRU", "layout", constant)
            .attr("linear_before_reset", 1)
            .attr("layout", 1)
            .input(wave(&[2, 3, 2], 7, 3, 4.0))
            .weights(constant, wave(&[1, 6, 2], 5, 1, 8.0))
            .weights(constant, wave(&[1, 6, 2], 3, 2, 8.0))
            .input(wave(&[1, 12], 4, 6, 8.0))
            .output(filled(
                &[2, 3, 1, 2],
                &[
                    -0.255_031_4_f32,
                    -0.261_979_9,
                    -0.325_418_47,
                    0.036_020_34,
                    -0.370_522_23,
                    0.049_468_93,
                    -0.221_289_53,
                    -0.190_925_26,
                    -0.287_333_43,
                    0.077_222_5,
                    -0.336_373_2,
                    0.141_815_53,
                ],
            ))
            .output(filled(
                &[2, 1, 2],
                &[-0.370_522_23_f32, 0.049_468_93, -0.336_373_2, 0.141_815_53],
            )),
    ]
}

pub(super) fn rnn() -> Vec<Case> {
    [false, true].into_iter().flat_map(rnn_cases).collect()
}

fn rnn_cases(constant: bool) -> Vec<Case> {
    vec![
        case("RNN", "plain", constant)
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[1, 2, 2], 5, 1, 8.0))
            .weights(constant, wave(&[1, 2, 2], 3, 2, 8.0))
            .input(wave(&[1, 4], 4, 6, 8.0))
            .absent()
            .input(wave(&[1, 2, 2], 2, 9, 8.0))
            .output(filled(
                &[3, 1, 2, 2],
                &[
                    0.093_476_295_f32,
                    0.943_128,
                    -0.200_376_75,
                    0.575_862_4,
                    -0.578_399_06,
                    -0.295_335_35,
                    0.495_927_93,
                    0.787_549,
                    0.060_575_366,
                    0.761_146_4,
                    -0.553_541_54,
                    0.250_789_17,
                ],
            ))
            .output(filled(
                &[1, 2, 2],
                &[0.060_575_366_f32, 0.761_146_4, -0.553_541_54, 0.250_789_17],
            )),
        case("RNN", "bi", constant)
            .attr("direction", "bidirectional")
            .attr("activations", names(&["Relu", "Affine"]))
            .attr("activation_alpha", vec![0.5_f32])
            .attr("activation_beta", vec![0.25_f32])
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[2, 2, 2], 5, 1, 8.0))
            .weights(constant, wave(&[2, 2, 2], 3, 2, 8.0))
            .input(wave(&[2, 4], 4, 6, 8.0))
            .input(filled(&[2], &[3_i32, 2]))
            .output(filled(
                &[3, 2, 2, 2],
                &[
                    0.281_25_f32,
                    1.187_5,
                    0.0,
                    0.718_75,
                    -0.149_169_92,
                    -0.290_527_34,
                    0.253_906_25,
                    0.136_718_75,
                    0.0,
                    0.0,
                    0.468_75,
                    1.050_781_2,
                    0.423_828_12,
                    0.210_937_5,
                    -0.234_375,
                    -0.406_25,
                    0.0,
                    1.031_25,
                    0.0,
                    0.0,
                    0.125,
                    0.031_25,
                    0.0,
                    0.0,
                ],
            ))
            .output(filled(
                &[2, 2, 2],
                &[
                    0.0_f32,
                    1.031_25,
                    0.468_75,
                    1.050_781_2,
                    -0.149_169_92,
                    -0.290_527_34,
                    0.253_906_25,
                    0.136_718_75,
                ],
            )),
        case("RNN", "elu softplus", constant)
            .attr("direction", "bidirectional")
            .attr("activations", names(&["Elu", "Softplus"]))
            .attr("activation_alpha", vec![0.5_f32])
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[2, 2, 2], 5, 1, 8.0))
            .weights(constant, wave(&[2, 2, 2], 3, 2, 8.0))
            .output(filled(
                &[3, 2, 2, 2],
                &[
                    0.406_25_f32,
                    0.312_5,
                    -0.098_238_71,
                    -0.072_327_346,
                    0.436_693_04,
                    0.462_313_83,
                    0.803_937_85,
                    0.848_404_77,
                    -0.239_588_17,
                    -0.243_625_49,
                    0.630_589_5,
                    0.633_365_1,
                    1.005_888_1,
                    0.943_817_44,
                    0.361_587_55,
                    0.407_351_05,
                    0.058_595_568,
                    0.218_670_37,
                    -0.211_228_13,
                    -0.188_086_48,
                    0.693_147_2,
                    0.791_285_3,
                    0.898_123_2,
                    0.898_123_2,
                ],
            ))
            .output(filled(
                &[2, 2, 2],
                &[
                    0.058_595_568_f32,
                    0.218_670_37,
                    -0.211_228_13,
                    -0.188_086_48,
                    0.436_693_04,
                    0.462_313_83,
                    0.803_937_85,
                    0.848_404_77,
                ],
            )),
        case("RNN", "st th", constant)
            .attr("direction", "bidirectional")
            .attr("activations", names(&["ScaledTanh", "ThresholdedRelu"]))
            .attr("activation_alpha", vec![0.5_f32, 0.2_f32])
            .attr("activation_beta", vec![2.0_f32])
            .input(wave(&[3, 2, 2], 7, 3, 4.0))
            .weights(constant, wave(&[2, 2, 2], 5, 1, 8.0))
            .weights(constant, wave(&[2, 2, 2], 3, 2, 8.0))
            .output(filled(
                &[3, 2, 2, 2],
                &[
                    0.335_483_55_f32,
                    0.277_299_88,
                    -0.205_785_04,
                    -0.151_354_85,
                    0.0,
                    0.0,
                    0.25,
                    0.312_5,
                    -0.424_367_6,
                    -0.436_435_43,
                    0.436_056_6,
                    0.428_886_53,
                    0.625,
                    0.5,
                    0.0,
                    0.0,
                    0.125_170_05,
                    0.246_406_44,
                    -0.370_353_16,
                    -0.341_326_5,
                    0.0,
                    0.0,
                    0.375,
                    0.375,
                ],
            ))
            .output(filled(
                &[2, 2, 2],
                &[
                    0.125_170_05_f32,
                    0.246_406_44,
                    -0.370_353_16,
                    -0.341_326_5,
                    0.0,
                    0.0,
                    0.25,
                    0.312_5,
                ],
            )),
    ]
}

/// The other dtypes, with zero weights: the gates are at a half, the state is halved each step.
fn others() -> Vec<Case> {
    [DType::F64, DType::F16, DType::BF16]
        .into_iter()
        .map(|dtype| {
            let to = |t: Tensor| as_dtype(&t, dtype);
            let zeros = |shape: &[usize]| to(filled(shape, &vec![0.0_f32; shape.iter().product()]));
            // tanh(0.5) / 2, tanh(0.25) / 2
            let y = [0.231_058_58_f32, 0.122_459_33];
            Case::new("LSTM", 14, format!("{dtype}"))
                .input(zeros(&[2, 1, 3]))
                .constant(zeros(&[1, 4, 3]))
                .constant(zeros(&[1, 4, 1]))
                .absent()
                .absent()
                .absent()
                .input(to(filled(&[1, 1, 1], &[1.0_f32])))
                .output(to(filled(&[2, 1, 1, 1], &y)))
                .output(to(filled(&[1, 1, 1], &y[1..])))
                .output(to(filled(&[1, 1, 1], &[0.25_f32])))
                .close(1e-6, if dtype.size() == 2 { 4e-3 } else { 1e-6 })
        })
        .collect()
}
