//! Buffers of floats that start on a cache line.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A 64-byte aligned buffer; its length is rounded up to whole cache lines, filled with zeros.
#[derive(Clone, Default)]
pub(in crate::kernels) struct AlignedF32(Vec<Line>);

impl AlignedF32 {
    pub(in crate::kernels) fn zeroed(len: usize) -> Self {
        Self(vec![Line::zeroed(); len.div_ceil(16)])
    }

    /// Grows to at least `len` floats; what is in there afterwards is unspecified.
    pub(in crate::kernels) fn reserve(&mut self, len: usize) {
        if self.0.len() * 16 < len {
            *self = Self::zeroed(len);
        }
    }
}

impl std::ops::Deref for AlignedF32 {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }
}

impl std::ops::DerefMut for AlignedF32 {
    fn deref_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

impl std::fmt::Debug for AlignedF32 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlignedF32").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_cache_line_and_keeps_its_size() {
        let mut b = AlignedF32::zeroed(17);
        assert_eq!(b.len(), 32);
        assert_eq!(b.as_ptr() as usize % 64, 0);
        b[3] = 2.0;
        b.reserve(20);
        assert_eq!(b[3], 2.0);
        b.reserve(33);
        assert_eq!(b.len(), 48);
    }
}
