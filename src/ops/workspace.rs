//! What an instance keeps from run to run, so that a run like an earlier one allocates nothing and
//! infers nothing.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::tensor::{BufferPool, Layout, Run, Shape, Value};

/// Shapes of inputs that an instance keeps something for; beyond that, the one that was not used
/// for longest is forgotten.
const MOST_SHAPES: usize = 16;

/// More bytes of values that depend on shapes alone are not kept.
const MOST_KEPT_BYTES: usize = 1 << 20;

/// What one instance keeps from run to run; clones share it.
///
/// For each combination of input shapes that came lately: the values that depend on nothing but
/// these shapes, once they came the first time; how the buffers of a run are laid out, once they
/// came the second time.
#[derive(Clone, Default)]
pub struct Workspace(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    frames: Vec<Frame>,
    /// Frames that are in use: more than one while a kernel runs a program of its own.
    depth: usize,
    specialised: Vec<Specialised>,
    runs: u64,
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workspace({} shapes)", self.shapes())
    }
}

/// What is kept for a program and the shapes of its inputs.
struct Specialised {
    id: u64,
    program: u64,
    shapes: Vec<Shape>,
    used: u64,
    /// Whether a run of it came to its end.
    finished: bool,
    kept: Option<Arc<[Value]>>,
    layout: Option<Arc<Layout>>,
}

/// The values of one run, by where it keeps them.
#[derive(Default)]
pub(super) struct Frame {
    pub(super) slots: Vec<Option<Value>>,
    pub(super) arguments: Vec<Option<Value>>,
    pub(super) made: Vec<Value>,
    /// What depends on shapes alone, in a run that finds it.
    pub(super) found: Vec<Option<Value>>,
}

/// A frame that goes back to its workspace.
pub(super) struct Framed<'a> {
    frame: Frame,
    home: &'a Workspace,
}

impl Deref for Framed<'_> {
    type Target = Frame;
    fn deref(&self) -> &Frame {
        &self.frame
    }
}

impl DerefMut for Framed<'_> {
    fn deref_mut(&mut self) -> &mut Frame {
        &mut self.frame
    }
}

impl Drop for Framed<'_> {
    fn drop(&mut self) {
        let mut frame = std::mem::take(&mut self.frame);
        frame.slots.clear();
        frame.arguments.clear();
        frame.made.clear();
        frame.found.clear();
        let mut home = self.home.inner();
        home.depth -= 1;
        home.frames.push(frame);
    }
}

/// What is known for a run when it starts.
#[derive(Default)]
pub(super) struct Start<'a> {
    /// The values that depend on shapes alone, if they are known.
    pub(super) kept: Option<Arc<[Value]>>,
    /// Whether the run is to find them.
    pub(super) find: bool,
    run: Option<Run<'a>>,
    id: u64,
}

impl Workspace {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how many combinations of input shapes something is kept.
    pub fn shapes(&self) -> usize {
        self.inner().specialised.len()
    }

    pub(super) fn frame(&self) -> Framed<'_> {
        let mut inner = self.inner();
        inner.depth += 1;
        let frame = inner.frames.pop().unwrap_or_default();
        Framed { frame, home: self }
    }

    /// Starts a run of a program on inputs of these shapes, in a frame that was taken; `keeps` says
    /// whether it has values that depend on shapes alone.
    pub(super) fn start<'a>(
        &self,
        program: u64,
        inputs: &[Value],
        keeps: bool,
        pool: &'a BufferPool,
    ) -> Start<'a> {
        let mut inner = self.inner();
        // Within a run, its own allocations are laid out, those of the programs in it included.
        if inner.depth > 1 {
            return Start::default();
        }
        inner.runs += 1;
        let now = inner.runs;
        if let Some(found) = inner.specialised.iter_mut().find(|s| s.is_of(program, inputs)) {
            found.used = now;
            let run = match &found.layout {
                // The run that came first ended with an error.
                _ if !found.finished => None,
                Some(layout) => pool.lay_out(layout),
                None => pool.record(),
            };
            let find = keeps && !found.finished;
            return Start { kept: found.kept.clone(), find, run, id: found.id };
        }
        let Some(shapes) = inputs.iter().map(|v| v.shape().cloned()).collect() else {
            return Start::default();
        };
        if inner.specialised.len() == MOST_SHAPES
            && let Some(oldest) = (0..MOST_SHAPES).min_by_key(|i| inner.specialised[*i].used)
        {
            inner.specialised.swap_remove(oldest);
        }
        let (kept, layout) = (None, None);
        let finished = false;
        let new = Specialised { id: now, program, shapes, used: now, finished, kept, layout };
        inner.specialised.push(new);
        Start { find: keeps, id: now, ..Start::default() }
    }

    /// Ends a run that came to its end: keeps what it found, and how its buffers are laid out.
    pub(super) fn finish(&self, start: Start<'_>, found: &mut Vec<Option<Value>>) {
        let kept = start.find.then(|| {
            let bytes: usize = found.iter().flatten().map(Value::bytes).sum();
            let all: Option<Vec<Value>> = found.drain(..).collect();
            all.filter(|_| bytes <= MOST_KEPT_BYTES)
        });
        let layout = start.run.and_then(Run::finish);
        let mut inner = self.inner();
        if let Some(s) = inner.specialised.iter_mut().find(|s| s.id == start.id) {
            s.finished = true;
            s.kept = kept.flatten().map(Arc::from).or(s.kept.take());
            s.layout = layout.map(Arc::new).or(s.layout.take());
        }
    }
}

impl Specialised {
    fn is_of(&self, program: u64, inputs: &[Value]) -> bool {
        self.program == program
            && self.shapes.len() == inputs.len()
            && self.shapes.iter().zip(inputs).all(|(s, v)| v.shape() == Some(s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Attribute, Graph};
    use crate::ops::builder::GraphBuilder;
    use crate::ops::{CompileOptions, OpRegistry, Program, RunContext};
    use crate::tensor::{DType, Tensor};

    fn numbers(shape: &[usize], first: f32) -> Value {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|i| first + i as f32).collect();
        Tensor::new(shape, values).unwrap().into()
    }

    fn program(graph: &Graph) -> Program {
        Program::compile(graph, &OpRegistry::default(), &CompileOptions::default()).unwrap()
    }

    /// `y` is `x` with its first two axes folded, by a shape that is computed from its own; `n` is
    /// its number of rows.
    fn folds() -> Graph {
        let mut g = GraphBuilder::new("folds");
        let x = g.input("x", DType::F32, ["N".into(), "M".into(), 3.into()]).unwrap();
        let shape = g.op("Shape", &[x], &[]).unwrap();
        let at = |g: &mut GraphBuilder, i: i64| {
            let i = g.constant(Tensor::of_i64(&[i])).unwrap();
            g.op("Gather", &[shape, i], &[("axis", 0.into())]).unwrap()
        };
        let (n, m, k) = (at(&mut g, 0), at(&mut g, 1), at(&mut g, 2));
        let rows = g.mul(n, m).unwrap();
        let target = g.concat(&[rows, k], 0).unwrap();
        let y = g.exp(x).unwrap();
        let y = g.op("Reshape", &[y, target], &[]).unwrap();
        g.finish([("y", y), ("n", rows)]).unwrap()
    }

    #[test]
    fn a_stream_may_mix_more_shapes_than_are_kept() {
        let program = program(&folds());
        let context = RunContext::default();
        for round in 0..4 {
            for n in 1..=20 {
                // Some come again soon, others only after they were forgotten.
                for n in [n, 1 + n % 3] {
                    let x = numbers(&[n, 2, 3], round as f32 / 8.0);
                    let made = program.run(vec![x.clone()], &context).unwrap();
                    assert_eq!(made, program.run(vec![x], &RunContext::default()).unwrap());
                    assert_eq!(made[0].shape().unwrap()[..], [2 * n, 3]);
                    assert_eq!(made[1].tensor().unwrap().item::<i64>().unwrap(), 2 * n as i64);
                }
            }
        }
        assert_eq!(context.workspace.shapes(), MOST_SHAPES);
    }

    #[test]
    fn what_depends_on_shapes_alone_is_computed_once() {
        let program = program(&folds());
        let context = RunContext::default();
        let run = |x: Value| program.run(vec![x], &context).unwrap();
        let first = run(numbers(&[4, 2, 3], 0.0));
        let second = run(numbers(&[4, 2, 3], 0.5));
        assert_ne!(first[0], second[0]);
        let memory = |v: &Value| v.tensor().unwrap().buffer().clone();
        assert!(memory(&first[1]).same_memory(&memory(&second[1])));
        // Laid out from the third on; outputs are the caller's all the same.
        let third = run(numbers(&[4, 2, 3], 0.0));
        let fourth = run(numbers(&[4, 2, 3], 0.0));
        assert_eq!((&third, &fourth), (&first, &first));
        assert!(!memory(&third[0]).same_memory(&memory(&fourth[0])));
    }

    #[test]
    fn what_depends_on_contents_is_not_kept() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, ["N".into()]).unwrap();
        let found = g.op("NonZero", &[x], &[]).unwrap();
        let a = g.op("Shape", &[found], &[]).unwrap();
        let one = Attribute::from(Tensor::new([1], vec![1.0_f32]).unwrap());
        let ones = g.op("ConstantOfShape", &[a], &[("value", one)]).unwrap();
        let sum = g.op("ReduceSum", &[ones], &[("keepdims", 0.into())]).unwrap();
        let graph = g.finish([("sum", sum)]).unwrap();
        let (program, context) = (program(&graph), RunContext::default());
        for zeros in [0, 1, 3, 2, 0, 4, 4] {
            let x: Vec<f32> = (0..5).map(|i| if i < zeros { 0.0 } else { 1.0 }).collect();
            let x = Tensor::new([5], x).unwrap();
            let made = program.run(vec![x.into()], &context).unwrap();
            let sum = made[0].tensor().unwrap().item::<f32>().unwrap();
            assert_eq!(sum, 5.0 - zeros as f32);
        }
    }

    /// `y` is a row of `exp(x)` by its number, `n` the extent of `x`.
    fn picks() -> Graph {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, ["N".into()]).unwrap();
        let i = g.input("i", DType::I64, ["K".into()]).unwrap();
        let n = g.op("Shape", &[x], &[]).unwrap();
        let y = g.exp(x).unwrap();
        let y = g.op("Gather", &[y, i], &[]).unwrap();
        g.finish([("y", y), ("n", n)]).unwrap()
    }

    #[test]
    fn a_failed_run_leaves_nothing_behind_whatever_it_was_for() {
        let program = program(&picks());
        // The run that finds, the one that is written down, and one that is laid out fail.
        for failing in [vec![0], vec![0, 1], vec![1], vec![2], vec![0, 2, 3]] {
            let context = RunContext::default();
            let mut extents = Vec::new();
            for round in 0..6 {
                let fails = failing.contains(&round);
                let at = if fails { 9 } else { 1 };
                let inputs = vec![numbers(&[4], 0.0), Tensor::of_i64(&[at, 0]).into()];
                let made = program.run(inputs, &context);
                assert_eq!(made.is_err(), fails, "{made:?}");
                extents.extend(made.ok().map(|made| made[1].tensor().unwrap().buffer().clone()));
                assert_eq!(context.workspace.inner().depth, 0);
                assert!(context.pool.record().is_some(), "a run is still under way");
            }
            // Found by the first run that came to its end, and kept.
            assert!(extents.iter().all(|e| e.same_memory(&extents[0])), "{failing:?}");
            drop(extents);
            drop(context.workspace);
            assert_eq!(context.pool.held_bytes(), context.pool.owned_bytes());
        }
    }

    #[test]
    fn what_is_large_is_made_anew_and_let_go() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, ["N".into(), "M".into()]).unwrap();
        let shape = g.op("Shape", &[x], &[]).unwrap();
        let ones = Attribute::from(Tensor::new([1], vec![1.0_f32]).unwrap());
        let mut y = x;
        for _ in 0..8 {
            let mask = g.op("ConstantOfShape", &[shape], &[("value", ones.clone())]).unwrap();
            y = g.add(y, mask).unwrap();
        }
        let (program, context) = (program(&g.finish([("y", y)]).unwrap()), RunContext::default());
        for _ in 0..4 {
            let made = program.run(vec![numbers(&[64, 64], 0.0)], &context).unwrap();
            assert_eq!(made[0].tensor().unwrap().as_slice::<f32>().unwrap()[5], 13.0);
        }
        // A mask and a sum at a time, not eight masks.
        assert!(context.pool.owned_bytes() <= 4 * 64 * 64 * 4, "{}", context.pool.owned_bytes());
    }
}
