//! Workers that are lost in mid-stream.

use std::sync::atomic::{AtomicBool, Ordering};

use brigade::cluster::{ClusterOptions, OnLoss};
use brigade::{DType, ErrorKind, Pipeline, Tensor};

use super::*;

const LEASE: Duration = Duration::from_millis(1500);

/// Streams items through three workers; `strike` is called once a third of them is out.
fn streamed(
    site: &mut Site,
    cluster: &Cluster,
    items: &[Tensor],
    mut strike: impl FnMut(&mut Site),
) -> (Pipeline, Vec<brigade::Result<Vec<Value>>>) {
    let pipeline = Pipeline::builder(mlp(6, 32))
        .registry(cluster.registry().clone())
        .stages(3, &["w1/cpu", "w2/cpu", "w3/cpu"])
        .unwrap()
        .in_flight(8)
        .spawn()
        .unwrap();
    let mut out = Vec::new();
    for result in pipeline.stream(items.iter().map(|x| [("x", x.clone())])) {
        out.push(result);
        if out.len() == items.len() / 3 {
            strike(site);
        }
    }
    (pipeline, out)
}

#[test]
fn a_lost_worker_costs_no_result_whichever_stage_it_had() {
    let items: Vec<Tensor> = (0..300).map(|i| item(i, 32)).collect();
    let expected = expected(&mlp(6, 32), 3, &items);
    for (kind, lost, spare) in [
        ("grpc", "w1", true),
        ("grpc", "w2", false),
        ("local", "w3", true),
        ("grpc", "w3", false),
        ("local", "w2", true),
    ] {
        let names: &[&str] = if spare { &["w1", "w2", "w3", "w4"] } else { &["w1", "w2", "w3"] };
        let mut site = Site::new(kind, names);
        let cluster = site.connect(ClusterOptions::new().lease(LEASE));
        let (_pipeline, outputs) = streamed(&mut site, &cluster, &items, |site| site.end(lost));
        assert_eq!(outputs.len(), items.len());
        for (n, (made, wanted)) in outputs.into_iter().zip(&expected).enumerate() {
            assert_eq!(&made.unwrap(), wanted, "{kind} {lost}: item {n}");
        }
        let stats = cluster.stats();
        assert_eq!(stats.losses.len(), 1, "{kind} {lost}: {stats:?}");
        let loss = &stats.losses[0];
        assert!(loss.worker == lost && loss.replaced_s.is_some(), "{loss:?}");
        assert!(loss.silent_s <= LEASE.as_secs_f64() + 0.5, "{loss:?}");
        let moved: Vec<_> = stats.stages.iter().filter(|s| s.moves > 0).collect();
        assert_eq!(moved.len(), 1, "{stats:?}");
        if spare {
            assert!(moved[0].device.starts_with("w4/"), "a worker without stages: {moved:?}");
        }
    }
}

#[test]
fn without_any_worker_left_stages_run_here_or_items_fail_by_name() {
    let items: Vec<Tensor> = (0..90).map(|i| item(i, 32)).collect();
    let expected = expected(&mlp(6, 32), 3, &items);
    let mut site = Site::new("grpc", &["w1", "w2", "w3"]);
    let cluster = site.connect(ClusterOptions::new().lease(LEASE));
    let (_pipeline, outputs) = streamed(&mut site, &cluster, &items, |site| {
        for name in ["w1", "w2", "w3"] {
            site.end(name);
        }
    });
    for (made, wanted) in outputs.into_iter().zip(&expected) {
        assert_eq!(&made.unwrap(), wanted);
    }
    assert!(cluster.stats().stages.iter().all(|s| s.device.starts_with("here/")));

    for options in [
        ClusterOptions::new().lease(LEASE).on_loss(OnLoss::Fail),
        ClusterOptions::new().lease(LEASE).in_this_process(false),
    ] {
        let fails = AtomicBool::new(false);
        let mut site = Site::new("grpc", &["w1", "w2", "w3"]);
        let cluster = site.connect(options.clone());
        let (_pipeline, outputs) = streamed(&mut site, &cluster, &items, |site| {
            site.end("w2");
            site.end("w1");
            site.end("w3");
            fails.store(true, Ordering::Relaxed);
        });
        assert_eq!(outputs.len(), items.len(), "one result for each item");
        let mut errors = 0;
        for (n, (made, wanted)) in outputs.into_iter().zip(&expected).enumerate() {
            match made {
                Ok(made) => assert_eq!(&made, wanted),
                Err(error) => {
                    errors += 1;
                    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
                    assert_eq!(error.item(), Some(n as u64));
                }
            }
        }
        assert!(errors >= items.len() / 2, "{errors}");
    }
}

#[test]
fn a_worker_that_comes_back_is_used_again() {
    let items: Vec<Tensor> = (0..60).map(|i| item(i, 32)).collect();
    let mut site = Site::new("local", &["w1", "w2", "w3"]);
    let cluster = site.connect(ClusterOptions::new().lease(LEASE).in_this_process(false));
    let (_pipeline, outputs) = streamed(&mut site, &cluster, &items, |site| {
        site.end("w2");
        let transport = Arc::clone(&site.transport);
        let again = Worker::new("w2").serve(transport, "w2").unwrap();
        site.workers[1].1 = Some(again);
    });
    assert!(outputs.iter().all(Result::is_ok), "{:?}", outputs.iter().find(|r| r.is_err()));
    eventually("the worker is up again", Duration::from_secs(5), || {
        cluster.stats().workers.iter().all(|w| w.state == "up")
    });
}

#[test]
fn a_stage_that_ends_wherever_it_is_placed_is_given_up() {
    let site = Site::new("local", &["w1", "w2"]);
    // Less than any item takes.
    let options = ClusterOptions::new().lease(LEASE).progress(Duration::from_millis(1));
    let cluster = site.connect(options);
    let pipeline = Pipeline::builder(mlp(3, 512))
        .registry(cluster.registry().clone())
        .stages(1, &["w1/cpu"])
        .unwrap()
        .spawn()
        .unwrap();
    let begin = Instant::now();
    // Long enough for the watch to look at it many times.
    let x = Tensor::zeros(DType::F32, [256, 512]).unwrap();
    let error = pipeline.run([("x", x)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert!(error.to_string().contains("in a row without completing any item"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}
