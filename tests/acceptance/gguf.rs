//! Every tensor of the language model's GGUF file, and how much of the file is read for some of them.

use std::path::Path;

use brigade::WeightCache;
use brigade::import::{GgufFile, GgufType, Limits};
use sha2::{Digest, Sha256};

#[cfg(target_os = "linux")]
use super::mapped::resident;
use super::models;

fn reference(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join("tensors.json")).unwrap()).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn extents(value: &serde_json::Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

#[test]
fn every_tensor_of_a_real_gguf_is_where_its_reference_is() {
    let Some(folder) = models::gemma() else { return };
    let _turn = models::turn();
    let reference = reference(&folder);
    let file = GgufFile::open(folder.join(models::GEMMA), &Limits::default()).unwrap();
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
fn every_tensor_of_a_real_gguf_loads_and_sums_up_to_its_reference() {
    let Some(folder) = models::gemma() else { return };
    let _turn = models::turn();
    let reference = reference(&folder);
    let cache = WeightCache::new().with_root(&folder).unwrap();
    let rows = reference["tensors"].as_array().unwrap();
    assert!(rows.len() > 200, "{} tensors", rows.len());
    let mut stored = 0;
    for row in rows {
        let name = row["name"].as_str().unwrap();
        let uri = format!("gguf://{}#{name}", models::GEMMA);
        let tensor = cache.f32(&uri).unwrap();
        assert_eq!(tensor.shape().to_vec(), extents(&row["shape"]), "{name}");
        stored += cache.stored(&uri).unwrap().bytes().len() as u64;
        let (mut sum, mut squares) = (0.0, 0.0);
        // Piece by piece, or rounding would add up over 168 million numbers.
        for piece in tensor.as_slice::<f32>().unwrap().chunks(4096) {
            sum += piece.iter().map(|v| f64::from(*v)).sum::<f64>();
            squares += piece.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        }
        let number = |key: &str| row[key].as_f64().unwrap();
        // The decoded values are equal; both sums are of f64, in another order. The sum of the
        // magnitudes is at most the root of count times squares.
        let most = (tensor.len() as f64 * number("sum_of_squares")).sqrt();
        let away = (sum - number("sum")).abs();
        assert!(away <= 1e-10 * most, "{name}: {sum}, not {}", number("sum"));
        let away = (squares - number("sum_of_squares")).abs();
        assert!(away <= 1e-10 * squares, "{name}: {squares}, not {}", number("sum_of_squares"));
    }
    let stats = cache.stats();
    assert_eq!((stats.files, stats.parses), (1, 1));
    assert_eq!(stats.bytes, 2 * stored);
}

/// Of a file of 250 MB what stands in front of the tensors (the vocabulary, for the most part) and the
/// tensors of one layer.
#[cfg(target_os = "linux")]
#[test]
fn of_a_real_gguf_only_the_tensors_that_are_asked_for_are_read() {
    // A fault brings what lies around it, up to a folio of the page cache.
    const SLACK: usize = 4 << 20;
    let Some(folder) = models::gemma() else { return };
    let _turn = models::turn();
    let path = folder.join(models::GEMMA);
    let (header, layer) = {
        let file = GgufFile::open(&path, &Limits::default()).unwrap();
        let header = file.tensors().iter().map(|t| t.offset).min().unwrap();
        let layer = file.tensors().iter().filter(|t| t.name.starts_with("blk.3."));
        (header, layer.map(|t| (t.name.clone(), t.bytes)).collect::<Vec<_>>())
    };
    let asked: usize = layer.iter().map(|(_, bytes)| bytes).sum();
    assert!(layer.len() == 13 && asked > 3 << 20, "{} tensors, {asked} bytes", layer.len());
    let cache = WeightCache::new().with_root(&folder).unwrap();
    for (name, _) in &layer {
        let tensor = cache.f32(&format!("gguf://{}#{name}", models::GEMMA)).unwrap();
        assert!(tensor.as_slice::<f32>().unwrap().iter().all(|v| v.is_finite()), "{name}");
    }
    let read = resident(&path);
    let size = std::fs::metadata(&path).unwrap().len() as usize;
    eprintln!(
        "{} of {} KiB resident: {} before the tensors, {} asked for",
        read / 1024,
        size / 1024,
        header / 1024,
        asked / 1024
    );
    assert_eq!(cache.stats().bytes, asked as u64);
    assert!(read >= asked, "{read} bytes for {asked}: is it measured?");
    assert!(read <= header + asked + SLACK, "{read} bytes for {header} and {asked}");
    assert!(header + asked + SLACK < size / 8);
}
