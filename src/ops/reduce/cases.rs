//! Cases of the reductions; the expected values were computed by numpy in double precision.

use crate::ops::case::{Case, as_dtype, filled};
use crate::tensor::{DType, Tensor};

/// A matrix over both axes, over each one, and a cube over its outer axes, as an attribute and as
/// an input.
fn ways(
    op: &'static str,
    input_since: i64,
    all: f32,
    columns: [f32; 3],
    rows: [f32; 2],
    outer: [f32; 2],
) -> Vec<Case> {
    let x = filled(&[2, 3], &[1f32, -2., 3., 4., 5., 0.5]);
    let positive = op == "ReduceLogSum";
    let x = if positive { filled(&[2, 3], &[1f32, 2., 3., 4., 5., 0.5]) } else { x };
    let cube = filled(&[2, 2, 2], &[1f32, 2., 3., 0.5, 5., 6., 0.25, 8.]);
    let near = |c: Case| c.close(1e-6, 5e-7);
    let old = |name: &str| Case::new(op, input_since - 1, name);
    let new = |name: &str| Case::new(op, input_since, name);
    let axes = |a: &[i64]| Tensor::of_i64(a);
    vec![
        near(new("all axes, not kept").attr("keepdims", 0i64).input(x.clone()))
            .output(Tensor::scalar(all)),
        near(old("all axes, kept").input(x.clone())).output(filled(&[1, 1], &[all])),
        near(old("axis 0 as attribute").attr("axes", vec![0i64]).input(x.clone()))
            .output(filled(&[1, 3], &columns)),
        near(
            new("last axis as input").attr("keepdims", 0i64).input(x.clone()).constant(axes(&[-1])),
        )
        .output(filled(&[2], &rows)),
        near(new("axes fed at run time").input(x.clone()).input(axes(&[1])))
            .output(filled(&[2, 1], &rows)),
        near(
            new("two axes apart")
                .attr("keepdims", 0i64)
                .input(cube.clone())
                .constant(axes(&[0, -1])),
        )
        .output(filled(&[2], &outer)),
        near(
            old("two axes apart, f64")
                .attr("keepdims", 0i64)
                .attr("axes", vec![2i64, 0])
                .input(as_dtype(&cube, DType::F64)),
        )
        .output(as_dtype(&filled(&[2], &outer), DType::F64)),
        new("no axes is the identity")
            .attr("noop_with_empty_axes", 1i64)
            .input(x.clone())
            .constant(axes(&[]))
            .output(x),
    ]
}

fn of_nothing(op: &'static str, version: i64, value: f32) -> Case {
    Case::new(op, version, "of nothing")
        .attr("keepdims", 0i64)
        .input(filled::<f32>(&[2, 0], &[]))
        .constant(Tensor::of_i64(&[1]))
        .output(filled(&[2], &[value, value]))
}

/// 2 by 70 by 130, more than one block and tile, over the middle axis.
fn tall(op: &'static str, f: impl Fn(&mut dyn Iterator<Item = f64>) -> f64) -> Case {
    let (a, n, b) = (2, 70, 130);
    let at = |i: usize| ((i * 37) % 101) as f32 * 0.25 - 12.0;
    let x: Vec<f32> = (0..a * n * b).map(at).collect();
    let y: Vec<f64> = (0..a * b)
        .map(|o| f(&mut (0..n).map(|r| f64::from(x[(o / b * n + r) * b + o % b]))))
        .collect();
    Case::new(op, 18, "over the middle of a large tensor")
        .attr("keepdims", 0i64)
        .input(filled(&[a, n, b], &x))
        .constant(Tensor::of_i64(&[1]))
        .output(as_dtype(&filled(&[a, b], &y), DType::F32))
        .close(1e-5, 1e-6)
}

pub(super) fn sum() -> Vec<Case> {
    let mut cases = ways("ReduceSum", 13, 11.5, [5., 3., 3.5], [2., 9.5], [14., 11.75]);
    cases.push(of_nothing("ReduceSum", 13, 0.0));
    cases.push(tall("ReduceSum", |x| x.sum()));
    cases.push(
        Case::new("ReduceSum", 13, "i64 is exact")
            .attr("keepdims", 0i64)
            .input(filled(&[2], &[9_007_199_254_740_992i64, 1]))
            .output(Tensor::scalar(9_007_199_254_740_993i64)),
    );
    cases.push(
        Case::new("ReduceSum", 13, "f16 adds in f32")
            .input(as_dtype(&filled(&[3], &[2048f32, 1., 1.]), DType::F16))
            .output(as_dtype(&filled(&[1], &[2050f32]), DType::F16)),
    );
    cases.push(
        Case::new("ReduceSum", 13, "scalar")
            .input(Tensor::scalar(3f32))
            .output(Tensor::scalar(3f32)),
    );
    cases
}

pub(super) fn mean() -> Vec<Case> {
    let rows = [0.666_666_7, 3.166_666_7];
    let mut cases = ways("ReduceMean", 18, 1.916_666_7, [2.5, 1.5, 1.75], rows, [3.5, 2.9375]);
    cases.push(of_nothing("ReduceMean", 18, f32::NAN));
    cases.push(tall("ReduceMean", |x| x.sum::<f64>() / 70.0));
    cases.push(
        Case::new("ReduceMean", 18, "whole numbers are cut off")
            .attr("keepdims", 0i64)
            .input(filled(&[2, 2], &[i32::MAX, i32::MAX, -1, -2]))
            .constant(Tensor::of_i64(&[1]))
            .output(filled(&[2], &[i32::MAX, -1])),
    );
    cases
}

pub(super) fn max() -> Vec<Case> {
    let mut cases = ways("ReduceMax", 18, 5.0, [4., 5., 3.], [3., 5.], [6., 8.]);
    cases.push(of_nothing("ReduceMax", 18, f32::NEG_INFINITY));
    cases.push(tall("ReduceMax", |x| x.fold(f64::MIN, f64::max)));
    cases.push(
        Case::new("ReduceMax", 18, "NaN wins")
            .input(filled(&[4], &[1f32, f32::NAN, 3., 2.]))
            .output(filled(&[1], &[f32::NAN])),
    );
    cases.push(
        Case::new("ReduceMax", 20, "bools")
            .input(filled(&[2, 2], &[false, true, false, false]))
            .constant(Tensor::of_i64(&[1]))
            .output(filled(&[2, 1], &[true, false])),
    );
    cases.push(
        Case::new("ReduceMax", 18, "i64 is exact")
            .input(filled(&[2], &[9_007_199_254_740_992i64, 9_007_199_254_740_993]))
            .output(filled(&[1], &[9_007_199_254_740_993i64])),
    );
    cases
}

pub(super) fn min() -> Vec<Case> {
    let mut cases = ways("ReduceMin", 18, -2.0, [1., -2., 0.5], [-2., 0.5], [1., 0.25]);
    cases.push(of_nothing("ReduceMin", 18, f32::INFINITY));
    cases.push(
        Case::new("ReduceMin", 18, "u8")
            .input(filled(&[3], &[200u8, 3, 255]))
            .output(filled(&[1], &[3u8])),
    );
    cases
}

pub(super) fn prod() -> Vec<Case> {
    let mut cases = ways("ReduceProd", 18, -60.0, [4., -10., 1.5], [-6., 10.], [60., 3.]);
    cases.push(of_nothing("ReduceProd", 18, 1.0));
    cases.push(
        Case::new("ReduceProd", 18, "of a shape")
            .attr("keepdims", 0i64)
            .input(filled(&[3], &[3_000_001i64, 3_000_017, 7]))
            .output(Tensor::scalar(63_000_378_000_119i64)),
    );
    cases
}

pub(super) fn l1() -> Vec<Case> {
    let mut cases = ways("ReduceL1", 18, 15.5, [5., 7., 3.5], [6., 9.5], [14., 11.75]);
    cases.push(of_nothing("ReduceL1", 18, 0.0));
    cases
}

pub(super) fn l2() -> Vec<Case> {
    let mut cases = ways(
        "ReduceL2",
        18,
        7.433_034_4,
        [4.123_105_5, 5.385_164_7, 3.041_381_3],
        [3.741_657_4, 6.422_616_5],
        [8.124_038, 8.562_272],
    );
    cases.push(of_nothing("ReduceL2", 18, 0.0));
    cases
}

pub(super) fn sum_square() -> Vec<Case> {
    let rows = [14., 41.25];
    let mut cases = ways("ReduceSumSquare", 18, 55.25, [17., 29., 9.25], rows, [66., 73.3125]);
    cases.push(of_nothing("ReduceSumSquare", 18, 0.0));
    cases
}

pub(super) fn log_sum() -> Vec<Case> {
    let mut cases = ways(
        "ReduceLogSum",
        18,
        2.740_84,
        [1.609_438, 1.945_910_1, 1.252_763],
        [1.791_759_5, 2.251_291_8],
        [2.639_057_3, 2.463_853_2],
    );
    cases.push(of_nothing("ReduceLogSum", 18, f32::NEG_INFINITY));
    cases
}

pub(super) fn log_sum_exp() -> Vec<Case> {
    let mut cases = ways(
        "ReduceLogSumExp",
        18,
        5.427_586,
        [4.048_587_3, 5.000_911_5, 3.078_889_7],
        [3.132_845_2, 5.321_35],
        [6.331_411_6, 8.007_692],
    );
    cases.push(
        Case::new("ReduceLogSumExp", 18, "large numbers do not overflow")
            .attr("keepdims", 0i64)
            .input(filled(&[3, 2], &[1000f32, 1000., f32::INFINITY, 0., -1e30, -1e30]))
            .constant(Tensor::of_i64(&[1]))
            .output(filled(&[3], &[1_000.693_1_f32, f32::INFINITY, -1e30]))
            .close(0.0, 1e-6),
    );
    cases.push(of_nothing("ReduceLogSumExp", 18, f32::NEG_INFINITY));
    cases.push(tall("ReduceLogSumExp", |x| x.map(f64::exp).sum::<f64>().ln()));
    cases
}
