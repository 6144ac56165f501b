//! The attributes of fused nodes: what is done to a sum before it is stored.

use super::{AttributeDef, AttributeKind};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::kernels::Activation;

/// The function applied to each output element: `Relu`, `Clip`, `HardSwish`, `HardSigmoid`,
/// `Sigmoid`, `Silu`, `Gelu` or `Tanh`; left out or empty: none.
pub(crate) const ACTIVATION: AttributeDef =
    AttributeDef::optional("activation", AttributeKind::String);
/// The function's numbers: lower and upper bound of `Clip`, alpha and beta of `HardSigmoid`.
pub(crate) const ACTIVATION_PARAMS: AttributeDef =
    AttributeDef::optional("activation_params", AttributeKind::Floats);
/// Whether the residual is added after the activation (1) or before it (0, the default).
pub(crate) const RESIDUAL_AFTER: AttributeDef =
    AttributeDef::optional("residual_after_activation", AttributeKind::Int);

/// The activation that a fused node names.
///
/// # Errors
/// If the name is not known, or its numbers are not as many as it takes.
pub(crate) fn activation(node: &Node) -> Result<Activation> {
    let name = node.string("activation")?.unwrap_or("");
    let numbers = node.floats("activation_params")?.unwrap_or(&[]);
    let takes = match name {
        "Clip" | "HardSigmoid" => 2,
        _ => 0,
    };
    if numbers.len() != takes {
        bail!(
            Graph,
            "attribute `activation_params` has {} numbers, activation `{name}` takes {takes}",
            numbers.len()
        );
    }
    Ok(match (name, numbers) {
        ("", _) => Activation::None,
        ("Relu", _) => Activation::Relu,
        ("Clip", &[lo, hi]) => Activation::Clip { lo, hi },
        ("HardSwish", _) => Activation::HardSwish,
        ("HardSigmoid", &[alpha, beta]) => Activation::HardSigmoid { alpha, beta },
        ("Sigmoid", _) => Activation::Sigmoid,
        ("Silu", _) => Activation::Silu,
        ("Gelu", _) => Activation::Gelu,
        ("Tanh", _) => Activation::Tanh,
        _ => bail!(Graph, "attribute `activation` is `{name}`, which is not known"),
    })
}

/// Whether the residual is added after the activation.
///
/// # Errors
/// If the attribute is of another kind.
pub(crate) fn residual_after(node: &Node) -> Result<bool> {
    Ok(node.int_or(RESIDUAL_AFTER.name, 0)? != 0)
}
