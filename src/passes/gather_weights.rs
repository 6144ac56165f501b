//! Looks rows of weights up as they are stored, and decodes what was looked up.
//!
//! Exporters write an embedding of bytes as `Gather(Mul(Cast(W), scale), indices)`, which decodes the
//! whole table. `Mul(Cast(Gather(W, indices)), Gather(scale, indices))` has the same bits, and the table
//! stays as narrow as it is.

use super::readers::{constant, free_name, is, output};
use crate::error::Result;
use crate::graph::{Fact, Graph, Node, ValueId};
use crate::ops::OpRegistry;
use crate::ops::infer::Known;
use crate::tensor::Tensor;

/// Tables below this size are decoded: that costs less than two more nodes an item.
const SMALLEST_BYTES: usize = 64 << 10;

/// The longest chain from the stored table to the lookup.
const LONGEST: usize = 4;

pub(super) fn run(graph: &mut Graph, known: &[Known], _: &OpRegistry) -> Result<usize> {
    let mut changes = 0;
    let mut at = 0;
    while at < graph.nodes.len() {
        let Some(lookup) = Lookup::at(graph, known, at) else {
            at += 1;
            continue;
        };
        at += lookup.write(graph, at)?;
        changes += 1;
    }
    Ok(changes)
}

/// A `Gather` of rows of a table that is decoded first.
struct Lookup {
    table: ValueId,
    indices: ValueId,
    /// What decodes the table, first to last: nodes, and how each of their inputs goes with the rows.
    steps: Vec<(Node, Vec<Operand>)>,
}

/// How an input of a decoding node goes with the rows that are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    /// What is decoded.
    Rows,
    /// The same for each row.
    Whole,
    /// One for each row: looked up too.
    ByRow,
}

impl Lookup {
    fn at(graph: &Graph, known: &[Known], at: usize) -> Option<Self> {
        let gather = &graph.nodes[at];
        let [Some(decoded), Some(indices)] = gather.inputs[..] else { return None };
        let by_rows = is(gather, "Gather") && gather.int_or("axis", 0).ok()? == 0;
        if !by_rows || graph.value(indices).constant.is_some() || output(gather).is_none() {
            return None;
        }
        // Of a scalar index the row axis is gone.
        if known.get(indices.index())?.fact.rank()? == 0 {
            return None;
        }
        let makers = |v: ValueId| graph.nodes[..at].iter().find(|n| n.makes().any(|o| o == v));
        let mut chain = Vec::new();
        let mut v = decoded;
        let table = loop {
            if let Some(table) = &graph.value(v).constant {
                break table;
            }
            let node = makers(v).filter(|n| output(n).is_some())?;
            // Whoever else reads the decoded table, or half of the way to it, needs all of it.
            let mut readers = graph.nodes.iter().filter(|n| n.reads().any(|r| r == v));
            let only_lookups = !graph.outputs().contains(&v)
                && if v == decoded {
                    readers.all(|n| is(n, "Gather") && n.int_or("axis", 0).is_ok_and(|a| a == 0))
                } else {
                    readers.count() == 1
                };
            if !only_lookups || chain.len() == LONGEST {
                return None;
            }
            chain.push(node);
            v = decoded_by(graph, node)?;
        };
        let wide = known.get(decoded.index())?.fact.dtype?.size();
        if chain.is_empty()
            || table.rank() < 2
            || table.dtype().size() >= wide
            || table.bytes() < SMALLEST_BYTES
        {
            return None;
        }
        chain.reverse();
        let mut of = v;
        let mut steps = Vec::new();
        for node in chain {
            let operands = node.inputs.iter().map(|input| match input {
                Some(v) if *v == of => Some(Operand::Rows),
                Some(v) => operand(table, graph.value(*v).constant.as_ref()?),
                None => Some(Operand::Whole),
            });
            let operands = operands.collect::<Option<Vec<_>>>()?;
            // Its parameters have no axis that could move with the rows.
            if is(node, "DequantizeLinear")
                && (operands.len() < 2 || operands.contains(&Operand::ByRow))
            {
                return None;
            }
            steps.push((node.clone(), operands));
            of = output(node)?;
        }
        Some(Self { table: v, indices, steps })
    }

    /// Writes it in place of the `Gather` at `at`; returns how many nodes there are now.
    fn write(self, graph: &mut Graph, at: usize) -> Result<usize> {
        let gather = graph.nodes.remove(at);
        let mut written = Vec::new();
        let look_up = |graph: &mut Graph, written: &mut Vec<Node>, what: ValueId| {
            let name = format!("{}/{}", gather.name, graph.value(what).name);
            let rows = new_value(graph, &name)?;
            written.push(Node {
                name: unique_node(graph, written, &name),
                inputs: vec![Some(what), Some(self.indices)],
                outputs: vec![Some(rows)],
                ..gather.clone()
            });
            Ok::<_, crate::Error>(rows)
        };
        let mut rows = look_up(graph, &mut written, self.table)?;
        let last = self.steps.len() - 1;
        for (i, (node, operands)) in self.steps.into_iter().enumerate() {
            let mut inputs = Vec::new();
            for (input, operand) in node.inputs.iter().zip(&operands) {
                inputs.push(match (operand, input) {
                    (Operand::Rows, _) => Some(rows),
                    (Operand::ByRow, Some(v)) => Some(look_up(graph, &mut written, *v)?),
                    _ => *input,
                });
            }
            let name = format!("{}/{}", gather.name, node.name);
            if i < last {
                rows = new_value(graph, &name)?;
            }
            written.push(Node {
                name: unique_node(graph, &written, &name),
                inputs,
                outputs: if i < last { vec![Some(rows)] } else { gather.outputs.clone() },
                ..node
            });
        }
        let count = written.len();
        graph.nodes.splice(at..at, written);
        Ok(count)
    }
}

/// The input that a node decodes element by element.
fn decoded_by(graph: &Graph, node: &Node) -> Option<ValueId> {
    if is(node, "Cast") || is(node, "DequantizeLinear") {
        let whole = node.int_or("block_size", 0).ok()? == 0;
        return node.inputs.first().copied().flatten().filter(|_| whole);
    }
    if !["Mul", "Div", "Add", "Sub"].iter().any(|op| is(node, op)) {
        return None;
    }
    let [Some(a), Some(b)] = node.inputs[..] else { return None };
    match (constant(graph, Some(a)), constant(graph, Some(b))) {
        (None, Some(_)) => Some(a),
        (Some(_), None) => Some(b),
        _ => None,
    }
}

/// How a constant that is broadcast against the table goes with its rows; `None` where it does not.
fn operand(table: &Tensor, constant: &Tensor) -> Option<Operand> {
    let (whole, part) = (table.shape(), constant.shape());
    let skipped = whole.len().checked_sub(part.len())?;
    let fits = whole[skipped..].iter().zip(part.iter()).all(|(w, p)| *p == 1 || p == w);
    match (fits, skipped) {
        (false, _) => None,
        (true, 0) if part[0] != 1 => Some(Operand::ByRow),
        (true, _) => Some(Operand::Whole),
    }
}

fn new_value(graph: &mut Graph, name: &str) -> Result<ValueId> {
    graph.add_value(free_name(graph, name), Fact::unknown())
}

fn unique_node(graph: &Graph, written: &[Node], name: &str) -> String {
    let mut unique = name.to_owned();
    let mut n = 1;
    while graph.nodes.iter().chain(written).any(|node| node.name == unique) {
        n += 1;
        unique = format!("{name}#{n}");
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Attribute;
    use crate::ops::{CompileOptions, Program, RunContext, infer_graph};
    use crate::tensor::{DType, Value};

    const ROWS: usize = 600;
    const WIDTH: usize = 128;

    /// `Gather(Mul(Cast(W), scale), indices)`, and what it gives for some indices.
    fn embedding(scale: &[usize], again: bool) -> Graph {
        let mut g = Graph::new("g");
        let bytes: Vec<i8> = (0..ROWS * WIDTH).map(|i| (i * 7 % 251) as u8 as i8).collect();
        let w = g.add_constant("w", Tensor::new([ROWS, WIDTH], bytes).unwrap()).unwrap();
        let count = scale.iter().product();
        let scales: Vec<f32> = (0..count).map(|i| 0.01 + i as f32 * 0.003).collect();
        let s = g.add_constant("s", Tensor::new(scale, scales).unwrap()).unwrap();
        let fact = Fact::concrete(DType::I64, &[2, 3]);
        let indices = g.add_input("indices", fact).unwrap();
        let [c, m, y, z] = ["c", "m", "y", "z"].map(|n| g.add_value(n, Fact::unknown()).unwrap());
        let cast = g.add_node("cast", "Cast", [Some(w)], [Some(c)]);
        cast.attributes.insert("to".to_owned(), Attribute::Int(1));
        g.add_node("mul", "Mul", [Some(c), Some(s)], [Some(m)]);
        g.add_node("gather", "Gather", [Some(m), Some(indices)], [Some(y)]);
        if again {
            g.add_node("neg", "Neg", [Some(m)], [Some(z)]);
            g.set_outputs([y, z]);
        } else {
            g.set_outputs([y]);
        }
        g
    }

    fn rows(g: &Graph) -> Tensor {
        let registry = OpRegistry::default();
        let mut g = g.clone();
        infer_graph(&mut g, &registry).unwrap();
        let program = Program::compile(&g, &registry, &CompileOptions::default()).unwrap();
        let indices = Tensor::new([2, 3], vec![0i64, 599, 7, 7, -1, 300]).unwrap();
        let mut out = program.run(vec![Value::Tensor(indices)], &RunContext::default()).unwrap();
        match out.swap_remove(0) {
            Value::Tensor(t) => t,
            other => panic!("{other:?}"),
        }
    }

    fn change(g: &mut Graph) -> usize {
        let registry = OpRegistry::default();
        let known = infer_graph(g, &registry).unwrap();
        let changes = run(g, &known, &registry).unwrap();
        g.compact();
        g.validate().unwrap();
        changes
    }

    #[test]
    fn a_table_stays_as_narrow_as_it_is_stored() {
        for (scale, nodes) in [
            (&[ROWS, 1][..], ["Gather", "Cast", "Gather", "Mul"].as_slice()),
            (&[ROWS, WIDTH], &["Gather", "Cast", "Gather", "Mul"]),
            (&[1, WIDTH], &["Gather", "Cast", "Mul"]),
            (&[WIDTH], &["Gather", "Cast", "Mul"]),
            (&[], &["Gather", "Cast", "Mul"]),
        ] {
            let before = embedding(scale, false);
            let mut after = before.clone();
            assert_eq!(change(&mut after), 1, "{scale:?}");
            let ops: Vec<_> = after.nodes().iter().map(|n| n.op.as_str()).collect();
            assert_eq!(ops, nodes, "{scale:?}");
            assert_eq!(rows(&after), rows(&before), "{scale:?}");
            assert_eq!(change(&mut after), 0, "once");
        }
    }

    #[test]
    fn a_table_that_somebody_else_reads_is_decoded() {
        assert_eq!(change(&mut embedding(&[ROWS, 1], true)), 0);
    }

    #[test]
    fn the_other_passes_leave_it_so() {
        let registry = OpRegistry::default();
        let mut g = embedding(&[ROWS, 1], false);
        crate::passes::optimise(&mut g, &registry, &CompileOptions::default()).unwrap();
        let held: usize =
            g.values().iter().filter_map(|v| v.constant.as_ref()).map(Tensor::bytes).sum();
        assert_eq!(held, ROWS * WIDTH + ROWS * 4);
        let options = CompileOptions {
            disabled_passes: vec!["gather-weights".to_owned()],
            ..CompileOptions::default()
        };
        let mut g = embedding(&[ROWS, 1], false);
        crate::passes::optimise(&mut g, &registry, &options).unwrap();
        let held: usize =
            g.values().iter().filter_map(|v| v.constant.as_ref()).map(Tensor::bytes).sum();
        assert_eq!(held, ROWS * WIDTH * 4);
    }
}
