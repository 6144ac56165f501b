//! Convolutions: `Conv`, `ConvTranspose`, `ConvInteger` and the fused form of the first.

mod direct;
mod integer;
mod plain;
mod transpose;

pub(super) use direct::{CONV, FUSED_CONV, fused_batch};
pub(super) use integer::CONV_INTEGER;
pub(super) use transpose::CONV_TRANSPOSE;
pub(crate) use transpose::transposed_axes;

use super::cost::{Cost, CostQuery};
use super::{AttributeDef, AttributeKind, Infer};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::kernels::Window;
use crate::ops::window::{Axis, WindowAttributes, padded_axes};
use crate::tensor::{DType, Few, Shape, element_count};

const TYPES: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64];
pub(super) const GROUP: AttributeDef = AttributeDef::optional("group", AttributeKind::Int);

pub(super) fn group(node: &Node) -> Result<usize> {
    let group = node.int_or("group", 1)?;
    match usize::try_from(group) {
        Ok(g) if g > 0 => Ok(g),
        _ => bail!(Graph, "attribute `group` is {group}, expected at least 1"),
    }
}

/// The extents of one application.
#[derive(Clone, Debug)]
pub(super) struct Extents {
    pub(super) batch: usize,
    pub(super) in_channels: usize,
    pub(super) out_channels: usize,
    pub(super) groups: usize,
    pub(super) axes: Few<Axis>,
}

impl Extents {
    /// The extents of a convolution of an input by weights of these shapes.
    pub(super) fn new(
        x: &[usize],
        w: &[usize],
        groups: usize,
        window: &WindowAttributes,
    ) -> Result<Self> {
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
        let axes = window.resolve(size, window.kernel_of(Some(kernel))?)?;
        let out = Self { batch, in_channels, out_channels, groups, axes };
        element_count(&out.shape(), 8)?;
        Ok(out)
    }

    /// The output's shape.
    fn shape(&self) -> Shape {
        [self.batch, self.out_channels].into_iter().chain(self.axes.iter().map(|a| a.out)).collect()
    }

    /// Refuses a bias that is not one value for each output channel.
    pub(super) fn check_bias(&self, bias: &[usize]) -> Result<()> {
        if bias != [self.out_channels] {
            bail!(Shape, "the bias has shape {bias:?}, expected [{}]", self.out_channels);
        }
        Ok(())
    }
}

/// The extents over any input that is large enough, for what depends on the window alone; `x` is
/// what is known of the input's extents.
pub(super) fn extents_of_any(
    window: &WindowAttributes,
    w: &[usize],
    groups: usize,
    x: Option<&[Dim]>,
) -> Result<Extents> {
    const LARGE: usize = 1 << 29;
    let in_channels = match w {
        [_, depth, _, ..] => depth.checked_mul(groups),
        _ => bail!(Shape, "weights of shape {w:?}: too few axes"),
    };
    let Some(in_channels) = in_channels else {
        bail!(Limit, "weights of shape {w:?} in {groups} groups have too many channels");
    };
    let mut size = vec![LARGE; w.len() - 2];
    if let (Some([_, _, h, v]), [_, _, _, 1]) = (x, w)
        && v.as_fixed() == Some(1)
        && h.as_fixed() != Some(1)
    {
        size[1] = 1;
    }
    let axes = window.resolve(&size, window.kernel_of(Some(&w[2..]))?)?;
    Ok(Extents { batch: 1, in_channels, out_channels: w[0], groups, axes })
}

/// The window of one or two spatial axes.
pub(super) fn window_of(e: &Extents) -> Result<Window> {
    let [h, v] = padded_axes::<2>(&e.axes)?;
    Ok(Window {
        kernel: [h.kernel, v.kernel],
        strides: [h.stride, v.stride],
        dilations: [h.dilation, v.dilation],
        pads: [h.pads[0], v.pads[0], h.pads[1], v.pads[1]],
    })
}

/// The window for a kernel, whose inner axis should be the long one: over a column (W = 1), which
/// is a row in memory, it is turned.
pub(super) fn kernel_window(e: &Extents) -> Result<Window> {
    let window = window_of(e)?;
    let column = match &e.axes[..] {
        [h, v] => v.size == 1 && h.size != 1 && v.kernel == 1 && v.pads == [0, 0],
        _ => false,
    };
    let Window { kernel, strides, dilations, pads } = window;
    Ok(if column {
        Window {
            kernel: [1, kernel[0]],
            strides: [1, strides[0]],
            dilations: [1, dilations[0]],
            pads: [0, pads[0], 0, pads[2]],
        }
    } else {
        window
    })
}

/// The height and width of an input for weights that were packed for this window.
pub(super) fn kernel_size(e: &Extents, packed: Window) -> Result<[usize; 2]> {
    let [h, v] = padded_axes::<2>(&e.axes)?;
    if packed == window_of(e)? {
        Ok([h.size, v.size])
    } else if v.size == 1 {
        Ok([1, h.size])
    } else {
        bail!(Shape, "input `X` is {} wide, it was declared to be one column", v.size)
    }
}

/// The output of a convolution.
fn infer(i: &mut Infer<'_>, dtype: Option<DType>) -> Result<()> {
    let shape = i.shape(0).map(|x| output_dims(i, &x)).transpose()?;
    i.set(0, dtype, shape);
    Ok(())
}

/// The output's extents, for an input of these and the weights that are input 1.
pub(super) fn output_dims(i: &mut Infer<'_>, x: &[Dim]) -> Result<Vec<Dim>> {
    let window = WindowAttributes::read(i.node)?;
    let groups = group(i.node)?;
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
    Ok(shape)
}

/// Two operations for each weight and output position.
pub(in crate::ops) fn cost(q: &CostQuery<'_>) -> Cost {
    let depth = match q.inputs.get(1) {
        Some(Some((_, w))) if w.rank() > 1 => w[1..].iter().product(),
        _ => 1,
    };
    Cost { flops: 2.0 * q.output_elements() * depth as f64, bytes: q.bytes() }
}
