//! The rules of ARCHITECTURE.md that a program can check: which room may use which, how large a
//! file may grow, that nothing stands outside of its table.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Whether the file is a module of tests alone, by its declaration in the file above it.
fn is_for_tests(file: &Path) -> bool {
    let (Some(folder), Some(stem)) = (file.parent(), file.file_stem()) else {
        return false;
    };
    let declared = format!("#[cfg(test)]\nmod {};", stem.to_string_lossy());
    let above = [folder.join("mod.rs"), folder.with_extension("rs")];
    above
        .iter()
        .any(|parent| std::fs::read_to_string(parent).is_ok_and(|text| text.contains(&declared)))
}

/// What each room of `src/` may use of the others.
const ARROWS: &[(&str, &[&str])] = &[
    ("kernels", &[]),
    ("tensor", &["error"]),
    ("graph", &["error", "tensor"]),
    ("ops", &["error", "tensor", "graph", "kernels"]),
    ("passes", &["error", "tensor", "graph", "ops"]),
    ("import", &["error", "tensor", "graph", "kernels"]),
    // Of `import` the names of weights alone: devices of workers read them where they are.
    ("gpu", &["error", "tensor", "graph", "ops"]),
    ("device", &["error", "tensor", "graph", "ops", "passes", "import", "gpu"]),
    ("partition", &["error", "tensor", "graph", "device"]),
    (
        "pipeline",
        &["error", "tensor", "graph", "ops", "passes", "device", "partition", "import", "registry"],
    ),
    ("check", &["error", "tensor", "graph", "ops", "import", "device", "partition", "pipeline"]),
    ("cluster", &["error", "tensor", "graph", "ops", "import", "device", "pipeline", "registry"]),
];

/// The names at the crate's root, and the rooms that they come from.
const RE_EXPORTS: &[(&str, &str)] = &[
    ("Error", "error"),
    ("ErrorKind", "error"),
    ("Result", "error"),
    ("Tensor", "tensor"),
    ("Value", "tensor"),
    ("DType", "tensor"),
    ("Shape", "tensor"),
    ("DeviceId", "device"),
    ("WeightCache", "import"),
];

#[test]
fn rooms_use_only_what_they_may() {
    let names: BTreeMap<&str, &str> = RE_EXPORTS.iter().copied().collect();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (room, allowed) in ARROWS {
        let mut files = Vec::new();
        rust_files(&root().join("src").join(room), &mut files);
        assert!(!files.is_empty(), "there is no room {room}");
        for file in files.into_iter().filter(|file| !is_for_tests(file)) {
            let text = std::fs::read_to_string(&file).unwrap();
            // Tests may look further.
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for line in text.lines().filter(|l| !l.trim_start().starts_with("//")) {
                for part in line.split("crate::").skip(1) {
                    let name: String =
                        part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    let target = names.get(name.as_str()).copied().unwrap_or(&name);
                    checked += 1;
                    if !target.is_empty() && target != *room && !allowed.contains(&target) {
                        wrong.push(format!("{}: {}", file.display(), line.trim()));
                    }
                }
            }
        }
    }
    assert!(checked > 100, "only {checked} uses found");
    assert!(wrong.is_empty(), "uses against the arrows:\n{}", wrong.join("\n"));
}

#[test]
fn no_file_outgrows_its_room() {
    const LARGEST: usize = 1_200;
    let mut files = Vec::new();
    for folder in ["src", "actors", "tests", "benches", "examples"] {
        let folder = root().join(folder);
        if folder.is_dir() {
            rust_files(&folder, &mut files);
        }
    }
    assert!(files.len() > 50);
    for file in files {
        if file.ends_with("onnx/pb.rs") {
            continue; // generated
        }
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= LARGEST, "{} has {lines} lines", file.display());
    }
}

#[test]
fn every_pass_and_operator_file_stands_in_its_table() {
    for (folder, table) in [("src/passes", "src/passes/mod.rs"), ("src/ops", "src/ops/mod.rs")] {
        let text = std::fs::read_to_string(root().join(table)).unwrap();
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if stem != "mod" {
                assert!(text.contains(&format!("mod {stem};")), "{table} lacks `mod {stem};`");
            }
        }
    }
}

#[test]
fn every_fuzz_target_is_declared_and_driven_by_an_ordinary_test() {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let (manifest, readme) =
        (read(&root().join("fuzz/Cargo.toml")), read(&root().join("fuzz/README.md")));
    let mut sources = Vec::new();
    rust_files(&root().join("src"), &mut sources);
    rust_files(&root().join("actors/src"), &mut sources);
    let sources: Vec<String> = sources.iter().map(|f| read(f)).collect();
    let mut targets = Vec::new();
    rust_files(&root().join("fuzz/fuzz_targets"), &mut targets);
    assert!(targets.len() >= 5);
    for target in targets {
        let name = target.file_stem().unwrap().to_str().unwrap();
        let path = format!("path = \"fuzz_targets/{name}.rs\"");
        assert!(manifest.contains(&path), "fuzz/Cargo.toml lacks {path}");
        let text = read(&target);
        let function = text.split("::").last().and_then(|t| t.split('(').next()).unwrap();
        assert_eq!(function, format!("fuzz_{name}"), "{}", target.display());
        assert!(readme.contains(function), "fuzz/README.md lacks {function}");
        let calls = format!("{function}(");
        let driven = sources.iter().any(|s| {
            s.match_indices(&calls)
                .any(|(at, _)| !s[..at].ends_with("fn ") && s.contains("#[test]"))
        });
        assert!(driven, "no test drives {function}");
    }
}

#[test]
fn every_scenario_is_listed_with_tests_that_are_there() {
    let mut files = Vec::new();
    for folder in ["src", "actors", "tests"] {
        rust_files(&root().join(folder), &mut files);
    }
    let mut functions = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        for part in text.split("fn ").skip(1) {
            let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
            functions.insert(part.chars().take_while(is_name).collect::<String>());
        }
    }
    let list = std::fs::read_to_string(root().join("tests/scenarios.md")).unwrap();
    let mut listed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut others = 0;
    for row in list.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let &["", number, _, tests, ""] = cells.as_slice() else { continue };
        let names: BTreeSet<String> =
            tests.split('`').skip(1).step_by(2).map(String::from).collect();
        // A row of another table than that of the scenarios.
        if number.parse::<u32>().is_err() {
            for name in &names {
                assert!(functions.contains(name), "{number}: there is no test `{name}`");
            }
            others += usize::from(!names.is_empty());
            continue;
        }
        assert!(!names.is_empty() || tests.contains("*Not yet*"), "scenario {number}");
        for name in &names {
            assert!(functions.contains(name), "scenario {number}: there is no test `{name}`");
        }
        listed.insert(number.to_owned(), names);
    }
    assert_eq!((listed.len(), others), (40, 11));
    for function in &functions {
        let Some(rest) = function.strip_prefix("scenario_") else { continue };
        let number = rest.split('_').next().unwrap_or_default().trim_start_matches('0');
        let is_listed = listed.get(number).is_some_and(|names| names.contains(function));
        assert!(is_listed, "tests/scenarios.md lacks `{function}`");
    }
}

#[test]
fn handles_are_shared_between_threads() {
    const fn shared<T: Clone + Send + Sync>() {}
    shared::<brigade::Pipeline>();
    shared::<brigade::HeteroExecutable>();
    shared::<brigade::CompiledGraph>();
    shared::<brigade::Registry>();
    shared::<brigade::Tensor>();
    shared::<brigade::Error>();
}
