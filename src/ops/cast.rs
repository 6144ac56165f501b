//! `Cast` and `CastLike`.

use half::{bf16, f16};

use super::case::{Case, as_dtype, filled};
use super::def::types::STORED;
use super::elementwise::{fits, spread};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare, batch, cost};
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Node};
use crate::tensor::{DType, Element, Tensor, cast_to, for_number, is_narrow};

/// Every element converted to the dtype `to`.
///
/// Floats become whole numbers by dropping the fraction (out of range: the nearest one, NaN: 0),
/// whole numbers wrap into narrower ones, and whatever is not 0 becomes `true`. Floats of 8 and 4
/// bits take the nearest value; `saturate` says what is beyond their range.
pub(super) static CAST: OpDef = OpDef {
    name: "Cast",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::required("to", AttributeKind::Int),
        // In words, before version 6.
        AttributeDef::required("to", AttributeKind::String).until(5),
        AttributeDef::optional("saturate", AttributeKind::Int),
    ],
    inputs: &[Port::required("input", STORED)],
    outputs: &[Port::required("output", STORED)],
    infer: |i| {
        let to = target(i.node)?;
        infer(i, Some(to))
    },
    batch: batch::unary,
    cost: cost::copy,
    prepare: |p| {
        let saturate = p.node.int_or("saturate", 1)? != 0;
        Ok(Box::new(Cast { to: Some(target(p.node)?), saturate }))
    },
    cases: cast_cases,
};

/// Every element converted to the dtype of the second input.
pub(super) static CAST_LIKE: OpDef = OpDef {
    name: "CastLike",
    domain: "",
    since: 15,
    attributes: &[AttributeDef::optional("saturate", AttributeKind::Int)],
    inputs: &[Port::required("input", STORED), Port::required("target_type", STORED)],
    outputs: &[Port::required("output", STORED)],
    infer: |i| infer(i, i.dtype(1)),
    batch: |q| q.everywhere(q.axes.first().copied().flatten()),
    cost: cost::copy,
    prepare: |p: &Prepare<'_>| {
        Ok(Box::new(Cast { to: None, saturate: p.node.int_or("saturate", 1)? != 0 }))
    },
    cases: cast_like_cases,
};

/// What dtypes were called before version 6.
const TYPE_NAMES: &[(&str, DType)] = &[
    ("FLOAT", DType::F32),
    ("FLOAT16", DType::F16),
    ("DOUBLE", DType::F64),
    ("INT8", DType::I8),
    ("INT16", DType::I16),
    ("INT32", DType::I32),
    ("INT64", DType::I64),
    ("UINT8", DType::U8),
    ("UINT16", DType::U16),
    ("UINT32", DType::U32),
    ("UINT64", DType::U64),
    ("BOOL", DType::Bool),
];

fn target(node: &Node) -> Result<DType> {
    if node.version < 6
        && let Ok(Some(name)) = node.string("to")
    {
        return match TYPE_NAMES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)) {
            Some((_, dtype)) => Ok(*dtype),
            None => bail!(Graph, "attribute `to` is `{name}`, which is no dtype"),
        };
    }
    let number = node.required_int("to")?;
    let dtype = i32::try_from(number).ok().and_then(DType::from_onnx);
    match dtype {
        Some(d) if STORED.contains(&d) => Ok(d),
        Some(d) => bail!(Unsupported, "conversion to {d} is not implemented"),
        None => bail!(Graph, "attribute `to` is {number}, which is no dtype"),
    }
}

fn infer(i: &mut Infer<'_>, to: Option<DType>) -> Result<()> {
    let from = i.dtype(0);
    i.set(0, to, i.shape(0));
    let followed = from.is_some_and(|d| d.is_int() || d == DType::Bool);
    let elements = to.filter(|_| followed).and_then(|to| {
        let elements = i.elements(0)?;
        let convert = |d: &Dim| match to {
            DType::Bool => d.as_fixed().map(|v| Dim::fixed(i64::from(v != 0))),
            _ => Some(d.clone()).filter(|d| fits(to, d)),
        };
        elements.iter().map(convert).collect()
    });
    i.set_elements(0, elements);
    Ok(())
}

/// To a stated dtype, or to that of the second input.
#[derive(Debug)]
struct Cast {
    to: Option<DType>,
    /// Whether what lies beyond the range of a narrow float becomes its largest value.
    saturate: bool,
}

impl CpuKernel for Cast {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let to = match self.to {
            Some(to) => to,
            None => io.tensor(1)?.dtype(),
        };
        if io.tensor(0)?.dtype() == to {
            let x = io.take(0)?;
            io.emit(x);
            return Ok(());
        }
        let x = io.tensor(0)?;
        let out = match x.dtype() {
            // Through the nearest f32, whatever the text says.
            DType::String if is_narrow(to) => {
                cast_to(&convert(io, x, DType::F32)?, to, self.saturate)?
            }
            from if is_narrow(from) && to == DType::String => {
                convert(io, &cast_to(x, DType::F32, true)?, to)?
            }
            from if is_narrow(from) || is_narrow(to) => cast_to(x, to, self.saturate)?,
            _ => convert(io, x, to)?,
        };
        io.emit(out);
        Ok(())
    }
}

fn convert(io: &Io<'_>, x: &Tensor, to: DType) -> Result<Tensor> {
    if to == DType::String {
        return to_strings(x);
    }
    let mut out = io.allocate(to, x.shape().clone())?;
    let refuse = || err!(Unsupported, "cannot convert {} to {to}", x.dtype());
    /// Into a dtype from elements that `as` converts.
    macro_rules! from {
        ($source:expr, $as:expr, $S:ty) => {{
            let (source, widen) = ($source, $as);
            match to {
                DType::Bool => map(io, source, &mut out, |x| widen(x) != <$S>::default())?,
                #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
                DType::F16 => map(io, source, &mut out, |x| f16::from_f64(widen(x) as f64))?,
                #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
                DType::BF16 => map(io, source, &mut out, |x| bf16::from_f64(widen(x) as f64))?,
                _ => for_number!(to, D => {
                    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
                    map(io, source, &mut out, |x| widen(x) as D)?;
                }, _ => return Err(refuse())),
            }
        }};
    }
    match x.dtype() {
        DType::String => parse(x.as_strings()?, &mut out)?,
        DType::Bool => from!(x.as_slice::<bool>()?, u8::from, u8),
        DType::F16 => from!(x.as_slice::<f16>()?, f16::to_f32, f32),
        DType::BF16 => from!(x.as_slice::<bf16>()?, bf16::to_f32, f32),
        dtype => for_number!(dtype, S => {
            from!(x.as_slice::<S>()?, |x: S| x, S);
        }, _ => return Err(refuse())),
    }
    Ok(out)
}

fn map<S: Element, D: Element>(
    io: &Io<'_>,
    source: &[S],
    out: &mut Tensor,
    f: impl Fn(S) -> D + Sync,
) -> Result<()> {
    spread(io.threads(), out.as_mut_slice::<D>()?, 1, |first, out| {
        for (o, &x) in out.iter_mut().zip(&source[first..]) {
            *o = f(x);
        }
    });
    Ok(())
}

fn parse(strings: &[String], out: &mut Tensor) -> Result<()> {
    let dtype = out.dtype();
    let unread = |s: &str| err!(Kernel, "cannot read `{s}` as {dtype}");
    let float = |s: &str| s.trim().parse::<f64>().map_err(|_| unread(s));
    match dtype {
        DType::Bool => {
            for (o, s) in out.as_mut_slice::<bool>()?.iter_mut().zip(strings) {
                *o = float(s)? != 0.0;
            }
        }
        DType::F16 => {
            for (o, s) in out.as_mut_slice::<f16>()?.iter_mut().zip(strings) {
                *o = f16::from_f64(float(s)?);
            }
        }
        DType::BF16 => {
            for (o, s) in out.as_mut_slice::<bf16>()?.iter_mut().zip(strings) {
                *o = bf16::from_f64(float(s)?);
            }
        }
        _ => for_number!(dtype, T => {
            for (o, s) in out.as_mut_slice::<T>()?.iter_mut().zip(strings) {
                // As the type itself first, so that wide whole numbers stay exact.
                *o = match s.trim().parse::<T>() {
                    Ok(v) => v,
                    #[allow(clippy::unnecessary_cast)]
                    Err(_) => float(s)? as T,
                };
            }
        }, _ => bail!(Unsupported, "cannot convert string to {dtype}")),
    }
    Ok(())
}

fn to_strings(x: &Tensor) -> Result<Tensor> {
    let strings: Vec<String> = match x.dtype() {
        DType::Bool => {
            x.as_slice::<bool>()?.iter().map(|&b| if b { "1" } else { "0" }.to_owned()).collect()
        }
        DType::F16 => x.as_slice::<f16>()?.iter().map(|v| decimal(v.to_f32())).collect(),
        DType::BF16 => x.as_slice::<bf16>()?.iter().map(|v| decimal(v.to_f32())).collect(),
        DType::F32 => x.as_slice::<f32>()?.iter().map(|&v| decimal(v)).collect(),
        DType::F64 => x.as_slice::<f64>()?.iter().map(|&v| decimal(v)).collect(),
        dtype => for_number!(dtype, T => {
            x.as_slice::<T>()?.iter().map(ToString::to_string).collect()
        }, _ => bail!(Unsupported, "cannot convert {dtype} to string")),
    };
    Tensor::from_strings(x.shape().clone(), strings)
}

/// The shortest decimal number that reads back the same, as the specification writes it.
fn decimal<T: Copy + Into<f64> + std::fmt::Debug + std::fmt::LowerExp>(v: T) -> String {
    let wide: f64 = v.into();
    if wide.is_nan() {
        return "NaN".to_owned();
    }
    if wide.is_infinite() {
        return if wide > 0.0 { "INF" } else { "-INF" }.to_owned();
    }
    if wide != 0.0 && !(1e-4..1e16).contains(&wide.abs()) {
        let text = format!("{v:e}");
        // Two digits and a sign in the exponent: 1e-05.
        if let Some((digits, exponent)) = text.split_once('e') {
            let (sign, number) = match exponent.strip_prefix('-') {
                Some(n) => ('-', n),
                None => ('+', exponent),
            };
            return format!("{digits}e{sign}{number:0>2}");
        }
        return text;
    }
    format!("{v:?}")
}

fn to(dtype: DType) -> i64 {
    i64::from(dtype as i32)
}

fn cast_cases() -> Vec<Case> {
    let new =
        |name: &str, d: DType, x: Tensor| Case::new("Cast", 19, name).attr("to", to(d)).input(x);
    let strings = |s: &[&str]| {
        Tensor::from_strings([s.len()], s.iter().map(|s| (*s).to_owned()).collect()).ok()
    };
    let floats = filled(&[5], &[-1.9f32, 0.0, 0.4, 1.5, 300.0]);
    let halves = filled(&[2, 2], &[0.1f32, -65504.0, 1e-7, 2.5]);
    let mut cases = vec![
        new("floats lose their fraction", DType::I32, floats.clone())
            .output(filled(&[5], &[-1i32, 0, 0, 1, 300])),
        new("out of range is the nearest", DType::I64, filled(&[3], &[1e30f32, -1e30, f32::NAN]))
            .output(filled(&[3], &[i64::MAX, i64::MIN, 0])),
        new(
            "out of the range of 32 bits",
            DType::I32,
            filled(&[5], &[3e9f32, -3e9, f32::NAN, f32::INFINITY, 2_147_483_520.0]),
        )
        .output(filled(&[5], &[i32::MAX, i32::MIN, 0, i32::MAX, 2_147_483_520])),
        new(
            "out of the range of u32",
            DType::U32,
            filled(&[4], &[5e9f32, -1.0, f32::NAN, 4_294_967_040.0]),
        )
        .output(filled(&[4], &[u32::MAX, 0, 0, 4_294_967_040])),
        new("floats to bool", DType::Bool, floats)
            .output(filled(&[5], &[true, false, true, true, true])),
        new("bool to f32", DType::F32, filled(&[2, 1], &[true, false]))
            .output(filled(&[2, 1], &[1f32, 0.])),
        new("bool to i64", DType::I64, Tensor::scalar(true)).output(Tensor::scalar(1i64)),
        new("wide i64 to f64", DType::F64, filled(&[1], &[16_777_217i64]))
            .output(filled(&[1], &[16_777_217f64])),
        new("i64 to i32 wraps", DType::I32, filled(&[2], &[4_294_967_297i64, -1]))
            .output(filled(&[2], &[1i32, -1])),
        new("u64 to i64 keeps its bits", DType::I64, filled(&[1], &[u64::MAX]))
            .output(filled(&[1], &[-1i64])),
        new("f32 to f16", DType::F16, halves.clone())
            .output(filled(&[2, 2], &[0x2e66u16, 0xfbff, 0x0002, 0x4100].map(f16::from_bits))),
        new("f32 to bf16 rounds to even", DType::BF16, filled(&[2], &[1.003_906_3_f32, 0.1]))
            .output(filled(&[2], &[0x3f80u16, 0x3dcd].map(bf16::from_bits))),
        new("f16 to f64", DType::F64, as_dtype(&filled(&[1], &[2.5f32]), DType::F16))
            .output(filled(&[1], &[2.5f64])),
        new("same dtype", DType::F32, halves.clone()).output(halves),
        new("empty", DType::F32, filled::<i64>(&[0, 4], &[])).output(filled::<f32>(&[0, 4], &[])),
    ];
    if let Some(s) = strings(&["1.5", " -7", "1e3", "INF"]) {
        cases.push(
            new("strings to f32", DType::F32, s)
                .output(filled(&[4], &[1.5f32, -7., 1000., f32::INFINITY])),
        );
    }
    if let Some(s) = strings(&["9007199254740993", "-3"]) {
        cases.push(
            new("strings to i64", DType::I64, s)
                .output(filled(&[2], &[9_007_199_254_740_993i64, -3])),
        );
    }
    if let Some(s) = strings(&["0.1", "-3.0", "1e-05", "1e+20", "NaN", "-INF"]) {
        let x = filled(&[6], &[0.1f32, -3.0, 1e-5, 1e20, f32::NAN, f32::NEG_INFINITY]);
        cases.push(new("f32 to strings", DType::String, x).output(s));
    }
    cases
}

fn cast_like_cases() -> Vec<Case> {
    let new = |name: &str| Case::new("CastLike", 19, name);
    vec![
        new("f32 like i64")
            .input(filled(&[2], &[1.9f32, -1.9]))
            .input(filled::<i64>(&[0], &[]))
            .output(filled(&[2], &[1i64, -1])),
        new("bool like f32")
            .input(filled(&[2], &[true, false]))
            .constant(Tensor::scalar(0f32))
            .output(filled(&[2], &[1f32, 0.])),
    ]
}
