//! `brigade inspect` of a file that holds weights and no graph.

use std::io::Read;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::console::Console;
use super::failure::Outcome;
use super::table::{bytes, row, shortened, table};
use crate::error::{Result, err};
use crate::import::{
    GgufFile, GgufType, GgufValue, Limits, MAX_SAFETENSORS_HEADER, SafetensorsFile, open_file,
};

/// Elements of a list of the metadata that are shown.
const SHOWN: usize = 8;

/// The formats of weights, by how a file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WeightFormat {
    Gguf,
    Safetensors,
}

/// Whether a file is one of weights, told by its first bytes, or by its name where they do not say.
pub(super) fn sniff(path: &Path) -> Option<WeightFormat> {
    let mut start = [0_u8; 9];
    let whole = open_file(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok());
    let named = |ending: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending));
    match start {
        [b'G', b'G', b'U', b'F', ..] => Some(WeightFormat::Gguf),
        // The length of a header, whose first character follows.
        [size @ .., b'{'] if whole && u64::from_le_bytes(size) <= MAX_SAFETENSORS_HEADER => {
            Some(WeightFormat::Safetensors)
        }
        _ if named("gguf") => Some(WeightFormat::Gguf),
        _ if named("safetensors") => Some(WeightFormat::Safetensors),
        _ => None,
    }
}

#[derive(Debug, Serialize)]
struct TensorRow {
    name: String,
    r#type: String,
    shape: Vec<usize>,
    elements: u64,
    bytes: u64,
    /// Where its bytes start in the file.
    offset: u64,
}

#[derive(Debug, Serialize)]
struct Document {
    file: String,
    format: String,
    byte_order: &'static str,
    /// Long lists are cut: `{"elements": N, "first": […]}`.
    metadata: Map<String, Json>,
    elements: u64,
    bytes: u64,
    tensors: Vec<TensorRow>,
}

/// Shows a file of weights.
pub(super) fn run(path: &Path, format: WeightFormat, console: &Console) -> Outcome {
    let document = match format {
        WeightFormat::Gguf => gguf(path)?,
        WeightFormat::Safetensors => safetensors(path)?,
    };
    console.result(&document, &text(&document))
}

fn document(
    path: &Path,
    format: String,
    byte_order: &'static str,
    metadata: Map<String, Json>,
    tensors: Vec<TensorRow>,
) -> Document {
    let elements = tensors.iter().map(|t| t.elements).fold(0, u64::saturating_add);
    let bytes = tensors.iter().map(|t| t.bytes).fold(0, u64::saturating_add);
    let file = path.display().to_string();
    Document { file, format, byte_order, metadata, elements, bytes, tensors }
}

fn gguf(path: &Path) -> Result<Document> {
    let file = GgufFile::open(path, &Limits::default())?;
    let mut metadata = Map::new();
    for (key, value) in file.metadata().iter() {
        metadata.insert(key.to_owned(), plain(value)?);
    }
    let tensors = file.tensors().iter().map(|t| TensorRow {
        name: t.name.clone(),
        r#type: match t.stored {
            GgufType::Unsupported(name) => format!("{name} (cannot be decoded here)"),
            known => known.name(),
        },
        shape: t.shape.clone(),
        elements: t.elements() as u64,
        bytes: t.bytes as u64,
        offset: t.offset as u64,
    });
    let order = if file.is_big_endian() { "big" } else { "little" };
    let format = format!("GGUF {}", file.version());
    Ok(document(path, format, order, metadata, tensors.collect()))
}

fn safetensors(path: &Path) -> Result<Document> {
    let file = SafetensorsFile::open(path, &Limits::default())?;
    let metadata = file.metadata().iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
    let tensors = file.tensors().iter().map(|t| TensorRow {
        name: t.name.clone(),
        r#type: t.stored.to_owned(),
        shape: t.shape.clone(),
        elements: t.shape.iter().map(|n| *n as u64).fold(1, u64::saturating_mul),
        bytes: t.bytes as u64,
        offset: t.offset as u64,
    });
    Ok(document(path, "safetensors".to_owned(), "little", metadata, tensors.collect()))
}

/// A value of the metadata as JSON.
fn plain(value: &GgufValue) -> Result<Json> {
    Ok(match value {
        GgufValue::Bool(v) => json!(v),
        GgufValue::String(v) => json!(v),
        GgufValue::Bytes(v) => json!({ "bytes": v }),
        GgufValue::F32(v) => json!(v),
        GgufValue::F64(v) => json!(v),
        GgufValue::I8(v) => json!(v),
        GgufValue::I16(v) => json!(v),
        GgufValue::I32(v) => json!(v),
        GgufValue::I64(v) => json!(v),
        GgufValue::Array(list) => {
            let first = list.iter().take(SHOWN).map(|v| plain(&v)).collect::<Result<Vec<_>>>()?;
            if list.len() > SHOWN {
                json!({ "elements": list.len(), "first": first })
            } else {
                Json::Array(first)
            }
        }
        other => match other.as_u64() {
            Some(v) => json!(v),
            None => return Err(err!(Internal, "{other:?} has no JSON form")),
        },
    })
}

fn text(d: &Document) -> String {
    const LONGEST: usize = 100;
    let mut out = format!("{} ({}, {}-endian)\n", d.file, d.format, d.byte_order);
    for (key, value) in &d.metadata {
        let value = match value {
            Json::String(s) => s.escape_debug().to_string(),
            other => other.to_string(),
        };
        let short: String = value.chars().take(LONGEST).collect();
        let more = if short.len() < value.len() { "…" } else { "" };
        let key = shortened(&key.escape_debug().to_string());
        out += &format!("metadata {key} = {short}{more}\n");
    }
    out += &format!(
        "tensors {} with {} elements, {}\n",
        d.tensors.len(),
        d.elements,
        bytes(Some(d.bytes))
    );
    let mut rows = vec![row(["  name", "type", "shape", "bytes"])];
    for t in &d.tensors {
        let extents: Vec<String> = t.shape.iter().map(usize::to_string).collect();
        rows.push(vec![
            format!("  {}", t.name.escape_debug()),
            t.r#type.clone(),
            format!("[{}]", extents.join(",")),
            bytes(Some(t.bytes)),
        ]);
    }
    out + &table(&rows)
}
