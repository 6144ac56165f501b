//! Convolutions: `Conv`, `ConvTranspose`, `ConvInteger` and the fused form of the first.

mod direct;
mod integer;
mod plain;
mod transpose;

pub(super) use direct::{CONV, FUSED_CONV};
pub(super) use integer::CONV_INTEGER;
pub(super) use transpose::CONV_TRANSPOSE;

use super::cost::{Cost, CostQuery};
use super::{AttributeDef, AttributeKind, Infer};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::window::{Axis, WindowAttributes};
use crate::tensor::{DType, Shape, element_count};

const TYPES: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64];
const GROUP: AttributeDef = AttributeDef::optional("group", AttributeKind::Int);

fn group(node: &Node) -> Result<usize> {
    let group = node.int_or("group", 1)?;
    match usize::try_from(group) {
        Ok(g) if g > 0 => Ok(g),
        _ => bail!(Graph, "attribute `group` is {group}, expected at least 1"),
    }
}

/// The extents of one application.
#[derive(Clone, Debug)]
struct Extents {
    batch: usize,
    in_channels: usize,
    out_channels: usize,
    groups: usize,
    axes: Vec<Axis>,
}

impl Extents {
    /// The extents of a convolution of an input by weights of these shapes.
    fn new(x: &[usize], w: &[usize], groups: usize, window: &WindowAttributes) -> Result<Self> {
        let (&[batch, in_channels, ref size @ ..], &[out_channels, depth, ref kernel @ ..]) =
            (x, w)
        else {
            bail!(Shape, "input `X` of shape {x:?}, weights of shape {w:?}: too few axes");
        };
        if size.is_empty() || size.len() != kernel.len() {
            bail!(Shape, "input `X` has {} spatial axes, the weights {}", size.len(), kernel.len());
        }
        if depth.checked_mul(groups) != Some(in_channels) {
            bail!(
                Shape,
                "input `X` has {in_channels} channels, the weights expect {depth} in each of \
                 {groups} groups"
            );
        }
        if !out_channels.is_multiple_of(groups) {
            bail!(Shape, "{out_channels} output channels cannot be cut into {groups} groups");
        }
        let axes = window.resolve(size, &window.kernel_of(Some(kernel))?)?;
        let out = Self { batch, in_channels, out_channels, groups, axes };
        element_count(&out.shape(), 8)?;
        Ok(out)
    }

    /// The output's shape.
    fn shape(&self) -> Shape {
        [self.batch, self.out_channels].into_iter().chain(self.axes.iter().map(|a| a.out)).collect()
    }

    /// Refuses a bias that is not one value for each output channel.
    fn check_bias(&self, bias: &[usize]) -> Result<()> {
        if bias != [self.out_channels] {
            bail!(Shape, "the bias has shape {bias:?}, expected [{}]", self.out_channels);
        }
        Ok(())
    }
}

/// The output of a convolution.
fn infer(i: &mut Infer<'_>, dtype: Option<DType>) -> Result<()> {
    let window = WindowAttributes::read(i.node)?;
    let groups = group(i.node)?;
    let Some(x) = i.shape(0) else {
        i.set(0, dtype, None);
        return Ok(());
    };
    if x.len() < 3 {
        bail!(Shape, "input `X` has {} axes, expected batch, channels and spatial axes", x.len());
    }
    let w = i.shape(1);
    if let Some(w) = &w {
        if w.len() != x.len() {
            bail!(Shape, "input `X` has {} axes, the weights {}", x.len(), w.len());
        }
        if let (Some(c), Some(d)) = (x[1].as_extent(), w[1].as_extent())
            && d.checked_mul(groups) != Some(c)
        {
            bail!(
                Shape,
                "input `X` has {c} channels, the weights expect {d} in each of {groups} groups"
            );
        }
    }
    let kernel: Vec<Option<usize>> = match (&window.kernel, &w) {
        (Some(k), _) => k.iter().map(|k| Some(*k)).collect(),
        (None, Some(w)) => w[2..].iter().map(Dim::as_extent).collect(),
        (None, None) => vec![None; x.len() - 2],
    };
    let channels = match &w {
        Some(w) => w[0].clone(),
        None => i.fresh(),
    };
    let mut shape = vec![x[0].clone(), channels];
    shape.extend(window.dims(i, &x[2..], &kernel)?);
    i.set(0, dtype, Some(shape));
    Ok(())
}

/// Two operations for each weight and output position.
fn cost(q: &CostQuery<'_>) -> Cost {
    let depth = match q.inputs.get(1) {
        Some(Some((_, w))) if w.rank() > 1 => w[1..].iter().product(),
        _ => 1,
    };
    Cost { flops: 2.0 * q.output_elements() * depth as f64, bytes: q.bytes() }
}
