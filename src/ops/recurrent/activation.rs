//! The functions of the gates.

use super::real::Real;
use crate::error::{Result, bail};
use crate::graph::Node;

/// A function of a gate, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Gate {
    Relu,
    Tanh,
    Sigmoid,
    Affine(f64, f64),
    LeakyRelu(f64),
    ThresholdedRelu(f64),
    ScaledTanh(f64, f64),
    HardSigmoid(f64, f64),
    Elu(f64),
    Softsign,
    Softplus,
}

impl Gate {
    /// The functions of a node: `defaults` for each of `directions`, or those that it names. The
    /// numbers are used up in the order of the functions that take any.
    pub(super) fn read(node: &Node, defaults: &[&str], directions: usize) -> Result<Vec<Self>> {
        let count = defaults.len() * directions;
        let named: Vec<&str> = match node.strings("activations")? {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => defaults.iter().copied().cycle().take(count).collect(),
        };
        if named.len() != count {
            bail!(Graph, "attribute `activations` is {named:?}, expected {count} names");
        }
        let mut alphas = node.floats("activation_alpha")?.unwrap_or(&[]).iter();
        let mut betas = node.floats("activation_beta")?.unwrap_or(&[]).iter();
        let mut alpha = |default: f64| alphas.next().map_or(default, |a| f64::from(*a));
        let mut beta = |default: f64| betas.next().map_or(default, |b| f64::from(*b));
        named
            .into_iter()
            .map(|name| {
                Ok(match name.to_ascii_lowercase().as_str() {
                    "relu" => Self::Relu,
                    "tanh" => Self::Tanh,
                    "sigmoid" => Self::Sigmoid,
                    "affine" => Self::Affine(alpha(1.0), beta(0.0)),
                    "leakyrelu" => Self::LeakyRelu(alpha(0.01)),
                    "thresholdedrelu" => Self::ThresholdedRelu(alpha(1.0)),
                    "scaledtanh" => Self::ScaledTanh(alpha(1.0), beta(1.0)),
                    "hardsigmoid" => Self::HardSigmoid(alpha(0.2), beta(0.5)),
                    "elu" => Self::Elu(alpha(1.0)),
                    "softsign" => Self::Softsign,
                    "softplus" => Self::Softplus,
                    _ => bail!(Graph, "attribute `activations` names `{name}`, which is not known"),
                })
            })
            .collect()
    }

    /// Applies it to every element, after a clip to ±`clip`.
    pub(super) fn apply<T: Real>(self, x: &mut [T], clip: Option<T>) {
        if let Some(c) = clip {
            for x in x.iter_mut() {
                if *x > c {
                    *x = c;
                } else if *x < -c {
                    *x = -c;
                }
            }
        }
        let each = |x: &mut [T], f: &dyn Fn(f64) -> f64| {
            x.iter_mut().for_each(|x| *x = T::number(f(x.wide())));
        };
        match self {
            Self::Tanh => T::tanh(x),
            Self::Sigmoid => T::sigmoid(x),
            Self::Relu => each(x, &|x| if x < 0.0 { 0.0 } else { x }),
            Self::Affine(a, b) => each(x, &|x| a * x + b),
            Self::LeakyRelu(a) => each(x, &|x| if x < 0.0 { a * x } else { x }),
            Self::ThresholdedRelu(a) => each(x, &|x| if x < a { 0.0 } else { x }),
            Self::ScaledTanh(a, b) => each(x, &|x| a * (b * x).tanh()),
            Self::HardSigmoid(a, b) => each(x, &|x| (a * x + b).clamp(0.0, 1.0)),
            Self::Elu(a) => each(x, &|x| if x < 0.0 { a * x.exp_m1() } else { x }),
            Self::Softsign => each(x, &|x| x / (1.0 + x.abs())),
            Self::Softplus => each(x, &|x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
        }
    }
}
