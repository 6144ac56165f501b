//! What a hop between actors costs, against the same threads over bare crossbeam channels.
//!
//! ```text
//! cargo bench -p brigade-actors --bench edges [-- --json] [--rounds N] [--times N] [--only TEXT]
//! ```
//!
//! `--times` makes the rounds longer, for a profiler. Both sides run in one process and take turns, round by round; a row gives the median of the
//! rounds, and the median of the ratios within a round. A hop is one hand-over from thread to
//! thread: a chain of *n* stages has *n* + 1, the first from the caller and the last to it. The bare
//! side sends the same payload through the same threads and does nothing else.
//!
//! - `spinning`: one item in flight, receivers that poll; [`Options::spin`] on the actors' side.
//! - `blocking`: one item in flight, back to back; receivers that wait as they do by themselves.
//! - `parked`: one item at a time after a pause, so that every receiver sleeps.
//! - `stream`: many items in flight; the cost is that of an item, over all hops.
//! - `join`: as `spinning` and `blocking`, an actor whose two ports take the same payload; the bare
//!   side receives from two channels.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic, reason = "a bench reports")]

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_actors::{Factory, Firing, ItemError, Options, Outbox, Pipeline, Stage, Topology};
use crossbeam_channel::{Receiver, Sender, bounded};

type Buffer = Arc<Vec<u8>>;
type Sent = (Buffer, Instant);

/// Longer than any gap within a block, so that a receiver that polls never sleeps in it.
const SPIN: Duration = Duration::from_millis(20);
const WINDOW: usize = 64;
const KIB: usize = 1024;

/// Hands its first input on.
struct Pass;

impl Stage<Buffer> for Pass {
    fn submit(
        &mut self,
        mut firing: Firing<Buffer>,
        out: &mut Outbox<Buffer>,
    ) -> Result<(), ItemError> {
        firing.inputs.truncate(1);
        if let Some(buffer) = firing.inputs.pop() {
            out.emit(0, buffer);
        }
        out.recycle(firing.inputs);
        Ok(())
    }
}

fn pass() -> Factory<Buffer> {
    Box::new(|_| Ok(Box::new(Pass)))
}

fn chain(stages: usize, ports: usize, options: Options) -> Pipeline<Buffer> {
    let mut builder = Topology::builder();
    let mut last = builder.source("x");
    for n in 0..stages {
        let actor = builder.actor(format!("a{n}"), format!("cpu:{n}"), ports, 1, pass());
        for port in 0..ports {
            builder.connect(last, actor.input(port));
        }
        last = actor.output(0);
    }
    let y = builder.sink("y");
    builder.connect(last, y);
    Pipeline::spawn(builder.build().unwrap(), options).unwrap()
}

/// Takes the next message: polls for a while first, or waits as the channel does.
fn take(from: &Receiver<Sent>, polls: bool) -> Option<Sent> {
    if polls {
        let begun = Instant::now();
        let mut tries = 0_u32;
        loop {
            if let Ok(message) = from.try_recv() {
                return Some(message);
            }
            spin_loop();
            tries = tries.wrapping_add(1);
            if tries.is_multiple_of(1024) && begun.elapsed() > SPIN {
                break;
            }
        }
    }
    from.recv().ok()
}

/// Threads that do nothing but hand over.
struct Bare {
    first: Vec<Sender<Sent>>,
    last: Receiver<Sent>,
    polls: bool,
}

impl Bare {
    fn new(stages: usize, ports: usize, polls: bool) -> Self {
        let link = || (0..ports).map(|_| bounded::<Sent>(WINDOW)).unzip::<_, _, Vec<_>, Vec<_>>();
        let (first, mut from) = link();
        for stage in 0..stages {
            let width = if stage + 1 == stages { 1 } else { ports };
            let (to, next): (Vec<_>, Vec<_>) = (0..width).map(|_| bounded(WINDOW)).unzip();
            let inputs = std::mem::replace(&mut from, next);
            let thread = std::thread::Builder::new().name(format!("bare{stage}"));
            let relay = move || {
                loop {
                    let mut message = None;
                    for input in &inputs {
                        message = take(input, polls);
                    }
                    let Some(message) = message else { return };
                    give(&to, message);
                }
            };
            thread.spawn(relay).unwrap();
        }
        Self { first, last: from.remove(0), polls }
    }

    fn round_trip(&self, buffer: Buffer) -> Buffer {
        give(&self.first, (buffer, Instant::now()));
        take(&self.last, self.polls).unwrap().0
    }
}

fn give(to: &[Sender<Sent>], message: Sent) {
    if let Some((last, rest)) = to.split_last() {
        for other in rest {
            let _ = other.send(message.clone());
        }
        let _ = last.send(message);
    }
}

/// One comparison: a block of `items` on either side gives nanoseconds.
struct Case {
    mode: &'static str,
    stages: usize,
    bytes: usize,
    items: usize,
    bare: Box<dyn FnMut(usize) -> f64>,
    actors: Box<dyn FnMut(usize) -> f64>,
}

/// One item at a time, nanoseconds a hop; `pause` is spent before each item and not counted.
fn latency(
    hops: usize,
    bytes: usize,
    pause: Duration,
    mut round_trip: impl FnMut(Buffer) -> Buffer + 'static,
) -> Box<dyn FnMut(usize) -> f64> {
    let mut buffer = Arc::new(vec![1_u8; bytes]);
    Box::new(move |items| {
        let mut spent = Duration::ZERO;
        for _ in 0..items {
            let begun = Instant::now();
            while begun.elapsed() < pause {
                spin_loop();
            }
            let begun = Instant::now();
            buffer = round_trip(Arc::clone(&buffer));
            spent += begun.elapsed();
        }
        spent.as_nanos() as f64 / (items * hops) as f64
    })
}

fn one_at_a_time(
    mode: &'static str,
    stages: usize,
    ports: usize,
    bytes: usize,
    items: usize,
    pause: Duration,
) -> Case {
    let polls = mode.ends_with("spinning");
    let hops = stages + 1;
    let bare = Bare::new(stages, ports, polls);
    let options = Options::new().in_flight(1);
    let options = if polls { options.spin(SPIN) } else { options };
    let pipeline = chain(stages, ports, options);
    let round_trip = move |buffer| {
        let mut result = pipeline.push(vec![buffer]).unwrap().wait().unwrap();
        result.pop().unwrap()
    };
    Case {
        mode,
        stages,
        bytes,
        items,
        bare: latency(hops, bytes, pause, move |buffer| bare.round_trip(buffer)),
        actors: latency(hops, bytes, pause, round_trip),
    }
}

/// Many in flight; nanoseconds an item and hop.
fn stream(stages: usize, bytes: usize, items: usize) -> Case {
    let bare = Bare::new(stages, 1, false);
    let buffer = Arc::new(vec![1_u8; bytes]);
    let hops = (stages + 1) as f64;
    let one = Arc::clone(&buffer);
    let over_channels = move |items: usize| {
        let begun = Instant::now();
        let mut out = VecDeque::with_capacity(WINDOW);
        for n in 0..items {
            if out.len() == WINDOW {
                out.pop_front();
                take(&bare.last, false).unwrap();
            }
            give(&bare.first, (Arc::clone(&one), begun));
            out.push_back(n);
        }
        for _ in out {
            take(&bare.last, false).unwrap();
        }
        begun.elapsed().as_nanos() as f64 / items as f64 / hops
    };
    let pipeline = chain(stages, 1, Options::new().in_flight(WINDOW));
    let over_actors = move |items: usize| {
        let begun = Instant::now();
        let inputs = (0..items).map(|_| vec![Arc::clone(&buffer)]);
        let done = pipeline.stream(inputs).filter(|result| result.is_ok()).count();
        assert_eq!(done, items);
        begun.elapsed().as_nanos() as f64 / items as f64 / hops
    };
    Case {
        mode: "stream",
        stages,
        bytes,
        items,
        bare: Box::new(over_channels),
        actors: Box::new(over_actors),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Row {
    name: String,
    bare_ns: f64,
    actors_ns: f64,
    ratio: f64,
    best_ratio: f64,
}

fn measure(case: &mut Case, rounds: usize) -> Row {
    let rest = || std::thread::sleep(2 * SPIN);
    (case.bare)(case.items / 10 + 1);
    rest();
    (case.actors)(case.items / 10 + 1);
    let (mut bare, mut actors) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        rest();
        bare.push((case.bare)(case.items));
        rest();
        actors.push((case.actors)(case.items));
    }
    let ratios = bare.iter().zip(&actors).map(|(bare, actors)| actors / bare).collect();
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    Row {
        name: format!("{} x{} {} KiB", case.mode, case.stages, case.bytes / KIB),
        best_ratio: least(&actors) / least(&bare),
        bare_ns: median(bare),
        actors_ns: median(actors),
        ratio: median(ratios),
    }
}

fn cases() -> Vec<Box<dyn Fn() -> Case>> {
    let mut cases: Vec<Box<dyn Fn() -> Case>> = Vec::new();
    let none = Duration::ZERO;
    for bytes in [4 * KIB, 256 * KIB, 64 * KIB * KIB] {
        cases.push(Box::new(move || one_at_a_time("spinning", 1, 1, bytes, 10_000, none)));
        cases.push(Box::new(move || one_at_a_time("blocking", 1, 1, bytes, 5_000, none)));
    }
    let pause = Duration::from_micros(200);
    for (stages, bytes) in [(1, 4 * KIB), (4, 4 * KIB), (1, 64 * KIB * KIB)] {
        cases.push(Box::new(move || one_at_a_time("parked", stages, 1, bytes, 300, pause)));
    }
    for (stages, bytes) in [(1, 4 * KIB), (3, 4 * KIB), (1, 64 * KIB * KIB)] {
        cases.push(Box::new(move || stream(stages, bytes, 20_000)));
    }
    cases.push(Box::new(move || one_at_a_time("join spinning", 1, 2, 4 * KIB, 10_000, none)));
    cases.push(Box::new(move || one_at_a_time("join blocking", 1, 2, 4 * KIB, 5_000, none)));
    cases
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let place = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(place + 1).cloned()
    };
    let json = arguments.iter().any(|argument| argument == "--json");
    let rounds = after("--rounds").map_or(9, |rounds| rounds.parse::<usize>().unwrap()).max(1);
    let times = after("--times").map_or(1, |times| times.parse::<usize>().unwrap()).max(1);
    let only = after("--only").unwrap_or_default();
    if !json {
        println!("{:<28} {:>10} {:>10} {:>7} {:>7}", "ns a hop", "bare", "actors", "ratio", "best");
    }
    let mut rows = Vec::new();
    for case in cases() {
        let mut case = case();
        let name = format!("{} x{} {} KiB", case.mode, case.stages, case.bytes / KIB);
        if !name.contains(&only) {
            continue;
        }
        case.items *= times;
        let row = measure(&mut case, rounds);
        if !json {
            println!(
                "{:<28} {:>10.0} {:>10.0} {:>7.2} {:>7.2}",
                row.name, row.bare_ns, row.actors_ns, row.ratio, row.best_ratio
            );
        }
        rows.push(serde_json::json!({
            "name": row.name,
            "mode": case.mode,
            "stages": case.stages,
            "bytes": case.bytes,
            "bare_ns_per_hop": row.bare_ns,
            "actors_ns_per_hop": row.actors_ns,
            "ratio": row.ratio,
            "best_ratio": row.best_ratio,
        }));
    }
    if json {
        println!("{}", serde_json::json!({ "rounds": rounds, "rows": rows }));
    }
}
