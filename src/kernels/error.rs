//! What a kernel answers when its arguments do not fit together.

/// Why a kernel refused its arguments. Nothing was computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A slice is shorter than its shape and strides say.
    #[error("{operand} holds {have} elements but its shape needs {need}: pass the whole buffer")]
    Length {
        /// The argument.
        operand: &'static str,
        /// Elements that the shape reaches.
        need: usize,
        /// Elements that were passed.
        have: usize,
    },
    /// Two arguments disagree about a dimension.
    #[error("{dim} of {operand} is {have} but must be {need}")]
    Mismatch {
        /// The argument.
        operand: &'static str,
        /// The dimension.
        dim: &'static str,
        /// The size that the other arguments ask for.
        need: usize,
        /// The size found.
        have: usize,
    },
    /// A size computed from the arguments does not fit into the address space.
    #[error("the size of {operand} overflows: its dimensions are too large")]
    Overflow {
        /// The argument.
        operand: &'static str,
    },
    /// An argument has a value that the kernel has no meaning for.
    #[error("{operand} {problem}")]
    Invalid {
        /// The argument.
        operand: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// The product of sizes, or which operand is too large.
pub(in crate::kernels) fn checked_product(
    operand: &'static str,
    sizes: &[usize],
) -> Result<usize, KernelError> {
    // A zero anywhere makes the product zero, however large the rest is.
    if sizes.contains(&0) {
        return Ok(0);
    }
    sizes
        .iter()
        .try_fold(1usize, |acc, &s| acc.checked_mul(s))
        .filter(|&n| n <= isize::MAX as usize / 8)
        .ok_or(KernelError::Overflow { operand })
}

/// Refuses a slice that is shorter than `need`.
pub(in crate::kernels) fn check_len(
    operand: &'static str,
    have: usize,
    need: usize,
) -> Result<(), KernelError> {
    if have < need { Err(KernelError::Length { operand, need, have }) } else { Ok(()) }
}
