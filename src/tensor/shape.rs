//! Concrete shapes and the arithmetic on them.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use super::few::Few;
use crate::error::{Result, bail, err};

/// A concrete shape: the extents of each axis, outermost first. A scalar has no axes.
///
/// ```
/// use brigade::Shape;
/// let mut shape = Shape::from([2, 3]);
/// assert_eq!(shape.elements(), 6);
/// shape[1] = 4;
/// assert_eq!(shape.to_string(), "[2,4]");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<usize>", into = "Vec<usize>")]
pub struct Shape(Few<usize>);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Self {
        Self(Few::new())
    }

    /// How many axes there are.
    pub fn rank(&self) -> usize {
        self.len()
    }

    /// How many elements there are: 1 for a scalar, 0 if any extent is 0.
    ///
    /// Shapes of existing tensors never overflow; for untrusted extents use [`element_count`].
    pub fn elements(&self) -> usize {
        self.iter().product()
    }

    /// Adds an axis, the innermost.
    pub fn push(&mut self, extent: usize) {
        self.0.push(extent);
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [usize] {
        &mut self.0
    }
}

impl From<&[usize]> for Shape {
    fn from(v: &[usize]) -> Self {
        Self(v.into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(v: Vec<usize>) -> Self {
        v.as_slice().into()
    }
}

impl From<Shape> for Vec<usize> {
    fn from(shape: Shape) -> Self {
        shape.to_vec()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(v: [usize; N]) -> Self {
        v.as_slice().into()
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl Extend<usize> for Shape {
    fn extend<I: IntoIterator<Item = usize>>(&mut self, iter: I) {
        self.0.extend(iter);
    }
}

impl PartialEq<[usize]> for Shape {
    fn eq(&self, other: &[usize]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        **self == *other
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> = self.iter().map(usize::to_string).collect();
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
    steps(dims).to_vec()
}

/// As [`strides`], as signed numbers.
pub(crate) fn signed_strides(dims: &[usize]) -> Few<isize> {
    steps(dims).iter().map(|s| *s as isize).collect()
}

fn steps(dims: &[usize]) -> Few<usize> {
    let mut out = Few::filled(1, dims.len());
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
    let mut out: Shape = std::iter::repeat_n(1, rank).collect();
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
    Ok(out)
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
    fn the_wire_form_is_the_list_of_extents() {
        for dims in [vec![], vec![2, 3], vec![1; 9]] {
            let mut shape = Shape::from(dims.clone());
            let json = serde_json::to_string(&shape).unwrap();
            assert_eq!(json, serde_json::to_string(&dims).unwrap());
            assert_eq!(serde_json::from_str::<Shape>(&json).unwrap(), shape);
            assert_eq!(bincode::serialize(&shape).unwrap(), bincode::serialize(&dims).unwrap());
            shape.push(7);
            assert_eq!((shape.rank(), shape[dims.len()]), (dims.len() + 1, 7));
        }
        assert_eq!(format!("{:?}", Shape::from([2, 3])), "Shape([2, 3])");
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
