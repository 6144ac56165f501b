//! `DynamicQuantizeLSTM`: an LSTM with weights of 8 bits.

use super::cell::Kind;
use super::{Recurrent, batch, cost, infer};
use crate::error::{Result, bail};
use crate::ops::case::{Case, filled};
use crate::ops::composite::MICROSOFT;
use crate::ops::def::types::F32S;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, Prepare, quantize};
use crate::tensor::{DType, Tensor};

const BYTES: &[DType] = &[DType::U8, DType::I8];

/// An LSTM whose weights are quantised, with their last two axes turned; its input and, at each
/// step, its hidden state are rounded to 8 bits over their range.
pub(in crate::ops) static DYNAMIC_QUANTIZE_LSTM: OpDef = OpDef {
    name: "DynamicQuantizeLSTM",
    domain: MICROSOFT,
    since: 1,
    attributes: &[
        AttributeDef::optional("activation_alpha", AttributeKind::Floats),
        AttributeDef::optional("activation_beta", AttributeKind::Floats),
        AttributeDef::optional("activations", AttributeKind::Strings),
        AttributeDef::optional("clip", AttributeKind::Float),
        AttributeDef::optional("direction", AttributeKind::String),
        AttributeDef::required("hidden_size", AttributeKind::Int),
        AttributeDef::optional("input_forget", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("X", F32S),
        Port::required("W", BYTES),
        Port::required("R", BYTES),
        Port::optional("B", F32S),
        Port::optional("sequence_lens", &[DType::I32]),
        Port::optional("initial_h", F32S),
        Port::optional("initial_c", F32S),
        Port::optional("P", F32S),
        Port::required("W_scale", F32S),
        Port::required("W_zero_point", BYTES),
        Port::required("R_scale", F32S),
        Port::required("R_zero_point", BYTES),
    ],
    outputs: &[Port::optional("Y", F32S), Port::optional("Y_h", F32S), Port::optional("Y_c", F32S)],
    infer,
    batch: |q| {
        if q.is_free() {
            return batch(q);
        }
        Err("its values are rounded over the range of the whole batch".to_owned())
    },
    cost,
    prepare: |p| Ok(Box::new(Quantized::new(p)?)),
    cases,
};

/// W and R as floats, [directions, gates, depth].
fn weights(part: &str, w: &Tensor, scale: &Tensor, zero: &Tensor) -> Result<Tensor> {
    let &[directions, depth, rows] = &w.shape()[..] else {
        bail!(Shape, "input `{part}` is {}, expected 3 axes", w.describe());
    };
    let each = |t: &Tensor| t.len() == directions * rows && t.rank() == 2;
    if [scale, zero].iter().any(|t| t.len() != directions && !each(t)) {
        bail!(
            Shape,
            "`{part}` is {} with the scale {} and the zero point {}; expected one of each for each \
             direction or gate",
            w.describe(),
            scale.describe(),
            zero.describe()
        );
    }
    let (by_row, zero_by_row) = (each(scale), each(zero));
    let (w, scale, zero) = (w.to_f32s()?, scale.to_f32s()?, zero.to_f32s()?);
    let mut out = Vec::with_capacity(w.len());
    for d in 0..directions {
        for row in 0..rows {
            let at = |by_row: bool| if by_row { d * rows + row } else { d };
            let (scale, zero) = (scale[at(by_row)], zero[at(zero_by_row)]);
            let column = w[d * depth * rows..][..depth * rows].iter().skip(row).step_by(rows);
            out.extend(column.map(|w| (w - zero) * scale));
        }
    }
    Tensor::new([directions, rows, depth], out)
}

#[derive(Debug)]
struct Quantized {
    lstm: Recurrent,
}

impl Quantized {
    fn new(p: &Prepare<'_>) -> Result<Self> {
        let mut constants = p.constants.to_vec();
        constants.resize(p.constants.len().max(12), None);
        for (k, part, scale) in PARTS {
            let known = |i: usize| p.constant(i);
            constants[k] = match (known(k), known(scale), known(scale + 1)) {
                (Some(w), Some(scale), Some(zero)) => Some(weights(part, w, scale, zero)?),
                _ => None,
            };
        }
        let input_forget = p.node.int_or("input_forget", 0)? != 0;
        let prepare = Prepare { constants: &constants, ..*p };
        let activations = ["Sigmoid", "Tanh", "Tanh"];
        let lstm = Recurrent::new(&prepare, Kind::Lstm { input_forget }, &activations)?;
        Ok(Self { lstm: Recurrent { rounds: true, ..lstm } })
    }
}

/// The weights: their input, their name and the input of their scale, before that of their zero
/// point.
const PARTS: [(usize, &str, usize); 2] = [(1, "W", 8), (2, "R", 10)];

impl CpuKernel for Quantized {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let mut x = io.tensor(0)?.to_f32s()?;
        quantize::rounded(&mut x);
        let x = Tensor::new(io.tensor(0)?.shape().clone(), x)?;
        io.put(0, x.into());
        if self.lstm.packed.is_none() {
            for (k, part, scale) in PARTS {
                let (scale, zero) = (io.tensor(scale)?, io.tensor(scale + 1)?);
                let w = weights(part, io.tensor(k)?, scale, zero)?;
                io.put(k, w.into());
            }
        }
        self.lstm.run(io)
    }

    fn reads_constant(&self, input: usize) -> bool {
        self.lstm.packed.is_none() || !matches!(input, 1 | 2 | 8..=11)
    }
}

/// What is expected are ONNX Runtime's results. Signed weights stay within 7 bits, beyond which
/// its products saturate on processors without instructions for them.
fn cases() -> Vec<Case> {
    let new = |name: &str| {
        Case::new("DynamicQuantizeLSTM", 1, name)
            .domain(MICROSOFT)
            .attr("hidden_size", 2)
            .close(2e-6, 2e-6)
    };
    // In double precision first, as the reference's were: some lie halfway between two steps.
    let eighths = |shape: &[usize], step: usize| {
        let n: usize = shape.iter().product();
        let values: Vec<f32> =
            (0..n).map(|i| (((i * step + 1) % 13) as f64 / 8.0 - 0.7) as f32).collect();
        filled(shape, &values)
    };
    let line = |n: usize, step: usize, start: usize| -> Vec<i8> {
        (0..n).map(|i| (((i * step + start) % 128) as i32 - 64) as i8).collect()
    };
    let (w, r) = (line(24, 29, 5), line(16, 31, 7));
    // The rows in order for one direction, backwards for the other.
    let both = |v: &[i8]| -> Vec<u8> {
        let raised = |v: &i8| v.wrapping_add(-128).cast_unsigned();
        let back = v.chunks(8).rev().flatten();
        v.iter().chain(back).map(raised).collect()
    };
    vec![
        new("constant weights")
            .input(eighths(&[3, 2, 3], 5))
            .constant(filled(&[1, 3, 8], &w))
            .constant(filled(&[1, 2, 8], &r))
            .constant(eighths(&[1, 16], 3))
            .absent()
            .absent()
            .absent()
            .absent()
            .constant(filled(&[1], &[0.01f32]))
            .constant(filled(&[1], &[0i8]))
            .constant(filled(&[1], &[0.012f32]))
            .constant(filled(&[1], &[0i8]))
            .output(filled(
                &[3, 1, 2, 2],
                &[
                    -0.134_220_23f32,
                    0.081_172_176,
                    0.072_413_55,
                    0.114_941_96,
                    -0.120_820_194,
                    0.128_991_28,
                    -0.068_694_42,
                    0.134_406_69,
                    -0.077_038_03,
                    0.186_849_86,
                    -0.112_765_86,
                    0.176_019_47,
                ],
            ))
            .output(filled(
                &[1, 2, 2],
                &[-0.077_038_03f32, 0.186_849_86, -0.112_765_86, 0.176_019_47],
            ))
            .output(filled(
                &[1, 2, 2],
                &[-0.140_724_2f32, 0.266_945_42, -0.227_341_34, 0.246_864_86],
            )),
        new("both directions, unsigned, from a state")
            .attr("direction", "bidirectional")
            .input(eighths(&[3, 2, 3], 5))
            .input(filled(&[2, 3, 8], &both(&w)))
            .input(filled(&[2, 2, 8], &both(&r)))
            .absent()
            .absent()
            .input(eighths(&[2, 2, 2], 3))
            .input(eighths(&[2, 2, 2], 5))
            .absent()
            .input(filled(&[2], &[0.01f32, 0.02]))
            .input(filled(&[2], &[128u8, 120]))
            .input(filled(&[2], &[0.012f32, 0.01]))
            .input(filled(&[2], &[128u8, 130]))
            .output(filled(
                &[3, 2, 2, 2],
                &[
                    -0.194_725_74f32,
                    -0.110_468_51,
                    0.280_274_8,
                    -0.012_938_53,
                    0.046_284_944,
                    -0.026_584_363,
                    0.005_990_775_3,
                    -0.005_458_903_5,
                    -0.118_087_41,
                    -0.095_533_62,
                    0.091_802_18,
                    0.017_827_569,
                    -0.044_337_7,
                    -0.232_979_42,
                    -0.195_199_62,
                    0.056_318_43,
                    -0.036_308_214,
                    -0.031_266_65,
                    0.025_849_039,
                    0.028_982_298,
                    0.045_853_075,
                    -0.218_987_72,
                    -0.093_596_09,
                    0.115_049_005,
                ],
            ))
            .output(filled(
                &[2, 2, 2],
                &[
                    -0.036_308_214f32,
                    -0.031_266_65,
                    0.025_849_039,
                    0.028_982_298,
                    0.046_284_944,
                    -0.026_584_363,
                    0.005_990_775_3,
                    -0.005_458_903_5,
                ],
            )),
    ]
}
