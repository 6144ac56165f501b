//! The program, run as its users run it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use brigade::import::{read_npy, write_npy};
use brigade::{DType, Tensor};
use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn digits(file: &str) -> PathBuf {
    Path::new(ROOT).join("examples/digits").join(file)
}

fn command<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brigade"));
    command.args(arguments);
    command
}

fn brigade<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    command(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The JSON document on standard output, which holds nothing else.
fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}\n{}", text(&output.stdout), text(&output.stderr)))
}

/// Splits a command line with `{name}` for paths.
fn words(line: &str, paths: &[(&str, &Path)]) -> Vec<String> {
    line.split_whitespace()
        .map(|w| {
            paths.iter().fold(w.to_owned(), |w, (name, path)| {
                w.replace(&format!("{{{name}}}"), path.to_str().unwrap())
            })
        })
        .collect()
}

/// Images `from..from + count` of the demo as its model takes them.
fn images(from: usize, count: usize) -> Tensor {
    let all = read_npy(digits("images.npy")).unwrap();
    let pixels: Vec<f32> = all.as_slice::<u8>().unwrap().iter().map(|p| f32::from(*p)).collect();
    Tensor::new(all.shape().clone(), pixels).unwrap().rows(from, count).unwrap()
}

fn probabilities(from: usize, count: usize) -> Tensor {
    read_npy(digits("probabilities.npy")).unwrap().rows(from, count).unwrap()
}

fn assert_close(got: &Tensor, want: &Tensor) {
    assert_eq!(got.describe(), want.describe());
    let (g, w) = (got.as_slice::<f32>().unwrap(), want.as_slice::<f32>().unwrap());
    for (g, w) in g.iter().zip(w) {
        assert!((g - w).abs() <= 1e-4, "{g} for {w}");
    }
}

/// A case folder that expects `want` of `count` images.
fn case(folder: &Path, name: &str, from: usize, count: usize, want: &Tensor) {
    let folder = folder.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    write_npy(folder.join("image.npy"), &images(from, count)).unwrap();
    write_npy(folder.join("probabilities.npy"), want).unwrap();
    let document = serde_json::json!({
        "case": name, "kind": "call",
        "inputs": [{"name": "image", "file": "image.npy"}],
        "outputs": [{"name": "probabilities", "file": "probabilities.npy",
                     "atol": 1e-4, "rtol": 0.0}],
    });
    std::fs::write(folder.join("case.json"), document.to_string()).unwrap();
}

#[test]
fn run_streams_a_folder_and_writes_what_the_reference_gives() {
    let folder = tempfile::tempdir().unwrap();
    let (items, out) = (folder.path().join("items"), folder.path().join("out"));
    std::fs::create_dir(&items).unwrap();
    for i in 0..12 {
        write_npy(items.join(format!("image {i:02}.npy")), &images(i, 1)).unwrap();
    }
    let trace = folder.path().join("trace.json");
    let model = digits("digits.onnx");
    let paths: [(&str, &Path); 4] = [("m", &model), ("i", &items), ("o", &out), ("t", &trace)];
    let output = brigade(&words(
        "run {m} --input {i} --output {o} --stages 2 --in-flight 3 --compare --trace {t} --json",
        &paths,
    ));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!(document["items"], 12);
    assert_eq!(document["bit_equal"], true);
    assert_eq!(document["in_flight"], 3);
    assert_eq!(document["placement"]["segments"].as_array().unwrap().len(), 2);
    let actors = document["pipeline"]["actors"].as_array().unwrap();
    assert_eq!(actors.len(), 2);
    assert!(document["pipeline"]["bound"].as_f64().unwrap() > 0.0);
    for i in 0..12 {
        let path = out.join(format!("image%20{i:02}.probabilities.npy"));
        assert_close(&read_npy(path).unwrap(), &probabilities(i, 1));
    }
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let firings = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X");
    // Two segments, twelve items.
    assert_eq!(firings.count(), 24);
}

#[test]
fn run_cuts_a_batch_into_micro_batches() {
    let folder = tempfile::tempdir().unwrap();
    let (batch, out) = (folder.path().join("batch.npy"), folder.path().join("out"));
    write_npy(&batch, &images(20, 10)).unwrap();
    let model = digits("digits.onnx");
    let paths: [(&str, &Path); 3] = [("m", &model), ("b", &batch), ("o", &out)];
    for flags in ["--stages 2 --compare", "--sequential", ""] {
        let line =
            format!("run {{m}} --input image={{b}} --output {{o}} --npz --micro-batch 4 {flags}");
        let output = brigade(&words(&line, &paths));
        assert!(output.status.success(), "{flags}: {}", text(&output.stderr));
        let arrays = brigade::import::read_npz(out.join("batch.npz")).unwrap();
        assert_eq!(arrays[0].0, "probabilities");
        assert_close(&arrays[0].1, &probabilities(20, 10));
    }
}

#[test]
fn a_bad_item_is_named_and_the_others_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let (items, out) = (folder.path().join("items"), folder.path().join("out"));
    std::fs::create_dir(&items).unwrap();
    write_npy(items.join("a.npy"), &images(0, 1)).unwrap();
    write_npy(items.join("b.npy"), &Tensor::zeros(DType::F32, [1, 3, 8, 8]).unwrap()).unwrap();
    std::fs::write(items.join("c.npy"), b"\x93NUMPY cut short").unwrap();
    write_npy(items.join("d.npy"), &images(1, 1)).unwrap();
    let model = digits("digits.onnx");
    let paths: [(&str, &Path); 3] = [("m", &model), ("i", &items), ("o", &out)];
    for flags in ["--stages 2", "--sequential"] {
        let line = format!("run {{m}} --input {{i}} --output {{o}} --json {flags}");
        let output = brigade(&words(&line, &paths));
        assert_eq!(output.status.code(), Some(1));
        let document = json(&output);
        let failed: Vec<&str> = document["failed"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| f["item"].as_str().unwrap())
            .collect();
        assert_eq!(failed, ["b", "c"], "{flags}");
        let errors = text(&output.stderr);
        assert!(errors.contains("item `b`") && errors.contains("[1,3,8,8]"), "{errors}");
        for (stem, at) in [("a", 0), ("d", 1)] {
            let path = out.join(format!("{stem}.probabilities.npy"));
            assert_close(&read_npy(path).unwrap(), &probabilities(at, 1));
        }
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn run_makes_items_up() {
    let model = digits("digits.onnx");
    let line = "run {m} --generate 4 --seed 3 --shape image=2,1,8,8 --device cpu:1 --json";
    let output = brigade(&words(line, &[("m", &model)]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!((&document["items"], &document["failed"]), (&4.into(), &Value::Array(vec![])));
    assert_eq!(document["placement"]["segments"][0]["device"], "cpu:1");
}

#[test]
fn run_tells_where_the_time_went() {
    let model = digits("digits.onnx");
    for (flags, actors) in [("", 1.0), ("--stages 2", 2.0), ("--sequential", 1.0)] {
        let line = format!("run {{m}} --generate 6 --shape image=4,1,8,8 --profile {flags}");
        let output = brigade(&words(&format!("{line} --json"), &[("m", &model)]));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let document = json(&output);
        let profile = &document["profile"];
        let number = |v: &Value, name: &str| v[name].as_f64().unwrap_or_else(|| panic!("{name}"));
        let nodes = profile["nodes"].as_array().unwrap();
        assert!(nodes.iter().all(|n| n["calls"] == 6), "{nodes:?}");
        assert!(nodes.iter().any(|n| n["op"].as_str().unwrap().contains("Conv")), "{nodes:?}");
        let sum: f64 = nodes.iter().map(|n| number(n, "seconds")).sum::<f64>()
            + number(profile, "between_nodes_s")
            + number(profile, "outside_s");
        let whole = number(profile, "wall_s") * actors;
        assert_eq!(number(profile, "actors"), actors);
        assert!((sum / whole - 1.0).abs() < 0.02, "{sum} of {whole}");
        // What is outside is not what should be inside, on any machine.
        assert!(number(profile, "outside_s") > 0.0);
        let output = brigade(&words(&line, &[("m", &model)]));
        let table = text(&output.stdout);
        assert!(table.contains("(between nodes)") && table.contains("furthest"), "{table}");
    }
    let output = brigade(&words("run {m} --generate 2 --json", &[("m", &model)]));
    assert!(json(&output)["profile"].is_null());
    let output = brigade(&words("run {m} --generate 2", &[("m", &model)]));
    assert!(!text(&output.stdout).contains("between nodes"));
}

#[test]
fn check_passes_sequentially_and_streamed() {
    let folder = tempfile::tempdir().unwrap();
    case(folder.path(), "five", 0, 5, &probabilities(0, 5));
    case(folder.path(), "one", 40, 1, &probabilities(40, 1));
    let model = digits("digits.onnx");
    let paths: [(&str, &Path); 2] = [("m", &model), ("c", folder.path())];
    let output = brigade(&words("check {m} --cases {c} --json", &paths));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!((&document["passed"], &document["streamed"]), (&2.into(), &false.into()));
    assert_eq!(document["cases"][1]["case"], "one");
    assert_eq!(document["cases"][1]["output"], "probabilities");

    let line =
        "check {m} --cases {c} --stages 3 --device cpu:0,cpu:1 --in-flight 4 --repeat 6 --json";
    let output = brigade(&words(line, &paths));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!((&document["passed"], &document["streamed"]), (&2.into(), &true.into()));
    let output = brigade(&words("check {m} --cases {c} --repeat 2", &paths));
    assert!(text(&output.stdout).contains("2 passed, 0 failed, 0 refused"));
}

#[test]
fn check_fails_where_an_output_differs() {
    let folder = tempfile::tempdir().unwrap();
    case(folder.path(), "good", 0, 2, &probabilities(0, 2));
    case(folder.path(), "wrong", 0, 2, &probabilities(2, 2));
    let model = digits("digits.onnx");
    let paths: [(&str, &Path); 2] = [("m", &model), ("c", folder.path())];
    let output = brigade(&words("check {m} --cases {c} --stages 2 --json", &paths));
    assert_eq!(output.status.code(), Some(1));
    let document = json(&output);
    assert_eq!((&document["passed"], &document["failed"]), (&1.into(), &1.into()));
    let wrong = &document["cases"][1];
    assert_eq!(wrong["status"], "failed");
    assert!(wrong["max_abs"].as_f64().unwrap() > wrong["allowed"].as_f64().unwrap());
    // The plan computes what the unsplit graph computes: no node is to blame.
    assert_eq!(wrong["first_bad_node"], Value::Null);
}

#[test]
fn check_refuses_what_it_cannot_run_and_lists_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let cases = folder.path().join("cases");
    case(&cases, "one", 0, 1, &probabilities(0, 1));
    let mut bytes = std::fs::read(digits("digits.onnx")).unwrap();
    for (from, to) in [(b"Relu", b"Rexu"), (b"Gemm", b"Gexm")] {
        while let Some(at) = bytes.windows(4).position(|w| w == from) {
            bytes[at..at + 4].copy_from_slice(to);
        }
    }
    let unknown = folder.path().join("unknown.onnx");
    std::fs::write(&unknown, &bytes).unwrap();
    let corrupt = folder.path().join("corrupt.onnx");
    std::fs::write(&corrupt, &bytes[..bytes.len() / 2]).unwrap();
    for (model, parts) in [(&unknown, &["Rexu", "Gexm"][..]), (&corrupt, &["corrupt.onnx"])] {
        let paths: [(&str, &Path); 2] = [("m", model), ("c", &cases)];
        let output = brigade(&words("check {m} --cases {c} --stages 2 --json", &paths));
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(json(&output)["refused"], 1);
        for part in parts {
            assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
        }
    }
    let output = brigade(&words("inspect {m} --json", &[("m", &unknown)]));
    assert_eq!(output.status.code(), Some(1));
    let missing = json(&output)["cannot_run"].as_array().unwrap().len();
    assert_eq!(missing, 2);
}

#[test]
fn a_plan_file_places_as_it_was_planned() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, dot) = (folder.path().join("plan.json"), folder.path().join("g.dot"));
    let model = digits("digits.onnx");
    let paths: [(&str, &Path); 3] = [("m", &model), ("p", &plan), ("d", &dot)];
    let line = "plan {m} --stages 2 --device cpu:3,cpu:5 --micro-batch 8 --in-flight 6 \
                --threads cpu:5=2 --precision cpu:5=f32 --shape image=8,1,8,8 --output {p} --dot {d} --json";
    let output = brigade(&words(line, &paths));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let planned = json(&output);
    let segments = planned["report"]["segments"].as_array().unwrap();
    let devices: Vec<&str> = segments.iter().map(|s| s["device"].as_str().unwrap()).collect();
    assert_eq!(devices, ["cpu:3", "cpu:5"]);
    assert_eq!(planned["report"]["boundaries"][0]["bytes"], 8 * 32 * 8 * 8 * 4);
    assert!(planned["memory"]["total_bytes"].as_u64().unwrap() > 0);
    assert!(std::fs::read_to_string(&dot).unwrap().contains("cpu:5 (segment 1)"));
    let file: Value = serde_json::from_str(&std::fs::read_to_string(&plan).unwrap()).unwrap();
    assert_eq!((&file["micro_batch"], &file["in_flight"]), (&8.into(), &6.into()));
    assert_eq!(file["threads"]["cpu:5"], 2);
    assert_eq!(file["precision"], serde_json::json!({"cpu:3": "f32", "cpu:5": "f32"}));
    assert_eq!(segments[1]["precision"], "f32");
    assert_eq!(file["model_sha256"].as_str().unwrap().len(), 64);

    let output = brigade(&words("plan {m} --plan {p} --json", &paths));
    let again = json(&output);
    for (a, b) in segments.iter().zip(again["report"]["segments"].as_array().unwrap()) {
        assert_eq!(
            (&a["device"], &a["first"], &a["last"]),
            (&b["device"], &b["first"], &b["last"])
        );
    }
    assert_eq!(again["memory"]["in_flight"], 6);

    let other = folder.path().join("other.json");
    let text_of = std::fs::read_to_string(&plan).unwrap();
    let hash = file["model_sha256"].as_str().unwrap();
    std::fs::write(&other, text_of.replace(hash, &"0".repeat(64))).unwrap();
    let output = brigade(&words("plan {m} --plan {o}", &[("m", &model), ("o", &other)]));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("SHA-256"), "{}", text(&output.stderr));
}

#[test]
fn a_precision_is_planned_recorded_and_computed_in() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, out) = (folder.path().join("plan.json"), folder.path().join("out"));
    let (model, item) = (digits("digits.onnx"), folder.path().join("x.npy"));
    write_npy(&item, &images(0, 4)).unwrap();
    let paths: [(&str, &Path); 4] = [("m", &model), ("p", &plan), ("x", &item), ("o", &out)];
    let run = |line: &str| {
        let output = brigade(&words(line, &paths));
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        output
    };
    let output = run("plan {m} --stages 2 --precision cpu:1=bf16 --output {p}");
    assert!(text(&output.stdout).contains("precision"), "{}", text(&output.stdout));
    let planned = json(&run("plan {m} --plan {p} --json"));
    let precision = serde_json::json!({"cpu:0": "f32", "cpu:1": "bf16"});
    assert_eq!(planned["plan"]["precision"], precision);
    assert_eq!(planned["report"]["segments"][1]["precision"], "bf16");
    // What is said of all goes before what the plan says of each.
    let twice = "plan {m} --stages 2 --precision cpu:1=bf16,cpu:1=f32";
    let twice = brigade(&words(twice, &paths));
    assert_eq!(twice.status.code(), Some(2));
    let said = text(&twice.stderr);
    assert!(said.contains("given twice for `cpu:1`"), "{said}");
    let all = json(&run("plan {m} --plan {p} --precision f32 --json"));
    assert_eq!(all["report"]["segments"][1]["precision"], "f32");
    let file = || read_npy(out.join("x.probabilities.npy")).unwrap();
    run("run {m} --input {x} --output {o}");
    let whole = file();
    run("run {m} --input {x} --plan {p} --output {o}");
    let half = file();
    assert_ne!(half, whole);
    let pairs = half.as_slice::<f32>().unwrap().iter().zip(whole.as_slice::<f32>().unwrap());
    for (a, b) in pairs {
        assert!((a - b).abs() <= 0.02, "{a} {b}");
    }
    let measured = run("bench {m} --input {x} --precision bf16 --items 4 --rounds 1 --json");
    assert_eq!(json(&measured)["placement"]["segments"][0]["precision"], "bf16");
}

#[test]
fn failures_name_the_users_thing_and_have_their_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let model = digits("digits.onnx");
    let item = folder.path().join("x.npy");
    write_npy(&item, &images(0, 1)).unwrap();
    let page = folder.path().join("page.onnx");
    std::fs::write(&page, "<!DOCTYPE html><html></html>").unwrap();
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let plan = folder.path().join("plan.json");
    std::fs::write(&plan, r#"{"schema":1,"rules":[{"match":"op:Conv","device":"cpu:0"}]}"#)
        .unwrap();
    let [flood, crowd] =
        [r#""in_flight":1000000000"#, r#""threads":{"cpu:0":100000}"#].map(|says| {
            let path = folder.path().join(format!("{}.json", says.len()));
            std::fs::write(&path, format!(r#"{{"schema":1,"default_device":"cpu:0",{says}}}"#))
                .unwrap();
            path
        });
    let paths: [(&str, &Path); 7] = [
        ("m", &model),
        ("x", &item),
        ("page", &page),
        ("e", &empty),
        ("p", &plan),
        ("flood", &flood),
        ("crowd", &crowd),
    ];
    for (line, code, part) in [
        ("run {m} --input picture={x}", 2, "`picture`"),
        ("run {m} --input no/such.npy", 1, "no/such.npy"),
        ("run {m} --input {e}", 1, "holds no .npy"),
        ("run no/such.onnx --input {x}", 1, "no/such.onnx"),
        ("run {page} --input {x}", 1, "HTML"),
        ("run {m} --generate 2", 2, "--shape"),
        ("run {m} --generate 2 --shape image=1,2", 1, "`image`"),
        ("run {m} --generate 2 --shape picture=1,2", 2, "`picture`"),
        ("run {m} --input {x} --device tpu:0", 1, "`tpu:0`"),
        ("run {m} --input {x} --device TPU", 2, "TPU"),
        ("run {m} --input {x} --stages 99", 1, "99"),
        ("run {m} --input {x} --stages 2 --plan {p}", 2, "--plan"),
        ("run {m} --input {x} --plan {p}", 1, "default_device"),
        ("run {m} --input {x} --plan no/plan.json", 1, "no/plan.json"),
        ("run {m} --input {x} --plan {flood}", 1, "1000000000 items in flight"),
        ("run {m} --input {x} --plan {crowd}", 1, "100000 kernel threads"),
        ("run {m} --input {x} --in-flight 65537", 2, "65537 items in flight"),
        ("run {m} --input {x} --threads 257", 2, "257 kernel threads"),
        ("run {m} --input {x} --replicas 0=257", 2, "257 replicas"),
        ("run {m} --input {x} --micro-batch 0", 2, "at least 1"),
        ("run {m} --input {x} --device gpu:0", 1, "`cpu` with any other number"),
        ("run {m} --input {x} --disable-pass nothing", 2, "`nothing`"),
        ("run {m} --input {x} --threads cpu:7=2", 2, "`cpu:7"),
        ("run {m} --input {x} --precision cpu:7=bf16", 2, "`cpu:7`, but nothing is placed"),
        ("run {m} --input {x} --precision double", 2, "f32, tf32, bf16 or f16"),
        ("run {m} --input {x} --precision tf32", 1, "`cpu:0` does not compute in tf32"),
        ("plan {m} --stages 2 --precision f16", 1, "`cpu:0` does not compute in f16"),
        ("run {m} --input {x} --batch-axis image=0", 2, "--micro-batch"),
        ("run {m} --input {x} --bind image=3", 2, "`image`"),
        ("run {m} --input {x} --bind other=3", 2, "`other`"),
        ("run {m} --input {x} --no-such-flag", 2, "--no-such-flag"),
        ("check {m} --cases {e}", 1, "holds no case"),
        ("inspect {x}", 1, "numpy array"),
        ("demo --stages 0", 2, "--stages"),
        ("bench", 2, "--synthetic"),
        ("bench {m} --synthetic a:1ms", 2, "--synthetic"),
        ("bench --synthetic a:1ms --stages 2", 2, "--stages"),
        ("bench --synthetic a:1ms --generate 2", 2, "--generate"),
        ("bench {m} --lanes a=2", 2, "--lanes"),
        ("bench {m} --rounds 1", 2, "--shape"),
        ("bench {m} --input {x} --seed 1", 2, "--seed"),
        ("bench {m} --input {e}", 1, "holds no .npy"),
        ("bench {m} --case {e}", 1, "holds no case"),
        ("bench {m} --case {e} --generate 2", 2, "--case"),
        ("bench {m} --generate 2 --shape image=1,2", 1, "`image`"),
        ("bench no/such.onnx --generate 2", 1, "no/such.onnx"),
        ("bench --synthetic a:1ms,b:2", 2, "`2`"),
        ("bench --synthetic a:1ms,,b:2ms", 2, "``"),
        ("bench --synthetic a:1ms,b:99s", 2, "`99s`"),
        ("bench --synthetic a:1ms~2ms", 2, "`a:1ms~2ms`"),
        ("bench --synthetic a:1ms --lanes b=2", 2, "`b`"),
        ("bench --synthetic a:1ms --lanes a=0", 2, "`0`"),
        ("bench --synthetic a:1ms --replicas b=2", 2, "`b`"),
        ("bench --synthetic a:1ms --in-flight 0", 2, "in-flight"),
    ] {
        let output = brigade(&words(line, &paths));
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {errors}");
        assert!(errors.contains(part), "{line}: {errors}");
        assert!(errors.contains("error: "), "{line}: {errors}");
        assert!(!errors.contains("panicked"), "{line}: {errors}");
    }
    let output = brigade(&words("run {page} --input {x} --json", &paths));
    assert_eq!(json(&output)["error"]["kind"], "format");
    // Nothing is said of what would run on a device that is not there.
    let output = brigade(&words("run {m} --input {x} --device gpu:0", &paths));
    assert!(!text(&output.stderr).contains("one segment"), "{}", text(&output.stderr));
}

#[test]
fn items_that_failed_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.npy", "b.npy"] {
        std::fs::write(folder.path().join(name), "no array").unwrap();
    }
    let model = digits("digits.onnx");
    let paths: [(&str, &Path); 2] = [("m", &model), ("i", folder.path())];
    let output = brigade(&words("run {m} --input {i}", &paths));
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.contains("none of 2 items came out") && !said.contains("items/s"), "{said}");
    write_npy(folder.path().join("c.npy"), &images(0, 1)).unwrap();
    let document = json(&brigade(&words("run {m} --input {i} --json", &paths)));
    let number = |field: &str| document[field].as_f64().unwrap();
    assert_eq!((&document["items"], &document["done"]), (&3.into(), &1.into()));
    assert!((number("items_per_s") * number("seconds") - 1.0).abs() < 1e-6, "{document}");
    let said = text(&brigade(&words("run {m} --input {i}", &paths)).stdout);
    assert!(said.contains("1 of 3 items in "), "{said}");
}

#[test]
fn a_case_that_gives_what_is_bound_otherwise_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let cases = folder.path().join("cases");
    case(&cases, "other", 40, 1, &probabilities(40, 1));
    case(&cases, "same", 0, 1, &probabilities(0, 1));
    let item = folder.path().join("x.npy");
    write_npy(&item, &images(0, 1)).unwrap();
    let model = digits("digits.onnx");
    let paths: [(&str, &Path); 3] = [("m", &model), ("c", &cases), ("x", &item)];
    let output = brigade(&words("check {m} --cases {c} --bind image={x} --json", &paths));
    assert_eq!(output.status.code(), Some(1));
    let document = json(&output);
    let (other, same) = (&document["cases"][0], &document["cases"][1]);
    assert_eq!((&other["status"], &same["status"]), (&"failed".into(), &"passed".into()));
    assert!(other["message"].as_str().unwrap().contains("but it is bound to"), "{other}");
    let output = brigade(&words("bench {m} --case {c} --bind image={x} --rounds 1", &paths));
    assert_eq!(output.status.code(), Some(2));
    let errors = text(&output.stderr);
    assert!(errors.contains("case `other`: the case gives image"), "{errors}");
}

#[test]
fn a_long_bench_says_how_long_it_takes_before_it_begins() {
    let line = "bench --synthetic a:60s --items 1";
    let mut child = command(&words(line, &[])).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut errors = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut errors, &mut said).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // Two items in flight to warm up, one stage after the other, side by side, and the run itself.
    assert!(said.starts_with("this takes about 300 s: 1 round(s) of 1 item(s)"), "{said}");
    let quick = brigade(&words("bench --synthetic a:1ms --items 20", &[]));
    assert!(!text(&quick.stderr).contains("this takes"), "{}", text(&quick.stderr));
}

#[test]
fn help_says_what_goes_with_what() {
    let help = |of: &str| text(&brigade(&[of, "--help"]).stdout).replace("\n          ", " ");
    let bench = help("bench");
    for part in
        ["with --synthetic only", "of a model only", "--in-flight and --replicas go with it"]
    {
        assert!(bench.contains(part), "{part}: {bench}");
    }
    assert!(help("run").contains("becomes %XX"), "{}", help("run"));
}

#[test]
fn bench_streams_through_synthetic_stages() {
    let line = "bench --synthetic g:4ms,c:2ms,g:4ms --items 60 --in-flight 6 --json";
    let output = brigade(&words(line, &[]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!((&document["items"], &document["in_flight"]), (&60.into(), &6.into()));
    let number = |field: &str| document[field].as_f64().unwrap_or_else(|| panic!("{field}"));
    assert!((number("bound_per_s") - 125.0).abs() < 1e-6);
    assert_eq!(document["bottleneck"], "g");
    // A stage is never early, so that these hold on any machine.
    assert!(number("wall_s") >= 0.480 && number("sequential_per_s") <= 100.0);
    assert!(number("machine_per_s") <= 125.0);
    let achieved = number("throughput_per_s") / number("bound_per_s");
    assert!((number("achieved") - achieved).abs() < 1e-9);
    assert!(achieved > 0.3 && achieved < 1.2, "{achieved}");
    let actors = document["actors"].as_array().unwrap();
    let names: Vec<&str> = actors.iter().map(|a| a["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["g.0", "c", "g.1"]);
    assert_eq!((&actors[0]["device"], &actors[1]["device"]), (&"g".into(), &"c".into()));
    for actor in actors {
        let share = |of: &str| actor[of].as_f64().unwrap();
        let sum = share("busy") + share("starved") + share("blocked") + share("other");
        assert!((sum - 1.0).abs() < 0.01 && share("busy") > 0.1, "{actor}");
    }

    // Two lanes of one device let its two stages compute at once.
    let line = "bench --synthetic g:4ms,c:2ms,g:4ms~1ms --items 30 --lanes g=2 --json";
    let document = json(&brigade(&words(line, &[])));
    assert!((document["bound_per_s"].as_f64().unwrap() - 250.0).abs() < 1e-6);
    // With nothing between them, one of them still fires one at a time.
    let line = "bench --synthetic g:4ms,g:8ms --items 20 --lanes g=2 --json";
    let document = json(&brigade(&words(line, &[])));
    assert!(document["machine_per_s"].as_f64().unwrap() <= 125.0 * 1.000_001, "{document}");
    assert_eq!(document["achieved"].as_f64() > Some(1.0), document["achieved_note"].is_string());
    let output = brigade(&words("bench --synthetic a:1ms --items 20", &[]));
    assert!(text(&output.stdout).contains("bottleneck  device a"), "{}", text(&output.stdout));
}

#[test]
fn bench_measures_a_model_in_a_closed_loop() {
    let folder = tempfile::tempdir().unwrap();
    case(folder.path(), "three", 0, 3, &probabilities(0, 3));
    case(folder.path(), "one", 40, 1, &probabilities(40, 1));
    let model = digits("digits.onnx");
    let paths: [(&str, &Path); 2] = [("m", &model), ("c", folder.path())];
    let line =
        "bench {m} --case {c} --stages 2 --items 12 --in-flight 3 --rounds 2 --warmup 4 --json";
    let output = brigade(&words(line, &paths));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!((&document["items"], &document["in_flight"]), (&12.into(), &3.into()));
    assert_eq!((&document["rounds"], &document["pool"]), (&2.into(), &2.into()));
    assert_eq!((&document["bit_equal"], &document["steady"]), (&true.into(), &true.into()));
    let cases = document["cases"].as_array().unwrap();
    let names: Vec<&str> = cases.iter().map(|c| c["case"].as_str().unwrap()).collect();
    assert_eq!(names, ["one", "three"]);
    assert!(cases.iter().all(|c| c["status"] == "passed"));
    for field in ["throughput_per_s", "wall_s", "sequential_per_s", "bound_per_s", "achieved"] {
        assert!(document[field].as_f64().unwrap() > 0.0, "{field}");
    }
    let latency = &document["latency_us"];
    let percentiles = ["p50", "p90", "p95", "p99", "p99.9", "max"];
    let micros: Vec<f64> = percentiles.iter().map(|p| latency[p].as_f64().unwrap()).collect();
    assert!(micros[0] > 0.0 && micros.is_sorted(), "{micros:?}");
    // No item takes longer than the run that it is part of, by far.
    assert!(micros[0] < document["wall_s"].as_f64().unwrap() * 1e6);
    assert!(document["bottleneck"].as_str().unwrap().starts_with("cpu:"));
    let actors = document["actors"].as_array().unwrap();
    assert_eq!((actors.len(), &actors[1]["device"]), (2, &"cpu:1".into()));
    let [low, high] = ["low", "high"].map(|e| document["throughput_interval"][e].as_f64().unwrap());
    assert!(low <= high);
    let verdicts = ["faster", "slower", "no difference"];
    assert!(verdicts.contains(&document["streaming_is"].as_str().unwrap()));
    let whole = &document["replicas_of_whole"];
    assert_eq!(whole["replicas"], 2);
    assert!(whole["throughput_per_s"].as_f64().unwrap() > 0.0);
    assert!(document["load"]["total_s"].as_f64().unwrap() > 0.0);
    if cfg!(target_os = "linux") {
        assert!(document["memory"]["growth_bytes"].as_u64().unwrap() > 100_000);
    }
    assert_eq!(document["each_round"].as_array().unwrap().len(), 2);

    // An item is a micro-batch; one round tells no difference.
    let line = "bench {m} --generate 2 --seed 3 --shape image=6,1,8,8 --micro-batch 2 --items 6 \
                --rounds 1 --replicas-of-whole 0 --json";
    let document = json(&brigade(&words(line, &paths)));
    assert_eq!((&document["pool"], &document["micro_batch"]), (&6.into(), &2.into()));
    assert_eq!(document["streaming_is"], "unknown");
    assert_eq!(document["replicas_of_whole"], Value::Null);
    let line = "bench {m} --shape image=1,1,8,8 --stages 2 --items 8 --rounds 2";
    let table = text(&brigade(&words(line, &paths)).stdout);
    let parts =
        ["throughput", "sequential", "whole", "bound", "latency", "memory", "items/s  [", "other"];
    for part in parts {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn bench_checks_what_came_out() {
    let folder = tempfile::tempdir().unwrap();
    case(folder.path(), "wrong", 0, 1, &probabilities(2, 1));
    let model = digits("digits.onnx");
    let paths: [(&str, &Path); 2] = [("m", &model), ("c", folder.path())];
    let line = "bench {m} --case {c} --items 4 --rounds 1 --replicas-of-whole 0 --json";
    let output = brigade(&words(line, &paths));
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(json(&output)["cases"][0]["status"], "failed");
    assert!(text(&output.stderr).contains("case `wrong`"), "{}", text(&output.stderr));
}

#[test]
fn scenario_40_a_difference_inside_the_noise_is_no_difference() {
    // One segment streamed is the sequential run: whatever the noise, no round can tell them apart
    // by much, and the statement agrees with the intervals that are printed.
    let model = digits("digits.onnx");
    let line = "bench {m} --shape image=1,1,8,8 --items 20 --rounds 4 --replicas-of-whole 0 --json";
    let document = json(&brigade(&words(line, &[("m", &model)])));
    let end = |of: &str, end: &str| document[of][end].as_f64().unwrap();
    let (streamed, sequential) = ("throughput_interval", "sequential_interval");
    let wanted = if end(streamed, "low") > end(sequential, "high") {
        "faster"
    } else if end(streamed, "high") < end(sequential, "low") {
        "slower"
    } else {
        "no difference"
    };
    assert_eq!(document["streaming_is"], wanted);
    assert_eq!(document["each_round"].as_array().unwrap().len(), 4);
}

#[test]
fn inspect_tells_what_a_model_is_made_of() {
    let model = digits("digits.onnx");
    let output = brigade(&words("inspect {m} --shapes --json", &[("m", &model)]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!(document["inputs"][0]["fact"], "f32[N,1,8,8]");
    assert_eq!(document["ops"]["Conv"], 9);
    assert_eq!(document["parameter_elements"], 74_634);
    assert_eq!(document["cannot_run"], Value::Array(vec![]));
    assert_eq!(document["shapes"][0]["outputs"][0]["fact"], "f32[N,32,8,8]");
    // Every node, and the batch by its symbol throughout.
    let rows = document["shapes"].as_array().unwrap();
    assert_eq!(rows.len() as u64, document["nodes"].as_u64().unwrap());
    let facts = rows.iter().flat_map(|r| r["outputs"].as_array().unwrap()).map(|o| &o["fact"]);
    assert!(facts.into_iter().all(|f| f.as_str().unwrap().starts_with("f32[N,")), "{rows:?}");
    let told = text(&brigade(&words("inspect {m} --shapes", &[("m", &model)])).stdout);
    assert!(told.contains("f32[N,32,8,8]"), "{told}");
    let output = brigade(&words("inspect {m} --after-passes", &[("m", &model)]));
    assert!(text(&output.stdout).contains("after the passes"));
    // With a shape, the batch is a number throughout.
    let name = document["inputs"][0]["name"].as_str().unwrap();
    let shape = format!("{name}=5,1,8,8");
    let path = model.to_str().unwrap();
    let document = json(&brigade(&["inspect", path, "--shapes", "--json", "--shape", &shape]));
    assert_eq!(document["inputs"][0]["fact"], "f32[5,1,8,8]");
    for row in document["shapes"].as_array().unwrap() {
        assert!(row["outputs"][0]["fact"].as_str().unwrap().starts_with("f32[5,"), "{row}");
    }
    let shape = format!("{name}=5,3,8,8");
    let output = brigade(&["inspect", path, "--shape", &shape]);
    assert!(text(&output.stderr).contains("is declared f32[N,1,8,8]"), "{}", text(&output.stderr));
    // Bound, an input is a constant.
    let file = std::env::temp_dir().join(format!("brigade-inspect-{}.npy", std::process::id()));
    write_npy(&file, &Tensor::zeros(DType::F32, [2, 1, 8, 8]).unwrap()).unwrap();
    let bound = format!("{name}={}", file.display());
    let output = brigade(&["inspect", path, "--json", "--bind", &bound]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(json(&output)["inputs"], Value::Array(vec![]));
}

/// A safetensors file with one tensor, and a GGUF file with one value and one tensor.
fn weight_files(folder: &Path) -> (String, String) {
    let header = r#"{"__metadata__":{"format":"pt"},"layer.w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#;
    let mut safetensors = (header.len() as u64).to_le_bytes().to_vec();
    safetensors.extend(header.as_bytes());
    safetensors.extend([0; 12]);
    let text = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
    let mut gguf = b"GGUF".to_vec();
    gguf.extend(3_u32.to_le_bytes());
    gguf.extend([1_u64.to_le_bytes(), 1_u64.to_le_bytes()].concat());
    gguf.extend(text("general.architecture"));
    gguf.extend(8_u32.to_le_bytes());
    gguf.extend(text("test"));
    gguf.extend(text("blk.0.w"));
    gguf.extend(2_u32.to_le_bytes());
    gguf.extend([64_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat());
    gguf.extend(8_u32.to_le_bytes());
    gguf.extend(0_u64.to_le_bytes());
    gguf.resize(gguf.len().next_multiple_of(32), 0);
    gguf.extend([0; 136]);
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    std::fs::write(path("m.safetensors"), &safetensors).unwrap();
    std::fs::write(path("m.gguf"), &gguf).unwrap();
    std::fs::write(path("cut.gguf"), &gguf[..gguf.len() - 1]).unwrap();
    (path("m.safetensors"), path("m.gguf"))
}

#[test]
fn inspect_tells_what_files_of_weights_hold() {
    let folder = tempfile::tempdir().unwrap();
    let (safetensors, gguf) = weight_files(folder.path());
    let document = json(&brigade(&["inspect", &safetensors, "--json"]));
    assert_eq!((&document["format"], &document["elements"]), (&"safetensors".into(), &6.into()));
    assert_eq!(document["metadata"]["format"], "pt");
    assert_eq!(document["tensors"][0]["type"], "BF16");
    let document = json(&brigade(&["inspect", &gguf, "--json"]));
    assert_eq!((&document["format"], &document["bytes"]), (&"GGUF 3".into(), &136.into()));
    assert_eq!(document["metadata"]["general.architecture"], "test");
    assert_eq!(document["tensors"][0]["shape"], serde_json::json!([2, 64]));
    let output = brigade(&["inspect", &gguf]);
    let table = text(&output.stdout);
    assert!(table.contains("blk.0.w  Q8_0  [2,64]  136 B"), "{table}");
    let output = brigade(&["inspect", &gguf, "--shapes"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no graph"));
    let cut = folder.path().join("cut.gguf");
    let output = brigade(&["inspect", cut.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("`blk.0.w`") && errors.contains("cut.gguf"), "{errors}");
}

#[test]
fn listings_print() {
    let devices = json(&brigade(&["devices", "--json"]));
    assert_eq!(devices["devices"][0]["device"], "cpu:0");
    assert_eq!(devices["devices"][0]["available"], true);
    let ops = json(&brigade(&["ops", "--json"]));
    assert!(ops.as_array().unwrap().iter().any(|o| o["name"] == "Conv" && o["cases"] != 0));
    let completions = brigade(&["completions", "bash"]);
    assert!(text(&completions.stdout).contains("--micro-batch"));
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"]] {
        assert!(brigade(arguments).status.success());
    }
}

#[test]
fn the_page_of_operators_is_up_to_date() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/ops.md")).unwrap();
    let now = text(&brigade(&["ops", "--markdown"]).stdout);
    assert!(page == now, "write it anew: cargo run -- ops --markdown > docs/ops.md");
}

#[test]
fn nobody_reading_is_no_error() {
    let mut child =
        command(&["ops"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(errors, "");
}

#[test]
fn the_demo_reads_the_digits() {
    // Without optimisation all images would take minutes.
    let (images, correct) = if cfg!(debug_assertions) { (16, 16) } else { (900, 895) };
    let count = images.to_string();
    let output =
        brigade(&["demo", "--json", "--seconds", "0", "--micro-batch", "4", "--images", &count]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!(document["images"], images);
    assert_eq!(document["correct"], correct);
    assert_eq!((&document["bit_equal"], &document["segments"]), (&true.into(), &2.into()));
    let stages = document["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 2);
    for stage in stages {
        let shares = ["busy", "starved", "blocked", "other"].map(|s| stage[s].as_f64().unwrap());
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 0.01, "{stage}");
    }
    assert_eq!(document["achieved"].as_f64() > Some(1.0), document["achieved_note"].is_string());
    assert!(document["max_abs"].as_f64().unwrap() <= 1e-4);
    for rate in ["sequential_images_per_s", "streaming_images_per_s", "bound", "speed_up"] {
        assert!(document[rate].as_f64().unwrap() > 0.0, "{rate}");
    }
}

/// What a program that waits for a writer would never end with.
#[cfg(unix)]
#[test]
fn pipes_are_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.npy");
    if !Command::new("mkfifo").arg(&pipe).status().is_ok_and(|s| s.success()) {
        return;
    }
    let model = digits("digits.onnx");
    let paths: &[(&str, &Path)] = &[("p", &pipe), ("m", &model)];
    for line in ["inspect {p}", "run {p} --generate 1", "run {m} --bind image={p} --generate 1"] {
        let mut child = command(&words(line, paths))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let start = std::time::Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed().as_secs() > 60 {
                child.kill().unwrap();
                panic!("`{line}` waits");
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(status.code(), Some(1), "{line}: {told}");
        assert!(told.contains("regular file") && told.contains("pipe"), "{line}: {told}");
    }
}

#[test]
fn a_case_that_cannot_be_read_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let write_case = |name: &str, output: &str| {
        let case = folder.path().join(name);
        std::fs::create_dir(&case).unwrap();
        write_npy(case.join("x.npy"), &images(0, 1)).unwrap();
        write_npy(case.join("y.npy"), &probabilities(0, 1)).unwrap();
        let text = format!(
            r#"{{"case": "{name}", "kind": "call",
                "inputs": [{{"name": "image", "file": "x.npy"}}],
                "outputs": [{{"name": "OUTPUT", "file": "{output}", "rtol": 1e-3, "atol": 1e-5}}]}}"#
        );
        let graph = brigade::import::load(digits("digits.onnx")).unwrap();
        let text = text
            .replace("\"image\"", &format!("{:?}", graph.input_names().next().unwrap()))
            .replace("OUTPUT", graph.output_names().next().unwrap());
        std::fs::write(case.join("case.json"), text).unwrap();
    };
    write_case("fine", "y.npy");
    write_case("gone", "z.npy");
    write_case("torn", "y.npy");
    std::fs::write(folder.path().join("torn/case.json"), "{").unwrap();
    let model = digits("digits.onnx");
    let line = words("check {m} --cases {c} --json", &[("m", &model), ("c", folder.path())]);
    let output = brigade(&line);
    assert_eq!(output.status.code(), Some(1));
    let document = json(&output);
    assert_eq!((&document["passed"], &document["failed"]), (&1.into(), &2.into()), "{document}");
    let cases = document["cases"].as_array().unwrap();
    for (name, word) in [("gone", "z.npy"), ("torn", "no case")] {
        let case = cases.iter().find(|c| c["case"] == name).unwrap();
        assert!(case["message"].as_str().unwrap().contains(word), "{case}");
    }
}

/// One line for each case, however long the reason is; all of it in the document.
#[test]
fn onnx_tests_are_told_in_a_line_each() {
    let folder = tempfile::tempdir().unwrap();
    let tests = ["test_fine", "test_missing", "test_unreadable"].map(|n| folder.path().join(n));
    for test in &tests {
        std::fs::create_dir_all(test.join("test_data_set_0")).unwrap();
    }
    let model = std::fs::read(digits("digits.onnx")).unwrap();
    std::fs::write(tests[0].join("model.onnx"), &model).unwrap();
    let at = model.windows(4).position(|w| w == b"Relu").unwrap();
    let mut unknown = model;
    unknown[at..at + 4].copy_from_slice(b"Rexu");
    std::fs::write(tests[1].join("model.onnx"), unknown).unwrap();
    std::fs::create_dir(tests[2].join("model.onnx")).unwrap();
    let line = "check --onnx-tests {d}";
    let told = text(&brigade(&words(line, &[("d", folder.path())])).stdout);
    let of = |name: &str| told.lines().filter(|l| l.contains(name)).collect::<Vec<_>>();
    assert_eq!(of("test_missing").len(), 1, "{told}");
    assert!(of("test_missing")[0].contains("Rexu"), "{told}");
    assert!(of("test_unreadable")[0].contains("is a folder"), "{told}");
    assert!(!told.lines().any(|l| l.starts_with("  Rexu")), "{told}");
    assert!(told.lines().any(|l| l.starts_with("plain: 0 of 2 passed")), "{told}");
    let document = json(&brigade(&words(&format!("{line} --json"), &[("d", folder.path())])));
    let cases = document["cases"].as_array().unwrap();
    let missing = cases.iter().find(|c| c["case"] == "test_missing").unwrap();
    assert!(missing["reason"].as_str().unwrap().contains('\n'), "{missing}");
    assert_eq!(document["classes"][0]["class"], "plain");
}
