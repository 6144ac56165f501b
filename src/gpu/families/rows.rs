//! Rows that are taken as a whole: sums and the like, softmax, normalisations.
//!
//! A row's elements lie at the positions that up to four axes give, its beginning at the position
//! that up to four others give. A group of 64 threads takes a row, or each thread one of its own
//! where rows are short. Words: rows, groups or threads in a row of groups, elements of a row, axes
//! between rows and, shifted by 8, axes within; extents of the axes between rows (4), their strides
//! (4), extents of the axes within (4), their strides (4).

use super::FLAT;
use crate::gpu::ir::{Buffer, Builder, Expr, Kernel, Operand, Scalar, Shared, Var, fma, select};
use crate::gpu::math;

/// What is made of a row's elements: one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) enum Reduction {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    L1,
    L2,
    SumSquare,
    LogSum,
    LogSumExp,
}

/// Whether a row has a group of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) enum Team {
    Group,
    Thread,
}

/// How rows are walked along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) struct Walk {
    pub(in crate::gpu) team: Team,
    /// Whether the elements of a row lie at one stride, the first of those within.
    pub(in crate::gpu) plain: bool,
}

/// The words that all kernels over rows have.
const WORDS4: usize = 5;

struct Rows {
    b: Builder,
    walk: Walk,
    x: Buffer,
    row: Var,
    n: Var,
    first: Var,
    parts: Option<Shared>,
}

/// How two numbers of a row become one.
type Fold = fn(Var, Var) -> Expr;

fn add(a: Var, b: Var) -> Expr {
    a + b
}

/// Whether `b` comes before `a`: NaN comes before everything.
fn before(a: Var, b: Var, better: Expr) -> Expr {
    if a.ty != Scalar::F32 {
        return better;
    }
    better.and(!math::is_nan(a)).or(math::is_nan(b).and(!math::is_nan(a)))
}

/// As [`before`]; of equal ones and of several NaN the last.
fn later(a: Var, b: Var, better: Expr) -> Expr {
    let better = before(a, b, better).or(b.equals(a));
    if a.ty == Scalar::F32 { better.or(math::is_nan(b)) } else { better }
}

fn larger(a: Var, b: Var) -> Expr {
    select(before(a, b, b.gt(a)), b, a)
}

fn smaller(a: Var, b: Var) -> Expr {
    select(before(a, b, b.lt(a)), b, a)
}

impl Rows {
    /// The beginning of a kernel: rows beyond the last one end, except that threads of a group
    /// with barriers do the last row again and do not store.
    fn new(name: &str, words4: usize, walk: Walk, ty: Scalar, output: Scalar) -> Self {
        let Walk { team, plain } = walk;
        let short = if team == Team::Thread { "_short" } else { "" };
        let name = format!("{name}{short}{}", if plain { "_plain" } else { "" });
        let mut b = Builder::new(&name, words4, [FLAT, 1, 1], output);
        let x = b.input(ty);
        let row = match team {
            Team::Thread => b.flat(),
            Team::Group => {
                let row = b.bind(b.group(1) * b.word(1) + b.group(0));
                b.bind(row.min(b.word(0) - 1_u32))
            }
        };
        let n = b.bind(b.word(2));
        let axes = b.word(3) & 255_u32;
        let first = b.positions(row, axes, 4, &[8])[0];
        let parts = (team == Team::Group).then(|| {
            let ty = if ty == Scalar::Bool { Scalar::U32 } else { ty };
            b.shared(ty, FLAT)
        });
        Self { b, walk, x, row, n, first, parts }
    }

    /// Whether this thread stores what belongs to its row.
    fn stores(&mut self) -> Expr {
        match self.walk.team {
            Team::Thread => true.into(),
            Team::Group => {
                let b = &self.b;
                (b.group(1) * b.word(1) + b.group(0)).lt(b.word(0)).and(b.thread(0).equals(0_u32))
            }
        }
    }

    /// For each element of the row that is this thread's: its number and where it lies.
    fn each(&mut self, body: impl FnOnce(&mut Builder, Var, Var)) {
        let (from, step) = match self.walk.team {
            Team::Thread => (Expr::from(0_u32), 1),
            Team::Group => (self.b.thread(0), FLAT),
        };
        let (first, plain) = (self.first, self.walk.plain);
        self.b.each(from, self.n, step, |b, i| {
            let at = if plain {
                b.bind(i * b.word(16) + first)
            } else {
                let axes = b.word(3) >> 8_u32;
                let within = b.positions(i, axes, 12, &[16])[0];
                b.bind(within + first)
            };
            body(b, i, at);
        });
    }

    /// The fold of what all threads have, in an order that does not change.
    fn together(&mut self, mine: Var, fold: Fold) -> Var {
        let Some(parts) = self.parts else { return self.b.bind(mine) };
        let b = &mut self.b;
        let t = b.bind(b.thread(0));
        b.poke(parts, t, mine);
        b.barrier();
        let mut half = FLAT / 2;
        while half > 0 {
            b.when(t.lt(half), |b| {
                let (l, r) = (b.bind(b.peek(parts, t)), b.bind(b.peek(parts, t + half)));
                b.poke(parts, t, fold(l, r));
            });
            b.barrier();
            half /= 2;
        }
        let all = b.bind(b.peek(parts, 0_u32));
        b.barrier();
        all
    }

    /// The fold of a function of all elements; `start` where there is none.
    fn fold(&mut self, start: Expr, of: impl Fn(&mut Builder, Expr) -> Expr, fold: Fold) -> Var {
        let sum = self.b.variable(start);
        let x = self.x;
        self.each(|b, _, at| {
            let e = of(b, b.load(x, at));
            let e = b.bind(e);
            b.set(sum, fold(sum, e));
        });
        self.together(sum, fold)
    }

    /// The largest element: the fold starts with the first one.
    fn largest(&mut self) -> Var {
        let first = self.b.load(self.x, self.first);
        let first = self.b.bind(first);
        self.fold(first.into(), |_, e| e, larger)
    }

    /// Mean and one over the deviation.
    fn moments(&mut self, centred: bool, epsilon: f32, floor: f32) -> (Var, Var) {
        let n = self.b.bind(self.n.to(Scalar::F32));
        let mean = if centred {
            let sum = self.fold(0.0.into(), |_, e| e, add);
            self.b.bind(sum / n)
        } else {
            self.b.bind(0.0)
        };
        let square = self.fold(
            0.0.into(),
            |b, e| {
                let d = b.bind(e - mean);
                d * d
            },
            add,
        );
        let scale = self.b.bind(Expr::from(1.0) / ((square / n + epsilon).sqrt() + floor));
        (mean, scale)
    }

    /// Stores a function of each element where it lies; rows beyond the last one are not stored.
    fn map(mut self, of: impl FnOnce(&mut Builder, Var, Expr, Var) -> Expr) -> Kernel {
        let (x, row) = (self.x, self.row);
        let there = match self.walk.team {
            Team::Thread => None,
            Team::Group => {
                let b = &mut self.b;
                Some(b.bind((b.group(1) * b.word(1) + b.group(0)).lt(b.word(0))))
            }
        };
        self.each(|b, i, at| {
            let e = b.load(x, at);
            let made = of(b, i, e, row);
            let made = b.bind(made);
            match there {
                None => b.store(at, made),
                Some(there) => b.when(there, |b| b.store(at, made)),
            }
        });
        self.b.finish()
    }
}

/// One number of each row. Whole numbers have no mean, root or logarithm.
pub(in crate::gpu) fn reduce(reduction: Reduction, ty: Scalar, walk: Walk) -> Kernel {
    use Reduction as R;
    let name = format!("reduce_{}", format!("{reduction:?}").to_ascii_lowercase());
    let mut rows = Rows::new(&name, WORDS4, walk, ty, ty);
    let zero = || match ty {
        Scalar::F32 => Expr::from(0.0),
        Scalar::I32 => 0_i32.into(),
        _ => 0_u32.into(),
    };
    let made: Expr = match reduction {
        R::Sum => rows.fold(zero(), |_, e| e, add).into(),
        R::Mean => rows.fold(zero(), |_, e| e, add) / rows.n.to(Scalar::F32),
        R::Max => rows.largest().into(),
        R::Min => {
            let first = rows.b.load(rows.x, rows.first);
            let first = rows.b.bind(first);
            rows.fold(first.into(), |_, e| e, smaller).into()
        }
        R::Prod => {
            let one = match ty {
                Scalar::F32 => Expr::from(1.0),
                Scalar::I32 => 1_i32.into(),
                _ => 1_u32.into(),
            };
            rows.fold(one, |_, e| e, |a, b| a * b).into()
        }
        R::L1 => rows.fold(zero(), |_, e| if ty == Scalar::U32 { e } else { e.abs() }, add).into(),
        R::SumSquare | R::L2 => {
            let sum = rows.fold(
                zero(),
                |b, e| {
                    let e = b.bind(e);
                    e * e
                },
                add,
            );
            if reduction == R::L2 { sum.sqrt() } else { sum.into() }
        }
        R::LogSum => rows.fold(zero(), |_, e| e, add).ln(),
        R::LogSumExp => {
            let most = rows.largest();
            let sum = rows.fold(zero(), |_, e| (e - most).exp(), add).ln() + most;
            // Where the largest is an infinity, so is the sum.
            let far = (most.bits(Scalar::U32) & 0x7fff_ffff_u32).equals(0x7f80_0000_u32);
            select(far, most, sum)
        }
    };
    let stores = rows.stores();
    let (row, made) = (rows.row, rows.b.bind(made));
    rows.b.when(stores, |b| b.store(row, made));
    rows.b.finish()
}

/// The number of the largest element of each row, or of the smallest; of equal ones the first, or
/// the last. A thread takes a row.
pub(in crate::gpu) fn arg(largest: bool, last: bool, ty: Scalar, plain: bool) -> Kernel {
    let walk = Walk { team: Team::Thread, plain };
    let name = format!(
        "arg_{}_{}",
        if largest { "max" } else { "min" },
        if last { "last" } else { "first" }
    );
    let mut rows = Rows::new(&name, WORDS4, walk, ty, Scalar::I32);
    let first = rows.b.load(rows.x, rows.first);
    let best = rows.b.variable(first);
    let found = rows.b.variable(0_u32);
    let x = rows.x;
    rows.each(|b, i, at| {
        let e = b.bind(b.load(x, at));
        let better = match (largest, last) {
            (true, false) => before(best, e, e.gt(best)),
            (true, true) => later(best, e, e.gt(best)),
            (false, false) => before(best, e, e.lt(best)),
            (false, true) => later(best, e, e.lt(best)),
        };
        b.when(better, |b| {
            b.set(best, e);
            b.set(found, i);
        });
    });
    let row = rows.row;
    rows.b.store(row, found.to(Scalar::I32));
    rows.b.finish()
}

/// The softmax of each row, or its logarithm.
pub(in crate::gpu) fn softmax(logarithm: bool, walk: Walk) -> Kernel {
    let name = if logarithm { "log_softmax" } else { "softmax" };
    let mut rows = Rows::new(name, WORDS4, walk, Scalar::F32, Scalar::F32);
    let most = rows.largest();
    let sum = rows.fold(0.0.into(), |_, e| (e - most).exp(), add);
    if logarithm {
        let low = rows.b.bind(sum.ln());
        rows.map(|_, _, e, _| e - most - low)
    } else {
        let scale = rows.b.bind(Expr::from(1.0) / sum);
        rows.map(|_, _, e, _| (e - most).exp() * scale)
    }
}

/// 1 at the first largest element of each row, else 0. A thread takes a row.
pub(in crate::gpu) fn hardmax(plain: bool) -> Kernel {
    let walk = Walk { team: Team::Thread, plain };
    let mut rows = Rows::new("hardmax", WORDS4, walk, Scalar::F32, Scalar::F32);
    let first = rows.b.load(rows.x, rows.first);
    let best = rows.b.variable(first);
    let found = rows.b.variable(0_u32);
    let x = rows.x;
    rows.each(|b, i, at| {
        let e = b.bind(b.load(x, at));
        b.when(before(best, e, e.gt(best)), |b| {
            b.set(best, e);
            b.set(found, i);
        });
    });
    rows.map(|_, i, _, _| select(i.equals(found), 1.0, 0.0))
}

/// Each row over its norm.
pub(in crate::gpu) fn lp_normalise(square: bool, walk: Walk) -> Kernel {
    let name = if square { "l2_normalise" } else { "l1_normalise" };
    let mut rows = Rows::new(name, WORDS4, walk, Scalar::F32, Scalar::F32);
    let norm = rows.fold(
        0.0.into(),
        |b, e| {
            let e = b.bind(e);
            if square { e * e } else { e.abs() }
        },
        add,
    );
    let norm = rows.b.bind(if square { norm.sqrt() } else { norm.into() });
    // A row of zeros stays one.
    rows.map(|b, _, e, _| {
        let e = b.bind(e);
        select(norm.equals(0.0), e, e / norm)
    })
}

/// What a normalisation does besides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::gpu) struct Normalisation {
    /// Whether the mean is taken off.
    pub(in crate::gpu) centred: bool,
    /// What is added to the variance.
    pub(in crate::gpu) epsilon: f32,
    /// What is added to the deviation.
    pub(in crate::gpu) floor: f32,
    pub(in crate::gpu) scale: bool,
    pub(in crate::gpu) bias: bool,
}

/// Each row over its deviation, times a scale, plus a bias: those of element `i` of row `r` are
/// number `r % w0 * w1 + i / w2 % w3`, where the words from 20 on are w0, w1, w2, w3.
pub(in crate::gpu) fn normalise(n: Normalisation, walk: Walk) -> Kernel {
    let name = format!(
        "{}normalise{}{}",
        if n.centred { "" } else { "rms_" },
        if n.scale { "_scale" } else { "" },
        if n.bias { "_bias" } else { "" }
    );
    let mut rows = Rows::new(&name, WORDS4 + 1, walk, Scalar::F32, Scalar::F32);
    let scale = n.scale.then(|| rows.b.input(Scalar::F32));
    let bias = n.bias.then(|| rows.b.input(Scalar::F32));
    let (mean, by) = rows.moments(n.centred, n.epsilon, n.floor);
    rows.map(|b, i, e, row| {
        let e = b.bind((e - mean) * by);
        if scale.is_none() && bias.is_none() {
            return e.into();
        }
        let at = row % b.word(20) * b.word(21) + i / b.word(22) % b.word(23);
        let at = b.bind(at);
        match (scale, bias) {
            (Some(s), Some(o)) => fma(e, b.load(s, at), b.load(o, at)),
            (Some(s), None) => e * b.load(s, at),
            (None, Some(o)) => e + b.load(o, at),
            (None, None) => e.into(),
        }
    })
}
