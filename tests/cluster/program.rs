//! The program: workers, plans over them, how they end.
#![cfg(all(unix, feature = "cli"))]

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits")
}

fn command<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brigade"));
    command.args(arguments);
    command
}

/// The same, for a program that a SIGHUP ends, whoever started the tests: below `nohup` they inherit that it
/// is ignored, and so would what they start.
fn hearing_hang_up(command: &Command) -> Command {
    let mut env = Command::new("env");
    env.arg("--default-signal=HUP").arg(command.get_program()).args(command.get_args());
    env
}

fn brigade<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    command(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// A process that is ended with the test.
struct Process(Child);

impl Process {
    fn signal(&self, signal: &str) {
        let kill = Command::new("kill").args(["-s", signal, &self.0.id().to_string()]).status();
        assert!(kill.unwrap().success());
    }

    /// Its exit code, and how long it took to end.
    fn ended(&mut self, within: Duration) -> (Option<i32>, Duration) {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < within, "it did not end within {within:?}");
            if let Some(status) = self.0.try_wait().unwrap() {
                return (status.code(), begun.elapsed());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A worker on loopback, and its address.
fn worker() -> (Process, String) {
    worker_with(&[])
}

fn worker_with(flags: &[&str]) -> (Process, String) {
    let root = digits();
    let arguments = ["worker", "--listen", "127.0.0.1:0", "--weights-root", root.to_str().unwrap()];
    let mut child = command(&[&arguments[..], flags].concat());
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    (Process(child), address)
}

#[test]
fn plans_over_workers_tell_links_and_what_transfers_take() {
    let ((_a, at_a), (_b, at_b)) = (worker(), worker());
    let folder = tempfile::tempdir().unwrap();
    let (model, plan) = (digits().join("digits.onnx"), folder.path().join("plan.json"));
    let (specs, workers) = (folder.path().join("specs"), format!("a={at_a},b={at_b}"));
    let [model, plan, specs] = [&model, &plan, &specs].map(|p| p.to_str().unwrap());
    let arguments = [
        "plan",
        model,
        "--workers",
        &workers,
        "--stages",
        "2",
        "--device",
        "a/auto,b/cpu",
        "--shape",
        "image=1,1,8,8",
        "--output",
        plan,
        "--specs",
        specs,
    ];
    let output = brigade(&[&arguments[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let links = document["report"]["links"].as_array().unwrap();
    let ends: Vec<String> = links
        .iter()
        .map(|l| format!("{}-{}", l["from"].as_str().unwrap(), l["to"].as_str().unwrap()))
        .collect();
    assert_eq!(ends, ["a-b", "a-coordinator", "b-coordinator"]);
    assert!(links.iter().all(|l| l["bytes_per_s"].as_u64().unwrap() > 100_000), "{links:?}");
    let boundary = &document["report"]["boundaries"][0];
    assert!(boundary["transfer_us"].is_u64(), "{boundary}");
    assert!(document["origin"].as_str().unwrap().contains("measured links"), "{document}");
    // The plan file has them, and can be read.
    let written: Value = serde_json::from_str(&std::fs::read_to_string(plan).unwrap()).unwrap();
    assert_eq!(written["links"].as_array().unwrap().len(), 3, "{written}");
    let planned = ["plan", model, "--plan", plan, "--workers", &workers];
    let output = brigade(&planned);
    assert!(output.status.success(), "{}", said(&output));
    // In words, too.
    for part in ["a – b", "MiB/s", "latency"] {
        assert!(said(&output).contains(part), "{part}: {}", said(&output));
    }
    // What is written for each worker says for whose device it is; a spec by itself goes to any.
    let output = brigade(&arguments);
    assert!(said(&output).contains("stage-0.brgs for a/auto:0"), "{}", said(&output));
    for (spec, words) in [
        ("stage-0.brgs", "for the device that its worker chooses"),
        ("stage-1.brgs", "for cpu:0 of the worker that it is shipped to"),
    ] {
        let output = brigade(&[OsStr::new("stage"), Path::new(specs).join(spec).as_os_str()]);
        assert!(said(&output).contains(words), "{}", said(&output));
    }
}

#[test]
fn a_worker_without_sessions_ends_at_once() {
    let (mut process, _) = worker();
    process.signal("TERM");
    let (code, took) = process.ended(Duration::from_secs(10));
    assert_eq!(code, Some(0));
    // 0.05 s where nothing else runs.
    assert!(took < Duration::from_millis(900), "{took:?}");
}

#[test]
fn a_coordinator_that_is_interrupted_says_so_and_tells_its_workers() {
    interrupted_by("INT", 130);
}

fn interrupted_by(signal: &str, exit: i32) {
    let (mut process, address) = worker();
    let model = digits().join("digits.onnx");
    let workers = format!("a={address}");
    let arguments = [
        "run",
        model.to_str().unwrap(),
        "--workers",
        &workers,
        "--generate",
        "100000000",
        "--shape",
        "image=1,1,8,8",
        "--lease",
        "60",
    ];
    let mut child = command(&arguments);
    if signal == "HUP" {
        child = hearing_hang_up(&child);
    }
    let child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut coordinator = Process(child);
    let mut heard = BufReader::new(coordinator.0.stderr.take().unwrap());
    let mut lines = String::new();
    // It tells what memory it takes before it streams.
    while !lines.contains("memory") {
        assert!(heard.read_line(&mut lines).unwrap() > 0, "{lines}");
    }
    std::thread::sleep(Duration::from_millis(200));
    coordinator.signal(signal);
    let (code, _) = coordinator.ended(Duration::from_secs(20));
    std::io::Read::read_to_string(&mut heard, &mut lines).unwrap();
    assert_eq!(code, Some(exit), "{lines}");
    assert!(lines.contains("interrupted"), "{lines}");
    // The lease is a minute, so that the worker would wait for its drain to be over if nobody had
    // told it that the session is closed.
    process.signal("TERM");
    let (code, took) = process.ended(Duration::from_secs(20));
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_coordinator_that_is_interrupted_as_it_begins_ends_as_interrupted() {
    let (mut process, address) = worker();
    let (model, workers) = (digits().join("digits.onnx"), format!("a={address}"));
    let model = model.to_str().unwrap();
    let arguments = [
        "run",
        model,
        "--workers",
        &workers,
        "--generate",
        "1000000",
        "--shape",
        "image=1,1,8,8",
        "--lease",
        "60",
    ];
    for after in [40, 80, 120, 160, 200, 240] {
        let mut child = command(&arguments);
        let child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut coordinator = Process(child);
        std::thread::sleep(Duration::from_millis(after));
        coordinator.signal("TERM");
        let status = {
            coordinator.ended(Duration::from_secs(20));
            coordinator.0.wait().unwrap()
        };
        let mut lines = String::new();
        let mut heard = coordinator.0.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut heard, &mut lines).unwrap();
        // Before it listens for signals the signal itself ends it.
        let by_signal = std::os::unix::process::ExitStatusExt::signal(&status) == Some(15);
        assert!(by_signal || status.code() == Some(143), "{after}: {status} {lines}");
        assert!(!lines.contains("closed"), "{after}: {lines}");
    }
    process.signal("TERM");
    let (code, took) = process.ended(Duration::from_secs(70));
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// A worker that a shell starts, after this.
fn worker_after(first: &str) -> (Process, String) {
    let program = env!("CARGO_BIN_EXE_brigade");
    let script = format!("{first}; exec '{program}' worker --listen 127.0.0.1:0 --weights-root .");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    let mut child = hearing_hang_up(&shell);
    child.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    (Process(child), address)
}

#[test]
#[cfg(target_os = "linux")]
fn a_terminal_that_is_gone_ends_a_worker_in_order_unless_it_is_to_outlive_it() {
    let (mut process, _) = worker_after("true");
    process.signal("HUP");
    assert_eq!(process.ended(Duration::from_secs(10)).0, Some(0));
    let (mut process, address) = worker_after("trap '' HUP");
    process.signal("HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert!(process.0.try_wait().unwrap().is_none());
    std::net::TcpStream::connect(address).unwrap();
    process.signal("TERM");
    assert_eq!(process.ended(Duration::from_secs(10)).0, Some(0));
}

#[test]
#[cfg(target_os = "linux")]
fn a_coordinator_whose_terminal_is_gone_tells_its_workers() {
    interrupted_by("HUP", 129);
}

#[test]
fn one_side_without_tls_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["ours", "others"].map(|name| folder.path().join(name));
    let [ours, others] = paths.each_ref().map(|path| path.to_str().unwrap());
    for certificates in [ours, others] {
        let made = ["cluster", "init", "--certificates", certificates, "--worker"];
        let output = brigade(&[&made[..], &["worker=127.0.0.1"]].concat());
        assert!(output.status.success(), "{}", said(&output));
    }
    let (_plain, at_plain) = worker();
    let (_tls, at_tls) = worker_with(&["--certificates", ours]);
    let model = digits().join("digits.onnx");
    for (address, flags, words) in [
        (&at_tls, &[][..], "the peer speaks TLS, and this side is plaintext"),
        (&at_plain, &["--certificates", ours], "the peer does not speak TLS"),
        (&at_tls, &["--certificates", others], "another authority made it"),
    ] {
        let workers = format!("a={address}");
        let arguments = ["plan", model.to_str().unwrap(), "--workers", &workers];
        let begun = Instant::now();
        let output = brigade(&[&arguments[..], flags].concat());
        assert!(said(&output).contains(words), "{}", said(&output));
        assert!(!output.status.success());
        // Half a minute is how long a worker is waited for that may come yet.
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}

#[test]
fn plans_are_checked_alike_with_and_without_a_run_and_keep_what_is_known_of_links() {
    let folder = tempfile::tempdir().unwrap();
    let [plan, again] = ["plan.json", "again.json"].map(|name| folder.path().join(name));
    let [plan, again] = [&plan, &again].map(|path| path.to_str().unwrap());
    let model = digits().join("digits.onnx");
    let model = model.to_str().unwrap();
    let rule = r#""rules":[{"match":"op:Softmax","device":"w/cpu"}],"default_device":"cpu""#;
    let link = r#""links":[{"from":"w","to":"head","latency_us":7,"bytes_per_s":1000}]"#;
    std::fs::write(plan, format!(r#"{{"schema":1,{rule},{link}}}"#)).unwrap();
    let output = brigade(&["plan", model, "--plan", plan, "--output", again]);
    assert!(output.status.success(), "{}", said(&output));
    let written: Value = serde_json::from_str(&std::fs::read_to_string(again).unwrap()).unwrap();
    assert_eq!(written["links"][0]["latency_us"], 7, "{written}");
    assert_eq!(written["links"][0]["to"], "head", "{written}");

    let run = ["--generate", "1", "--shape", "image=1,1,8,8"];
    for (device, id, words) in [
        ("cpu:1", "fft", "the fixed datapath `fft`, which `cpu:1` is not"),
        ("w/datapath", "", "the stage_id is empty"),
    ] {
        let rule = format!(r#"{{"match":"op:Softmax","device":"{device}","stage_id":"{id}"}}"#);
        let text = format!(r#"{{"schema":1,"default_device":"cpu","rules":[{rule}]}}"#);
        std::fs::write(plan, text).unwrap();
        for (subcommand, more) in [("plan", &[][..]), ("run", &run)] {
            let output = brigade(&[&[subcommand, model, "--plan", plan][..], more].concat());
            assert!(!output.status.success() && said(&output).contains(words), "{}", said(&output));
        }
    }
}

#[test]
fn certificates_do_not_take_the_place_of_each_other_or_of_the_authority() {
    let folder = tempfile::tempdir().unwrap();
    let init = ["cluster", "init", "--certificates", folder.path().to_str().unwrap()];
    let made = brigade(&[&init[..], &["--worker", "w1=127.0.0.1"]].concat());
    assert!(made.status.success(), "{}", said(&made));
    let files = || {
        let names = ["authority.pem", "authority.key", "w1.pem", "w1.key", "coordinator.key"];
        names.map(|name| std::fs::read(folder.path().join(name)).unwrap())
    };
    let before = files();
    for (more, words) in [
        (&["--worker", "authority=127.0.0.1"][..], "the files of the authority"),
        (&["--coordinator", "authority"], "the files of the authority"),
        (&["--worker", "w1=127.0.0.1", "--worker", "w1=127.0.0.2"], "`w1` is asked for twice"),
        (&["--worker", "coordinator=127.0.0.1"], "`coordinator` is asked for twice"),
        (&["--coordinator", "../w1"], "`../w1` is not the name"),
    ] {
        let output = brigade(&[&init[..], more].concat());
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(words), "{}", said(&output));
    }
    assert!(files() == before);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let here = ["worker", "--listen", "127.0.0.1:0", "--weights-root", "."];
    let output = brigade(&[&here[..], &["--quota", "0"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("such as 8G"), "{}", said(&output));
    let output = brigade(&[&here[..], &["--quota", "99999999999T"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("no machine has"), "{}", said(&output));
    let output = brigade(&["plan", "m.onnx", "--device", "w/CPU"]);
    assert!(said(&output).contains("what follows `w/` is no device"), "{}", said(&output));
    let output = brigade(&[&here[..], &["--device", "cpu:4000000000"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("the highest number is 4095"), "{}", said(&output));
    for address in ["127.0.0.1", "127.0.0.1:99999", ":7000"] {
        let output = brigade(&["worker", "--listen", address, "--weights-root", "."]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("write it as HOST:PORT"), "{}", said(&output));
    }
    let output = brigade(&[&here[..], &["--certificates", "/no/such"]].concat());
    assert!(said(&output).contains("no `authority.pem` in `/no/such`"), "{}", said(&output));
    assert!(said(&output).contains("brigade cluster init"), "{}", said(&output));
    let output = brigade(&["worker", "--listen", "127.0.0.1:0", "--weights-root", "/no/such"]);
    assert!(said(&output).contains("name a folder that is there"), "{}", said(&output));
}
