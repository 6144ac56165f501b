//! Concrete shapes and the arithmetic on them.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::error::{Result, bail, err};

/// A concrete shape: the extents of each axis, outermost first. A scalar has no axes.
///
/// ```
/// use brigade::Shape;
/// let shape = Shape::from([2, 3]);
/// assert_eq!(shape.elements(), 6);
/// assert_eq!(shape.to_string(), "[2,3]");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Self {
        Self(Vec::new())
    }

    /// How many axes there are.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// How many elements there are: 1 for a scalar, 0 if any extent is 0.
    ///
    /// Shapes of existing tensors never overflow; for untrusted extents use [`element_count`].
    pub fn elements(&self) -> usize {
        self.0.iter().product()
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<Vec<usize>> for Shape {
    fn from(v: Vec<usize>) -> Self {
        Self(v)
    }
}

impl From<&[usize]> for Shape {
    fn from(v: &[usize]) -> Self {
        Self(v.to_vec())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(v: [usize; N]) -> Self {
        Self(v.to_vec())
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl PartialEq<[usize]> for Shape {
    fn eq(&self, other: &[usize]) -> bool {
        self.0 == other
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        self.0 == other
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> = self.0.iter().map(usize::to_string).collect();
        write!(f, "[{}]", dims.join(","))
    }
}

/// The number of elements of untrusted extents.
///
/// # Errors
/// If the product overflows or the bytes would pass `isize::MAX`.
pub fn element_count(dims: &[usize], element_size: usize) -> Result<usize> {
    let mut count = 1usize;
    let mut zero = false;
    for &d in dims {
        if d == 0 {
            zero = true;
        } else {
            count = count
                .checked_mul(d)
                .ok_or_else(|| err!(Limit, "a tensor of shape {dims:?} has too many elements"))?;
        }
    }
    match count.checked_mul(element_size.max(1)) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(if zero { 0 } else { count }),
        _ => bail!(Limit, "a tensor of shape {dims:?} does not fit in memory"),
    }
}

/// Row-major strides in elements.
pub fn strides(dims: &[usize]) -> Vec<usize> {
    let mut out = vec![1; dims.len()];
    for i in (0..dims.len().saturating_sub(1)).rev() {
        out[i] = out[i + 1] * dims[i + 1];
    }
    out
}

/// An axis that may count from the end, as an index below `rank`.
///
/// # Errors
/// If it lies outside `-rank..rank`.
pub fn normalise_axis(axis: i64, rank: usize) -> Result<usize> {
    let r = i64::try_from(rank).unwrap_or(i64::MAX);
    let a = if axis < 0 { axis + r } else { axis };
    if a < 0 || a >= r {
        bail!(Shape, "axis {axis} is outside of a tensor with {rank} axes");
    }
    Ok(usize::try_from(a).unwrap_or(0))
}

/// The common shape of several by ONNX (numpy) broadcasting.
///
/// # Errors
/// If two extents differ and neither is 1.
///
/// ```
/// let shape = brigade::tensor::broadcast_shapes(&[&[2, 1], &[3]]).unwrap();
/// assert_eq!(shape, [2, 3]);
/// ```
pub fn broadcast_shapes(shapes: &[&[usize]]) -> Result<Shape> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out = vec![1usize; rank];
    for s in shapes {
        let lead = rank - s.len();
        for (i, &d) in s.iter().enumerate() {
            let o = &mut out[lead + i];
            if *o == 1 {
                *o = d;
            } else if d != 1 && d != *o {
                let all: Vec<_> = shapes.iter().map(|s| Shape::from(*s).to_string()).collect();
                bail!(Shape, "shapes {} cannot be broadcast together", all.join(" and "));
            }
        }
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        assert_eq!(broadcast_shapes(&[&[2, 1, 4], &[3, 1]]).unwrap(), [2, 3, 4]);
        assert_eq!(broadcast_shapes(&[&[], &[0, 2]]).unwrap(), [0, 2]);
        assert_eq!(broadcast_shapes(&[&[1], &[0]]).unwrap(), [0]);
        assert!(broadcast_shapes(&[&[2], &[3]]).is_err());
    }

    #[test]
    fn hostile_extents_are_errors() {
        assert!(element_count(&[usize::MAX, 2], 4).is_err());
        assert!(element_count(&[1 << 62], 4).is_err());
        assert_eq!(element_count(&[1 << 40, 0], 4).unwrap(), 0);
        assert!(element_count(&[usize::MAX, 2, 0], 4).is_err());
    }

    #[test]
    fn axes_count_from_both_ends() {
        assert_eq!(normalise_axis(-1, 3).unwrap(), 2);
        assert!(normalise_axis(3, 3).is_err());
        assert!(normalise_axis(-4, 3).is_err());
        assert!(normalise_axis(0, 0).is_err());
    }
}
