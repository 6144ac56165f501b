//! A stage that describes itself: what is shipped to a worker.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use brigade_actors::codec;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Result, bail, err};
use crate::graph::{Fact, Graph};
use crate::import::{WeightCache, WeightRef, WeightUri, sha256};
use crate::ops::{CompileOptions, Precision};
use crate::tensor::{DType, Tensor};

/// The device that a worker chooses itself.
pub(crate) const AUTO: &str = "auto";

/// What a worker calls this device of its own, or `auto` where it is to choose.
pub(crate) fn directive(device: &crate::DeviceId) -> String {
    if device.kind() == AUTO { AUTO.to_owned() } else { device.on_its_worker().to_string() }
}

/// The first bytes of a spec.
const MAGIC: [u8; 4] = *b"BRGS";

/// The version of the format that is written, and the only one that is read.
const VERSION: u32 = 2;

/// The most bytes of an encoded spec.
pub const MAX_SPEC_BYTES: u64 = 64 << 20;

/// Constants of more bytes are weights: they are referred to, not shipped, if they lie in a file.
pub(crate) const WEIGHT_BYTES: usize = 16 << 10;

/// The most bytes of constants that lie in no file, such as those that were computed from others.
pub(crate) const MAX_CONSTANT_BYTES: usize = 4 << 20;

/// A stage as it is shipped: a graph with all its inputs and outputs by name, the references of its
/// weights, the device that it wants, and limits. It needs nothing else to be understood, and holds no
/// weights.
///
/// ```
/// use brigade::cluster::StageSpec;
/// use brigade::ops::builder::GraphBuilder;
/// use brigade::DType;
///
/// let mut g = GraphBuilder::new("layer");
/// let x = g.input("x", DType::F32, ["N".into(), 4.into()])?;
/// let w = g.param("w", DType::F32, &[4, 2])?;
/// let y = g.matmul(x, w)?;
/// let spec = StageSpec::new(g.finish([("y", y)])?)
///     .weight("w", "safetensors://layer.safetensors#w")
///     .device("cpu");
/// spec.validate()?;
/// assert_eq!(spec.inputs()[0].1.to_string(), "f32[N,4]");
/// let bytes = spec.encode()?;
/// assert_eq!(StageSpec::decode(&bytes)?, spec);
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageSpec {
    version: u32,
    graph: Graph,
    weights: Vec<WeightRef>,
    /// Values that were constants of the model and are read from its file.
    constants: Vec<WeightRef>,
    device: String,
    stage_id: Option<String>,
    threads: u32,
    precision: Precision,
    disabled_passes: Vec<String>,
    memory_bytes: Option<u64>,
}

impl StageSpec {
    /// A stage of this graph, on whatever device its worker holds for best (`auto`).
    pub fn new(graph: Graph) -> Self {
        Self {
            version: VERSION,
            graph,
            weights: Vec::new(),
            constants: Vec::new(),
            device: "auto".to_owned(),
            stage_id: None,
            threads: 1,
            precision: Precision::F32,
            disabled_passes: Vec::new(),
            memory_bytes: None,
        }
    }

    /// The parameter is bound to the weight at this URI, decoded.
    #[must_use]
    pub fn weight(mut self, name: impl Into<String>, uri: impl Into<String>) -> Self {
        self.weights.push(WeightRef::new(name, uri));
        self
    }

    /// The parameter is bound to the weight at this URI, left in its blocks.
    #[must_use]
    pub fn weight_packed(mut self, name: impl Into<String>, uri: impl Into<String>) -> Self {
        self.weights.push(WeightRef::new(name, uri).packed());
        self
    }

    /// Binds each of these.
    #[must_use]
    pub fn bind_all(mut self, weights: impl IntoIterator<Item = WeightRef>) -> Self {
        self.weights.extend(weights);
        self
    }

    /// The device: a name such as `cpu` or `cuda:1`, or `auto`. A named one that is not there is
    /// refused, never substituted.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.device = device.into();
        self
    }

    /// The device of a placement, as its worker calls it.
    pub(crate) fn device_of_worker(self, device: &crate::DeviceId) -> Self {
        self.device(directive(device))
    }

    /// The fixed datapath that is meant: a worker that owns one takes this stage only.
    #[must_use]
    pub fn stage_id(mut self, id: impl Into<String>) -> Self {
        self.stage_id = Some(id.into());
        self
    }

    /// How it is compiled: kernel threads, the precision of products, passes that are left out, the datapath that it stands for.
    #[must_use]
    pub fn options(mut self, options: &CompileOptions) -> Self {
        self.threads = u32::try_from(options.threads).unwrap_or(u32::MAX);
        self.precision = options.precision;
        self.disabled_passes.clone_from(&options.disabled_passes);
        if let Some(id) = &options.stage_id {
            self.stage_id = Some(id.to_string());
        }
        self
    }

    /// The most bytes that the stage may take on its worker: weights and tensors in flight.
    #[must_use]
    pub fn memory_bytes(mut self, most: u64) -> Self {
        self.memory_bytes = Some(most);
        self
    }

    /// The graph, without the contents of its weights.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The name of the graph.
    pub fn name(&self) -> &str {
        &self.graph.name
    }

    /// What parameters are bound to.
    pub fn weights(&self) -> &[WeightRef] {
        &self.weights
    }

    /// The model's constants that its worker reads from the model's file.
    pub fn constants(&self) -> &[WeightRef] {
        &self.constants
    }

    /// The device that is wanted, or `auto`.
    pub fn wanted_device(&self) -> &str {
        &self.device
    }

    /// The fixed datapath that is meant.
    pub fn wanted_stage(&self) -> Option<&str> {
        self.stage_id.as_deref()
    }

    /// The most bytes that it may take, if that is said.
    pub fn memory_limit(&self) -> Option<u64> {
        self.memory_bytes
    }

    /// How it is to be compiled.
    pub fn compile_options(&self) -> CompileOptions {
        CompileOptions {
            threads: self.threads as usize,
            precision: self.precision,
            disabled_passes: self.disabled_passes.clone(),
            ..CompileOptions::default()
        }
    }

    /// The inputs' names, dtypes and shapes, in order.
    pub fn inputs(&self) -> Vec<(&str, &Fact)> {
        let value = |v: &crate::graph::ValueId| {
            let info = self.graph.value(*v);
            (info.name.as_str(), &info.fact)
        };
        self.graph.inputs().iter().map(value).collect()
    }

    /// The outputs' names, dtypes and shapes, in order, as far as they are known.
    pub fn outputs(&self) -> Vec<(&str, &Fact)> {
        let value = |v: &crate::graph::ValueId| {
            let info = self.graph.value(*v);
            (info.name.as_str(), &info.fact)
        };
        self.graph.outputs().iter().map(value).collect()
    }

    /// What the two sides of a boundary must agree on: the names and facts of inputs and outputs, in
    /// one line.
    pub fn contract(&self) -> String {
        let list = |all: Vec<(&str, &Fact)>| {
            let all: Vec<String> = all.iter().map(|(n, f)| format!("{n}: {f}")).collect();
            all.join(", ")
        };
        format!("({}) -> ({})", list(self.inputs()), list(self.outputs()))
    }

    /// Checks what can be checked without weights and devices: the graph, that each parameter is bound
    /// once, that URIs are well formed, how much is asked for.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn validate(&self) -> Result<()> {
        if self.version != VERSION {
            return Err(err!(
                Format,
                "the stage spec is of version {}, this side reads version {VERSION}",
                self.version
            )
            .with_help("use one release of brigade on both sides"));
        }
        self.graph.validate()?;
        crate::device::check_threads(self.threads as usize)?;
        let ports = self.graph.inputs().len().max(self.graph.outputs().len());
        if ports > super::message::MAX_PORTS {
            bail!(
                Limit,
                "a stage of {ports} inputs or outputs; {} at most",
                super::message::MAX_PORTS
            );
        }
        if self.graph.outputs().is_empty() {
            bail!(Graph, "the stage has no outputs");
        }
        if self.stage_id.as_deref() == Some("") {
            return Err(err!(Plan, "the stage_id is empty")
                .with_help("name the datapath that the worker owns, or leave it out"));
        }
        let mut seen = HashSet::new();
        for weight in self.weights.iter().chain(&self.constants) {
            if !seen.insert(weight.name.as_str()) {
                bail!(Duplicate, "`{}` is bound twice", weight.name);
            }
            let _: WeightUri = weight.uri.parse()?;
            let unbound = |v: &crate::graph::ValueInfo| {
                v.name == weight.name && v.param && v.constant.is_none()
            };
            if !self.graph.values().iter().any(unbound) {
                bail!(UnknownName, "the stage has no unbound parameter `{}`", weight.name);
            }
        }
        let missing: Vec<&str> = self
            .graph
            .unbound_params()
            .map(|v| v.name.as_str())
            .filter(|n| !seen.contains(n))
            .collect();
        if !missing.is_empty() {
            return Err(err!(Missing, "parameters are not bound: {}", missing.join(", "))
                .with_help("bind each to a URI with `weight`"));
        }
        if self.device != "auto" {
            let device: crate::DeviceId = self.device.parse()?;
            if device.worker().is_some() {
                bail!(Usage, "the device `{device}` of a stage names a worker");
            }
        }
        Ok(())
    }

    /// The spec as bytes.
    ///
    /// # Errors
    /// If it takes more than [`MAX_SPEC_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let most = MAX_SPEC_BYTES - MAGIC.len() as u64;
        let body = codec::encode(self, most).map_err(|e| {
            err!(Limit, "the stage `{}` takes more than {MAX_SPEC_BYTES} bytes", self.name())
                .with_source(e)
                .with_help("refer to its weights by URIs, or cut it into more stages")
        })?;
        Ok([&MAGIC[..], &body].concat())
    }

    /// The spec in bytes, checked by [`validate`](Self::validate).
    ///
    /// # Errors
    /// If they are not one, or it does not hold together.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let Some(bytes) = bytes.strip_prefix(&MAGIC[..]) else {
            return Err(err!(Format, "the bytes are no stage spec")
                .with_help("`brigade plan MODEL --stages K --specs DIR` writes some"));
        };
        let version = bytes.first_chunk().map(|b| u32::from_le_bytes(*b));
        if let Some(version) = version.filter(|v| *v != VERSION) {
            return Err(err!(
                Format,
                "the stage spec is of version {version}, this side reads version {VERSION}"
            )
            .with_help("use one release of brigade on both sides"));
        }
        let spec: Self = codec::decode(bytes, MAX_SPEC_BYTES)
            .map_err(|e| err!(Format, "the bytes are no stage spec").with_source(e))?;
        spec.validate()?;
        Ok(spec)
    }

    /// The SHA-256 of the encoded spec, in hexadecimal: two specs are the same stage if they have the
    /// same one.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn hash(&self) -> Result<String> {
        Ok(sha256(&self.encode()?))
    }

    /// The graph with its weights in it, read through a cache.
    ///
    /// # Errors
    /// If one cannot be read, or is not what the graph declares; names it.
    pub(crate) fn resolve(&self, weights: &WeightCache) -> Result<Graph> {
        let mut graph = self.graph.clone();
        let mut load = |all: &[WeightRef], param: bool| -> Result<()> {
            for weight in all {
                let Some(id) = graph.find(&weight.name) else {
                    bail!(UnknownName, "the stage has no parameter `{}`", weight.name);
                };
                let tensor = weights.load(weight, &graph.value(id).fact)?;
                let info = graph.value_mut(id);
                info.constant = Some(tensor);
                info.param = param;
            }
            Ok(())
        };
        load(&self.weights, true)?;
        load(&self.constants, false)?;
        Ok(graph)
    }

    /// A segment as a stage: what its parameters are bound to, and constants that lie in files below
    /// `roots` become references. Paths are relative to the root that has them.
    ///
    /// # Errors
    /// If a large constant lies in no such file.
    pub(crate) fn of_segment(
        mut graph: Graph,
        weights: &[WeightRef],
        options: &CompileOptions,
        roots: &[PathBuf],
    ) -> Result<Self> {
        let mut constants = Vec::new();
        let mut inline = 0;
        let real_roots: Vec<PathBuf> = roots.iter().filter_map(|r| r.canonicalize().ok()).collect();
        // Most constants of a stage lie in one file.
        let mut known: HashMap<PathBuf, Option<PathBuf>> = HashMap::new();
        let mut real = |path: &Path| {
            if let Some(found) = known.get(path) {
                return found.clone();
            }
            let found = path.canonicalize().ok();
            known.insert(path.to_owned(), found.clone());
            found
        };
        for info in &mut graph.values {
            let Some(tensor) = info.constant.take() else { continue };
            if tensor.bytes() >= WEIGHT_BYTES
                && let Some(uri) = reference(&tensor, &real_roots, &mut real)?
            {
                constants.push(WeightRef::new(info.name.clone(), uri));
                info.fact = Fact::of(&tensor);
                info.param = true;
                continue;
            }
            inline += tensor.bytes();
            if inline > MAX_CONSTANT_BYTES {
                return Err(err!(
                    Limit,
                    "constants of more than {MAX_CONSTANT_BYTES} bytes lie in no file below {}; the last \
                     is `{}` ({})",
                    list(roots),
                    info.name,
                    tensor.describe()
                )
                .with_help(
                    "weights are not sent: keep them in a file that workers have, too, bind them as \
                     parameters, or leave out the pass that computed them (--disable-pass fold-constants)",
                ));
            }
            info.constant = Some(tensor);
        }
        let mut spec = Self::new(graph).bind_all(weights.iter().cloned()).options(options);
        spec.constants = constants;
        Ok(spec)
    }
}

fn list(roots: &[PathBuf]) -> String {
    let all: Vec<String> = roots.iter().map(|r| format!("`{}`", r.display())).collect();
    all.join(", ")
}

/// The URI of the bytes of a tensor in the file that they come from, with their checksum.
fn reference(
    tensor: &Tensor,
    roots: &[PathBuf],
    real: &mut impl FnMut(&Path) -> Option<PathBuf>,
) -> Result<Option<String>> {
    if tensor.dtype() == DType::String {
        return Ok(None);
    }
    let Some(range) = tensor.buffer().file_range() else { return Ok(None) };
    let Some(path) = real(&range.path) else { return Ok(None) };
    let below = |root: &PathBuf| path.strip_prefix(root).ok().map(Path::to_owned);
    let Some(relative) = roots.iter().find_map(below) else { return Ok(None) };
    let shape: Vec<String> = tensor.shape().iter().map(ToString::to_string).collect();
    Ok(Some(format!(
        "file://{}?dtype={}&shape={}&offset={}&sha256={}",
        percent_encoded(&relative),
        tensor.dtype(),
        shape.join(","),
        range.offset,
        sha256(tensor.as_bytes()),
    )))
}

/// A path as it is written in a URI.
fn percent_encoded(path: &Path) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' | b'~' => {
                out.push(char::from(*byte));
            }
            other => {
                let _ = write!(out, "%{other:02X}");
            }
        }
    }
    out
}

/// A digest for programs that compare stages without encoding them twice.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
