//! What a device refuses of a whole graph: what a node and the facts of its inputs do not tell.

use std::collections::HashSet;

use super::integers::{WIDEST, only_extents};
use super::site::Site;
use super::{Lowering, LoweringOptions, narrowed, row_of};
use crate::error::{Result, bail};
use crate::graph::{Graph, Node, ValueId};
use crate::ops::{OpRegistry, infer_graph};
use crate::tensor::DType;

/// For each node why it cannot run on the device, where what it reads tells so: indices that may lie
/// outside of their axis, whole numbers beyond 32 bits, extents that no kernel takes. `here` says which
/// nodes the device takes by themselves; what the others give comes from another device, and is looked at
/// when it is fed.
///
/// Where extents are not known yet, what follows from them alone is seen when a segment meets them.
pub fn refusals(graph: &Graph, here: &[bool], ops: &OpRegistry) -> Vec<Option<String>> {
    let mut graph = graph.clone();
    let mut out = vec![None; graph.nodes().len()];
    // What inference refuses, no device runs: it is told when the graph is compiled.
    let Ok(known) = infer_graph(&mut graph, ops) else { return out };
    let begun = Lowering::begin(&graph, &known, LoweringOptions::default());
    let Ok(mut lowering) = begun else { return out };
    // What will be constants once extents are known.
    let mut of_extents: HashSet<ValueId> = HashSet::new();
    for ((node, here), why) in graph.nodes().iter().zip(here).zip(&mut out) {
        if node.makes().all(|v| lowering.constants.contains_key(&v)) {
            continue;
        }
        if *here {
            *why = lowering.tried(node).err().map(|e| e.message().to_owned());
        }
        let unknown = |v: &ValueId| !lowering.constants.contains_key(v) && !of_extents.contains(v);
        let follows = !node.is_random() && !node.reads().any(|v| unknown(&v));
        if follows || only_extents(node) {
            of_extents.extend(node.makes());
        }
        if follows || only_extents(node) || !*here || why.is_some() {
            lowering.elsewhere.extend(node.makes());
        }
    }
    out
}

impl Lowering<'_> {
    /// Lowers a node for nothing but to see whether that can be done.
    fn tried(&mut self, node: &Node) -> Result<()> {
        let Some(row) = row_of(node) else { return Ok(()) };
        let reads = || node.inputs.iter().copied().flatten();
        let (read, deciding) = (reads().take(row.reads), reads().skip(row.reads));
        for v in read.clone() {
            let Some(tensor) = self.constants.get(&v) else { continue };
            if tensor.dtype() == DType::I64 {
                narrowed(tensor, None, &self.graph.value(v).name)?;
            }
        }
        let concrete = |v: ValueId| self.graph.value(v).fact.concrete_shape().is_some();
        let known = reads().chain(node.makes()).all(concrete)
            && deciding.clone().all(|v| self.constants.contains_key(&v));
        if known {
            let site = Site::new(self.graph, node, &self.constants, self.options, &self.extras);
            (row.lower)(&site)?;
            return match site.indices.take() {
                Some((input, ranges)) => self.limit_each(input, &ranges),
                None => Ok(()),
            };
        }
        match read.clone().nth(1).filter(|_| row.indexed) {
            Some(indices) if self.limit(indices, WIDEST).is_err() => {
                let info = self.graph.value(indices);
                bail!(
                    Unsupported,
                    "that the indices `{}` lie within the axis is not proven",
                    info.name
                )
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Dim, Fact};
    use crate::ops::builder::{Extent, GraphBuilder};
    use crate::tensor::Tensor;

    fn refused(graph: &Graph) -> Vec<(String, String)> {
        let here = vec![true; graph.nodes().len()];
        let all = refusals(graph, &here, &OpRegistry::default());
        let nodes = graph.nodes().iter().zip(all);
        nodes.filter_map(|(n, why)| Some((n.op.clone(), why?))).collect()
    }

    /// Rows of a table, at places that `indices` makes of an input of whole numbers.
    fn looked_up(
        extent: impl Into<Extent>,
        indices: impl FnOnce(&mut GraphBuilder, ValueId) -> ValueId,
    ) -> Graph {
        let mut g = GraphBuilder::new("g");
        let table = g.input("table", DType::F32, [extent.into(), 4.into()]).unwrap();
        let i = g.input("i", DType::I64, [3.into()]).unwrap();
        let i = indices(&mut g, i);
        let y = g.op("Gather", &[table, i], &[]).unwrap();
        g.finish([("y", y)]).unwrap()
    }

    #[test]
    fn indices_are_followed_back_to_where_they_are_checked() {
        let extents: [fn() -> Extent; 2] = [|| 5.into(), || "N".into()];
        for extent in extents {
            assert_eq!(refused(&looked_up(extent(), |_, i| i)), []);
            let moved = looked_up(extent(), |g, i| g.reshape(i, &[3, 1]).unwrap());
            assert_eq!(refused(&moved), []);
            let made = looked_up(extent(), |g, i| g.op("Max", &[i, i], &[]).unwrap());
            let [(op, why)] = &refused(&made)[..] else { panic!("{made:?}") };
            assert_eq!(op, "Gather");
            assert!(why.contains("not proven"), "{why}");
            // What another device makes is checked when it comes.
            let here = [false, true];
            assert_eq!(refusals(&made, &here, &OpRegistry::default()), [None, None]);
        }
    }

    #[test]
    fn what_follows_from_extents_is_left_until_they_are_known() {
        let of_shape = |g: &mut GraphBuilder, i: ValueId| {
            let n = g.op("Shape", &[i], &[]).unwrap();
            let one = g.constant(Tensor::new([1], vec![-1_i64]).unwrap()).unwrap();
            g.op("Add", &[n, one], &[]).unwrap()
        };
        assert_eq!(refused(&looked_up("N", of_shape)), []);
        let largest = |g: &mut GraphBuilder, i: ValueId| {
            let i = g.op("Cast", &[i], &[("to", 1.into())]).unwrap();
            g.op("ArgMax", &[i], &[]).unwrap()
        };
        assert_eq!(refused(&looked_up("N", largest)), []);
        // The largest of three may be the third, and there are two rows.
        let [(op, why)] = &refused(&looked_up(2, largest))[..] else { panic!("it is taken") };
        assert!(op == "Gather" && why.contains("not proven"), "{op}: {why}");
    }

    #[test]
    fn whole_numbers_of_more_bits_than_there_are_are_refused_where_they_are_read() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::I64, [2.into()]).unwrap();
        let fits = g.constant(Tensor::new([2], vec![7_i64, -7]).unwrap()).unwrap();
        let large = g.constant(Tensor::new([2], vec![7_i64, 1 << 40]).unwrap()).unwrap();
        let y = g.op("Max", &[x, fits], &[]).unwrap();
        let z = g.op("Max", &[y, large], &[]).unwrap();
        let refused = refused(&g.finish([("z", z)]).unwrap());
        let [(_, why)] = &refused[..] else { panic!("{refused:?}") };
        assert!(why.contains("1099511627776 in"), "{why}");
    }

    #[test]
    fn a_graph_that_cannot_be_inferred_is_left_to_who_compiles_it() {
        let mut g = Graph::new("g");
        let x = g.add_input("x", Fact::new(DType::F32, [Dim::of(2)])).unwrap();
        let y = g.add_value("y", Fact::unknown()).unwrap();
        g.add_node("n", "NoSuchOperator", [Some(x)], [Some(y)]);
        g.set_outputs([y]);
        assert_eq!(refusals(&g, &[true], &OpRegistry::default()), [None]);
    }
}
