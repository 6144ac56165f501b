//! The tensor.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Buffer, BufferPool, DType, Element, Few, Shape, element_count};
use crate::error::{Result, bail, err};

/// An immutable, contiguous, row-major array of one dtype; cloning copies a handle.
///
/// Equality is of dtype, shape and bits.
///
/// ```
/// use brigade::Tensor;
/// let t = Tensor::new([2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap();
/// assert_eq!(t.as_slice::<f32>().unwrap()[3], 4.0);
/// assert_eq!(t.describe(), "f32[2,2]");
/// assert!(t.as_slice::<i64>().is_err());
/// ```
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    buffer: Buffer,
}

impl Tensor {
    /// A tensor of the elements of `data`, in row-major order.
    ///
    /// # Errors
    /// If the shape does not have as many elements as `data`.
    #[allow(clippy::needless_pass_by_value)] // callers have a vector and no more use for it
    pub fn new<T: Element>(shape: impl Into<Shape>, data: Vec<T>) -> Result<Self> {
        Self::from_slice(shape, &data)
    }

    /// A tensor with a copy of `data`.
    ///
    /// # Errors
    /// If the shape does not have as many elements as `data`.
    pub fn from_slice<T: Element>(shape: impl Into<Shape>, data: &[T]) -> Result<Self> {
        let shape = shape.into();
        if element_count(&shape, T::DTYPE.size())? != data.len() {
            bail!(Shape, "shape {shape} has {} elements, {} given", shape.elements(), data.len());
        }
        let buffer = Buffer::copy_of(bytemuck::cast_slice(data));
        Ok(Self { dtype: T::DTYPE, shape, buffer })
    }

    /// A tensor without axes.
    pub fn scalar<T: Element>(value: T) -> Self {
        let buffer = Buffer::copy_of(bytemuck::bytes_of(&value));
        Self { dtype: T::DTYPE, shape: Shape::scalar(), buffer }
    }

    /// A tensor of whole numbers in one axis, as shapes are passed around.
    pub fn of_i64(values: &[i64]) -> Self {
        let buffer = Buffer::copy_of(bytemuck::cast_slice(values));
        Self { dtype: DType::I64, shape: [values.len()].into(), buffer }
    }

    /// A tensor of strings.
    ///
    /// # Errors
    /// If the shape does not have as many elements.
    pub fn from_strings(shape: impl Into<Shape>, strings: Vec<String>) -> Result<Self> {
        let shape = shape.into();
        if element_count(&shape, 1)? != strings.len() {
            bail!(Shape, "shape {shape} does not have {} elements", strings.len());
        }
        Ok(Self { dtype: DType::String, shape, buffer: Buffer::strings(strings) })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// If the shape is too large.
    pub fn zeros(dtype: DType, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let count = element_count(&shape, dtype.size())?;
        if dtype == DType::String {
            return Self::from_strings(shape, vec![String::new(); count]);
        }
        Ok(Self { dtype, shape, buffer: Buffer::zeroed(count * dtype.size())? })
    }

    /// A tensor from the pool; its contents are arbitrary, except that bools are `false`.
    ///
    /// # Errors
    /// If the shape is too large, or the dtype is string.
    pub fn from_pool(pool: &BufferPool, dtype: DType, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let count = element_count(&shape, dtype.size())?;
        if dtype == DType::String {
            bail!(DType, "strings do not come from a buffer pool");
        }
        let mut buffer = pool.allocate(count * dtype.size())?;
        if dtype == DType::Bool
            && let Some(bytes) = buffer.unique_bytes()
        {
            bytes.fill(0);
        }
        Ok(Self { dtype, shape, buffer })
    }

    /// A tensor over little-endian bytes, without a copy where they are aligned.
    ///
    /// # Errors
    /// If the byte count is not what dtype and shape need, or a bool is neither 0 nor 1.
    pub fn from_buffer(dtype: DType, shape: impl Into<Shape>, buffer: Buffer) -> Result<Self> {
        let shape = shape.into();
        if dtype == DType::String {
            bail!(DType, "strings have no bytes of their own");
        }
        let need = element_count(&shape, dtype.size())? * dtype.size();
        if buffer.len() != need {
            bail!(Shape, "{dtype}{shape} takes {need} bytes, {} given", buffer.len());
        }
        let align = match dtype {
            DType::C64 => 4,
            DType::C128 => 8,
            d => d.size(),
        };
        if dtype == DType::Bool && buffer.as_bytes().iter().any(|b| *b > 1) {
            bail!(Format, "a bool tensor of shape {shape} holds bytes other than 0 and 1");
        }
        let aligned = buffer.as_bytes().as_ptr().align_offset(align.max(1)) == 0;
        let buffer = if aligned { buffer } else { Buffer::copy_of(buffer.as_bytes()) };
        Ok(Self { dtype, shape, buffer })
    }

    /// A tensor with a copy of little-endian bytes.
    ///
    /// # Errors
    /// As [`Self::from_buffer`].
    pub fn from_bytes(dtype: DType, shape: impl Into<Shape>, bytes: &[u8]) -> Result<Self> {
        Self::from_buffer(dtype, shape, Buffer::copy_of(bytes))
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How many axes there are.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.shape.elements()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The elements as little-endian bytes (none for strings).
    pub fn as_bytes(&self) -> &[u8] {
        self.buffer.as_bytes()
    }

    /// The buffer under it.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The strings of a string tensor.
    ///
    /// # Errors
    /// If it is of another dtype.
    pub fn as_strings(&self) -> Result<&[String]> {
        match self.buffer.as_strings() {
            Some(strings) => Ok(strings),
            None => bail!(DType, "expected string, got {}", self.describe()),
        }
    }

    /// The elements.
    ///
    /// # Errors
    /// If `T` is not the dtype's type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        if self.dtype != T::DTYPE {
            bail!(DType, "expected {}, got {}", T::DTYPE, self.describe());
        }
        if self.buffer.is_empty() {
            return Ok(&[]);
        }
        bytemuck::checked::try_cast_slice(self.buffer.as_bytes())
            .map_err(|e| err!(Internal, "{}: {e}", self.describe()))
    }

    /// The elements for writing; copies them first if somebody else holds this memory.
    ///
    /// # Errors
    /// If `T` is not the dtype's type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        if self.dtype != T::DTYPE {
            bail!(DType, "expected {}, got {}", T::DTYPE, self.describe());
        }
        if self.buffer.is_empty() {
            return Ok(&mut []);
        }
        if !self.buffer.is_unique() {
            self.buffer = Buffer::copy_of(self.buffer.as_bytes());
        }
        let Self { dtype, shape, buffer } = self;
        let bytes = buffer
            .unique_bytes()
            .ok_or_else(|| err!(Internal, "{dtype}{shape}: a fresh copy is not unique"))?;
        bytemuck::checked::try_cast_slice_mut(bytes)
            .map_err(|e| err!(Internal, "{dtype}{shape}: {e}"))
    }

    /// The elements as bytes for writing; copies them first if somebody else holds this memory.
    /// Whoever writes into a bool tensor must write 0 and 1 only.
    ///
    /// # Errors
    /// If it holds strings.
    pub(crate) fn as_mut_bytes(&mut self) -> Result<&mut [u8]> {
        if self.dtype == DType::String {
            bail!(DType, "strings have no bytes of their own");
        }
        if self.buffer.is_empty() {
            return Ok(&mut []);
        }
        if !self.buffer.is_unique() {
            self.buffer = Buffer::copy_of(self.buffer.as_bytes());
        }
        let Self { dtype, shape, buffer } = self;
        buffer
            .unique_bytes()
            .ok_or_else(|| err!(Internal, "{dtype}{shape}: a fresh copy is not unique"))
    }

    /// Whether writing needs no copy, so that a kernel may work in place.
    pub fn is_unique(&mut self) -> bool {
        self.buffer.is_unique()
    }

    /// The single element of a tensor with one element.
    ///
    /// # Errors
    /// If there are none or several, or `T` is not the dtype's type.
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.as_slice::<T>()? {
            [x] => Ok(*x),
            _ => bail!(Shape, "expected one element, got {}", self.describe()),
        }
    }

    /// The same elements in another shape, sharing the memory.
    ///
    /// # Errors
    /// If the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if element_count(&shape, self.dtype.size())? != self.len() {
            bail!(Shape, "{} cannot be reshaped to {shape}", self.describe());
        }
        Ok(Self { dtype: self.dtype, shape, buffer: self.buffer.clone() })
    }

    /// Rows `start..start + count` along the outermost axis, sharing the memory.
    ///
    /// # Errors
    /// If there is no axis, or not that many rows.
    pub fn rows(&self, start: usize, count: usize) -> Result<Self> {
        let outer = *self.shape.first().ok_or_else(|| err!(Shape, "a scalar has no rows"))?;
        if start.checked_add(count).is_none_or(|end| end > outer) {
            bail!(Shape, "rows {start}..+{count} are outside of {}", self.describe());
        }
        let mut dims = self.shape.clone();
        dims[0] = count;
        if let Some(strings) = self.buffer.as_strings() {
            let row: usize = dims[1..].iter().product();
            return Self::from_strings(dims, strings[start * row..(start + count) * row].to_vec());
        }
        let row = dims[1..].iter().product::<usize>() * self.dtype.size();
        let buffer = self
            .buffer
            .range(start * row, count * row)
            .ok_or_else(|| err!(Internal, "rows of {}", self.describe()))?;
        // A later row may start at any element, which is aligned enough for its own type.
        Ok(Self { dtype: self.dtype, shape: dims, buffer })
    }

    /// The elements converted to i64, for whole numbers and bools.
    ///
    /// # Errors
    /// If it holds floats or strings.
    pub fn to_i64s(&self) -> Result<Vec<i64>> {
        if !self.dtype.is_int() && self.dtype != DType::Bool {
            bail!(DType, "expected whole numbers, got {}", self.describe());
        }
        Ok(super::cast(self, DType::I64)?.as_slice::<i64>()?.to_vec())
    }

    /// As [`Self::to_i64s`], without memory for a few of them: what a shape or axes are made of.
    pub(crate) fn few_i64s(&self) -> Result<Few<i64>> {
        match self.dtype {
            DType::I64 => Ok(self.as_slice::<i64>()?.into()),
            DType::I32 => Ok(self.as_slice::<i32>()?.iter().map(|v| i64::from(*v)).collect()),
            _ => Ok(self.to_i64s()?.as_slice().into()),
        }
    }

    /// The elements converted to f32.
    ///
    /// # Errors
    /// If they are not numbers.
    pub fn to_f32s(&self) -> Result<Vec<f32>> {
        Ok(super::cast(self, DType::F32)?.as_slice::<f32>()?.to_vec())
    }

    /// Several tensors joined along an axis.
    ///
    /// # Errors
    /// If there are none, or their dtypes or other extents differ.
    pub fn concat(parts: &[Self], axis: usize) -> Result<Self> {
        let first = parts.first().ok_or_else(|| err!(Shape, "nothing to concatenate"))?;
        let mut dims = first.shape.to_vec();
        if axis >= dims.len() {
            bail!(Shape, "cannot concatenate {} along axis {axis}", first.describe());
        }
        dims[axis] = 0;
        for p in parts {
            let fits = p.dtype == first.dtype
                && p.rank() == dims.len()
                && (0..dims.len()).all(|i| i == axis || p.shape[i] == first.shape[i]);
            if !fits {
                let (a, b) = (first.describe(), p.describe());
                bail!(Shape, "cannot concatenate {a} and {b} along axis {axis}");
            }
            dims[axis] += p.shape[axis];
        }
        if first.dtype == DType::String {
            bail!(Unsupported, "strings are not concatenated along an axis");
        }
        if parts.len() == 1 {
            return Ok(first.clone());
        }
        let outer: usize = dims[..axis].iter().product();
        let inner: usize = dims[axis + 1..].iter().product::<usize>() * first.dtype.size();
        let count = element_count(&dims, first.dtype.size())?;
        let mut buffer = Buffer::zeroed(count * first.dtype.size())?;
        if let Some(out) = buffer.unique_bytes() {
            let mut at = 0;
            for o in 0..outer {
                for p in parts {
                    let n = p.shape[axis] * inner;
                    out[at..at + n].copy_from_slice(&p.as_bytes()[o * n..(o + 1) * n]);
                    at += n;
                }
            }
        }
        Ok(Self { dtype: first.dtype, shape: dims.into(), buffer })
    }

    /// `count` slices from `start` on along any axis; shares memory along the outermost one.
    ///
    /// # Errors
    /// If they are not all inside.
    pub fn narrow(&self, axis: usize, start: usize, count: usize) -> Result<Self> {
        if axis == 0 && self.rank() > 0 {
            return self.rows(start, count);
        }
        if axis >= self.rank() || start.checked_add(count).is_none_or(|e| e > self.shape[axis]) {
            bail!(Shape, "{start}..+{count} along axis {axis} is outside of {}", self.describe());
        }
        let mut dims = self.shape.to_vec();
        dims[axis] = count;
        let outer: usize = dims[..axis].iter().product();
        let inner: usize = dims[axis + 1..].iter().product::<usize>() * self.dtype.size();
        let (from, n) = (self.shape[axis] * inner, count * inner);
        let mut buffer = Buffer::zeroed(outer * n)?;
        if let Some(out) = buffer.unique_bytes() {
            for o in 0..outer {
                let at = o * from + start * inner;
                out[o * n..(o + 1) * n].copy_from_slice(&self.as_bytes()[at..at + n]);
            }
        }
        Ok(Self { dtype: self.dtype, shape: dims.into(), buffer })
    }

    /// Dtype and shape in words, such as `f32[2,3]`.
    pub fn describe(&self) -> String {
        format!("{}{}", self.dtype, self.shape)
    }
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype
            && self.shape == other.shape
            && self.as_bytes() == other.as_bytes()
            && self.buffer.as_strings() == other.buffer.as_strings()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", TensorDisplay(self))
    }
}

/// Dtype, shape and the first few elements of a tensor.
#[derive(Debug)]
pub struct TensorDisplay<'a>(pub &'a Tensor);

impl fmt::Display for TensorDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let t = self.0;
        f.write_str(&t.describe())?;
        let dots = if t.len() > SHOWN { ", …" } else { "" };
        super::cast::for_dtypes!(t.dtype, T, {
            let head: Vec<String> = t
                .as_slice::<T>()
                .map_err(|_| fmt::Error)?
                .iter()
                .take(SHOWN)
                .map(|x| format!("{x:?}"))
                .collect();
            write!(f, " {{{}{dots}}}", head.join(", "))
        }, Ok(()),
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16, Bool bool, I8 i8, I16 i16,
            I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
    }
}

/// The wire form: bytes, in JSON as hexadecimal text.
#[derive(Serialize, Deserialize)]
struct Wire<B> {
    dtype: DType,
    shape: Shape,
    data: B,
    strings: Vec<String>,
}

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (dtype, shape) = (self.dtype, self.shape.clone());
        let strings = self.buffer.as_strings().map(<[String]>::to_vec).unwrap_or_default();
        if serializer.is_human_readable() {
            use fmt::Write as _;
            let mut data = String::with_capacity(self.bytes() * 2);
            for b in self.as_bytes() {
                write!(data, "{b:02x}").map_err(serde::ser::Error::custom)?;
            }
            Wire { dtype, shape, data, strings }.serialize(serializer)
        } else {
            let data = serde_bytes::Bytes::new(self.as_bytes());
            Wire { dtype, shape, data, strings }.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (dtype, shape, data, strings) = if deserializer.is_human_readable() {
            let w = Wire::<String>::deserialize(deserializer)?;
            let hex = w.data.as_bytes();
            if hex.len() % 2 != 0 {
                return Err(D::Error::custom("tensor bytes: an odd number of hexadecimal digits"));
            }
            let digit = |c: u8| (c as char).to_digit(16).and_then(|d| u8::try_from(d).ok());
            let bytes: Option<Vec<u8>> =
                hex.chunks(2).map(|c| Some(digit(c[0])? << 4 | digit(c[1])?)).collect();
            let bytes =
                bytes.ok_or_else(|| D::Error::custom("tensor bytes: not hexadecimal digits"))?;
            (w.dtype, w.shape, bytes, w.strings)
        } else {
            let w = Wire::<serde_bytes::ByteBuf>::deserialize(deserializer)?;
            (w.dtype, w.shape, w.data.into_vec(), w.strings)
        };
        let tensor = if dtype == DType::String {
            Self::from_strings(shape, strings)
        } else {
            Self::from_bytes(dtype, shape, &data)
        };
        tensor.map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_share_and_writing_copies() {
        let mut a = Tensor::new([2], vec![1_i32, 2]).unwrap();
        let b = a.clone();
        a.as_mut_slice::<i32>().unwrap()[0] = 9;
        assert_eq!(b.as_slice::<i32>().unwrap(), [1, 2]);
        assert_eq!(a.as_slice::<i32>().unwrap(), [9, 2]);
        assert!(a.is_unique());
    }

    #[test]
    fn rows_and_concat_are_inverse() {
        let t = Tensor::new([3, 2], (0..6).map(|x| x as f32).collect()).unwrap();
        let parts = [t.rows(0, 2).unwrap(), t.rows(2, 1).unwrap()];
        assert!(parts[0].buffer().same_memory(t.buffer()));
        assert_eq!(Tensor::concat(&parts, 0).unwrap(), t);
        let columns = [t.narrow(1, 0, 1).unwrap(), t.narrow(1, 1, 1).unwrap()];
        assert_eq!(columns[1].as_slice::<f32>().unwrap(), [1.0, 3.0, 5.0]);
        assert_eq!(Tensor::concat(&columns, 1).unwrap(), t);
        assert!(t.rows(2, 2).is_err());
    }

    #[test]
    fn json_and_bincode_round_trip() {
        let t = Tensor::new([2, 1], vec![1.5_f32, f32::NAN]).unwrap();
        let json = serde_json::to_string(&t).unwrap();
        assert_eq!(serde_json::from_str::<Tensor>(&json).unwrap(), t);
        let bytes = bincode::serialize(&t).unwrap();
        assert_eq!(bincode::deserialize::<Tensor>(&bytes).unwrap(), t);
        assert!(serde_json::from_str::<Tensor>(&json.replace("[2,1]", "[3,1]")).is_err());
    }

    #[test]
    fn misaligned_bytes_are_copied() {
        let bytes: Vec<u8> = (0..9).collect();
        let odd = Buffer::foreign(bytes).range(1, 8).unwrap();
        let t = Tensor::from_buffer(DType::U32, [2], odd).unwrap();
        assert_eq!(t.as_slice::<u32>().unwrap()[0], u32::from_le_bytes([1, 2, 3, 4]));
        assert!(Tensor::from_bytes(DType::Bool, [1], &[2]).is_err());
        assert!(Tensor::from_bytes(DType::F32, [2], &[0; 4]).is_err());
    }
}
