//! Coefficients shared by the scalar and the vector functions: near-minimax polynomials, highest
//! power first, in single precision.

/// `(e^r - 1 - r) / r²` for |r| ≤ ln 2 / 2; error 6.9e-8.
pub(super) const EXP: [f32; 5] = [1.392_692_7e-3, 8.363_774e-3, 4.166_655e-2, 1.666_657_3e-1, 0.5];

/// `(tanh x / x - 1) / x²` in x², for |x| ≤ 0.625; error 1.6e-9.
pub(super) const TANH: [f32; 6] =
    [2.291_770_4e-3, -8.343_086e-3, 2.176_865_6e-2, -5.395_923e-2, 1.333_330_3e-1, -3.333_333_4e-1];

/// `erf x / x - 1` in x², for |x| ≤ 1; error 1.2e-9.
pub(super) const ERF: [f32; 7] = [
    7.875_875e-5,
    -8.016_864e-4,
    5.189_087e-3,
    -2.685_421_1e-2,
    1.128_359_4e-1,
    -3.761_262_6e-1,
    1.283_791e-1,
];

/// `ln erfc x` for 0.98 ≤ x ≤ 4.1; error 2.4e-8.
pub(super) const LOG_ERFC: [f32; 9] = [
    1.596_136_4e-6,
    -4.527_210_3e-5,
    5.903_968e-4,
    -4.730_605_5e-3,
    2.634_170_5e-2,
    -1.099_453_2e-1,
    -6.319_641_5e-1,
    -1.130_155_3,
    3.014_598_3e-4,
];

/// `(ln(1 + f) - 2s) / s` in s², where s = f / (2 + f): 2/9, 2/7, 2/5, 2/3.
pub(super) const LOG: [f32; 4] = [2.222_222_2e-1, 2.857_143e-1, 0.4, 6.666_667e-1];

/// ln 2 in two pieces; multiples of the first by up to 2^8 are exact.
pub(super) const LN2_HI: f32 = 0.693_359_4;
pub(super) const LN2_LO: f32 = -2.121_944_4e-4;
