//! The tree in WGSL.
//!
//! Binding 0 is the table of words, the last one what the kernel writes, those between what it
//! reads. Infinities and NaN cannot be written as constants there: their bits come from a variable.

use std::fmt::Write as _;

use super::ir::{Expr, Function, Infix, Kernel, Node, Place, Scalar, Stmt};

impl Kernel {
    /// The text in WGSL; its entry point is `main`.
    pub fn wgsl(&self) -> String {
        let mut s = String::new();
        let words4 = self.words4;
        let _ = writeln!(s, "@group(0) @binding(0) var<uniform> p: array<vec4<u32>, {words4}>;");
        for (i, ty) in self.inputs.iter().enumerate() {
            let (binding, ty) = (i + 1, stored(*ty));
            let _ =
                writeln!(s, "@group(0) @binding({binding}) var<storage, read> x{i}: array<{ty}>;");
        }
        let (last, ty) = (self.inputs.len() + 1, stored(self.output));
        let _ = writeln!(s, "@group(0) @binding({last}) var<storage, read_write> y: array<{ty}>;");
        for (i, (ty, len)) in self.shared.iter().enumerate() {
            let ty = stored(*ty);
            let _ = writeln!(s, "var<workgroup> s{i}: array<{ty}, {len}>;");
        }
        s += "var<private> raised: u32 = 0x7f800000u;\n";
        let [x, y, z] = self.threads;
        let _ = writeln!(s, "@compute @workgroup_size({x}, {y}, {z})");
        s += "fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_id) t: vec3<u32>) {\n";
        for statement in &self.body {
            write(&mut s, statement, 1);
        }
        s += "}\n";
        s
    }
}

fn stored(ty: Scalar) -> &'static str {
    match ty {
        Scalar::F32 => "f32",
        Scalar::I32 => "i32",
        Scalar::U32 | Scalar::Bool => "u32",
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
        Stmt::Let(v, e) => writeln!(s, "{pad}let v{v} = {};", text(e)),
        Stmt::Var(v, e) => writeln!(s, "{pad}var v{v} = {};", text(e)),
        Stmt::Set(v, e) => writeln!(s, "{pad}v{v} = {};", text(e)),
        Stmt::Store(at, e) => writeln!(s, "{pad}y[{}] = {};", text(at), text(e)),
        Stmt::StoreShared(n, at, e) => writeln!(s, "{pad}s{n}[{}] = {};", text(at), text(e)),
        Stmt::Barrier => writeln!(s, "{pad}workgroupBarrier();"),
        Stmt::For { var, from, below, step, body } => {
            let (from, below, step) = (text(from), text(below), text(step));
            let _ = writeln!(
                s,
                "{pad}for (var v{var} = {from}; v{var} < {below}; v{var} += {step}) {{"
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
        Node::F32(v) if v.is_nan() => "bitcast<f32>(raised | 0x400000u)".to_owned(),
        Node::F32(v) if v.is_infinite() && *v > 0.0 => "bitcast<f32>(raised)".to_owned(),
        Node::F32(v) if v.is_infinite() => "bitcast<f32>(raised | 0x80000000u)".to_owned(),
        Node::F32(v) if v.is_sign_negative() => format!("(-{:?}f)", -v),
        Node::F32(v) => format!("{v:?}f"),
        Node::I32(i32::MIN) => "(-2147483647i - 1i)".to_owned(),
        Node::I32(v) if *v < 0 => format!("(-{}i)", v.unsigned_abs()),
        Node::I32(v) => format!("{v}i"),
        Node::U32(v) => format!("{v}u"),
        Node::Bool(v) => v.to_string(),
        Node::Var(v) => format!("v{v}"),
        Node::Word(i) => match &*i.node {
            Node::U32(i) => format!("p[{}].{}", i / 4, ["x", "y", "z", "w"][*i as usize % 4]),
            _ => {
                let i = text(i);
                format!("p[{i} / 4u][{i} % 4u]")
            }
        },
        Node::Load(n, at) => format!("x{n}[{}]", text(at)),
        Node::Shared(n, at) => format!("s{n}[{}]", text(at)),
        Node::Place(Place::Thread(a)) => format!("t.{}", axis(*a)),
        Node::Place(Place::Group(a)) => format!("g.{}", axis(*a)),
        Node::Infix(op, a, b) => format!("({} {} {})", text(a), symbol(*op), text(b)),
        Node::Negate(a) => format!("(-{})", text(a)),
        Node::Invert(a) if a.ty == Scalar::Bool => format!("(!{})", text(a)),
        Node::Invert(a) => format!("(~{})", text(a)),
        Node::Call(f, a) => {
            let a: Vec<String> = a.iter().map(text).collect();
            format!("{}({})", function(*f), a.join(", "))
        }
        Node::Select(c, yes, no) => format!("select({}, {}, {})", text(no), text(yes), text(c)),
        Node::Cast(a) => format!("{}({})", name(e.ty), text(a)),
        Node::Bits(a) => format!("bitcast<{}>({})", name(e.ty), text(a)),
    }
}

fn axis(a: u8) -> &'static str {
    ["x", "y", "z"][usize::from(a) % 3]
}

/// How both dialects write an operation.
pub(super) fn symbol(op: Infix) -> &'static str {
    match op {
        Infix::Add => "+",
        Infix::Sub => "-",
        Infix::Mul => "*",
        Infix::Div => "/",
        Infix::Rem => "%",
        Infix::And => "&",
        Infix::Or => "|",
        Infix::Xor => "^",
        Infix::Shl => "<<",
        Infix::Shr => ">>",
        Infix::Eq => "==",
        Infix::Ne => "!=",
        Infix::Lt => "<",
        Infix::Le => "<=",
        Infix::Gt => ">",
        Infix::Ge => ">=",
        Infix::Both => "&&",
        Infix::Either => "||",
    }
}

fn function(f: Function) -> &'static str {
    match f {
        Function::Abs => "abs",
        Function::Ceil => "ceil",
        Function::Exp => "exp",
        Function::Floor => "floor",
        Function::Fma => "fma",
        Function::Log => "log",
        Function::Max => "max",
        Function::Min => "min",
        Function::Round => "round",
        Function::Sqrt => "sqrt",
    }
}
