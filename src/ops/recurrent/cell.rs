//! One step of one direction.

use super::Weights;
use super::activation::Gate;
use super::real::{Addend, Real};
use crate::error::Result;
use crate::ops::{Threads, quantize};

/// Which layer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lstm { input_forget: bool },
    Gru { linear_before_reset: bool },
    Rnn,
}

/// The biases, as they enter: with the input's product, and with the last gate's hidden one.
#[derive(Debug)]
pub(super) struct Biases<T> {
    pub(super) input: Option<Vec<T>>,
    pub(super) last: Option<Vec<T>>,
}

impl Kind {
    /// How many gates have weights.
    pub(super) fn gates(self) -> usize {
        match self {
            Self::Lstm { .. } => 4,
            Self::Gru { .. } => 3,
            Self::Rnn => 1,
        }
    }

    pub(super) fn is_gru(self) -> bool {
        matches!(self, Self::Gru { .. })
    }

    /// The biases of one direction, [W's, R's], added where they may be.
    pub(super) fn biases<T: Real>(self, b: Option<&[T]>, hidden: usize) -> Biases<T> {
        let Some(b) = b else { return Biases { input: None, last: None } };
        let rows = self.gates() * hidden;
        let (w, r) = b.split_at(rows);
        let mut input: Vec<T> = w.to_vec();
        // The reset gate scales the last gate's own bias when it comes after the product.
        let apart = self == Self::Gru { linear_before_reset: true };
        let shared = if apart { rows - hidden } else { rows };
        input[..shared].iter_mut().zip(r).for_each(|(a, b)| *a = a.plus(*b));
        Biases { input: Some(input), last: apart.then(|| r[shared..].to_vec()) }
    }
}

/// The state of one direction and what its steps work with.
#[derive(Debug)]
pub(super) struct Cell<'a, T: Real> {
    pub(super) kind: Kind,
    pub(super) hidden: usize,
    pub(super) clip: Option<T>,
    pub(super) gates: &'a [Gate],
    pub(super) peepholes: Option<&'a [T]>,
    pub(super) biases: &'a Biases<T>,
    /// Whether the hidden state is rounded to 8 bits before the product of an LSTM.
    pub(super) rounds: bool,
    /// Hidden state, item after item.
    pub(super) h: Vec<T>,
    /// Cell state, item after item.
    pub(super) c: Vec<T>,
    /// The gates of all items.
    pub(super) work: Vec<T>,
    /// What enters or leaves the last product of a GRU.
    pub(super) reset: Vec<T>,
    /// The input's part of the gates, where the items are at different steps.
    pub(super) picked: Vec<T>,
}

impl<T: Real> Cell<'_, T> {
    /// Takes one step with the input's part of the gates; items that are not active keep their
    /// state.
    pub(super) fn step(
        &mut self,
        input: Addend<'_, T>,
        weights: &Weights<T>,
        threads: &Threads,
        active: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let hidden = self.hidden;
        let items = self.h.len() / hidden;
        if items == 0 {
            return Ok(());
        }
        if let (Kind::Gru { linear_before_reset }, Some(last)) = (self.kind, &weights.last) {
            return self.gru(input, &weights.hidden, last, linear_before_reset, threads, active);
        }
        let rows = self.kind.gates() * hidden;
        let rounded;
        let state = if self.rounds {
            let mut h: Vec<f32> = self.h.iter().map(|h| h.wide() as f32).collect();
            quantize::rounded(&mut h);
            rounded = h.into_iter().map(|h| T::number(f64::from(h))).collect::<Vec<T>>();
            &rounded
        } else {
            &self.h
        };
        T::product(state, items, &weights.hidden, None, Some(input), &mut self.work, threads)?;
        for item in (0..items).filter(|i| active(*i)) {
            let span = item * hidden..(item + 1) * hidden;
            let (h, c) = (&mut self.h[span.clone()], &mut self.c[span]);
            let work = &mut self.work[item * rows..][..rows];
            match self.kind {
                Kind::Lstm { input_forget } => {
                    lstm(work, h, c, self.gates, self.peepholes, self.clip, input_forget)
                }
                _ => {
                    self.gates[0].apply(work, self.clip);
                    h.copy_from_slice(work);
                }
            }
        }
        Ok(())
    }

    fn gru(
        &mut self,
        input: Addend<'_, T>,
        hidden_weights: &T::Packed,
        last: &T::Packed,
        linear_before_reset: bool,
        threads: &Threads,
        active: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let hidden = self.hidden;
        let items = self.h.len() / hidden;
        let (f, g) = (self.gates[0], self.gates[1]);
        let both = &mut self.work[..items * 2 * hidden];
        T::product(&self.h, items, hidden_weights, None, Some(input), both, threads)?;
        f.apply(both, self.clip);
        // From here on `tail` holds the last gate.
        let (both, tail) = self.work.split_at_mut(items * 2 * hidden);
        let tail = &mut tail[..items * hidden];
        let gate = |item: usize, which: usize| &both[(item * 2 + which) * hidden..][..hidden];
        let own = |item: usize| &input.data[item * input.row_stride + 2 * hidden..][..hidden];
        if linear_before_reset {
            let bias = self.biases.last.as_deref();
            T::product(&self.h, items, last, bias, None, tail, threads)?;
            for (item, line) in tail.chunks_exact_mut(hidden).enumerate() {
                for ((o, r), x) in line.iter_mut().zip(gate(item, 1)).zip(own(item)) {
                    *o = r.times(*o).plus(*x);
                }
            }
        } else {
            for (item, line) in self.reset.chunks_exact_mut(hidden).enumerate() {
                let h = &self.h[item * hidden..][..hidden];
                for ((o, r), h) in line.iter_mut().zip(gate(item, 1)).zip(h) {
                    *o = r.times(*h);
                }
            }
            let data = input.data.get(2 * hidden..).unwrap_or(&[]);
            let addend = Addend { data, row_stride: input.row_stride };
            T::product(&self.reset, items, last, None, Some(addend), tail, threads)?;
        }
        g.apply(tail, self.clip);
        let one = T::number(1.0);
        for item in (0..items).filter(|i| active(*i)) {
            let h = &mut self.h[item * hidden..][..hidden];
            let new = &tail[item * hidden..][..hidden];
            for ((h, z), n) in h.iter_mut().zip(gate(item, 0)).zip(new) {
                *h = one.minus(*z).times(*n).plus(z.times(*h));
            }
        }
        Ok(())
    }
}

/// One item's step; `work` holds the sums of the gates i, o, f and c.
fn lstm<T: Real>(
    work: &mut [T],
    h: &mut [T],
    c: &mut [T],
    gates: &[Gate],
    peepholes: Option<&[T]>,
    clip: Option<T>,
    input_forget: bool,
) {
    let hidden = h.len();
    let (i, rest) = work.split_at_mut(hidden);
    let (o, rest) = rest.split_at_mut(hidden);
    let (f, new) = rest.split_at_mut(hidden);
    let peep = |gate: &mut [T], which: usize, c: &[T]| {
        if let Some(p) = peepholes {
            let p = &p[which * hidden..][..hidden];
            for ((g, p), c) in gate.iter_mut().zip(p).zip(c) {
                *g = g.plus(p.times(*c));
            }
        }
    };
    peep(i, 0, c);
    gates[0].apply(i, clip);
    if input_forget {
        let one = T::number(1.0);
        f.iter_mut().zip(i.iter()).for_each(|(f, i)| *f = one.minus(*i));
    } else {
        peep(f, 2, c);
        gates[0].apply(f, clip);
    }
    gates[1].apply(new, clip);
    for (((c, f), i), n) in c.iter_mut().zip(f.iter()).zip(i.iter()).zip(new.iter()) {
        *c = f.times(*c).plus(i.times(*n));
    }
    peep(o, 1, c);
    gates[0].apply(o, clip);
    h.copy_from_slice(c);
    // The clip bounds the sums of the gates alone, as in ONNX Runtime.
    gates[2].apply(h, None);
    h.iter_mut().zip(o.iter()).for_each(|(h, o)| *h = h.times(*o));
}
