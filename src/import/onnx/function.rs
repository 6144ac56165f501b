//! Model-local functions: each call is replaced by the nodes of the function.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use prost::Message;

use super::graph::{SourceNode, sparse_name, unique};
use super::{Importer, Opsets, domain_of, pb, read_opsets};
use crate::error::{Result, bail, err};

/// A function of the model.
pub(super) struct Function {
    proto: pb::FunctionProto,
    opsets: Rc<Opsets>,
}

impl Importer<'_> {
    /// Takes the model's functions. One that imports no operator sets uses those of the model.
    pub(super) fn add_functions(
        &mut self,
        functions: Vec<pb::FunctionProto>,
        model: &Opsets,
    ) -> Result<()> {
        for proto in functions {
            let name = proto.name.clone().unwrap_or_default();
            let domain = domain_of(proto.domain.as_deref()).to_owned();
            let mut opsets = read_opsets(&proto.opset_import)
                .map_err(|e| e.within(&format!("function `{name}`")))?;
            if opsets.is_empty() {
                opsets = model.clone();
            }
            let key = (domain, name, proto.overload.clone().unwrap_or_default());
            let function = Rc::new(Function { proto, opsets: Rc::new(opsets) });
            if let Some(old) = self.functions.insert(key, function) {
                let name = old.proto.name.clone().unwrap_or_default();
                bail!(Duplicate, "the model has two functions named `{name}`");
            }
        }
        Ok(())
    }

    /// Notes all names of values, so that new ones can be made.
    pub(super) fn take_names(&mut self, graph: &pb::GraphProto) {
        let mut waiting = vec![graph];
        while let Some(graph) = waiting.pop() {
            let ports = graph.input.iter().chain(&graph.output).filter_map(|v| v.name.clone());
            let tensors = graph.initializer.iter().filter_map(|t| t.name.clone());
            let sparse = graph.sparse_initializer.iter().filter_map(sparse_name);
            self.taken.extend(ports.chain(tensors).chain(sparse.map(str::to_owned)));
            for node in &graph.node {
                self.taken.extend(node.input.iter().chain(&node.output).cloned());
                waiting.extend(node.attribute.iter().filter_map(|a| a.g.as_ref()));
            }
        }
    }

    /// Appends `nodes` to `out`, with the calls of functions written out.
    pub(super) fn expand(
        &mut self,
        nodes: Vec<pb::NodeProto>,
        opsets: &Rc<Opsets>,
        depth: usize,
        out: &mut Vec<SourceNode>,
    ) -> Result<()> {
        for proto in nodes {
            self.count_node()?;
            let Some(function) = self.function_of(&proto) else {
                out.push(SourceNode { proto, opsets: Rc::clone(opsets) });
                continue;
            };
            let op = proto.op_type.clone().unwrap_or_default();
            let name = proto.name.clone().unwrap_or_default();
            if depth >= self.limits.max_depth {
                let max = self.limits.max_depth;
                bail!(Limit, "function `{op}` calls functions, or itself, more than {max} deep");
            }
            let body = self.call(&function, &proto).map_err(|e| e.with_node(&name, &op))?;
            self.expand(body, &function.opsets, depth + 1, out)?;
        }
        Ok(())
    }

    fn function_of(&self, node: &pb::NodeProto) -> Option<Rc<Function>> {
        if self.functions.is_empty() {
            return None;
        }
        let key = (
            domain_of(node.domain.as_deref()).to_owned(),
            node.op_type.clone().unwrap_or_default(),
            node.overload.clone().unwrap_or_default(),
        );
        self.functions.get(&key).cloned()
    }

    /// The nodes of `function` for one call, with the caller's names.
    fn call(&mut self, function: &Function, call: &pb::NodeProto) -> Result<Vec<pb::NodeProto>> {
        let f = &function.proto;
        if call.input.len() > f.input.len() || call.output.len() > f.output.len() {
            let (i, o) = (f.input.len(), f.output.len());
            bail!(Format, "the function takes {i} inputs and makes {o} outputs, not more");
        }
        let base = [&call.name, &call.op_type].into_iter().flatten().find(|n| !n.is_empty());
        let prefix = self.prefix(base.map_or("function", String::as_str))?;

        let mut names: HashMap<String, String> = HashMap::new();
        for (i, formal) in f.input.iter().enumerate() {
            let actual = call.input.get(i).cloned().unwrap_or_default();
            if names.insert(formal.clone(), actual).is_some() {
                bail!(Duplicate, "the function has two inputs named `{formal}`");
            }
        }
        // An output that is an input, or is there twice, needs a node that copies it.
        let mut copies = Vec::new();
        let made: HashSet<&str> =
            f.node.iter().flat_map(|n| &n.output).map(String::as_str).collect();
        for (i, formal) in f.output.iter().enumerate() {
            let Some(actual) = call.output.get(i).filter(|o| !o.is_empty()) else { continue };
            if made.contains(formal.as_str()) && !names.contains_key(formal) {
                names.insert(formal.clone(), actual.clone());
            } else {
                copies.push((formal, actual));
            }
        }
        for output in f.node.iter().flat_map(|n| &n.output) {
            if !output.is_empty() && !names.contains_key(output) {
                let new = self.new_name(&prefix, output)?;
                names.insert(output.clone(), new);
            }
        }
        let mut body = Body { prefix, call, function: f, names: vec![names] };
        let mut nodes = Vec::with_capacity(f.node.len() + copies.len());
        for node in &f.node {
            nodes.push(body.node(self, node)?);
        }
        for (formal, actual) in copies {
            nodes.push(pb::NodeProto {
                input: vec![body.lookup(formal)?],
                output: vec![actual.clone()],
                op_type: Some("Identity".to_owned()),
                ..Default::default()
            });
        }
        Ok(nodes)
    }

    /// What the names of one call start with.
    fn prefix(&mut self, base: &str) -> Result<String> {
        let count = self.calls.entry(base.to_owned()).or_insert(0);
        *count += 1;
        let prefix = if *count == 1 { base.to_owned() } else { format!("{base}_{count}") };
        self.count_written(prefix.len())?;
        Ok(prefix)
    }

    fn new_name(&mut self, prefix: &str, name: &str) -> Result<String> {
        let new = unique(format!("{prefix}/{name}"), &mut self.taken);
        self.count_written(new.len())?;
        Ok(new)
    }

    /// A small file can call large functions often, so that what is written out has a cap.
    fn count_written(&mut self, bytes: usize) -> Result<()> {
        self.written_bytes = self.written_bytes.saturating_add(bytes as u64);
        if self.written_bytes > self.limits.max_bytes {
            bail!(Limit, "the model's functions, written out, are too large");
        }
        Ok(())
    }
}

/// One call that is being written out.
struct Body<'a> {
    prefix: String,
    call: &'a pb::NodeProto,
    function: &'a pb::FunctionProto,
    /// New names by old, of the function and of the subgraphs at hand within it.
    names: Vec<HashMap<String, String>>,
}

impl Body<'_> {
    fn lookup(&self, name: &str) -> Result<String> {
        if name.is_empty() {
            return Ok(String::new());
        }
        self.names.iter().rev().find_map(|m| m.get(name)).cloned().ok_or_else(|| {
            err!(Graph, "the function reads `{name}`, which nothing in it makes")
                .with_help("a function sees only its own inputs")
        })
    }

    fn node(&mut self, importer: &mut Importer<'_>, node: &pb::NodeProto) -> Result<pb::NodeProto> {
        let all = |names: &[String]| names.iter().map(|n| self.lookup(n)).collect::<Result<_>>();
        let (input, output) = (all(&node.input)?, all(&node.output)?);
        let own = node.name.as_deref().unwrap_or_default();
        let name = match own {
            "" => None,
            own => {
                let name = format!("{}/{own}", self.prefix);
                importer.count_written(name.len())?;
                Some(name)
            }
        };
        let mut attribute = Vec::with_capacity(node.attribute.len());
        for a in &node.attribute {
            attribute.extend(self.attribute(importer, a)?);
        }
        Ok(pb::NodeProto {
            input,
            output,
            name,
            attribute,
            op_type: node.op_type.clone(),
            domain: node.domain.clone(),
            overload: node.overload.clone(),
            ..Default::default()
        })
    }

    /// The attribute with the caller's value, if it refers to one; `None` if that is left out.
    fn attribute(
        &mut self,
        importer: &mut Importer<'_>,
        a: &pb::AttributeProto,
    ) -> Result<Option<pb::AttributeProto>> {
        if let Some(wanted) = a.ref_attr_name.as_deref().filter(|n| !n.is_empty()) {
            let given = self.call.attribute.iter().chain(&self.function.attribute_proto);
            let mut found = given.filter(|g| g.name.as_deref() == Some(wanted));
            let Some(given) = found.next() else { return Ok(None) };
            importer.count_written(given.encoded_len())?;
            return Ok(Some(pb::AttributeProto { name: a.name.clone(), ..given.clone() }));
        }
        importer.count_written(a.encoded_len())?;
        if !a.graphs.is_empty() {
            // Refused later, by name.
            return Ok(Some(a.clone()));
        }
        let Some(graph) = &a.g else { return Ok(Some(a.clone())) };
        let graph = self.subgraph(importer, graph)?;
        Ok(Some(pb::AttributeProto {
            name: a.name.clone(),
            r#type: a.r#type,
            g: Some(graph),
            ..Default::default()
        }))
    }

    fn subgraph(
        &mut self,
        importer: &mut Importer<'_>,
        graph: &pb::GraphProto,
    ) -> Result<pb::GraphProto> {
        let inputs = graph.input.iter().filter_map(|v| v.name.as_ref());
        let tensors = graph.initializer.iter().filter_map(|t| t.name.as_ref());
        let sparse = graph.sparse_initializer.iter().filter_map(|s| s.values.as_ref());
        let sparse = sparse.filter_map(|v| v.name.as_ref());
        let made = graph.node.iter().flat_map(|n| &n.output);
        let mut names = HashMap::new();
        for name in inputs.chain(tensors).chain(sparse).chain(made).filter(|n| !n.is_empty()) {
            if !names.contains_key(name) {
                names.insert(name.clone(), importer.new_name(&self.prefix, name)?);
            }
        }
        self.names.push(names);
        let mut out = pb::GraphProto {
            name: graph.name.clone(),
            initializer: graph.initializer.clone(),
            sparse_initializer: graph.sparse_initializer.clone(),
            input: graph.input.clone(),
            output: graph.output.clone(),
            ..Default::default()
        };
        let ports = out.input.iter_mut().chain(&mut out.output).map(|v| &mut v.name);
        let sparse = out.sparse_initializer.iter_mut().filter_map(|s| s.values.as_mut());
        let tensors = out.initializer.iter_mut().chain(sparse).map(|t| &mut t.name);
        for name in ports.chain(tensors).flatten() {
            *name = self.lookup(name)?;
        }
        for node in &graph.node {
            // Counted here too, since a body may hold many nodes and be called often.
            importer.count_node()?;
            out.node.push(self.node(importer, node)?);
        }
        self.names.pop();
        Ok(out)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use prost::Message;

    use super::super::tests::*;
    use super::*;
    use crate::ErrorKind;
    use crate::import::{Limits, from_bytes};

    pub(in super::super) fn function(
        name: &str,
        inputs: &[&str],
        nodes: Vec<pb::NodeProto>,
        outputs: &[&str],
    ) -> pb::FunctionProto {
        pb::FunctionProto {
            name: Some(name.to_owned()),
            domain: Some("local".to_owned()),
            input: inputs.iter().map(|&s| s.to_owned()).collect(),
            output: outputs.iter().map(|&s| s.to_owned()).collect(),
            node: nodes,
            opset_import: vec![opset("", 13), opset("local", 1)],
            ..Default::default()
        }
    }

    pub(in super::super) fn call(op: &str, inputs: &[&str], outputs: &[&str]) -> pb::NodeProto {
        pb::NodeProto { domain: Some("local".to_owned()), ..node(op, inputs, outputs) }
    }

    #[test]
    fn functions_are_written_out() {
        let mut inner = function(
            "Scaled",
            &["x", "bias"],
            vec![
                with(node("Foo", &["x", "bias"], &["t"]), reference("axis", "which")),
                with(node("Bar", &["t"], &["out"]), reference("k", "missing")),
            ],
            &["out"],
        );
        inner.attribute_proto = vec![int("which", 5)];
        let outer = function(
            "Twice",
            &["x"],
            vec![
                with(call("Scaled", &["x", "x"], &["t"]), int("which", 9)),
                call("Scaled", &["t"], &["y"]),
            ],
            &["y", "x"],
        );
        let mut m = model(body(
            &["x"],
            vec![named("f", call("Twice", &["x"], &["a", "copy"])), call("Twice", &["a"], &["y"])],
            &["y", "copy"],
        ));
        m.functions = vec![inner, outer];
        let graph = graph_of(&m);
        let ops: Vec<_> = graph.nodes().iter().map(|n| n.op.as_str()).collect();
        assert_eq!(ops, ["Foo", "Bar", "Foo", "Bar", "Identity", "Foo", "Bar", "Foo", "Bar"]);
        let axes: Vec<_> = graph.nodes().iter().filter_map(|n| n.int("axis").unwrap()).collect();
        assert_eq!(axes, [9, 5, 9, 5]);
        assert!(graph.nodes().iter().all(|n| n.version == 13 && !n.attributes.contains_key("k")));
        assert_eq!(names(&graph, &graph.nodes()[0]), ["x", "x"]);
        assert_eq!(names(&graph, &graph.nodes()[2])[1], "", "the bias is left out");
        assert_eq!(names(&graph, &graph.nodes()[5])[0], "a");
        assert_eq!(graph.output_names().collect::<Vec<_>>(), ["y", "copy"]);
    }

    #[test]
    fn subgraphs_of_functions_keep_their_names_apart() {
        // The function's subgraph has a value called `w`, and so has the caller, for the input.
        let inner =
            body(&[], vec![node("Neg", &["x"], &["w"]), node("Add", &["w", "x"], &["r"])], &["r"]);
        let f = function(
            "F",
            &["c", "x"],
            vec![with(node("If", &["c"], &["y"]), subgraph("then_branch", inner))],
            &["y"],
        );
        let mut m = model(body(&["c", "w"], vec![call("F", &["c", "w"], &["y"])], &["y"]));
        m.functions = vec![f];
        let graph = graph_of(&m);
        let n = &graph.nodes()[0];
        assert_eq!(names(&graph, n), ["c", "w"]);
        let then = sub(n, "then_branch");
        let add = &then.nodes()[1];
        assert_eq!(add.inputs[0], then.nodes()[0].outputs[0]);
        assert_eq!(add.inputs[1], Some(then.inputs()[0]));
    }

    #[test]
    fn constants_take_their_value_from_the_call() {
        let f = function(
            "F",
            &[],
            vec![with(node("Constant", &[], &["c"]), reference("value_int", "k"))],
            &["c"],
        );
        let mut m = model(body(&[], vec![with(call("F", &[], &["y"]), int("k", 42))], &["y"]));
        m.functions = vec![f];
        let graph = graph_of(&m);
        let y = graph.value(graph.outputs()[0]);
        assert_eq!(y.constant.as_ref().unwrap().item::<i64>().unwrap(), 42);
        // Outside of a function there is nothing to refer to.
        let stray = with(node("Foo", &[], &["y"]), reference("axis", "k"));
        assert_eq!(error_of(&model(body(&[], vec![stray], &["y"]))).kind(), ErrorKind::Format);
    }

    #[test]
    fn runaway_functions_are_stopped() {
        let mut m = model(body(&["x"], vec![call("F", &["x"], &["y"])], &["y"]));
        m.functions = vec![function("F", &["x"], vec![call("F", &["x"], &["y"])], &["y"])];
        let error = error_of(&m);
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.to_string().contains('F'), "{error}");
        // Sixteen functions that each call the next one sixteen times.
        m.functions = (0..16)
            .map(|i| {
                let next = if i == 15 { "G".to_owned() } else { format!("F{}", i + 1) };
                let calls = (0..16)
                    .map(|k| {
                        call(
                            &next,
                            &["x"],
                            &[if k == 0 { "y".to_owned() } else { format!("y{k}") }.as_str()],
                        )
                    })
                    .collect();
                function(
                    &if i == 0 { "F".to_owned() } else { format!("F{i}") },
                    &["x"],
                    calls,
                    &["y"],
                )
            })
            .collect();
        let limits = Limits { max_nodes: 10_000, ..Limits::default() };
        let error = from_bytes(&m.encode_to_vec(), None, &limits).map(|i| i.graph).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
    }
}
