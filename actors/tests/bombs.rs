//! Payloads that panic when they are dropped: wherever the runtime drops one, only that item pays.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_actors::{
    Batching, Flow, Options, Payload, Pipeline, PipelineState, Topology, WhenFull,
};

mod kit;
use kit::{MS, within};

const LIMIT: Duration = Duration::from_secs(30);

/// Panics as it is dropped, if armed; counts that it was.
struct Bomb(Option<Arc<AtomicUsize>>);

impl Payload for Bomb {
    fn bytes(&self) -> usize {
        1
    }

    fn share(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if let Some(drops) = &self.0 {
            drops.fetch_add(1, Ordering::SeqCst);
            panic!("a bomb was dropped");
        }
    }
}

fn slow(flow: Flow<Bomb>, name: &str) -> Flow<Bomb> {
    flow.map(name, name, |bomb| {
        std::thread::sleep(5 * MS);
        Ok(bomb)
    })
}

fn topology() -> Topology<Bomb> {
    slow(slow(Flow::source("x"), "a"), "b").build("y").unwrap()
}

/// Whether a harmless item still comes through, and the pipeline ends without a panic.
fn goes_on(pipeline: &Pipeline<Bomb>) {
    assert!(pipeline.push(vec![Bomb(None)]).unwrap().wait().is_ok());
    assert_eq!(pipeline.state(), PipelineState::Running);
    pipeline.drain(Some(Instant::now() + LIMIT / 2)).unwrap();
    assert!(pipeline.shutdown().detached.is_empty());
}

#[test]
fn results_that_nobody_takes_harm_nobody() {
    within(LIMIT, || {
        let drops = Arc::new(AtomicUsize::new(0));
        let bomb = || vec![Bomb(Some(Arc::clone(&drops)))];
        let pipeline = Pipeline::spawn(topology(), Options::new().in_flight(4)).unwrap();
        for _ in 0..5 {
            // Given up before the result is there, and after.
            drop(pipeline.push(bomb()).unwrap());
            let ticket = pipeline.push(bomb()).unwrap();
            while !ticket.is_done() {
                std::thread::sleep(MS);
            }
            drop(ticket);
        }
        goes_on(&pipeline);
        assert_eq!(drops.load(Ordering::SeqCst), 10);
    });
}

#[test]
fn items_that_are_cancelled_late_or_turned_away_harm_nobody() {
    within(LIMIT, || {
        let drops = Arc::new(AtomicUsize::new(0));
        let bomb = || vec![Bomb(Some(Arc::clone(&drops)))];
        let options = Options::new().in_flight(1).when_full(WhenFull::DropOldest).queue(1);
        let pipeline = Pipeline::spawn(topology(), options).unwrap();
        for _ in 0..4 {
            let ticket = pipeline.push(bomb()).unwrap();
            ticket.cancel();
            assert!(ticket.wait().is_err());
            let late = Instant::now() + 3 * MS;
            for refused_or_late in
                [pipeline.push_deadline(bomb(), late), pipeline.push_deadline(bomb(), late)]
            {
                match refused_or_late {
                    Ok(ticket) => assert!(ticket.wait().is_err()),
                    Err(refused) => drop(refused.into_item_error()),
                }
            }
            for ticket in (0..3).map(|_| pipeline.push(bomb()).unwrap()).collect::<Vec<_>>() {
                let _ = ticket.wait().map(std::mem::forget);
            }
        }
        let newest = Options::new().in_flight(1).when_full(WhenFull::DropNewest).queue(0);
        let newest = Pipeline::spawn(topology(), newest).unwrap();
        let tickets: Vec<_> = (0..4).map(|_| newest.push(bomb()).unwrap()).collect();
        tickets.into_iter().for_each(|ticket| drop(ticket.wait().map(std::mem::forget)));
        goes_on(&newest);
        goes_on(&pipeline);
        assert!(drops.load(Ordering::SeqCst) > 0);
    });
}

#[test]
fn a_stop_with_bombs_everywhere_ends_and_so_does_the_last_handle() {
    within(LIMIT, || {
        let drops = Arc::new(AtomicUsize::new(0));
        for by_drop in [false, true] {
            let options = Options::new().in_flight(4).queue(4);
            let pipeline = Pipeline::spawn(topology(), options).unwrap();
            let bomb = || vec![Bomb(Some(Arc::clone(&drops)))];
            let tickets: Vec<_> = (0..8).map(|_| pipeline.push(bomb()).unwrap()).collect();
            std::thread::sleep(7 * MS);
            if !by_drop {
                assert!(pipeline.shutdown().detached.is_empty());
                assert_eq!(pipeline.state(), PipelineState::Stopped);
            }
            drop(pipeline);
            for ticket in tickets {
                let _ = ticket.wait().map(std::mem::forget);
            }
        }
        assert!(drops.load(Ordering::SeqCst) > 0);
    });
}

#[test]
fn operators_and_sources_that_nobody_takes_from_survive_bombs() {
    within(LIMIT, || {
        let drops = Arc::new(AtomicUsize::new(0));
        let armed = Arc::clone(&drops);
        // Two bombs as children of each item; the second of them is more than may be kept.
        let flow = Flow::source("x").flat_map("fan", "c", move |bomb: Bomb| {
            let armed = bomb.0.is_some().then(|| Arc::clone(&armed));
            std::mem::forget(bomb);
            Ok(vec![Bomb(armed.clone()), Bomb(armed)])
        });
        let flow = flow
            .batch("batch", "c", Batching::up_to(2), |mut bombs: Vec<Bomb>| {
                let first = bombs.remove(0);
                bombs.into_iter().for_each(std::mem::forget);
                Ok(first)
            })
            .unbatch("unbatch", "c", |bomb: Bomb, members| {
                let all = (0..members).map(|_| bomb.share()).collect();
                std::mem::forget(bomb);
                Ok(all)
            })
            .collect_values("collect", "c", |mut bombs: Vec<Bomb>| {
                let first = bombs.remove(0);
                bombs.into_iter().for_each(std::mem::forget);
                Ok(first)
            });
        let (mut builder, at) = flow.into_parts();
        let spare = builder.source("spare");
        let _ = spare;
        let y = builder.sink("y");
        builder.connect(at, y);
        let pipeline = Pipeline::spawn(builder.build().unwrap(), Options::new()).unwrap();
        for round in 0..4 {
            let bomb = || Bomb(Some(Arc::clone(&drops)));
            let ticket = pipeline.push(vec![bomb(), bomb()]).unwrap();
            if round % 2 == 0 {
                ticket.cancel();
            }
            let _ = ticket.wait().map(|outputs| outputs.into_iter().for_each(std::mem::forget));
        }
        let ticket = pipeline.push(vec![Bomb(None), Bomb(None)]).unwrap();
        assert!(ticket.wait().is_ok());
        assert_eq!(pipeline.state(), PipelineState::Running);
        assert!(drops.load(Ordering::SeqCst) >= 4, "the spare source drops what it is given");
    });
}
