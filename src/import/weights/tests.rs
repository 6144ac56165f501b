//! Weights of small files through every scheme.

use std::path::Path;

use half::f16;

use super::*;
use crate::import::gguf::write::Writer;
use crate::tensor::Buffer;
use crate::{DType, Error, ErrorKind, Tensor, graph::Fact};

/// A safetensors file of tensors with dtype, shape and bytes.
fn safetensors(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert((*name).to_owned(), entry);
        data.extend(*bytes);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    // As writers do it, so that the data can be read where they lie.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend(data);
    out
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn halfs(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
}

/// A row of 32 weights of Q8_0: 0 to 15.5 in steps of a half.
fn q8_row() -> Vec<u8> {
    let mut row = halfs(&[0.5]);
    row.extend(0..32_u8);
    row
}

const W: [f32; 6] = [1.0, -2.0, 3.0, 4.5, 0.0, 6.0];

/// A folder with `w` as f32[2,3] in each format, and an f16, an i64 and a block tensor.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let ids: Vec<u8> = [7_i64, -7].iter().flat_map(|v| v.to_le_bytes()).collect();
    write(
        "m.safetensors",
        &safetensors(&[
            ("w", "F32", &[2, 3], &floats(&W)),
            ("half", "F16", &[2, 3], &halfs(&W)),
            ("ids", "I64", &[2], &ids),
            ("a#b", "F32", &[6], &floats(&W)),
            ("scale", "F8_E8M0", &[4], &[1, 2, 3, 4]),
        ]),
    );
    let mut gguf = Writer::new(3, false);
    gguf.tensor("w", &[3, 2], 0, &floats(&W));
    gguf.tensor("q", &[32, 1], 8, &q8_row());
    gguf.tensor("iq", &[256], 19, &[0; 50]);
    write("m.gguf", &gguf.finish());
    write("w.bin", &floats(&W));
    let w = Tensor::from_slice([2, 3], &W).unwrap();
    crate::import::write_npy(folder.path().join("w.npy"), &w).unwrap();
    folder
}

fn at(folder: &Path) -> WeightCache {
    WeightCache::new().with_base(folder)
}

fn fails(result: Result<Tensor, Error>, kind: ErrorKind, words: &[&str]) {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

#[test]
fn every_scheme_reads_the_same_weight() {
    let folder = folder();
    let cache = at(folder.path());
    let absolute = folder.path().display();
    for uri in [
        "safetensors://m.safetensors#w",
        "safetensors://./m%2Esafetensors#%77",
        "gguf://m.gguf#w",
        "npy://w.npy",
        "file://w.bin?shape=2,3",
        "file://w.bin?dtype=f32&shape=2,3&offset=0",
        &format!("safetensors://{absolute}/m.safetensors#w"),
        &format!("gguf://{absolute}/m.gguf#w"),
    ] {
        let w = cache.typed(uri).unwrap();
        assert_eq!(
            (w.describe().as_str(), w.as_slice::<f32>().unwrap()),
            ("f32[2,3]", &W[..]),
            "{uri}"
        );
        assert_eq!(cache.f32(uri).unwrap(), w, "{uri}");
        assert_eq!(cache.bytes(uri).unwrap().as_bytes(), floats(&W), "{uri}");
    }
    assert_eq!(
        cache.f32("safetensors://m.safetensors#half").unwrap().as_slice::<f32>().unwrap(),
        W
    );
    assert_eq!(cache.f32("safetensors://m.safetensors#a%23b").unwrap().len(), 6);
    let ids = cache.typed("safetensors://m.safetensors#ids").unwrap();
    assert_eq!(ids.as_slice::<i64>().unwrap(), [7, -7]);
    let tail = cache.typed("file://w.bin?shape=2&offset=16").unwrap();
    assert_eq!(tail.as_slice::<f32>().unwrap(), [0.0, 6.0]);
    let q = cache.typed("gguf://m.gguf#q").unwrap();
    assert_eq!(q.as_slice::<f32>().unwrap()[31], 15.5);
    assert_eq!(cache.stored("gguf://m.gguf#q").unwrap().describe(), "Q8_0[1,32]");
    assert_eq!(cache.bytes("gguf://m.gguf#q").unwrap().as_bytes(), q8_row());
}

#[test]
fn what_cannot_be_read_is_an_error_that_names_it() {
    let folder = folder();
    std::fs::write(folder.path().join("odd.bin"), [0; 7]).unwrap();
    let cache = at(folder.path());
    use ErrorKind as K;
    let cases: &[(&str, K, &[&str])] = &[
        ("safetensors://m.safetensors#v", K::UnknownName, &["`v`", "m.safetensors"]),
        ("safetensors://m.safetensors", K::Usage, &["names no tensor", "inspect"]),
        ("safetensors://m.safetensors?x=1#w", K::Usage, &["`x`"]),
        ("safetensors://m.safetensors#ids", K::DType, &["i64[2]"]),
        ("safetensors://m.safetensors#scale", K::Unsupported, &["`scale`", "F8_E8M0"]),
        ("safetensors://m.gguf#w", K::Format, &["m.gguf", "GGUF"]),
        ("gguf://m.safetensors#w", K::Format, &["m.safetensors"]),
        ("gguf://m.gguf#iq", K::Unsupported, &["`iq`", "IQ1_S"]),
        ("gguf://gone.gguf#w", K::Io, &["gone.gguf"]),
        ("gguf://.#w", K::Io, &["is a folder"]),
        ("file:///dev/zero", K::Io, &["regular file"]),
        ("file://odd.bin", K::Format, &["7 bytes"]),
        ("file://w.bin?shape=2", K::Shape, &["8 bytes", "24"]),
        ("file://w.bin?shape=7", K::Shape, &["28 bytes", "24"]),
        ("file://w.bin?shape=6&offset=4", K::Shape, &["24 bytes", "20"]),
        ("file://w.bin?offset=25", K::Format, &["25"]),
        ("file://w.bin?shape=18446744073709551615,2", K::Limit, &["too many"]),
        ("file://w.bin?shape=2,x", K::Usage, &["`x`"]),
        ("file://w.bin?dtype=f33", K::DType, &["f33"]),
        ("file://w.bin?dtype=string", K::DType, &["string"]),
        ("file://w.bin#w", K::Usage, &["`w`"]),
        ("npy://w.bin", K::Format, &[".npy"]),
        ("ftp://w.bin", K::UnknownName, &["`ftp`", "gguf"]),
        ("w.bin", K::Usage, &["SCHEME://"]),
    ];
    for (uri, kind, words) in cases {
        fails(cache.f32(uri), *kind, words);
        fails(cache.f32(uri), *kind, &[uri]);
    }
    // A URI of a float parameter reads its shape from the declaration.
    let fact = Fact::concrete(DType::F32, &[3, 2]);
    assert_eq!(
        cache.load(&WeightRef::new("w", "file://w.bin"), &fact).unwrap().shape().to_vec(),
        [3, 2]
    );
}

#[test]
fn a_parameter_gets_what_it_declares_or_an_error_with_both_sides() {
    let folder = folder();
    let cache = at(folder.path());
    let load = |uri: &str, dtype, shape: &[usize]| {
        cache.load(&WeightRef::new("layer.w", uri), &Fact::concrete(dtype, shape))
    };
    let (st, gg) = ("safetensors://m.safetensors#", "gguf://m.gguf#");
    assert_eq!(load(&format!("{st}half"), DType::F32, &[2, 3]).unwrap().dtype(), DType::F32);
    assert_eq!(load(&format!("{st}half"), DType::F16, &[2, 3]).unwrap().dtype(), DType::F16);
    assert_eq!(load(&format!("{gg}q"), DType::F32, &[1, 32]).unwrap().len(), 32);
    let both = ["`layer.w`", "f32[3,2]", "f32[2,3]"];
    fails(load(&format!("{st}w"), DType::F32, &[3, 2]), ErrorKind::Shape, &both);
    fails(load(&format!("{st}w"), DType::F32, &[6]), ErrorKind::Shape, &["f32[6]", "f32[2,3]"]);
    fails(
        load(&format!("{st}w"), DType::F16, &[2, 3]),
        ErrorKind::DType,
        &["f16[2,3]", "f32[2,3]"],
    );
    fails(load(&format!("{st}ids"), DType::F32, &[2]), ErrorKind::DType, &["f32[2]", "i64[2]"]);
    fails(load(&format!("{gg}q"), DType::F16, &[1, 32]), ErrorKind::DType, &["Q8_0[1,32]"]);
    fails(load(&format!("{gg}q"), DType::F32, &[32, 1]), ErrorKind::Shape, &["Q8_0[1,32]"]);
    let packed = |uri: &str, shape: &[usize]| {
        let weight = WeightRef::new("q", uri).packed();
        cache.load(&weight, &Fact::concrete(DType::U8, shape))
    };
    let q = packed(&format!("{gg}q"), &[1, 34]).unwrap();
    assert_eq!(q.as_bytes(), q8_row());
    fails(packed(&format!("{gg}q"), &[1, 32]), ErrorKind::Shape, &["Q8_0[1,32]", "packed"]);
    fails(packed(&format!("{st}w"), &[2, 12]), ErrorKind::DType, &["in no blocks"]);
}

#[test]
fn a_file_is_parsed_once_for_all_threads_and_decoded_once_for_all_who_hold_it() {
    let folder = folder();
    let cache = at(folder.path());
    let first = cache.typed("safetensors://m.safetensors#w").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let w = cache.clone().typed("safetensors://m.safetensors#w").unwrap();
                    assert!(w.buffer().same_memory(first.buffer()));
                    cache.f32("gguf://m.gguf#q").unwrap();
                }
            });
        }
    });
    let stats = cache.stats();
    assert_eq!((stats.files, stats.parses, stats.loads), (2, 2, 321), "{stats:?}");
    let (a, b) = (cache.f32("gguf://m.gguf#q").unwrap(), cache.f32("gguf://m.gguf#q").unwrap());
    assert!(a.buffer().same_memory(b.buffer()));
    drop((a, b));
    assert_eq!(cache.f32("gguf://m.gguf#q").unwrap().as_slice::<f32>().unwrap()[2], 1.0);
    // Replaced by renaming, and forgotten: the new file is read; who holds the old one keeps it.
    let new = folder.path().join("new");
    std::fs::write(&new, safetensors(&[("w", "F32", &[1], &floats(&[9.0]))])).unwrap();
    std::fs::rename(&new, folder.path().join("m.safetensors")).unwrap();
    cache.clear();
    assert_eq!(cache.typed("safetensors://m.safetensors#w").unwrap().len(), 1);
    assert_eq!(first.as_slice::<f32>().unwrap(), W);
}

#[test]
fn a_failed_file_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = at(folder.path());
    assert!(cache.typed("npy://late.npy").is_err());
    crate::import::write_npy(folder.path().join("late.npy"), &Tensor::scalar(1.0_f32)).unwrap();
    assert!(cache.typed("npy://late.npy").is_ok());
}

#[test]
fn sharded_safetensors_are_found_by_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("m-1-of-2.safetensors", &safetensors(&[("a", "F32", &[6], &floats(&W))]));
    write("m-2-of-2.safetensors", &safetensors(&[("b", "F32", &[1], &floats(&[8.0]))]));
    let index = |map: &str| write("m.safetensors.index.json", format!("{{{map}}}").as_bytes());
    let get = |tensor: &str| {
        at(folder.path()).typed(&format!("safetensors://m.safetensors.index.json#{tensor}"))
    };
    index(
        r#""metadata":{"total_size":28},"weight_map":{"a":"m-1-of-2.safetensors",
        "b":"m-2-of-2.safetensors","c":"m-2-of-2.safetensors","gone":"m-3.safetensors"}"#,
    );
    assert_eq!(get("a").unwrap().len(), 6);
    assert_eq!(get("b").unwrap().item::<f32>().unwrap(), 8.0);
    fails(get("c"), ErrorKind::UnknownName, &["`c`"]);
    fails(get("d"), ErrorKind::UnknownName, &["`d`", "index.json"]);
    fails(get("gone"), ErrorKind::Io, &["m-3.safetensors"]);
    for shard in ["../m-1-of-2.safetensors", "/etc/passwd", "sub/x", "..", ""] {
        index(&format!(r#""weight_map":{{"a":"{shard}"}}"#));
        fails(get("a"), ErrorKind::Format, &["`a`", "beside"]);
    }
    index(r#""weight_map":{"a":"m-1-of-2.safetensors","a":"m-2-of-2.safetensors"}"#);
    fails(get("a"), ErrorKind::Duplicate, &["`a`"]);
    for bad in [r#""weight_map":[]"#, r#""weight_map":{"a":1}"#, ""] {
        index(bad);
        fails(get("a"), ErrorKind::Format, &["index.json"]);
    }
}

fn part(number: u32, count: u32, tensors: &[(&str, f32)], total: Option<u32>) -> Vec<u8> {
    let mut w = Writer::new(3, false);
    for (key, value) in
        [("split.no", Some(number)), ("split.count", Some(count)), ("split.tensors.count", total)]
    {
        if let Some(value) = value {
            let bytes = w.u32(value);
            w.value(key, 4, bytes);
        }
    }
    for (name, value) in tensors {
        w.tensor(name, &[1], 0, &floats(&[*value]));
    }
    w.finish()
}

#[test]
fn a_split_gguf_is_one_model_by_any_of_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let name = |n: u32| format!("m-{n:05}-of-00003.gguf");
    let get =
        |n: u32, tensor: &str| at(folder.path()).typed(&format!("gguf://{}#{tensor}", name(n)));
    write(&name(1), &part(0, 3, &[("a", 1.0)], Some(3)));
    write(&name(2), &part(1, 3, &[("b", 2.0)], None));
    fails(get(1, "a"), ErrorKind::Io, &["m-00003-of-00003.gguf", "3 parts"]);
    write(&name(3), &part(2, 3, &[("c", 3.0)], None));
    for (tensor, value) in [("a", 1.0), ("b", 2.0), ("c", 3.0)] {
        for n in 1..=3 {
            assert_eq!(get(n, tensor).unwrap().item::<f32>().unwrap(), value);
        }
    }
    fails(get(1, "d"), ErrorKind::UnknownName, &["`d`"]);
    // Each part is parsed once.
    let cache = at(folder.path());
    cache.typed(&format!("gguf://{}#c", name(1))).unwrap();
    cache.typed(&format!("gguf://{}#a", name(1))).unwrap();
    assert_eq!(cache.stats().parses, 3);
    write("other.gguf", &part(0, 3, &[("a", 1.0)], None));
    fails(
        at(folder.path()).typed("gguf://other.gguf#a"),
        ErrorKind::Format,
        &["part 1 of 3", "-00001-of-00003.gguf"],
    );
    write(&name(3), &part(1, 3, &[("c", 3.0)], None));
    fails(get(1, "a"), ErrorKind::Format, &["not part 3"]);
    write(&name(3), &part(2, 3, &[("a", 3.0)], None));
    fails(get(1, "a"), ErrorKind::Duplicate, &["`a`", "part 1", "part 3"]);
    write(&name(3), &part(2, 3, &[("c", 3.0), ("d", 4.0)], None));
    fails(get(1, "a"), ErrorKind::Format, &["4 tensors", "3"]);
    write(&name(1), &part(3, 3, &[("a", 1.0)], None));
    fails(get(1, "a"), ErrorKind::Format, &["of Some(3)"]);
}

#[test]
fn weights_are_read_below_the_roots_only() {
    let all = tempfile::tempdir().unwrap();
    let inside = all.path().join("in");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(inside.join("w"), floats(&W)).unwrap();
    std::fs::write(all.path().join("secret"), floats(&W)).unwrap();
    let cache = WeightCache::new().with_root(&inside).unwrap();
    assert_eq!(cache.f32("file://w").unwrap().len(), 6);
    let secret = all.path().join("secret").display().to_string();
    let escaped = secret.replace('/', "%2F");
    for uri in [
        "file://../secret",
        "file://%2E%2E/secret",
        &format!("file://{secret}"),
        &format!("file://{escaped}"),
    ] {
        fails(cache.f32(uri), ErrorKind::Usage, &["below the weight roots"]);
    }
    // A mapped file of a cache without roots is not reached through its clone with roots.
    let free = WeightCache::new();
    free.f32(&format!("file://{secret}")).unwrap();
    let bound = free.clone().with_root(&inside).unwrap();
    fails(bound.f32(&format!("file://{secret}")), ErrorKind::Usage, &["below the weight roots"]);
}

#[test]
fn a_scheme_of_ones_own_keeps_its_errors_and_may_stand_in_for_a_built_in_one() {
    let schemes = WeightSchemes::default()
        .with("none", |r| {
            Err(Error::new(ErrorKind::Missing, format!("nothing at {}", r.uri().path().display())))
        })
        .and_then(|s| {
            s.with("npy", |r| {
                assert!(r.declared().is_none_or(|f| f.dtype == Some(DType::F32)));
                let bytes = Buffer::copy_of(&floats(&[5.0]));
                StoredWeight::new(WeightType::Plain(DType::F32), [1], bytes)
            })
        })
        .unwrap();
    assert!(
        schemes.names().contains(&"none")
            && schemes.clone().with("No", |_| unreachable!()).is_err()
    );
    let cache = WeightCache::new().with_schemes(schemes);
    fails(cache.f32("none://x"), ErrorKind::Missing, &["nothing at x", "none://x"]);
    assert_eq!(cache.f32("npy://no/file").unwrap().item::<f32>().unwrap(), 5.0);
    let weight = WeightRef::new("p", "npy://no/file");
    fails(
        cache.load(&weight, &Fact::concrete(DType::F32, &[2])),
        ErrorKind::Shape,
        &["`p`", "f32[2]"],
    );
}

#[test]
fn progress_is_told_after_each_weight() {
    let folder = folder();
    let (send, told) = std::sync::mpsc::channel();
    let cache = at(folder.path()).on_load(move |p| {
        send.send((p.uri.to_string(), p.bytes, p.so_far.loads)).unwrap();
    });
    cache.f32("npy://w.npy").unwrap();
    assert!(cache.f32("npy://no.npy").is_err());
    cache.f32("gguf://m.gguf#q").unwrap();
    drop(cache);
    let told: Vec<_> = told.iter().collect();
    assert_eq!(told, [("npy://w.npy".to_owned(), 24, 1), ("gguf://m.gguf#q".to_owned(), 34, 2)]);
}
