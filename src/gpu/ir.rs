//! The tree of a kernel: typed expressions and statements, and the builder that writes them down.
//!
//! A kernel reads words (extents, strides) from a small table, elements from its inputs, and writes
//! one output. What the two dialects spell differently is left to them: the tree says what is meant.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};
use std::sync::Arc;

/// The type of an expression, or of the elements of a buffer. A `Bool` lies in memory as a `U32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// A float of 32 bits.
    F32,
    /// A signed whole number of 32 bits.
    I32,
    /// A whole number of 32 bits.
    U32,
    /// True or false.
    Bool,
}

/// What a thread knows of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Its number in its group along an axis.
    Thread(u8),
    /// The number of its group along an axis.
    Group(u8),
}

/// An operation between two operands of one type (a shift takes its distance as `U32`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Infix {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Both,
    Either,
}

/// A function that both dialects bring. Those of floats follow IEEE 754 except for NaN, infinities
/// and accuracy, where a driver may do as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Abs,
    Ceil,
    Exp,
    Floor,
    Fma,
    Log,
    Max,
    Min,
    /// To the nearest, ties to even.
    Round,
    Sqrt,
}

/// A typed expression.
#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub(super) ty: Scalar,
    pub(super) node: Arc<Node>,
}

/// What an expression is.
#[derive(Debug)]
pub(super) enum Node {
    F32(f32),
    I32(i32),
    U32(u32),
    Bool(bool),
    Var(u32),
    /// A word of the table.
    Word(Expr),
    /// An element of a buffer, by the buffer's number.
    Load(usize, Expr),
    /// An element of an array of the group.
    Shared(usize, Expr),
    Place(Place),
    Infix(Infix, Expr, Expr),
    Negate(Expr),
    Invert(Expr),
    Call(Function, Vec<Expr>),
    /// The first where the condition holds, else the second.
    Select(Expr, Expr, Expr),
    /// A conversion of the number.
    Cast(Expr),
    /// The same bits.
    Bits(Expr),
}

/// A statement.
#[derive(Clone, Debug)]
pub(super) enum Stmt {
    Let(u32, Expr),
    Var(u32, Expr),
    Set(u32, Expr),
    /// An element of the output.
    Store(Expr, Expr),
    StoreShared(usize, Expr, Expr),
    /// Every thread of the group comes here before any goes on.
    Barrier,
    /// `for v = from; v < below; v += step`, all `U32`.
    For {
        var: u32,
        from: Expr,
        below: Expr,
        step: Expr,
        body: Vec<Stmt>,
    },
    If {
        condition: Expr,
        then: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    /// The thread is done. Never in a kernel with barriers.
    Return,
}

/// A kernel of the tree.
///
/// The dialects print it: [`wgsl`](Kernel::wgsl) and [`cuda`](Kernel::cuda).
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What it computes, in lower-case letters, digits and `_`.
    pub name: String,
    /// Groups of four words in its table.
    pub words4: usize,
    /// The types of what it reads, in the order of its bindings.
    pub inputs: Vec<Scalar>,
    /// The type of what it writes.
    pub output: Scalar,
    /// Threads of a group along each axis.
    pub threads: [u32; 3],
    pub(super) shared: Vec<(Scalar, u32)>,
    pub(super) body: Vec<Stmt>,
}

impl Kernel {
    /// Bytes of memory that the threads of a group share.
    pub fn group_bytes(&self) -> usize {
        self.shared.iter().map(|(_, len)| *len as usize * 4).sum()
    }

    /// Whether threads of a group wait for each other.
    pub fn has_barriers(&self) -> bool {
        fn any(body: &[Stmt]) -> bool {
            body.iter().any(|s| match s {
                Stmt::Barrier => true,
                Stmt::For { body, .. } => any(body),
                Stmt::If { then, otherwise, .. } => any(then) || any(otherwise),
                _ => false,
            })
        }
        any(&self.body)
    }
}

/// A name for a value: it can be copied and stands wherever an expression does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Var {
    pub(super) ty: Scalar,
    id: u32,
}

/// A buffer that a kernel reads or writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pub(super) ty: Scalar,
    number: usize,
}

/// An array that the threads of a group share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    ty: Scalar,
    number: usize,
}

fn expr(ty: Scalar, node: Node) -> Expr {
    Expr { ty, node: Arc::new(node) }
}

impl From<Var> for Expr {
    fn from(v: Var) -> Self {
        expr(v.ty, Node::Var(v.id))
    }
}

impl From<&Expr> for Expr {
    fn from(e: &Expr) -> Self {
        e.clone()
    }
}

macro_rules! literals {
    ($($t:ty => $ty:ident),*) => {$(
        impl From<$t> for Expr {
            fn from(v: $t) -> Self {
                expr(Scalar::$ty, Node::$ty(v))
            }
        }
    )*};
}
literals!(f32 => F32, i32 => I32, u32 => U32, bool => Bool);

fn infix(op: Infix, a: Expr, b: Expr) -> Expr {
    use Infix::{Both, Either, Eq, Ge, Gt, Le, Lt, Ne, Shl, Shr};
    // A shift takes its distance as it is; other operands are of the left one's type.
    let b = if matches!(op, Shl | Shr) { b } else { b.to(a.ty) };
    let ty = match op {
        Eq | Ne | Lt | Le | Gt | Ge | Both | Either => Scalar::Bool,
        _ => a.ty,
    };
    expr(ty, Node::Infix(op, a, b))
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),*) => {$(
        impl<R: Into<Expr>> $trait<R> for Expr {
            type Output = Expr;
            fn $method(self, right: R) -> Expr {
                infix(Infix::$op, self, right.into())
            }
        }
        impl<R: Into<Expr>> $trait<R> for &Expr {
            type Output = Expr;
            fn $method(self, right: R) -> Expr {
                infix(Infix::$op, self.clone(), right.into())
            }
        }
        impl<R: Into<Expr>> $trait<R> for Var {
            type Output = Expr;
            fn $method(self, right: R) -> Expr {
                infix(Infix::$op, self.into(), right.into())
            }
        }
    )*};
}
operators!(
    Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, Rem rem Rem,
    BitAnd bitand And, BitOr bitor Or, BitXor bitxor Xor, Shl shl Shl, Shr shr Shr
);

impl Neg for Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        expr(self.ty, Node::Negate(self))
    }
}

impl Neg for Var {
    type Output = Expr;
    fn neg(self) -> Expr {
        -Expr::from(self)
    }
}

impl Not for Expr {
    type Output = Expr;
    fn not(self) -> Expr {
        expr(self.ty, Node::Invert(self))
    }
}

/// What can be asked of anything that stands for an expression.
pub(super) trait Operand: Into<Expr> + Sized {
    fn lt(self, other: impl Into<Expr>) -> Expr {
        infix(Infix::Lt, self.into(), other.into())
    }
    fn le(self, other: impl Into<Expr>) -> Expr {
        infix(Infix::Le, self.into(), other.into())
    }
    fn gt(self, other: impl Into<Expr>) -> Expr {
        infix(Infix::Gt, self.into(), other.into())
    }
    fn ge(self, other: impl Into<Expr>) -> Expr {
        infix(Infix::Ge, self.into(), other.into())
    }
    fn equals(self, other: impl Into<Expr>) -> Expr {
        infix(Infix::Eq, self.into(), other.into())
    }
    fn differs(self, other: impl Into<Expr>) -> Expr {
        infix(Infix::Ne, self.into(), other.into())
    }
    fn and(self, other: impl Into<Expr>) -> Expr {
        infix(Infix::Both, self.into(), other.into())
    }
    fn or(self, other: impl Into<Expr>) -> Expr {
        infix(Infix::Either, self.into(), other.into())
    }
    /// The number in another type; `Bool` becomes 0 or 1, and what is not 0 becomes true.
    fn to(self, ty: Scalar) -> Expr {
        let e = self.into();
        if e.ty == ty { e } else { expr(ty, Node::Cast(e)) }
    }
    /// The same bits as another type of 32 bits.
    fn bits(self, ty: Scalar) -> Expr {
        let e = self.into();
        if e.ty == ty { e } else { expr(ty, Node::Bits(e)) }
    }
    fn call(self, f: Function) -> Expr {
        let e = self.into();
        expr(e.ty, Node::Call(f, vec![e]))
    }
    fn abs(self) -> Expr {
        self.call(Function::Abs)
    }
    fn exp(self) -> Expr {
        self.call(Function::Exp)
    }
    fn ln(self) -> Expr {
        self.call(Function::Log)
    }
    fn sqrt(self) -> Expr {
        self.call(Function::Sqrt)
    }
    fn min(self, other: impl Into<Expr>) -> Expr {
        let e = self.into();
        expr(e.ty, Node::Call(Function::Min, vec![e, other.into()]))
    }
    fn max(self, other: impl Into<Expr>) -> Expr {
        let e = self.into();
        expr(e.ty, Node::Call(Function::Max, vec![e, other.into()]))
    }
}

impl<T: Into<Expr>> Operand for T {}

/// `yes` where `condition` holds, else `no`.
pub(super) fn select(
    condition: impl Into<Expr>,
    yes: impl Into<Expr>,
    no: impl Into<Expr>,
) -> Expr {
    let (yes, no) = (yes.into(), no.into());
    let no = no.to(yes.ty);
    expr(yes.ty, Node::Select(condition.into(), yes, no))
}

/// `a * b + c` in one rounding, or in two where the device has no better.
pub(super) fn fma(a: impl Into<Expr>, b: impl Into<Expr>, c: impl Into<Expr>) -> Expr {
    expr(Scalar::F32, Node::Call(Function::Fma, vec![a.into(), b.into(), c.into()]))
}

/// Writes a kernel down, statement by statement.
#[derive(Debug)]
pub(super) struct Builder {
    kernel: Kernel,
    open: Vec<Vec<Stmt>>,
    next: u32,
}

impl Builder {
    /// A kernel with groups of so many threads and a table of `words4` groups of four words.
    pub(super) fn new(name: &str, words4: usize, threads: [u32; 3], output: Scalar) -> Self {
        let kernel = Kernel {
            name: name.to_owned(),
            words4,
            inputs: Vec::new(),
            output,
            threads,
            shared: Vec::new(),
            body: Vec::new(),
        };
        Self { kernel, open: vec![Vec::new()], next: 0 }
    }

    /// One more buffer that it reads.
    pub(super) fn input(&mut self, ty: Scalar) -> Buffer {
        self.kernel.inputs.push(ty);
        Buffer { ty, number: self.kernel.inputs.len() - 1 }
    }

    /// An array of the group.
    pub(super) fn shared(&mut self, ty: Scalar, len: u32) -> Shared {
        self.kernel.shared.push((ty, len));
        Shared { ty, number: self.kernel.shared.len() - 1 }
    }

    /// The kernel.
    pub(super) fn finish(mut self) -> Kernel {
        self.kernel.body = self.open.pop().unwrap_or_default();
        self.kernel
    }

    fn push(&mut self, s: Stmt) {
        if let Some(body) = self.open.last_mut() {
            body.push(s);
        }
    }

    fn fresh(&mut self, ty: Scalar) -> Var {
        self.next += 1;
        Var { ty, id: self.next - 1 }
    }

    /// A name for a value.
    pub(super) fn bind(&mut self, e: impl Into<Expr>) -> Var {
        let e = e.into();
        let v = self.fresh(e.ty);
        self.push(Stmt::Let(v.id, e));
        v
    }

    /// A variable.
    pub(super) fn variable(&mut self, e: impl Into<Expr>) -> Var {
        let e = e.into();
        let v = self.fresh(e.ty);
        self.push(Stmt::Var(v.id, e));
        v
    }

    /// Gives a variable a new value.
    pub(super) fn set(&mut self, v: Var, e: impl Into<Expr>) {
        self.push(Stmt::Set(v.id, e.to(v.ty)));
    }

    /// Word `i` of the table.
    pub(super) fn word(&self, i: u32) -> Expr {
        debug_assert!((i as usize) < self.kernel.words4 * 4);
        expr(Scalar::U32, Node::Word(i.into()))
    }

    /// Word `i` of the table as a float.
    pub(super) fn float_word(&self, i: u32) -> Expr {
        self.word(i).bits(Scalar::F32)
    }

    /// The word of the table with a number that is computed.
    pub(super) fn word_at(&mut self, i: impl Into<Expr>) -> Expr {
        let at = self.bind(i);
        expr(Scalar::U32, Node::Word(at.into()))
    }

    pub(super) fn thread(&self, axis: u8) -> Expr {
        expr(Scalar::U32, Node::Place(Place::Thread(axis)))
    }

    pub(super) fn group(&self, axis: u8) -> Expr {
        expr(Scalar::U32, Node::Place(Place::Group(axis)))
    }

    /// The number of the thread along an axis of the whole launch.
    pub(super) fn global(&self, axis: u8) -> Expr {
        let threads = self.kernel.threads[usize::from(axis)];
        self.group(axis) * threads + self.thread(axis)
    }

    /// An element of a buffer.
    pub(super) fn load(&self, b: Buffer, at: impl Into<Expr>) -> Expr {
        match b.ty {
            Scalar::Bool => expr(Scalar::U32, Node::Load(b.number, at.into())).differs(0_u32),
            ty => expr(ty, Node::Load(b.number, at.into())),
        }
    }

    /// Stores an element of the output.
    pub(super) fn store(&mut self, at: impl Into<Expr>, e: impl Into<Expr>) {
        let e = e.to(self.kernel.output);
        let e = if e.ty == Scalar::Bool { e.to(Scalar::U32) } else { e };
        self.push(Stmt::Store(at.into(), e));
    }

    /// An element of an array of the group.
    pub(super) fn peek(&self, s: Shared, at: impl Into<Expr>) -> Expr {
        expr(s.ty, Node::Shared(s.number, at.into()))
    }

    /// Stores an element of an array of the group.
    pub(super) fn poke(&mut self, s: Shared, at: impl Into<Expr>, e: impl Into<Expr>) {
        self.push(Stmt::StoreShared(s.number, at.into(), e.into()));
    }

    pub(super) fn barrier(&mut self) {
        self.push(Stmt::Barrier);
    }

    /// `body` for each `from`, `from + step`, … below `below`.
    pub(super) fn each(
        &mut self,
        from: impl Into<Expr>,
        below: impl Into<Expr>,
        step: impl Into<Expr>,
        body: impl FnOnce(&mut Self, Var),
    ) {
        let var = self.fresh(Scalar::U32);
        self.open.push(Vec::new());
        body(self, var);
        let body = self.open.pop().unwrap_or_default();
        let (from, below, step) = (from.into(), below.into(), step.into());
        self.push(Stmt::For { var: var.id, from, below, step, body });
    }

    /// `then` where the condition holds.
    pub(super) fn when(&mut self, condition: impl Into<Expr>, then: impl FnOnce(&mut Self)) {
        self.open.push(Vec::new());
        then(self);
        let then = self.open.pop().unwrap_or_default();
        self.push(Stmt::If { condition: condition.into(), then, otherwise: Vec::new() });
    }

    /// Ends the thread where the condition holds.
    pub(super) fn leave_if(&mut self, condition: impl Into<Expr>) {
        let then = vec![Stmt::Return];
        self.push(Stmt::If { condition: condition.into(), then, otherwise: Vec::new() });
    }

    /// The number of the thread in a flat range whose length is word 0 and whose rows of threads
    /// have word 1 threads; threads beyond it end.
    pub(super) fn flat(&mut self) -> Var {
        let i = self.bind(self.global(1) * self.word(1) + self.global(0));
        self.leave_if(i.ge(self.word(0)));
        i
    }

    /// Takes `i` apart by the extents in the `axes` words from `extents` (the last one runs
    /// fastest) and gives, for each table of strides from `strides`, the sum of coordinates times
    /// strides. What is left of `i` beyond the extents stays in the first coordinate.
    pub(super) fn positions(
        &mut self,
        i: impl Into<Expr>,
        axes: impl Into<Expr>,
        extents: u32,
        strides: &[u32],
    ) -> Vec<Var> {
        let rest = self.variable(i);
        let axes = self.bind(axes);
        let sums: Vec<Var> = strides.iter().map(|_| self.variable(0_u32)).collect();
        self.each(0_u32, axes, 1_u32, |b, a| {
            let d = b.bind(axes - 1_u32 - a);
            let extent = b.word_at(d + extents);
            let extent = b.bind(extent);
            let at = b.bind(rest % extent);
            b.set(rest, rest / extent);
            for (sum, from) in sums.iter().zip(strides) {
                let stride = b.word_at(d + *from);
                b.set(*sum, *sum + at * stride);
            }
        });
        sums
    }
}
