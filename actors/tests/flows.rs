//! Random flows of operators, compared with a plain interpreter of the same flow.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod kit;

use std::cell::Cell;
use std::time::Duration;

use brigade_actors::{Batching, ErrorKind, Flow, ItemError, Options, Pipeline};
use kit::{Rng, within};

/// One number for an item; one for each member for a batch.
type V = Vec<i64>;

#[derive(Clone, Debug)]
enum Op {
    Map(i64),
    /// Fails where the number leaves this rest.
    Fail(i64, i64),
    Filter(i64, i64),
    /// Sleeps as many units of 20 µs as the number says, up to this many.
    Delay(i64),
    /// Fans out to up to this many children and collects them.
    Fan(i64, Vec<Op>, Collect),
    Batch(usize, Option<u64>, bool, Vec<Op>),
    Zip(Vec<Vec<Op>>),
    Merge(Vec<Vec<Op>>),
}

#[derive(Clone, Copy, Debug)]
enum Collect {
    Results,
    Values,
}

/// What can be told of a result: its number, or the kind of its error.
type Plain = Result<i64, ErrorKind>;

fn mix(x: i64, k: i64) -> i64 {
    (x.wrapping_mul(31).wrapping_add(k).wrapping_mul(7) ^ (x >> 3)).rem_euclid(1_000_003)
}

fn children(x: i64, most: i64) -> Vec<i64> {
    (0..x.rem_euclid(most + 1)).map(|n| mix(x, n)).collect()
}

fn fold(results: impl IntoIterator<Item = Plain>) -> i64 {
    results.into_iter().fold(1, |hash, result| match result {
        Ok(x) => mix(hash, x),
        Err(ErrorKind::Filtered) => mix(hash, 5),
        Err(_) => mix(hash, 6),
    })
}

fn all(ops: &[Op], x: Plain) -> Plain {
    ops.iter().fold(x, |x, op| x.and_then(|x| one(op, x)))
}

/// What an item becomes: a plain function, one thing after the other.
fn one(op: &Op, x: i64) -> Plain {
    match op {
        Op::Map(k) => Ok(mix(x, *k)),
        Op::Fail(n, rest) if x % n == *rest => Err(ErrorKind::Failed),
        Op::Filter(n, rest) if x % n == *rest => Err(ErrorKind::Filtered),
        Op::Fail(..) | Op::Filter(..) | Op::Delay(_) => Ok(x),
        Op::Batch(_, _, _, inner) => all(inner, Ok(x)),
        Op::Fan(most, inner, collect) => {
            let list: Vec<Plain> =
                children(x, *most).into_iter().map(|child| all(inner, Ok(child))).collect();
            let failed =
                list.iter().find(|one| matches!(one, Err(kind) if *kind != ErrorKind::Filtered));
            match (collect, failed) {
                (Collect::Values, Some(failed)) => *failed,
                (Collect::Values, None) => Ok(fold(list.into_iter().filter(Result::is_ok))),
                (Collect::Results, _) => Ok(fold(list)),
            }
        }
        Op::Zip(ways) => {
            let ends: Vec<Plain> = ways.iter().map(|way| all(way, Ok(x))).collect();
            first_error(&ends).map_or_else(|| Ok(fold(ends)), Err)
        }
        Op::Merge(ways) => {
            let ends: Vec<Plain> = ways.iter().map(|way| all(way, Ok(x))).collect();
            match (first_error(&ends), ends.iter().find(|end| end.is_ok())) {
                (Some(ErrorKind::Filtered) | None, Some(end)) => *end,
                (Some(kind), _) => Err(kind),
                (None, None) => unreachable!("a merge has ways"),
            }
        }
    }
}

/// An error that is not a filter's, or else a filter's.
fn first_error(ends: &[Plain]) -> Option<ErrorKind> {
    let errors = || ends.iter().filter_map(|end| end.err());
    errors().find(|kind| *kind != ErrorKind::Filtered).or_else(|| errors().next())
}

fn random(rng: &mut Rng, depth: usize, batched: bool, retried: bool) -> Vec<Op> {
    let number = |rng: &mut Rng, limit: u64| i64::try_from(rng.below(limit)).unwrap();
    let count = 1 + rng.below(3);
    (0..count)
        .map(|_| match rng.below(if depth == 0 || batched { 4 } else { 9 }) {
            1 if !batched || retried => Op::Fail(3 + number(rng, 9), number(rng, 3)),
            2 if !batched => Op::Filter(3 + number(rng, 9), number(rng, 3)),
            3 => Op::Delay(number(rng, 8)),
            4 | 5 => {
                let collect = if rng.below(3) == 0 { Collect::Values } else { Collect::Results };
                Op::Fan(number(rng, 9), random(rng, depth - 1, false, false), collect)
            }
            6 => {
                let retry = rng.below(2) == 0;
                let key = (rng.below(2) == 0).then(|| 1 + rng.below(3));
                let count = 1 + usize::try_from(rng.below(6)).unwrap();
                Op::Batch(count, key, retry, random(rng, depth - 1, true, retry))
            }
            7 => Op::Zip(
                (0..2 + rng.below(2)).map(|_| random(rng, depth - 1, false, false)).collect(),
            ),
            8 => Op::Merge(
                (0..2 + rng.below(2)).map(|_| random(rng, depth - 1, false, false)).collect(),
            ),
            _ => Op::Map(number(rng, 1000)),
        })
        .collect()
}

fn add(flow: Flow<V>, ops: &[Op], names: &Cell<usize>) -> Flow<V> {
    ops.iter().fold(flow, |flow, op| add_one(flow, op, names))
}

fn add_one(flow: Flow<V>, op: &Op, names: &Cell<usize>) -> Flow<V> {
    let name = |what: &str| {
        names.set(names.get() + 1);
        format!("{what} {}", names.get())
    };
    // Few devices, so that actors wait for each other's lanes.
    let device = format!("d{}", names.get() % 3);
    let plain = |result: Result<V, ItemError>| result.map(|v| v[0]).map_err(|error| error.kind());
    match op.clone() {
        Op::Map(k) => flow
            .map(name("map"), device, move |v: V| Ok(v.into_iter().map(|x| mix(x, k)).collect())),
        Op::Fail(n, rest) => flow.map(name("fail"), device, move |v: V| {
            if v.iter().any(|x| x % n == rest) { Err(ItemError::failed("unlucky")) } else { Ok(v) }
        }),
        Op::Filter(n, rest) => flow.filter(name("filter"), device, move |v: &V| v[0] % n != rest),
        Op::Delay(most) => flow.map(name("delay"), device, move |v: V| {
            let units = v[0].rem_euclid(most + 1).unsigned_abs();
            std::thread::sleep(Duration::from_micros(20 * units));
            Ok(v)
        }),
        Op::Fan(most, inner, collect) => {
            let flow = flow.flat_map(name("fan"), device.clone(), move |v: V| {
                Ok(children(v[0], most).into_iter().map(|x| vec![x]).collect())
            });
            let flow = add(flow, &inner, names);
            match collect {
                Collect::Results => flow.collect(name("collect"), device, move |list| {
                    Ok(vec![fold(list.into_iter().map(plain))])
                }),
                Collect::Values => flow.collect_values(name("values"), device, |list| {
                    Ok(vec![fold(list.into_iter().map(|v| Ok(v[0])))])
                }),
            }
        }
        Op::Batch(count, key, retry, inner) => {
            let mut batching = Batching::up_to(count);
            if let Some(key) = key {
                batching = batching.keyed(move |v: &V| v[0].unsigned_abs() % key);
            }
            if retry {
                batching = batching.retry_singly();
            }
            let flow = flow.batch(name("batch"), device.clone(), batching, |v| Ok(v.concat()));
            add(flow, &inner, names).unbatch(name("unbatch"), device, |v: V, _| {
                Ok(v.into_iter().map(|x| vec![x]).collect())
            })
        }
        Op::Zip(ways) | Op::Merge(ways) => {
            let mut ends = ways.into_iter();
            let (first, second) = (ends.next().unwrap(), ends.next().unwrap());
            let fork = flow.fork(|f| add(f, &first, names), |f| add(f, &second, names));
            let fork = ends.fold(fork, |fork, way| fork.and(|f| add(f, &way, names)));
            if matches!(op, Op::Zip(_)) {
                fork.zip(name("zip"), device, |v| Ok(vec![fold(v.into_iter().map(|v| Ok(v[0])))]))
            } else {
                fork.merge(name("merge"), device)
            }
        }
    }
}

fn check(seed: u64, items: i64) {
    let mut rng = Rng(seed);
    let ops = random(&mut rng, 3, false, false);
    let flow = add(Flow::source("x"), &ops, &Cell::new(0));
    let children = 1 + usize::try_from(rng.below(20)).unwrap();
    let in_flight = 1 + usize::try_from(rng.below(8)).unwrap();
    let options = Options::new().children(children).in_flight(in_flight);
    let pipeline = Pipeline::spawn(flow.build("y").unwrap(), options).unwrap();
    let mut results = 0;
    for (x, result) in (0..).zip(pipeline.stream((0..items).map(|x| vec![vec![x]]))) {
        let number = |error: &ItemError| error.seq().map(brigade_actors::Seq::number);
        if let Err(error) = &result {
            assert_eq!(number(error), Some(x), "seed {seed}: {error}");
        }
        let plain = result.map(|v| v[0][0]).map_err(|error| error.kind());
        let x = i64::try_from(x).unwrap();
        assert_eq!(plain, all(&ops, Ok(x)), "seed {seed}, item {x} of {ops:?}");
        results += 1;
    }
    assert_eq!(results, items);
    let stats = pipeline.stats();
    assert_eq!(stats.in_flight, 0);
    for edge in &stats.edges {
        assert!(edge.peak <= edge.capacity as u64, "seed {seed}: {edge:?}");
    }
}

#[test]
fn random_flows_give_what_a_plain_interpreter_gives() {
    for seed in 0..60 {
        within(Duration::from_secs(60), move || check(seed, 100));
    }
}
