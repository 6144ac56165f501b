//! `MatMulNBits` of ONNX Runtime: a product with a matrix of 2 to 8 bits an element.

use super::product::products;
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Node};
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
    /// B as f32, where all of it is constant.
    weights: Option<Tensor>,
}

impl NBits {
    fn new(p: &Prepare<'_>) -> Result<Self> {
        let packing = Packing::of(p.node)?;
        let known = |k: usize| !p.has(k) || p.constant(k).is_some();
        let weights = match (p.constant(1), p.constant(2)) {
            (Some(b), Some(scales)) if known(3) && known(4) => {
                Some(packing.unpack(b, scales, p.constant(3), p.constant(4))?)
            }
            _ => None,
        };
        Ok(Self { packing, weights })
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
        let mut shape = lead.to_vec();
        let rows: usize = lead.iter().product();
        let own;
        let weights = match &self.weights {
            Some(w) => w,
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
        let wide = cast(a, DType::F32)?.reshape([1, rows, k])?;
        let mut y = products(io, &wide, &weights.reshape([1, k, n])?)?;
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
        io.emit(cast(&y, a.dtype())?.reshape(shape)?);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        !(1..5).contains(&input) || self.weights.is_none()
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
    vec![
        new("signed").output(filled(&[1, 1], &[-71.0_f32])),
        new("zero points and a bias")
            .constant(filled(&[1], &[0x21_u8]))
            .absent()
            .input(filled(&[1], &[1.0_f32]))
            .output(filled(&[1, 1], &[64.0_f32])),
    ]
}
