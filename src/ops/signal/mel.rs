//! `MelWeightMatrix`.

use super::windows::output_dtype;
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{FLOATS, INDICES, NUMBERS};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

/// The weights of a spectrum's bins in bands that are evenly spaced on the mel scale.
pub(in crate::ops) static MEL_WEIGHT_MATRIX: OpDef = OpDef {
    name: "MelWeightMatrix",
    domain: "",
    since: 17,
    attributes: &[AttributeDef::optional("output_datatype", AttributeKind::Int)],
    inputs: &[
        Port::required("num_mel_bins", INDICES),
        Port::required("dft_length", INDICES),
        Port::required("sample_rate", INDICES),
        Port::required("lower_edge_hertz", FLOATS),
        Port::required("upper_edge_hertz", FLOATS),
    ],
    outputs: &[Port::required("output", NUMBERS)],
    infer: |i| {
        let dtype = output_dtype(i.node)?;
        let number = |k: usize| match i.elements(k).as_deref() {
            Some([n]) => Some(n.clone()),
            _ => None,
        };
        let (bands, length) = (number(0), number(1));
        let rows = match length {
            Some(n) => n.floor_div(&Dim::fixed(2)) + Dim::fixed(1),
            None => i.fresh(),
        };
        let bands = match bands {
            Some(n) => n,
            None => i.fresh(),
        };
        i.set(0, Some(dtype), Some(vec![rows, bands]));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::elementwise,
    prepare: |p| Ok(Box::new(Mel { dtype: output_dtype(p.node)? })),
    cases,
};

#[derive(Debug)]
struct Mel {
    dtype: DType,
}

fn to_mel(hertz: f64) -> f64 {
    2595.0 * (1.0 + hertz / 700.0).log10()
}

impl CpuKernel for Mel {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let whole = |k: usize, name: &str| -> Result<usize> {
            let t = io.tensor(k)?;
            match t.to_i64s()?[..] {
                [n] if (0..1 << 24).contains(&n) => Ok(n.unsigned_abs() as usize),
                _ => bail!(Shape, "input `{name}` is {t:?}, expected one number in 0..2^24"),
            }
        };
        let edge = |k: usize| -> Result<f64> {
            match cast(io.tensor(k)?, DType::F64)?.as_slice::<f64>()? {
                [v] if *v >= 0.0 && v.is_finite() => Ok(*v),
                other => bail!(Shape, "an edge is {other:?}, expected one number from 0 on"),
            }
        };
        let (bands, length, rate) =
            (whole(0, "num_mel_bins")?, whole(1, "dft_length")?, whole(2, "sample_rate")?);
        let (low, high) = (to_mel(edge(3)?), to_mel(edge(4)?));
        if rate == 0 {
            bail!(Shape, "`sample_rate` is 0");
        }
        let rows = length / 2 + 1;
        let step = (high - low) / (bands + 2) as f64;
        // The bin at which each band begins, peaks and ends.
        let bins: Vec<i64> = (0..bands + 2)
            .map(|k| {
                let hertz = 700.0 * (10.0_f64.powf((k as f64 * step + low) / 2595.0) - 1.0);
                ((length + 1) as f64 * hertz / rate as f64).floor() as i64
            })
            .collect();
        let mut out = Tensor::zeros(DType::F64, [rows, bands])?;
        let to = out.as_mut_slice::<f64>()?;
        for band in 0..bands {
            let (first, peak, last) = (bins[band], bins[band + 1], bins[band + 2]);
            let mut put = |bin: i64, v: f64| {
                if let Some(o) =
                    usize::try_from(bin).ok().and_then(|b| to.get_mut(b * bands + band))
                {
                    *o = v;
                }
            };
            // Bins beyond the spectrum have no row.
            let end = rows as i64;
            if first == peak {
                put(peak, 1.0);
            }
            for bin in first..(peak + 1).min(end) {
                if first != peak {
                    put(bin, (bin - first) as f64 / (peak - first) as f64);
                }
            }
            for bin in peak..last.min(end) {
                put(bin, (last - bin) as f64 / (last - peak) as f64);
            }
        }
        io.emit(cast(&out, self.dtype)?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let number = |v: i64| filled(&[], &[v]);
    let edge = |v: f32| filled(&[], &[v]);
    vec![
        // The example of the specification.
        Case::new("MelWeightMatrix", 17, "three bands")
            .input(number(3))
            .input(number(16))
            .input(number(8192))
            .input(edge(0.0))
            .input(edge(4096.0))
            .output(filled(
                &[9, 3],
                &[
                    1.0_f32, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 1.0, 0.0, 0.0, 0.5,
                    0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
                ],
            ))
            .close(1e-6, 1e-6),
    ]
}
