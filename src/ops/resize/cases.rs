//! The test cases; what must come out was computed by ONNX's own implementations.

use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::tensor::{DType, Tensor};

const TWICE: [f32; 24] = [
    0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 3.0,
    3.0, 4.0, 4.0, 5.0, 5.0,
];

fn scales(values: &[f32]) -> Tensor {
    filled(&[values.len()], values)
}

/// A case by scales.
fn by_scales(name: &str, mode: &str, x: &[usize], factors: &[f32]) -> Case {
    Case::new("Resize", 19, name)
        .attr("mode", mode)
        .input(counted(x))
        .absent()
        .constant(scales(factors))
        .close(1e-6, 1e-6)
}

/// A case by sizes.
fn by_sizes(name: &str, mode: &str, x: &[usize], sizes: &[i64]) -> Case {
    Case::new("Resize", 19, name)
        .attr("mode", mode)
        .input(counted(x))
        .absent()
        .absent()
        .constant(Tensor::of_i64(sizes))
        .close(1e-6, 1e-6)
}

pub(super) fn resize() -> Vec<Case> {
    let mut v = nearest();
    v.extend(filtered());
    v.extend(special());
    v
}

fn nearest() -> Vec<Case> {
    let mut v = Vec::new();
    for dtype in DType::WORKING {
        // 0 and 1 are all that a bool holds.
        let (x, want): (&[f32], &[f32]) = if *dtype == DType::Bool {
            (&[0.0, 1.0], &[0.0, 0.0, 1.0, 1.0])
        } else {
            (&[3.0, 7.0], &[3.0, 3.0, 7.0, 7.0])
        };
        v.push(
            Case::new("Resize", 13, format!("nearest, {dtype}"))
                .input(as_dtype(&filled(&[1, 1, 2], x), *dtype))
                .absent()
                .constant(scales(&[1.0, 1.0, 2.0]))
                .output(as_dtype(&filled(&[1, 1, 4], want), *dtype)),
        );
    }
    let (small, square) = ([1, 1, 2, 3], [1, 1, 4, 4]);
    v.push(
        by_scales("twice as large", "nearest", &small, &[1.0, 1.0, 2.0, 2.0])
            .output(filled(&[1, 1, 4, 6], &TWICE)),
    );
    v.push(by_scales("a middle axis alone", "nearest", &[1, 2, 3], &[1.0, 2.0, 1.0]).output(
        filled(&[1, 4, 3], &[0.0_f32, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 3.0, 4.0, 5.0]),
    ));
    v.push(by_scales("nothing changes", "nearest", &small, &[1.0; 4]).output(counted(&small)));
    let half: [(&str, [f32; 18]); 4] = [
        (
            "round_prefer_floor",
            [
                0.0, 0.0, 1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0, 6.0, 6.0, 7.0, 12.0, 12.0, 13.0, 14.0,
                14.0, 15.0,
            ],
        ),
        (
            "round_prefer_ceil",
            [
                0.0, 1.0, 1.0, 2.0, 3.0, 3.0, 8.0, 9.0, 9.0, 10.0, 11.0, 11.0, 12.0, 13.0, 13.0,
                14.0, 15.0, 15.0,
            ],
        ),
        (
            "floor",
            [
                0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 4.0, 4.0, 5.0, 5.0, 6.0, 7.0, 8.0, 8.0, 9.0, 9.0,
                10.0, 11.0,
            ],
        ),
        (
            "ceil",
            [
                4.0, 5.0, 6.0, 6.0, 7.0, 7.0, 8.0, 9.0, 10.0, 10.0, 11.0, 11.0, 12.0, 13.0, 14.0,
                14.0, 15.0, 15.0,
            ],
        ),
    ];
    for (rule, want) in half {
        v.push(
            by_sizes(rule, "nearest", &square, &[1, 1, 3, 6])
                .attr("nearest_mode", rule)
                .output(filled(&[1, 1, 3, 6], &want)),
        );
    }
    v.push(
        by_sizes("asymmetric, ceil", "nearest", &square, &[1, 1, 3, 6])
            .attr("nearest_mode", "ceil")
            .attr("coordinate_transformation_mode", "asymmetric")
            .output(filled(
                &[1, 1, 3, 6],
                &[
                    0.0_f32, 1.0, 2.0, 2.0, 3.0, 3.0, 8.0, 9.0, 10.0, 10.0, 11.0, 11.0, 12.0, 13.0,
                    14.0, 14.0, 15.0, 15.0,
                ],
            )),
    );
    v
}

fn filtered() -> Vec<Case> {
    let (small, square) = ([1, 1, 2, 3], [1, 1, 4, 4]);
    let mut v = Vec::new();
    let modes: [(&str, [f32; 12], [f32; 5]); 4] = [
        (
            "half_pixel",
            [
                1.333_333_3,
                1.833_333_3,
                2.5,
                3.166_666_5,
                3.833_333_5,
                4.333_333,
                8.0,
                8.5,
                9.166_667,
                9.833_333,
                10.5,
                11.0,
            ],
            [1.5, 1.9, 2.5, 3.1, 3.5],
        ),
        (
            "half_pixel_symmetric",
            [
                2.666_666_7,
                3.166_666_7,
                3.833_333_3,
                4.5,
                5.166_667,
                5.666_667,
                9.333_333,
                9.833_333,
                10.5,
                11.166_666,
                11.833_334,
                12.333_334,
            ],
            [1.5, 1.9, 2.5, 3.1, 3.5],
        ),
        (
            "pytorch_half_pixel",
            [
                1.333_333_3,
                1.833_333_3,
                2.5,
                3.166_666_5,
                3.833_333_5,
                4.333_333,
                8.0,
                8.5,
                9.166_667,
                9.833_333,
                10.5,
                11.0,
            ],
            [0.0, 0.4, 1.0, 1.6, 2.0],
        ),
        (
            "asymmetric",
            [
                0.0,
                0.666_666_7,
                1.333_333_4,
                2.0,
                2.666_666_7,
                3.0,
                6.666_666_5,
                7.333_333,
                8.0,
                8.666_666,
                9.333_333,
                9.666_666,
            ],
            [0.0, 0.6, 1.2, 1.8, 2.0],
        ),
    ];
    for (mode, by_factor, by_size) in modes {
        v.push(
            by_scales(&format!("linear, {mode}"), "linear", &square, &[1.0, 1.0, 0.6, 1.5])
                .attr("coordinate_transformation_mode", mode)
                .output(filled(&[1, 1, 2, 6], &by_factor)),
        );
        v.push(
            by_sizes(&format!("linear to sizes, {mode}"), "linear", &small, &[1, 1, 1, 5])
                .attr("coordinate_transformation_mode", mode)
                .output(filled(&[1, 1, 1, 5], &by_size)),
        );
    }
    v.push(
        by_sizes("linear to sizes, align_corners", "linear", &small, &[1, 1, 1, 5])
            .attr("coordinate_transformation_mode", "align_corners")
            .output(filled(&[1, 1, 1, 5], &[0.0_f32, 0.5, 1.0, 1.5, 2.0])),
    );
    v.push(
        by_scales("linear over three axes", "linear", &[1, 1, 2, 2, 2], &[1.0, 1.0, 2.0, 1.0, 2.0])
            .output(filled(
                &[1, 1, 4, 2, 4],
                &[
                    0.0_f32, 0.25, 0.75, 1.0, 2.0, 2.25, 2.75, 3.0, 1.0, 1.25, 1.75, 2.0, 3.0,
                    3.25, 3.75, 4.0, 3.0, 3.25, 3.75, 4.0, 5.0, 5.25, 5.75, 6.0, 4.0, 4.25, 4.75,
                    5.0, 6.0, 6.25, 6.75, 7.0,
                ],
            )),
    );
    for dtype in [DType::F32, DType::F64, DType::F16] {
        let want = [
            -0.105_468_75_f32,
            0.191_406_25,
            0.667_968_75,
            1.332_031_2,
            1.808_593_8,
            2.105_468_8,
            2.894_531_2,
            3.191_406_2,
            3.667_968_8,
            4.332_031_2,
            4.808_593_8,
            5.105_468_8,
        ];
        let close = if dtype == DType::F16 { 1e-3 } else { 1e-6 };
        v.push(
            Case::new("Resize", 13, format!("cubic, {dtype}"))
                .attr("mode", "cubic")
                .input(as_dtype(&counted(&small), dtype))
                .absent()
                .input(scales(&[1.0, 1.0, 1.0, 2.0]))
                .output(as_dtype(&filled(&[1, 1, 2, 6], &want), dtype))
                .close(close, close),
        );
    }
    v.push(
        by_scales("cubic, exclude_outside", "cubic", &square, &[1.0, 1.0, 1.0, 0.6])
            .attr("exclude_outside", 1)
            .attr("cubic_coeff_a", -0.5_f32)
            .output(filled(
                &[1, 1, 4, 2],
                &[0.241_379_51_f32, 2.0, 4.241_379, 6.0, 8.241_379, 10.0, 12.241_379, 14.0],
            )),
    );
    v.push(
        by_scales("linear, antialias", "linear", &square, &[1.0, 1.0, 0.6, 0.5])
            .attr("antialias", 1)
            .output(filled(&[1, 1, 2, 2], &[2.125_f32, 3.875, 8.625, 10.375])),
    );
    v.push(
        by_scales("cubic, antialias", "cubic", &square, &[1.0, 1.0, 1.0, 0.6])
            .attr("antialias", 1)
            .output(filled(
                &[1, 1, 4, 2],
                &[
                    0.303_613_9_f32,
                    2.071_430_4,
                    4.303_613_7,
                    6.071_430_7,
                    8.303_614,
                    10.071_43,
                    12.303_614,
                    14.071_43,
                ],
            )),
    );
    v.push(
        Case::new("Resize", 19, "linear, u8 is rounded")
            .attr("mode", "linear")
            .input(filled(&[1, 1, 1, 4], &[0_u8, 255, 7, 9]))
            .absent()
            .constant(scales(&[1.0, 1.0, 1.0, 2.0]))
            .output(filled(&[1, 1, 1, 8], &[0_u8, 64, 191, 193, 69, 8, 8, 9])),
    );
    v
}

fn special() -> Vec<Case> {
    let (small, square) = ([1, 1, 2, 3], [1, 1, 4, 4]);
    let crop = |name: &str, mode: &str, roi: &[f32], sizes: &[i64]| {
        Case::new("Resize", 13, name)
            .attr("mode", mode)
            .attr("coordinate_transformation_mode", "tf_crop_and_resize")
            .input(counted(&square))
            .constant(scales(roi))
            .absent()
            .constant(Tensor::of_i64(sizes))
            .close(1e-5, 1e-6)
    };
    vec![
        crop(
            "a crop beyond the end",
            "linear",
            &[0.0, 0.0, 0.4, 0.6, 1.0, 1.0, 1.2, 1.7],
            &[1, 1, 3, 3],
        )
        .attr("extrapolation_value", 10.0_f32)
        .output(filled(&[1, 1, 3, 3], &[6.6_f32, 10.0, 10.0, 11.4, 10.0, 10.0, 10.0, 10.0, 10.0])),
        crop(
            "a crop before the start",
            "nearest",
            &[0.0, 0.0, 0.2, -0.2, 1.0, 1.0, 0.9, 1.0],
            &[1, 1, 2, 3],
        )
        .attr("extrapolation_value", -1.0_f32)
        .output(filled(&[1, 1, 2, 3], &[-1.0_f32, 5.0, 7.0, -1.0, 13.0, 15.0])),
        by_scales("axes", "nearest", &small, &[2.0, 3.0]).attr("axes", vec![3_i64, -2]).output(
            filled(
                &[1, 1, 6, 6],
                &[
                    &TWICE[..6],
                    &TWICE[..6],
                    &TWICE[..6],
                    &TWICE[12..18],
                    &TWICE[12..18],
                    &TWICE[12..18],
                ]
                .concat(),
            ),
        ),
        by_sizes("not_larger", "nearest", &square, &[3, 7])
            .attr("axes", vec![2_i64, 3])
            .attr("keep_aspect_ratio_policy", "not_larger")
            .output(filled(&[1, 1, 3, 3], &[0.0_f32, 1.0, 3.0, 4.0, 5.0, 7.0, 12.0, 13.0, 15.0])),
        by_sizes("not_smaller", "linear", &[1, 1, 2, 1], &[3, 2])
            .attr("axes", vec![2_i64, 3])
            .attr("keep_aspect_ratio_policy", "not_smaller")
            .output(filled(&[1, 1, 4, 2], &[0.0_f32, 0.0, 0.25, 0.25, 0.75, 0.75, 1.0, 1.0])),
        by_sizes("no items", "linear", &[0, 1, 2], &[0, 1, 4]).output(counted(&[0, 1, 4])),
        Case::new("Resize", 10, "version 10, larger")
            .input(counted(&small))
            .constant(scales(&[1.0, 1.0, 2.0, 2.0]))
            .output(filled(&[1, 1, 4, 6], &TWICE)),
        Case::new("Resize", 10, "version 10, smaller")
            .input(counted(&[1, 1, 2, 4]))
            .constant(scales(&[1.0, 1.0, 0.6, 0.6]))
            .output(filled(&[1, 1, 1, 2], &[0.0_f32, 2.0])),
        Case::new("Resize", 10, "version 10, linear")
            .attr("mode", "linear")
            .input(counted(&small))
            .input(scales(&[1.0, 1.0, 1.0, 2.0]))
            .output(filled(
                &[1, 1, 2, 6],
                &[0.0_f32, 0.5, 1.0, 1.5, 2.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 5.0],
            )),
    ]
}

pub(super) fn upsample() -> Vec<Case> {
    vec![
        Case::new("Upsample", 9, "nearest")
            .input(counted(&[1, 1, 2, 3]))
            .constant(scales(&[1.0, 1.0, 2.0, 2.0]))
            .output(filled(&[1, 1, 4, 6], &TWICE)),
        Case::new("Upsample", 1, "nearest, height and width")
            .attr("height_scale", 2.0_f32)
            .attr("width_scale", 2.0_f32)
            .input(counted(&[1, 1, 2, 3]))
            .output(filled(&[1, 1, 4, 6], &TWICE)),
        Case::new("Upsample", 7, "linear, scales as an attribute")
            .attr("mode", "linear")
            .attr("scales", vec![1.0_f32, 1.0, 1.0, 2.0])
            .input(counted(&[1, 1, 2, 3]))
            .output(filled(
                &[1, 1, 2, 6],
                &[0.0_f32, 0.5, 1.0, 1.5, 2.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 5.0],
            )),
    ]
}
