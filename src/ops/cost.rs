//! What an operator costs, in floating-point operations and bytes moved.

use crate::graph::Node;
use crate::tensor::{DType, Shape};

/// What an operator's `cost` sees.
#[derive(Debug)]
pub struct CostQuery<'a> {
    /// The node.
    pub node: &'a Node,
    /// The inputs' dtypes and shapes; `None` where left out or unknown.
    pub inputs: &'a [Option<(DType, Shape)>],
    /// The outputs' dtypes and shapes; `None` where not asked for or unknown.
    pub outputs: &'a [Option<(DType, Shape)>],
}

/// Work: arithmetic and memory traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Arithmetic operations (a multiply-add is two).
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

impl Cost {
    /// An estimate of the seconds on a core with these peaks, the larger of both limits.
    pub fn seconds(self, flops_per_s: f64, bytes_per_s: f64) -> f64 {
        (self.flops / flops_per_s).max(self.bytes / bytes_per_s)
    }
}

impl std::ops::Add for Cost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}

impl CostQuery<'_> {
    /// Bytes of all inputs and outputs.
    pub fn bytes(&self) -> f64 {
        self.inputs
            .iter()
            .chain(self.outputs)
            .flatten()
            .map(|(d, s)| (s.elements() * d.size()) as f64)
            .sum()
    }

    /// Elements of all outputs.
    pub fn output_elements(&self) -> f64 {
        self.outputs.iter().flatten().map(|(_, s)| s.elements() as f64).sum()
    }

    /// Elements of an input; 0 where unknown.
    pub fn input_elements(&self, i: usize) -> f64 {
        self.inputs.get(i).and_then(Option::as_ref).map_or(0.0, |(_, s)| s.elements() as f64)
    }
}

/// One operation an output element.
pub fn elementwise(q: &CostQuery<'_>) -> Cost {
    Cost { flops: q.output_elements(), bytes: q.bytes() }
}

/// About ten operations an output element: exp, tanh, erf.
pub fn transcendental(q: &CostQuery<'_>) -> Cost {
    Cost { flops: 10.0 * q.output_elements(), bytes: q.bytes() }
}

/// Only memory is moved.
pub fn copy(q: &CostQuery<'_>) -> Cost {
    Cost { flops: 0.0, bytes: q.bytes() }
}

/// Nothing is done: the memory is shared.
pub fn free(_: &CostQuery<'_>) -> Cost {
    Cost::default()
}

/// One operation an element of input 0.
pub fn reduction(q: &CostQuery<'_>) -> Cost {
    Cost { flops: q.input_elements(0), bytes: q.bytes() }
}
