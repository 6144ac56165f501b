//! Operators by name.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{OpDef, TABLE};
use crate::error::{Error, ErrorKind, Result, err};
use crate::graph::{Graph, Node};
use crate::tensor::DType;

/// The operators: the rows of the table and those that a user adds.
#[derive(Clone, Debug)]
pub struct OpRegistry {
    ops: HashMap<(&'static str, &'static str), &'static OpDef>,
    /// Those that a user added.
    added: HashSet<(&'static str, &'static str)>,
}

impl Default for OpRegistry {
    fn default() -> Self {
        let ops = TABLE.iter().map(|d| ((d.domain, d.name), *d)).collect();
        Self { ops, added: HashSet::new() }
    }
}

/// Operators (or, without a name, all of a domain) that are left out on purpose, with the reason.
const REFUSED: &[(&str, &str, &str)] = &[
    ("ai.onnx.preview.training", "", "it is of training; only inference is implemented"),
    ("ai.onnx.training", "", "it is of training; only inference is implemented"),
    ("ai.onnx.ml", "ZipMap", "maps are no values here; export the model without ZipMap"),
    ("ai.onnx.ml", "CastMap", "maps are no values here; feed it tensors"),
    ("ai.onnx.ml", "DictVectorizer", "maps are no values here; feed it tensors"),
    #[cfg(not(feature = "image"))]
    (
        "",
        "ImageDecoder",
        "brigade is built without its feature `image`; build it with that, or feed the pixels",
    ),
];

/// An operator of a graph that cannot be run, with all nodes that use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingOp {
    /// The operator's domain; empty for ai.onnx.
    pub domain: String,
    /// The operator's name.
    pub op: String,
    /// The version that the nodes were written for.
    pub version: i64,
    /// Why it cannot be run.
    pub reason: String,
    /// The names of the nodes, subgraphs as paths.
    pub nodes: Vec<String>,
}

impl OpRegistry {
    /// With one more operator, which replaces one of the same name.
    #[must_use]
    pub fn with(mut self, def: &'static OpDef) -> Self {
        self.ops.insert((def.domain, def.name), def);
        self.added.insert((def.domain, def.name));
        self
    }

    /// The operator with this domain and name.
    pub fn get(&self, domain: &str, name: &str) -> Option<&'static OpDef> {
        let domain = if domain == "ai.onnx" { "" } else { domain };
        self.ops.get(&(domain, name)).copied()
    }

    /// Whether a user added this operator.
    pub(crate) fn is_added(&self, def: &OpDef) -> bool {
        self.added.contains(&(def.domain, def.name))
    }

    /// The operator of a node.
    ///
    /// # Errors
    /// If it is not here.
    pub fn require(&self, node: &Node) -> Result<&'static OpDef> {
        self.get(&node.domain, &node.op).ok_or_else(|| {
            err!(
                Unsupported,
                "operator {} (version {}) is not implemented",
                node.qualified_op(),
                node.version
            )
            .with_node(&node.name, &node.op)
        })
    }

    /// All operators, by domain and name.
    pub fn iter(&self) -> impl Iterator<Item = &'static OpDef> {
        let sorted: BTreeMap<_, _> = self.ops.iter().map(|(k, v)| (*k, *v)).collect();
        sorted.into_values()
    }

    /// Everything in `graph` that cannot be run, subgraphs included: operators that are not here,
    /// and nodes whose version, attributes, arity or (known) dtypes are not implemented.
    pub fn missing(&self, graph: &Graph) -> Vec<MissingOp> {
        let mut found: BTreeMap<(String, String, i64, String), Vec<String>> = BTreeMap::new();
        self.collect(graph, "", &mut found);
        found
            .into_iter()
            .map(|((domain, op, version, reason), nodes)| MissingOp {
                domain,
                op,
                version,
                reason,
                nodes,
            })
            .collect()
    }

    fn collect(
        &self,
        graph: &Graph,
        path: &str,
        found: &mut BTreeMap<(String, String, i64, String), Vec<String>>,
    ) {
        for node in graph.nodes() {
            let dtypes: Vec<Option<DType>> =
                node.inputs.iter().map(|v| v.and_then(|v| graph.value(v).fact.dtype)).collect();
            let reason = match self.get(&node.domain, &node.op) {
                None if node.version == Node::UNDECLARED => {
                    let why = self.why_not(&node.domain, &node.op);
                    Some(format!("{why}, and {}", undeclared(&node.domain)))
                }
                None => Some(self.why_not(&node.domain, &node.op)),
                Some(def) => def.check(node, &dtypes).err(),
            };
            let here = format!("{path}{}", node.name);
            if let Some(reason) = reason {
                let key = (node.domain.clone(), node.op.clone(), node.version, reason);
                found.entry(key).or_default().push(here.clone());
            }
            for (key, sub) in node.subgraphs() {
                self.collect(sub, &format!("{here}/{key}/"), found);
            }
        }
    }

    /// Why there is no such operator.
    fn why_not(&self, domain: &str, op: &str) -> String {
        let known = REFUSED.iter().find(|(d, o, _)| *d == domain && (*o == op || o.is_empty()));
        match known {
            Some((_, _, why)) => (*why).to_owned(),
            None => self.nearest(op),
        }
    }

    fn nearest(&self, op: &str) -> String {
        let lower = op.to_lowercase();
        match self.ops.keys().find(|(_, n)| n.to_lowercase() == lower) {
            Some((domain, name)) => {
                format!("no such operator; is `{name}` of domain `{domain}` meant?")
            }
            None => "no such operator".to_owned(),
        }
    }

    /// Checks that every node of `graph` can be run.
    ///
    /// # Errors
    /// One error that lists everything that cannot be run.
    pub fn check(&self, graph: &Graph) -> Result<()> {
        let missing = self.missing(graph);
        if missing.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = missing.iter().map(MissingOp::to_string).collect();
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("{} operator(s) cannot be run:\n  {}", missing.len(), lines.join("\n  ")),
        ))
    }
}

/// Words for a node whose operator set has no version.
pub(super) fn undeclared(domain: &str) -> String {
    let domain = if domain.is_empty() { "ai.onnx" } else { domain };
    format!(
        "no version of the operator set `{domain}` is imported: export the model again, with an \
         opset_import for it"
    )
}

impl std::fmt::Display for MissingOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 5;
        let domain = if self.domain.is_empty() { "ai.onnx" } else { &self.domain };
        let shown: Vec<String> = self.nodes.iter().take(SHOWN).map(|n| format!("`{n}`")).collect();
        write!(
            f,
            "{} (domain {domain}, version {}): {}; at {}",
            self.op,
            self.version,
            self.reason,
            shown.join(", ")
        )?;
        if self.nodes.len() > SHOWN {
            write!(f, " and {} more", self.nodes.len() - SHOWN)?;
        }
        Ok(())
    }
}
