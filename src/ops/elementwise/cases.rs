//! Cases of the functions of one number, as a table.
//!
//! The expected values were computed in double precision by numpy and the C library.

use Setting::{Name, Number};

use crate::graph::Attribute;
use crate::ops::case::{Case, as_dtype, filled};
use crate::tensor::{DType, Tensor};

#[derive(Clone, Copy)]
enum Setting {
    Number(f32),
    Name(&'static str),
}

struct Row {
    op: &'static str,
    version: i64,
    attributes: &'static [(&'static str, Setting)],
    x: &'static [f32],
    y: &'static [f64],
}

/// The cases of an operator: each row in f32, f64 and f16, and an empty tensor.
pub(super) fn unary(op: &'static str) -> Vec<Case> {
    let mut cases = Vec::new();
    for row in ROWS.iter().filter(|r| r.op == op) {
        let new = |name: &str, dtype: DType, x: &Tensor, y: &Tensor| {
            let given = if row.attributes.is_empty() { "" } else { " with attributes" };
            let mut case = Case::new(op, row.version, format!("{name} {dtype}{given}"));
            for (key, value) in row.attributes {
                let value: Attribute = match *value {
                    Number(v) => v.into(),
                    Name(v) => v.into(),
                };
                case = case.attr(key, value);
            }
            case.input(as_dtype(x, dtype)).output(as_dtype(y, dtype))
        };
        let n = row.x.len();
        let (x, y) = (filled(&[n], row.x), filled(&[n], row.y));
        // Far below zero Gelu is a small difference of large numbers.
        let (single, double) = if op == "Gelu" { (3e-7, 1e-15) } else { (1e-44, 1e-300) };
        cases.push(new("table", DType::F32, &x, &y).close(single, 5e-7));
        cases.push(new("table", DType::F64, &x, &y).close(double, 1e-14));
        // Arguments that f16 holds exactly, and results in its normal range.
        let exact = |i: &usize| {
            let (x, y) = (row.x[*i], row.y[*i]);
            half::f16::from_f32(x).to_f32() == x && (y == 0.0 || (1e-4..6e4).contains(&y.abs()))
        };
        let picked: Vec<usize> = (0..n).filter(exact).collect();
        let hx: Vec<f32> = picked.iter().map(|i| row.x[*i]).collect();
        let hy: Vec<f64> = picked.iter().map(|i| row.y[*i]).collect();
        let (x, y) = (filled(&[1, hx.len()], &hx), filled(&[1, hy.len()], &hy));
        cases.push(new("table", DType::F16, &x, &y).close(0.0, 1e-3));
        let empty = filled::<f32>(&[0, 3], &[]);
        cases.push(new("empty", DType::F32, &empty, &empty));
    }
    let wide = filled(&[4], &[9_007_199_254_740_993i64, -9_007_199_254_740_993, 0, i64::MIN]);
    let expected: Option<[i64; 4]> = match op {
        "Neg" => Some([-9_007_199_254_740_993, 9_007_199_254_740_993, 0, i64::MIN]),
        "Abs" => Some([9_007_199_254_740_993, 9_007_199_254_740_993, 0, i64::MIN]),
        "Sign" => Some([1, -1, 0, -1]),
        "Relu" => Some([9_007_199_254_740_993, 0, 0, 0]),
        _ => None,
    };
    if let Some(y) = expected {
        cases.push(Case::new(op, 14, "i64 is exact").input(wide).output(filled(&[4], &y)));
    }
    cases
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row { op: "Exp", version: 13, attributes: &[],
        x: &[-88.0, -20.0, -5.5, -1.25, -0.1, -0.0001, 0.0, 3e-05, 0.3, 1.0, 2.5, 9.0, 20.0, 88.5, f32::NEG_INFINITY, f32::INFINITY, f32::NAN],
        y: &[6.054601895401186e-39, 2.061153622438558e-09, 0.004086771438464067, 0.2865047968601901, 0.9048374166876467, 0.9999000050023593, 1.0, 1.0000300004492466, 1.3498588236675741, 2.718281828459045, 12.182493960703473, 8103.083927575384, 485165195.4097903, 2.7230878250681117e+38, 0.0, f64::INFINITY, f64::NAN] },
    Row { op: "Log", version: 13, attributes: &[],
        x: &[1e-40, 1e-05, 0.3, 0.999, 1.0, 1.001, 2.5, 10000000000.0, 0.0, f32::INFINITY, -1.0, f32::NAN],
        y: &[-92.10340910966488, -11.512925490232353, -1.2039727645895069, -0.0010004874460928543, 0.0, 0.0009995470164405893, 0.9162907318741551, 23.025850929940457, f64::NEG_INFINITY, f64::INFINITY, f64::NAN, f64::NAN] },
    Row { op: "Tanh", version: 13, attributes: &[],
        x: &[-88.0, -20.0, -5.5, -1.25, -0.1, -0.0001, 0.0, 3e-05, 0.3, 1.0, 2.5, 9.0, 20.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN],
        y: &[-1.0, -1.0, -0.9999665971563038, -0.8482836399575129, -0.09966799610026957, -9.999999714045421e-05, 0.0, 2.9999999233136255e-05, 0.2913126233608736, 0.7615941559557649, 0.9866142981514303, 0.9999999695400409, 1.0, -1.0, 1.0, f64::NAN] },
    Row { op: "Sigmoid", version: 13, attributes: &[],
        x: &[-88.0, -20.0, -5.5, -1.25, -0.1, -0.0001, 0.0, 3e-05, 0.3, 1.0, 2.5, 9.0, 20.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN],
        y: &[6.054601895401186e-39, 2.0611536181902033e-09, 0.004070137715896127, 0.22270013882530884, 0.47502081214946074, 0.4999750000006524, 0.5, 0.50000749999981, 0.574442519725829, 0.7310585786300049, 0.9241418199787566, 0.9998766054240137, 0.9999999979388463, 0.0, 1.0, f64::NAN] },
    Row { op: "Erf", version: 13, attributes: &[],
        x: &[-88.0, -20.0, -5.5, -1.25, -0.1, -0.0001, 0.0, 3e-05, 0.3, 1.0, 2.5, 9.0, 20.0, 3.2, f32::NEG_INFINITY, f32::INFINITY, f32::NAN],
        y: &[-1.0, -1.0, -0.9999999999999927, -0.9229001282564582, -0.11246291768297051, -0.00011283791348289935, 0.0, 3.38513741475523e-05, 0.32862677175271543, 0.8427007929497149, 0.999593047982555, 1.0, 1.0, 0.9999939742407697, -1.0, 1.0, f64::NAN] },
    Row { op: "Sqrt", version: 13, attributes: &[],
        x: &[0.0, 1e-40, 0.3, 2.0, 1e+30, f32::INFINITY, -1.0, f32::NAN],
        y: &[0.0, 9.999973050521066e-21, 0.5477225683874355, 1.4142135623730951, 1000000007523733.1, f64::INFINITY, f64::NAN, f64::NAN] },
    Row { op: "Reciprocal", version: 13, attributes: &[],
        x: &[0.0, -0.25, 3.0, 1e+30, f32::INFINITY, f32::NAN],
        y: &[f64::INFINITY, -4.0, 0.3333333333333333, 9.99999984952534e-31, 0.0, f64::NAN] },
    Row { op: "Floor", version: 13, attributes: &[],
        x: &[-1.5, -0.5, 0.5, 2.0, 8388609.0, f32::NAN],
        y: &[-2.0, -1.0, 0.0, 2.0, 8388609.0, f64::NAN] },
    Row { op: "Ceil", version: 13, attributes: &[],
        x: &[-1.5, -0.5, 0.5, 2.0, 8388609.0, f32::NAN],
        y: &[-1.0, -0.0, 1.0, 2.0, 8388609.0, f64::NAN] },
    Row { op: "Round", version: 11, attributes: &[],
        x: &[-2.5, -1.5, -0.5, 0.5, 0.9, 1.5, 2.5, 8388609.0, f32::NAN],
        y: &[-2.0, -2.0, -0.0, 0.0, 1.0, 2.0, 2.0, 8388609.0, f64::NAN] },
    Row { op: "LeakyRelu", version: 16, attributes: &[],
        x: &[-3.0, -0.5, 0.0, 2.0, f32::NAN],
        y: &[-0.029999999329447746, -0.004999999888241291, 0.0, 2.0, f64::NAN] },
    Row { op: "LeakyRelu", version: 16, attributes: &[("alpha", Number(0.1))],
        x: &[-3.0, -0.5, 0.0, 2.0],
        y: &[-0.30000000447034836, -0.05000000074505806, 0.0, 2.0] },
    Row { op: "ThresholdedRelu", version: 10, attributes: &[],
        x: &[-3.0, 0.5, 1.0, 1.5, 4.0],
        y: &[0.0, 0.0, 0.0, 1.5, 4.0] },
    Row { op: "ThresholdedRelu", version: 10, attributes: &[("alpha", Number(2.0))],
        x: &[-3.0, 0.5, 1.0, 2.5, 4.0],
        y: &[0.0, 0.0, 0.0, 2.5, 4.0] },
    Row { op: "HardSigmoid", version: 6, attributes: &[],
        x: &[-9.0, -2.4, -1.0, 0.0, 1.3, 9.0, f32::NAN],
        y: &[0.0, 0.019999973773956015, 0.29999999701976776, 0.5, 0.7599999943375586, 1.0, f64::NAN] },
    Row { op: "HardSigmoid", version: 6, attributes: &[("alpha", Number(0.5)), ("beta", Number(0.6))],
        x: &[-9.0, -2.0, -1.0, 0.0, 0.3, 9.0],
        y: &[0.0, 0.0, 0.10000002384185791, 0.6000000238418579, 0.7500000298023224, 1.0] },
    Row { op: "HardSwish", version: 14, attributes: &[],
        x: &[-9.0, -2.4, -1.0, 0.0, 1.3, 9.0, f32::NAN],
        y: &[-0.0, -0.23999997138976895, -0.33333333333333337, 0.0, 0.9316666221618657, 9.0, f64::NAN] },
    Row { op: "Elu", version: 6, attributes: &[],
        x: &[-90.0, -2.4, -0.0001, 0.0, 1.3],
        y: &[-1.0, -0.9092820553621253, -9.999499764070263e-05, 0.0, 1.2999999523162842] },
    Row { op: "Elu", version: 6, attributes: &[("alpha", Number(2.0))],
        x: &[-90.0, -2.4, -1.0, 0.0, 1.3],
        y: &[-2.0, -1.8185641107242505, -1.2642411176571153, 0.0, 1.2999999523162842] },
    Row { op: "Selu", version: 6, attributes: &[],
        x: &[-90.0, -2.4, -0.0001, 0.0, 1.3],
        y: &[-1.7580993463430303, -1.5986081871735995, -0.00017580113998969215, 0.0, 1.365911278691243] },
    Row { op: "Selu", version: 6, attributes: &[("alpha", Number(2.0)), ("gamma", Number(3.0))],
        x: &[-2.0, -1.0, 0.0, 1.3],
        y: &[-5.187988300580324, -3.792723352971346, 0.0, 3.8999998569488525] },
    Row { op: "Celu", version: 12, attributes: &[],
        x: &[-90.0, -2.4, -0.0001, 0.0, 1.3],
        y: &[-1.0, -0.9092820553621253, -9.999499764070263e-05, 0.0, 1.2999999523162842] },
    Row { op: "Celu", version: 12, attributes: &[("alpha", Number(2.0))],
        x: &[-9.0, -2.4, -1.0, 0.0, 1.3],
        y: &[-1.9777820069235155, -1.3976116048997136, -0.7869386805747332, 0.0, 1.2999999523162842] },
    Row { op: "Softplus", version: 1, attributes: &[],
        x: &[-88.0, -20.0, -5.5, -1.25, -0.1, -0.0001, 0.0, 3e-05, 0.3, 1.0, 2.5, 9.0, 20.0, 100.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN],
        y: &[6.054601895401186e-39, 2.061153620314381e-09, 0.0040784432705707205, 0.2519290813453729, 0.6443966593657348, 0.6930971818112084, 0.6931471805599453, 0.6931621806720664, 0.8543552513164157, 1.3132616875182228, 2.5788897342925496, 9.000123402189724, 20.000000002061153, 100.0, 0.0, f64::INFINITY, f64::NAN] },
    Row { op: "Softsign", version: 1, attributes: &[],
        x: &[-1e+30, -3.0, 0.0, 0.5, 1.0, f32::NAN],
        y: &[-1.0, -0.75, 0.0, 0.3333333333333333, 0.5, f64::NAN] },
    Row { op: "Mish", version: 18, attributes: &[],
        x: &[-20.0, -2.4, -0.1, 0.0, 0.5, 1.3, 30.0],
        y: &[-4.122307240628762e-08, -0.20788449810557924, -0.05678857601110413, 0.0, 0.3752452113048951, 1.1859765198556638, 30.0] },
    Row { op: "Shrink", version: 9, attributes: &[],
        x: &[-2.0, -0.5, -0.4, 0.5, 0.75, 3.0],
        y: &[-2.0, 0.0, 0.0, 0.0, 0.75, 3.0] },
    Row { op: "Shrink", version: 9, attributes: &[("bias", Number(1.25)), ("lambd", Number(1.5))],
        x: &[-2.0, -1.5, -0.4, 1.5, 1.75, 3.0],
        y: &[-0.75, 0.0, 0.0, 0.0, 0.5, 1.75] },
    Row { op: "Sin", version: 7, attributes: &[],
        x: &[-4.0, -0.5, 0.0, 1.0, 3.0, 10.0],
        y: &[0.7568024953079282, -0.479425538604203, 0.0, 0.8414709848078965, 0.1411200080598672, -0.5440211108893698] },
    Row { op: "Cos", version: 7, attributes: &[],
        x: &[-4.0, -0.5, 0.0, 1.0, 3.0, 10.0],
        y: &[-0.6536436208636119, 0.8775825618903728, 1.0, 0.5403023058681398, -0.9899924966004454, -0.8390715290764524] },
    Row { op: "Tan", version: 7, attributes: &[],
        x: &[-1.2, -0.5, 0.0, 1.0, 1.5],
        y: &[-2.572151985283825, -0.5463024898437905, 0.0, 1.5574077246549023, 14.101419947171719] },
    Row { op: "Asin", version: 7, attributes: &[],
        x: &[-1.0, -0.5, 0.0, 0.3, 1.0, 1.5],
        y: &[-1.5707963267948966, -0.5235987755982989, 0.0, 0.3046926665119266, 1.5707963267948966, f64::NAN] },
    Row { op: "Acos", version: 7, attributes: &[],
        x: &[-1.0, -0.5, 0.0, 0.3, 0.9, 1.5],
        y: &[3.141592653589793, 2.0943951023931957, 1.5707963267948966, 1.26610366028297, 0.45102686649323265, f64::NAN] },
    Row { op: "Atan", version: 7, attributes: &[],
        x: &[-30.0, -0.5, 0.0, 0.3, 1.0],
        y: &[-1.5374753309166493, -0.4636476090008061, 0.0, 0.29145680541449914, 0.7853981633974483] },
    Row { op: "Sinh", version: 9, attributes: &[],
        x: &[-5.0, -0.5, 0.0, 0.3, 4.0],
        y: &[-74.20321057778875, -0.5210953054937474, 0.0, 0.3045203059085488, 27.28991719712775] },
    Row { op: "Cosh", version: 9, attributes: &[],
        x: &[-5.0, -0.5, 0.0, 0.3, 4.0],
        y: &[74.20994852478785, 1.1276259652063807, 1.0, 1.0453385177590253, 27.308232836016487] },
    Row { op: "Asinh", version: 9, attributes: &[],
        x: &[-5.0, -0.5, 0.0, 0.3, 4.0],
        y: &[-2.3124383412727525, -0.48121182505960347, 0.0, 0.2956730589816015, 2.0947125472611012] },
    Row { op: "Acosh", version: 9, attributes: &[],
        x: &[0.5, 1.0, 1.5, 4.0, 100.0],
        y: &[f64::NAN, 0.0, 0.9624236501192069, 2.0634370688955608, 5.298292365610484] },
    Row { op: "Atanh", version: 9, attributes: &[],
        x: &[-0.9, -0.5, 0.0, 0.3, 1.0],
        y: &[-1.4722193640997716, -0.5493061443340548, 0.0, 0.3095196173030337, f64::INFINITY] },
    Row { op: "Neg", version: 13, attributes: &[],
        x: &[-3.0, 0.5, 7.0, f32::NAN],
        y: &[3.0, -0.5, -7.0, f64::NAN] },
    Row { op: "Abs", version: 13, attributes: &[],
        x: &[-3.0, 0.5, 7.0, f32::NEG_INFINITY, f32::NAN],
        y: &[3.0, 0.5, 7.0, f64::INFINITY, f64::NAN] },
    Row { op: "Sign", version: 13, attributes: &[],
        x: &[-3.0, 0.5, 0.0, 7.0, f32::NEG_INFINITY],
        y: &[-1.0, 1.0, 0.0, 1.0, -1.0] },
    Row { op: "Relu", version: 14, attributes: &[],
        x: &[-3.0, 0.5, 0.0, 7.0, f32::NEG_INFINITY, f32::NAN],
        y: &[0.0, 0.5, 0.0, 7.0, 0.0, f64::NAN] },
    Row { op: "Gelu", version: 20, attributes: &[],
        x: &[-5.0, -2.4, -0.5, 0.0, 0.3, 1.0, 4.0],
        y: &[-1.4332578593401202e-06, -0.019674081875107854, -0.15426876936299344, 0.0, 0.1853734353867131, 0.8413447460685429, 3.9998733150326675] },
    Row { op: "Gelu", version: 20, attributes: &[("approximate", Name("tanh"))],
        x: &[-5.0, -2.4, -0.5, 0.0, 0.3, 1.0, 4.0],
        y: &[-2.2917961972623857e-07, -0.01927684176298207, -0.15428599017485606, 0.0, 0.18537093227240137, 0.8411919906082768, 3.9999297540518075] },
];
