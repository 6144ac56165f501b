//! The tree in CUDA C, in ASCII, with no header: NVRTC takes it as it is.
//!
//! The parameters are the table of words, what the kernel reads, and what it writes, each a pointer
//! into the device's memory.

use std::fmt::Write as _;

use super::ir::{Expr, Function, Kernel, Node, Place, Scalar, Stmt};
use super::wgsl::symbol;

impl Kernel {
    /// The text in CUDA C; its entry point is `entry`, an identifier.
    pub fn cuda(&self, entry: &str) -> String {
        let mut s = String::new();
        let threads: u32 = self.threads.iter().product();
        // Without a number of blocks the compiler would rather spill than use more registers.
        let blocks = (512 / threads.max(1)).max(1);
        let _ = write!(
            s,
            "extern \"C\" __global__ void __launch_bounds__({threads}, {blocks}) {entry}("
        );
        let _ = write!(s, "const unsigned* __restrict__ p");
        for (i, ty) in self.inputs.iter().enumerate() {
            let _ = write!(s, ", const {}* __restrict__ x{i}", stored(*ty));
        }
        let _ = writeln!(s, ", {}* __restrict__ y) {{", stored(self.output));
        for (i, (ty, len)) in self.shared.iter().enumerate() {
            let _ = writeln!(s, "  __shared__ {} s{i}[{len}];", stored(*ty));
        }
        for statement in &self.body {
            write(&mut s, statement, 1);
        }
        s += "}\n";
        s
    }
}

fn stored(ty: Scalar) -> &'static str {
    match ty {
        Scalar::F32 => "float",
        Scalar::I32 => "int",
        Scalar::U32 | Scalar::Bool => "unsigned",
    }
}

fn name(ty: Scalar) -> &'static str {
    if ty == Scalar::Bool { "bool" } else { stored(ty) }
}

fn write(s: &mut String, statement: &Stmt, depth: usize) {
    let pad = "  ".repeat(depth);
    let inner = |s: &mut String, body: &[Stmt]| {
        for statement in body {
            write(s, statement, depth + 1);
        }
    };
    let _ = match statement {
        Stmt::Let(v, e) => writeln!(s, "{pad}const {} v{v} = {};", name(e.ty), text(e)),
        Stmt::Var(v, e) => writeln!(s, "{pad}{} v{v} = {};", name(e.ty), text(e)),
        Stmt::Set(v, e) => writeln!(s, "{pad}v{v} = {};", text(e)),
        Stmt::Store(at, e) => writeln!(s, "{pad}y[{}] = {};", text(at), text(e)),
        Stmt::StoreShared(n, at, e) => writeln!(s, "{pad}s{n}[{}] = {};", text(at), text(e)),
        Stmt::Barrier => writeln!(s, "{pad}__syncthreads();"),
        Stmt::For { var, from, below, step, body } => {
            let (from, below, step) = (text(from), text(below), text(step));
            let _ = writeln!(
                s,
                "{pad}for (unsigned v{var} = {from}; v{var} < {below}; v{var} += {step}) {{"
            );
            inner(s, body);
            writeln!(s, "{pad}}}")
        }
        Stmt::If { condition, then, otherwise } => {
            let _ = writeln!(s, "{pad}if ({}) {{", text(condition));
            inner(s, then);
            if !otherwise.is_empty() {
                let _ = writeln!(s, "{pad}}} else {{");
                inner(s, otherwise);
            }
            writeln!(s, "{pad}}}")
        }
        Stmt::Return => writeln!(s, "{pad}return;"),
    };
}

fn text(e: &Expr) -> String {
    match &*e.node {
        Node::F32(v) if v.is_finite() => format!("({v:?}f)"),
        Node::F32(v) => format!("__uint_as_float({:#x}u)", v.to_bits()),
        Node::I32(i32::MIN) => "(-2147483647 - 1)".to_owned(),
        Node::I32(v) => format!("({v})"),
        Node::U32(v) => format!("{v}u"),
        Node::Bool(v) => v.to_string(),
        Node::Var(v) => format!("v{v}"),
        Node::Word(i) => format!("p[{}]", text(i)),
        Node::Load(n, at) => format!("x{n}[{}]", text(at)),
        Node::Shared(n, at) => format!("s{n}[{}]", text(at)),
        Node::Place(Place::Thread(a)) => format!("threadIdx.{}", axis(*a)),
        Node::Place(Place::Group(a)) => format!("blockIdx.{}", axis(*a)),
        Node::Infix(op, a, b) => format!("({} {} {})", text(a), symbol(*op), text(b)),
        Node::Negate(a) => format!("(-{})", text(a)),
        Node::Invert(a) if a.ty == Scalar::Bool => format!("(!{})", text(a)),
        Node::Invert(a) => format!("(~{})", text(a)),
        Node::Call(f, a) => {
            let a: Vec<String> = a.iter().map(text).collect();
            format!("{}({})", function(*f, e.ty), a.join(", "))
        }
        Node::Select(c, yes, no) => format!("({} ? {} : {})", text(c), text(yes), text(no)),
        Node::Cast(a) if e.ty == Scalar::Bool => {
            let zero = if a.ty == Scalar::F32 { "0.0f" } else { "0" };
            format!("({} != {zero})", text(a))
        }
        Node::Cast(a) => format!("(({}){})", name(e.ty), text(a)),
        Node::Bits(a) => format!("{}({})", same_bits(a.ty, e.ty), text(a)),
    }
}

fn axis(a: u8) -> &'static str {
    ["x", "y", "z"][usize::from(a) % 3]
}

fn same_bits(from: Scalar, to: Scalar) -> &'static str {
    match (from, to) {
        (Scalar::F32, Scalar::I32) => "__float_as_int",
        (Scalar::F32, _) => "__float_as_uint",
        (Scalar::I32, Scalar::F32) => "__int_as_float",
        (_, Scalar::F32) => "__uint_as_float",
        (_, Scalar::I32) => "(int)",
        _ => "(unsigned)",
    }
}

fn function(f: Function, ty: Scalar) -> &'static str {
    match (f, ty) {
        (Function::Abs, Scalar::F32) => "fabsf",
        (Function::Abs, _) => "abs",
        (Function::Ceil, _) => "ceilf",
        (Function::Exp, _) => "expf",
        (Function::Floor, _) => "floorf",
        (Function::Fma, _) => "fmaf",
        (Function::Log, _) => "logf",
        (Function::Max, Scalar::F32) => "fmaxf",
        (Function::Max, _) => "max",
        (Function::Min, Scalar::F32) => "fminf",
        (Function::Min, _) => "min",
        (Function::Round, _) => "rintf",
        (Function::Sqrt, _) => "sqrtf",
    }
}
