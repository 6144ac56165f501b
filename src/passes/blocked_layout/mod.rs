//! Keeps values between convolutions in blocks of 8 channels, [N, C/8, H, W, 8], where direct
//! kernels need no matrix of windows and no vector goes unused.
//!
//! A convolution that has a kernel for it makes a blocked output. Pooling and operators that work
//! element by element stay blocked between convolutions, and so do joins and cuts along any axis.
//! Everything else reads plain values: graph outputs, subgraphs, `Reshape`, products. Each value
//! is reordered at most once in each direction, in front of its first reader of the other layout.
//! A region of blocked values whose convolutions save less than its reorders cost stays plain.

mod build;
mod form;

#[cfg(test)]
mod tests;

use crate::error::Result;
use crate::graph::{Dim, Graph, Node, ValueId};
use crate::ops::OpRegistry;
use crate::ops::infer::Known;
use build::Builder;
use form::{Form, form};

pub(super) fn run(graph: &mut Graph, known: &[Known], _: &OpRegistry) -> Result<usize> {
    let view = View { graph, known };
    let forms: Vec<Option<Form>> =
        graph.nodes.iter().map(|node| form(&view, node)).collect::<Result<_>>()?;
    if !forms.iter().flatten().any(Form::is_convolution) {
        return Ok(0);
    }
    let mut left_out = vec![false; forms.len()];
    loop {
        let built = Builder::new(&view, &forms, &left_out).build()?;
        if built.poor.is_empty() {
            if built.convolutions > 0 {
                *graph = built.graph;
            }
            return Ok(built.convolutions);
        }
        built.poor.iter().for_each(|i| left_out[*i] = true);
    }
}

/// A graph and what is known of its values.
#[derive(Debug)]
struct View<'a> {
    graph: &'a Graph,
    known: &'a [Known],
}

impl<'a> View<'a> {
    fn dims(&self, v: ValueId) -> Option<&'a [Dim]> {
        self.known.get(v.index())?.fact.shape.as_deref()
    }

    /// The extents of a value that has a blocked form.
    fn blockable(&self, v: ValueId) -> Option<&'a [Dim]> {
        let known = self.known.get(v.index())?;
        let dims = known.fact.shape.as_deref()?;
        let f32s = known.fact.dtype == Some(crate::tensor::DType::F32);
        let channels = dims.get(1)?.as_extent()?;
        let fits = dims.len() == 4 && channels > 0;
        (f32s && fits && channels.is_multiple_of(crate::ops::blocked::block())).then_some(dims)
    }

    fn is_constant(&self, v: ValueId) -> bool {
        self.graph.value(v).constant.is_some()
    }

    /// The whole numbers of a constant input.
    fn ints(&self, node: &Node, i: usize) -> Option<Vec<i64>> {
        let v = node.inputs.get(i).copied().flatten()?;
        self.graph.value(v).constant.as_ref()?.to_i64s().ok()
    }
}

/// Extents that are not known count as so many elements, when what is saved is weighed against
/// what is spent.
const UNKNOWN_EXTENT: i64 = 64;

/// How many elements a value has, roughly.
fn elements(dims: &[Dim]) -> f64 {
    let extent = |d: &Dim| d.evaluate(&|_| Some(UNKNOWN_EXTENT)).unwrap_or(UNKNOWN_EXTENT);
    dims.iter().map(|d| extent(d).max(1) as f64).product()
}

/// Whether a value's plain and blocked form are the same memory.
fn is_free(dims: &[Dim]) -> bool {
    dims.len() > 2 && dims[2..].iter().all(|d| d.as_fixed() == Some(1))
}

/// What a reorder costs, in arithmetic operations: each element is read and written, and a core
/// computes some eight operations in the time in which it moves a byte.
fn reorder_cost(dims: &[Dim]) -> f64 {
    if is_free(dims) { 0.0 } else { elements(dims) * 8.0 * 8.0 }
}
