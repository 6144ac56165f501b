//! What goes well.

use super::*;
use crate::cluster::Datapath;

#[test]
fn a_stage_computes_what_it_is_sent() {
    let transport = local();
    let worker = serve(&transport, "w");
    let c = Script::open(&transport, "w", 1, LONG);
    match c.next().0 {
        Message::Opened { resumed, name, offers, quota_bytes, .. } => {
            assert!(!resumed && name == "w" && quota_bytes > 0);
            assert!(offers.iter().any(|o| o.device == "cpu:0" && o.lanes == 1), "{offers:?}");
        }
        other => panic!("{other:?}"),
    }
    c.place(3, &relu());
    // The same again is answered again, and is the same stage.
    c.place(3, &relu());
    assert_eq!((worker.stats().sessions, worker.stats().stages), (1, 1));

    c.run(of(3, 1), &floats(&[-1.0, 2.0]), &[0]);
    assert_eq!(c.output(), (of(3, 1), 0, floats(&[0.0, 2.0])));
    assert_eq!(c.done(of(3, 1)), [(0, DType::F32, vec![2])]);
    // The order may come before the input, and more than once.
    c.fire(of(3, 2), &[Feed::Sent], &[]);
    c.fire(of(3, 2), &[Feed::Sent], &[]);
    c.input(of(3, 2), 0, &floats(&[5.0]));
    assert_eq!(c.done(of(3, 2)), [(0, DType::F32, vec![1])]);
    // What is kept is given when it is asked for, without being computed again.
    assert_eq!((worker.stats().firings, worker.stats().bytes_held), (2, 12));
    c.fire(of(3, 2), &[Feed::Sent], &[0]);
    assert_eq!(c.output(), (of(3, 2), 0, floats(&[5.0])));
    assert_eq!(c.done(of(3, 2)), [(0, DType::F32, vec![1])]);
    c.tell(&Message::Send { what: out(3, 2, 0), to: Default::default() });
    assert_eq!(c.output(), (of(3, 2), 0, floats(&[5.0])));
    assert_eq!(worker.stats().firings, 2);
    // Inputs of a firing that is done pass by.
    c.input(of(3, 2), 0, &floats(&[6.0]));
    c.silent();
    assert_eq!((worker.stats().unwanted, worker.stats().bytes_held), (1, 12));

    c.tell(&Message::Release { firings: vec![of(3, 1), of(3, 2), of(9, 9)] });
    c.silent();
    assert_eq!(worker.stats().bytes_held, 0);
    c.tell(&Message::Send { what: out(3, 2, 0), to: Default::default() });
    c.silent();
    c.tell(&Message::Drop { stage: 3 });
    until("the stage ends", || worker.stats().stages == 0);
    c.fire(of(3, 4), &[Feed::Sent], &[0]);
    assert_eq!(c.failed(of(3, 4)).kind(), ErrorKind::Stopped);
    c.tell(&Message::Close);
    until("the session ends", || worker.stats().sessions == 0 && worker.stats().threads == 0);
}

#[test]
fn tensors_go_from_worker_to_worker() {
    let transport = local();
    let (a, b) = (serve(&transport, "a"), serve(&transport, "b"));
    let to_a = Script::open(&transport, "a", 1, LONG);
    let to_b = Script::open(&transport, "b", 1, LONG);
    assert!(!to_a.opened() && !to_b.opened());
    to_a.place(1, &relu());
    to_b.place(2, &add());
    let fact = Fact::concrete(DType::F32, &[2]);
    let expect = Message::Expect { ticket: 5, stage: 1, epoch: 1, output: 0, fact };
    to_b.tell(&expect);
    assert_eq!(to_b.settled(5), None);
    let peers = vec![("b".to_owned(), "b".to_owned()), ("a".to_owned(), "a".to_owned())];
    to_a.tell(&Message::Route { ticket: 6, stage: 1, output: 0, to: peers });
    assert_eq!(to_a.settled(6), None);

    let what = out(1, 10, 0);
    let order = |n: u64| {
        to_b.input(of(2, n), 0, &floats(&[1.0, 1.0]));
        to_b.fire(of(2, n), &[Feed::Sent, Feed::Held(what)], &[0]);
    };
    order(20); // before the tensor
    to_a.run(of(1, 10), &floats(&[-3.0, 4.0]), &[]);
    assert_eq!(to_a.done(of(1, 10)), [(0, DType::F32, vec![2])]);
    assert_eq!(to_b.output(), (of(2, 20), 0, floats(&[1.0, 5.0])));
    to_b.done(of(2, 20));
    order(21); // after it
    assert_eq!(to_b.output(), (of(2, 21), 0, floats(&[1.0, 5.0])));
    to_b.done(of(2, 21));
    assert_eq!((a.stats().tensors_to_peers, b.stats().tensors_from_peers), (1, 1));

    // A worker's own output feeds its own stage without a way.
    to_b.fire(of(2, 22), &[Feed::Held(out(2, 20, 0)), Feed::Held(out(2, 20, 0))], &[0]);
    assert_eq!(to_b.output(), (of(2, 22), 0, floats(&[2.0, 10.0])));
    to_b.done(of(2, 22));

    // Once more where it is asked for; it is here already and passes by.
    to_a.tell(&Message::Send { what, to: ("b".to_owned(), "b".to_owned()) });
    until("it came again", || b.stats().unwanted == 1);
    // Released on both sides.
    let release = Message::Release { firings: vec![of(1, 10), of(2, 20), of(2, 21), of(2, 22)] };
    to_a.tell(&release);
    to_b.tell(&release);
    to_a.silent();
    to_b.silent();
    until("both hold nothing", || a.stats().bytes_held == 0 && b.stats().bytes_held == 0);
    // Without a route nothing goes on.
    to_a.tell(&Message::Route { ticket: 7, stage: 1, output: 0, to: Vec::new() });
    assert_eq!(to_a.settled(7), None);
    to_a.run(of(1, 11), &floats(&[1.0, 2.0]), &[]);
    to_a.done(of(1, 11));
    assert_eq!(a.stats().tensors_to_peers, 2);
    drop((to_a, to_b));
}

#[test]
fn several_outputs_and_values_that_are_no_tensors() {
    let transport = local();
    let worker = serve(&transport, "w");
    let c = Script::open(&transport, "w", 1, LONG);
    assert!(!c.opened());
    let mut g = GraphBuilder::new("two");
    let x = g.input("x", DType::F32, [2.into()]).unwrap();
    let (up, down) = (g.relu(x).unwrap(), g.op("Neg", &[x], &[]).unwrap());
    c.place(1, &StageSpec::new(g.finish([("up", up), ("down", down)]).unwrap()));
    c.run(of(1, 1), &floats(&[1.0, -2.0]), &[1]);
    assert_eq!(c.output(), (of(1, 1), 1, floats(&[-1.0, 2.0])));
    let kept = [(0, DType::F32, vec![2]), (1, DType::F32, vec![2])];
    assert_eq!(c.done(of(1, 1)), kept);
    c.fire(of(1, 1), &[Feed::Sent], &[0, 1]);
    assert_eq!(c.output(), (of(1, 1), 0, floats(&[1.0, 0.0])));
    assert_eq!(c.output(), (of(1, 1), 1, floats(&[-1.0, 2.0])));
    assert_eq!(c.done(of(1, 1)), kept);

    // Strings and sequences come to the coordinator in any case.
    let mut g = GraphBuilder::new("texts");
    let x = g.input("x", DType::String, ["N".into()]).unwrap();
    let y = g.op("Identity", &[x], &[]).unwrap();
    let z = g.op("SequenceConstruct", &[x, x], &[]).unwrap();
    c.place(2, &StageSpec::new(g.finish([("y", y), ("z", z)]).unwrap()));
    let texts = Tensor::from_strings([2], vec!["one".to_owned(), "zwölf".to_owned()]).unwrap();
    let texts = Value::from(texts);
    c.run(of(2, 2), &texts, &[]);
    assert_eq!(c.output(), (of(2, 2), 0, texts.clone()));
    assert_eq!(c.output(), (of(2, 2), 1, Value::Sequence(vec![texts.clone(), texts])));
    assert!(c.done(of(2, 2)).is_empty());
    drop(worker);
    c.why_closed();
}

#[test]
fn a_kernel_that_fails_and_one_that_panics_fail_one_firing() {
    let transport = local();
    let (registry, _) = odd();
    let worker = Worker::new("w").registry(registry).serve(Arc::clone(&transport), "w").unwrap();
    let c = Script::open(&transport, "w", 1, LONG);
    assert!(!c.opened());
    c.place(1, &relu().device("odd"));
    c.run(of(1, 1), &floats(&[0.0]), &[0]);
    let error = c.failed(of(1, 1));
    assert_eq!((error.kind(), error.device()), (ErrorKind::Kernel, Some("odd:0")));
    assert!(error.message().ends_with("an odd failure"), "{error}");
    c.run(of(1, 2), &floats(&[-1.0]), &[0]);
    let error = c.failed(of(1, 2));
    assert_eq!(error.kind(), ErrorKind::Panic);
    assert!(error.message().contains("an odd panic"), "{error}");
    // Told again when asked again, not computed again.
    c.fire(of(1, 2), &[Feed::Sent], &[0]);
    assert_eq!(c.failed(of(1, 2)).kind(), ErrorKind::Panic);
    c.run(of(1, 3), &floats(&[7.0]), &[0]);
    assert_eq!(c.output(), (of(1, 3), 0, floats(&[7.0])));
    c.done(of(1, 3));
    assert_eq!((worker.stats().failed, worker.stats().firings), (3, 1));
    // A compiler that panics is refused.
    let mut g = GraphBuilder::new("panic");
    let x = g.input("x", DType::F32, [1.into()]).unwrap();
    let y = g.relu(x).unwrap();
    c.ship(2, 1, &StageSpec::new(g.finish([("y", y)]).unwrap()).device("odd"));
    let error = c.refused();
    assert_eq!(error.kind(), ErrorKind::Panic, "{error}");
}

#[test]
fn a_worker_with_a_fixed_datapath_takes_its_stage_alone() {
    let transport = local();
    let fact = Fact::concrete(DType::F32, &[2]);
    let twice = Datapath::new("twice", [("x", fact.clone())], [("y", fact)], |inputs| {
        let doubled: Vec<f32> =
            inputs[0].tensor()?.as_slice::<f32>()?.iter().map(|v| v * 2.0).collect();
        Ok(vec![floats(&doubled)])
    });
    let _worker = Worker::new("w").datapath(twice).serve(Arc::clone(&transport), "w").unwrap();
    let c = Script::open(&transport, "w", 1, LONG);
    match c.next().0 {
        Message::Opened { offers, .. } => assert_eq!(offers[0].device, "datapath:0"),
        other => panic!("{other:?}"),
    }
    let spec = |extent: usize, weight: &str| {
        let mut g = GraphBuilder::new("any");
        let x = g.input("x", DType::F32, [extent.into()]).unwrap();
        let w = g.param("w", DType::F32, &[2]).unwrap();
        let y = g.add(x, w).unwrap();
        StageSpec::new(g.finish([("y", y)]).unwrap()).weight("w", weight)
    };
    // Its graph is not compiled and its weights are not read: there are none.
    let right = spec(2, "npy://nowhere.npy").stage_id("twice");
    let bf16 = CompileOptions { precision: Precision::Bf16, ..CompileOptions::default() };
    for (wrong, words) in [
        (spec(2, "npy://w.npy"), "`any`, which has no stage id,"),
        (spec(2, "npy://w.npy").stage_id("thrice"), "the stage `thrice` cannot be placed"),
        (spec(1, "npy://w.npy").stage_id("twice"), "is (x: f32[1]) -> (y: f32[2])"),
        (right.clone().device("cpu"), "there is no device `cpu`"),
        (right.clone().options(&bf16), "`twice` does not compute in bf16"),
    ] {
        c.ship(1, 1, &wrong);
        let error = c.refused();
        assert!(error.message().contains(words), "{error}");
    }
    c.place(1, &right);
    c.run(of(1, 1), &floats(&[1.5, -1.0]), &[0]);
    assert_eq!(c.output(), (of(1, 1), 0, floats(&[3.0, -2.0])));
    c.done(of(1, 1));
}

#[test]
fn a_worker_that_drains_lets_its_sessions_end() {
    let transport = local();
    let worker = serve(&transport, "w");
    let c = Script::open(&transport, "w", 1, SHORT);
    assert!(!c.opened());
    c.place(1, &relu());
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| worker.drain(PATIENCE));
        assert_eq!(c.next().0, Message::Draining);
        c.ship(2, 1, &relu());
        assert_eq!(c.refused().kind(), ErrorKind::Stopped);
        let late = Script::open(&transport, "w", 2, LONG);
        assert!(matches!(late.why_closed(), LinkError::Refused { why } if why.contains("end")));
        // What is there goes on, and may come back.
        let c = Script::open(&transport, "w", 1, SHORT);
        assert!(c.opened());
        assert_eq!(c.next().0, Message::Draining);
        c.run(of(1, 1), &floats(&[1.0]), &[0]);
        c.output();
        c.done(of(1, 1));
        assert!(!drained.is_finished());
        c.tell(&Message::Close);
        assert!(drained.join().unwrap());
    });
    assert!(
        !Worker::new("v")
            .serve(Arc::clone(&transport), "v")
            .map(|v| {
                let held = Script::open(&transport, "v", 3, LONG);
                held.opened();
                v.drain(Duration::from_millis(20))
            })
            .unwrap()
    );
}

#[test]
fn what_a_queue_has_no_room_for_goes_later_and_in_order() {
    let transport = with(&TransportOptions::new().queue(1, 1 << 20));
    let (a, b) = (serve(&transport, "a"), serve(&transport, "b"));
    let to_a = Script::dial_hearing(&transport, "a", 1).introduced("a", 1, LONG);
    let to_b = Script::open(&transport, "b", 1, LONG);
    assert!(!to_a.opened() && !to_b.opened());
    to_a.place(1, &relu());
    let fact = Fact::new(DType::F32, [crate::graph::Dim::symbol("N")]);
    to_b.tell(&Message::Expect { ticket: 1, stage: 1, epoch: 1, output: 0, fact });
    assert_eq!(to_b.settled(1), None);
    let to = vec![("b".to_owned(), "b".to_owned())];
    to_a.tell(&Message::Route { ticket: 2, stage: 1, output: 0, to });
    assert_eq!(to_a.settled(2), None);
    const FIRINGS: u64 = 60;
    for n in 0..FIRINGS {
        to_a.run(of(1, n), &floats(&[n as f32; 64]), &[0]);
    }
    until("all are computed", || a.stats().firings == FIRINGS);
    for n in 0..FIRINGS {
        assert_eq!(to_a.output(), (of(1, n), 0, floats(&[n as f32; 64])));
        to_a.done(of(1, n));
    }
    until("all went on", || b.stats().tensors_from_peers == FIRINGS);
    assert_eq!(b.stats().bytes_held, FIRINGS * 256);
}
