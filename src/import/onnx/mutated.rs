//! Damaged models: each must end in a compiled program or an error.

use prost::Message;

use super::external::tests::external;
use super::function::tests::{call, function};
use super::pb;
use super::pb::tensor_proto::DataType;
use super::tests::{body, floats, int, model, node, opset, reference, shaped, subgraph, with};
use crate::import::mutate::Mutator;
use crate::{DType, ErrorKind};

/// A small convolutional network as an exporter wrote it.
const DIGITS: &[u8] = include_bytes!("../../../examples/digits/digits.onnx");

/// A model with a branch, functions, and constants of several kinds.
fn branched() -> pb::ModelProto {
    let then = body(&[], vec![node("Add", &["x", "w"], &["t"])], &["t"]);
    let other = body(&[], vec![call("F", &["x"], &["e"])], &["e"]);
    let n = with(node("If", &["c"], &["y"]), subgraph("then_branch", then));
    let n = with(n, subgraph("else_branch", other));
    let mut g = body(&["c"], vec![n, call("F", &["y"], &["z"])], &["z"]);
    g.input.push(shaped("x", &[Err("N"), Ok(2), Ok(-1)]));
    g.initializer = vec![
        floats("w", &[1.0, 2.0]),
        pb::TensorProto {
            raw_data: None,
            int32_data: vec![1, 0],
            data_type: Some(DType::Bool as i32),
            ..floats("b", &[0.0; 2])
        },
        external("v", &[("location", "w.bin")]),
    ];
    let mut m = model(g);
    m.functions = vec![function(
        "F",
        &["x"],
        vec![with(node("Foo", &["x"], &["y"]), reference("k", "k"))],
        &["y"],
    )];
    m.opset_import.push(opset("local", 1));
    m
}

fn digits() -> pb::ModelProto {
    pb::ModelProto::decode(DIGITS).unwrap()
}

/// Bits flipped, ranges cut, repeated and inserted, the end lost.
#[test]
fn damaged_bytes_end_in_a_program_or_an_error() {
    let mut random = Mutator::new(0x5EED);
    for (seed, rounds) in [(branched().encode_to_vec(), 4000), (DIGITS.to_vec(), 1000)] {
        for _ in 0..rounds {
            super::fuzz_onnx(&random.mutate(&seed));
        }
    }
}

/// Whole fields swapped for others of their kind: the bytes are well formed, the model is not.
#[test]
fn changed_fields_end_in_a_program_or_an_error() {
    const EXTREMES: [i64; 10] = [0, 1, -1, 2, 7, 1 << 20, 1 << 31, 1 << 40, i64::MAX, i64::MIN];
    const KINDS: [DataType; 6] = [
        DataType::Float,
        DataType::Int64,
        DataType::Bool,
        DataType::String,
        DataType::Float8e4m3fn,
        DataType::Undefined,
    ];
    let mut random = Mutator::new(0xF1E1D);
    let whole = digits();
    for _ in 0..2000 {
        let mut m = whole.clone();
        for _ in 0..=random.below(3) {
            change(&mut m, &mut random, &EXTREMES, &KINDS);
        }
        super::fuzz_onnx(&m.encode_to_vec());
    }
}

/// One change to one field of a model.
fn change(m: &mut pb::ModelProto, random: &mut Mutator, extremes: &[i64], kinds: &[DataType]) {
    let extreme = extremes[random.below(extremes.len())];
    let kind = kinds[random.below(kinds.len())] as i32;
    let way = random.below(9);
    let g = m.graph.as_mut().unwrap();
    let (a, b) = (random.below(g.node.len()), random.below(g.node.len()));
    let weight = random.below(g.initializer.len());
    match way {
        // A node reads what comes later: an order that is wrong, or a cycle.
        0 => {
            let later = g.node[b].output[0].clone();
            if let Some(first) = g.node[a].input.first_mut() {
                *first = later;
            }
        }
        1 => g.node.swap(a, b),
        2 => g.node[a].op_type = g.node[b].op_type.clone(),
        3 => {
            let inputs = g.node[b].input.clone();
            g.node[a].input = inputs;
        }
        4 => g.node[a].output[0] = g.node[b].output[0].clone(),
        5 => g.initializer[weight].data_type = Some(kind),
        6 => {
            let dims = &mut g.initializer[weight].dims;
            match dims.len() {
                0 => dims.push(extreme),
                n => dims[random.below(n)] = extreme,
            }
        }
        7 => {
            let attributes = &mut g.node[a].attribute;
            if attributes.is_empty() {
                attributes.push(int("axis", extreme));
            } else {
                let at = random.below(attributes.len());
                let attribute = &mut attributes[at];
                match attribute.ints.len() {
                    0 => attribute.i = Some(extreme),
                    n => attribute.ints[random.below(n)] = extreme,
                }
            }
        }
        _ => m.opset_import[0].version = Some(extreme),
    }
}

/// A branch in a branch in a branch, past the depth that is read.
#[test]
fn deep_nesting_is_refused() {
    for levels in [30, 60] {
        let mut inner = body(&[], vec![node("Add", &["x", "x"], &["y0"])], &["y0"]);
        for depth in 1..levels {
            let out = format!("y{depth}");
            let other = body(&[], vec![node("Neg", &["x"], &["e"])], &["e"]);
            let n = with(node("If", &["c"], &[&out]), subgraph("then_branch", inner));
            let n = with(n, subgraph("else_branch", other));
            inner = body(&[], vec![n], &[&out]);
        }
        inner.input = vec![shaped("c", &[]), shaped("x", &[Ok(2)])];
        let error = super::tests::error_of(&model(inner));
        assert!(matches!(error.kind(), ErrorKind::Limit | ErrorKind::Format), "{error}");
    }
}
