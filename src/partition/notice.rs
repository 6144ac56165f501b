//! What the user of a placement should hear of.

use std::fmt;

use super::DeviceId;

/// Something about a placement that its user should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A node that the first device refused.
    FellBack {
        /// The node's name.
        node: String,
        /// Its operator.
        op: String,
        /// The device that refused it.
        from: DeviceId,
        /// The device that it is on.
        to: DeviceId,
        /// Why it was refused.
        why: String,
    },
    /// A node that runs with less range or precision than the graph states.
    Narrowed {
        /// The node's name.
        node: String,
        /// Its operator.
        op: String,
        /// The device that it is on.
        device: DeviceId,
        /// Why, and how.
        why: String,
    },
    /// A rule of a plan that places no node.
    UnusedRule {
        /// Which rule, from 0.
        rule: usize,
        /// What it matches.
        pattern: String,
        /// Whether it matches nodes that earlier rules had placed already.
        shadowed: bool,
    },
    /// A plan gives threads to a device that nothing is placed on.
    UnusedThreads {
        /// The device.
        device: DeviceId,
    },
    /// A plan gives a precision to a device that nothing is placed on.
    UnusedPrecision {
        /// The device.
        device: DeviceId,
    },
    /// A plan names a model by its hash, and the model's hash was not given.
    ModelNotCompared,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FellBack { node, op, from, to, why } => {
                write!(f, "node `{node}` ({op}) runs on `{to}`, as `{from}` refuses it: {why}")
            }
            Self::Narrowed { node, op, device, why } => {
                write!(f, "node `{node}` ({op}) is narrowed on `{device}`: {why}")
            }
            Self::UnusedRule { rule, pattern, shadowed: false } => {
                write!(f, "rule {rule} of the plan (`{pattern}`) matches no node")
            }
            Self::UnusedRule { rule, pattern, shadowed: true } => {
                write!(
                    f,
                    "rule {rule} of the plan (`{pattern}`) only matches nodes of earlier rules"
                )
            }
            Self::UnusedThreads { device } => {
                write!(f, "the plan gives threads to `{device}`, but places no node on it")
            }
            Self::UnusedPrecision { device } => {
                write!(f, "the plan gives a precision to `{device}`, but places no node on it")
            }
            Self::ModelNotCompared => {
                f.write_str("the plan's model_sha256 was not compared: the model has no hash here")
            }
        }
    }
}
