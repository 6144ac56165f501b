//! Products of matrices: `MatMul`, `Gemm`, `MatMulInteger` and the fused forms of the first two.

mod gemm;
mod integer;
mod nbits;
mod packed;
pub(super) mod plain;
mod product;
mod quantized;

pub(super) use gemm::{FUSED_GEMM, GEMM};
pub(super) use integer::MATMUL_INTEGER;
pub(super) use nbits::MATMUL_N_BITS;
pub(super) use packed::Packed;
pub(super) use product::{FUSED_MATMUL, MATMUL, products};
pub(super) use quantized::QMATMUL;

use super::Infer;
use super::batch::{BatchFlow, BatchQuery};
use super::cost::{Cost, CostQuery};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::infer::broadcast_dims;
use crate::tensor::{DType, Shape, broadcast_shapes, element_count};

/// The dtypes that ONNX lets `MatMul` and `Gemm` have.
const TYPES: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::U32,
    DType::U64,
];

/// The extents of a product of two (stacks of) matrices.
#[derive(Clone, Debug, PartialEq)]
struct Layout {
    /// The leading extents of the output.
    batch: Shape,
    /// The leading extents of the operands.
    a_lead: Shape,
    b_lead: Shape,
    m: usize,
    k: usize,
    n: usize,
    /// The whole output.
    out: Shape,
}

impl Layout {
    /// The extents for operands of these shapes, as numpy's `matmul` has them.
    fn new(a: &[usize], b: &[usize]) -> Result<Self> {
        let (a_lead, m, k) = match a {
            [] => bail!(Shape, "the left operand is a scalar, which has no product"),
            [k] => (Shape::scalar(), 1, *k),
            [lead @ .., m, k] => (Shape::from(lead), *m, *k),
        };
        let (b_lead, kb, n) = match b {
            [] => bail!(Shape, "the right operand is a scalar, which has no product"),
            [k] => (Shape::scalar(), *k, 1),
            [lead @ .., k, n] => (Shape::from(lead), *k, *n),
        };
        if k != kb {
            bail!(
                Shape,
                "the left operand has {k} columns (shape {a:?}), the right one {kb} rows (shape {b:?})"
            );
        }
        let batch = broadcast_shapes(&[&a_lead, &b_lead])?;
        let mut out = batch.clone();
        if a.len() > 1 {
            out.push(m);
        }
        if b.len() > 1 {
            out.push(n);
        }
        element_count(&out, 8)?;
        Ok(Self { batch, a_lead, b_lead, m, k, n, out })
    }

    /// Whether one right matrix serves all, so that the left ones may be stacked into one.
    fn is_flat(&self) -> bool {
        self.b_lead.iter().all(|d| *d == 1)
    }

    /// How many products there are.
    fn count(&self) -> usize {
        self.batch.iter().product()
    }

    /// Which left and which right matrix the product `i` takes.
    fn operands(&self, i: usize) -> (usize, usize) {
        (pick(i, &self.batch, &self.a_lead), pick(i, &self.batch, &self.b_lead))
    }
}

/// The flat index into a broadcast operand's leading extents.
fn pick(mut i: usize, batch: &[usize], lead: &[usize]) -> usize {
    let (mut at, mut stride) = (0, 1);
    for (axis, extent) in batch.iter().enumerate().rev() {
        let coordinate = i % extent;
        i /= extent;
        if let Some(own) = (axis + lead.len()).checked_sub(batch.len()) {
            if lead[own] != 1 {
                at += coordinate * stride;
            }
            stride *= lead[own];
        }
    }
    at
}

/// The symbolic shape of a product; `None` where a rank is unknown.
fn product_dims(i: &Infer<'_>) -> Result<Option<Vec<Dim>>> {
    let (Some(a), Some(b)) = (i.shape(0), i.shape(1)) else { return Ok(None) };
    if a.is_empty() || b.is_empty() {
        bail!(Shape, "a scalar has no product");
    }
    let split = |s: &[Dim]| s[..s.len().saturating_sub(2)].to_vec();
    let k = (&a[a.len() - 1], &b[b.len().saturating_sub(2)]);
    if let (Some(ka), Some(kb)) = (k.0.as_fixed(), k.1.as_fixed())
        && ka != kb
    {
        bail!(Shape, "the left operand has {ka} columns, the right one {kb} rows");
    }
    let mut out = broadcast_dims(&[&split(&a), &split(&b)])?;
    if a.len() > 1 {
        out.push(a[a.len() - 2].clone());
    }
    if b.len() > 1 {
        out.push(b[b.len() - 1].clone());
    }
    Ok(Some(out))
}

/// Along a leading axis, aligned from the right and with broadcasting; or the rows of the left
/// operand; or the columns of the right one.
fn product_batch(q: &BatchQuery<'_>) -> BatchFlow {
    if q.is_free() {
        return q.everywhere(None);
    }
    let unknown = || "the rank of an operand is not known".to_owned();
    let (Some(Some(a)), Some(Some(b))) = (q.shapes.first(), q.shapes.get(1)) else {
        return Err(unknown());
    };
    let axis = |i: usize| q.axes.get(i).copied().flatten();
    let lead = a.len().saturating_sub(2).max(b.len().saturating_sub(2));
    let rank = lead + usize::from(a.len() > 1) + usize::from(b.len() > 1);
    // An axis of an operand as one of the output, or nothing where it is summed over.
    let left = axis(0).map(|x| {
        if x + 1 == a.len() {
            return None;
        }
        Some(if x + 2 == a.len() { lead } else { x + lead - (a.len() - 2) })
    });
    let right = axis(1).map(|x| {
        if b.len() == 1 || x + 2 == b.len() {
            return None;
        }
        Some(if x + 1 == b.len() { rank - 1 } else { x + lead - (b.len() - 2) })
    });
    let (left, right) = match (left, right) {
        (Some(None), _) | (_, Some(None)) => return Err("it sums over the batch axis".to_owned()),
        (l, r) => (l.flatten(), r.flatten()),
    };
    let own = |s: &[Dim], at: usize| {
        let lead_here = s.len().saturating_sub(2);
        (at + lead_here)
            .checked_sub(lead)
            .and_then(|i| s[..lead_here].get(i))
            .is_some_and(|d| d.as_fixed() != Some(1))
    };
    let at = match (left, right) {
        (Some(l), Some(r)) if l == r && l < lead => l,
        (Some(_), Some(_)) => return Err("its operands carry the batch on different axes".into()),
        (Some(l), None) if l < lead && own(b, l) => {
            return Err("the right operand has matrices of its own along the batch axis".into());
        }
        (None, Some(r)) if r < lead && own(a, r) => {
            return Err("the left operand has matrices of its own along the batch axis".into());
        }
        (Some(x), None) | (None, Some(x)) => x,
        (None, None) => return Err("an input other than the operands carries the batch".into()),
    };
    q.everywhere(Some(at))
}

/// Two operations for each element of the output and each of the sum.
fn product_cost(q: &CostQuery<'_>) -> Cost {
    let k = q.inputs.first().and_then(Option::as_ref).and_then(|(_, s)| s.last().copied());
    Cost { flops: 2.0 * q.output_elements() * k.unwrap_or(1) as f64, bytes: q.bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_of_a_broadcast_stack() {
        let l = Layout::new(&[2, 1, 4, 5], &[3, 5, 6]).unwrap();
        assert_eq!((&l.out[..], l.count()), ([2, 3, 4, 6].as_slice(), 6));
        let picked: Vec<_> = (0..6).map(|i| l.operands(i)).collect();
        assert_eq!(picked, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        assert!(Layout::new(&[2, 3], &[2, 3]).is_err());
        assert!(Layout::new(&[], &[1]).is_err());
        assert!(Layout::new(&[2, 1, 1], &[3, 1, 1]).is_err());
    }

    fn flow(axes: &[Option<usize>], shapes: &[&[i64]]) -> BatchFlow {
        let mut graph = crate::graph::Graph::new("g");
        let out = graph.add_value("y", crate::graph::Fact::unknown()).unwrap();
        let inputs: Vec<_> = (0..shapes.len())
            .map(|i| Some(graph.add_value(format!("x{i}"), crate::graph::Fact::unknown()).unwrap()))
            .collect();
        let node = graph.add_node("n", "MatMul", inputs, [Some(out)]).clone();
        let shapes: Vec<_> = shapes
            .iter()
            .map(|s| Some(s.iter().map(|d| Dim::fixed(*d)).collect::<Vec<_>>()))
            .collect();
        let ints = vec![None; shapes.len()];
        product_batch(&BatchQuery {
            node: &node,
            axes,
            symbol: None,
            shapes: &shapes,
            output_shapes: &[None],
            ints: &ints,
        })
    }

    #[test]
    fn a_batch_passes_where_it_is_not_summed() {
        assert_eq!(flow(&[Some(0), None], &[&[8, 3], &[3, 4]]), Ok(vec![Some(0)]));
        assert_eq!(flow(&[Some(1), None], &[&[2, 8, 3], &[3, 4]]), Ok(vec![Some(1)]));
        assert_eq!(flow(&[Some(0), Some(0)], &[&[8, 2, 3], &[8, 3, 4]]), Ok(vec![Some(0)]));
        assert_eq!(flow(&[None, Some(0)], &[&[5, 3], &[8, 3, 4]]), Ok(vec![Some(0)]));
        assert_eq!(flow(&[None, Some(1)], &[&[5, 3], &[3, 8]]), Ok(vec![Some(1)]));
        assert!(flow(&[Some(1), None], &[&[2, 8], &[8, 4]]).is_err());
        assert!(flow(&[Some(0), None], &[&[8, 2, 3], &[8, 3, 4]]).is_err());
        assert!(flow(&[Some(0), Some(1)], &[&[8, 3], &[3, 8]]).is_err());
    }
}
