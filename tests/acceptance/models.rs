//! Finding the models.

use std::path::{Path, PathBuf};

use brigade::check::{Case, read_cases};
use brigade::graph::Graph;

/// A model of the manifest with its cases.
pub(crate) struct Model {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    pub(crate) cases: Vec<Case>,
}

impl Model {
    pub(crate) fn graph(&self) -> Graph {
        brigade::import::load(&self.path).unwrap()
    }
}

/// The folder of the models, or `None` after saying what is left out.
fn folder() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|h| Path::new(&h).join(".cache")));
    let folder = std::env::var_os("BRIGADE_MODELS")
        .map(PathBuf::from)
        .or_else(|| cache.map(|c| c.join("brigade").join("models")));
    let found = folder.filter(|f| f.join("index.json").is_file());
    if found.is_none() {
        let required = std::env::var_os("BRIGADE_REQUIRE_MODELS").is_some_and(|v| v == "1");
        assert!(
            !required,
            "BRIGADE_REQUIRE_MODELS=1, but there are no models: run scripts/fetch-models"
        );
        eprintln!("left out: no models here; run scripts/fetch-models to get them");
    }
    found
}

/// The ONNX models of the manifest, or none after saying what is left out. All of them must be
/// there if one is.
pub(crate) fn all() -> Vec<Model> {
    let Some(folder) = folder() else { return Vec::new() };
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/manifest.json");
    let manifest: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
    let only = std::env::var("BRIGADE_ONLY").ok();
    let mut models = Vec::new();
    for row in manifest["models"].as_array().unwrap() {
        if row["kind"] != "onnx" {
            continue;
        }
        let id = row["id"].as_str().unwrap().to_owned();
        if only.as_ref().is_some_and(|o| *o != id) {
            continue;
        }
        let home = folder.join(&id);
        let path = home.join(row["file"].as_str().unwrap());
        let cases = read_cases(&home.join("cases")).unwrap();
        models.push(Model { id, path, cases });
    }
    models
}

/// One model, if the models are here.
pub(crate) fn one(id: &str) -> Option<Model> {
    all().into_iter().find(|m| m.id == id)
}

/// The folder of the language model with its reference, or `None` after saying that it is left out.
pub(crate) fn gemma() -> Option<PathBuf> {
    let found = folder().map(|f| f.join("gemma3-gguf"));
    let found = found.filter(|f| f.join("reference").join("made-with").is_file());
    if found.is_none() {
        let required = std::env::var_os("BRIGADE_REQUIRE_GEMMA").is_some_and(|v| v == "1");
        assert!(!required, "run scripts/fetch-models --only gemma3-gguf");
        eprintln!("left out: no language model here; scripts/fetch-models --only gemma3-gguf");
    }
    found
}

/// The file of the language model.
pub(crate) const GEMMA: &str = "gemma-3-270m-q4_k_m.gguf";

/// Tests over the language model take turns: they measure what is resident of its file.
pub(crate) fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
