//! `MatMulNBits` of ONNX Runtime: a product with a matrix of 2 to 8 bits an element.

use super::product::products;
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Node};
use crate::kernels::{BITS4, BITS8, BlockMatrix, PackedBlocks};
use crate::ops::case::{Case, filled};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare, cost};
use crate::tensor::{DType, Tensor, cast};

const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// `A · Bᵀ + bias`, where B's rows are cut into blocks of elements with few bits, each block with
/// a scale and a zero point of its own.
pub(in crate::ops) static MATMUL_N_BITS: OpDef = OpDef {
    name: "MatMulNBits",
    domain: "com.microsoft",
    since: 1,
    attributes: &[
        AttributeDef::required("K", AttributeKind::Int),
        AttributeDef::required("N", AttributeKind::Int),
        AttributeDef::optional("accuracy_level", AttributeKind::Int),
        AttributeDef::optional("bits", AttributeKind::Int),
        AttributeDef::required("block_size", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("A", FLOATS),
        Port::required("B", &[DType::U8, DType::I32]),
        Port::required("scales", FLOATS),
        Port::optional(
            "zero_points",
            &[DType::U8, DType::I32, DType::F32, DType::F16, DType::BF16],
        ),
        Port::optional("g_idx", &[DType::I32]),
        Port::optional("bias", FLOATS),
    ],
    outputs: &[Port::required("Y", FLOATS)],
    infer,
    batch: |q| match (q.axes.first().copied().flatten(), q.rank(0)) {
        _ if q.axes.iter().skip(1).any(Option::is_some) => {
            Err("its weights carry the batch".into())
        }
        (Some(axis), Some(rank)) if axis + 1 == rank => Err("it sums over the batch axis".into()),
        (axis, _) => q.everywhere(axis),
    },
    cost: |q| {
        let k = q.node.int_or("K", 1).unwrap_or(1) as f64;
        cost::Cost { flops: 2.0 * k * q.output_elements(), bytes: q.bytes() }
    },
    prepare: |p| Ok(Box::new(NBits::new(p)?)),
    cases,
};

/// What the attributes say of B.
#[derive(Clone, Copy, Debug)]
struct Packing {
    k: usize,
    n: usize,
    bits: usize,
    block: usize,
}

impl Packing {
    fn of(node: &Node) -> Result<Self> {
        let size = |name: &str, default: Option<i64>| {
            let n = match default {
                Some(d) => node.int_or(name, d)?,
                None => node.required_int(name)?,
            };
            match usize::try_from(n).ok().filter(|n| (1..1 << 30).contains(n)) {
                Some(n) => Ok(n),
                None => bail!(Graph, "attribute `{name}` is {n}, expected at least 1"),
            }
        };
        let this = Self {
            k: size("K", None)?,
            n: size("N", None)?,
            bits: size("bits", Some(4))?,
            block: size("block_size", None)?,
        };
        if !matches!(this.bits, 2 | 4 | 8) {
            bail!(Unsupported, "attribute `bits` is {}; 2, 4 and 8 are implemented", this.bits);
        }
        Ok(this)
    }

    /// `[k, n]` as f32.
    fn unpack(
        &self,
        b: &Tensor,
        scales: &Tensor,
        zeros: Option<&Tensor>,
        order: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Self { k, n, bits, block } = *self;
        let blocks = k.div_ceil(block);
        let bytes = (block * bits).div_ceil(8);
        let packed = b.as_bytes();
        if packed.len() != n * blocks * bytes {
            bail!(Shape, "B is {}, expected {n} rows of {blocks} blocks of {bytes}", b.describe());
        }
        let scales = scales.to_f32s()?;
        if scales.len() != n * blocks {
            bail!(Shape, "{} scales are given, {} are needed", scales.len(), n * blocks);
        }
        let element = |bytes: &[u8], at: usize| -> Option<f32> {
            let bit = at * bits;
            let mask = ((1_u16 << bits) - 1) as u8;
            Some(f32::from((bytes.get(bit / 8)? >> (bit % 8)) & mask))
        };
        let row = (blocks * bits).div_ceil(8);
        let zeros: Vec<f32> = match zeros {
            None => vec![f32::from(1_u8 << (bits - 1)); n * blocks],
            Some(z) if z.dtype() == DType::U8 && z.len() == n * row => {
                let bytes = z.as_slice::<u8>()?;
                let all = (0..n * blocks)
                    .map(|i| element(&bytes[i / blocks * row..(i / blocks + 1) * row], i % blocks));
                all.collect::<Option<_>>().ok_or_else(|| err!(Internal, "zero points"))?
            }
            Some(z) if z.dtype().is_float() && z.len() == n * blocks => z.to_f32s()?,
            Some(z) => {
                bail!(Shape, "the zero points are {}, for {n}·{blocks} blocks", z.describe())
            }
        };
        let groups = match order {
            None => None,
            Some(order) => {
                let all = order.to_i64s()?;
                let groups: Option<Vec<usize>> =
                    all.iter().map(|g| usize::try_from(*g).ok().filter(|g| *g < blocks)).collect();
                match groups {
                    Some(g) if g.len() >= k => Some(g),
                    _ => {
                        bail!(Shape, "`g_idx` does not name a group below {blocks} for each of {k}")
                    }
                }
            }
        };
        let mut out = Tensor::zeros(DType::F32, [k, n])?;
        let to = out.as_mut_slice::<f32>()?;
        for column in 0..n {
            for at in 0..k {
                let own = &packed[(column * blocks + at / block) * bytes..][..bytes];
                let value = element(own, at % block).unwrap_or(0.0);
                let group = groups.as_ref().map_or(at / block, |g| g[at]);
                let of = column * blocks + group;
                to[at * n + column] = (value - zeros[of]) * scales[of];
            }
        }
        Ok(out)
    }
}

impl Packing {
    /// B left in its blocks, for a kernel that multiplies with them; `None` where it has none:
    /// zero points, an order of groups, blocks that are not of 32, 2 bits.
    fn keep(&self, b: &Tensor, scales: &Tensor) -> Result<Option<PackedBlocks>> {
        let Self { k, n, bits, block } = *self;
        let format = match bits {
            4 => &BITS4,
            8 => &BITS8,
            _ => return Ok(None),
        };
        let (packed, scales) = (b.as_bytes(), scales.to_f32s()?);
        let blocks = k.div_ceil(block);
        let bytes = block * bits / 8;
        let whole = k.is_multiple_of(block) && block.is_multiple_of(32);
        if !whole || packed.len() != n * blocks * bytes || scales.len() != n * blocks {
            return Ok(None);
        }
        // A block of 32 has 4 bits · 32 or 8 bits · 32 of them.
        let each = 4 * bits;
        let mut kept = Vec::with_capacity(n * (k / 32) * format.bytes);
        for (i, numbers) in packed.chunks_exact(each).enumerate() {
            kept.extend(scales[i * 32 / block].to_le_bytes());
            if bits == 8 {
                kept.extend(numbers.iter().map(|q| q.wrapping_sub(128)));
            } else {
                // Neighbours share a byte here, numbers 16 apart there.
                let number = |j: usize| (numbers[j / 2] >> (j % 2 * 4)) & 15;
                kept.extend((0..16).map(|j| number(j) | (number(j + 16) << 4)));
            }
        }
        let matrix = BlockMatrix::new(format, &kept, n, k / 32 * format.bytes)?;
        Ok(Some(PackedBlocks::new(matrix)?))
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let packing = Packing::of(i.node)?;
    let shape = match i.shape(0) {
        Some(mut shape) => match shape.last_mut() {
            Some(last) => {
                if last.as_extent().is_some_and(|k| k != packing.k) {
                    bail!(Shape, "A has rows of {last}, attribute `K` is {}", packing.k);
                }
                *last = Dim::of(packing.n);
                Some(shape)
            }
            None => bail!(Shape, "A is a scalar"),
        },
        None => None,
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

#[derive(Debug)]
struct NBits {
    packing: Packing,
    /// B, where all of it is constant.
    weights: Option<Weights>,
    /// Whether A may be rounded to 8 bits.
    rounds: bool,
}

#[derive(Debug)]
enum Weights {
    Kept(PackedBlocks),
    Unpacked(Tensor),
}

impl NBits {
    fn new(p: &Prepare<'_>) -> Result<Self> {
        let packing = Packing::of(p.node)?;
        let known = |k: usize| !p.has(k) || p.constant(k).is_some();
        let weights = match (p.constant(1), p.constant(2)) {
            (Some(b), Some(scales)) if known(3) && known(4) => {
                let kept = match p.has(3) || p.has(4) {
                    true => None,
                    false => packing.keep(b, scales)?,
                };
                Some(match kept {
                    Some(kept) => Weights::Kept(kept),
                    None => Weights::Unpacked(packing.unpack(
                        b,
                        scales,
                        p.constant(3),
                        p.constant(4),
                    )?),
                })
            }
            _ => None,
        };
        // The level at which ONNX Runtime computes in 8 bits.
        let rounds = p.node.int_or("accuracy_level", 0)? == 4;
        Ok(Self { packing, weights, rounds })
    }
}

impl CpuKernel for NBits {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let a = io.tensor(0)?;
        let Packing { k, n, .. } = self.packing;
        let Some((&last, lead)) = a.shape().split_last() else {
            bail!(Shape, "A is a scalar");
        };
        if last != k {
            bail!(Shape, "A is {}, attribute `K` is {k}", a.describe());
        }
        let shape = lead.to_vec();
        let rows: usize = lead.iter().product();
        let wide = cast(a, DType::F32)?.reshape([1, rows, k])?;
        let own;
        let weights = match &self.weights {
            Some(Weights::Kept(w)) => {
                let mut y = io.allocate(DType::F32, [1, rows, n])?;
                let work = rows.saturating_mul(k).saturating_mul(n);
                let threads = io.threads().for_work(work);
                let (x, to) = (wide.as_slice::<f32>()?, y.as_mut_slice::<f32>()?);
                match self.rounds {
                    true => w.multiply(x, rows, to, threads)?,
                    false => w.multiply_exact(x, rows, to, threads)?,
                }
                return self.finish(io, y, shape);
            }
            Some(Weights::Unpacked(w)) => w,
            None => {
                own = self.packing.unpack(
                    io.tensor(1)?,
                    io.tensor(2)?,
                    io.optional(3)?,
                    io.optional(4)?,
                )?;
                &own
            }
        };
        let y = products(io, &wide, &weights.reshape([1, k, n])?)?;
        self.finish(io, y, shape)
    }

    fn reads_constant(&self, input: usize) -> bool {
        !(1..5).contains(&input) || self.weights.is_none()
    }
}

impl NBits {
    /// Adds the bias and gives the product in A's dtype.
    fn finish(&self, io: &mut Io<'_>, mut y: Tensor, mut shape: Vec<usize>) -> Result<()> {
        let n = self.packing.n;
        if let Some(bias) = io.optional(5)? {
            let bias = bias.to_f32s()?;
            if bias.len() != n {
                bail!(Shape, "the bias has {} values, for {n} columns", bias.len());
            }
            for row in y.as_mut_slice::<f32>()?.chunks_mut(n) {
                row.iter_mut().zip(&bias).for_each(|(y, b)| *y += b);
            }
        }
        shape.push(n);
        let dtype = io.tensor(0)?.dtype();
        io.emit(cast(&y, dtype)?.reshape(shape)?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    // B's row: 1 2 3 4 | 5, less 8 each, or less 1 and 2.
    let mut bytes = [0_u8; 16];
    bytes[0] = 0x21;
    bytes[1] = 0x43;
    bytes[8] = 0x05;
    let new = |name: &str| {
        Case::new("MatMulNBits", 1, name)
            .domain("com.microsoft")
            .attr("K", 17)
            .attr("N", 1)
            .attr("bits", 4)
            .attr("block_size", 16)
            .input(filled(
                &[1, 17],
                &[
                    1.0_f32, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
                    0.0, 2.0,
                ],
            ))
            .constant(filled(&[1, 2, 8], &bytes))
            .constant(filled(&[2], &[0.5_f32, 10.0]))
    };
    // Blocks of 64: 1 2 3 … less 8 each, and 127, 129 less 128, times scales of columns.
    let kept = |bits: usize, level: i64| {
        let mut b = vec![if bits == 4 { 0x88_u8 } else { 128 }; 2 * 64 * bits / 8];
        if bits == 4 {
            (b[0], b[8], b[32 + 31]) = (0x21, 0x03, 0xF8);
        } else {
            (b[0], b[16], b[64 + 63]) = (127, 130, 255);
        }
        let mut x = vec![0.0_f32; 64];
        // The 127 makes a step of the rounding 1; its weights are 0.
        (x[0], x[1], x[16], x[31], x[63]) = (1.0, 4.0, 2.0, 127.0, -127.0);
        let want = match bits {
            4 => [0.5_f32 * (-7.0 + 4.0 * -6.0 + 2.0 * -5.0), -2.0 * 7.0 * 127.0],
            _ => [0.5_f32 * (-1.0 + 2.0 * 2.0), -2.0 * 127.0 * 127.0],
        };
        Case::new("MatMulNBits", 1, format!("{bits} bits, level {level}"))
            .domain("com.microsoft")
            .attr("K", 64)
            .attr("N", 2)
            .attr("bits", bits as i64)
            .attr("block_size", 64)
            .attr("accuracy_level", level)
            .input(filled(&[1, 64], &x))
            .constant(filled(&[2, 1, 64 * bits / 8], &b))
            .constant(filled(&[2], &[0.5_f32, 2.0]))
            .output(filled(&[1, 2], &want))
    };
    let mut v = vec![kept(4, 0), kept(4, 4), kept(8, 0), kept(8, 4)];
    v.extend([
        new("signed").output(filled(&[1, 1], &[-71.0_f32])),
        new("zero points and a bias")
            .constant(filled(&[1], &[0x21_u8]))
            .absent()
            .input(filled(&[1], &[1.0_f32]))
            .output(filled(&[1, 1], &[64.0_f32])),
    ]);
    v
}
