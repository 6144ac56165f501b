//! Random numbers: `RandomNormal`, `RandomUniform`, their `…Like` forms, `Bernoulli`,
//! `Multinomial`.
//!
//! With a seed, every run draws the same numbers, so that a model gives the same however it is cut
//! and streamed; without one, every run draws others. The numbers are not those of other runtimes.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use super::case::{Case, filled};
use super::def::types::{ALL, FLOATS, INDICES};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::tensor::{DType, Shape, Tensor, cast, element_count};

/// A generator of random numbers (SplitMix64).
#[derive(Debug)]
pub(super) struct Generator(u64);

impl Generator {
    /// From a seed, or, without one, from a number that is another one each time.
    pub(super) fn new(seed: Option<u64>) -> Self {
        static DRAWN: AtomicU64 = AtomicU64::new(0);
        Self(seed.unwrap_or_else(|| {
            let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
            hasher.write_u64(DRAWN.fetch_add(1, Ordering::Relaxed));
            hasher.finish()
        }))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..1`, each of 53 bits.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A number of the standard normal distribution (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// The seed, which is a float; equal floats give equal numbers.
fn seed(node: &Node) -> Result<Option<u64>> {
    Ok(node.float("seed")?.map(|s| u64::from(s.to_bits())))
}

fn dtype(node: &Node, default: Option<DType>) -> Result<Option<DType>> {
    let Some(number) = node.int("dtype")? else { return Ok(default) };
    match i32::try_from(number).ok().and_then(DType::from_onnx) {
        Some(d) if DType::WORKING.contains(&d) => Ok(Some(d)),
        Some(d) => bail!(Unsupported, "random numbers of dtype {d} are not implemented"),
        None => bail!(Graph, "attribute `dtype` is {number}, which is no dtype"),
    }
}

const SEED: AttributeDef = AttributeDef::optional("seed", AttributeKind::Float);
const DTYPE: AttributeDef = AttributeDef::optional("dtype", AttributeKind::Int);
const SHAPE: AttributeDef = AttributeDef::required("shape", AttributeKind::Ints);

/// A distribution.
#[derive(Clone, Copy, Debug)]
enum Draw {
    Normal { mean: f64, scale: f64 },
    Uniform { low: f64, high: f64 },
}

impl Draw {
    fn normal(node: &Node) -> Result<Self> {
        let (mean, scale) = (node.float_or("mean", 0.0)?, node.float_or("scale", 1.0)?);
        Ok(Self::Normal { mean: mean.into(), scale: scale.into() })
    }

    fn uniform(node: &Node) -> Result<Self> {
        let (low, high) = (node.float_or("low", 0.0)?, node.float_or("high", 1.0)?);
        Ok(Self::Uniform { low: low.into(), high: high.into() })
    }
}

#[derive(Debug)]
struct Random {
    draw: Draw,
    seed: Option<u64>,
    dtype: Option<DType>,
    /// `None`: that of the input.
    shape: Option<Shape>,
}

impl CpuKernel for Random {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let shape = match &self.shape {
            Some(shape) => shape.clone(),
            None => io.tensor(0)?.shape().clone(),
        };
        let dtype = match self.dtype {
            Some(dtype) => dtype,
            None => io.tensor(0)?.dtype(),
        };
        let mut generator = Generator::new(self.seed);
        let mut out = io.allocate(DType::F64, shape)?;
        for o in out.as_mut_slice::<f64>()? {
            *o = match self.draw {
                Draw::Normal { mean, scale } => mean + scale * generator.normal(),
                Draw::Uniform { low, high } => low + (high - low) * generator.uniform(),
            };
        }
        io.emit(cast(&out, dtype)?);
        Ok(())
    }
}

fn shape(node: &Node) -> Result<Shape> {
    let Some(dims) = node.ints("shape")? else { bail!(Graph, "attribute `shape` is missing") };
    let shape: Option<Vec<usize>> = dims.iter().map(|d| usize::try_from(*d).ok()).collect();
    let Some(shape) = shape else {
        bail!(Graph, "attribute `shape` is {dims:?}; extents cannot be negative");
    };
    element_count(&shape, 8)?;
    Ok(shape.into())
}

fn infer_shaped(i: &mut Infer<'_>) -> Result<()> {
    let dims = shape(i.node)?.iter().map(|d| Dim::of(*d)).collect();
    let dtype = dtype(i.node, Some(DType::F32))?;
    i.set(0, dtype, Some(dims));
    Ok(())
}

fn infer_like(i: &mut Infer<'_>) -> Result<()> {
    let dtype = dtype(i.node, i.dtype(0))?;
    i.set(0, dtype, i.shape(0));
    Ok(())
}

macro_rules! table {
    ($($(#[$doc:meta])* $def:ident $name:literal $low:literal $high:literal $draw:path,
        shaped: $shaped:literal;)*) => { $(
        $(#[$doc])*
        pub(super) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: 1,
            attributes: if $shaped { &[
                AttributeDef::optional($low, AttributeKind::Float),
                AttributeDef::optional($high, AttributeKind::Float),
                SEED,
                DTYPE,
                SHAPE,
            ] } else { &[
                AttributeDef::optional($low, AttributeKind::Float),
                AttributeDef::optional($high, AttributeKind::Float),
                SEED,
                DTYPE,
            ] },
            inputs: if $shaped { &[] } else { &[Port::required("input", ALL)] },
            outputs: &[Port::required("output", FLOATS)],
            infer: if $shaped { infer_shaped } else { infer_like },
            batch: batch::mixes,
            cost: cost::transcendental,
            prepare: |p| {
                let draw = $draw(p.node)?;
                let shape = if $shaped { Some(shape(p.node)?) } else { None };
                let default = if $shaped { Some(DType::F32) } else { None };
                let dtype = dtype(p.node, default)?;
                Ok(Box::new(Random { draw, seed: seed(p.node)?, dtype, shape }))
            },
            cases: || {
                // With no width at all, what is drawn is known.
                let case = Case::new($name, 1, "all the same").attr($low, 2.5_f32);
                let case = case.attr($high, if $low == "mean" { 0.0_f32 } else { 2.5 });
                let out = filled(&[2, 1], &[2.5_f64, 2.5]);
                let case = case.attr("dtype", 11).attr("seed", 3.0_f32).output(out);
                vec![if $shaped {
                    case.attr("shape", vec![2_i64, 1])
                } else {
                    case.input(filled(&[2, 1], &[0_i64, 0]))
                }]
            },
        };
    )* };
}
table! {
    /// Numbers of a normal distribution.
    RANDOM_NORMAL "RandomNormal" "mean" "scale" Draw::normal, shaped: true;
    /// Numbers of a normal distribution, in the shape of the input.
    RANDOM_NORMAL_LIKE "RandomNormalLike" "mean" "scale" Draw::normal, shaped: false;
    /// Numbers between two bounds.
    RANDOM_UNIFORM "RandomUniform" "low" "high" Draw::uniform, shaped: true;
    /// Numbers between two bounds, in the shape of the input.
    RANDOM_UNIFORM_LIKE "RandomUniformLike" "low" "high" Draw::uniform, shaped: false;
}

/// 1 with the probability that the input says, else 0.
pub(super) static BERNOULLI: OpDef = OpDef {
    name: "Bernoulli",
    domain: "",
    since: 15,
    attributes: &[SEED, DTYPE],
    inputs: &[Port::required("input", FLOATS)],
    outputs: &[Port::required("output", ALL)],
    infer: infer_like,
    batch: batch::mixes,
    cost: cost::elementwise,
    prepare: |p| Ok(Box::new(Bernoulli { seed: seed(p.node)?, dtype: dtype(p.node, None)? })),
    cases: || {
        vec![
            Case::new("Bernoulli", 15, "certain ones")
                .attr("seed", 1.0_f32)
                .input(filled(&[3], &[0.0_f32, 1.0, 0.0]))
                .output(filled(&[3], &[0.0_f32, 1.0, 0.0])),
            Case::new("Bernoulli", 15, "another dtype")
                .attr("dtype", 9)
                .input(filled(&[2], &[1.0_f64, 0.0]))
                .output(filled(&[2], &[true, false])),
        ]
    },
};

#[derive(Debug)]
struct Bernoulli {
    seed: Option<u64>,
    dtype: Option<DType>,
}

impl CpuKernel for Bernoulli {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let mut out = cast(x, DType::F64)?;
        let mut generator = Generator::new(self.seed);
        for o in out.as_mut_slice::<f64>()? {
            *o = f64::from(u8::from(generator.uniform() < *o));
        }
        let out = cast(&out, self.dtype.unwrap_or(x.dtype()))?;
        io.emit(out);
        Ok(())
    }
}

/// Classes drawn with the probabilities whose unnormalised logarithms the rows of the input are.
pub(super) static MULTINOMIAL: OpDef = OpDef {
    name: "Multinomial",
    domain: "",
    since: 7,
    attributes: &[SEED, DTYPE, AttributeDef::optional("sample_size", AttributeKind::Int)],
    inputs: &[Port::required("input", FLOATS)],
    outputs: &[Port::required("output", INDICES)],
    infer: |i| {
        let rows = i.shape(0).and_then(|s| s.first().cloned());
        let shape = rows.map(|r| vec![r, Dim::fixed(i.node.int_or("sample_size", 1).unwrap_or(1))]);
        let dtype = dtype(i.node, Some(DType::I32))?;
        i.set(0, dtype, shape);
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::transcendental,
    prepare: |p| {
        let samples = p.node.int_or("sample_size", 1)?;
        let Some(samples) = usize::try_from(samples).ok().filter(|s| *s > 0) else {
            bail!(Graph, "attribute `sample_size` is {samples}, expected at least 1");
        };
        let dtype = dtype(p.node, Some(DType::I32))?.unwrap_or(DType::I32);
        Ok(Box::new(Multinomial { seed: seed(p.node)?, samples, dtype }))
    },
    cases: || {
        let never = f32::NEG_INFINITY;
        vec![
            Case::new("Multinomial", 7, "certain ones")
                .attr("sample_size", 3)
                .attr("seed", 5.0_f32)
                .input(filled(&[2, 3], &[never, 1.0, never, 7.0, never, never]))
                .output(filled(&[2, 3], &[1_i32, 1, 1, 0, 0, 0])),
            Case::new("Multinomial", 7, "as i64")
                .attr("dtype", 7)
                .input(filled(&[1, 2], &[never, 0.0]))
                .output(filled(&[1, 1], &[1_i64])),
        ]
    },
};

#[derive(Debug)]
struct Multinomial {
    seed: Option<u64>,
    samples: usize,
    dtype: DType,
}

impl CpuKernel for Multinomial {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let &[rows, classes] = &x.shape()[..] else {
            bail!(Shape, "the input is {}, expected rows of classes", x.describe());
        };
        if classes == 0 && rows > 0 {
            bail!(Shape, "there is no class to draw from");
        }
        element_count(&[rows, self.samples], 8)?;
        let wide = cast(x, DType::F64)?;
        let mut generator = Generator::new(self.seed);
        let mut out = Vec::with_capacity(rows * self.samples);
        for row in wide.as_slice::<f64>()?.chunks(classes.max(1)) {
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut sums: Vec<f64> = row.iter().map(|l| (l - most).exp()).collect();
            for k in 1..sums.len() {
                sums[k] += sums[k - 1];
            }
            let total = sums.last().copied().unwrap_or(0.0);
            for _ in 0..self.samples {
                let drawn = generator.uniform() * total;
                out.push(sums.partition_point(|s| *s <= drawn).min(classes - 1) as i64);
            }
        }
        io.emit(cast(&Tensor::new([rows, self.samples], out)?, self.dtype)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_as_they_should_be() {
        let mut g = Generator::new(Some(7));
        let n = 20_000;
        let (mut sum, mut squares, mut uniform) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            let v = g.normal();
            sum += v;
            squares += v * v;
            let u = g.uniform();
            assert!((0.0..1.0).contains(&u));
            uniform += u;
        }
        let n = f64::from(n);
        assert!((sum / n).abs() < 0.03 && (squares / n - 1.0).abs() < 0.05);
        assert!((uniform / n - 0.5).abs() < 0.02);
    }

    #[test]
    fn a_seed_decides_and_none_does_not() {
        let draw = |seed| {
            (0..4)
                .map(|_| 0)
                .fold((Generator::new(seed), 0), |(mut g, _), _| {
                    let v = g.next();
                    (g, v)
                })
                .1
        };
        assert_eq!(draw(Some(1)), draw(Some(1)));
        assert_ne!(draw(Some(1)), draw(Some(2)));
        assert_ne!(draw(None), draw(None));
    }
}
