//! Which nodes the device has kernels for.

use super::lower::is_reshape;
use super::shader::Function;
use crate::device::Support;
use crate::error::Result;
use crate::graph::{Fact, Node};
use crate::tensor::DType;

/// The function of one tensor that a node is, if it is one.
///
/// # Errors
/// If an attribute is of another kind.
pub(super) fn function_of(node: &Node) -> Result<Option<Function>> {
    Ok(Some(match node.op.as_str() {
        "Relu" => Function::Relu,
        "LeakyRelu" => Function::LeakyRelu { alpha: node.float_or("alpha", 0.01)? },
        "Clip" => Function::Clip {
            lo: node.float_or("min", f32::NEG_INFINITY)?,
            hi: node.float_or("max", f32::INFINITY)?,
        },
        "Sigmoid" => Function::Sigmoid,
        "HardSigmoid" => Function::HardSigmoid {
            alpha: node.float_or("alpha", 0.2)?,
            beta: node.float_or("beta", 0.5)?,
        },
        "HardSwish" => Function::HardSwish,
        "Silu" => Function::Silu,
        "Gelu" => Function::Gelu,
        "Tanh" => Function::Tanh,
        "Exp" => Function::Exp,
        "Sqrt" => Function::Sqrt,
        "Abs" => Function::Abs,
        "Neg" => Function::Neg,
        "Reciprocal" => Function::Reciprocal,
        "Erf" => Function::Erf,
        _ => return Ok(None),
    }))
}

/// Whether the device can run a node whose inputs have these facts; `limit` is the largest buffer
/// that it binds, in bytes.
pub(super) fn supports(node: &Node, facts: &[Option<Fact>], limit: u64) -> Support {
    match refusal(node, facts, limit) {
        None => Support::Yes,
        Some(why) => Support::No(why),
    }
}

fn refusal(node: &Node, facts: &[Option<Fact>], limit: u64) -> Option<String> {
    let op = node.op.as_str();
    let domain_fits = node.domain.is_empty()
        || (node.domain == "brigade"
            && matches!(op, "FusedConv" | "FusedMatMul" | "FusedGemm" | "Silu"));
    if !domain_fits {
        return Some("it has no kernel for operators of this domain".to_owned());
    }
    // How many of the first inputs are numbers that kernels read.
    let read = match op {
        _ if is_reshape(op) => 1,
        "Conv" | "FusedConv" | "MatMul" | "FusedMatMul" | "Gemm" | "FusedGemm" | "Add" | "Sub"
        | "Mul" | "Div" | "PRelu" | "BatchNormalization" | "Clip" | "Concat" => facts.len(),
        "MaxPool" | "AveragePool" | "GlobalAveragePool" | "Transpose" => 1,
        _ => match function_of(node) {
            Ok(Some(_)) => 1,
            Ok(None) => return Some(format!("it has no kernel for {op}")),
            Err(e) => return Some(e.to_string()),
        },
    };
    for fact in facts.iter().take(read).flatten() {
        match fact.dtype {
            Some(DType::F32) => {}
            Some(other) => return Some(format!("it computes in f32, not in {other}")),
            None => return Some("it computes in f32, and the dtype is not known".to_owned()),
        }
        let elements = fact.concrete_shape().map(|s| s.iter().product::<usize>() as u64);
        if elements.is_some_and(|n| n.saturating_mul(4) > limit) {
            return Some(format!("a tensor of {fact} is larger than the {limit} bytes it binds"));
        }
    }
    if node.outputs.iter().skip(1).any(Option::is_some) {
        return Some(format!("it gives only the first output of {op}"));
    }
    let rank = facts.first().and_then(Option::as_ref).and_then(Fact::rank);
    let attribute = |name: &str| node.int_or(name, 0).unwrap_or(1);
    if node.domain.is_empty() && node.version < 7 && (attribute("broadcast") != 0 || op == "PRelu")
    {
        return Some("it does not broadcast as before operator set 7".to_owned());
    }
    match op {
        "Conv" | "FusedConv" | "MaxPool" | "AveragePool" => match rank {
            Some(3 | 4) => {}
            Some(n) => return Some(format!("its windows are over 1 or 2 axes, not {}", n - 2)),
            None => return Some("the number of axes is not known".to_owned()),
        },
        _ => {}
    }
    match op {
        "AveragePool" if attribute("ceil_mode") != 0 => {
            Some("it does not round the extents of a mean up".to_owned())
        }
        "BatchNormalization" if attribute("training_mode") != 0 => {
            Some("it does not train".to_owned())
        }
        "BatchNormalization" if node.int_or("spatial", 1).unwrap_or(0) == 0 => {
            Some("it normalises by channel, not by element".to_owned())
        }
        "Gelu" if node.string("approximate").ok().flatten().is_some_and(|a| a != "none") => {
            Some("it has no approximate Gelu".to_owned())
        }
        _ => None,
    }
}
