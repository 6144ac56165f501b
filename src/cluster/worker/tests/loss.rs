//! Links that break, coordinators that come back or do not, workers that go.

use super::*;

fn odd_worker(transport: &Arc<dyn Transport>) -> (Serving, Sender<()>) {
    let (registry, token) = odd();
    let worker = Worker::new("w").registry(registry);
    (worker.serve(Arc::clone(transport), "w").unwrap(), token)
}

#[test]
fn a_coordinator_that_comes_back_within_its_lease_finds_all_as_it_was() {
    let transport = local();
    let (worker, token) = odd_worker(&transport);
    let c = Script::open(&transport, "w", 1, LONG);
    assert!(!c.opened());
    c.place(1, &relu().device("odd"));
    c.run(of(1, 1), &floats(&[3.0]), &[0]);
    c.output();
    c.done(of(1, 1));
    c.run(of(1, 2), &floats(&[99.0]), &[0]);
    c.input(of(1, 3), 0, &floats(&[5.0]));
    c.silent();
    c.link.close();
    c.why_closed();

    let c = Script::open(&transport, "w", 1, LONG);
    assert!(c.opened());
    c.place(1, &relu().device("odd"));
    // One that is done, one that is under way, one that waits for its order.
    c.fire(of(1, 1), &[Feed::Sent], &[0]);
    assert_eq!(c.output().2, floats(&[3.0]));
    c.done(of(1, 1));
    c.run(of(1, 2), &floats(&[99.0]), &[0]);
    c.silent();
    token.send(()).unwrap();
    assert_eq!(c.output().2, floats(&[99.0]));
    c.done(of(1, 2));
    c.fire(of(1, 3), &[Feed::Sent], &[0]);
    assert_eq!(c.output().2, floats(&[5.0]));
    c.done(of(1, 3));
    let stats = worker.stats();
    assert_eq!((stats.sessions, stats.stages, stats.firings), (1, 1, 3));

    // A new link replaces one that looks alive; what the old one still says does not count.
    let newer = Script::open(&transport, "w", 1, LONG);
    assert!(newer.opened());
    c.why_closed();
    assert!(!c.link.is_open());
    newer.run(of(1, 4), &floats(&[6.0]), &[0]);
    assert_eq!(newer.output().2, floats(&[6.0]));
    newer.done(of(1, 4));
    assert_eq!(worker.stats().sessions, 1);
}

#[test]
fn a_coordinator_that_does_not_come_back_leaves_nothing() {
    let transport = local();
    let (worker, token) = odd_worker(&transport);
    let c = Script::open(&transport, "w", 1, SHORT);
    assert!(!c.opened());
    let other = Script::open(&transport, "w", 2, LONG);
    assert!(!other.opened());
    for script in [&c, &other] {
        script.place(1, &relu().device("odd"));
        script.run(of(1, 1), &floats(&[3.0, 4.0]), &[]);
        script.done(of(1, 1));
    }
    // One is under way, one waits for its turn.
    c.run(of(1, 2), &floats(&[99.0]), &[0]);
    c.run(of(1, 3), &floats(&[99.0]), &[0]);
    c.silent();
    assert_eq!((worker.stats().sessions, worker.stats().stages), (2, 2));
    let lost = Instant::now();
    c.link.close();
    until("its lease ends", || worker.stats().sessions == 1);
    assert!(lost.elapsed() >= Duration::from_millis(SHORT));
    token.send(()).unwrap();
    // What the other session has stays: 8 bytes, a stage.
    until("all of it is freed", || {
        let stats = worker.stats();
        stats.stages == 1 && stats.bytes_held == 8 && stats.threads == 1
    });
    let c = Script::open(&transport, "w", 1, SHORT);
    assert!(!c.opened());
    c.tell(&Message::Close);
    other.tell(&Message::Close);
    until("nothing is left", || {
        let stats = worker.stats();
        (stats.sessions, stats.stages, stats.bytes_held, stats.threads) == (0, 0, 0, 0)
    });
    other.why_closed();
}

#[test]
fn a_link_to_another_worker_that_breaks_is_made_again() {
    let transport = local();
    let a = serve(&transport, "a");
    let to_a = Script::open(&transport, "a", 1, 5_000);
    assert!(!to_a.opened());
    to_a.place(1, &relu());
    let route = |ticket: u64| {
        let to = vec![("b".to_owned(), "b".to_owned())];
        to_a.tell(&Message::Route { ticket, stage: 1, output: 0, to });
    };
    let fact = Fact::concrete(DType::F32, &[1]);
    let expect = Message::Expect { ticket: 1, stage: 1, epoch: 1, output: 0, fact };
    // The other worker is not there yet, and then has no such session yet.
    route(9);
    to_a.run(of(1, 1), &floats(&[1.0]), &[]);
    to_a.done(of(1, 1));
    let start = |transport: &Arc<dyn Transport>| {
        let b = serve(transport, "b");
        let to_b = Script::open(transport, "b", 1, LONG);
        assert!(!to_b.opened());
        to_b.tell(&expect);
        assert_eq!(to_b.settled(1), None);
        (b, to_b)
    };
    let (b, to_b) = start(&transport);
    assert_eq!(to_a.settled(9), None);
    // What was done meanwhile went over, and what is done from now on.
    until("the first tensor", || b.stats().tensors_from_peers == 1);
    to_a.run(of(1, 2), &floats(&[2.0]), &[]);
    to_a.done(of(1, 2));
    until("the second tensor", || b.stats().tensors_from_peers == 2);
    // It goes and comes back: all that is kept for it goes over again.
    drop((b, to_b));
    to_a.run(of(1, 3), &floats(&[3.0]), &[]);
    to_a.done(of(1, 3));
    let (b, _to_b) = start(&transport);
    until("all three tensors", || b.stats().tensors_from_peers == 3);
    assert_eq!(b.stats().bytes_held, 12);
    drop(a);
}

#[test]
fn a_worker_that_does_not_come_back_is_told_of() {
    let transport = local();
    let a = serve(&transport, "a");
    let to_a = Script::open(&transport, "a", 1, SHORT);
    assert!(!to_a.opened());
    to_a.place(1, &relu());
    let to = vec![("b".to_owned(), "b".to_owned())];
    let route = Message::Route { ticket: 4, stage: 1, output: 0, to };
    to_a.tell(&route);
    let error = to_a.settled(4).unwrap().into_error("a");
    assert!(error.to_string().contains("the worker `b` at b"), "{error}");
    // Asked again when it is there.
    let b = serve(&transport, "b");
    let to_b = Script::open(&transport, "b", 1, LONG);
    assert!(!to_b.opened());
    let fact = Fact::concrete(DType::F32, &[1]);
    to_b.tell(&Message::Expect { ticket: 1, stage: 1, epoch: 1, output: 0, fact });
    assert_eq!(to_b.settled(1), None);
    to_a.tell(&route);
    assert_eq!(to_a.settled(4), None);
    drop(b);
    match to_a.next().0 {
        Message::Unreachable { worker, .. } => assert_eq!(worker, "b"),
        other => panic!("{other:?}"),
    }
    // A kept output that is to go there once is told of, too.
    to_a.run(of(1, 1), &floats(&[1.0]), &[]);
    to_a.done(of(1, 1));
    to_a.tell(&Message::Send { what: out(1, 1, 0), to: ("b".to_owned(), "b".to_owned()) });
    assert!(matches!(to_a.next().0, Message::Unreachable { .. }));
    to_a.silent();
    to_a.tell(&Message::Close);
    until("nothing is left", || a.stats().threads == 0 && a.stats().bytes_held == 0);
}

#[test]
fn a_worker_ends_in_bounded_time_with_a_kernel_under_way() {
    let transport = local();
    let (worker, token) = odd_worker(&transport);
    let c = Script::open(&transport, "w", 1, LONG);
    assert!(!c.opened());
    c.place(1, &relu().device("odd"));
    c.run(of(1, 1), &floats(&[99.0]), &[0]);
    c.silent();
    std::thread::scope(|scope| {
        let closed = scope.spawn(move || {
            let began = Instant::now();
            worker.close();
            began.elapsed()
        });
        c.why_closed();
        // Nobody takes it where the kernel had not begun.
        let _ = token.send(());
        assert!(closed.join().unwrap() < PATIENCE);
    });
}
