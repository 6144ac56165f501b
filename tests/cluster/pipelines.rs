//! A pipeline over workers gives what the local one gives.

use brigade::cluster::ClusterOptions;
use brigade::graph::{Dim, Fact};
use brigade::{DType, ErrorKind, Pipeline, Precision, Tensor};

use super::*;

#[test]
fn stages_on_workers_equal_local_ones_to_the_bit_and_tensors_pass_from_worker_to_worker() {
    let graph = mlp(6, 32);
    let items: Vec<Tensor> = (0..200).map(|i| item(i, 32)).collect();
    let expected = expected(&graph, 3, &items);
    for kind in ["local", "grpc"] {
        let site = Site::new(kind, &["w1", "w2", "w3"]);
        let cluster = site.connect(ClusterOptions::new());
        let pipeline = Pipeline::builder(graph.clone())
            .registry(cluster.registry().clone())
            .stages(3, &["w1/cpu", "w2/cpu", "w3/cpu"])
            .unwrap()
            .in_flight(8)
            .spawn()
            .unwrap();
        let inputs = items.iter().map(|x| [("x", x.clone())]);
        let outputs: Vec<_> = pipeline.stream(inputs).map(|r| r.unwrap()).collect();
        assert_eq!(outputs, expected, "{kind}");
        let stats = cluster.stats();
        assert_eq!(stats.stages.len(), 3);
        assert!(stats.stages.iter().all(|s| s.firings == 200 && s.busy_s > 0.0), "{stats:?}");
        assert_eq!((stats.losses.len(), stats.duplicates), (0, 0));
        for name in ["w1", "w2"] {
            assert_eq!(site.worker(name).stats().tensors_to_peers, 200, "{kind} {name}");
        }
        assert_eq!(site.worker("w3").stats().tensors_to_peers, 0);
        let mut trace = pipeline.trace();
        let before = trace.actors.len();
        cluster.add_to(&mut trace, pipeline.begun());
        assert_eq!(trace.actors.len(), before + 3);
        let computing = trace.events.iter().filter(|e| e.actor >= before).count();
        assert_eq!(computing, 600, "each item at each stage, on one clock");
        let now = pipeline.begun().elapsed().as_nanos() as u64;
        assert!(trace.events.iter().all(|e| e.start_ns <= e.end_ns && e.start_ns <= now));
        // What nobody needs any more is given up on all sides.
        drop(pipeline);
        for name in ["w1", "w2", "w3"] {
            eventually("a worker is empty", Duration::from_secs(5), || {
                let stats = site.worker(name).stats();
                stats.stages == 0 && stats.bytes_held == 0
            });
        }
        assert_eq!(cluster.stats().held, 0);
    }
}

/// The precision of one device goes with its stage, and streaming changes no bit of what it gives.
#[test]
fn the_precision_of_a_device_is_shipped_with_its_stage() {
    let graph = mlp(6, 32);
    let items: Vec<Tensor> = (0..20).map(|i| item(i, 32)).collect();
    let site = Site::new("local", &["w1", "w2"]);
    let cluster = site.connect(ClusterOptions::new());
    let results = |devices: [&str; 2], narrow: Option<&str>| {
        let mut builder = Pipeline::builder(graph.clone())
            .registry(cluster.registry().clone())
            .stages(2, &devices)
            .unwrap();
        if let Some(device) = narrow {
            builder = builder.precision(device.parse().unwrap(), Precision::Bf16);
        }
        let pipeline = builder.spawn().unwrap();
        let outputs: Vec<_> =
            pipeline.stream(items.iter().map(|x| [("x", x.clone())])).map(|r| r.unwrap()).collect();
        let sequential = pipeline.sequential();
        for (x, streamed) in items.iter().zip(&outputs) {
            let alone = sequential.run_typed(&[("x", x.clone())]).unwrap();
            assert!(alone.iter().map(|(_, v)| v).eq(streamed), "{devices:?}");
        }
        outputs
    };
    let whole = results(["cpu:0", "cpu:1"], None);
    let narrow = results(["cpu:0", "cpu:1"], Some("cpu:1"));
    assert_ne!(narrow, whole);
    assert_eq!(results(["w1/cpu", "w2/cpu"], Some("w2/cpu")), narrow);
    assert_ne!(results(["cpu:0", "cpu:1"], Some("cpu:0")), narrow);
    let refused = Pipeline::builder(graph)
        .registry(cluster.registry().clone())
        .stages(2, &["w1/cpu", "cpu:0"])
        .unwrap()
        .precision("w1/cpu".parse().unwrap(), Precision::F16)
        .spawn()
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    for part in ["w1", "`cpu:0` does not compute in f16", "it offers f32 or bf16"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
}

#[test]
fn local_and_remote_stages_mix_and_two_may_share_a_worker() {
    let graph = mlp(6, 16);
    let items: Vec<Tensor> = (0..60).map(|i| item(i, 16)).collect();
    let site = Site::new("grpc", &["a", "b"]);
    let cluster = site.connect(ClusterOptions::new());
    for devices in [
        ["a/cpu", "cpu:0", "b/cpu", "a/cpu"],
        ["cpu:0", "a/cpu:0", "a/cpu:1", "cpu:1"],
        ["a/auto", "a/auto", "b/auto", "cpu:0"],
    ] {
        let expected = expected(&graph, 4, &items);
        let pipeline = Pipeline::builder(graph.clone())
            .registry(cluster.registry().clone())
            .stages(4, &devices)
            .unwrap()
            .spawn();
        let pipeline = pipeline.unwrap();
        let outputs: Vec<_> =
            pipeline.stream(items.iter().map(|x| [("x", x.clone())])).map(|r| r.unwrap()).collect();
        // Two neighbours on one device are one segment, so that the cut may be another one.
        for (made, wanted) in outputs.iter().zip(&expected) {
            let (a, b) = (made[0].tensor().unwrap(), wanted[0].tensor().unwrap());
            let pairs = a.as_slice::<f32>().unwrap().iter().zip(b.as_slice::<f32>().unwrap());
            assert!(pairs.clone().count() > 0);
            pairs.for_each(|(x, y)| assert!((x - y).abs() <= 1e-5, "{devices:?}: {x} {y}"));
        }
        // The sequential executor runs the same stages.
        let sequential = pipeline.sequential();
        let one = sequential.run_typed(&[("x", items[0].clone())]).unwrap();
        assert_eq!(one[0].1, outputs[0][0]);
    }
}

#[test]
fn an_item_that_fails_on_a_worker_is_one_error_and_the_rest_goes_on() {
    let mut graph = Graph::new("pick");
    let x = graph.add_input("x", Fact::new(DType::F32, [Dim::symbol("N")])).unwrap();
    let i = graph.add_input("i", Fact::new(DType::I64, [Dim::fixed(1)])).unwrap();
    let [h, p, y] = ["h", "p", "y"].map(|n| graph.add_value(n, Fact::unknown()).unwrap());
    graph.add_node("relu", "Relu", [Some(x)], [Some(h)]);
    graph.add_node("gather", "Gather", [Some(h), Some(i)], [Some(p)]);
    graph.add_node("tanh", "Tanh", [Some(p)], [Some(y)]);
    graph.set_outputs([y]);
    let site = Site::new("grpc", &["a", "b"]);
    let cluster = site.connect(ClusterOptions::new());
    let pipeline = Pipeline::builder(graph)
        .registry(cluster.registry().clone())
        .stages(2, &["a/cpu", "b/cpu"])
        .unwrap()
        .spawn()
        .unwrap();
    let x = || Tensor::new([3], vec![1.0_f32, 2.0, 3.0]).unwrap();
    let items = (0..30).map(|n| {
        let at = if n % 7 == 3 { 99 } else { n % 3 };
        [("x", x()), ("i", Tensor::of_i64(&[at]))]
    });
    for (n, result) in pipeline.stream(items).enumerate() {
        if n % 7 == 3 {
            let error = result.unwrap_err();
            assert_eq!(error.item(), Some(n as u64), "{error}");
            assert!(error.to_string().contains("worker `"), "{error}");
        } else {
            let value = result.unwrap()[0].tensor().unwrap().as_slice::<f32>().unwrap()[0];
            assert_eq!(value, ((n % 3) as f32 + 1.0).tanh());
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    let site = Site::new("grpc", &["a"]);
    let cluster = site.connect(ClusterOptions::new());
    let graph = mlp(2, 8);
    let place = |device: &str| {
        Pipeline::builder(graph.clone())
            .registry(cluster.registry().clone())
            .stages(1, &[device])
            .and_then(|b| b.spawn())
            .map(drop)
    };
    for (device, kind, words) in [
        ("a/cudda", ErrorKind::Device, "`a/cudda:0`"),
        ("b/cpu", ErrorKind::Device, "`b`"),
        ("a/b/cpu", ErrorKind::Usage, "two workers"),
    ] {
        let error = place(device).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // Nobody is there, or not in time.
    let nobody = [("x".to_owned(), "127.0.0.1:1".to_owned())];
    let options = ClusterOptions::new().connect_within(Duration::from_millis(300));
    let error = Cluster::connect(open("grpc"), &nobody, &Registry::default(), options).unwrap_err();
    assert!(error.to_string().contains("`x` at 127.0.0.1:1"), "{error}");
    // Who is refused need not wait for more.
    for kind in ["local", "grpc"] {
        let mut strict = Site::new(kind, &[]);
        strict.start("s", Worker::new("s").allow(["c1"]));
        let begun = Instant::now();
        let error = Cluster::connect(
            Arc::clone(&strict.transport),
            &strict.addresses,
            &Registry::default(),
            ClusterOptions::new().connect_within(Duration::from_secs(60)),
        )
        .unwrap_err();
        assert!(error.to_string().contains("may not ship stages"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
    // One worker is one name.
    let there = &site.addresses[0].1;
    let twice = [("x".to_owned(), there.clone()), ("y".to_owned(), there.clone())];
    let error = Cluster::connect(open("grpc"), &twice, &Registry::default(), ClusterOptions::new())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate, "{error}");
    assert!(error.to_string().contains("`x` and `y` are one worker"), "{error}");
    // A cluster that was closed says so.
    let pipeline = Pipeline::builder(mlp(2, 8))
        .registry(cluster.registry().clone())
        .stages(1, &["a/cpu"])
        .unwrap()
        .spawn()
        .unwrap();
    cluster.close();
    let error = pipeline.run([("x", item(0, 8))]).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

#[test]
fn a_slow_stage_far_away_stops_the_source() {
    let graph = mlp(4, 16);
    let site = Site::new("grpc", &["a", "b"]);
    let cluster = site.connect(ClusterOptions::new());
    let pipeline = Pipeline::builder(graph)
        .registry(cluster.registry().clone())
        .stages(2, &["a/cpu", "b/cpu"])
        .unwrap()
        .in_flight(3)
        .spawn()
        .unwrap();
    let tickets: Vec<_> = (0..3).map(|i| pipeline.push([("x", item(i, 16))]).unwrap()).collect();
    assert!(cluster.stats().held <= 2 * 3);
    for ticket in tickets {
        ticket.wait().unwrap();
    }
}
