//! Which axes a reduction is over: an attribute in older versions, an input in newer ones.

use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::Infer;
use crate::ops::batch::{BatchFlow, BatchQuery};
use crate::tensor::{Few, normalise_axis};

/// The attributes of a reduction.
#[derive(Clone, Debug)]
pub(super) struct Axes {
    /// From the attribute; the input counts where the version has one.
    attribute: Option<Vec<i64>>,
    /// Whether reduced axes stay, with extent 1.
    pub(super) keep: bool,
    /// Whether no axes mean no reduction instead of all axes.
    noop: bool,
}

impl Axes {
    /// Of a node whose operator takes the axes as input from version `input_since` on.
    ///
    /// # Errors
    /// If an attribute is of another kind, or the axes are given the other version's way.
    pub(super) fn of(node: &Node, input_since: i64) -> Result<Self> {
        let attribute = node.ints("axes")?.map(<[i64]>::to_vec);
        let input = node.inputs.get(1).copied().flatten().is_some();
        if node.version < input_since && input {
            bail!(Graph, "before version {input_since} the axes are an attribute, not an input");
        }
        if node.version >= input_since && attribute.is_some() {
            bail!(Graph, "from version {input_since} on the axes are an input, not an attribute");
        }
        let keep = node.int_or("keepdims", 1)? != 0;
        let noop = node.int_or("noop_with_empty_axes", 0)? != 0;
        Ok(Self { attribute, keep, noop })
    }

    /// Which axes of a tensor of `rank` are reduced, given the axes input's contents.
    ///
    /// # Errors
    /// If an axis is outside of the tensor or stands twice.
    pub(super) fn reduced(&self, rank: usize, input: Option<&[i64]>) -> Result<Few<bool>> {
        let axes = input.or(self.attribute.as_deref()).unwrap_or(&[]);
        if axes.is_empty() {
            return Ok(Few::filled(!self.noop, rank));
        }
        let mut reduced = Few::filled(false, rank);
        for &axis in axes {
            let a = normalise_axis(axis, rank)?;
            if reduced[a] {
                bail!(Shape, "axis {a} stands twice in the axes {axes:?}");
            }
            reduced[a] = true;
        }
        Ok(reduced)
    }

    /// The shape that is left.
    pub(super) fn shape<D: Clone, S: FromIterator<D>>(
        &self,
        dims: &[D],
        reduced: &[bool],
        one: &D,
    ) -> S {
        let pairs = dims.iter().zip(reduced);
        if self.keep {
            pairs.map(|(d, r)| if *r { one.clone() } else { d.clone() }).collect()
        } else {
            pairs.filter(|(_, r)| !**r).map(|(d, _)| d.clone()).collect()
        }
    }

    /// The symbolic output shape, and whether each axis is reduced, as far as known.
    ///
    /// # Errors
    /// As [`Self::reduced`].
    pub(super) fn infer(&self, i: &mut Infer<'_>) -> Result<(Option<Vec<Dim>>, Option<Few<bool>>)> {
        let Some(dims) = i.shape(0) else { return Ok((None, None)) };
        let input = i.ints(1);
        if i.has(1) && input.is_none() {
            // Every axis is either whole or 1.
            return Ok((self.keep.then(|| i.fresh_shape(dims.len())), None));
        }
        let reduced = self.reduced(dims.len(), input.as_deref())?;
        Ok((Some(self.shape(&dims, &reduced, &Dim::fixed(1))), Some(reduced)))
    }

    /// How the batch passes.
    pub(super) fn batch(&self, q: &BatchQuery<'_>) -> BatchFlow {
        let Some(axis) = q.axes.first().copied().flatten() else {
            return if q.is_free() {
                q.everywhere(None)
            } else {
                Err("its axes depend on the batch".to_owned())
            };
        };
        let rank = q.rank(0).ok_or("the rank of its input is not known")?;
        let input = q.ints.get(1).cloned().flatten();
        if q.node.inputs.get(1).copied().flatten().is_some() && input.is_none() {
            return Err("its axes are not known beforehand".to_owned());
        }
        let reduced = self.reduced(rank, input.as_deref()).map_err(|e| e.to_string())?;
        if reduced.get(axis).copied().unwrap_or(true) {
            return Err("it reduces over the batch axis".to_owned());
        }
        let before = reduced[..axis].iter().filter(|r| **r).count();
        q.everywhere(Some(if self.keep { axis } else { axis - before }))
    }
}
