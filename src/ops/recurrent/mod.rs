//! Recurrent layers: `LSTM`, `GRU` and `RNN`.

mod activation;
mod cases;
mod cell;
mod quantized;
mod real;

use activation::Gate;
use cell::{Cell, Kind};
pub(super) use quantized::DYNAMIC_QUANTIZE_LSTM;
use real::{Addend, Real};

use super::batch::{BatchFlow, BatchQuery};
use super::cost::{Cost, CostQuery};
use super::def::types::FLOATS;
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::tensor::{DType, Tensor, cast, element_count};

const LENGTHS: &[DType] = &[DType::I32];

macro_rules! shared_attributes {
    ($($more:expr),*) => { &[
        AttributeDef::optional("activation_alpha", AttributeKind::Floats),
        AttributeDef::optional("activation_beta", AttributeKind::Floats),
        AttributeDef::optional("activations", AttributeKind::Strings),
        AttributeDef::optional("clip", AttributeKind::Float),
        AttributeDef::optional("direction", AttributeKind::String),
        AttributeDef::optional("hidden_size", AttributeKind::Int),
        AttributeDef::optional("layout", AttributeKind::Int),
        // Whether there is an output Y, which the node's list of outputs says as well.
        AttributeDef::optional("output_sequence", AttributeKind::Int).until(6),
        $($more),*
    ] };
}

/// Long short-term memory.
pub(super) static LSTM: OpDef = OpDef {
    name: "LSTM",
    domain: "",
    since: 1,
    attributes: shared_attributes!(AttributeDef::optional("input_forget", AttributeKind::Int)),
    inputs: &[
        Port::required("X", FLOATS),
        Port::required("W", FLOATS),
        Port::required("R", FLOATS),
        Port::optional("B", FLOATS),
        Port::optional("sequence_lens", LENGTHS),
        Port::optional("initial_h", FLOATS),
        Port::optional("initial_c", FLOATS),
        Port::optional("P", FLOATS),
    ],
    outputs: &[
        Port::optional("Y", FLOATS),
        Port::optional("Y_h", FLOATS),
        Port::optional("Y_c", FLOATS),
    ],
    infer,
    batch,
    cost,
    prepare: |p| {
        let input_forget = p.node.int_or("input_forget", 0)? != 0;
        Ok(Box::new(Recurrent::new(p, Kind::Lstm { input_forget }, &["Sigmoid", "Tanh", "Tanh"])?))
    },
    cases: cases::lstm,
};

/// Gated recurrent unit.
pub(super) static GRU: OpDef = OpDef {
    name: "GRU",
    domain: "",
    since: 1,
    attributes: shared_attributes!(AttributeDef::optional(
        "linear_before_reset",
        AttributeKind::Int
    )),
    inputs: SHORT_INPUTS,
    outputs: &[Port::optional("Y", FLOATS), Port::optional("Y_h", FLOATS)],
    infer,
    batch,
    cost,
    prepare: |p| {
        let linear_before_reset = p.node.int_or("linear_before_reset", 0)? != 0;
        Ok(Box::new(Recurrent::new(p, Kind::Gru { linear_before_reset }, &["Sigmoid", "Tanh"])?))
    },
    cases: cases::gru,
};

/// The plain recurrent layer.
pub(super) static RNN: OpDef = OpDef {
    name: "RNN",
    domain: "",
    since: 1,
    attributes: shared_attributes!(),
    inputs: SHORT_INPUTS,
    outputs: &[Port::optional("Y", FLOATS), Port::optional("Y_h", FLOATS)],
    infer,
    batch,
    cost,
    prepare: |p| Ok(Box::new(Recurrent::new(p, Kind::Rnn, &["Tanh"])?)),
    cases: cases::rnn,
};

const SHORT_INPUTS: &[Port] = &[
    Port::required("X", FLOATS),
    Port::required("W", FLOATS),
    Port::required("R", FLOATS),
    Port::optional("B", FLOATS),
    Port::optional("sequence_lens", LENGTHS),
    Port::optional("initial_h", FLOATS),
];

/// Which way the steps are taken: for each direction, whether backwards.
fn directions(node: &Node) -> Result<&'static [bool]> {
    Ok(match node.string("direction")?.unwrap_or("forward") {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => bail!(
            Graph,
            "attribute `direction` is `{other}`, expected forward, reverse or bidirectional"
        ),
    })
}

/// Whether the items come before the steps.
fn items_first(node: &Node) -> Result<bool> {
    Ok(node.int_or("layout", 0)? != 0)
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0).or(i.dtype(1));
    let directions = Dim::of(directions(i.node)?.len());
    let items_first = items_first(i.node)?;
    let hidden = match (i.node.int("hidden_size")?, i.shape(2)) {
        (Some(h), _) => Dim::fixed(h),
        (None, Some(r)) if r.len() == 3 => r[2].clone(),
        _ => i.fresh(),
    };
    let (steps, items) = match i.shape(0) {
        Some(x) if x.len() != 3 => {
            bail!(Shape, "input `X` has {} axes, expected steps, items and features", x.len())
        }
        Some(x) if items_first => (x[1].clone(), x[0].clone()),
        Some(x) => (x[0].clone(), x[1].clone()),
        None => (i.fresh(), i.fresh()),
    };
    let (all, last) = if items_first {
        (
            vec![items.clone(), steps, directions.clone(), hidden.clone()],
            vec![items, directions, hidden],
        )
    } else {
        (
            vec![steps, directions.clone(), items.clone(), hidden.clone()],
            vec![directions, items, hidden],
        )
    };
    i.set(0, dtype, Some(all));
    i.set(1, dtype, Some(last.clone()));
    i.set(2, dtype, Some(last));
    Ok(())
}

fn batch(q: &BatchQuery<'_>) -> BatchFlow {
    if q.is_free() {
        return q.everywhere(None);
    }
    let items_first = items_first(q.node).map_err(|e| e.to_string())?;
    let (x, state) = if items_first { (0, 0) } else { (1, 1) };
    let axis = |i: usize| q.axes.get(i).copied().flatten();
    if axis(0) != Some(x) {
        return Err(format!("the batch is not on axis {x} of `X`"));
    }
    for (i, input) in q.node.inputs.iter().enumerate().skip(1) {
        let wanted = match i {
            4 => Some(0),
            5 | 6 => Some(state),
            _ => None,
        };
        if input.is_some() && axis(i) != wanted {
            return Err(match wanted {
                Some(w) => format!("input {i} does not carry the batch on axis {w}"),
                None => format!("input {i}, which is shared, carries the batch"),
            });
        }
    }
    let all = if items_first { 0 } else { 2 };
    Ok((0..q.node.outputs.len()).map(|o| Some(if o == 0 { all } else { state })).collect())
}

/// Two operations for each weight, step and item.
fn cost(q: &CostQuery<'_>) -> Cost {
    let steps_and_items = match q.inputs.first() {
        Some(Some((_, x))) => x.iter().take(2).product::<usize>() as f64,
        _ => 1.0,
    };
    let weights = q.input_elements(1) + q.input_elements(2);
    Cost { flops: 2.0 * steps_and_items * weights, bytes: q.bytes() }
}

/// The weights of one direction, ready for products.
#[derive(Debug)]
struct Weights<T: Real> {
    /// Of the input, for all gates.
    input: T::Packed,
    /// Of the hidden state, for all gates, or for a GRU that resets first for all but the last.
    hidden: T::Packed,
    /// That last one.
    last: Option<T::Packed>,
    features: usize,
}

impl<T: Real> Weights<T> {
    /// Packs W and R of every direction.
    fn new(
        kind: Kind,
        w: &Tensor,
        r: &Tensor,
        directions: usize,
        hidden: usize,
    ) -> Result<Vec<Self>> {
        let gates = kind.gates();
        let (&[dw, gw, features], &[dr, gr, hr]) = (&w.shape()[..], &r.shape()[..]) else {
            bail!(Shape, "`W` is {} and `R` {}, expected 3 axes each", w.describe(), r.describe());
        };
        let rows = gates * hidden;
        if [dw, dr] != [directions; 2] || [gw, gr] != [rows; 2] || hr != hidden {
            bail!(
                Shape,
                "`W` is {} and `R` {}, expected [{directions},{rows},features] and \
                 [{directions},{rows},{hidden}]",
                w.describe(),
                r.describe()
            );
        }
        let (w, r) = (w.as_slice::<T>()?, r.as_slice::<T>()?);
        (0..directions)
            .map(|d| {
                let w = &w[d * rows * features..][..rows * features];
                let r = &r[d * rows * hidden..][..rows * hidden];
                let apart = if kind.is_gru() { hidden } else { 0 };
                let (most, rest) = r.split_at((rows - apart) * hidden);
                Ok(Self {
                    input: T::pack(w, rows, features)?,
                    hidden: T::pack(most, rows - apart, hidden)?,
                    last: (apart > 0).then(|| T::pack(rest, hidden, hidden)).transpose()?,
                    features,
                })
            })
            .collect()
    }
}

#[derive(Debug)]
enum Packed {
    Single(Vec<Weights<f32>>),
    Double(Vec<Weights<f64>>),
}

#[derive(Debug)]
struct Recurrent {
    kind: Kind,
    directions: &'static [bool],
    items_first: bool,
    hidden: Option<usize>,
    clip: Option<f32>,
    /// For each direction, those of the kind.
    gates: Vec<Gate>,
    /// W and R, where both are constant.
    packed: Option<Packed>,
    /// Whether the hidden state is rounded to 8 bits before each product.
    rounds: bool,
}

impl Recurrent {
    fn new(p: &Prepare<'_>, kind: Kind, defaults: &[&str]) -> Result<Self> {
        let directions = directions(p.node)?;
        let hidden = match p.node.int("hidden_size")? {
            None => None,
            Some(h) => match usize::try_from(h) {
                Ok(h) if h > 0 && h < 1 << 20 => Some(h),
                _ => bail!(Graph, "attribute `hidden_size` is {h}, expected at least 1"),
            },
        };
        let packed = match (p.constant(1), p.constant(2)) {
            (Some(w), Some(r)) => {
                let hidden = hidden_of(hidden, r)?;
                Some(if w.dtype() == DType::F64 {
                    Packed::Double(Weights::new(kind, w, r, directions.len(), hidden)?)
                } else {
                    let (w, r) = (cast(w, DType::F32)?, cast(r, DType::F32)?);
                    Packed::Single(Weights::new(kind, &w, &r, directions.len(), hidden)?)
                })
            }
            _ => None,
        };
        let clip = p.node.float("clip")?.filter(|c| *c > 0.0);
        let gates = Gate::read(p.node, defaults, directions.len())?;
        let items_first = items_first(p.node)?;
        Ok(Self { kind, directions, items_first, hidden, clip, gates, packed, rounds: false })
    }

    fn run_real<T: Real>(
        &self,
        io: &Io<'_>,
        inputs: &[Option<Tensor>],
        packed: Option<&[Weights<T>]>,
    ) -> Result<Vec<Tensor>> {
        let input = |i: usize| inputs.get(i).and_then(Option::as_ref);
        let Some(x) = input(0) else { bail!(Missing, "input `X` is missing") };
        let directions = self.directions.len();
        let made;
        let (weights, hidden) = match (packed, self.hidden, input(1), input(2)) {
            (Some(w), Some(h), ..) => (w, h),
            (_, h, Some(w), Some(r)) => {
                let hidden = hidden_of(h, r)?;
                if let Some(packed) = packed {
                    (packed, hidden)
                } else {
                    made = Weights::new(self.kind, w, r, directions, hidden)?;
                    (&made[..], hidden)
                }
            }
            _ => bail!(Missing, "input `W` or `R` is missing"),
        };
        let &[a, b, features] = &x.shape()[..] else {
            bail!(Shape, "input `X` is {}, expected steps, items and features", x.describe());
        };
        let (steps, items) = if self.items_first { (b, a) } else { (a, b) };
        if weights.first().is_some_and(|w| w.features != features) {
            bail!(Shape, "input `X` is {}, `W` is for another number of features", x.describe());
        }
        let rows = self.kind.gates() * hidden;
        let check = |i: usize, name: &str, want: &[usize]| match input(i) {
            Some(t) if t.shape()[..] != *want => {
                bail!(Shape, "input `{name}` is {}, expected {want:?}", t.describe())
            }
            t => t.map(|t| t.as_slice::<T>()).transpose(),
        };
        let state = if self.items_first {
            [items, directions, hidden]
        } else {
            [directions, items, hidden]
        };
        let bias = check(3, "B", &[directions, 2 * rows])?;
        let initial_h = check(5, "initial_h", &state)?;
        let initial_c = check(6, "initial_c", &state)?;
        let peepholes = check(7, "P", &[directions, 3 * hidden])?;
        let lengths = lengths(input(4), steps, items)?;
        let all = if self.items_first {
            [items, steps, directions, hidden]
        } else {
            [steps, directions, items, hidden]
        };
        element_count(&all, 8)?;
        element_count(&[steps, items, rows], 8)?;
        let mut y = io.allocate(T::DTYPE, all)?;
        let mut y_h = io.allocate(T::DTYPE, state)?;
        let mut y_c = io.allocate(T::DTYPE, state)?;
        let out = y.as_mut_slice::<T>()?;
        out.fill(T::default());
        let (last_h, last_c) = (y_h.as_mut_slice::<T>()?, y_c.as_mut_slice::<T>()?);
        let mut gates = io.allocate(T::DTYPE, [steps * items, rows])?;
        let gates = gates.as_mut_slice::<T>()?;
        let x = x.as_slice::<T>()?;
        for (d, backwards) in self.directions.iter().enumerate() {
            let weights = &weights[d];
            let bias = bias.map(|b| &b[d * 2 * rows..][..2 * rows]);
            let biases = self.kind.biases(bias, hidden);
            T::product(
                x,
                steps * items,
                &weights.input,
                biases.input.as_deref(),
                None,
                gates,
                io.threads(),
            )?;
            let place = |item: usize| {
                (if self.items_first { item * directions + d } else { d * items + item }) * hidden
            };
            let count = self.gates.len() / directions;
            let mut cell = Cell {
                kind: self.kind,
                hidden,
                clip: self.clip.map(|c| T::number(f64::from(c))),
                gates: &self.gates[d * count..][..count],
                peepholes: peepholes.map(|p| &p[d * 3 * hidden..][..3 * hidden]),
                biases: &biases,
                rounds: self.rounds,
                h: gathered(initial_h, items, hidden, place),
                c: gathered(initial_c, items, hidden, place),
                work: vec![T::default(); items * rows],
                reset: vec![T::default(); items * hidden],
                picked: Vec::new(),
            };
            for step in 0..steps {
                let row = |item: usize| {
                    let step = match (&lengths, backwards) {
                        (Some(l), true) => l[item].saturating_sub(step + 1),
                        (None, true) => steps - 1 - step,
                        (_, false) => step,
                    };
                    (step, if self.items_first { item * steps + step } else { step * items + item })
                };
                let active = |item: usize| lengths.as_ref().is_none_or(|l| step < l[item]);
                // Without lengths all items are at the same step, an equal distance apart.
                let addend = if lengths.is_none() {
                    let row_stride = if self.items_first { steps * rows } else { rows };
                    Addend { data: gates.get(row(0).1 * rows..).unwrap_or(&[]), row_stride }
                } else {
                    cell.picked.clear();
                    for item in 0..items {
                        cell.picked.extend_from_slice(&gates[row(item).1 * rows..][..rows]);
                    }
                    let picked = std::mem::take(&mut cell.picked);
                    cell.step(
                        Addend { data: &picked, row_stride: rows },
                        weights,
                        io.threads(),
                        active,
                    )?;
                    cell.picked = picked;
                    for item in (0..items).filter(|i| active(*i)) {
                        let at = self.output_row(row(item).0, d, item, steps, items) * hidden;
                        out[at..at + hidden].copy_from_slice(&cell.h[item * hidden..][..hidden]);
                    }
                    continue;
                };
                cell.step(addend, weights, io.threads(), active)?;
                for item in 0..items {
                    let at = self.output_row(row(item).0, d, item, steps, items) * hidden;
                    out[at..at + hidden].copy_from_slice(&cell.h[item * hidden..][..hidden]);
                }
            }
            for item in 0..items {
                let at = place(item);
                last_h[at..at + hidden].copy_from_slice(&cell.h[item * hidden..][..hidden]);
                last_c[at..at + hidden].copy_from_slice(&cell.c[item * hidden..][..hidden]);
            }
        }
        Ok(vec![y, y_h, y_c])
    }

    /// The row of `Y` that belongs to a step, a direction and an item.
    fn output_row(&self, step: usize, d: usize, item: usize, steps: usize, items: usize) -> usize {
        let directions = self.directions.len();
        if self.items_first {
            (item * steps + step) * directions + d
        } else {
            (step * directions + d) * items + item
        }
    }
}

fn hidden_of(attribute: Option<usize>, r: &Tensor) -> Result<usize> {
    match (attribute, r.shape().last()) {
        (Some(h), _) => Ok(h),
        (None, Some(h)) => Ok(*h),
        (None, None) => bail!(Shape, "`R` is {}, expected 3 axes", r.describe()),
    }
}

/// The lengths of the items' sequences; `None` where all are full.
fn lengths(given: Option<&Tensor>, steps: usize, items: usize) -> Result<Option<Vec<usize>>> {
    let Some(t) = given else { return Ok(None) };
    let given = t.to_i64s()?;
    if given.len() != items {
        bail!(Shape, "input `sequence_lens` is {}, expected {items} values", t.describe());
    }
    let mut out = Vec::with_capacity(items);
    for l in given {
        match usize::try_from(l) {
            Ok(u) if u <= steps => out.push(u),
            _ => bail!(Shape, "input `sequence_lens` has {l}, there are {steps} steps"),
        }
    }
    Ok(out.iter().any(|l| *l != steps).then_some(out))
}

/// The state of one direction, item after item; zero where none is given.
fn gathered<T: Real>(
    given: Option<&[T]>,
    items: usize,
    hidden: usize,
    place: impl Fn(usize) -> usize,
) -> Vec<T> {
    let mut out = vec![T::default(); items * hidden];
    if let Some(given) = given {
        for item in 0..items {
            out[item * hidden..][..hidden].copy_from_slice(&given[place(item)..][..hidden]);
        }
    }
    out
}

impl CpuKernel for Recurrent {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let dtype = io.tensor(0)?.dtype();
        let work = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let mut inputs = Vec::with_capacity(io.input_count());
        for i in 0..io.input_count() {
            inputs.push(match io.optional(i)? {
                Some(t) if t.dtype().is_float() => Some(cast(t, work)?),
                t => t.cloned(),
            });
        }
        let outputs = match (&self.packed, work) {
            (Some(Packed::Double(p)), DType::F64) => self.run_real::<f64>(io, &inputs, Some(p))?,
            (Some(Packed::Single(p)), DType::F32) => self.run_real::<f32>(io, &inputs, Some(p))?,
            (_, DType::F64) => self.run_real::<f64>(io, &inputs, None)?,
            _ => self.run_real::<f32>(io, &inputs, None)?,
        };
        for y in outputs {
            io.emit(cast(&y, dtype)?);
        }
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        // Without the attribute the hidden size is read from R.
        !matches!(input, 1 | 2) || self.packed.is_none() || self.hidden.is_none()
    }
}
