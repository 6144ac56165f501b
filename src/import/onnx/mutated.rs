//! Damaged models: each must end in a compiled program or an error.

use std::process::Command;
use std::time::{Duration, Instant};

use prost::Message;

use super::external::tests::external;
use super::function::tests::{call, function};
use super::pb;
use super::pb::tensor_proto::DataType;
use super::tests::{body, floats, int, model, node, opset, reference, shaped, subgraph, with};
use crate::bench::peak_resident_bytes;
use crate::import::mutate::Mutator;
use crate::import::{Limits, from_bytes};
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

/// Numbers that dims, axes and versions are set to.
const EXTREMES: [i64; 10] = [0, 1, -1, 2, 7, 1 << 20, 1 << 31, 1 << 40, i64::MAX, i64::MIN];
/// Element types that tensors are made to be of.
const KINDS: [DataType; 6] = [
    DataType::Float,
    DataType::Int64,
    DataType::Bool,
    DataType::String,
    DataType::Float8e4m3fn,
    DataType::Undefined,
];

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
    let mut random = Mutator::new(0xF1E1D);
    let whole = digits();
    for _ in 0..2000 {
        let mut m = whole.clone();
        for _ in 0..=random.below(3) {
            change(&mut m, &mut random);
        }
        super::fuzz_onnx(&m.encode_to_vec());
    }
}

/// One change to one field of a model.
fn change(m: &mut pb::ModelProto, random: &mut Mutator) {
    let extreme = EXTREMES[random.below(EXTREMES.len())];
    let kind = KINDS[random.below(KINDS.len())] as i32;
    let way = random.below(13);
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
        8 => m.opset_import[0].version = Some(extreme),
        // What an input is declared as: its dtype, a dim.
        9 => {
            if let Some(pb::type_proto::Value::TensorType(t)) =
                g.input[0].r#type.as_mut().and_then(|t| t.value.as_mut())
            {
                t.elem_type = Some(kind);
            }
        }
        10 => g.input[0] = shaped("image", &[Ok(extreme), Ok(1), Ok(8), Ok(extreme)]),
        // An attribute of another type, its fields as they were.
        11 => {
            if let Some(attribute) = g.node[a].attribute.first_mut() {
                attribute.r#type = Some(random.below(16) as i32);
            }
        }
        // A weight that is sparse, with what was its shape and places that may be out of it.
        _ if g.initializer.len() > 1 => {
            let mut values = g.initializer.swap_remove(weight);
            let dims = std::mem::replace(&mut values.dims, vec![1]);
            values.data_type = Some(kind);
            let at = random.below(64) as i64;
            let indices = pb::TensorProto {
                dims: vec![1],
                data_type: Some(DType::I64 as i32),
                int64_data: vec![if random.below(2) == 0 { at } else { extreme }],
                ..Default::default()
            };
            g.sparse_initializer.push(pb::SparseTensorProto {
                values: Some(values),
                indices: Some(indices),
                dims: if random.below(2) == 0 { dims } else { vec![extreme, 1] },
            });
        }
        _ => {}
    }
}

/// Says that a process runs the test below alone, so that its memory is that of the test.
const ALONE: &str = "BRIGADE_MUTATED_ALONE";

/// Every kind of damage, 1,800 models, in a process of its own: none takes long, and all together
/// never hold much memory.
#[cfg(target_os = "linux")]
#[test]
fn damage_takes_bounded_memory_and_time() {
    // Of a model of 100 kB, each with limits of a few MB: see `fuzz_onnx`.
    const MOST_BYTES: u64 = 512 << 20;
    const LONGEST: Duration = Duration::from_secs(20);
    const PATIENCE: Duration = Duration::from_secs(600);
    if std::env::var_os(ALONE).is_none() {
        let name = "import::onnx::mutated::damage_takes_bounded_memory_and_time";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .env(ALONE, "1")
            .spawn()
            .unwrap();
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            if start.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("still running after {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let before = peak_resident_bytes().unwrap();
    let mut count = 0;
    let mut longest = Duration::ZERO;
    let mut run = |bytes: &[u8]| {
        let start = Instant::now();
        super::fuzz_onnx(bytes);
        let took = start.elapsed();
        assert!(took < LONGEST, "a model of {} bytes took {took:?}", bytes.len());
        longest = longest.max(took);
        count += 1;
    };
    let mut random = Mutator::new(0xB0B);
    let (whole, branched) = (digits(), branched().encode_to_vec());
    for round in 0..400 {
        // Bits flipped and ends lost, by themselves and with the rest.
        let seed = if round % 2 == 0 { DIGITS } else { &branched };
        run(&seed[..random.below(seed.len())]);
        let mut flipped = seed.to_vec();
        for _ in 0..=random.below(8) {
            let at = random.below(flipped.len());
            flipped[at] ^= 1 << random.below(8);
        }
        run(&flipped);
        run(&random.mutate(seed));
        // Swapped types, wrong and huge dims, cycles.
        let mut changed = whole.clone();
        change(&mut changed, &mut random);
        run(&changed.encode_to_vec());
    }
    for levels in 0..200 {
        run(&nested(levels).encode_to_vec());
    }
    let grown = peak_resident_bytes().unwrap() - before;
    eprintln!("{count} models, the longest took {longest:?}, {grown} bytes at most");
    assert_eq!(count, 1800);
    assert!(grown < MOST_BYTES, "memory grew by {grown} bytes");
}

/// A message in a message in a message: bytes that are well formed, past the depth that is read.
#[test]
fn messages_nested_deep_are_refused() {
    // A graph in an attribute in a node, in a graph, a few thousand times.
    let mut bytes: Vec<u8> = Vec::new();
    for _ in 0..2000 {
        for tag in [0x32_u8, 0x2A, 0x0A] {
            let mut outer = vec![tag];
            prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
            outer.append(&mut bytes);
            bytes = outer;
        }
    }
    let mut file = vec![0x08, 8, 0x3A];
    prost::encoding::encode_varint(bytes.len() as u64, &mut file);
    file.append(&mut bytes);
    let error = from_bytes(&file, None, &Limits::default()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Limit | ErrorKind::Format), "{error}");
}

/// A branch in a branch in a branch.
fn nested(levels: usize) -> pb::ModelProto {
    let mut inner = body(&[], vec![node("Add", &["x", "x"], &["y0"])], &["y0"]);
    for depth in 1..levels {
        let out = format!("y{depth}");
        let other = body(&[], vec![node("Neg", &["x"], &["e"])], &["e"]);
        let n = with(node("If", &["c"], &[&out]), subgraph("then_branch", inner));
        let n = with(n, subgraph("else_branch", other));
        inner = body(&[], vec![n], &[&out]);
    }
    inner.input = vec![shaped("c", &[]), shaped("x", &[Ok(2)])];
    model(inner)
}

#[test]
fn deep_nesting_is_refused() {
    for levels in [30, 60] {
        let error = super::tests::error_of(&nested(levels));
        assert!(matches!(error.kind(), ErrorKind::Limit | ErrorKind::Format), "{error}");
    }
}
