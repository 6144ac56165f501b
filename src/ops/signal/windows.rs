//! Window functions: `HannWindow`, `HammingWindow`, `BlackmanWindow`.

use std::f64::consts::PI;

use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{INDICES, NUMBERS};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast, element_count};

/// The dtype of the attribute `output_datatype`, f32 by default.
pub(super) fn output_dtype(node: &Node) -> Result<DType> {
    let number = node.int_or("output_datatype", 1)?;
    match i32::try_from(number).ok().and_then(DType::from_onnx) {
        Some(d) if NUMBERS.contains(&d) => Ok(d),
        _ => bail!(Graph, "attribute `output_datatype` is {number}, which is no number's dtype"),
    }
}

/// `a - b cos(2πk/n) + c cos(4πk/n)`.
#[derive(Debug)]
struct Window {
    weights: [f64; 3],
    periodic: bool,
    dtype: DType,
}

impl CpuKernel for Window {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let size = match io.tensor(0)?.to_i64s()?[..] {
            [n] => n,
            _ => bail!(Shape, "`size` is {}, expected one number", io.tensor(0)?.describe()),
        };
        let Ok(size) = usize::try_from(size) else {
            bail!(Shape, "`size` is {size}; it cannot be negative");
        };
        element_count(&[size], 8)?;
        let n = if self.periodic { size } else { size.saturating_sub(1) };
        let [a, b, c] = self.weights;
        let mut out = Tensor::zeros(DType::F64, [size])?;
        for (k, o) in out.as_mut_slice::<f64>()?.iter_mut().enumerate() {
            let angle = if n == 0 { 0.0 } else { 2.0 * PI * k as f64 / n as f64 };
            *o = if n == 0 { 1.0 } else { a - b * angle.cos() + c * (2.0 * angle).cos() };
        }
        io.emit(cast(&out, self.dtype)?);
        Ok(())
    }
}

macro_rules! table {
    ($($(#[$doc:meta])* $def:ident $name:literal $weights:expr, $periodic:expr, $symmetric:expr;)*)
    => { $(
        $(#[$doc])*
        pub(in crate::ops) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: 17,
            attributes: &[
                AttributeDef::optional("output_datatype", AttributeKind::Int),
                AttributeDef::optional("periodic", AttributeKind::Int),
            ],
            inputs: &[Port::required("size", INDICES)],
            outputs: &[Port::required("output", NUMBERS)],
            infer: |i| {
                let size = match i.elements(0).as_deref() {
                    Some([n]) => n.clone(),
                    _ => i.fresh(),
                };
                let dtype = output_dtype(i.node)?;
                i.set(0, Some(dtype), Some(vec![size]));
                Ok(())
            },
            batch: batch::mixes,
            cost: cost::transcendental,
            prepare: |p| {
                let periodic = p.node.int_or("periodic", 1)? != 0;
                let dtype = output_dtype(p.node)?;
                Ok(Box::new(Window { weights: $weights, periodic, dtype }))
            },
            cases: || {
                vec![
                    Case::new($name, 17, "periodic")
                        .input(filled(&[], &[4_i64]))
                        .output(filled(&[4], &$periodic))
                        .close(1e-6, 1e-6),
                    Case::new($name, 17, "symmetric, f64")
                        .attr("periodic", 0)
                        .attr("output_datatype", 11)
                        .input(filled(&[], &[5_i32]))
                        .output(filled(&[5], &$symmetric))
                        .close(1e-6, 1e-6),
                ]
            },
        };
    )* };
}
table! {
    /// A raised cosine that ends at 0.
    HANN_WINDOW "HannWindow" [0.5, 0.5, 0.0], [0.0_f32, 0.5, 1.0, 0.5],
        [0.0_f64, 0.5, 1.0, 0.5, 0.0];
    /// A raised cosine that ends above 0.
    HAMMING_WINDOW "HammingWindow" [25.0 / 46.0, 21.0 / 46.0, 0.0],
        [0.086_956_52_f32, 0.543_478_25, 1.0, 0.543_478_25],
        [0.086_956_521_739_f64, 0.543_478_260_869, 1.0, 0.543_478_260_869, 0.086_956_521_739];
    /// A sum of three cosines.
    BLACKMAN_WINDOW "BlackmanWindow" [0.42, 0.5, 0.08], [0.0_f32, 0.34, 1.0, 0.34],
        [0.0_f64, 0.34, 1.0, 0.34, 0.0];
}
