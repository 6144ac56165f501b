//! Products with packed weights beside those with decoded ones.

use super::*;
use crate::kernels::gemm::gemm_on;
use crate::kernels::testing::{Rng, assert_same_bits};
use crate::kernels::{BITS4, BITS8, BLOCK_FORMATS, Epilogue, Isa, MatMut, MatRef, Serial, gemm};

/// Rows of random blocks whose scales are finite.
fn random(rng: &mut Rng, format: &BlockFormat, rows: usize, blocks: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..rows * blocks * format.bytes).map(|_| (rng.next() >> 56) as u8).collect();
    for block in bytes.chunks_exact_mut(format.bytes) {
        for (at, size) in format.fields {
            // f16 below 1, or f32 alike.
            let top = &mut block[at + size - 1];
            *top = if *size == 2 { (*top & 0x80) | 0x20 | (*top & 0x0F) } else { 0x3C };
        }
        if format.name == "MXFP4" {
            block[0] = 120 + block[0] % 16;
        }
    }
    bytes
}

fn decoded(w: BlockMatrix<'_>) -> Vec<f32> {
    let mut out = vec![0.0; w.rows() * w.cols()];
    for (i, row) in out.chunks_exact_mut(w.cols()).enumerate() {
        w.decode_row(i, row).unwrap();
    }
    out
}

#[test]
fn every_format_multiplies_as_its_decoded_weights_do() {
    let mut rng = Rng::new(7);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for format in BLOCK_FORMATS {
        for (m, n, blocks) in [(1, 1, 1), (1, 77, 3), (3, 130, 2), (64, 9, 1)] {
            let bytes = random(&mut rng, format, n, blocks);
            let w = BlockMatrix::new(format, &bytes, n, blocks * format.bytes).unwrap();
            let (x, k) = (rng.vec(m * w.cols()), w.cols());
            let weights = decoded(w);
            let right = MatRef::row_major(&weights, n, k).unwrap().transposed();
            let mut want = vec![0.0; m * n];
            let to = MatMut::row_major(&mut want, m, n).unwrap();
            let left = MatRef::row_major(&x, m, k).unwrap();
            gemm(left, right, to, &Epilogue::default(), &Serial).unwrap();
            for par in [&Serial as &dyn Parallel, &pool] {
                let mut out = vec![f32::NAN; m * n];
                dequant_matmul(&x, m, w, &mut out, par).unwrap();
                assert_same_bits(&out, &want, &format!("{} {m}x{k}x{n}", format.name));
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let q4 = BlockFormat::named("Q4_0").unwrap();
    let bytes = [0; 36];
    assert!(BlockMatrix::new(q4, &bytes, 2, 17).is_err());
    assert!(BlockMatrix::new(q4, &bytes, 3, 18).is_err());
    assert!(BlockMatrix::new(q4, &bytes, usize::MAX, 18).is_err());
    let w = BlockMatrix::new(q4, &bytes, 2, 18).unwrap();
    let (x, mut out) = ([0.0; 32], [0.0; 2]);
    assert!(dequant_matmul(&x[1..], 1, w, &mut out, &Serial).is_err());
    assert!(dequant_matmul(&x, 1, w, &mut out[1..], &Serial).is_err());
    assert!(dequant_matmul(&x, usize::MAX, w, &mut out, &Serial).is_err());
    assert!(w.decode_row(2, &mut [0.0; 32]).is_err());
}

/// Every format that has a kernel.
fn packable() -> impl Iterator<Item = &'static BlockFormat> {
    let own = [&BITS4, &BITS8];
    BLOCK_FORMATS.iter().filter(|f| PackedBlocks::supports(f)).chain(own)
}

/// Numbers of very different sizes, some blocks of them zero.
fn numbers(rng: &mut Rng, len: usize) -> Vec<f32> {
    let mut x = rng.vec(len);
    for block in x.chunks_mut(32) {
        let scale = [0.0, 1e-3, 1.0, 1.0, 100.0][rng.int(0, 4)];
        block.iter_mut().for_each(|v| *v *= scale);
    }
    x
}

const SIZES: [(usize, usize, usize); 7] =
    [(1, 8, 1), (1, 77, 5), (2, 64, 3), (2, 33, 2), (3, 16, 1), (7, 9, 3), (64, 41, 2)];

#[test]
fn packed_products_are_within_the_rounding_of_the_input() {
    let mut rng = Rng::new(11);
    for format in packable() {
        for (m, n, blocks) in SIZES {
            let bytes = random(&mut rng, format, n, blocks);
            let w = BlockMatrix::new(format, &bytes, n, blocks * format.bytes).unwrap();
            let (packed, weights, k) = (PackedBlocks::new(w).unwrap(), decoded(w), w.cols());
            let x = numbers(&mut rng, m * k);
            let mut out = vec![f32::NAN; m * n];
            packed.multiply(&x, m, &mut out, &Serial).unwrap();
            for (i, x) in x.chunks_exact(k).enumerate() {
                for (j, w) in weights.chunks_exact(k).enumerate() {
                    let (mut want, mut bound) = (0.0, 0.0);
                    let blocks = x.chunks_exact(format.weights).zip(w.chunks_exact(format.weights));
                    for (x, w) in blocks {
                        let most = x.iter().fold(0.0_f64, |a, v| a.max(f64::from(v.abs())));
                        let mut all = 0.0;
                        for (x, w) in x.iter().zip(w) {
                            want += f64::from(*x) * f64::from(*w);
                            all += f64::from(w.abs());
                        }
                        // Half a step of the input, and what floats round.
                        bound += most * all * (1.0 / 254.0 + 1e-5);
                    }
                    let have = f64::from(out[i * n + j]);
                    assert!(
                        (have - want).abs() <= bound,
                        "{} {m}x{k}x{n} [{i},{j}]: {have}, not {want} ± {bound}",
                        format.name
                    );
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_and_any_number_of_threads_give_the_same_bits() {
    let mut rng = Rng::new(13);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for format in packable() {
        for (m, n, blocks) in SIZES {
            let bytes = random(&mut rng, format, n, blocks);
            let w = BlockMatrix::new(format, &bytes, n, blocks * format.bytes).unwrap();
            let x = numbers(&mut rng, m * w.cols());
            let mut want = vec![f32::NAN; m * n];
            let scalar = PackedBlocks::for_isa(Isa::scalar(), w).unwrap();
            scalar.multiply(&x, m, &mut want, &Serial).unwrap();
            for &isa in Isa::available() {
                let packed = PackedBlocks::for_isa(isa, w).unwrap();
                for par in [&Serial as &dyn Parallel, &pool] {
                    let mut out = vec![f32::NAN; m * n];
                    packed.multiply(&x, m, &mut out, par).unwrap();
                    let what = format!("{} {} {m}x{n}", format.name, isa.name());
                    assert_same_bits(&out, &want, &what);
                }
            }
        }
    }
}

#[test]
fn the_largest_weights_and_numbers_do_not_overflow() {
    let mut rng = Rng::new(17);
    for format in packable() {
        let mut bytes = random(&mut rng, format, 8, 1);
        // The largest and the smallest numbers, scales and minima.
        for (row, fill) in bytes.chunks_exact_mut(format.bytes).zip([0xFF, 0x80, 0x7F, 0x00]) {
            let keep: Vec<u8> = row.to_vec();
            row.fill(fill);
            for (at, size) in format.fields {
                row[*at..at + size].copy_from_slice(&keep[*at..at + size]);
            }
            if format.name == "MXFP4" {
                row[0] = 127;
            }
        }
        let w = BlockMatrix::new(format, &bytes, 8, format.bytes).unwrap();
        let weights = decoded(w);
        for sign in [1.0_f32, -1.0] {
            let x = vec![sign * 127.0; w.cols()];
            for &isa in Isa::available() {
                let mut out = [0.0; 8];
                let packed = PackedBlocks::for_isa(isa, w).unwrap();
                packed.multiply(&x, 1, &mut out, &Serial).unwrap();
                for (o, w) in out.iter().zip(weights.chunks_exact(w.cols())) {
                    let want: f64 = w.iter().map(|w| f64::from(*w * sign * 127.0)).sum();
                    let size: f64 = w.iter().map(|w| f64::from(w.abs() * 127.0)).sum();
                    let error = (f64::from(*o) - want).abs();
                    assert!(error <= 1e-5 * size, "{} {}: {o} {want}", format.name, isa.name());
                }
            }
        }
    }
}

#[test]
fn exact_products_and_decoded_rows_have_the_bits_of_decoded_weights() {
    let mut rng = Rng::new(19);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for format in packable() {
        // Blocks of depth that end within 32 weights; more rows than one block of them.
        for (m, n, blocks) in SIZES.into_iter().chain([(3, 40, 33), (200, 24, 1)]) {
            let bytes = random(&mut rng, format, n, blocks);
            let w = BlockMatrix::new(format, &bytes, n, blocks * format.bytes).unwrap();
            let (weights, k) = (decoded(w), w.cols());
            let x = numbers(&mut rng, m * k);
            for &isa in Isa::available() {
                let packed = PackedBlocks::for_isa(isa, w).unwrap();
                let what = format!("{} {} {m}x{k}x{n}", format.name, isa.name());
                for (i, want) in weights.chunks_exact(k).enumerate() {
                    let mut row = vec![f32::NAN; k];
                    packed.decode_row(i, &mut row).unwrap();
                    assert_same_bits(&row, want, &what);
                }
                // The product of one row is summed in another order than that of several.
                let twice = [&x[..], &x[..]].concat();
                let (mut out, mut want) = (vec![f32::NAN; m * n], vec![0.0; 2 * m * n]);
                let left = MatRef::row_major(&twice, 2 * m, k).unwrap();
                let right = MatRef::row_major(&weights, n, k).unwrap().transposed();
                let to = MatMut::row_major(&mut want, 2 * m, n).unwrap();
                gemm_on(isa, left.into(), right.into(), to, &Epilogue::default(), &Serial).unwrap();
                for par in [&Serial as &dyn Parallel, &pool] {
                    packed.multiply_exact(&x, m, &mut out, par).unwrap();
                    assert_same_bits(&out, &want[..m * n], &what);
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_is_not_lost() {
    let mut rng = Rng::new(23);
    for format in packable() {
        let bytes = random(&mut rng, format, 8, 2);
        let w = BlockMatrix::new(format, &bytes, 8, 2 * format.bytes).unwrap();
        for &isa in Isa::available() {
            let packed = PackedBlocks::for_isa(isa, w).unwrap();
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = rng.vec(2 * w.cols());
                x[w.cols() - 1] = odd;
                let mut out = [0.0; 16];
                packed.multiply(&x, 2, &mut out, &Serial).unwrap();
                assert!(out[..8].iter().all(|v| v.is_nan()), "{} {}", format.name, isa.name());
                assert!(out[8..].iter().all(|v| v.is_finite()));
            }
            // Too small for the inverse of a scale.
            let mut out = [1.0; 8];
            packed.multiply(&vec![1e-45; w.cols()], 1, &mut out, &Serial).unwrap();
            assert_eq!(out, [0.0; 8]);
        }
    }
}

#[test]
fn packed_weights_take_the_bytes_of_their_blocks() {
    for format in packable() {
        let bytes = vec![0; 256 * 2 * format.bytes];
        let w = BlockMatrix::new(format, &bytes, 256, 2 * format.bytes).unwrap();
        let packed = PackedBlocks::new(w).unwrap();
        assert!(packed.bytes() * 100 <= bytes.len() * 103, "{}", format.name);
    }
    let names: Vec<_> =
        BLOCK_FORMATS.iter().filter(|f| !PackedBlocks::supports(f)).map(|f| f.name).collect();
    assert_eq!(names, ["Q8_1", "Q2_K", "Q3_K", "Q8_K", "IQ4_XS", "TQ1_0", "TQ2_0"]);
}
