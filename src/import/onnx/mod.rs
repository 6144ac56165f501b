//! The ONNX format: `ModelProto` messages of any IR version, with external weights, subgraphs and
//! model-local functions.
//!
//! Initialisers and `Constant` nodes become constants, functions are written out, and what
//! subgraphs read from outside becomes explicit ([`Node::captures`](crate::graph::Node::captures)).
//! Shapes that a model declares for anything but its inputs are not believed.

#![forbid(unsafe_code)]

mod attribute;
mod data;
mod external;
mod fact;
mod function;
mod graph;
#[cfg(test)]
mod mutated;
#[allow(missing_docs, clippy::all, unreachable_pub, unused_qualifications)]
mod pb;
mod sparse;
mod tensor;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use prost::Message;

use super::{Imported, Limits, Source};
use crate::error::{Result, bail, err};
use crate::graph::Graph;
use crate::ops::{CompileOptions, OpRegistry, Program, infer_graph};
pub use data::TestModel;
use external::Weights;
use function::Function;
use graph::Scope;

/// The newest IR version whose meaning is known here.
const KNOWN_IR: i64 = pb::Version::IrVersion as i64;

/// Operator-set version by domain.
type Opsets = BTreeMap<String, i64>;

/// Whether bytes may be a `ModelProto`: it has no magic, but writers put the IR version first.
pub(super) fn sniff(bytes: &[u8]) -> bool {
    matches!(bytes, [0x08, version, ..] if *version <= 64)
}

/// Reads a serialised `ModelProto`.
pub(super) fn read(source: &Source<'_>) -> Result<Imported> {
    wire::check(&source.bytes, source.limits.max_bytes)?;
    let model = pb::ModelProto::decode(source.bytes.clone()).map_err(|e| {
        err!(Format, "is not an ONNX model, or is damaged or truncated")
            .with_source(e)
            .with_help("download or export the model again")
    })?;
    import(model, source)
}

fn import(model: pb::ModelProto, source: &Source<'_>) -> Result<Imported> {
    let (Some(ir), Some(graph)) = (model.ir_version.filter(|v| *v > 0), model.graph) else {
        return Err(err!(Format, "is not an ONNX model: it lacks the IR version or the graph")
            .with_help("download or export the model again"));
    };
    let mut importer = Importer::new(source);
    if ir > KNOWN_IR {
        importer.notices.push(format!(
            "the model is of IR version {ir}; versions up to {KNOWN_IR} are known, \
             so that some of it may be misread"
        ));
    }
    if !model.training_info.is_empty() {
        importer.notices.push("the model's training information is left out".to_owned());
    }
    let mut opsets = read_opsets(&model.opset_import)?;
    if ir < 3 {
        opsets.entry(String::new()).or_insert(1);
    }
    importer.add_functions(model.functions, &opsets)?;
    if !importer.functions.is_empty() {
        importer.take_names(&graph);
    }
    importer.overridable = ir >= 4;
    let (mut graph, _) = importer.build(graph, &Rc::new(opsets))?;
    importer.refuse_unsupported(&graph)?;
    graph.validate()?;
    importer.note_repairs();

    let fields = [
        ("onnx.ir_version", Some(ir.to_string())),
        ("onnx.producer_name", model.producer_name),
        ("onnx.producer_version", model.producer_version),
        ("onnx.domain", model.domain),
        ("onnx.model_version", model.model_version.map(|v| v.to_string())),
        ("onnx.doc_string", model.doc_string),
    ];
    for (key, value) in fields {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            graph.metadata.insert(key.to_owned(), value);
        }
    }
    for entry in model.metadata_props {
        graph.metadata.insert(entry.key.unwrap_or_default(), entry.value.unwrap_or_default());
    }
    Ok(Imported { graph, notices: importer.notices })
}

/// The domain under the one name that it has here.
fn domain_of(name: Option<&str>) -> &str {
    match name {
        None | Some("ai.onnx") => "",
        Some(other) => other,
    }
}

fn read_opsets(imports: &[pb::OperatorSetIdProto]) -> Result<Opsets> {
    let mut opsets = Opsets::new();
    for entry in imports {
        let domain = domain_of(entry.domain.as_deref()).to_owned();
        let version = entry.version.unwrap_or(0);
        match opsets.insert(domain.clone(), version) {
            Some(other) if other != version => {
                bail!(Format, "imports versions {other} and {version} of domain `{domain}`")
            }
            _ => {}
        }
    }
    Ok(opsets)
}

/// The state of one import.
struct Importer<'a> {
    limits: &'a Limits,
    weights: Weights<'a>,
    functions: HashMap<(String, String, String), Rc<Function>>,
    /// Every value name of the model, where new ones have to be made.
    taken: HashSet<String>,
    /// How often functions were called under each name.
    calls: HashMap<String, usize>,
    /// Bytes of what functions were written out to.
    written_bytes: u64,
    /// The graph at hand and those around it, outermost first.
    scopes: Vec<Scope>,
    /// Whether initialisers are only defaults of inputs of the same name.
    overridable: bool,
    nodes: usize,
    values: usize,
    constant_bytes: u64,
    unsupported: Vec<String>,
    /// Graphs whose nodes were out of order.
    sorted: Vec<String>,
    /// Nodes that had the name of another, in words.
    renamed: Vec<String>,
    notices: Vec<String>,
}

impl<'a> Importer<'a> {
    fn new(source: &Source<'a>) -> Self {
        Self {
            limits: source.limits,
            weights: Weights::new(source.folder, source.weights)
                .of_model(source.path, &source.bytes),
            functions: HashMap::new(),
            taken: HashSet::new(),
            calls: HashMap::new(),
            written_bytes: 0,
            scopes: Vec::new(),
            overridable: false,
            nodes: 0,
            values: 0,
            constant_bytes: 0,
            unsupported: Vec::new(),
            sorted: Vec::new(),
            renamed: Vec::new(),
            notices: Vec::new(),
        }
    }

    fn count_node(&mut self) -> Result<()> {
        self.nodes += 1;
        if self.nodes > self.limits.max_nodes {
            bail!(Limit, "the model has more nodes than the limit of {}", self.limits.max_nodes);
        }
        Ok(())
    }

    fn count_value(&mut self) -> Result<()> {
        self.values += 1;
        if self.values > self.limits.max_values {
            bail!(Limit, "the model has more values than the limit of {}", self.limits.max_values);
        }
        Ok(())
    }

    fn count_constant(&mut self, tensor: &crate::Tensor) -> Result<()> {
        self.constant_bytes = self.constant_bytes.saturating_add(tensor.bytes() as u64);
        let max = self.limits.max_constant_bytes;
        if self.constant_bytes > max {
            bail!(Limit, "the model's constants take more bytes than the limit of {max}");
        }
        Ok(())
    }

    fn note_repairs(&mut self) {
        if !self.sorted.is_empty() {
            let graphs = some_of(&self.sorted);
            self.notices.push(format!("nodes were out of order and were sorted, in {graphs}"));
        }
        if !self.renamed.is_empty() {
            let nodes = some_of(&self.renamed);
            self.notices.push(format!("nodes with the name of another were renamed: {nodes}"));
        }
    }

    /// One error that lists everything that no graph here can hold, and then what else could not
    /// be run, so that nobody learns of it one by one.
    fn refuse_unsupported(&self, graph: &Graph) -> Result<()> {
        if self.unsupported.is_empty() {
            return Ok(());
        }
        let mut text =
            format!("the model uses what cannot be read: {}", some_of(&self.unsupported));
        let missing: Vec<String> =
            OpRegistry::default().missing(graph).iter().map(ToString::to_string).collect();
        if !missing.is_empty() {
            text += &format!(
                "\nand {} operator(s) that are not built in:\n  {}",
                missing.len(),
                missing.join("\n  ")
            );
        }
        Err(crate::Error::new(crate::ErrorKind::Unsupported, text))
    }
}

/// The first few of several things.
fn some_of<T: AsRef<str>>(all: &[T]) -> String {
    const SHOWN: usize = 20;
    let mut parts: Vec<&str> = all.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let more = all.len().saturating_sub(SHOWN);
    let rest = format!("{more} more");
    if more > 0 {
        parts.push(&rest);
    }
    parts.join("; ")
}

/// Imports `bytes`, infers, checks and compiles what comes of it, and drops the outcome; for
/// fuzzing.
#[doc(hidden)]
pub fn fuzz_onnx(bytes: &[u8]) {
    let limits = Limits {
        max_bytes: 1 << 20,
        max_tensor_bytes: 1 << 20,
        max_constant_bytes: 1 << 22,
        max_nodes: 10_000,
        max_values: 40_000,
        ..Limits::default()
    };
    let bytes = super::FileBytes::copy_from_slice(bytes);
    let Ok(imported) = read(&Source {
        bytes,
        path: None,
        folder: None,
        limits: &limits,
        weights: &super::WeightCache::new(),
    }) else {
        return;
    };
    let mut graph = imported.graph;
    let registry = OpRegistry::default();
    if registry.check(&graph).is_ok() && infer_graph(&mut graph, &registry).is_ok() {
        let _ = Program::compile(&graph, &registry, &CompileOptions::default());
    }
}
