//! What may happen to a cluster, in mid-stream.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use brigade::cluster::{Cluster, ClusterOptions, Loss};
use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::{DType, Pipeline, Tensor, Value, WeightRef};

use crate::namespaces::Namespaces;
use crate::rig::{LEASE, Process, Rig};

const WIDTH: usize = 32;
const LAYERS: usize = 6;
const ITEMS: usize = 400;

/// Those of the stage that is 40 times slower.
const SLOW_ITEMS: usize = 60;

/// Layers whose weights lie in a file, so that a stage that is placed again has something to load.
fn graph(folder: &Path) -> (Graph, Vec<WeightRef>) {
    let mut g = GraphBuilder::new("layers");
    let mut x = g.input("x", DType::F32, ["N".into(), WIDTH.into()]).unwrap();
    let mut weights = Vec::new();
    for layer in 0..LAYERS {
        let name = format!("w{layer}");
        let at = |i: usize| ((i * 7919 + layer * 104_729) % 199) as f32 / 199.0 - 0.5;
        let data: Vec<f32> = (0..WIDTH * WIDTH).map(|i| at(i) / 4.0).collect();
        let file = folder.join(format!("{name}.npy"));
        brigade::import::write_npy(&file, &Tensor::new([WIDTH, WIDTH], data).unwrap()).unwrap();
        weights.push(WeightRef::new(name.clone(), format!("npy://{name}.npy")));
        let w = g.param(&name, DType::F32, &[WIDTH, WIDTH]).unwrap();
        x = g.matmul(x, w).unwrap();
        x = g.tanh(x).unwrap();
    }
    (g.finish([("y", x)]).unwrap(), weights)
}

fn item(number: usize) -> Tensor {
    let rows = 16 + number % 5;
    let at = |i: usize| ((i * 31 + number * 17) % 23) as f32 / 23.0 - 0.4;
    Tensor::new([rows, WIDTH], (0..rows * WIDTH).map(at).collect()).unwrap()
}

fn pipeline(rig: &Rig<'_>, registry: brigade::Registry, devices: &[&str]) -> Pipeline {
    let (graph, weights) = graph(&rig.folder);
    let cache = brigade::WeightCache::new().with_root(&rig.folder).unwrap();
    Pipeline::builder(graph)
        .registry(registry)
        .weights(&cache)
        .bind_all(weights)
        .stages(devices.len(), devices)
        .unwrap()
        .in_flight(8)
        .spawn()
        .unwrap()
}

/// What happened while items streamed.
struct Ran {
    results: Vec<brigade::Result<Vec<Value>>>,
    /// When each result came, from the beginning.
    at: Vec<Duration>,
    struck: Duration,
}

/// Streams items; once a third of them is out, strikes.
fn stream(pipeline: &Pipeline, items: usize, mut strike: impl FnMut()) -> Ran {
    let begin = Instant::now();
    let mut ran = Ran { results: Vec::new(), at: Vec::new(), struck: Duration::ZERO };
    for result in pipeline.stream((0..items).map(|n| [("x", item(n))])) {
        ran.results.push(result);
        ran.at.push(begin.elapsed());
        if ran.results.len() == items / 3 {
            ran.struck = begin.elapsed();
            strike();
        }
    }
    ran
}

/// Every item has its one result, and it is the right one.
fn check(what: &str, ran: &Ran, expected: &[Vec<Value>]) {
    println!("{what}: {:.1} s", ran.at.last().unwrap().as_secs_f64());
    assert_eq!(ran.results.len(), expected.len(), "{what}");
    for (n, (made, wanted)) in ran.results.iter().zip(expected).enumerate() {
        match made {
            Ok(made) => assert_eq!(made, wanted, "{what}: item {n}"),
            Err(error) => panic!("{what}: item {n}: {error}"),
        }
    }
}

/// The loss of a worker was noticed and mended in time; gives its figures.
fn mended(what: &str, cluster: &Cluster, ran: &Ran, noticed: Duration) -> Loss {
    let stats = cluster.stats();
    assert_eq!(stats.losses.len(), 1, "{what}: {stats:#?}");
    let loss = stats.losses[0].clone();
    let replaced = loss.replaced_s.unwrap_or_else(|| panic!("{what}: not replaced: {loss:?}"));
    // From the strike to the first result that came after the pause.
    let after = ran.at.iter().zip(ran.at.iter().skip(1)).map(|(a, b)| *b - *a).max().unwrap();
    println!(
        "{what}: {}; silent {:.3} s, placed again after {replaced:.3} s (load and compile {:.3} s), \
         longest pause {:.3} s, {} sent again",
        loss.why,
        loss.silent_s,
        loss.load_and_compile_s,
        after.as_secs_f64(),
        loss.replayed
    );
    assert!(loss.silent_s <= noticed.as_secs_f64(), "{what}: noticed after {:.3} s", loss.silent_s);
    assert!(
        replaced <= 1.0 + loss.load_and_compile_s,
        "{what}: placed again after {replaced:.3} s"
    );
    assert!(
        after
            <= noticed + Duration::from_secs(1) + Duration::from_secs_f64(loss.load_and_compile_s),
        "{what}: a pause of {after:?}"
    );
    // In mid-stream: the strike hit before the end.
    assert!(ran.struck < *ran.at.last().unwrap(), "{what}");
    loss
}

pub(crate) fn all(spaces: &Namespaces) {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::new(spaces, folder.path());
    let rounds: usize =
        std::env::var("BRIGADE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let expected: Vec<Vec<Value>> = {
        let local = pipeline(&rig, brigade::Registry::default(), &["cpu:0", "cpu:1", "cpu:2"]);
        (0..ITEMS).map(|n| local.run([("x", item(n))]).unwrap()).collect()
    };
    let names = ["w1", "w2", "w3"];
    let devices = ["w1/cpu", "w2/cpu", "w3/cpu"];

    {
        let workers: Vec<Process> = names.iter().map(|n| rig.start(n)).collect();
        let cluster = rig.connect(&names, ClusterOptions::new()).unwrap();
        let p = pipeline(&rig, cluster.registry().clone(), &devices);
        let ran = stream(&p, ITEMS, || {});
        check("three machines", &ran, &expected);
        assert_eq!(cluster.stats().losses.len(), 0);
        certificates(&rig);
        drop(workers);
    }

    for round in 0..rounds {
        for lost in 0..3 {
            // Every other time there is a spare; else the stage goes to another worker.
            let spare = (round + lost) % 2 == 0;
            let mut up: Vec<Process> = names.iter().map(|n| rig.start(n)).collect();
            let mut connected = names.to_vec();
            if spare {
                up.push(rig.start("w4"));
                connected.push("w4");
            }
            let cluster = rig.connect(&connected, ClusterOptions::new()).unwrap();
            let p = pipeline(&rig, cluster.registry().clone(), &devices);
            let ran = stream(&p, ITEMS, || up[lost].signal("KILL"));
            let what = format!("kill -9 of stage {lost}, round {round}");
            check(&what, &ran, &expected);
            mended(&what, &cluster, &ran, Duration::from_secs(1));
            let most = up.iter_mut().skip(3).map(|w| w.resident()).max().unwrap_or(0);
            assert!(most < 512 << 20, "{most} bytes");
        }
    }

    cable_cut(spaces, &rig, &expected);
    cable_back(spaces, &rig, &expected);
    stopped(&rig, &expected, rounds);
    slow(&rig, &expected);
    late(&rig, &expected);
    coordinator_gone(&rig);
    drained(&rig);
}

fn cable_cut(spaces: &Namespaces, rig: &Rig<'_>, expected: &[Vec<Value>]) {
    let workers: Vec<Process> = ["w1", "w2", "w3", "w4"].iter().map(|n| rig.start(n)).collect();
    let cluster = rig.connect(&["w1", "w2", "w3", "w4"], ClusterOptions::new()).unwrap();
    let p = pipeline(rig, cluster.registry().clone(), &["w1/cpu", "w2/cpu", "w3/cpu"]);
    let ran = stream(&p, ITEMS, || spaces.cable("w2", false));
    check("cable cut", &ran, expected);
    mended("cable cut", &cluster, &ran, LEASE + Duration::from_millis(500));
    spaces.cable("w2", true);
    drop(workers);
}

fn cable_back(spaces: &Namespaces, rig: &Rig<'_>, expected: &[Vec<Value>]) {
    let workers: Vec<Process> = ["w1", "w2", "w3"].iter().map(|n| rig.start(n)).collect();
    let cluster = rig.connect(&["w1", "w2", "w3"], ClusterOptions::new()).unwrap();
    let p = pipeline(rig, cluster.registry().clone(), &["w1/cpu", "w2/cpu", "w3/cpu"]);
    let ran = stream(&p, ITEMS, || {
        spaces.cable("w2", false);
        std::thread::sleep(LEASE / 4);
        spaces.cable("w2", true);
    });
    check("cable out and in", &ran, expected);
    let stats = cluster.stats();
    println!("cable out and in: {} resumed, {} duplicates", stats.resumed, stats.duplicates);
    assert!(stats.losses.is_empty(), "within the lease nothing is placed again: {stats:#?}");
    drop(workers);
}

fn stopped(rig: &Rig<'_>, expected: &[Vec<Value>], rounds: usize) {
    let workers: Vec<Process> = ["w1", "w2", "w3"].iter().map(|n| rig.start(n)).collect();
    let cluster = rig.connect(&["w1", "w2", "w3"], ClusterOptions::new()).unwrap();
    let p = pipeline(rig, cluster.registry().clone(), &["w1/cpu", "w2/cpu", "w3/cpu"]);
    let begin = Instant::now();
    let ran = stream(&p, ITEMS, || workers[1].signal("STOP"));
    check("SIGSTOP", &ran, expected);
    mended("SIGSTOP", &cluster, &ran, LEASE + Duration::from_millis(500));
    // What wakes up later does no harm.
    let asleep = if rounds > 1 { Duration::from_secs(12) } else { LEASE * 2 };
    std::thread::sleep(asleep.saturating_sub(begin.elapsed()));
    workers[1].signal("CONT");
    let ran = stream(&p, ITEMS, || {});
    check("after SIGCONT", &ran, expected);
    let until = Instant::now() + Duration::from_secs(10);
    while cluster.stats().workers.iter().any(|w| w.state != "up") {
        assert!(Instant::now() < until, "{:?}", cluster.stats().workers);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A stage that gets a fortieth of the time is slow, and not lost.
fn slow(rig: &Rig<'_>, expected: &[Vec<Value>]) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let workers: Vec<Process> = ["w1", "w2", "w3"].iter().map(|n| rig.start(n)).collect();
    let cluster = rig.connect(&["w1", "w2", "w3"], ClusterOptions::new()).unwrap();
    let p = pipeline(rig, cluster.registry().clone(), &["w1/cpu", "w2/cpu", "w3/cpu"]);
    let over = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                workers[1].signal("STOP");
                std::thread::sleep(Duration::from_millis(78));
                workers[1].signal("CONT");
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let before = workers[0].resident();
        let ran = stream(&p, SLOW_ITEMS, || {});
        over.store(true, Ordering::Relaxed);
        check("40 times slower", &ran, &expected[..SLOW_ITEMS]);
        workers[0].resident().saturating_sub(before)
    });
    assert!(cluster.stats().losses.is_empty(), "{:#?}", cluster.stats());
    assert!(most < 64 << 20, "what cannot go on piles up: {most} bytes");
    println!("40 times slower: the worker before it grew by {} KiB", most >> 10);
}

fn late(rig: &Rig<'_>, expected: &[Vec<Value>]) {
    let first: Vec<Process> = ["w1", "w2"].iter().map(|n| rig.start(n)).collect();
    std::thread::scope(|scope| {
        let third = scope.spawn(|| {
            std::thread::sleep(LEASE + Duration::from_secs(1));
            rig.start("w3")
        });
        let cluster = rig.connect(&["w1", "w2", "w3"], ClusterOptions::new()).unwrap();
        let third = third.join().unwrap();
        let p = pipeline(rig, cluster.registry().clone(), &["w1/cpu", "w2/cpu", "w3/cpu"]);
        check("a worker that came late", &stream(&p, ITEMS, || {}), expected);
        drop((first, third));
    });
}

/// Who may not come in is told why.
fn certificates(rig: &Rig<'_>) {
    let workers = [("w1".to_owned(), Rig::address("w1"))];
    let registry = brigade::Registry::default();
    let refused = |folder: &Path, coordinator: &str| {
        let options = ClusterOptions::new().connect_within(Duration::from_secs(5));
        let transport = rig.transport(folder, coordinator);
        let begin = Instant::now();
        let error = Cluster::connect(transport, &workers, &registry, options).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(8), "{error}");
        println!("{coordinator}: {error}");
        error.to_string()
    };
    // Another authority.
    let other = rig.folder.join("other");
    let made = Command::new(crate::rig::BRIGADE)
        .args(["cluster", "init", "--certificates"])
        .arg(&other)
        .output()
        .unwrap();
    assert!(made.status.success());
    let words = refused(&other, "coordinator");
    assert!(words.contains("certificate"), "{words}");
    // A certificate that is no longer valid.
    let authority =
        brigade::actors::transport::authority::Authority::read(&rig.certificates()).unwrap();
    let day = Duration::from_secs(24 * 3600);
    let now = std::time::SystemTime::now();
    let old = authority.issue_between("old", &[], now - day * 2, now - day).unwrap();
    old.write(&rig.certificates()).unwrap();
    let words = refused(&rig.certificates(), "old");
    assert!(words.contains("expired"), "{words}");
}

/// A coordinator that is gone leaves nothing behind.
fn coordinator_gone(rig: &Rig<'_>) {
    let worker = rig.start("w1");
    let small = worker.resident();
    {
        let cluster = rig.connect(&["w1"], ClusterOptions::new()).unwrap();
        let p = pipeline(rig, cluster.registry().clone(), &["w1/cpu"]);
        check_some(&p);
    }
    let again = rig.connect(&["w1"], ClusterOptions::new()).unwrap();
    let p = pipeline(rig, again.registry().clone(), &["w1/cpu"]);
    check_some(&p);
    assert!(worker.resident() < small + (256 << 20));
}

fn check_some(p: &Pipeline) {
    for result in p.stream((0..20).map(|n| [("x", item(n))])) {
        result.unwrap();
    }
}

/// SIGTERM ends a worker in order, and its stages go elsewhere.
fn drained(rig: &Rig<'_>) {
    let mut workers: Vec<Process> = ["w1", "w2"].iter().map(|n| rig.start(n)).collect();
    let cluster = rig.connect(&["w1", "w2"], ClusterOptions::new()).unwrap();
    let p = pipeline(rig, cluster.registry().clone(), &["w1/cpu", "w2/cpu"]);
    let ran = stream(&p, ITEMS, || workers[0].signal("TERM"));
    assert!(ran.results.iter().all(Result::is_ok), "{:?}", ran.results.iter().find(|r| r.is_err()));
    assert_eq!(ran.results.len(), ITEMS);
    drop(p);
    assert!(workers[0].ends_within(Duration::from_secs(35)), "{}", workers[0].name);
    assert_eq!(workers[1].address, Rig::address("w2"));
}
