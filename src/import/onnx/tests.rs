//! Models made by hand, message by message.

use prost::Message;
use prost::bytes::Bytes;

use super::pb;
use super::pb::attribute_proto::AttributeType;
use crate::ErrorKind;
use crate::graph::{Attribute, Graph, Node};
use crate::import::{Imported, Limits, from_bytes};
use crate::ops::OpRegistry;
use crate::{DType, Error};

pub(super) fn import(model: &pb::ModelProto) -> Result<Imported, Error> {
    from_bytes(&model.encode_to_vec(), None, &Limits::default())
}

pub(super) fn graph_of(model: &pb::ModelProto) -> Graph {
    import(model).unwrap_or_else(|e| panic!("{e}")).graph
}

pub(super) fn error_of(model: &pb::ModelProto) -> Error {
    import(model).map(|i| i.graph).unwrap_err()
}

pub(super) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> pb::NodeProto {
    pb::NodeProto {
        op_type: Some(op.to_owned()),
        input: inputs.iter().map(|&s| s.to_owned()).collect(),
        output: outputs.iter().map(|&s| s.to_owned()).collect(),
        ..Default::default()
    }
}

pub(super) fn named(name: &str, mut node: pb::NodeProto) -> pb::NodeProto {
    node.name = Some(name.to_owned());
    node
}

pub(super) fn with(mut node: pb::NodeProto, attribute: pb::AttributeProto) -> pb::NodeProto {
    node.attribute.push(attribute);
    node
}

pub(super) fn subgraph(key: &str, graph: pb::GraphProto) -> pb::AttributeProto {
    pb::AttributeProto {
        name: Some(key.to_owned()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(graph),
        ..Default::default()
    }
}

pub(super) fn int(key: &str, value: i64) -> pb::AttributeProto {
    pb::AttributeProto {
        name: Some(key.to_owned()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(value),
        ..Default::default()
    }
}

pub(super) fn reference(key: &str, to: &str) -> pb::AttributeProto {
    pb::AttributeProto { i: None, ref_attr_name: Some(to.to_owned()), ..int(key, 0) }
}

pub(super) fn value(name: &str) -> pb::ValueInfoProto {
    pb::ValueInfoProto { name: Some(name.to_owned()), ..Default::default() }
}

pub(super) fn shaped(name: &str, dims: &[Result<i64, &str>]) -> pb::ValueInfoProto {
    use pb::tensor_shape_proto::{Dimension, dimension};
    let dim = dims
        .iter()
        .map(|d| Dimension {
            value: Some(match d {
                Ok(n) => dimension::Value::DimValue(*n),
                Err(s) => dimension::Value::DimParam((*s).to_owned()),
            }),
            ..Default::default()
        })
        .collect();
    let tensor =
        pb::type_proto::Tensor { elem_type: Some(1), shape: Some(pb::TensorShapeProto { dim }) };
    pb::ValueInfoProto {
        r#type: Some(pb::TypeProto {
            value: Some(pb::type_proto::Value::TensorType(tensor)),
            ..Default::default()
        }),
        ..value(name)
    }
}

pub(super) fn floats(name: &str, data: &[f32]) -> pb::TensorProto {
    pb::TensorProto {
        name: Some(name.to_owned()),
        dims: vec![data.len() as i64],
        data_type: Some(DType::F32 as i32),
        raw_data: Some(Bytes::copy_from_slice(bytemuck::cast_slice(data))),
        ..Default::default()
    }
}

pub(super) fn body(inputs: &[&str], nodes: Vec<pb::NodeProto>, outputs: &[&str]) -> pb::GraphProto {
    pb::GraphProto {
        name: Some("g".to_owned()),
        input: inputs.iter().map(|n| value(n)).collect(),
        output: outputs.iter().map(|n| value(n)).collect(),
        node: nodes,
        ..Default::default()
    }
}

pub(super) fn opset(domain: &str, version: i64) -> pb::OperatorSetIdProto {
    pb::OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) }
}

pub(super) fn model(graph: pb::GraphProto) -> pb::ModelProto {
    pb::ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset("", 17)],
        graph: Some(graph),
        ..Default::default()
    }
}

pub(super) fn names(graph: &Graph, node: &Node) -> Vec<String> {
    node.inputs
        .iter()
        .map(|v| v.map_or_else(String::new, |v| graph.value(v).name.clone()))
        .collect()
}

pub(super) fn sub<'a>(node: &'a Node, key: &str) -> &'a Graph {
    node.graph(key).unwrap().unwrap()
}

pub(super) fn input_names(graph: &Graph) -> Vec<&str> {
    graph.input_names().collect()
}

#[test]
fn a_model_becomes_a_graph() {
    let mut g = body(&[], vec![named("sum", node("Add", &["x", "w"], &["y"]))], &["y"]);
    g.input = vec![shaped("x", &[Err("N"), Ok(2)])];
    g.initializer = vec![floats("w", &[1.0, 2.0])];
    let mut m = model(g);
    m.producer_name = Some("someone".to_owned());
    m.metadata_props = vec![pb::StringStringEntryProto {
        key: Some("author".to_owned()),
        value: Some("me".to_owned()),
    }];
    let graph = graph_of(&m);
    let add = &graph.nodes()[0];
    assert_eq!((add.op.as_str(), add.version, add.name.as_str()), ("Add", 17, "sum"));
    assert_eq!(names(&graph, add), ["x", "w"]);
    assert_eq!(graph.value(graph.inputs()[0]).fact.to_string(), "f32[N,2]");
    let w = graph.value(graph.find("w").unwrap()).constant.as_ref().unwrap();
    assert_eq!(w.as_slice::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(graph.metadata["onnx.producer_name"], "someone");
    assert_eq!(graph.metadata["author"], "me");
}

#[test]
fn unnamed_extents_are_symbols_of_their_own() {
    let mut g = body(&[], vec![node("Foo", &["x", "y"], &["z"])], &["z"]);
    g.input = vec![
        shaped("x", &[Err("?"), Err("?"), Ok(-1), Err(""), Err("a b"), Err("seq"), Ok(0)]),
        shaped("y", &[Err("seq"), Err("?")]),
    ];
    let graph = graph_of(&model(g));
    let shapes: Vec<_> =
        graph.inputs().iter().flat_map(|v| graph.value(*v).fact.shape.clone().unwrap()).collect();
    let mut unique = shapes.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), 8, "only `seq` is there twice: {shapes:?}");
    assert_eq!((shapes[5].as_symbol(), shapes[6].as_fixed()), (Some("seq"), Some(0)));
    assert_eq!(shapes[7], shapes[5]);
}

#[test]
fn initialisers_that_are_inputs_are_constants() {
    let mut g = body(&["x", "w"], vec![node("Add", &["x", "w"], &["y"])], &["y"]);
    g.initializer = vec![floats("w", &[1.0])];
    let mut m = model(g);
    let imported = import(&m).unwrap();
    assert_eq!(input_names(&imported.graph), ["x"]);
    assert!(imported.notices[0].contains('w'), "{:?}", imported.notices);
    m.ir_version = Some(3);
    assert_eq!(import(&m).unwrap().notices, Vec::<String>::new());
}

#[test]
fn constant_nodes_of_every_kind() {
    let empty = pb::AttributeProto::default;
    let kinds = [
        ("value", pb::AttributeProto { t: Some(floats("", &[1.5])), ..empty() }),
        ("value_int", pb::AttributeProto { i: Some(7), ..empty() }),
        ("value_ints", pb::AttributeProto { ints: vec![7, 8], ..empty() }),
        ("value_float", pb::AttributeProto { f: Some(0.5), ..empty() }),
        ("value_floats", pb::AttributeProto { floats: vec![0.5], ..empty() }),
        ("value_string", pb::AttributeProto { s: Some(Bytes::from("é")), ..empty() }),
        ("value_strings", pb::AttributeProto { strings: vec![Bytes::from("a")], ..empty() }),
    ];
    let want = ["f32[1]", "i64[]", "i64[2]", "f32[]", "f32[1]", "string[]", "string[1]"];
    for ((key, mut attribute), want) in kinds.into_iter().zip(want) {
        attribute.name = Some(key.to_owned());
        let graph = graph_of(&model(body(
            &[],
            vec![with(node("Constant", &[], &["c"]), attribute)],
            &["c"],
        )));
        assert!(graph.nodes().is_empty());
        let c = graph.value(graph.outputs()[0]);
        assert_eq!(c.constant.as_ref().unwrap().describe(), want, "{key}");
        assert_eq!(c.fact.to_string(), want);
    }
    let bad = body(&[], vec![named("k", node("Constant", &[], &["c"]))], &["c"]);
    assert_eq!(error_of(&model(bad)).node(), Some("k"));
}

#[test]
fn names_are_made_and_made_unique() {
    let nodes = vec![
        node("Relu", &["x"], &["a"]),
        named("n", node("Relu", &["a"], &["b"])),
        named("n", node("Relu", &["b"], &["c"])),
        named("Relu_0", node("Relu", &["c"], &["名前/ü"])),
    ];
    let imported = import(&model(body(&["x"], nodes, &["名前/ü"]))).unwrap();
    let got: Vec<_> = imported.graph.nodes().iter().map(|n| n.name.as_str()).collect();
    assert_eq!(got, ["Relu_1", "n", "n_2", "Relu_0"]);
    assert!(imported.notices[0].contains("`n_2`"), "{:?}", imported.notices);
}

#[test]
fn nodes_are_sorted_and_cycles_named() {
    let nodes = vec![
        named("late", node("Relu", &["a"], &["b"])),
        named("early", node("Relu", &["x"], &["a"])),
    ];
    let imported = import(&model(body(&["x"], nodes, &["b"]))).unwrap();
    assert_eq!(imported.graph.nodes()[0].name, "early");
    assert!(imported.notices[0].contains("sorted"));

    let cycle = vec![
        named("one", node("Add", &["x", "b"], &["a"])),
        named("two", node("Relu", &["a"], &["b"])),
    ];
    let error = error_of(&model(body(&["x"], cycle, &["b"])));
    assert_eq!(error.kind(), ErrorKind::Graph);
    assert!(error.message().contains("cycle through `one`"), "{error}");

    // A node whose subgraph reads what the node makes.
    let inner = body(&[], vec![node("Relu", &["y"], &["i"])], &["i"]);
    let own = named("self", with(node("If", &["c"], &["y"]), subgraph("then_branch", inner)));
    let error = error_of(&model(body(&["c"], vec![own], &["y"])));
    assert!(error.message().contains("cycle through `self`"), "{error}");
}

#[test]
fn faults_of_names_are_errors() {
    let twice = vec![node("Relu", &["x"], &["y"]), node("Relu", &["x"], &["y"])];
    let cases = [
        (body(&["x"], twice, &["y"]), ErrorKind::Duplicate, "`y`"),
        (body(&["x", "x"], vec![], &["x"]), ErrorKind::Duplicate, "`x`"),
        (body(&["x"], vec![node("Relu", &["q"], &["y"])], &["y"]), ErrorKind::Graph, "`q`"),
        (body(&["x"], vec![], &["y"]), ErrorKind::Graph, "`y`"),
        (body(&["x"], vec![node("", &["x"], &["y"])], &["y"]), ErrorKind::Format, "no operator"),
        (body(&[""], vec![], &[]), ErrorKind::Format, "no name"),
    ];
    for (graph, kind, word) in cases {
        let error = error_of(&model(graph));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let repeated = with(with(node("Foo", &["x"], &["y"]), int("k", 1)), int("k", 2));
    assert!(error_of(&model(body(&["x"], vec![repeated], &["y"]))).message().contains("`k`"));
}

#[test]
fn optional_inputs_and_outputs_may_be_left_out() {
    let n = node("Foo", &["x", "", "x", ""], &["", "y"]);
    let graph = graph_of(&model(body(&["x"], vec![n], &["y"])));
    let n = &graph.nodes()[0];
    assert_eq!(names(&graph, n), ["x", "", "x", ""]);
    assert_eq!((n.outputs[0], n.outputs[1].is_some()), (None, true));
}

#[test]
fn operator_sets_are_looked_up_by_domain() {
    let mut other = node("Bar", &["x"], &["y"]);
    other.domain = Some("org.example".to_owned());
    let mut aliased = node("Relu", &["y"], &["z"]);
    aliased.domain = Some("ai.onnx".to_owned());
    let mut m = model(body(&["x"], vec![other, aliased], &["z"]));
    // Without a version the model is read; that it cannot be run is told with all else.
    assert_eq!(graph_of(&m).nodes()[0].version, Node::UNDECLARED);
    m.opset_import.extend([opset("org.example", 3), opset("unused", 1)]);
    let graph = graph_of(&m);
    let versions: Vec<_> = graph.nodes().iter().map(|n| (n.qualified_op(), n.version)).collect();
    assert_eq!(versions, [("org.example.Bar".to_owned(), 3), ("Relu".to_owned(), 17)]);
    m.opset_import.push(opset("ai.onnx", 12));
    assert_eq!(error_of(&m).kind(), ErrorKind::Format);
}

#[test]
fn all_that_is_missing_is_told_at_once() {
    let mut foreign = named("far", node("Bar", &["x"], &["a"]));
    foreign.domain = Some("org.example".to_owned());
    let mut fused = named("fused", node("FusedMatMul", &["x", "x"], &["b"]));
    fused.domain = Some("com.microsoft".to_owned());
    let mut undeclared = model(body(
        &["x"],
        vec![
            foreign,
            fused,
            named("odd", with(with(node("Relu", &["x"], &["c"]), int("shade", 1)), int("hue", 1))),
            named("gone", node("Rexu", &["x"], &["d"])),
        ],
        &["a", "b", "c", "d"],
    ));
    let told = [
        ("org.example", "far"),
        ("com.microsoft", "fused"),
        ("`shade`", "odd"),
        ("`hue`", "odd"),
        ("Rexu", "gone"),
    ];
    let error = OpRegistry::default().check(&graph_of(&undeclared)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for (what, whose) in told {
        let line = error.message().lines().find(|l| l.contains(what) && l.contains(whose));
        assert!(line.is_some(), "{what}: {error}");
    }
    let declare = "no version of the operator set `com.microsoft` is imported";
    assert!(error.message().contains(declare), "{error}");
    // The same beside what cannot even be read.
    let g = undeclared.graph.as_mut().unwrap();
    g.initializer = vec![pb::TensorProto { data_type: Some(26), ..floats("two", &[1.0]) }];
    let error = error_of(&undeclared);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for (what, _) in told.into_iter().chain([("`two`", "")]) {
        assert!(error.message().contains(what), "{what}: {error}");
    }
}

/// Before version 4, initialisers are inputs as well; before version 3, there is no opset import.
#[test]
fn old_models_are_read() {
    for ir in [1, 2, 3] {
        let mut g = body(&["x", "w"], vec![node("Add", &["x", "w"], &["y"])], &["y"]);
        g.initializer = vec![floats("w", &[1.0])];
        let mut m = model(g);
        m.ir_version = Some(ir);
        if ir < 3 {
            m.opset_import.clear();
        }
        let imported = import(&m).unwrap();
        assert_eq!(input_names(&imported.graph), ["x"], "{ir}");
        assert_eq!(imported.notices, Vec::<String>::new(), "{ir}");
        let version = if ir < 3 { 1 } else { 17 };
        assert_eq!(imported.graph.nodes()[0].version, version, "{ir}");
        // Some writers of that time left them out of the inputs, against the standard.
        m.graph.as_mut().unwrap().input.pop();
        assert_eq!(input_names(&graph_of(&m)), ["x"], "{ir}");
    }
}

#[test]
fn captures_are_the_same_inputs_of_all_subgraphs() {
    // `then` reads a and b, `else` reads b and has a value called `a` of its own.
    let then = body(&[], vec![node("Add", &["b", "a"], &["t"])], &["t"]);
    let other = body(&[], vec![node("Neg", &["b"], &["a"]), node("Relu", &["a"], &["e"])], &["e"]);
    let n = with(node("If", &["c"], &["y"]), subgraph("then_branch", then));
    let n = with(n, subgraph("else_branch", other));
    let graph = graph_of(&model(body(&["c", "a", "b"], vec![n], &["y"])));
    let n = &graph.nodes()[0];
    // The order is that of the attributes' names: else before then.
    assert_eq!(names(&graph, n), ["c", "b", "a"]);
    assert_eq!(n.captures, 2);
    assert_eq!(input_names(sub(n, "then_branch")), ["b", "a"]);
    let other = sub(n, "else_branch");
    assert_eq!(input_names(other), ["b", "a_2"], "the inner `a` keeps its name");
    assert_eq!(names(other, &other.nodes()[1]), ["a"]);
    assert_ne!(other.nodes()[1].inputs[0], Some(other.inputs()[1]));
}

#[test]
fn captures_come_after_formal_inputs_and_through_every_level() {
    let deep = body(&[], vec![node("Add", &["x", "carried"], &["d"])], &["d"]);
    let inner = with(node("If", &["go"], &["next"]), subgraph("then_branch", deep));
    let loop_body = body(&["i", "go", "carried"], vec![inner], &["go", "next"]);
    let n = with(node("Loop", &["n", "", "init"], &["y"]), subgraph("body", loop_body));
    let graph = graph_of(&model(body(&["n", "init", "x"], vec![n], &["y"])));
    let n = &graph.nodes()[0];
    assert_eq!(
        (names(&graph, n), n.captures),
        (["n", "", "init", "x"].map(str::to_owned).to_vec(), 1)
    );
    let loop_body = sub(n, "body");
    assert_eq!(input_names(loop_body), ["i", "go", "carried", "x"]);
    let inner = &loop_body.nodes()[0];
    assert_eq!((names(loop_body, inner).join(" "), inner.captures), ("go x carried".to_owned(), 2));
    assert_eq!(input_names(sub(inner, "then_branch")), ["x", "carried"]);
}

#[test]
fn subgraphs_may_hand_out_what_they_did_not_make() {
    let then = body(&[], vec![], &["x"]);
    let mut other = body(&[], vec![], &["w"]);
    other.output.push(value("w"));
    other.output.pop();
    let n = with(node("If", &["c"], &["y"]), subgraph("then_branch", then));
    let n = with(n, subgraph("else_branch", other));
    let mut g = body(&["c", "x"], vec![n], &["y"]);
    g.initializer = vec![floats("w", &[3.0])];
    let graph = graph_of(&model(g));
    let n = &graph.nodes()[0];
    assert_eq!(names(&graph, n), ["c", "x"], "a constant is not captured");
    let (then, other) = (sub(n, "then_branch"), sub(n, "else_branch"));
    assert_eq!(then.outputs(), then.inputs());
    let (inner, outer) = (other.value(other.outputs()[0]), graph.value(graph.find("w").unwrap()));
    let buffers = [inner, outer].map(|v| v.constant.as_ref().unwrap().buffer().clone());
    assert!(buffers[0].same_memory(&buffers[1]));
    let identity = body(&["i", "go", "v"], vec![], &["go", "v"]);
    let n = with(node("Loop", &["n", "", "x"], &["y"]), subgraph("body", identity));
    graph_of(&model(body(&["n", "x"], vec![n], &["y"])));
}

#[test]
fn inner_names_hide_outer_ones_before_they_are_made() {
    let nodes = vec![named("user", node("Relu", &["x"], &["t"])), node("Foo", &[], &["x"])];
    let n = with(node("If", &["c"], &["y"]), subgraph("then_branch", body(&[], nodes, &["t"])));
    let graph = graph_of(&model(body(&["c", "x"], vec![n], &["y"])));
    assert_eq!(graph.nodes()[0].captures, 0);
    assert_eq!(sub(&graph.nodes()[0], "then_branch").nodes()[1].name, "user");
}

#[test]
fn errors_in_subgraphs_have_a_path() {
    let inner = body(&[], vec![named("deep", node("Relu", &["nowhere"], &["t"]))], &["t"]);
    let n = named("outer", with(node("If", &["c"], &["y"]), subgraph("then_branch", inner)));
    let error = error_of(&model(body(&["c"], vec![n], &["y"])));
    assert_eq!((error.node(), error.op()), (Some("outer/deep"), Some("Relu")));
}

#[test]
fn what_no_graph_can_hold_is_listed_together() {
    let unreadable = pb::TensorProto { data_type: Some(26), ..floats("s", &[1.0]) };
    let sparse = pb::SparseTensorProto { values: Some(unreadable), ..Default::default() };
    let kind = pb::AttributeProto {
        name: Some("type".to_owned()),
        r#type: Some(AttributeType::SparseTensors as i32),
        ..Default::default()
    };
    let mut g =
        body(&["x"], vec![named("opt", with(node("Optional", &["x"], &["y"]), kind))], &["y"]);
    g.sparse_initializer = vec![sparse];
    g.initializer = vec![pb::TensorProto { data_type: Some(26), ..floats("two", &[1.0]) }];
    let error = error_of(&model(g));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for word in ["sparse initialiser `s`", "attribute `type` of node `opt`", "`two`", "int2"] {
        assert!(error.message().contains(word), "{word}: {error}");
    }
}

#[test]
fn limits_hold() {
    let relu = |i: usize| node("Relu", &[&format!("v{i}")], &[&format!("v{}", i + 1)]);
    let chain = model(body(&["v0"], (0..8).map(relu).collect(), &["v8"]));
    let mut nested = body(&[], vec![], &["x"]);
    for _ in 0..6 {
        nested = body(&[], vec![with(node("If", &["x"], &["y"]), subgraph("b", nested))], &["y"]);
    }
    nested.input = vec![value("x")];
    let mut weights = body(&["x"], vec![], &["x"]);
    weights.initializer = vec![floats("w", &[0.0; 100]), floats("v", &[0.0; 100])];
    weights.initializer.push(pb::TensorProto { dims: vec![1; 9], ..floats("u", &[0.0]) });
    let cases = [
        (chain.clone(), Limits { max_nodes: 7, ..Limits::default() }),
        (chain.clone(), Limits { max_values: 8, ..Limits::default() }),
        (chain, Limits { max_bytes: 2000, ..Limits::default() }),
        (model(nested), Limits { max_depth: 5, ..Limits::default() }),
        (model(weights.clone()), Limits { max_tensor_bytes: 399, ..Limits::default() }),
        (model(weights.clone()), Limits { max_constant_bytes: 799, ..Limits::default() }),
        (model(weights), Limits { max_dims: 8, ..Limits::default() }),
    ];
    for (m, limits) in cases {
        let bytes = m.encode_to_vec();
        let error = from_bytes(&bytes, None, &limits).map(|i| i.graph).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit, "{limits:?}: {error}");
        from_bytes(&bytes, None, &Limits::default()).unwrap();
    }
    // Deeper than the decoder goes.
    let mut deep = body(&[], vec![], &["x"]);
    for _ in 0..60 {
        deep = body(&[], vec![with(node("If", &["x"], &["y"]), subgraph("b", deep))], &["y"]);
    }
    assert!(import(&model(deep)).is_err());
}

#[test]
fn files_that_are_no_models_say_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let whole = model(body(&["x"], vec![node("Relu", &["x"], &["y"])], &["y"])).encode_to_vec();
    let no_graph = pb::ModelProto { ir_version: Some(8), ..Default::default() }.encode_to_vec();
    let cases: [(&[u8], &str); 8] = [
        (b"", "empty"),
        (b"\n <html><body>Not found", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "git lfs pull"),
        (b"PK\x03\x04....", "zip"),
        (b"GGUF\x03\0\0\0", "GGUF"),
        (b"\xffgarbage", "damaged"),
        (&whole[..whole.len() - 3], "truncated"),
        (&no_graph, "graph"),
    ];
    for (bytes, word) in cases {
        std::fs::write(&path, bytes).unwrap();
        let error = crate::import::load(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format, "{error}");
        let text = error.to_string();
        assert!(text.contains(word) && text.contains("model.onnx"), "{text}");
    }
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(crate::import::load(&path).unwrap().nodes().len(), 1);
    assert_eq!(crate::import::load(folder.path()).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(crate::import::load(folder.path().join("none")).unwrap_err().kind(), ErrorKind::Io);
    let other = folder.path().join("notes.txt");
    std::fs::write(&other, "hello").unwrap();
    assert!(
        crate::import::load(&other).unwrap_err().to_string().contains("formats built in: ONNX")
    );
}

#[test]
fn attributes_keep_their_kind_without_a_declared_type() {
    let empty = pb::AttributeProto::default;
    let attributes = [
        ("f", pb::AttributeProto { f: Some(1.0), ..empty() }, Attribute::Float(1.0)),
        ("s", pb::AttributeProto { s: Some(Bytes::from("x")), ..empty() }, Attribute::from("x")),
        ("is", pb::AttributeProto { ints: vec![1], ..empty() }, Attribute::Ints(vec![1])),
        ("i", pb::AttributeProto { i: None, ..int("", 0) }, Attribute::Int(0)),
    ];
    for (key, mut a, want) in attributes {
        a.name = Some(key.to_owned());
        let graph =
            graph_of(&model(body(&["x"], vec![with(node("Foo", &["x"], &["y"]), a)], &["y"])));
        assert_eq!(graph.nodes()[0].attributes[key], want);
    }
}
