//! A corpus of malformed weight files, made here and read as a program reads them: from a folder, mapped,
//! by URI. Each is refused with a message that names the file and the tensor that is wrong in it, and
//! before memory is taken for what it claims.

use std::path::Path;

use brigade::{ErrorKind, Tensor, WeightCache};

/// A file of the corpus: what is wrong with it, its bytes, and what the message must say.
struct Malformed {
    what: String,
    bytes: Vec<u8>,
    says: &'static [&'static str],
}

fn malformed(what: impl Into<String>, bytes: Vec<u8>, says: &'static [&'static str]) -> Malformed {
    Malformed { what: what.into(), bytes, says }
}

/// A tensor of a GGUF file: name, extents with the innermost first, type, offset.
type Entry<'a> = (&'a str, &'a [u64], u32, u64);

const F32: u32 = 0;
const Q8_0: u32 = 8;
const ALIGNMENT: usize = 32;

fn gguf_text(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

/// A GGUF file of version 3 with these claims, and so many bytes of data.
fn gguf(metadata: &[(&str, u32)], tensors: &[Entry<'_>], data: usize) -> Vec<u8> {
    const U32: u32 = 4;
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        out.extend(gguf_text(key));
        out.extend(U32.to_le_bytes());
        out.extend(value.to_le_bytes());
    }
    for (name, extents, kind, offset) in tensors {
        out.extend(gguf_text(name));
        out.extend((extents.len() as u32).to_le_bytes());
        extents.iter().for_each(|e| out.extend(e.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out.extend(std::iter::repeat_n(0, data));
    out
}

/// A safetensors file with this header and so many bytes of data.
fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(std::iter::repeat_n(0, data));
    out
}

fn entry(name: &str, dtype: &str, shape: &str, from: u64, to: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
}

fn npy(descr: &str, shape: &str, data: usize) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(std::iter::repeat_n(0, data));
    out
}

/// A format: its files, how the tensor `bad` of one is asked for, and one that is well formed.
struct Format {
    uri: &'static str,
    sound: Vec<u8>,
}

fn formats() -> [Format; 3] {
    let both =
        format!("{{{},{}}}", entry("good", "F32", "[2]", 0, 8), entry("bad", "F32", "[1]", 8, 12));
    [
        Format {
            uri: "gguf://FILE#bad",
            sound: gguf(
                &[("general.alignment", 32)],
                &[("good", &[32], Q8_0, 0), ("bad", &[2, 1], F32, 64)],
                72,
            ),
        },
        Format { uri: "safetensors://FILE#bad", sound: safetensors(&both, 12) },
        Format { uri: "npy://FILE", sound: npy("<f4", "(2,)", 8) },
    ]
}

/// What a fresh cache makes of these bytes as a file of this name.
fn load(folder: &Path, name: &str, bytes: &[u8], uri: &str) -> brigade::Result<Tensor> {
    // Files are replaced, never changed: they are mapped.
    let path = folder.join(name);
    let new = folder.join("new");
    std::fs::write(&new, bytes).unwrap();
    std::fs::rename(&new, &path).unwrap();
    WeightCache::new().with_root(folder).unwrap().f32(&uri.replace("FILE", name))
}

fn is_refused(uri: &str, corpus: &[Malformed]) {
    let folder = tempfile::tempdir().unwrap();
    for Malformed { what, bytes, says } in corpus {
        match load(folder.path(), "corpus.bin", bytes, uri) {
            Ok(tensor) => panic!("{uri}, {what}: gave {}", tensor.describe()),
            Err(error) => {
                let text = error.to_string();
                assert_ne!(error.kind(), ErrorKind::Panic, "{uri}, {what}: {text}");
                assert!(
                    text.contains("corpus.bin"),
                    "{uri}, {what} does not name the file: {text}"
                );
                for word in *says {
                    assert!(text.contains(word), "{uri}, {what}: no {word:?} in: {text}");
                }
            }
        }
    }
}

/// The most virtual memory that this process ever had, in bytes.
#[cfg(target_os = "linux")]
fn most_memory() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmPeak:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
fn scenario_36_every_truncation_of_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for Format { uri, sound } in formats() {
        load(folder.path(), "sound.bin", &sound, uri).unwrap();
        let cut = (0..sound.len())
            .map(|end| malformed(format!("cut at {end}"), sound[..end].to_vec(), &[]));
        is_refused(uri, &cut.collect::<Vec<_>>());
    }
}

/// Each is under 200 bytes and asks for gigabytes and more, by a product that fits into 64 bits and by
/// ones that do not.
#[test]
fn scenario_36_small_files_that_ask_for_gigabytes_are_refused_before_memory_is_taken() {
    #[cfg(target_os = "linux")]
    let before = most_memory();
    let one = |extents: &[u64], offset: u64| gguf(&[], &[("bad", extents, F32, offset)], 64);
    let mut corpus = vec![
        malformed("16 GiB", one(&[1 << 16, 1 << 16], 0), &["`bad`"]),
        malformed("2^64 elements and one", one(&[1 << 32, 1 << 32, 1], 0), &["`bad`"]),
        malformed("a product of 0 mod 2^64", one(&[1 << 33, 1 << 31, 2], 0), &["`bad`"]),
        malformed("the largest extents", one(&[u64::MAX, u64::MAX], 0), &["`bad`"]),
        malformed("bytes that overflow", one(&[1 << 62], 0), &["`bad`"]),
        malformed("an offset beyond the file", one(&[4], 1 << 40), &["`bad`"]),
        malformed("an offset that overflows", one(&[4], u64::MAX - 31), &["`bad`"]),
        malformed("an offset between alignments", one(&[4], 7), &["`bad`"]),
    ];
    for alignment in [0, 3, 1 << 30, u32::MAX] {
        let bytes = gguf(&[("general.alignment", alignment)], &[("bad", &[4], F32, 0)], 64);
        corpus.push(malformed(format!("alignment {alignment}"), bytes, &["general.alignment"]));
    }
    // Counts: of tensors, of metadata, of the letters of a name.
    for at in [8, 16, 24] {
        let mut bytes = one(&[4], 0);
        bytes[at..at + 8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        corpus.push(malformed(format!("2^60 at byte {at}"), bytes, &[]));
    }
    assert!(corpus.iter().all(|m| m.bytes.len() <= 192));
    is_refused("gguf://FILE#bad", &corpus);

    let one = |dtype: &str, shape: &str, to: u64| {
        safetensors(&format!("{{{}}}", entry("bad", dtype, shape, 0, to)), 16)
    };
    let mut corpus = vec![
        malformed("16 GiB", one("F32", "[65536,65536]", 1 << 34), &["`bad`"]),
        malformed("a product of 0 mod 2^64", one("F32", "[4294967296,4294967296]", 0), &["`bad`"]),
        malformed("the largest extent", one("F32", "[18446744073709551615]", 16), &["`bad`"]),
        malformed("an end beyond the file", one("F32", "[4]", u64::MAX), &["`bad`"]),
    ];
    for claim in [1_u64 << 30, 1 << 60, u64::MAX] {
        let mut bytes = one("F32", "[4]", 16);
        bytes[..8].copy_from_slice(&claim.to_le_bytes());
        corpus.push(malformed(format!("a header of {claim} bytes"), bytes, &[]));
    }
    is_refused("safetensors://FILE#bad", &corpus);

    let mut corpus: Vec<Malformed> =
        ["(4294967296,)", "(65536, 65536)", "(4294967296, 4294967296)", "(18446744073709551616,)"]
            .iter()
            .map(|shape| malformed(*shape, npy("<f4", shape, 16), &[]))
            .collect();
    let mut long = b"\x93NUMPY\x02\x00".to_vec();
    long.extend([255; 4]);
    corpus.push(malformed("a header of 4 GiB", long, &[]));
    is_refused("npy://FILE", &corpus);

    // Tests beside this one take some, too.
    #[cfg(target_os = "linux")]
    {
        let taken = most_memory() - before;
        assert!(taken < 2 << 30, "{taken} bytes of address space for files of 200 bytes");
    }
}

#[test]
fn scenario_37_tensors_that_contradict_each_other_or_the_file_are_refused_by_name() {
    let two = |bad: Entry<'_>, data: usize| gguf(&[], &[("good", &[16], F32, 0), bad], data);
    is_refused(
        "gguf://FILE#bad",
        &[
            malformed(
                "within another",
                two(("bad", &[4], F32, 32), 64),
                &["`bad`", "`good`", "overlap"],
            ),
            malformed(
                "the same place",
                two(("bad", &[16], F32, 0), 64),
                &["`bad`", "`good`", "overlap"],
            ),
            malformed("beyond the end", two(("bad", &[4], F32, 64), 64), &["`bad`"]),
            malformed("half beyond the end", two(("bad", &[4], F32, 64), 72), &["`bad`"]),
            malformed("no whole blocks", two(("bad", &[33], Q8_0, 64), 256), &["`bad`", "blocks"]),
            malformed("an unknown type", two(("bad", &[4], 999, 64), 256), &["`bad`", "999"]),
            malformed(
                "a name twice",
                gguf(&[], &[("bad", &[4], F32, 0), ("bad", &[4], F32, 32)], 64),
                &["`bad`"],
            ),
        ],
    );
    let st =
        |entries: &[String], data: usize| safetensors(&format!("{{{}}}", entries.join(",")), data);
    let good = || entry("good", "F32", "[4]", 0, 16);
    is_refused(
        "safetensors://FILE#bad",
        &[
            malformed(
                "within another",
                st(&[good(), entry("bad", "F32", "[2]", 8, 16)], 16),
                &["`bad`"],
            ),
            malformed(
                "the same place",
                st(&[good(), entry("bad", "F32", "[4]", 0, 16)], 16),
                &["`bad`", "`good`"],
            ),
            malformed(
                "beyond the end",
                st(&[good(), entry("bad", "F32", "[4]", 16, 32)], 20),
                &["`bad`"],
            ),
            malformed(
                "a gap before it",
                st(&[good(), entry("bad", "F32", "[1]", 20, 24)], 24),
                &["`bad`"],
            ),
            malformed(
                "fewer bytes",
                st(&[good(), entry("bad", "F32", "[4]", 16, 20)], 20),
                &["`bad`"],
            ),
            malformed(
                "more bytes",
                st(&[good(), entry("bad", "F32", "[1]", 16, 24)], 24),
                &["`bad`"],
            ),
            malformed(
                "backwards",
                st(&[good(), entry("bad", "F32", "[1]", 20, 16)], 20),
                &["`bad`"],
            ),
            malformed(
                "an unknown dtype",
                st(&[entry("bad", "X9", "[1]", 0, 4)], 4),
                &["`bad`", "X9"],
            ),
            malformed(
                "a name twice",
                st(&[entry("bad", "F32", "[1]", 0, 4), entry("bad", "F32", "[1]", 4, 8)], 8),
                &["`bad`"],
            ),
            malformed(
                "data of no tensor",
                st(&[entry("bad", "F32", "[1]", 0, 4)], 9),
                &["5 bytes"],
            ),
        ],
    );
    is_refused(
        "npy://FILE",
        &[
            malformed("fewer bytes", npy("<f4", "(3,)", 11), &["truncated"]),
            malformed("more bytes", npy("<f4", "(3,)", 13), &["left over"]),
            malformed("a negative extent", npy("<f4", "(-1,)", 4), &[]),
            malformed("objects", npy("|O", "(1,)", 8), &["objects"]),
            malformed("no header", b"\x93NUMPY\x01\x00\x00\x00".to_vec(), &[]),
        ],
    );
}

#[test]
fn scenario_37_tensors_without_elements_are_read_and_change_nothing_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        (
            "gguf://FILE#",
            gguf(
                &[],
                &[("none", &[0, 5], F32, 0), ("one", &[2], F32, 0), ("end", &[3, 0], F32, 32)],
                32,
            ),
        ),
        (
            "safetensors://FILE#",
            safetensors(
                &format!(
                    "{{{},{},{}}}",
                    entry("none", "F32", "[5,0]", 0, 0),
                    entry("one", "F32", "[2]", 0, 8),
                    entry("end", "F32", "[0,3]", 8, 8)
                ),
                8,
            ),
        ),
    ];
    for (uri, bytes) in files {
        for (name, shape) in [("none", &[5, 0][..]), ("one", &[2]), ("end", &[0, 3])] {
            let tensor = load(folder.path(), "empty.bin", &bytes, &format!("{uri}{name}")).unwrap();
            assert_eq!(tensor.shape().to_vec(), shape, "{uri}{name}");
            assert!(tensor.as_slice::<f32>().unwrap().iter().all(|v| *v == 0.0));
        }
    }
    let tensor = load(folder.path(), "empty.npy", &npy("<f4", "(0, 7)", 0), "npy://FILE").unwrap();
    assert_eq!(tensor.shape().to_vec(), [0, 7]);
}
