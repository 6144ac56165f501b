//! Folds what follows a convolution into it: batch normalisation and constant scales and offsets
//! into its weights and bias, a residual and an activation into `brigade.FusedConv`.

use super::readers::{
    Readers, absorb, activation, add_constant, constant, fused, has, is, other, output, same_f32,
    set_activation, set_input,
};
use crate::error::Result;
use crate::graph::{Attribute, Graph, Node, ValueId};
use crate::ops::OpRegistry;
use crate::ops::infer::Known;
use crate::tensor::{DType, Tensor};

pub(super) fn run(graph: &mut Graph, known: &[Known], _: &OpRegistry) -> Result<usize> {
    let readers = Readers::new(graph);
    let mut changes = 0;
    for i in 0..graph.nodes.len() {
        let mut slot = i;
        while let Some(next) = step(graph, known, &readers, slot)? {
            slot = next;
            changes += 1;
        }
    }
    Ok(changes)
}

/// Absorbs the one reader of the convolution at `slot`; returns where the convolution is then.
fn step(
    graph: &mut Graph,
    known: &[Known],
    readers: &Readers,
    slot: usize,
) -> Result<Option<usize>> {
    let op = graph.nodes[slot].op.as_str();
    if !matches!(op, "Conv" | "ConvTranspose" | "FusedConv") {
        return Ok(None);
    }
    let node = &graph.nodes[slot].clone();
    let transposed = is(node, "ConvTranspose");
    let plain = is(node, "Conv");
    let already = node.op == "FusedConv" && node.domain == "brigade";
    if !(transposed || plain || already) {
        return Ok(None);
    }
    let Some(out) = output(node) else { return Ok(None) };
    let f32s = known.get(out.index()).is_some_and(|k| k.fact.dtype == Some(DType::F32));
    let Some(last) = readers.sole(out).filter(|_| f32s) else { return Ok(None) };
    let reader = &graph.nodes[last].clone();
    let active = node.attributes.contains_key("activation");
    if !already {
        if let Some((scale, shift)) = affine(graph, reader, out, node)
            && let Some(changed) = fold(graph, slot, &scale, &shift)?
        {
            absorb(graph, slot, last, changed);
            return Ok(Some(last));
        }
        if transposed {
            return Ok(None);
        }
    }
    let after = node.attributes.contains_key("residual_after_activation");
    if !active
        && !after
        && let Some(act) = activation(graph, reader)
    {
        let mut changed = fused(node, "FusedConv");
        set_activation(&mut changed, act);
        absorb(graph, slot, last, changed);
        return Ok(Some(last));
    }
    if is(reader, "Add")
        && !has(node, 3)
        && let Some(residual) = other(reader, out)
        && graph.value(residual).constant.is_none()
        && same_f32(known, out, residual)
    {
        let mut changed = fused(node, "FusedConv");
        set_input(&mut changed, 3, residual);
        if active {
            changed.attributes.insert("residual_after_activation".to_owned(), Attribute::Int(1));
        }
        absorb(graph, slot, last, changed);
        return Ok(Some(last));
    }
    Ok(None)
}

/// The scale and the offset of each channel that a node applies to `v`.
fn affine(
    graph: &Graph,
    node: &Node,
    v: ValueId,
    conv: &Node,
) -> Option<(Option<Vec<f32>>, Option<Vec<f32>>)> {
    let channels = channels(graph, conv)?;
    let rank = constant(graph, conv.inputs.get(1).copied().flatten())?.rank();
    if is(node, "BatchNormalization") {
        let training = node.int_or("training_mode", 0).ok()? != 0;
        if training || node.inputs.first() != Some(&Some(v)) || output(node).is_none() {
            return None;
        }
        let of = |i: usize| -> Option<&[f32]> {
            let t = constant(graph, node.inputs.get(i).copied().flatten())?;
            t.as_slice::<f32>().ok().filter(|s| s.len() == channels)
        };
        let (gamma, beta, mean, variance) = (of(1)?, of(2)?, of(3)?, of(4)?);
        let epsilon = f64::from(node.float_or("epsilon", 1e-5).ok()?);
        let scale: Vec<f64> = gamma
            .iter()
            .zip(variance)
            .map(|(g, v)| f64::from(*g) / (f64::from(*v) + epsilon).sqrt())
            .collect();
        let shift = beta
            .iter()
            .zip(mean)
            .zip(&scale)
            .map(|((b, m), s)| (f64::from(*b) - f64::from(*m) * s) as f32)
            .collect();
        return Some((Some(scale.iter().map(|s| *s as f32).collect()), Some(shift)));
    }
    let c = constant(graph, Some(other(node, v)?))?;
    // One value for each channel, or one for all.
    let shape = c.shape();
    if shape.rank() > rank {
        return None;
    }
    let axis = shape.rank().checked_sub(rank - 1);
    let only = |i: usize, d: usize| d == 1 || (Some(i) == axis && d == channels);
    if !shape.iter().enumerate().all(|(i, d)| only(i, *d)) {
        return None;
    }
    let values = c.as_slice::<f32>().ok()?;
    let values: Vec<f32> = match values {
        [one] => vec![*one; channels],
        many => many.to_vec(),
    };
    match node.op.as_str() {
        "Add" if is(node, "Add") => Some((None, Some(values))),
        "Mul" if is(node, "Mul") => Some((Some(values), None)),
        _ => None,
    }
}

/// Output channels of a convolution with constant weights.
fn channels(graph: &Graph, conv: &Node) -> Option<usize> {
    let w = constant(graph, conv.inputs.get(1).copied().flatten())?;
    if is(conv, "ConvTranspose") {
        let groups = usize::try_from(conv.int_or("group", 1).ok()?).ok()?;
        w.shape().get(1)?.checked_mul(groups)
    } else {
        w.shape().first().copied()
    }
}

/// The convolution with scale and offset in its weights and bias; nothing where these are not
/// constant.
fn fold(
    graph: &mut Graph,
    slot: usize,
    scale: &Option<Vec<f32>>,
    shift: &Option<Vec<f32>>,
) -> Result<Option<Node>> {
    let mut node = graph.nodes[slot].clone();
    let Some(channels) = channels(graph, &node) else { return Ok(None) };
    let bias = node.inputs.get(2).copied().flatten();
    let mut new_bias = match (bias, constant(graph, bias)) {
        (None, _) => vec![0.0; channels],
        (Some(_), Some(b)) => b.as_slice::<f32>()?.to_vec(),
        (Some(_), None) => return Ok(None),
    };
    if new_bias.len() != channels {
        return Ok(None);
    }
    if let Some(scale) = scale {
        let Some(w) = constant(graph, node.inputs.get(1).copied().flatten()) else {
            return Ok(None);
        };
        let mut w: Tensor = w.clone();
        // Output channels are the rows of a convolution's weights; of a transposed one's they
        // are the second axis, group by group.
        if is(&node, "ConvTranspose") {
            let per_group = w.shape()[1];
            let rows_per_group = w.shape()[0] / (channels / per_group.max(1)).max(1);
            let taps: usize = w.shape()[2..].iter().product();
            let w = w.as_mut_slice::<f32>()?;
            for (i, run) in w.chunks_mut(taps.max(1)).enumerate() {
                let (row, column) = (i / per_group.max(1), i % per_group.max(1));
                let s = scale[row / rows_per_group.max(1) * per_group + column];
                run.iter_mut().for_each(|x| *x *= s);
            }
        } else {
            let row: usize = w.shape()[1..].iter().product();
            let w = w.as_mut_slice::<f32>()?;
            for (run, s) in w.chunks_mut(row.max(1)).zip(scale) {
                run.iter_mut().for_each(|x| *x *= s);
            }
        }
        new_bias.iter_mut().zip(scale).for_each(|(b, s)| *b *= s);
        let v = add_constant(graph, &format!("{}/weight", node.name), w)?;
        set_input(&mut node, 1, v);
    }
    if let Some(shift) = shift {
        new_bias.iter_mut().zip(shift).for_each(|(b, s)| *b += s);
    }
    if bias.is_some() || shift.is_some() {
        let t = Tensor::new([channels], new_bias)?;
        let v = add_constant(graph, &format!("{}/bias", node.name), t)?;
        set_input(&mut node, 2, v);
    }
    Ok(Some(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Dim, Fact};
    use crate::ops::case::compare;
    use crate::ops::{CompileOptions, Program, RunContext, infer_graph};
    use crate::tensor::Value;

    fn numbers(shape: &[usize], step: usize) -> Tensor {
        let n: usize = shape.iter().product();
        let values = (0..n).map(|i| ((i * step + 1) % 13) as f32 / 8.0 - 0.7).collect();
        Tensor::new(shape, values).unwrap()
    }

    struct Builder(Graph);

    impl Builder {
        fn new() -> (Self, ValueId) {
            let mut g = Graph::new("g");
            let dims = [Dim::symbol("N"), Dim::fixed(4), Dim::fixed(5), Dim::fixed(5)];
            let x = g.add_input("x", Fact::new(DType::F32, dims)).unwrap();
            (Self(g), x)
        }

        fn constant(&mut self, t: Tensor) -> ValueId {
            let name = format!("c{}", self.0.values().len());
            self.0.add_constant(name, t).unwrap()
        }

        fn node(&mut self, op: &str, inputs: &[ValueId]) -> ValueId {
            let n = self.0.values().len();
            let out = self.0.add_value(format!("v{n}"), Fact::unknown()).unwrap();
            self.0.add_node(format!("n{n}"), op, inputs.iter().map(|v| Some(*v)), [Some(out)]);
            out
        }

        fn conv(&mut self, x: ValueId, seed: usize) -> ValueId {
            let w = self.constant(numbers(&[4, 4, 3, 3], seed));
            let y = self.node("Conv", &[x, w]);
            let node = self.0.nodes.last_mut().unwrap();
            node.attributes.insert("pads".to_owned(), Attribute::from(vec![1_i64; 4]));
            y
        }
    }

    fn run_graph(graph: &Graph) -> Vec<Value> {
        let registry = OpRegistry::default();
        let program = Program::compile(graph, &registry, &CompileOptions::default()).unwrap();
        program.run(vec![numbers(&[2, 4, 5, 5], 5).into()], &RunContext::default()).unwrap()
    }

    /// Runs the pass, checks that the outputs stay, and tells the operators that are left.
    fn fuse(mut g: Graph) -> Vec<String> {
        let registry = OpRegistry::default();
        let known = infer_graph(&mut g, &registry).unwrap();
        let before = run_graph(&g);
        run(&mut g, &known, &registry).unwrap();
        g.compact();
        g.validate().unwrap();
        infer_graph(&mut g, &registry).unwrap();
        for (a, b) in run_graph(&g).iter().zip(&before) {
            compare(a.tensor().unwrap(), b.tensor().unwrap(), 1e-5, 1e-5).unwrap();
        }
        g.nodes().iter().map(Node::qualified_op).collect()
    }

    #[test]
    fn offsets_scales_and_activation_go_in() {
        let (mut b, x) = Builder::new();
        let c = b.conv(x, 3);
        let offset = b.constant(numbers(&[1, 4, 1, 1], 2));
        let c = b.node("Add", &[c, offset]);
        let factor = b.constant(numbers(&[4, 1, 1], 4));
        let c = b.node("Mul", &[factor, c]);
        let y = b.node("Relu", &[c]);
        b.0.set_outputs([y]);
        assert_eq!(fuse(b.0), ["brigade.FusedConv"]);
    }

    #[test]
    fn a_residual_goes_in_before_or_after_the_activation() {
        let (mut b, x) = Builder::new();
        let c = b.conv(x, 3);
        let s = b.node("Add", &[x, c]);
        let y = b.node("Relu", &[s]);
        b.0.set_outputs([y]);
        assert_eq!(fuse(b.0), ["brigade.FusedConv"]);
        let (mut b, x) = Builder::new();
        let c = b.conv(x, 3);
        let r = b.node("Sigmoid", &[c]);
        let y = b.node("Add", &[r, x]);
        let z = b.node("Tanh", &[y]);
        b.0.set_outputs([z]);
        assert_eq!(fuse(b.0), ["brigade.FusedConv", "Tanh"]);
    }

    #[test]
    fn two_convolutions_that_meet_keep_their_order() {
        let (mut b, x) = Builder::new();
        let first = b.conv(x, 3);
        let second = b.conv(first, 7);
        let third = b.conv(x, 5);
        let s = b.node("Add", &[second, third]);
        let y = b.node("Relu", &[s]);
        b.0.set_outputs([y]);
        assert_eq!(fuse(b.0), ["Conv", "Conv", "brigade.FusedConv"]);
    }

    #[test]
    fn what_is_read_elsewhere_stays() {
        let (mut b, x) = Builder::new();
        let c = b.conv(x, 3);
        let r = b.node("Relu", &[c]);
        let y = b.node("Add", &[r, c]);
        b.0.set_outputs([y]);
        assert_eq!(fuse(b.0), ["Conv", "Relu", "Add"]);
        let (mut b, x) = Builder::new();
        let c = b.conv(x, 3);
        let r = b.node("Relu", &[c]);
        b.0.set_outputs([c, r]);
        assert_eq!(fuse(b.0), ["Conv", "Relu"]);
    }

    #[test]
    fn a_scale_goes_into_a_grouped_transposed_convolution() {
        let (mut b, x) = Builder::new();
        let w = b.constant(numbers(&[4, 3, 2, 2], 3));
        let c = b.node("ConvTranspose", &[x, w]);
        b.0.nodes.last_mut().unwrap().attributes.insert("group".to_owned(), Attribute::Int(2));
        let factor = b.constant(numbers(&[6, 1, 1], 4));
        let y = b.node("Mul", &[c, factor]);
        b.0.set_outputs([y]);
        assert_eq!(fuse(b.0), ["ConvTranspose"]);
    }
}
