//! Types of values.

use super::{pb, tensor};
use crate::error::{Result, bail};
use crate::graph::{Dim, Fact, Graph};
use crate::import::Limits;
use crate::tensor::DType;

/// What a type says; of anything but a tensor, nothing. Without `shapes`, only the dtype.
///
/// An extent that is unset, negative, or named by something that is no name (such as `?`) is a
/// fresh symbol of `graph`: exporters write `?` for several extents that differ.
pub(super) fn read(
    declared: Option<&pb::TypeProto>,
    graph: &mut Graph,
    shapes: bool,
    limits: &Limits,
) -> Result<Fact> {
    use pb::type_proto::Value;
    let Some(pb::TypeProto { value: Some(Value::TensorType(of)), .. }) = declared else {
        return Ok(Fact::unknown());
    };
    let dtype = match of.elem_type.unwrap_or(0) {
        0 => None,
        n => match DType::from_onnx(n) {
            Some(d) => Some(d),
            None => bail!(Unsupported, "elements of type {}", tensor::type_name(n)),
        },
    };
    let Some(declared) = of.shape.as_ref().filter(|_| shapes) else {
        return Ok(Fact { dtype, shape: None });
    };
    limits.check_rank(declared.dim.len())?;
    let shape = declared.dim.iter().map(|d| extent(d, graph)).collect();
    Ok(Fact { dtype, shape: Some(shape) })
}

fn extent(dim: &pb::tensor_shape_proto::Dimension, graph: &mut Graph) -> Dim {
    use pb::tensor_shape_proto::dimension::Value;
    match &dim.value {
        Some(Value::DimValue(n)) if *n >= 0 => Dim::fixed(*n),
        Some(Value::DimParam(name)) if is_name(name) => Dim::symbol(name.clone()),
        _ => graph.fresh_symbol(),
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.')
}
