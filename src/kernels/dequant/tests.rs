//! Products with packed weights beside those with decoded ones.

use super::*;
use crate::kernels::testing::{Rng, assert_same_bits};
use crate::kernels::{BLOCK_FORMATS, Epilogue, MatMut, MatRef, Serial, gemm};

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
