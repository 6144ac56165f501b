//! Bits of whole numbers: `BitwiseAnd`, `BitwiseOr`, `BitwiseXor`, `BitwiseNot` and `BitShift`.

use std::fmt;

use super::{Broadcast, same_dtype, same_dtypes, spread};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::INTS;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, for_dtypes};

const UNSIGNED: &[DType] = &[DType::U8, DType::U16, DType::U32, DType::U64];

/// A function of the bits of two elements, the same at every width.
trait Bits: fmt::Debug + Send + Sync + 'static {
    fn apply<T>(a: T, b: T) -> T
    where
        T: std::ops::BitAnd<Output = T>
            + std::ops::BitOr<Output = T>
            + std::ops::BitXor<Output = T>;
}

macro_rules! bits {
    ($($name:ident |$a:ident, $b:ident| $body:expr;)*) => { $(
        #[derive(Debug)]
        struct $name;
        impl Bits for $name {
            #[inline(always)]
            fn apply<T>($a: T, $b: T) -> T
            where
                T: std::ops::BitAnd<Output = T>
                    + std::ops::BitOr<Output = T>
                    + std::ops::BitXor<Output = T>,
            {
                $body
            }
        }
    )* };
}
bits! {
    And |a, b| a & b;
    Or |a, b| a | b;
    Xor |a, b| a ^ b;
}

macro_rules! for_ints {
    ($dtype:expr, $t:ident => $body:expr) => {
        for_dtypes!($dtype, $t, $body, bail!(DType, "expected whole numbers, got {}", $dtype),
            I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
    };
}

#[derive(Debug)]
struct Pair<F>(F);

impl<F: Bits> CpuKernel for Pair<F> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (a, b) = (io.tensor(0)?, io.tensor(1)?);
        same_dtype(a, b)?;
        let plan = Broadcast::new([a.shape(), b.shape()])?;
        let mut out = io.allocate(a.dtype(), plan.shape.clone())?;
        for_ints!(a.dtype(), T => {
            let (a, b) = (a.as_slice::<T>()?, b.as_slice::<T>()?);
            plan.zip(io.threads(), a, b, out.as_mut_slice::<T>()?, F::apply::<T>);
        });
        io.emit(out);
        Ok(())
    }
}

fn infer_pair(i: &mut Infer<'_>) -> Result<()> {
    let dtype = same_dtypes(i, 0..2)?;
    let shape = i.broadcast(&[0, 1])?;
    i.set(0, dtype, shape);
    Ok(())
}

macro_rules! table {
    ($($(#[$doc:meta])* $def:ident $name:literal $kernel:expr, $cases:expr;)*) => { $(
        $(#[$doc])*
        pub(in crate::ops) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: 18,
            attributes: &[],
            inputs: &[Port::required("A", INTS), Port::required("B", INTS)],
            outputs: &[Port::required("C", INTS)],
            infer: infer_pair,
            batch: batch::elementwise,
            cost: cost::elementwise,
            prepare: |_| Ok(Box::new(Pair($kernel))),
            cases: $cases,
        };
    )* };
}
table! {
    /// The bits that both have.
    BITWISE_AND "BitwiseAnd" And, || pair_cases("BitwiseAnd", [8, 1], [0xF0, 0x00]);
    /// The bits that one or both have.
    BITWISE_OR "BitwiseOr" Or, || pair_cases("BitwiseOr", [-1, 15], [0xF3, 0xFC]);
    /// The bits that exactly one has.
    BITWISE_XOR "BitwiseXor" Xor, || pair_cases("BitwiseXor", [-9, 14], [0x03, 0xFC]);
}

/// `[-8, 9]` with `[15, 7]` as i64, and `[0xF3, 0x0C]` with `0xF0` as u8.
fn pair_cases(op: &'static str, wide: [i64; 2], narrow: [u8; 2]) -> Vec<Case> {
    vec![
        Case::new(op, 18, "i64")
            .input(filled(&[2, 1], &[-8_i64, 9]))
            .input(filled(&[2, 1], &[15_i64, 7]))
            .output(filled(&[2, 1], &wide)),
        Case::new(op, 18, "u8, broadcast")
            .input(filled(&[2], &[0xF3_u8, 0x0C]))
            .input(filled(&[], &[0xF0_u8]))
            .output(filled(&[2], &narrow)),
    ]
}

/// The other bits.
pub(in crate::ops) static BITWISE_NOT: OpDef = OpDef {
    name: "BitwiseNot",
    domain: "",
    since: 18,
    attributes: &[],
    inputs: &[Port::required("X", INTS)],
    outputs: &[Port::required("Y", INTS)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |_| Ok(Box::new(Not)),
    cases: || {
        vec![
            Case::new("BitwiseNot", 18, "i8")
                .input(filled(&[3], &[0_i8, -1, 5]))
                .output(filled(&[3], &[-1_i8, 0, -6])),
            Case::new("BitwiseNot", 18, "u16")
                .input(filled(&[2, 1], &[0_u16, 0x00FF]))
                .output(filled(&[2, 1], &[0xFFFF_u16, 0xFF00])),
            Case::new("BitwiseNot", 18, "i32")
                .input(filled(&[2], &[0_i32, i32::MIN]))
                .output(filled(&[2], &[-1_i32, i32::MAX])),
        ]
    },
};

#[derive(Debug)]
struct Not;

impl CpuKernel for Not {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let mut out = io.allocate(x.dtype(), x.shape().clone())?;
        for_ints!(x.dtype(), T => {
            let x = x.as_slice::<T>()?;
            spread(io.threads(), out.as_mut_slice::<T>()?, 1, |first, out| {
                out.iter_mut().zip(&x[first..]).for_each(|(o, x)| *o = !x);
            });
        });
        io.emit(out);
        Ok(())
    }
}

/// The bits of unsigned numbers moved to one side; what is moved beyond the end is lost.
pub(in crate::ops) static BIT_SHIFT: OpDef = OpDef {
    name: "BitShift",
    domain: "",
    since: 11,
    attributes: &[AttributeDef::required("direction", AttributeKind::String)],
    inputs: &[Port::required("X", UNSIGNED), Port::required("Y", UNSIGNED)],
    outputs: &[Port::required("Z", UNSIGNED)],
    infer: |i| {
        to_the_left(i.node)?;
        infer_pair(i)
    },
    batch: batch::elementwise,
    cost: cost::elementwise,
    prepare: |p| Ok(Box::new(Shift { left: to_the_left(p.node)? })),
    cases: || {
        let new = |way: &str, name: &str| {
            Case::new("BitShift", 11, name)
                .attr("direction", way)
                .input(filled(&[3], &[16_u8, 129, 1]))
        };
        vec![
            Case::new("BitShift", 11, "u32, out of the word")
                .attr("direction", "LEFT")
                .input(filled(&[3], &[3_u32, 1, 0x8000_0001]))
                .input(filled(&[3], &[30_u32, 32, 1]))
                .output(filled(&[3], &[0xC000_0000_u32, 0, 2])),
            new("LEFT", "left")
                .input(filled(&[3], &[1_u8, 1, 9]))
                .output(filled(&[3], &[32_u8, 2, 0])),
            new("RIGHT", "right, broadcast")
                .input(filled(&[1], &[3_u8]))
                .output(filled(&[3], &[2_u8, 16, 0])),
        ]
    },
};

fn to_the_left(node: &Node) -> Result<bool> {
    match node.string("direction")? {
        Some("LEFT") => Ok(true),
        Some("RIGHT") => Ok(false),
        other => bail!(Graph, "attribute `direction` is {other:?}, expected LEFT or RIGHT"),
    }
}

#[derive(Debug)]
struct Shift {
    left: bool,
}

impl CpuKernel for Shift {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, y) = (io.tensor(0)?, io.tensor(1)?);
        same_dtype(x, y)?;
        let plan = Broadcast::new([x.shape(), y.shape()])?;
        let mut out = io.allocate(x.dtype(), plan.shape.clone())?;
        for_dtypes!(x.dtype(), T, {
            // One line for four widths, of which only the widest can fail.
            #[allow(clippy::unnecessary_fallible_conversions, clippy::useless_conversion)]
            let by = |y: T| u32::try_from(y).unwrap_or(u32::MAX);
            let (x, y) = (x.as_slice::<T>()?, y.as_slice::<T>()?);
            let to = out.as_mut_slice::<T>()?;
            if self.left {
                plan.zip(io.threads(), x, y, to, |x, y| x.checked_shl(by(y)).unwrap_or(0));
            } else {
                plan.zip(io.threads(), x, y, to, |x, y| x.checked_shr(by(y)).unwrap_or(0));
            }
        }, bail!(DType, "{} is not an unsigned dtype", x.dtype()), U8 u8, U16 u16, U32 u32, U64 u64);
        io.emit(out);
        Ok(())
    }
}
