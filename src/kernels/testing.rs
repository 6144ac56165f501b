//! Numbers for the tests of this module.

/// xorshift64*: the same numbers in every run.
pub(in crate::kernels) struct Rng(u64);

impl Rng {
    pub(in crate::kernels) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(in crate::kernels) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform in `lo..=hi`.
    pub(in crate::kernels) fn int(&mut self, lo: usize, hi: usize) -> usize {
        lo + (self.next() >> 33) as usize % (hi - lo + 1)
    }

    /// Uniform in -1..1.
    pub(in crate::kernels) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(in crate::kernels) fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }
}

/// Asserts that two slices agree within an absolute and a relative tolerance.
#[track_caller]
pub(in crate::kernels) fn assert_close(have: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(have.len(), want.len(), "{what}: lengths");
    for (i, (&h, &w)) in have.iter().zip(want).enumerate() {
        let diff = (f64::from(h) - w).abs();
        assert!(diff <= tolerance * (1.0 + w.abs()), "{what}: [{i}] is {h}, wanted {w}");
    }
}

/// Asserts that two slices hold the same bits.
#[track_caller]
pub(in crate::kernels) fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: lengths");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert_eq!(x.to_bits(), y.to_bits(), "{what}: [{i}] {x} against {y}");
    }
}
