//! Test cases of an operator, run on every device.

use crate::error::Result;
use crate::graph::{Attribute, Fact, Graph};
use crate::tensor::{DType, Element, Tensor, Value, cast, is_narrow};

/// A tensor for a case, whose author counts its elements.
pub(super) fn filled<T: Element>(shape: &[usize], elements: &[T]) -> Tensor {
    Tensor::from_slice(shape, elements).expect("a case gives as many elements as its shape has")
}

/// 0, 1, 2, … as f32, for a case.
pub(super) fn counted(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    filled(shape, &(0..n).map(|x| x as f32).collect::<Vec<_>>())
}

/// A tensor for a case in another dtype.
pub(super) fn as_dtype(tensor: &Tensor, dtype: DType) -> Tensor {
    cast(tensor, dtype).expect("a case converts numbers to numbers")
}

/// One application of an operator with what must come out.
#[derive(Clone, Debug)]
pub struct Case {
    /// A name that is unique for the operator.
    pub name: String,
    op: &'static str,
    domain: &'static str,
    version: i64,
    attributes: Vec<(String, Attribute)>,
    inputs: Vec<Option<(Tensor, bool)>>,
    captures: usize,
    /// The outputs that must come out.
    pub expected: Vec<Tensor>,
    /// Largest absolute error that passes.
    pub atol: f64,
    /// Largest error relative to the expected element that passes, on top.
    pub rtol: f64,
}

impl Case {
    /// A case of an operator of ai.onnx at a version; exact unless [`Self::close`] is called.
    pub fn new(op: &'static str, version: i64, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            op,
            domain: "",
            version,
            attributes: Vec::new(),
            inputs: Vec::new(),
            captures: 0,
            expected: Vec::new(),
            atol: 0.0,
            rtol: 0.0,
        }
    }

    /// Of another domain.
    #[must_use]
    pub fn domain(mut self, domain: &'static str) -> Self {
        self.domain = domain;
        self
    }

    /// With an attribute.
    #[must_use]
    pub fn attr(mut self, name: &str, value: impl Into<Attribute>) -> Self {
        self.attributes.push((name.to_owned(), value.into()));
        self
    }

    /// With one more input, fed at run time.
    #[must_use]
    pub fn input(mut self, tensor: Tensor) -> Self {
        self.inputs.push(Some((tensor, false)));
        self
    }

    /// With one more input, known when the graph is compiled.
    #[must_use]
    pub fn constant(mut self, tensor: Tensor) -> Self {
        self.inputs.push(Some((tensor, true)));
        self
    }

    /// With one more input left out.
    #[must_use]
    pub fn absent(mut self) -> Self {
        self.inputs.push(None);
        self
    }

    /// The last `count` inputs are captured by the subgraphs.
    #[must_use]
    pub fn captures(mut self, count: usize) -> Self {
        self.captures = count;
        self
    }

    /// With one more output that must come out.
    #[must_use]
    pub fn output(mut self, tensor: Tensor) -> Self {
        self.expected.push(tensor);
        self
    }

    /// Errors up to `atol + rtol * |expected|` pass.
    #[must_use]
    pub fn close(mut self, atol: f64, rtol: f64) -> Self {
        (self.atol, self.rtol) = (atol, rtol);
        self
    }

    /// The case as a graph of one node, and what to feed it.
    ///
    /// # Errors
    /// If the case itself is not well formed.
    pub fn graph(&self) -> Result<(Graph, Vec<(String, Value)>)> {
        let mut graph = Graph::new(self.name.clone());
        graph.opsets.insert(self.domain.to_owned(), self.version);
        let (mut inputs, mut feeds) = (Vec::new(), Vec::new());
        for (i, input) in self.inputs.iter().enumerate() {
            let name = format!("x{i}");
            inputs.push(match input {
                None => None,
                Some((t, true)) => Some(graph.add_constant(name, t.clone())?),
                Some((t, false)) => {
                    feeds.push((name.clone(), Value::from(t.clone())));
                    Some(graph.add_input(name, Fact::of(t))?)
                }
            });
        }
        let mut outputs = Vec::new();
        for i in 0..self.expected.len() {
            outputs.push(graph.add_value(format!("y{i}"), Fact::unknown())?);
        }
        let node = graph.add_node("node", self.op, inputs, outputs.iter().map(|v| Some(*v)));
        node.domain = self.domain.to_owned();
        node.version = self.version;
        node.captures = self.captures;
        node.attributes.extend(self.attributes.iter().cloned());
        graph.set_outputs(outputs);
        Ok((graph, feeds))
    }

    /// Why these outputs are not the expected ones.
    ///
    /// # Errors
    /// Words that name the output and the worst element.
    pub fn compare(&self, outputs: &[Value]) -> Result<(), String> {
        if outputs.len() != self.expected.len() {
            return Err(format!("{} outputs, expected {}", outputs.len(), self.expected.len()));
        }
        for (i, (got, want)) in outputs.iter().zip(&self.expected).enumerate() {
            let got = got.tensor().map_err(|e| e.to_string())?;
            compare(got, want, self.atol, self.rtol).map_err(|e| format!("output {i}: {e}"))?;
        }
        Ok(())
    }
}

/// A tensor for a case. Where the shape does not fit, it is one that no case expects.
pub(super) fn of<T: Element>(shape: &[usize], data: Vec<T>) -> Tensor {
    Tensor::new(shape, data).unwrap_or_else(|_| Tensor::of_i64(&[i64::MIN; 7]))
}

/// [`of`] for i64.
pub(super) fn ints(shape: &[usize], data: Vec<i64>) -> Tensor {
    of(shape, data)
}

/// A tensor of 0, 1, 2, … for a case.
pub(super) fn iota(shape: &[usize]) -> Tensor {
    ints(shape, (0..shape.iter().product::<usize>() as i64).collect())
}

/// Whether elements of 8 or 4 bits are the same, any NaN for any other.
fn same_narrow(got: &Tensor, want: &Tensor) -> Result<bool, String> {
    let nan = |t: &Tensor| -> Result<Vec<bool>, String> {
        let wide = cast(t, DType::F32).map_err(|e| e.to_string())?;
        Ok(wide.as_slice::<f32>().map_err(|e| e.to_string())?.iter().map(|x| x.is_nan()).collect())
    };
    let bits = got.as_bytes().iter().zip(want.as_bytes());
    let mut both = bits.zip(nan(got)?).zip(nan(want)?);
    Ok(both.all(|(((a, b), m), n)| a == b || (m && n)))
}

/// Why `got` is not `want` within `atol + rtol * |want|`; NaN equals NaN.
///
/// # Errors
/// Words that name the worst element.
pub fn compare(got: &Tensor, want: &Tensor, atol: f64, rtol: f64) -> Result<(), String> {
    if got.dtype() != want.dtype() || got.shape() != want.shape() {
        return Err(format!("{}, expected {}", got.describe(), want.describe()));
    }
    if got == want || got.dtype() == DType::String {
        return if got == want { Ok(()) } else { Err("strings differ".to_owned()) };
    }
    let wide = |t: &Tensor| -> Result<Vec<f64>, String> {
        let t = cast(t, DType::F64).map_err(|e| e.to_string())?;
        Ok(t.as_slice::<f64>().map_err(|e| e.to_string())?.to_vec())
    };
    if is_narrow(got.dtype()) && same_narrow(got, want)? {
        return Ok(());
    }
    if !got.dtype().is_float() && atol == 0.0 && rtol == 0.0 {
        return Err(format!("{got:?}, expected {want:?}"));
    }
    let mut worst: Option<(usize, f64, f64, f64)> = None;
    for (i, (g, w)) in wide(got)?.into_iter().zip(wide(want)?).enumerate() {
        if g == w || (g.is_nan() && w.is_nan()) {
            continue;
        }
        let over = (g - w).abs() - (atol + rtol * w.abs());
        let over = if over.is_nan() { f64::INFINITY } else { over };
        if over > 0.0 && worst.is_none_or(|(_, o, _, _)| over > o) {
            worst = Some((i, over, g, w));
        }
    }
    match worst {
        None => Ok(()),
        Some((i, _, g, w)) => {
            Err(format!("element {i} is {g}, expected {w} (± {atol} + {rtol}·|x|)"))
        }
    }
}
