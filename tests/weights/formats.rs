//! Every tensor of the real files beside its reference. `tests/models/fetch_models.py` fetches them;
//! `BRIGADE_MODELS` names their folder, and `BRIGADE_REQUIRE_MODELS=1` makes it a failure that they
//! are not there.

use std::path::PathBuf;

use brigade::import::{GgufFile, GgufType, Limits, SafetensorsFile, read_npy};
use sha2::{Digest, Sha256};

/// The folder of a model of the manifest, if it was fetched.
fn model(id: &str) -> Option<PathBuf> {
    found(id, std::env::var_os("BRIGADE_REQUIRE_MODELS").is_some_and(|v| v == "1"))
}

/// The folder of one that only `scripts/fetch-models --large` brings.
fn large_model(id: &str) -> Option<PathBuf> {
    found(id, false)
}

fn found(id: &str, required: bool) -> Option<PathBuf> {
    let folder = std::env::var_os("BRIGADE_MODELS").map(|f| PathBuf::from(f).join(id));
    let found = folder.filter(|f| f.join("tensors.json").is_file());
    if found.is_none() {
        assert!(!required, "`{id}` is not among the models");
        eprintln!("left out: BRIGADE_MODELS names no folder with `{id}`");
    }
    found
}

fn reference(folder: &std::path::Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join("tensors.json")).unwrap()).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn extents(value: &serde_json::Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

/// The first rows of tensors, decoded, are what the reference holds, to the bit.
fn check_decoded(folder: &std::path::Path, file: &GgufFile, rows: &serde_json::Value) -> usize {
    let rows = rows.as_array().unwrap();
    for row in rows {
        let name = row["name"].as_str().unwrap();
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.stored.name(), row["type"].as_str().unwrap(), "{name}");
        assert_eq!(tensor.shape, extents(&row["shape"]), "{name}");
        let want = read_npy(folder.join(row["file"].as_str().unwrap())).unwrap();
        assert_eq!(want.shape().to_vec(), extents(&row["rows"]), "{name}");
        let got = brigade::tensor::cast(&file.array(tensor).unwrap(), brigade::DType::F32).unwrap();
        let (got, want) = (got.as_slice::<f32>().unwrap(), want.as_slice::<f32>().unwrap());
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            // The reference may subtract its way to the other zero.
            let equal = g.to_bits() == w.to_bits() || (*g == 0.0 && *w == 0.0);
            assert!(equal, "{name} at {i}: {g}, not {w}");
        }
    }
    rows.len()
}

#[test]
fn every_type_of_a_real_file_decodes_as_its_reference() {
    let Some(folder) = model("gguf-types") else { return };
    let reference = reference(&folder);
    let file = GgufFile::open(folder.join("types.gguf"), &Limits::default()).unwrap();
    let checked = check_decoded(&folder, &file, &reference["dequantised"]);
    assert_eq!(checked, file.tensors().len());
    assert!(checked >= 15, "{checked} types");
}

#[test]
fn every_tensor_of_a_real_gguf_is_where_its_reference_is() {
    let Some(folder) = large_model("gemma3-gguf") else { return };
    let reference = reference(&folder);
    let file = GgufFile::open(folder.join("gemma-3-270m-q4_k_m.gguf"), &Limits::default()).unwrap();
    assert!(check_decoded(&folder, &file, &reference["dequantised"]) >= 5);
    let rows = reference["tensors"].as_array().unwrap();
    assert_eq!(rows.len(), file.tensors().len());
    for row in rows {
        let name = row["name"].as_str().unwrap();
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.shape, extents(&row["shape"]), "{name}");
        assert_eq!(tensor.stored.name(), row["type"].as_str().unwrap(), "{name}");
        let bytes = file.bytes(tensor).unwrap();
        assert_eq!(sha256(bytes.as_bytes()), row["sha256"].as_str().unwrap(), "{name}");
    }
    let metadata = file.metadata();
    let told = reference["metadata"].as_object().unwrap();
    let mut checked = 0;
    for (key, value) in told.iter().filter(|(key, _)| !key.starts_with("GGUF.")) {
        let got = metadata.get(key).unwrap_or_else(|| panic!("no `{key}`"));
        checked += 1;
        match value {
            serde_json::Value::Bool(b) => assert_eq!(got.as_bool(), Some(*b), "{key}"),
            serde_json::Value::String(s) => assert_eq!(got.as_str(), Some(s.as_str()), "{key}"),
            serde_json::Value::Number(n) => assert_eq!(got.as_f64(), n.as_f64(), "{key}"),
            serde_json::Value::Array(a) => assert_eq!(got.as_array().unwrap().len(), a.len()),
            _ => checked -= 1,
        }
    }
    assert!(checked >= 20, "{checked} of {}", told.len());
    let tokens = metadata.list("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.as_strings().unwrap().len(), 262_144);
    assert_eq!(metadata.list("tokenizer.ggml.scores").unwrap().as_f32().unwrap().len(), 262_144);
    assert_eq!(metadata.number("gemma3.block_count").unwrap(), 18);
    assert!(matches!(file.tensor("token_embd.weight").unwrap().stored, GgufType::Blocks(_)));
}

#[test]
fn every_tensor_of_real_safetensors_is_its_reference() {
    for (id, name) in [
        ("minilm-safetensors", "model.safetensors"),
        ("silero-safetensors", "silero_vad_16k.safetensors"),
    ] {
        let Some(folder) = model(id) else { continue };
        let reference = reference(&folder);
        let file = SafetensorsFile::open(folder.join(name), &Limits::default()).unwrap();
        let rows = reference["tensors"].as_array().unwrap();
        assert_eq!(rows.len(), file.tensors().len());
        for row in rows {
            let name = row["name"].as_str().unwrap();
            let array = file.array(file.tensor(name).unwrap()).unwrap();
            assert_eq!(array.dtype().numpy_name(), row["dtype"].as_str().unwrap(), "{name}");
            assert_eq!(array.shape().to_vec(), extents(&row["shape"]), "{name}");
            assert_eq!(sha256(array.as_bytes()), row["sha256"].as_str().unwrap(), "{name}");
        }
    }
}
