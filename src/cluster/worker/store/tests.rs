//! The store by itself: what comes in any order, twice, or not at all.

use super::*;
use crate::DType;
use crate::graph::Dim;
use crate::tensor::Buffer;

fn of(stage: u64, firing: u64) -> FiringKey {
    FiringKey { stage, firing }
}

fn key(stage: u64, firing: u64, output: u32) -> OutputKey {
    OutputKey { of: of(stage, firing), output }
}

fn form(extent: u64) -> Form {
    Form::Plain { dtype: DType::U8, shape: vec![extent] }
}

struct Bench {
    store: Store,
    ledger: Arc<Ledger>,
}

impl Bench {
    /// Stage 1 with so many inputs of up to any extent and two outputs.
    fn new(inputs: usize, quota: u64) -> Self {
        let ledger = Ledger::new("the session", quota, None);
        let mut store = Store::default();
        let fact = Fact::new(DType::U8, [Dim::symbol("N")]);
        store.declare(
            1,
            Declared {
                epoch: 1,
                inputs: vec![fact; inputs],
                outputs: 2,
                ledger: Arc::clone(&ledger),
            },
        );
        Self { store, ledger }
    }

    fn held(&self, byte: u8) -> Held {
        let charge = self.ledger.charge(1).unwrap();
        Held::new(form(1), Buffer::copy_of(&[byte]), charge)
    }

    fn input(&mut self, of: FiringKey, port: u32) -> Option<FiringKey> {
        match self.store.admit_input(of, port, &form(1), 1) {
            Admission::Take(charge) => {
                let held = Held::new(form(1), Buffer::copy_of(&[7]), charge);
                self.store.put_input(of, port, held)
            }
            _ => None,
        }
    }

    fn fire(&mut self, of: FiringKey, feeds: &[Feed]) -> Fired {
        self.store.fire(of, 1, feeds.to_vec(), Vec::new())
    }

    fn compute(&mut self, of: FiringKey) -> Finished {
        assert!(self.store.start(of).unwrap().is_ok());
        let outputs = vec![self.held(1), self.held(2)];
        self.store.finish(of, 1, 0, 1, outputs).unwrap()
    }
}

#[test]
fn every_order_of_arrival_fires_once() {
    // Two inputs that are sent, one of another worker and one of an own firing, and the order.
    let mut orders: Vec<Vec<usize>> = vec![vec![]];
    for _ in 0..5 {
        orders = orders
            .into_iter()
            .flat_map(|o| {
                (0..5)
                    .filter(|e| !o.contains(e))
                    .map(|e| [&o[..], &[e]].concat())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    assert_eq!(orders.len(), 120);
    for order in orders {
        let mut b = Bench::new(4, 1000);
        b.store.expect(9, 0, 1, Fact::new(DType::U8, [Dim::symbol("N")])).unwrap();
        // The own firing that is read has all that it needs.
        for port in 0..4 {
            b.input(of(1, 50), port);
        }
        let feeds = [Feed::Sent, Feed::Held(key(9, 5, 0)), Feed::Held(key(1, 50, 1)), Feed::Sent];
        let mut ready = 0;
        for event in &order {
            let mine = |all: &[FiringKey]| all.iter().filter(|k| **k == of(1, 60)).count();
            ready += match event {
                0 => mine(b.input(of(1, 60), 0).as_slice()),
                1 => mine(b.input(of(1, 60), 3).as_slice()),
                2 => {
                    let held = b.held(3);
                    mine(&b.store.put_tensor(key(9, 5, 0), held))
                }
                3 => {
                    let sent = [Feed::Sent; 4];
                    assert!(matches!(b.fire(of(1, 50), &sent), Fired::Ready));
                    mine(&b.compute(of(1, 50)).ready)
                }
                _ => usize::from(matches!(b.fire(of(1, 60), &feeds), Fired::Ready)),
            };
            // Everything once more changes nothing.
            if order.last() != Some(event) {
                assert_eq!(ready, 0, "{order:?}");
            }
        }
        assert_eq!(ready, 1, "{order:?}");
        let job = b.store.start(of(1, 60)).unwrap().unwrap();
        assert_eq!(job.inputs.len(), 4);
        assert!(b.store.start(of(1, 60)).is_none());
        drop(job);
        drop(b.store.release(&[of(1, 50), of(1, 60), of(9, 5)]));
        assert_eq!(b.ledger.used(), 0, "{order:?}");
        assert!(b.store.waiting.is_empty() && b.store.firings.is_empty());
    }
}

#[test]
fn what_is_given_and_what_is_kept() {
    let mut b = Bench::new(1, 1000);
    b.store.route(1, 0, vec!["p".to_owned(), "q".to_owned()]).unwrap();
    b.input(of(1, 1), 0);
    assert!(matches!(b.store.fire(of(1, 1), 1, vec![Feed::Sent], vec![1]), Fired::Ready));
    // More may be asked for while it is under way.
    let done = {
        assert!(b.store.start(of(1, 1)).is_some());
        assert!(matches!(b.store.fire(of(1, 1), 1, vec![Feed::Sent], vec![]), Fired::Pending));
        let outputs = vec![b.held(1), b.held(2)];
        b.store.finish(of(1, 1), 1, 5, 6, outputs).unwrap()
    };
    let given: Vec<u32> = done.delivery.give.iter().map(|g| g.0).collect();
    let kept: Vec<u32> = done.delivery.kept.iter().map(|g| g.0).collect();
    assert_eq!((given, kept), (vec![1], vec![0, 1]));
    assert_eq!(done.pushes.len(), 1);
    assert_eq!(
        (done.pushes[0].what, &done.pushes[0].to[..]),
        (key(1, 1, 0), &["p".to_owned(), "q".to_owned()][..])
    );
    assert_eq!(b.store.routed_to("q").len(), 1);
    assert!(b.store.routed_to("r").is_empty() && b.store.is_routed_to("p"));
    assert!(b.store.kept(key(1, 1, 1)).is_some() && b.store.kept(key(1, 1, 2)).is_none());
    // A second result of the same firing is not one.
    let again = vec![b.held(1), b.held(2)];
    assert!(b.store.finish(of(1, 1), 1, 5, 6, again).is_none());
    b.store.route(1, 0, Vec::new()).unwrap();
    assert!(!b.store.is_routed_to("p"));
}

#[test]
fn a_firing_that_was_released_or_replaced_while_it_ran_leaves_nothing() {
    let mut b = Bench::new(1, 1000);
    for (n, replace) in [(1, false), (2, true)] {
        b.input(of(1, n), 0);
        assert!(matches!(b.fire(of(1, n), &[Feed::Sent]), Fired::Ready));
        let job = b.store.start(of(1, n)).unwrap().unwrap();
        if replace {
            drop(b.store.replace(1));
        } else {
            drop(b.store.release(&[of(1, n)]));
        }
        drop(job);
        let outputs = vec![b.held(1), b.held(2)];
        assert!(b.store.finish(of(1, n), 1, 0, 1, outputs).is_none());
        assert!(!b.store.finish_failed(of(1, n), 1, WireError::from(&err!(Kernel, "x"))));
        assert_eq!(b.ledger.used(), 0);
    }
    // A queued one that lost an input it does not own.
    let mut b = Bench::new(1, 1000);
    b.store.expect(9, 0, 1, Fact::unknown()).unwrap();
    let held = b.held(1);
    b.store.put_tensor(key(9, 1, 0), held);
    assert!(matches!(b.fire(of(1, 3), &[Feed::Held(key(9, 1, 0))]), Fired::Ready));
    drop(b.store.release(&[of(9, 1)]));
    assert!(b.store.start(of(1, 3)).unwrap().is_err());
    assert!(matches!(b.fire(of(1, 3), &[Feed::Sent]), Fired::Failed(_)));
}

#[test]
fn an_order_may_change_where_its_inputs_come_from() {
    let mut b = Bench::new(1, 1000);
    assert!(matches!(b.fire(of(1, 1), &[Feed::Held(key(9, 1, 0))]), Fired::Pending));
    assert!(matches!(b.fire(of(1, 1), &[Feed::Sent]), Fired::Pending));
    let held = b.held(1);
    assert!(b.store.put_tensor(key(9, 1, 0), held).is_empty());
    assert_eq!(b.input(of(1, 1), 0), Some(of(1, 1)));
}

#[test]
fn what_comes_late_is_bounded_and_makes_room() {
    let mut b = Bench::new(1, 300);
    b.store.expect(9, 0, 1, Fact::new(DType::U8, [Dim::symbol("N")])).unwrap();
    let all: Vec<FiringKey> = (0..200).map(|n| of(9, n)).collect();
    drop(b.store.release(&all));
    let ledger = Arc::clone(&b.ledger);
    for n in 0..200 {
        let what = key(9, n, 0);
        match b.store.admit_tensor(what, 1, &form(2), 2, &ledger) {
            Admission::Take(charge) => {
                let held = Held::new(form(2), Buffer::copy_of(&[1, 2]), charge);
                assert!(b.store.put_tensor(what, held).is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(b.ledger.used(), 2 * MAX_LATE as u64);
    // Something that is needed takes their place.
    assert!(matches!(b.store.admit_input(of(1, 1), 0, &form(299), 299), Admission::Take(_)));
    assert_eq!(b.ledger.used(), 0);
    assert!(b.store.tensors.is_empty());
    // And what is too much is too much.
    match b.store.admit_input(of(1, 2), 0, &form(301), 301) {
        Admission::Fail(firings, _) => assert_eq!(firings, [of(1, 2)]),
        other => panic!("{other:?}"),
    }
    assert!(matches!(b.store.admit_input(of(1, 2), 0, &form(1), 1), Admission::Discard));
}

#[test]
fn what_is_remembered_of_released_firings_is_bounded() {
    let mut b = Bench::new(1, 300);
    for n in 0..2 * REMEMBERED as u64 {
        drop(b.store.release(&[of(1, n), of(1, n)]));
    }
    assert_eq!((b.store.released.len(), b.store.released_in_order.len()), (REMEMBERED, REMEMBERED));
}

#[test]
fn a_stage_that_ends_elsewhere_leaves_nothing_here() {
    let mut b = Bench::new(1, 1000);
    for stage in [8, 9] {
        b.store.expect(stage, 0, 1, Fact::unknown()).unwrap();
        let held = b.held(1);
        b.store.put_tensor(key(stage, 1, 0), held);
    }
    drop(b.store.drop_stage(9));
    assert_eq!((b.store.tensors.len(), b.store.expected.len(), b.ledger.used()), (1, 1, 1));
    drop(b.store.drop_stage(8));
    assert!(!b.store.expects_any());
    assert_eq!(b.ledger.used(), 0);
}
