//! Where stages go on workers: by links, by what their devices support, on fixed datapaths; and what
//! their figures say.

use std::sync::{Arc, Mutex};

use brigade::actors::OverlapReport;
use brigade::cluster::{ClusterOptions, Datapath, StageProgress};
use brigade::device::{
    CompiledSegment, CpuDevice, Device, DeviceId, DeviceInfo, LinkFigures, Support, Unavailable,
};
use brigade::graph::{Dim, Fact, Graph, Node};
use brigade::ops::{CompileOptions, OpRegistry};
use brigade::partition::{DeviceMap, Placement, Plan};
use brigade::pipeline::PipelineBuilder;
use brigade::{DType, ErrorKind, Pipeline, Tensor};

use super::*;

fn id(name: &str) -> DeviceId {
    name.parse().unwrap()
}

/// Four layers over half a megabyte, of which a few bytes are left then.
fn narrowing() -> Graph {
    let mut g = GraphBuilder::new("narrowing");
    let mut x = g.input("x", DType::F32, [8.into(), 16384.into()]).unwrap();
    for _ in 0..4 {
        x = g.tanh(x).unwrap();
    }
    let axes = g.constant(Tensor::of_i64(&[1])).unwrap();
    x = g.apply("ReduceSum", &[Some(x), Some(axes)], &[("keepdims", 1_i64.into())], 1).unwrap()[0];
    x = g.relu(x).unwrap();
    g.finish([("y", x)]).unwrap()
}

/// The bytes that cross from the first stage on a worker to the second, and the report in words.
fn crossing(cluster: &Cluster) -> (u64, String) {
    let pipeline = Pipeline::builder(narrowing())
        .registry(cluster.registry().clone())
        .stages(2, &["w1/cpu", "w2/cpu"])
        .unwrap()
        .spawn()
        .unwrap();
    let report = pipeline.sequential().report(&|_| None);
    assert_eq!((report.segments.len(), report.boundaries.len()), (2, 1));
    (report.boundaries[0].bytes.unwrap(), report.to_string())
}

#[test]
fn a_slow_link_moves_the_cut_to_where_little_crosses_and_a_fast_one_does_not() {
    let site = Site::new("local", &["w1", "w2"]);
    let over = |bytes_per_s: u64| {
        let figures = LinkFigures::new(Duration::from_micros(100), bytes_per_s);
        let cluster = site.connect(ClusterOptions::new().link("w2", "w1", figures));
        let bytes = crossing(&cluster).0;
        let links = cluster.stats().links;
        assert_eq!(links.len(), 1, "{links:?}");
        assert_eq!((links[0].from.as_str(), links[0].to.as_str()), ("w1", "w2"));
        assert_eq!(links[0].bytes_per_s, bytes_per_s);
        bytes
    };
    assert_eq!(over(100_000_000_000), 8 * 16384 * 4);
    assert_eq!(over(10_000_000), 8 * 4);
}

#[test]
fn links_are_measured_once_between_workers_and_to_them() {
    for kind in ["local", "grpc"] {
        let mut site = Site::new(kind, &["w1", "w2", "w3"]);
        let cluster = site.connect(ClusterOptions::new().lease(Duration::from_secs(2)));
        let link = |one: &str, other: &str| cluster.link(&id(one), &id(other));
        for (one, other) in [("cpu:1", "w1/cpu"), ("w1/cpu", "w2/cpu"), ("w2/cpu:3", "w1/auto")] {
            let found = link(one, other).unwrap_or_else(|| panic!("{:?}", cluster.stats().links));
            // Within one machine, however busy it is.
            assert!(found.latency() < Duration::from_millis(500), "{found:?}");
            assert!(found.bytes_per_s() > 100_000, "{found:?}");
        }
        assert_eq!(link("w1/cpu:0", "w1/cpu:1"), None);
        assert_eq!(link("cpu:0", "cpu:1"), None);
        // The two between workers are one.
        let ends = |cluster: &Cluster| -> Vec<(String, String)> {
            cluster.stats().links.into_iter().map(|l| (l.from, l.to)).collect()
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(ends(&cluster), [pair("coordinator", "w1"), pair("w1", "w2")]);
        let once = link("w1/cpu", "w2/cpu");
        assert_eq!(link("w2/cpu", "w1/cpu"), once);
        // One that cannot be measured is none, with a reason.
        site.end("w3");
        assert_eq!(link("w1/cpu", "w3/cpu"), None);
        let failed = cluster.stats().links.into_iter().find(|l| l.to == "w3").unwrap();
        assert!(failed.failed.is_some_and(|why| why.contains("w3")));
        // What is measured leaves nothing behind.
        for name in ["w1", "w2"] {
            eventually("the threads of measuring end", Duration::from_secs(5), || {
                let stats = site.worker(name).stats();
                stats.threads == 0 && stats.bytes_held == 0
            });
        }
        // And the measured link decides the cut: no link within a machine is that slow.
        crossing(&cluster);
    }
}

/// A CPU under another name that has no `Tanh`, runs `Relu` narrowed, and takes its time to compile.
#[derive(Debug)]
struct Picky {
    cpu: CpuDevice,
    compiling: Duration,
}

impl Picky {
    fn device(name: &str, compiling: Duration) -> Arc<dyn Device> {
        Arc::new(Self { cpu: CpuDevice::named(id(name), OpRegistry::default()), compiling })
    }
}

impl Device for Picky {
    fn id(&self) -> &DeviceId {
        self.cpu.id()
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        self.cpu.probe()
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        match node.op.as_str() {
            "Tanh" => Support::No("it has no kernel for it".to_owned()),
            "Relu" => Support::Narrowed("only in spring".to_owned()),
            _ => self.cpu.supports(node, facts),
        }
    }

    fn compile(
        &self,
        graph: Graph,
        options: &CompileOptions,
    ) -> brigade::Result<Arc<dyn CompiledSegment>> {
        std::thread::sleep(self.compiling);
        self.cpu.compile(graph, options)
    }
}

/// relu(tanh(x + x))
fn mixed() -> Graph {
    let mut g = GraphBuilder::new("mixed");
    let x = g.input("x", DType::F32, ["N".into()]).unwrap();
    let a = g.add(x, x).unwrap();
    let t = g.tanh(a).unwrap();
    let y = g.relu(t).unwrap();
    g.finish([("y", y)]).unwrap()
}

#[test]
fn what_the_device_of_a_worker_does_not_support_falls_back() {
    for kind in ["local", "grpc"] {
        let mut site = Site::new(kind, &["w2"]);
        let registry = Registry::default().with_device(Picky::device("picky:0", Duration::ZERO));
        site.start("w1", Worker::new("w1").registry(registry).device(id("picky")));
        let cluster = site.connect(ClusterOptions::new());
        let builder = || Pipeline::builder(mixed()).registry(cluster.registry().clone());
        for other in ["cpu:0", "w2/cpu"] {
            let pipeline = builder().fallback(id("w1/picky"), id(other)).spawn().unwrap();
            let said = pipeline.notices().join("\n");
            assert!(said.contains("(Tanh) runs on"), "{said}");
            assert!(said.contains("`w1/picky:0` refuses it: it has no kernel for it"), "{said}");
            assert!(said.contains("(Relu) is narrowed on `w1/picky:0`: only in spring"), "{said}");
            let placed: Vec<String> = pipeline
                .sequential()
                .report(&|_| None)
                .segments
                .iter()
                .map(|s| s.device.to_string())
                .collect();
            assert_eq!(placed.len(), 3, "{placed:?}");
            assert_eq!((placed[0].as_str(), placed[2].as_str()), ("w1/picky:0", "w1/picky:0"));
            let x = Tensor::new([3], vec![-1.0_f32, 0.0, 2.0]).unwrap();
            let out = pipeline.run([("x", x)]).unwrap();
            assert_eq!(
                out[0].tensor().unwrap().as_slice::<f32>().unwrap(),
                [0.0, 0.0, 4_f32.tanh()]
            );
        }
        // Without a fallback it is refused when it is placed, with the worker's words.
        let error = builder().stages(1, &["w1/picky"]).unwrap().spawn().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("(Tanh"), "{error}");
        assert!(error.to_string().contains("it has no kernel for it"), "{error}");
        // `auto` is the device that the worker would take.
        let auto = cluster.registry().device(&id("w1/auto")).unwrap();
        let graph = mixed();
        let facts = vec![Some(Fact::new(DType::F32, [Dim::symbol("N")]))];
        let tanh = graph.nodes().iter().find(|n| n.op == "Tanh").unwrap();
        assert!(!auto.supports(tanh, &facts).is_supported());
        // A worker that is gone supports nothing.
        let picky = cluster.registry().device(&id("w1/picky")).unwrap();
        site.end("w1");
        assert!(!picky.supports(&graph.nodes()[0], &facts).is_supported());
    }
}

/// h = relu(x), g = h + h, y = tanh(g), over f32[N, 4].
fn with_a_datapath() -> Graph {
    let mut graph = Graph::new("spectral");
    let fact = || Fact::new(DType::F32, [Dim::symbol("N"), Dim::fixed(4)]);
    let x = graph.add_input("x", fact()).unwrap();
    let [h, g, y] = ["h", "g", "y"].map(|n| graph.add_value(n, fact()).unwrap());
    graph.add_node("before", "Relu", [Some(x)], [Some(h)]);
    graph.add_node("fft", "Add", [Some(h), Some(h)], [Some(g)]);
    graph.add_node("after", "Tanh", [Some(g)], [Some(y)]);
    graph.set_outputs([y]);
    graph
}

#[test]
fn a_stage_that_names_a_fixed_datapath_runs_on_the_worker_that_owns_it() {
    let fact = || Fact::new(DType::F32, [Dim::symbol("N"), Dim::fixed(4)]);
    // A stand-in that does what the nodes do not, so that it shows.
    let datapath = Datapath::new("triple", [("h", fact())], [("g", fact())], |inputs| {
        let tensor = inputs[0].tensor()?;
        let tripled = tensor.as_slice::<f32>()?.iter().map(|v| v * 3.0).collect::<Vec<f32>>();
        Ok(vec![Tensor::new(tensor.shape().to_vec(), tripled)?.into()])
    });
    for kind in ["local", "grpc"] {
        let mut site = Site::new(kind, &["w1"]);
        site.start("fpga", Worker::new("fpga").datapath(datapath.clone()));
        let cluster = site.connect(ClusterOptions::new());
        let builder = || Pipeline::builder(with_a_datapath()).registry(cluster.registry().clone());
        let check = |builder: PipelineBuilder| {
            let pipeline = builder.in_flight(4).spawn().unwrap();
            let report = pipeline.sequential().report(&|_| None);
            let ids: Vec<Option<&str>> =
                report.segments.iter().map(|s| s.stage_id.as_deref()).collect();
            assert_eq!(ids, [None, Some("triple"), None]);
            assert!(report.to_string().contains("fpga/datapath:0 (`triple`)"), "{report}");
            let item =
                |n: usize| Tensor::new([1, 4], vec![-1.0, 0.0, 0.1, n as f32 * 0.01]).unwrap();
            let items = (0..40).map(|n| [("x", item(n))]);
            for (n, out) in pipeline.stream(items).enumerate() {
                let out = out.unwrap();
                let got = out[0].tensor().unwrap().as_slice::<f32>().unwrap();
                for (got, x) in got.iter().zip([0.0, 0.0, 0.1, n as f32 * 0.01]) {
                    assert!((got - (x * 3.0_f32).tanh()).abs() < 1e-5, "{got} for {x}");
                }
            }
            assert!(site.worker("fpga").stats().firings >= 40);
        };
        // By a plan file, with CPUs of this process and of another worker around it.
        let plan = |stage_id: &str, device: &str| {
            let json = format!(
                r#"{{"schema":1,"default_device":"cpu:0","rules":[
                    {{"match":"name:fft","device":"{device}","stage_id":{stage_id}}},
                    {{"match":"name:after","device":"w1/cpu"}}]}}"#
            );
            Plan::parse(&json)
        };
        check(builder().plan(plan(r#""triple""#, "fpga/datapath").unwrap()));
        // By the library, and back through a plan.
        let graph = with_a_datapath();
        let map = DeviceMap::from_placements(&graph, |_, node| match node.name.as_str() {
            "fft" => Placement::from(id("fpga/datapath")).stage_id("triple"),
            _ => id("w1/cpu").into(),
        });
        check(builder().placement(map.clone()));
        check(builder().plan(Plan::from_map(&graph, &map).unwrap()));
        // What is another datapath, none, or elsewhere is refused, naming both sides.
        for (stage_id, device, words) in [
            (
                r#""double""#,
                "fpga/datapath",
                "the stage `double` cannot be placed on a worker that owns the fixed datapath `triple`",
            ),
            ("null", "fpga/datapath", "which has no stage id, cannot be placed"),
            (r#""triple""#, "w1/cpu", "the fixed datapath `triple`, which is not here"),
            (r#""triple""#, "fpga/cpu", "fpga"),
        ] {
            let plan = plan(stage_id, device).unwrap();
            let error = builder().plan(plan).spawn().unwrap_err().to_string();
            assert!(error.contains(words), "{stage_id} on {device}: {error}");
        }
        // What can be on no worker is refused before there is any, by whatever way it is said.
        for (stage_id, device, words) in [
            ("triple", "cpu:1", "the fixed datapath `triple`, which `cpu:1` is not"),
            ("", "fpga/datapath", "the stage_id is empty"),
        ] {
            let error = plan(&format!("\"{stage_id}\""), device).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            let map = DeviceMap::from_placements(&graph, |_, node| match node.name.as_str() {
                "fft" => Placement::from(id(device)).stage_id(stage_id),
                _ => id("cpu").into(),
            });
            let split = brigade::partition::Segmentation::new(&graph, &map);
            let error = split.unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("segment 1"), "{error}");
        }
    }
}

#[test]
fn what_waits_at_a_worker_is_no_computing() {
    let graph = mlp(4, 64);
    let site = Site::new("grpc", &["w1"]);
    let cluster = site.connect(ClusterOptions::new());
    let pipeline = Pipeline::builder(graph)
        .registry(cluster.registry().clone())
        .stages(2, &["w1/cpu"])
        .unwrap()
        .in_flight(16)
        .spawn()
        .unwrap();
    let run = |items: usize| {
        let inputs = (0..items).map(|i| [("x", item(i, 64))]);
        assert_eq!(pipeline.stream(inputs).filter(Result::is_ok).count(), items);
    };
    run(50);
    let before = pipeline.stats();
    run(400);
    let window = pipeline.stats().since(&before);
    let computed: f64 = cluster.stats().stages.iter().map(|s| s.busy_s).sum();
    for actor in &window.actors {
        assert_eq!((actor.items, actor.told), (400, 400), "{actor:?}");
        assert!(actor.computed_ns > 0 && actor.computed_ns < actor.service_sum_ns, "{actor:?}");
    }
    let told: u64 = window.actors.iter().map(|a| a.computed_ns).sum();
    assert!(told as f64 / 1e9 <= computed * 1.001, "{told} {computed}");
    // Both stages take turns on the one lane of the device, whatever is on its way to it.
    assert_eq!(window.devices.iter().map(|d| d.computing).collect::<Vec<_>>(), [1]);
    let report = OverlapReport::new(&window);
    let (bound, per_item) = (report.bound.unwrap(), told as f64 / 400.0);
    assert!((bound * per_item / 1e9 - 1.0).abs() < 0.01, "{report}");
    assert!(report.items_per_s <= bound * 1.01, "{report}");
    for actor in &report.actors {
        let all = actor.busy + actor.starved + actor.blocked + actor.other;
        assert!((all - 1.0).abs() < 0.02 && actor.busy < 0.9, "{report}");
    }
}

/// A worker whose device takes so long to compile.
fn compiling(name: &str, took: Duration) -> Worker {
    let registry = Registry::default().with_device(Picky::device("picky:0", took));
    Worker::new(name).registry(registry).device(id("picky"))
}

/// So many additions, each of which can be a stage.
fn additions(count: usize) -> Graph {
    let mut g = GraphBuilder::new("additions");
    let mut x = g.input("x", DType::F32, ["N".into()]).unwrap();
    for _ in 0..count {
        x = g.add(x, x).unwrap();
    }
    g.finish([("y", x)]).unwrap()
}

#[test]
fn stages_of_different_workers_are_made_ready_at_once() {
    const EACH: Duration = Duration::from_millis(1_500);
    let mut site = Site::new("grpc", &[]);
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| site.start(name, compiling(name, EACH)));
    let cluster = site.connect(ClusterOptions::new());
    let begun = Instant::now();
    let pipeline = Pipeline::builder(additions(4))
        .registry(cluster.registry().clone())
        .stages(4, &["a/picky", "b/picky", "c/picky", "cpu"])
        .unwrap()
        .spawn()
        .unwrap();
    let took = begun.elapsed();
    println!("three stages of {EACH:?} each were ready after {took:?}");
    assert!(took >= EACH && took < EACH * 2, "{took:?}");
    let out = pipeline.run([("x", Tensor::new([2], vec![1.0_f32, -2.0]).unwrap())]).unwrap();
    assert_eq!(out[0].tensor().unwrap().as_slice::<f32>().unwrap(), [16.0, -32.0]);
}

#[test]
fn a_stage_that_is_refused_is_named_and_the_others_are_given_up() {
    const LONG: Duration = Duration::from_secs(4);
    let mut site = Site::new("grpc", &[]);
    site.start("slow", compiling("slow", LONG));
    let fact = || Fact::new(DType::F32, [Dim::symbol("N")]);
    let path = Datapath::new("fft", [("h", fact())], [("g", fact())], |_| Ok(Vec::new()));
    site.start("fpga", Worker::new("fpga").datapath(path));
    let cluster = site.connect(ClusterOptions::new());
    let begun = Instant::now();
    let error = Pipeline::builder(additions(2))
        .registry(cluster.registry().clone())
        .stages(2, &["slow/picky", "fpga/datapath"])
        .unwrap()
        .spawn()
        .unwrap_err()
        .to_string();
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    assert!(error.contains("fpga") && error.contains("has no stage id"), "{error}");
    assert!(cluster.stats().stages.is_empty());
    // The one that was given up is dropped by its worker once it is compiled.
    let serving = site.worker("slow");
    eventually("nothing is left", LONG * 4, || serving.stats().stages == 0);
}

#[test]
fn a_quota_that_questions_do_not_fit_into_is_told_as_that() {
    for kind in ["local", "grpc"] {
        let mut site = Site::new(kind, &[]);
        site.start("small", Worker::new("w").quota(64));
        let cluster = site.connect(ClusterOptions::new());
        let builder = || Pipeline::builder(mixed()).registry(cluster.registry().clone());
        for error in [
            builder().fallback(id("small/cpu"), id("cpu")).spawn().unwrap_err(),
            builder().stages(1, &["small/cpu"]).unwrap().spawn().unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
            let said = error.to_string();
            for part in ["worker `small`", "may hold 64", "larger --quota"] {
                assert!(said.contains(part), "{part}: {said}");
            }
            assert!(!said.contains("cannot run"), "{said}");
        }
    }
}

#[test]
fn each_link_that_cannot_be_measured_says_why() {
    let mut site = Site::new("grpc", &["a", "b"]);
    let cluster = site.connect(ClusterOptions::new().lease(Duration::from_secs(1)));
    site.end("b");
    let state = || cluster.stats().workers[1].state.clone();
    eventually("b is lost", Duration::from_secs(20), || state().starts_with("lost"));
    let begun = Instant::now();
    assert_eq!(cluster.link(&id("cpu"), &id("b/cpu")), None);
    assert_eq!(cluster.link(&id("a/cpu"), &id("b/cpu")), None);
    assert!(cluster.link(&id("a/cpu"), &id("cpu")).is_some());
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let stats = cluster.stats();
    let why = |one: &str, other: &str| {
        let found = stats.links.iter().find(|l| l.from == one && l.to == other);
        found.unwrap().failed.clone().unwrap_or_default()
    };
    assert!(why("b", "coordinator").contains("worker `b` was lost: "), "{stats:?}");
    assert!(why("a", "b").contains("cannot be reached"), "{stats:?}");
    assert_eq!(why("a", "coordinator"), "");
}

#[test]
fn loading_that_takes_long_is_told() {
    let mut site = Site::new("local", &[]);
    let slow = |name: &str, ms: u64| {
        let registry =
            Registry::default().with_device(Picky::device(name, Duration::from_millis(ms)));
        Worker::new("w").registry(registry).device(id(name))
    };
    site.start("slow", slow("picky:0", 1_200));
    site.start("fast", slow("picky:0", 0));
    let told: Arc<Mutex<Vec<StageProgress>>> = Arc::default();
    let seen = Arc::clone(&told);
    let options =
        ClusterOptions::new().on_progress(move |stage| seen.lock().unwrap().push(stage.clone()));
    let cluster = site.connect(options);
    let place = |device: &str| {
        let mut g = GraphBuilder::new("sum");
        let x = g.input("x", DType::F32, ["N".into()]).unwrap();
        let y = g.add(x, x).unwrap();
        let builder = Pipeline::builder(g.finish([("y", y)]).unwrap());
        builder.registry(cluster.registry().clone()).stages(1, &[device]).unwrap().spawn().unwrap()
    };
    let _fast = place("fast/picky");
    assert!(told.lock().unwrap().is_empty());
    let _slow = place("slow/picky");
    let told = told.lock().unwrap();
    let ready: Vec<bool> = told.iter().map(|t| t.ready).collect();
    assert!(ready.len() >= 2 && ready.last() == Some(&true), "{told:?}");
    assert!(ready[..ready.len() - 1].iter().all(|ready| !ready), "{told:?}");
    assert!(told.iter().all(|t| t.name.contains("sum") && t.device == "slow/picky:0"), "{told:?}");
    assert!(told[0].elapsed >= Duration::from_secs(1), "{told:?}");
}
