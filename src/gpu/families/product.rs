//! Stacks of products of matrices, and what is done to a sum before it is stored.

use super::elementwise::Unary;
use crate::gpu::ir::{Buffer, Builder, Expr, Kernel, Operand, Scalar, Var, fma};

const F: Scalar = Scalar::F32;
const I: Scalar = Scalar::I32;

/// Rows and columns that one thread computes, each way.
pub(in crate::gpu) const TILE: u32 = 4;

/// The same where each thread reads for itself and there are as many: loads are what costs there.
const LARGE_TILE: u32 = 8;

/// Threads of a group each way where each thread reads for itself.
pub(in crate::gpu) const SIDE: u32 = 8;

/// Threads of a group each way where a group shares what it reads.
pub(in crate::gpu) const SHARED_SIDE: u32 = 16;

/// Steps along the sum that a group reads at once.
const DEPTH: u32 = 16;

/// How a group reads its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tiling {
    /// Each thread for itself, into registers: for drivers on a CPU, where a barrier costs more
    /// than it saves.
    Registers,
    /// Together, into the memory of the group: for GPUs.
    Groups,
}

/// What is done to a sum before it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::gpu) struct Epilogue {
    /// Whether something is added that is broadcast: a bias.
    pub(in crate::gpu) bias: bool,
    /// Whether a tensor of the output's shape is added: after the activation, or before it.
    pub(in crate::gpu) residual: Option<bool>,
    pub(in crate::gpu) activation: Unary,
}

impl Epilogue {
    pub(in crate::gpu) const NONE: Self =
        Self { bias: false, residual: None, activation: Unary::Identity };

    /// What the epilogue reads, after the operands of the sum.
    pub(super) fn inputs(&self, b: &mut Builder) -> [Option<Buffer>; 2] {
        let bias = self.bias.then(|| b.input(F));
        [bias, self.residual.map(|_| b.input(F))]
    }

    /// Stores a sum at `at`; `bias` is what is added first.
    pub(super) fn store(
        &self,
        b: &mut Builder,
        residual: Option<Buffer>,
        sum: Expr,
        bias: Option<Expr>,
        at: Var,
    ) {
        let mut v = b.bind(sum);
        if let Some(bias) = bias {
            v = b.bind(v + bias);
        }
        let extra = residual.map(|r| b.load(r, at));
        if let (Some(extra), Some(false)) = (&extra, self.residual) {
            v = b.bind(v + extra);
        }
        let made = self.activation.of(b, v);
        match (extra, self.residual) {
            (Some(extra), Some(true)) => b.store(at, made + extra),
            _ => b.store(at, made),
        }
    }

    pub(super) fn name(&self) -> String {
        let mut s = String::new();
        if self.bias {
            s += "_bias";
        }
        match self.residual {
            None => {}
            Some(false) => s += "_residual",
            Some(true) => s += "_then_residual",
        }
        if self.activation != Unary::Identity {
            let text = format!("{:?}", self.activation);
            s += "_";
            s += &text.split('(').next().unwrap_or_default().to_ascii_lowercase();
        }
        s
    }
}

/// A stack of products. Words:
/// 0: m, n, k, batch axes; 4: strides of A (row, column), of B (row, column);
/// 8: strides of the bias (row, column); alpha, beta; 12: extents of the batch (4);
/// 16: strides of A along them; 20: of B.
pub(in crate::gpu) fn product(epilogue: Epilogue, layout: Layout) -> Kernel {
    let name = format!("{}{}", layout.kind(), epilogue.name());
    let mut b = Builder::new(&name, 6, layout.threads(), F);
    let (left, right) = (b.input(F), b.input(F));
    let [bias, residual] = epilogue.inputs(&mut b);
    let load_a = |b: &mut Builder, _: Var, at: Expr| b.load(left, at);
    let load_b = |b: &mut Builder, _: Var, at: Expr| b.load(right, at);
    stack(&mut b, F, layout, load_a, load_b, |b, row, column, sum, at| {
        let sum = sum * b.float_word(10);
        let extra =
            bias.map(|bias| b.float_word(11) * b.load(bias, row * b.word(8) + column * b.word(9)));
        epilogue.store(b, residual, sum, extra, at);
    });
    b.finish()
}

/// A stack of products of whole numbers, less their zero points where there are some. Words as those of
/// [`product`], except 8: the stride of A's zero points along rows, of B's along columns, 0, 0.
pub(in crate::gpu) fn whole_product(
    types: [Scalar; 2],
    zeros: [bool; 2],
    layout: Layout,
) -> Kernel {
    let name = format!("whole_{}", layout.kind());
    let mut b = Builder::new(&name, 6, layout.threads(), I);
    let [left, right] = types.map(|ty| b.input(ty));
    let mut points = |i: usize| zeros[i].then(|| b.input(types[i]));
    let (left_zero, right_zero) = (points(0), points(1));
    let load = |of: Buffer, zero: Option<Buffer>, stride: u32| {
        move |b: &mut Builder, line: Var, at: Expr| {
            let number = b.load(of, at).to(I);
            match zero {
                Some(zero) => number - b.load(zero, line * b.word(stride)).to(I),
                None => number,
            }
        }
    };
    let (load_a, load_b) = (load(left, left_zero, 8), load(right, right_zero, 9));
    stack(&mut b, I, layout, load_a, load_b, |b, _, _, sum, at| b.store(at, sum));
    b.finish()
}

/// How the threads of a launch share the elements of a product.
#[derive(Clone, Copy, Debug)]
pub(in crate::gpu) struct Layout {
    tiling: Tiling,
    /// Rows and columns of a thread.
    tile: [u32; 2],
}

impl Layout {
    /// For so many rows and columns.
    pub(in crate::gpu) fn of(tiling: Tiling, extents: [usize; 2]) -> Self {
        let tile = extents.map(|n| match tiling {
            Tiling::Registers if n > TILE as usize => LARGE_TILE,
            _ => TILE,
        });
        Self { tiling, tile }
    }

    /// Threads of a group.
    fn threads(self) -> [u32; 3] {
        match self.tiling {
            Tiling::Registers => [SIDE, SIDE, 1],
            Tiling::Groups => [SHARED_SIDE, SHARED_SIDE, 1],
        }
    }

    /// Rows and columns of a group.
    pub(in crate::gpu) fn span(self) -> [usize; 2] {
        let [columns, rows, _] = self.threads();
        [(rows * self.tile[0]) as usize, (columns * self.tile[1]) as usize]
    }

    fn kind(self) -> String {
        let [rows, columns] = self.tile;
        match self.tiling {
            Tiling::Registers => format!("product_{rows}x{columns}"),
            Tiling::Groups => "product_tiled".to_owned(),
        }
    }
}

fn nothing(ty: Scalar) -> Expr {
    if ty == F { 0.0.into() } else { 0_i32.into() }
}

/// The products of a stack, whose first eight words and those from 12 on are as [`product`] says.
/// `load_a` gets the row and where the element lies, `load_b` the column; `store` gets row, column, sum
/// and where it belongs.
fn stack(
    b: &mut Builder,
    ty: Scalar,
    Layout { tiling, tile: [tall, wide] }: Layout,
    load_a: impl Fn(&mut Builder, Var, Expr) -> Expr,
    load_b: impl Fn(&mut Builder, Var, Expr) -> Expr,
    store: impl Fn(&mut Builder, Var, Var, Expr, Var),
) {
    let (m, n, k) = (b.bind(b.word(0)), b.bind(b.word(1)), b.bind(b.word(2)));
    let item = b.bind(b.group(2));
    let axes = b.word(3);
    let base = b.positions(item, axes, 12, &[16, 20]);
    let (a0, b0) = (base[0], base[1]);
    let store = |b: &mut Builder, row: Var, column: Var, sum: Expr| {
        let at = b.bind((item * m + row) * n + column);
        store(b, row, column, sum, at);
    };
    match tiling {
        Tiling::Registers => {
            let r0 = b.bind(b.global(1) * tall);
            let c0 = b.bind(b.global(0) * wide);
            b.leave_if(r0.ge(m).or(c0.ge(n)));
            // Beyond the edge the last row and column are computed again and not stored.
            let line = |b: &mut Builder, count, first: Var, end: Var, base: Var, stride: u32| {
                let place = |i: u32| {
                    let at = b.bind((first + i).min(end - 1_u32));
                    (at, b.bind(base + at * b.word(stride)))
                };
                (0..count).map(place).collect::<Vec<(Var, Var)>>()
            };
            let rows = line(b, tall, r0, m, a0, 4);
            let columns = line(b, wide, c0, n, b0, 7);
            let sums: Vec<Var> = (0..tall * wide).map(|_| b.variable(nothing(ty))).collect();
            let (along_a, along_b) = (b.bind(b.word(5)), b.bind(b.word(6)));
            b.each(0_u32, k, 1_u32, |b, i| {
                let (da, db) = (b.bind(i * along_a), b.bind(i * along_b));
                let mut x = Vec::new();
                for (row, at) in &rows {
                    let e = load_a(b, *row, *at + da);
                    x.push(b.bind(e));
                }
                let mut y = Vec::new();
                for (column, at) in &columns {
                    let e = load_b(b, *column, *at + db);
                    y.push(b.bind(e));
                }
                accumulate(b, &sums, &x, &y);
            });
            for r in 0..tall {
                for c in 0..wide {
                    let sum = sums[(r * wide + c) as usize];
                    let (row, column) = (b.bind(r0 + r), b.bind(c0 + c));
                    b.when(row.lt(m).and(column.lt(n)), |b| store(b, row, column, sum.into()));
                }
            }
        }
        Tiling::Groups => {
            let load_a = |b: &mut Builder, row: Var, i: Var| {
                let at = a0 + row * b.word(4) + i * b.word(5);
                load_a(b, row, at)
            };
            let load_b = |b: &mut Builder, i: Var, column: Var| {
                let at = b0 + i * b.word(6) + column * b.word(7);
                load_b(b, column, at)
            };
            tiles(b, ty, [m, n, k], load_a, load_b, store);
        }
    }
}

/// Adds each product of an element of `x` and one of `y` to its sum, row by row.
pub(super) fn accumulate(b: &mut Builder, sums: &[Var], x: &[Var], y: &[Var]) {
    let pairs = x.iter().flat_map(|x| y.iter().map(move |y| (*x, *y)));
    for (sum, (x, y)) in sums.iter().zip(pairs) {
        let next = if sum.ty == F { fma(x, y, *sum) } else { *sum + x * y };
        b.set(*sum, next);
    }
}

/// The product of what `load_a` and `load_b` give, a tile of 64 by 64 a group of 16 by 16 threads:
/// both are called within the extents `[m, n, k]` only, and `store` for each element of the product.
pub(super) fn tiles(
    b: &mut Builder,
    element: Scalar,
    [m, n, k]: [Var; 3],
    load_a: impl Fn(&mut Builder, Var, Var) -> Expr,
    load_b: impl Fn(&mut Builder, Var, Var) -> Expr,
    store: impl Fn(&mut Builder, Var, Var, Expr),
) {
    const SPAN: u32 = SHARED_SIDE * TILE;
    const THREADS: u32 = SHARED_SIDE * SHARED_SIDE;
    let (left, right) = (b.shared(element, SPAN * DEPTH), b.shared(element, SPAN * DEPTH));
    let (tx, ty) = (b.bind(b.thread(0)), b.bind(b.thread(1)));
    let t = b.bind(ty * SHARED_SIDE + tx);
    let (r0, c0) = (b.bind(b.group(1) * SPAN), b.bind(b.group(0) * SPAN));
    let sums: Vec<Var> = (0..TILE * TILE).map(|_| b.variable(nothing(element))).collect();
    b.each(0_u32, k, DEPTH, |b, from| {
        for j in 0..SPAN * DEPTH / THREADS {
            let e = b.bind(t + j * THREADS);
            // Neighbours read along the sum on the left and across it on the right.
            let (row, i) = (b.bind(e / DEPTH), b.bind(e % DEPTH));
            let (at_row, at_i) = (b.bind(r0 + row), b.bind(from + i));
            let v = b.variable(nothing(element));
            b.when(at_row.lt(m).and(at_i.lt(k)), |b| {
                let loaded = load_a(b, at_row, at_i);
                b.set(v, loaded);
            });
            b.poke(left, i * SPAN + row, v);
            let (i, column) = (b.bind(e / SPAN), b.bind(e % SPAN));
            let (at_i, at_column) = (b.bind(from + i), b.bind(c0 + column));
            let v = b.variable(nothing(element));
            b.when(at_i.lt(k).and(at_column.lt(n)), |b| {
                let loaded = load_b(b, at_i, at_column);
                b.set(v, loaded);
            });
            b.poke(right, i * SPAN + column, v);
        }
        b.barrier();
        b.each(0_u32, DEPTH, 1_u32, |b, i| {
            let (x0, y0) = (b.bind(i * SPAN + ty * TILE), b.bind(i * SPAN + tx));
            let x: Vec<Var> = (0..TILE).map(|r| b.bind(b.peek(left, x0 + r))).collect();
            let y: Vec<Var> =
                (0..TILE).map(|c| b.bind(b.peek(right, y0 + c * SHARED_SIDE))).collect();
            accumulate(b, &sums, &x, &y);
        });
        b.barrier();
    });
    for r in 0..TILE {
        for c in 0..TILE {
            let row = b.bind(r0 + ty * TILE + r);
            let column = b.bind(c0 + tx + c * SHARED_SIDE);
            let sum = sums[(r * TILE + c) as usize];
            b.when(row.lt(m).and(column.lt(n)), |b| store(b, row, column, sum.into()));
        }
    }
}
