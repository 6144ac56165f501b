//! `STFT`.

use super::fourier::{Complex, Fourier};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{FLOATS, INDICES};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast, element_count};

/// Fourier transforms of frames of a signal.
pub(in crate::ops) static STFT: OpDef = OpDef {
    name: "STFT",
    domain: "",
    since: 17,
    attributes: &[AttributeDef::optional("onesided", AttributeKind::Int)],
    inputs: &[
        Port::required("signal", FLOATS),
        Port::required("frame_step", INDICES),
        Port::optional("window", FLOATS),
        Port::optional("frame_length", INDICES),
    ],
    outputs: &[Port::required("output", FLOATS)],
    infer,
    batch: batch::leading,
    cost: cost::transcendental,
    prepare: |p| Ok(Box::new(Stft::of(p.node)?)),
    cases,
};

#[derive(Debug)]
struct Stft {
    onesided: bool,
}

impl Stft {
    fn of(node: &Node) -> Result<Self> {
        Ok(Self { onesided: node.int_or("onesided", 1)? != 0 })
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let this = Stft::of(i.node)?;
    let scalar = |i: &Infer<'_>, k: usize| match i.elements(k).as_deref() {
        Some([n]) => Some(n.clone()),
        _ => None,
    };
    let length = if i.has(3) { scalar(i, 3) } else { i.shape(2).and_then(|s| s.first().cloned()) };
    let shape = i.shape(0).filter(|s| s.len() == 3);
    let shape = shape.map(|s| {
        let frames = match (&length, scalar(i, 1)) {
            (Some(n), Some(step)) if step.as_fixed().is_some_and(|s| s > 0) => {
                (s[1].clone() - n.clone()).floor_div(&step) + Dim::fixed(1)
            }
            _ => i.fresh(),
        };
        let bins = match length {
            Some(n) if this.onesided => n.floor_div(&Dim::fixed(2)) + Dim::fixed(1),
            Some(n) => n,
            None => i.fresh(),
        };
        vec![s[0].clone(), frames, bins, Dim::fixed(2)]
    });
    i.set(0, i.dtype(0), shape);
    Ok(())
}

impl CpuKernel for Stft {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let &[n, samples, parts @ 1..=2] = &x.shape()[..] else {
            bail!(Shape, "the signal is {}, expected [batch,samples,1 or 2]", x.describe());
        };
        if self.onesided && parts == 2 {
            bail!(Unsupported, "a one-sided transform of complex numbers");
        }
        let one = |k: usize, name: &str| -> Result<Option<usize>> {
            let Some(t) = io.optional(k)? else { return Ok(None) };
            match t.to_i64s()?[..] {
                [v] if v > 0 => Ok(usize::try_from(v).ok()),
                _ => bail!(Shape, "input `{name}` is {t:?}, expected one number above 0"),
            }
        };
        let step = one(1, "frame_step")?.unwrap_or(1);
        let window = io.optional(2)?.map(|w| cast(w, DType::F64)).transpose()?;
        let window = window.as_ref().map(Tensor::as_slice::<f64>).transpose()?;
        let length = match (one(3, "frame_length")?, window) {
            (Some(n), Some(w)) if w.len() != n => {
                bail!(Shape, "frames have {n} samples, the window {}", w.len())
            }
            (Some(n), _) => n,
            (None, Some(w)) if !w.is_empty() => w.len(),
            _ => bail!(Missing, "neither `frame_length` nor `window` is given"),
        };
        let Some(room) = samples.checked_sub(length) else {
            bail!(Shape, "a frame has {length} samples, the signal only {samples}");
        };
        let (frames, bins) = (room / step + 1, if self.onesided { length / 2 + 1 } else { length });
        element_count(&[n, frames, bins, 2], 8)?;
        let wide = cast(x, DType::F64)?;
        let from = wide.as_slice::<f64>()?;
        let mut out = io.allocate(DType::F64, [n, frames, bins, 2])?;
        let fourier = Fourier::new(length, false);
        io.threads().split_rows(out.as_mut_slice::<f64>()?, bins * 2, |first, chunk| {
            let mut row: Vec<Complex> = vec![[0.0; 2]; length];
            for (k, to) in chunk.chunks_exact_mut(bins * 2).enumerate() {
                let (item, frame) = ((first + k) / frames, (first + k) % frames);
                for (j, v) in row.iter_mut().enumerate() {
                    let at = (item * samples + frame * step + j) * parts;
                    let w = window.map_or(1.0, |w| w[j]);
                    *v = [from[at] * w, if parts == 2 { from[at + 1] * w } else { 0.0 }];
                }
                fourier.apply(&mut row);
                for (to, v) in to.chunks_exact_mut(2).zip(&row) {
                    to.copy_from_slice(v);
                }
            }
        });
        io.emit(cast(&out, x.dtype())?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let x = || filled(&[1, 5, 1], &[1.0_f32, 2.0, 3.0, 4.0, 5.0]);
    let new = |name: &str| {
        Case::new("STFT", 17, name).input(x()).input(filled(&[], &[2_i64])).close(1e-6, 1e-6)
    };
    vec![
        new("frames of a length")
            .absent()
            .input(filled(&[], &[2_i64]))
            .output(filled(&[1, 2, 2, 2], &[3.0_f32, 0.0, -1.0, 0.0, 7.0, 0.0, -1.0, 0.0])),
        new("a window, both sides")
            .attr("onesided", 0)
            .input(filled(&[2], &[1.0_f32, 0.5]))
            .output(filled(&[1, 2, 2, 2], &[2.0_f32, 0.0, 0.0, 0.0, 5.0, 0.0, 1.0, 0.0])),
    ]
}
