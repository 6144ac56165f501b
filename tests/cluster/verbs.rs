//! The lower-level verbs: ranks that drive themselves.

use std::thread;

use brigade::cluster::{
    ProcessGroup, StageSpec, end_activations, recv_activation, send_activation, serve_stage_loop,
    serve_stage_uri, ship_stage,
};
use brigade::{ErrorKind, WeightCache};

use super::*;

/// x·W of two outputs, with W in a file.
fn spec(uri: &str) -> StageSpec {
    let mut g = GraphBuilder::new("stage");
    let x = g.input("x", DType::F32, ["N".into(), 2.into()]).unwrap();
    let w = g.param("w", DType::F32, &[2, 2]).unwrap();
    let y = g.matmul(x, w).unwrap();
    let z = g.relu(y).unwrap();
    StageSpec::new(g.finish([("y", y), ("z", z)]).unwrap()).weight("w", uri)
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let w = Tensor::new([2, 2], vec![0.0_f32, 1.0, -1.0, 0.0]).unwrap();
    brigade::import::write_npy(folder.path().join("w.npy"), &w).unwrap();
    std::fs::write(folder.path().join("seven"), [0; 7]).unwrap();
    folder
}

#[test]
fn ranks_pass_typed_numbered_activations_and_errors_down_the_line() {
    let folder = folder();
    let mut ranks = ProcessGroup::in_process(3).unwrap();
    let root = folder.path().to_owned();
    let served: Vec<_> = ranks
        .drain(1..)
        .map(|group| {
            let root = root.clone();
            thread::spawn(move || serve_stage_uri(&group, &[root]))
        })
        .collect();
    let zero = ranks.pop().unwrap();
    for rank in [1, 2] {
        let shipped = ship_stage(&zero, rank, &spec("npy://w.npy").device("cpu")).unwrap();
        assert_eq!((shipped.device.as_str(), shipped.nodes), ("cpu:0", 2));
    }
    // The second stage reads only `x`: what else comes is an error of the item, and the next one works.
    let x = |v: f32| Tensor::new([1, 2], vec![v, 2.0]).unwrap();
    for number in 0..20 {
        send_activation(&zero, 1, number, &[("x".to_owned(), x(number as f32).into())]).unwrap();
        let error = recv_activation(&zero, 2).unwrap_err();
        assert_eq!(error.item(), Some(number), "{error}");
        assert!(error.to_string().contains("`y`"), "{error}");
    }
    end_activations(&zero, 1).unwrap();
    assert_eq!(recv_activation(&zero, 2).unwrap(), None);
    for rank in served {
        assert_eq!(rank.join().unwrap().unwrap(), 20);
    }
}

#[test]
fn what_a_rank_refuses_is_told_with_its_reason() {
    let folder = folder();
    let mut ranks = ProcessGroup::in_process(2).unwrap();
    let (one, zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let root = folder.path().to_owned();
    let rank = thread::spawn(move || {
        let host = Worker::new("r1").weights(WeightCache::new().with_root(&root).unwrap());
        let errors: Vec<_> =
            (0..7).map(|_| brigade::cluster::recv_stage(&one, &host).map(drop)).collect();
        (one, errors)
    });
    for (spec, words) in [
        (spec("npy://w.npy").device("cudda"), "cudda"),
        (spec("npy://none.npy"), "none.npy"),
        (spec("file://seven?dtype=f32&shape=2,2"), "the file has 7"),
        (spec("file:///etc/passwd?dtype=f32&shape=2,2"), "weight roots"),
        (spec("gguf://w.npy#t"), "w.npy"),
        (spec("nowhere://x"), "nowhere"),
        (spec("npy://w.npy").stage_id("adder"), "adder"),
    ] {
        let error = ship_stage(&zero, 1, &spec).unwrap_err();
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
    let (one, errors) = rank.join().unwrap();
    assert!(errors.iter().all(Result::is_err));
    // Rank 0 serves nothing, and no rank talks to itself.
    assert_eq!(serve_stage_loop(&zero, &Worker::new("r0")).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(recv_activation(&zero, 0).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(recv_activation(&zero, 7).unwrap_err().kind(), ErrorKind::Usage);
    drop(one);
}

#[test]
fn a_rank_that_is_gone_ends_the_waits_for_it() {
    for kind in ["local", "grpc"] {
        let names: Vec<String> = if kind == "local" {
            vec!["gone-0".into(), "gone-1".into()]
        } else {
            // Two ports that were free a moment ago.
            (0..2)
                .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
                .collect::<Vec<_>>()
                .iter()
                .map(|l| l.local_addr().unwrap().to_string())
                .collect()
        };
        let shared = open(kind);
        let transport = |kind| if kind == "local" { Arc::clone(&shared) } else { open(kind) };
        let (first, second) = (transport(kind), transport(kind));
        let addresses = names.clone();
        let wait = Duration::from_secs(10);
        let one = thread::spawn(move || ProcessGroup::join(second, 1, &addresses, wait).unwrap());
        let zero = ProcessGroup::join(first, 0, &names, wait).unwrap();
        let one = one.join().unwrap();
        let start = Instant::now();
        let waiting = thread::spawn(move || recv_activation(&zero, 1).unwrap_err());
        thread::sleep(Duration::from_millis(100));
        drop(one);
        let error = waiting.join().unwrap();
        assert!(error.to_string().contains("rank 1 is gone"), "{kind}: {error}");
        assert!(start.elapsed() < Duration::from_secs(3), "{kind}: {:?}", start.elapsed());
    }
}

#[test]
fn a_rank_that_takes_nothing_holds_the_sender_and_waits_end() {
    let mut ranks = ProcessGroup::in_process(2).unwrap();
    let (one, zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let zero = zero.with_deadline(Duration::from_millis(200));
    let x = || vec![("x".to_owned(), Value::from(Tensor::of_i64(&[1])))];
    for number in 0..brigade::cluster::WINDOW as u64 {
        send_activation(&zero, 1, number, &x()).unwrap();
    }
    let error = send_activation(&zero, 1, 99, &x()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
    assert_eq!(recv_activation(&one, 0).unwrap().unwrap().number, 0);
    send_activation(&zero, 1, 99, &x()).unwrap();
    assert_eq!(recv_activation(&zero, 1).unwrap_err().kind(), ErrorKind::Deadline);
}
