//! Elements of 8 and 4 bits that no Rust type stands for: their values and their bits.

use super::DType;

/// How a narrow float is laid out.
#[derive(Clone, Copy)]
struct Layout {
    mantissa: i32,
    bias: i32,
    /// The largest finite value.
    largest: f64,
    /// What stands for NaN, without the sign.
    nan: Option<u8>,
    /// What stands for ∞, without the sign.
    infinity: Option<u8>,
    /// Whether there is no -0; its bits stand for NaN.
    unsigned_zero: bool,
    /// The bit of the sign.
    sign: u8,
}

fn layout(dtype: DType) -> Option<Layout> {
    let wide = |mantissa, bias, largest, nan, infinity, unsigned_zero| Layout {
        mantissa,
        bias,
        largest,
        nan,
        infinity,
        unsigned_zero,
        sign: 0x80,
    };
    Some(match dtype {
        DType::F8E4M3FN => wide(3, 7, 448.0, Some(0x7F), None, false),
        DType::F8E4M3FNUZ => wide(3, 8, 240.0, Some(0x80), None, true),
        DType::F8E5M2 => wide(2, 15, 57_344.0, Some(0x7F), Some(0x7C), false),
        DType::F8E5M2FNUZ => wide(2, 16, 57_344.0, Some(0x80), None, true),
        DType::F4E2M1 => Layout { sign: 0x08, ..wide(1, 1, 6.0, None, None, false) },
        _ => return None,
    })
}

/// The value of the bits of an element of 8 or 4 bits; `None` for other dtypes.
pub(crate) fn decode(dtype: DType, bits: u8) -> Option<f32> {
    match dtype {
        DType::U4 => return Some(f32::from(bits & 15)),
        DType::I4 => return Some(f32::from(bits as i8)),
        _ => {}
    }
    let l = layout(dtype)?;
    let negative = bits & l.sign != 0;
    let magnitude = bits & (l.sign - 1);
    let is_nan = match l.nan {
        Some(0x80) => bits == 0x80,
        // All of E5M2 above ∞ is NaN.
        Some(_) if l.infinity.is_some() => l.infinity.is_some_and(|i| magnitude > i),
        Some(nan) => magnitude == nan,
        None => false,
    };
    if is_nan {
        return Some(f32::NAN);
    }
    let value = if l.infinity == Some(magnitude) {
        f32::INFINITY
    } else {
        let (exponent, fraction) =
            (i32::from(magnitude >> l.mantissa), f32::from(magnitude & ((1 << l.mantissa) - 1)));
        let unit = |e: i32| 2.0_f32.powi(e - l.bias - l.mantissa);
        match exponent {
            0 => fraction * unit(1),
            e => (fraction + (1 << l.mantissa) as f32) * unit(e),
        }
    };
    Some(if negative { -value } else { value })
}

/// The bits of a value, to the nearest one, the even one of two. With `saturate`, what lies
/// beyond the largest value becomes that one; otherwise ∞, or NaN where there is no ∞. Whole
/// numbers drop the fraction and stay in their range. `None` for other dtypes.
pub(crate) fn encode(dtype: DType, value: f32, saturate: bool) -> Option<u8> {
    match dtype {
        DType::U4 => return Some(value.round_ties_even().clamp(0.0, 15.0) as u8),
        DType::I4 => return Some(value.round_ties_even().clamp(-8.0, 7.0) as i8 as u8),
        _ => {}
    }
    let l = layout(dtype)?;
    let sign = if value.is_sign_negative() { l.sign } else { 0 };
    if value.is_nan() {
        return Some(match l.nan {
            Some(0x80) => 0x80,
            Some(nan) => sign | nan,
            // A format without NaN: -0, as the ONNX project's own conversion gives.
            None => l.sign,
        });
    }
    let magnitude = f64::from(value.abs());
    let lowest = 1 - l.bias;
    let exponent_of = |v: f64| (((v.to_bits() >> 52) & 0x7FF) as i32 - 1023).max(lowest);
    let unit = 2.0_f64.powi(exponent_of(magnitude.min(1e30)) - l.mantissa);
    let rounded = (magnitude / unit).round_ties_even() * unit;
    let largest = bits_of(&l, l.largest, lowest);
    if rounded > l.largest {
        return Some(match (saturate, l.infinity, l.nan) {
            (false, Some(infinity), _) => sign | infinity,
            (false, None, Some(0x80)) => 0x80,
            (false, None, Some(nan)) => sign | nan,
            _ => sign | largest,
        });
    }
    let bits = bits_of(&l, rounded, lowest);
    Some(if bits == 0 && l.unsigned_zero { 0 } else { sign | bits })
}

/// The bits of a value that is one of the layout's.
fn bits_of(l: &Layout, value: f64, lowest: i32) -> u8 {
    let exponent = (((value.to_bits() >> 52) & 0x7FF) as i32 - 1023).max(lowest);
    let fraction = (value / 2.0_f64.powi(exponent - l.mantissa)) as i32;
    let hidden = 1 << l.mantissa;
    let field = if fraction < hidden { 0 } else { exponent + l.bias };
    let bits = (field << l.mantissa) | (fraction & (hidden - 1));
    bits.clamp(0, 255) as u8
}

/// Whether elements are of 8 or 4 bits that no Rust type stands for.
pub(crate) const fn is_narrow(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::F8E4M3FN
            | DType::F8E4M3FNUZ
            | DType::F8E5M2
            | DType::F8E5M2FNUZ
            | DType::F4E2M1
            | DType::U4
            | DType::I4
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [DType; 5] =
        [DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ, DType::F4E2M1];

    #[test]
    fn every_value_comes_back_from_its_bits() {
        for dtype in FLOATS {
            let count = if dtype == DType::F4E2M1 { 16 } else { 256 };
            for bits in 0..count {
                let bits = bits as u8;
                let value = decode(dtype, bits).unwrap();
                if value.is_nan() {
                    continue;
                }
                assert_eq!(encode(dtype, value, false), Some(bits), "{dtype} {value}");
            }
        }
        for v in -8..8 {
            assert_eq!(
                decode(DType::I4, encode(DType::I4, v as f32, true).unwrap()),
                Some(v as f32)
            );
        }
    }

    #[test]
    fn what_is_between_goes_to_the_nearest_even_one() {
        for dtype in FLOATS {
            let mut values: Vec<(f32, u8)> = (0..=0x7F_u8)
                .filter(|b| dtype != DType::F4E2M1 || *b < 8)
                .map(|b| (decode(dtype, b).unwrap(), b))
                .filter(|(v, _)| v.is_finite())
                .collect();
            values.sort_by(|a, b| a.0.total_cmp(&b.0));
            for pair in values.windows(2) {
                let middle = (pair[0].0 + pair[1].0) / 2.0;
                let even = if pair[0].1 % 2 == 0 { pair[0].1 } else { pair[1].1 };
                assert_eq!(encode(dtype, middle, true), Some(even), "{dtype} {middle}");
                let above = middle + (pair[1].0 - middle) / 4.0;
                assert_eq!(encode(dtype, above, true), Some(pair[1].1), "{dtype} {above}");
            }
        }
    }

    #[test]
    fn what_is_beyond_saturates_or_not() {
        for (dtype, largest, beyond) in [
            (DType::F8E4M3FN, 0x7E, 0x7F),
            (DType::F8E4M3FNUZ, 0x7F, 0x80),
            (DType::F8E5M2, 0x7B, 0x7C),
            (DType::F8E5M2FNUZ, 0x7F, 0x80),
        ] {
            for v in [1e6, f32::INFINITY] {
                assert_eq!(encode(dtype, v, true), Some(largest), "{dtype} {v}");
                assert_eq!(encode(dtype, v, false), Some(beyond), "{dtype} {v}");
            }
            assert!(decode(dtype, encode(dtype, f32::NAN, true).unwrap()).unwrap().is_nan());
        }
        assert_eq!(encode(DType::F8E4M3FNUZ, -0.0, true), Some(0));
        assert_eq!(encode(DType::F8E4M3FN, -0.0, true), Some(0x80));
        assert_eq!(encode(DType::F4E2M1, -100.0, false), Some(0xF));
    }
}
