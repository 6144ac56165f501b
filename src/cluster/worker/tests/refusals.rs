//! What is refused, and with which words.

use super::*;
use crate::cluster::message::MAX_PROBE_BYTES;
use crate::cluster::question;
use crate::import::{WeightCache, write_npy};

fn weighted(uri: &str) -> StageSpec {
    let mut g = GraphBuilder::new("layer");
    let x = g.input("x", DType::F32, ["N".into(), 2.into()]).unwrap();
    let w = g.param("w", DType::F32, &[2, 3]).unwrap();
    let y = g.matmul(x, w).unwrap();
    StageSpec::new(g.finish([("y", y)]).unwrap()).weight("w", uri)
}

fn safetensors(name: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let head = format!(
        r#"{{"{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[0,{}]}}}}"#,
        data.len()
    );
    let mut out = (head.len() as u64).to_le_bytes().to_vec();
    out.extend(head.as_bytes());
    out.extend(data);
    out
}

#[test]
fn a_stage_that_cannot_be_made_ready_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("weights");
    std::fs::create_dir(&root).unwrap();
    let file = |name: &str, bytes: &[u8]| std::fs::write(root.join(name), bytes).unwrap();
    let w = Tensor::new([2, 3], vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    write_npy(root.join("w.npy"), &w).unwrap();
    file("l.safetensors", &safetensors("w", &[3, 2], &[0; 24]));
    file("seven.bin", &[0; 7]);
    std::fs::write(folder.path().join("outside.npy"), b"x").unwrap();

    let transport = local();
    let weights = WeightCache::new().with_root(&root).unwrap();
    let worker = Worker::new("w").device(DeviceId::cpu(0)).weights(weights);
    let worker = worker.serve(Arc::clone(&transport), "w").unwrap();
    let c = Script::open(&transport, "w", 1, LONG);
    assert!(!c.opened());
    let tf32 = CompileOptions { precision: Precision::Tf32, ..CompileOptions::default() };
    let cases = [
        (relu().device("cudda"), ErrorKind::Device, "there is no device `cudda:0`"),
        (relu().stage_id("fft"), ErrorKind::Unsupported, "the fixed datapath `fft`"),
        (relu().device("cpu:7"), ErrorKind::Device, "device `cpu:7` is not offered here"),
        (relu().options(&tf32), ErrorKind::Unsupported, "`cpu:0` does not compute in tf32"),
        (weighted("npy://gone.npy"), ErrorKind::Io, "gone.npy"),
        (weighted("safetensors://l.safetensors#v"), ErrorKind::UnknownName, "`v`"),
        (weighted("safetensors://l.safetensors#w"), ErrorKind::Shape, "declared f32[2,3]"),
        (weighted("file://seven.bin?dtype=f32&shape=2,3"), ErrorKind::Shape, "the file has 7"),
        (weighted("file:///etc/passwd?dtype=f32&shape=2,3"), ErrorKind::Usage, "weight roots"),
        (weighted("npy://../outside.npy"), ErrorKind::Usage, "weight roots"),
        (weighted("telegraph://w"), ErrorKind::UnknownName, "there is no scheme `telegraph`"),
    ];
    for (spec, kind, words) in cases {
        c.ship(1, 1, &spec);
        let error = c.refused();
        assert!(error.to_string().contains(words), "{error:?}");
        assert_eq!(error.kind(), kind, "{error:?}");
        if kind == ErrorKind::Device {
            assert!(error.help().is_some_and(|h| h.contains("cpu:0")), "{error:?}");
        }
    }
    // Bytes that are no spec, one of another version, one that does not hold together.
    let mut newer = relu().encode().unwrap();
    newer[4] += 1;
    let unbound = StageSpec::new(weighted("npy://w.npy").graph().clone()).encode().unwrap();
    for (bytes, words) in [
        (vec![1, 0, 0, 0, 9], "no stage spec"),
        (Vec::new(), "no stage spec"),
        (newer, "of version 3"),
        (unbound, "parameters are not bound: w"),
    ] {
        c.tell_with(&Message::Ship { stage: 1, epoch: 1 }, bytes);
        let error = c.refused();
        assert!(error.to_string().contains(words), "{error:?}");
    }
    // One beyond the cap passes by without memory for it.
    let beyond = crate::cluster::MAX_SPEC_BYTES as usize + 1;
    c.tell_with(&Message::Ship { stage: 1, epoch: 1 }, vec![0; beyond]);
    assert_eq!(c.refused().kind(), ErrorKind::Limit);
    // After all that the right one is taken, and what it read is counted.
    c.place(1, &weighted("npy://w.npy"));
    assert_eq!(worker.stats().weight_bytes_read, 24);
    let x = Value::from(Tensor::new([1, 2], vec![1.0_f32, 1.0]).unwrap());
    c.run(of(1, 1), &x, &[0]);
    assert_eq!(c.output().2.tensor().unwrap().as_slice::<f32>().unwrap(), [5.0, 7.0, 9.0]);
    // A device that is named and not here is told when serving begins.
    let none = Worker::new("v").device("cudda".parse().unwrap());
    assert_eq!(none.serve(transport, "v").unwrap_err().kind(), ErrorKind::Device);
}

#[test]
fn a_violated_contract_fails_its_firing_and_nothing_else() {
    let transport = local();
    let worker = serve(&transport, "w");
    let c = Script::open(&transport, "w", 1, LONG);
    assert!(!c.opened());
    c.place(1, &add());
    let plain = |dtype, shape: &[u64]| Form::Plain { dtype, shape: shape.to_vec() };
    let cases = [
        (0, plain(DType::F32, &[3]), 12, ErrorKind::Shape),
        (0, plain(DType::I32, &[2]), 8, ErrorKind::DType),
        (1, plain(DType::F32, &[2]), 7, ErrorKind::Format),
        (2, plain(DType::F32, &[2]), 8, ErrorKind::UnknownName),
    ];
    for (n, (port, form, length, kind)) in (0..).zip(cases) {
        let of = of(1, n);
        c.tell_with(&Message::Input { of, port, form }, vec![0; length]);
        let error = c.failed(of);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(&format!("input {port}")), "{error}");
        // The order comes after all, and is answered alike.
        c.fire(of, &[Feed::Sent, Feed::Sent], &[0]);
        assert_eq!(c.failed(of).kind(), kind);
    }
    // A value that is no value is found when it is computed on.
    c.input(of(1, 7), 1, &floats(&[1.0, 2.0]));
    c.tell_with(&Message::Input { of: of(1, 7), port: 0, form: Form::Encoded }, vec![9; 30]);
    c.fire(of(1, 7), &[Feed::Sent, Feed::Sent], &[0]);
    assert_eq!(c.failed(of(1, 7)).kind(), ErrorKind::Format);
    // Orders that do not fit the stage.
    c.fire(of(1, 8), &[Feed::Sent], &[0]);
    assert_eq!(c.failed(of(1, 8)).kind(), ErrorKind::Internal);
    c.fire(of(1, 9), &[Feed::Sent, Feed::Sent], &[1]);
    assert_eq!(c.failed(of(1, 9)).kind(), ErrorKind::Internal);
    // An input for no stage passes by, without memory for it.
    c.tell_with(
        &Message::Input { of: of(5, 1), port: 0, form: plain(DType::U8, &[64 << 20]) },
        vec![0; 64 << 20],
    );
    c.silent();
    assert_eq!((worker.stats().unwanted, worker.stats().bytes_held), (1, 0));
    // And the next one is as if nothing had been.
    c.input(of(1, 10), 0, &floats(&[1.0, 2.0]));
    c.input(of(1, 10), 1, &floats(&[1.0, 2.0]));
    c.fire(of(1, 10), &[Feed::Sent, Feed::Sent], &[0]);
    assert_eq!(c.output().2, floats(&[2.0, 4.0]));
}

#[test]
fn more_memory_than_the_quota_is_refused_with_the_figures() {
    let folder = tempfile::tempdir().unwrap();
    write_npy(folder.path().join("w.npy"), &Tensor::zeros(DType::F32, [2, 3]).unwrap()).unwrap();
    let transport = local();
    let weights = WeightCache::new().with_root(folder.path()).unwrap();
    let worker = Worker::new("w").weights(weights).quota(2000);
    let worker = worker.serve(Arc::clone(&transport), "w").unwrap();
    let c = Script::open(&transport, "w", 1, LONG);
    assert!(matches!(c.next().0, Message::Opened { quota_bytes: 2000, .. }));
    // Weights that their stage may not hold, before they are read.
    c.ship(1, 1, &weighted("npy://w.npy").memory_bytes(23));
    let error = c.refused();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(
        error.message().contains("the stage `layer` holds 0 bytes and may hold 23: 24"),
        "{error}"
    );
    assert_eq!(worker.stats().weight_bytes_read, 0);
    c.place(1, &relu());
    c.run(of(1, 1), &floats(&[1.0; 200]), &[]);
    c.done(of(1, 1));
    until("the input is freed", || worker.stats().bytes_held == 800);
    // An input beyond it, before memory is taken for it.
    c.input(of(1, 2), 0, &floats(&[1.0; 400]));
    let error = c.failed(of(1, 2));
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.message().contains("holds 800 bytes and may hold 2000: 1600 more"), "{error}");
    // An output beyond it: its input is freed before it is kept.
    c.run(of(1, 3), &floats(&[1.0; 200]), &[0]);
    c.output();
    c.done(of(1, 3));
    c.run(of(1, 4), &floats(&[1.0; 100]), &[0]);
    c.output();
    c.done(of(1, 4));
    assert_eq!(worker.stats().bytes_held, 2000);
    c.run(of(1, 5), &floats(&[1.0]), &[0]);
    assert_eq!(c.failed(of(1, 5)).kind(), ErrorKind::Limit);
    assert_eq!(c.failed(of(1, 5)).kind(), ErrorKind::Limit);
    c.tell(&Message::Release { firings: vec![of(1, 1), of(1, 3)] });
    c.run(of(1, 6), &floats(&[1.0]), &[0]);
    c.output();
    c.done(of(1, 6));
    // The limit of a stage counts its tensors, too: here an output that is longer than the input.
    let mut g = GraphBuilder::new("twice");
    let x = g.input("x", DType::F32, ["N".into()]).unwrap();
    let y = g.concat(&[x, x], 0).unwrap();
    c.place(2, &StageSpec::new(g.finish([("y", y)]).unwrap()).memory_bytes(40));
    c.run(of(2, 7), &floats(&[1.0; 6]), &[0]);
    let error = c.failed(of(2, 7));
    assert_eq!(error.kind(), ErrorKind::Limit);
    let words = "the stage `twice` holds 0 bytes and may hold 40: 48 more do not fit";
    assert!(error.message().contains(words), "{error}");
    c.run(of(2, 8), &floats(&[1.0; 5]), &[0]);
    assert_eq!(c.output().2, floats(&[1.0; 10]));
}

#[test]
fn older_epochs_are_dropped() {
    let transport = local();
    let worker = serve(&transport, "w");
    let c = Script::open(&transport, "w", 1, LONG);
    assert!(!c.opened());
    c.ship(1, 4, &relu());
    assert!(matches!(c.next().0, Message::Ready { epoch: 4, .. }));
    c.ship(1, 3, &relu());
    assert_eq!(c.refused().kind(), ErrorKind::Plan);
    c.ship(1, 4, &add());
    assert_eq!(c.refused().kind(), ErrorKind::Plan);
    let fire = |firing, epoch| {
        let (feeds, give) = (vec![Feed::Sent], vec![0]);
        c.tell(&Message::Fire { of: of(1, firing), epoch, feeds, give });
    };
    c.input(of(1, 1), 0, &floats(&[1.0]));
    fire(1, 3);
    c.silent();
    assert_eq!(worker.stats().stale, 2);
    fire(1, 5);
    assert_eq!(c.failed(of(1, 1)).kind(), ErrorKind::Stopped);
    c.input(of(1, 2), 0, &floats(&[1.0]));
    fire(2, 4);
    c.output();
    c.done(of(1, 2));
    // A later one replaces the stage; nothing of the earlier one is left.
    c.ship(1, 5, &relu());
    assert!(matches!(c.next().0, Message::Ready { epoch: 5, .. }));
    until("one stage, nothing held", || {
        worker.stats().stages == 1 && worker.stats().bytes_held == 0
    });
    fire(2, 5);
    c.silent();
    c.input(of(1, 2), 0, &floats(&[2.0]));
    assert_eq!(c.output().2, floats(&[2.0]));
}

#[test]
fn tensors_of_other_workers_are_taken_if_they_are_expected() {
    let transport = local();
    let worker = serve(&transport, "w");
    let c = Script::open(&transport, "w", 1, LONG);
    assert!(!c.opened());
    c.place(1, &relu());
    let join = |session: u8, protocol: u32| {
        let peer = Script::dial(&transport, "w");
        peer.tell(&Message::Join { protocol, session: id(session), from: "p".to_owned() });
        peer
    };
    for (peer, words) in [
        (join(2, PROTOCOL), "has no such session"),
        (join(1, PROTOCOL + 1), "use one release"),
        (join(1, PROTOCOL), "expects no tensors yet"),
    ] {
        let why = peer.why_closed().to_string();
        assert!(why.contains(words), "{why}");
    }
    let fact = Fact::concrete(DType::F32, &[4]);
    c.tell(&Message::Expect { ticket: 7, stage: 8, epoch: 1, output: 0, fact });
    assert_eq!(c.settled(7), None);
    let peer = join(1, PROTOCOL);
    let plain = |n: u64| Form::Plain { dtype: DType::F32, shape: vec![n] };
    let send = |firing, epoch, extent: u64| {
        let message = Message::Tensor { what: out(9, firing, 0), epoch, form: plain(extent) };
        peer.tell_with(&message, vec![0; extent as usize * 4]);
        peer.silent();
    };
    send(1, 1, 4);
    assert_eq!((worker.stats().unwanted, worker.stats().bytes_held), (1, 0));
    let fact = Fact::concrete(DType::F32, &[4]);
    c.tell(&Message::Expect { ticket: 1, stage: 9, epoch: 2, output: 0, fact });
    assert_eq!(c.settled(1), None);
    send(1, 1, 4);
    assert_eq!((worker.stats().stale, worker.stats().bytes_held), (1, 0));
    send(1, 2, 4);
    send(1, 3, 4);
    assert_eq!((worker.stats().unwanted, worker.stats().bytes_held), (2, 16));
    c.fire(of(1, 5), &[Feed::Held(out(9, 1, 0))], &[0]);
    c.output();
    c.done(of(1, 5));
    // One that is not what was declared fails those that wait for it, and those that come to.
    c.fire(of(1, 6), &[Feed::Held(out(9, 2, 0))], &[0]);
    c.silent();
    send(2, 2, 3);
    assert_eq!(c.failed(of(1, 6)).kind(), ErrorKind::Shape);
    c.fire(of(1, 7), &[Feed::Held(out(9, 2, 0))], &[0]);
    let error = c.failed(of(1, 7));
    assert!(error.message().contains("output 0 of stage 9"), "{error}");
    // One that comes after its firing was released is there if it is needed after all.
    c.tell(&Message::Release { firings: vec![of(9, 3)] });
    c.silent();
    send(3, 2, 4);
    c.fire(of(1, 8), &[Feed::Held(out(9, 3, 0))], &[0]);
    c.output();
    c.done(of(1, 8));
    // A peer may send nothing else.
    peer.tell(&Message::Close);
    assert!(matches!(peer.why_closed(), LinkError::Refused { why } if why.contains("worker")));
    c.tell(&Message::Close);
    until("all is gone", || worker.stats().bytes_held == 0 && worker.stats().threads == 0);
}

#[test]
fn questions_about_nodes_are_answered_or_refused() {
    let transport = local();
    let worker = Worker::new("w").quota(4096).serve(Arc::clone(&transport), "w").unwrap();
    let c = Script::open(&transport, "w", 1, LONG);
    assert!(!c.opened());
    let ask = |ticket: u64, device: &str, question: Vec<u8>| {
        c.tell_with(&Message::Supports { ticket, device: device.to_owned() }, question);
        match c.next() {
            (Message::Supported { ticket: t, error: None }, bytes) if t == ticket => {
                Ok(question::decode::<question::Answers>(&bytes).unwrap())
            }
            (Message::Supported { error: Some(e), .. }, _) => Err(e.into_error("w").to_string()),
            (other, _) => panic!("{other:?}"),
        }
    };
    let spec = add();
    let facts = vec![Some(Fact::concrete(DType::F32, &[2])); 2];
    let known = spec.graph().nodes()[0].clone();
    let mut unknown = known.clone();
    unknown.op = "Teleport".to_owned();
    let asked: question::Question = vec![(known, facts.clone()), (unknown, facts)];
    let bytes = question::encode(&asked).unwrap();
    let answers = ask(1, "cpu", bytes.clone()).unwrap();
    assert_eq!(answers[0], question::Answer::Yes);
    assert!(matches!(&answers[1], question::Answer::No(why) if why.contains("no such operator")));
    assert_eq!(ask(2, "auto", bytes.clone()).unwrap().len(), 2);
    for (device, question, words) in [
        ("cudda", bytes, "there is no device `cudda:0`"),
        ("cpu", vec![1, 2, 3], "no question about nodes"),
        ("cpu", Vec::new(), "no question about nodes"),
        ("cpu", vec![0; 8192], "may hold 4096"),
    ] {
        let error = ask(3, device, question).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    until("nothing is left", || worker.stats().bytes_held == 0 && worker.stats().threads == 0);
}

#[test]
fn strangers_and_messages_out_of_turn_are_turned_away() {
    let transport = local();
    let worker = Worker::new("w").allow(["c1"]).serve(Arc::clone(&transport), "w").unwrap();
    let said = |script: &Script| script.why_closed().to_string();
    let c = Script::open(&transport, "w", 1, LONG);
    let why = said(&c);
    assert!(why.contains("shows no certificate may not ship stages to the worker `w`"), "{why}");
    drop(worker);

    let worker = serve(&transport, "w");
    let c = Script::dial(&transport, "w");
    c.link.send(Frame::head(b"no message".to_vec())).unwrap();
    assert!(said(&c).contains("no message"));
    let c = Script::dial(&transport, "w");
    c.tell(&Message::Draining);
    assert!(said(&c).contains("`Open`, `Join` or `Gauge`"));
    let c = Script::dial(&transport, "w");
    let open =
        |protocol| Message::Open { protocol, session: id(1), name: "w".to_owned(), lease_ms: LONG };
    c.tell(&open(PROTOCOL + 1));
    let why = said(&c);
    assert!(why.contains(&format!("version {PROTOCOL} of the cluster's messages")), "{why}");
    let c = Script::dial(&transport, "w");
    c.tell(&open(PROTOCOL));
    assert!(!c.opened());
    c.tell(&open(PROTOCOL));
    assert!(said(&c).contains("not a message of a coordinator"));
    let c = Script::dial(&transport, "w");
    c.tell(&open(PROTOCOL));
    assert!(c.opened());
    c.tell_with(&Message::Ping { token: 1 }, vec![0; 9]);
    assert!(said(&c).contains("a payload behind a message without one"));
    // A link that is there to be measured is that and nothing else, for a session that is known.
    let gauge = |protocol, session| {
        let c = Script::dial(&transport, "w");
        c.tell(&Message::Gauge { protocol, session: id(session), from: "v".to_owned() });
        c
    };
    assert!(said(&gauge(PROTOCOL, 9)).contains("no such session"));
    assert!(said(&gauge(PROTOCOL + 1, 1)).contains(&format!("version {PROTOCOL}")));
    let open_again = Script::dial(&transport, "w");
    open_again.tell(&open(PROTOCOL));
    assert!(open_again.opened());
    let c = gauge(PROTOCOL, 1);
    c.tell_with(&Message::Probe { token: 5 }, vec![0; MAX_PROBE_BYTES as usize]);
    assert!(matches!(c.next().0, Message::Pong { token: 5, .. }));
    c.silent();
    c.tell_with(&Message::Probe { token: 6 }, vec![0; MAX_PROBE_BYTES as usize + 1]);
    assert!(said(&c).contains("a probe of too many bytes"));
    let c = gauge(PROTOCOL, 1);
    c.tell(&Message::Close);
    assert!(said(&c).contains("there to be measured"));
    assert_eq!(worker.stats().bytes_held, 0);
    // Whoever says nothing is turned away in time.
    let c = Script::dial(&transport, "w");
    let shared = &worker.shared;
    shared.tick(Instant::now());
    c.nothing_more();
    assert!(c.link.is_open());
    shared.tick(Instant::now() + Duration::from_secs(6));
    c.why_closed();
}
