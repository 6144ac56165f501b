//! Where two ways of running a graph begin to differ.

use std::collections::HashMap;

use crate::error::Result;
use crate::pipeline::HeteroExecutable;
use crate::tensor::{DType, Value, cast};

/// The first node, in the order of `candidate`, whose outputs differ from those of the node of the
/// same name in `reference` by more than `atol + rtol * |reference|`; its path and operator.
///
/// # Errors
/// If either cannot be run.
pub fn first_divergence(
    reference: &HeteroExecutable,
    candidate: &HeteroExecutable,
    feed: &[(String, Value)],
    atol: f64,
    rtol: f64,
) -> Result<Option<String>> {
    let mut seen: HashMap<String, Vec<Value>> = HashMap::new();
    reference.run_observed(feed.to_vec(), &mut |name, _, outputs| {
        seen.insert(name.to_owned(), outputs.to_vec());
    })?;
    let mut found = None;
    candidate.run_observed(feed.to_vec(), &mut |name, op, outputs| {
        if found.is_some() {
            return;
        }
        let Some(expected) = seen.get(name) else { return };
        let same = expected.len() == outputs.len()
            && expected.iter().zip(outputs).all(|(a, b)| close(a, b, atol, rtol));
        if !same {
            found = Some(format!("{name} ({op})"));
        }
    })?;
    Ok(found)
}

fn close(a: &Value, b: &Value, atol: f64, rtol: f64) -> bool {
    let (Value::Tensor(a), Value::Tensor(b)) = (a, b) else { return a == b };
    if a == b {
        return true;
    }
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return false;
    }
    let (Ok(a), Ok(b)) = (cast(a, DType::F64), cast(b, DType::F64)) else { return false };
    match (a.as_slice::<f64>(), b.as_slice::<f64>()) {
        (Ok(a), Ok(b)) => a.iter().zip(b).all(|(x, y)| {
            x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= atol + rtol * x.abs()
        }),
        _ => false,
    }
}
