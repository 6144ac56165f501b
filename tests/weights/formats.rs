//! Every tensor of the real files beside its reference (the large one: `tests/acceptance/gguf.rs`). `tests/models/fetch_models.py` fetches them;
//! `BRIGADE_MODELS` names their folder, and `BRIGADE_REQUIRE_MODELS=1` makes it a failure that they
//! are not there.

use std::path::PathBuf;

use brigade::import::{GgufFile, Limits, SafetensorsFile, read_npy};
use sha2::{Digest, Sha256};

/// The folder of a model of the manifest, if it was fetched.
fn model(id: &str) -> Option<PathBuf> {
    let required = std::env::var_os("BRIGADE_REQUIRE_MODELS").is_some_and(|v| v == "1");
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
