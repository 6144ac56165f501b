//! What a segment of the CPU allocates once it is warm: nothing, but for the small lists in which
//! convolution and pooling kernels note how they cut their work.
//!
//! Counted is every allocation of the thread that runs the instance, its only one, while it runs items
//! whose shapes it has seen.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use brigade::extend::*;
use brigade::graph::Attribute;

struct Counting;

thread_local! {
    static COUNTED: Cell<usize> = const { Cell::new(0) };
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

/// Where the first few were made, in this crate's code.
static PLACES: Mutex<Vec<String>> = Mutex::new(Vec::new());
const MOST_PLACES: usize = 60;

fn count() {
    if !COUNTS.replace(false) {
        return;
    }
    COUNTED.set(COUNTED.get() + 1);
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    if places.len() < MOST_PLACES {
        let trace = Backtrace::force_capture().to_string();
        let lines: Vec<&str> = trace.lines().map(str::trim).collect();
        let ours = lines.windows(2).filter(|w| w[0].contains("brigade::"));
        let ours = ours.map(|w| format!("{} {}", w[0], w[1])).take(3);
        places.push(ours.collect::<Vec<_>>().join("\n    "));
    }
    COUNTS.set(true);
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`; the size is the caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Numbers between -1 and 1, which differ.
fn numbers(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let number = |i: usize| ((i * 7919 + 13) % 257) as f32 / 128.5 - 1.0;
    Tensor::new(shape, (0..count).map(number).collect()).unwrap()
}

/// Runs items of each of these shapes in turn on one instance, and says what a round of them
/// allocates once each has come a few times. Outputs stay what they were.
fn allocations(graph: Graph, items: &[Vec<Tensor>]) -> usize {
    let device = CpuDevice::new(0, OpRegistry::default());
    let segment = device.compile(graph, &CompileOptions::default()).unwrap();
    let mut instance = segment.instance(InstanceOptions::for_this_thread()).unwrap();
    let items: Vec<Vec<Value>> =
        items.iter().map(|item| item.iter().cloned().map(Value::from).collect()).collect();
    let mut values: Vec<Value> = Vec::with_capacity(8);
    let mut first: Vec<Vec<Value>> = Vec::new();
    for round in 0..6 {
        for (i, item) in items.iter().enumerate() {
            values.clear();
            values.extend(item.iter().cloned());
            COUNTS.set(round >= 4);
            let made = instance.run(values);
            COUNTS.set(false);
            values = made.unwrap();
            match first.get(i) {
                None => first.push(values.clone()),
                Some(first) => assert_eq!(&values, first, "round {round}, item {i}"),
            }
        }
    }
    COUNTED.replace(0)
}

/// At most so many allocations an item.
fn assert_at_most(most: usize, graph: Graph, items: &[Vec<Tensor>]) {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let counted = allocations(graph, items);
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    // Two rounds are counted.
    let allowed = most * items.len() * 2;
    assert!(counted <= allowed, "{counted} allocations, by\n  {}", places.join("\n  "));
}

type Attributes = [(&'static str, Attribute)];

struct Builder(GraphBuilder);

impl Builder {
    fn weight(&mut self, shape: &[usize]) -> ValueId {
        self.0.constant(numbers(shape)).unwrap()
    }

    fn op(&mut self, op: &str, inputs: &[ValueId], attributes: &Attributes) -> ValueId {
        self.0.op(op, inputs, attributes).unwrap()
    }

    fn ints(&mut self, values: &[i64]) -> ValueId {
        self.0.constant(Tensor::of_i64(values)).unwrap()
    }

    fn conv(&mut self, x: ValueId, weight: &[usize], stride: i64, group: i64) -> ValueId {
        let (w, b) = (self.weight(weight), self.weight(&weight[..1]));
        let pad = (weight[2] / 2) as i64;
        let attributes = [
            ("strides", Attribute::Ints(vec![stride, stride])),
            ("pads", Attribute::Ints(vec![pad; 4])),
            ("group", group.into()),
        ];
        self.op("Conv", &[x, w, b], &attributes)
    }
}

#[test]
fn a_convolutional_network_allocates_only_the_cuts_of_its_kernels() {
    let mut b = Builder(GraphBuilder::new("cnn"));
    let x = b.0.input("x", DType::F32, ["N".into(), 3.into(), "H".into(), "W".into()]).unwrap();
    let y = b.conv(x, &[16, 3, 3, 3], 2, 1);
    let y = b.op("HardSwish", &[y], &[]);
    let y = b.op(
        "MaxPool",
        &[y],
        &[("kernel_shape", Attribute::Ints(vec![2, 2])), ("strides", Attribute::Ints(vec![2, 2]))],
    );
    let skip = b.conv(y, &[16, 1, 3, 3], 1, 16);
    let skip = b.conv(skip, &[16, 16, 1, 1], 1, 1);
    let y = b.0.add(y, skip).unwrap();
    // Squeeze and excite, and channels that are no multiple of a block.
    let s = b.op("GlobalAveragePool", &[y], &[]);
    let s = b.conv(s, &[6, 16, 1, 1], 1, 1);
    let s = b.0.relu(s).unwrap();
    let s = b.conv(s, &[16, 6, 1, 1], 1, 1);
    let s = b.0.sigmoid(s).unwrap();
    let y = b.0.mul(y, s).unwrap();
    let up = b.weight(&[16, 8, 2, 2]);
    let z = b.op("ConvTranspose", &[y, up], &[("strides", Attribute::Ints(vec![2, 2]))]);
    let z = b.op(
        "AveragePool",
        &[z],
        &[("kernel_shape", Attribute::Ints(vec![2, 2])), ("strides", Attribute::Ints(vec![2, 2]))],
    );
    let y = b.0.concat(&[y, z], 1).unwrap();
    let y = b.conv(y, &[10, 24, 3, 3], 1, 1);
    let y = b.op("GlobalAveragePool", &[y], &[]);
    let y = b.op("Flatten", &[y], &[]);
    let w = b.weight(&[10, 5]);
    let y = b.0.matmul(y, w).unwrap();
    let y = b.0.softmax(y, -1).unwrap();
    let graph = b.0.finish([("y", y)]).unwrap();
    assert_at_most(32, graph, &[vec![numbers(&[1, 3, 32, 48])], vec![numbers(&[2, 3, 24, 24])]]);
}

#[test]
fn a_perceptron_allocates_nothing() {
    let mut b = Builder(GraphBuilder::new("mlp"));
    let x = b.0.input("x", DType::F32, ["N".into(), 20.into()]).unwrap();
    let mut y = x;
    for (from, to) in [(20, 33), (33, 64), (64, 7)] {
        let (w, bias) = (b.weight(&[from, to]), b.weight(&[to]));
        y = b.0.matmul(y, w).unwrap();
        y = b.0.add(y, bias).unwrap();
        y = b.0.relu(y).unwrap();
    }
    let graph = b.0.finish([("y", y)]).unwrap();
    assert_at_most(0, graph, &[vec![numbers(&[1, 20])], vec![numbers(&[9, 20])]]);
}

#[test]
fn an_attention_allocates_nothing() {
    let (heads, width) = (4, 32);
    let mut b = Builder(GraphBuilder::new("attention"));
    let x = b.0.input("x", DType::F32, ["N".into(), "T".into(), width.into()]).unwrap();
    // As exporters write it: the new shape is computed from the old one.
    let shape = b.op("Shape", &[x], &[]);
    let (zero, one) = (b.ints(&[0]), b.ints(&[1]));
    let n = b.op("Gather", &[shape, zero], &[("axis", 0.into())]);
    let t = b.op("Gather", &[shape, one], &[("axis", 0.into())]);
    let (h, d) = (b.ints(&[heads]), b.ints(&[width as i64 / heads]));
    let split = b.0.concat(&[n, t, h, d], 0).unwrap();
    let part = |b: &mut Builder, permutation: &[i64]| {
        let w = b.weight(&[width, width]);
        let y = b.0.matmul(x, w).unwrap();
        let y = b.op("Reshape", &[y, split], &[]);
        b.0.transpose(y, permutation).unwrap()
    };
    let (q, k, v) =
        (part(&mut b, &[0, 2, 1, 3]), part(&mut b, &[0, 2, 3, 1]), part(&mut b, &[0, 2, 1, 3]));
    let scores = b.0.matmul(q, k).unwrap();
    let scale = b.0.constant(Tensor::scalar(0.35_f32)).unwrap();
    let scores = b.0.mul(scores, scale).unwrap();
    let scores = b.0.softmax(scores, -1).unwrap();
    let y = b.0.matmul(scores, v).unwrap();
    let y = b.0.transpose(y, &[0, 2, 1, 3]).unwrap();
    let wide = b.ints(&[width as i64]);
    let joined = b.0.concat(&[n, t, wide], 0).unwrap();
    let y = b.op("Reshape", &[y, joined], &[]);
    let y = b.0.add(y, x).unwrap();
    let (scale, bias) = (b.weight(&[width]), b.weight(&[width]));
    let y = b.op("LayerNormalization", &[y, scale, bias], &[("axis", (-1).into())]);
    let (up, down) = (b.weight(&[width, 64]), b.weight(&[64, width]));
    let z = b.0.matmul(y, up).unwrap();
    let z = b.op("Gelu", &[z], &[]);
    let z = b.0.matmul(z, down).unwrap();
    let y = b.0.add(y, z).unwrap();
    let axes = b.ints(&[1]);
    let y = b.op("ReduceMean", &[y, axes], &[("keepdims", 0.into())]);
    let graph = b.0.finish([("y", y)]).unwrap();
    assert_at_most(0, graph, &[vec![numbers(&[1, 12, width])], vec![numbers(&[2, 7, width])]]);
}
