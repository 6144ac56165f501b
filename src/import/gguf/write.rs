//! GGUF files for tests.

/// Puts a file together, well formed or not.
pub(crate) struct Writer {
    pub(crate) version: u32,
    pub(crate) big_endian: bool,
    pub(crate) metadata: Vec<(String, u32, Vec<u8>)>,
    /// Name, extents (the innermost first), type, offset.
    pub(crate) tensors: Vec<(String, Vec<u64>, u32, u64)>,
    pub(crate) data: Vec<u8>,
    pub(crate) alignment: usize,
}

impl Writer {
    pub(crate) fn new(version: u32, big_endian: bool) -> Self {
        let (metadata, tensors, data) = (Vec::new(), Vec::new(), Vec::new());
        Self { version, big_endian, metadata, tensors, data, alignment: 32 }
    }

    pub(crate) fn u32(&self, v: u32) -> Vec<u8> {
        if self.big_endian { v.to_be_bytes().to_vec() } else { v.to_le_bytes().to_vec() }
    }

    pub(crate) fn u64(&self, v: u64) -> Vec<u8> {
        if self.big_endian { v.to_be_bytes().to_vec() } else { v.to_le_bytes().to_vec() }
    }

    pub(crate) fn count(&self, v: u64) -> Vec<u8> {
        if self.version == 1 { self.u32(v as u32) } else { self.u64(v) }
    }

    pub(crate) fn text(&self, s: &str) -> Vec<u8> {
        let mut out = self.count(s.len() as u64);
        out.extend(s.as_bytes());
        out
    }

    pub(crate) fn value(&mut self, key: &str, kind: u32, bytes: Vec<u8>) {
        self.metadata.push((key.to_owned(), kind, bytes));
    }

    /// Appends a tensor whose bytes follow those before, aligned.
    pub(crate) fn tensor(&mut self, name: &str, extents: &[u64], kind: u32, bytes: &[u8]) {
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        self.tensors.push((name.to_owned(), extents.to_vec(), kind, self.data.len() as u64));
        self.data.extend(bytes);
    }

    pub(crate) fn finish(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.u32(self.version));
        out.extend(self.count(self.tensors.len() as u64));
        out.extend(self.count(self.metadata.len() as u64));
        for (key, kind, bytes) in &self.metadata {
            out.extend(self.text(key));
            out.extend(self.u32(*kind));
            out.extend(bytes);
        }
        for (name, extents, kind, offset) in &self.tensors {
            out.extend(self.text(name));
            out.extend(self.u32(extents.len() as u32));
            extents.iter().for_each(|&e| out.extend(self.count(e)));
            out.extend(self.u32(*kind));
            out.extend(self.u64(*offset));
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}
