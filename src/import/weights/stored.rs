//! A weight as it lies in its file.

use crate::error::{Result, bail, err};
use crate::kernels::BlockFormat;
use crate::tensor::{Buffer, BufferPool, DType, Shape, Tensor, cast};

/// How the numbers of a weight are stored.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum WeightType {
    /// One after the other.
    Plain(DType),
    /// In blocks that share a scale, rows of whole blocks.
    Blocks(&'static BlockFormat),
}

impl WeightType {
    /// The name: a dtype's, or a block format's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain(dtype) => dtype.name(),
            Self::Blocks(format) => format.name,
        }
    }
}

/// A weight as a scheme's resolver gives it: bytes (a mapped range, for files) and what they are.
///
/// ```
/// use brigade::import::{StoredWeight, WeightType};
/// use brigade::{DType, tensor::Buffer};
/// let bytes = Buffer::copy_of(bytemuck::cast_slice(&[1.0_f32, 2.0]));
/// let weight = StoredWeight::new(WeightType::Plain(DType::F32), [2], bytes)?;
/// assert_eq!(weight.f32()?.as_slice::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StoredWeight {
    kind: WeightType,
    shape: Shape,
    bytes: Buffer,
}

impl StoredWeight {
    /// A weight of little-endian bytes.
    ///
    /// # Errors
    /// If there are not as many bytes as type and shape take.
    pub fn new(kind: WeightType, shape: impl Into<Shape>, bytes: Buffer) -> Result<Self> {
        let shape = shape.into();
        let need = match kind {
            WeightType::Plain(dtype) => {
                crate::tensor::element_count(&shape, dtype.size())? * dtype.size()
            }
            WeightType::Blocks(format) => {
                let elements = crate::tensor::element_count(&shape, 4)?;
                let row = shape.last().copied().unwrap_or(1);
                if !row.is_multiple_of(format.weights) {
                    bail!(Shape, "rows of {row} are no whole blocks of {}", format.weights);
                }
                (elements / format.weights).saturating_mul(format.bytes)
            }
        };
        if bytes.len() != need {
            bail!(Shape, "{}{shape} takes {need} bytes, {} given", kind.name(), bytes.len());
        }
        Ok(Self { kind, shape, bytes })
    }

    /// A weight that is a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        let (kind, shape) = (WeightType::Plain(tensor.dtype()), tensor.shape().clone());
        Self { kind, shape, bytes: tensor.buffer().clone() }
    }

    /// How it is stored.
    pub fn kind(&self) -> WeightType {
        self.kind
    }

    /// The extents, outermost first.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The bytes as they are stored.
    pub fn bytes(&self) -> &Buffer {
        &self.bytes
    }

    /// Type and shape, such as `Q4_K[640,1024]`.
    pub fn describe(&self) -> String {
        format!("{}{}", self.kind.name(), self.shape)
    }

    /// As a tensor of its own dtype (over the same bytes, where they are aligned); blocks decoded to
    /// f32.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn tensor(&self) -> Result<Tensor> {
        match self.kind {
            WeightType::Plain(dtype) => {
                Tensor::from_buffer(dtype, self.shape.clone(), self.bytes.clone())
            }
            WeightType::Blocks(format) => decoded(format, &self.shape, &self.bytes),
        }
    }

    /// As f32: f16, bf16 and blocks are widened, which loses nothing.
    ///
    /// # Errors
    /// If it is of a dtype that f32 cannot hold exactly, or the memory cannot be had.
    pub fn f32(&self) -> Result<Tensor> {
        match self.kind {
            WeightType::Plain(DType::F32) | WeightType::Blocks(_) => self.tensor(),
            WeightType::Plain(DType::F16 | DType::BF16) => cast(&self.tensor()?, DType::F32),
            WeightType::Plain(dtype) => {
                Err(err!(DType, "it is stored as {}, which is not read as f32", self.describe())
                    .with_help(format!(
                        "declare the parameter as {dtype}, or cast it in the graph"
                    )))
            }
        }
    }

    /// The blocks as bytes: u8, with rows of so many bytes as the last extent.
    ///
    /// # Errors
    /// If it is not stored in blocks.
    pub fn packed(&self) -> Result<Tensor> {
        let WeightType::Blocks(format) = self.kind else {
            return Err(err!(DType, "it is stored as {}, in no blocks", self.describe())
                .with_help("do not ask for it packed"));
        };
        let mut shape = self.shape.to_vec();
        match shape.last_mut() {
            Some(row) => *row = *row / format.weights * format.bytes,
            None => shape.push(self.bytes.len()),
        }
        Tensor::from_buffer(DType::U8, shape, self.bytes.clone())
    }
}

/// Blocks decoded to f32.
pub(in crate::import) fn decoded(
    format: &BlockFormat,
    shape: &[usize],
    bytes: &Buffer,
) -> Result<Tensor> {
    let mut out = Tensor::from_pool(&BufferPool::of_weights(), DType::F32, shape)?;
    format.decode(bytes.as_bytes(), out.as_mut_slice::<f32>()?)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_must_be_what_type_and_shape_take() {
        let q8 = WeightType::Blocks(
            BlockFormat::named("Q8_0").unwrap_or(&crate::kernels::BLOCK_FORMATS[0]),
        );
        let bytes = |n: usize| Buffer::zeroed(n).unwrap();
        let weight = StoredWeight::new(q8, [2, 64], bytes(136)).unwrap();
        assert_eq!(weight.packed().unwrap().describe(), "u8[2,68]");
        assert_eq!(weight.tensor().unwrap().describe(), "f32[2,64]");
        assert!(StoredWeight::new(q8, [2, 64], bytes(135)).is_err());
        assert!(StoredWeight::new(q8, [64, 2], bytes(136)).is_err());
        assert!(
            StoredWeight::new(WeightType::Plain(DType::F32), [usize::MAX, 2], bytes(0)).is_err()
        );
        let ints = StoredWeight::new(WeightType::Plain(DType::I64), [1], bytes(8)).unwrap();
        assert!(ints.f32().is_err() && ints.packed().is_err());
        assert_eq!(ints.tensor().unwrap().dtype(), DType::I64);
    }
}
