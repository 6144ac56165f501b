//! A seeded mutator of bytes, so that ordinary tests try damaged files.

/// A source of damaged copies; the same seed gives the same ones.
pub(crate) struct Mutator(u64);

impl Mutator {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    fn next(&mut self) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A copy of `bytes` with one to four changes: bytes set, bits flipped, ranges removed,
    /// repeated or inserted, the end cut off.
    pub(crate) fn mutate(&mut self, bytes: &[u8]) -> Vec<u8> {
        const EDGES: [u8; 6] = [0, 1, 0x7F, 0x80, 0xFE, 0xFF];
        let mut out = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(out.len());
            let length = self.below(9).min(out.len() - at);
            match self.below(7) {
                0 if !out.is_empty() => out[at] = self.next() as u8,
                1 if !out.is_empty() => out[at] ^= 1 << self.below(8),
                2 if !out.is_empty() => out[at] = EDGES[self.below(EDGES.len())],
                3 => out.truncate(at),
                4 => drop(out.drain(at..at + length)),
                5 => {
                    let again = out[at..at + length].to_vec();
                    out.splice(at..at, again);
                }
                _ => {
                    let new: Vec<u8> = (0..=self.below(8)).map(|_| self.next() as u8).collect();
                    out.splice(at..at, new);
                }
            }
        }
        out
    }
}

#[test]
fn mutated_arrays_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let array = crate::Tensor::new([2, 3], vec![1.5_f32; 6]).unwrap();
    super::write_npy(&path, &array).unwrap();
    let npy = std::fs::read(&path).unwrap();
    let fortran = String::from_utf8_lossy(&npy[10..]).replace("False", "True ");
    assert_ne!(fortran.as_bytes(), &npy[10..]);
    super::write_npz(&path, &[("a".to_owned(), array.clone()), ("b".to_owned(), array)]).unwrap();
    let npz = std::fs::read(&path).unwrap();
    let mut random = Mutator::new(7);
    for seed in [&npy, &npz] {
        for _ in 0..3000 {
            super::fuzz_arrays(&random.mutate(seed));
        }
    }
}
