//! The pipelines of a system: their registry, their devices, their CPU budget.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_actors::{
    CpuPolicy, ErrorKind, Factory, Options, Pipeline, PipelineState, SpawnError, System, Topology,
    TopologyBuilder, stage_fn,
};

mod kit;
use kit::{Inputs, MS, chain, map, sleepy, within};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_system_lists_its_pipelines_and_stops_one_while_the_others_run() {
    within(LIMIT, || {
        let system = System::new();
        let spawn = |name: &str| {
            system.spawn(chain(vec![map(|x| x + 1)]), Options::new().name(name)).unwrap()
        };
        let (a, b) = (spawn("a"), spawn("b"));
        assert_eq!(system.pipelines(), ["a", "b"]);
        let again = system.spawn(chain(vec![map(|x| x)]), Options::new().name("a"));
        assert!(matches!(again, Err(SpawnError::Options(message)) if message.contains("`a`")));
        assert!(system.stop("a").unwrap().detached.is_empty());
        assert_eq!((a.state(), b.state()), (PipelineState::Stopped, PipelineState::Running));
        assert_eq!(b.push(vec![1]).unwrap().wait().unwrap(), [2]);
        // Its name is free although there is a handle on it.
        assert_eq!(system.pipelines(), ["b"]);
        let second = spawn("a");
        assert_eq!(system.pipelines(), ["a", "b"]);
        assert_eq!(second.push(vec![1]).unwrap().wait().unwrap(), [2]);
        drop((a, second));
        assert_eq!(system.pipelines(), ["b"]);
        assert!(system.stop("a").is_none());
        let _a = spawn("a");
        let stopped: Vec<_> = system.shutdown().into_iter().map(|(name, _)| name).collect();
        assert_eq!(stopped, ["a", "b"]);
        assert_eq!(b.state(), PipelineState::Stopped);
        assert!(system.pipelines().is_empty());
    });
}

/// The threads of this process whose name begins with `prefix`, by number.
fn threads_named(prefix: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| {
        let task = task.ok()?.path();
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        name.starts_with(prefix).then(|| task.file_name().unwrap().to_string_lossy().into_owned())
    });
    names.collect()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT / 2;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(MS);
    }
}

/// x -> `{name}0` on `cpu:0` -> `{name}1` on `cpu:1` -> y, each of them the stage of `factory`.
fn two(name: &str, mut factory: impl FnMut() -> Factory<i64>) -> TopologyBuilder<i64> {
    let mut b = Topology::builder();
    let x = b.source("x");
    let first = b.actor(format!("{name}0"), "cpu:0", 1, 1, factory());
    let second = b.actor(format!("{name}1"), "cpu:1", 1, 1, factory());
    let y = b.sink("y");
    b.connect(x, first.input(0)).connect(first.output(0), second.input(0));
    b.connect(second.output(0), y);
    b
}

#[test]
fn scenario_19_three_pipelines_share_two_threads_and_one_stops_while_the_others_run() {
    within(3 * LIMIT, || {
        let system = System::new().cpu_budget(2).cpu_policy(CpuPolicy::Refuse);
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let factory = || {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            stage_fn(move |v: Inputs| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let until = Instant::now() + MS / 2;
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(vec![v[0] + 1])
            })
        };
        let pipelines: Vec<Pipeline<i64>> = ["s19-a", "s19-b", "s19-c"]
            .into_iter()
            .map(|name| {
                let options = Options::new().name(name).in_flight(4);
                system.spawn(two(name, factory).build().unwrap(), options).unwrap()
            })
            .collect();
        // One thread for each actor, and no other: their stages compute on it.
        assert_eq!(threads_named("s19-").len(), 6);
        let report = system.cpu();
        assert_eq!((report.budget, report.used, report.exceeded()), (Some(2), 2, 0));
        assert_eq!(report.shares.len(), 6);
        assert!(report.shares.iter().all(|share| (share.asked, share.granted) == (1, 1)));

        let stop = Arc::new(AtomicBool::new(false));
        let drivers: Vec<_> = pipelines
            .iter()
            .cloned()
            .map(|pipeline| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    let mut served = 0_i64;
                    for (n, result) in (0..).zip(pipeline.stream((0..).map(|n| vec![n]))) {
                        match result {
                            Ok(value) => assert_eq!(value, [n + 2]),
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Shutdown);
                                break;
                            }
                        }
                        served += 1;
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                    served
                })
            })
            .collect();
        let done = |pipeline: &Pipeline<i64>| pipeline.stats().completed;
        eventually("all are served", || pipelines.iter().all(|pipeline| done(pipeline) > 20));
        assert!(system.stop("s19-b").unwrap().detached.is_empty());
        eventually("its threads are gone", || threads_named("s19-b").is_empty());
        assert_eq!(threads_named("s19-").len(), 4);
        let before = [done(&pipelines[0]), done(&pipelines[2])];
        eventually("the others go on", || {
            done(&pipelines[0]) > before[0] + 20 && done(&pipelines[2]) > before[1] + 20
        });
        stop.store(true, Ordering::SeqCst);
        for driver in drivers {
            assert!(driver.join().unwrap() > 0);
        }
        assert_eq!(most.load(Ordering::SeqCst), 2, "never more than the budget, and all of it");
        assert_eq!((system.cpu().shares.len(), system.cpu().used), (4, 2));
        system.shutdown();
        assert_eq!((system.cpu().shares.len(), system.cpu().used), (0, 0));
        eventually("no thread is left", || threads_named("s19-").is_empty());
    });
}

#[test]
fn what_is_asked_beyond_the_budget_is_said_or_refused_and_never_silent() {
    within(LIMIT, || {
        let wide = |threads| {
            let mut b = Topology::builder();
            let x = b.source("x");
            let granted = Arc::new(AtomicUsize::new(usize::MAX));
            let told = Arc::clone(&granted);
            let factory: Factory<i64> = Box::new(move |context| {
                told.store(context.threads, Ordering::SeqCst);
                map(|x| x)(context)
            });
            let actor = b.actor("wide", "cpu:7", 1, 1, factory);
            let gpu = b.actor("gpu", "gpu:0", 1, 1, map(|x| x));
            let y = b.sink("y");
            b.connect(x, actor.input(0)).connect(actor.output(0), gpu.input(0));
            b.connect(gpu.output(0), y).threads(actor, threads);
            (b.build().unwrap(), granted)
        };
        let system = System::new().cpu_budget(2);
        let (topology, granted) = wide(5);
        let pipeline = system.spawn(topology, Options::new().name("wide")).unwrap();
        assert_eq!(granted.load(Ordering::SeqCst), 2, "the stage is told what it was granted");
        let stats = pipeline.stats();
        assert_eq!((stats.cpu.budget, stats.cpu.used), (Some(2), 2));
        assert_eq!(stats.notices.len(), 1, "{:?}", stats.notices);
        assert!(stats.notices[0].contains("`wide` asked for 5"), "{:?}", stats.notices);
        let threads: Vec<_> = stats.actors.iter().map(|actor| actor.threads).collect();
        assert_eq!(threads, [2, 0]);
        // A share comes back with the threads, not with the last handle.
        pipeline.shutdown();
        eventually("the share is back", || system.cpu().used == 0);

        let strict = System::new().cpu_budget(2).cpu_policy(CpuPolicy::Refuse);
        let error = strict.spawn(wide(5).0, Options::new().name("wide")).unwrap_err();
        match &error {
            SpawnError::CpuBudget { pipeline, asked, used, budget } => {
                assert_eq!((pipeline.as_str(), *asked, *used, *budget), ("wide", 5, 0, 2));
            }
            other => panic!("{other}"),
        }
        assert!(strict.pipelines().is_empty() && strict.cpu().shares.is_empty());
        let fits = strict.spawn(wide(2).0, Options::new()).unwrap();
        assert!(fits.stats().notices.is_empty());
        // Lanes are those that the first pipeline stated.
        let mut b = Topology::builder();
        let x = b.source("x");
        let more = b.actor("more", "cpu:7", 1, 1, map(|x| x));
        let y = b.sink("y");
        b.connect(x, more.input(0)).connect(more.output(0), y).lanes("cpu:7", 3);
        let stats = strict.spawn(b.build().unwrap(), Options::new()).unwrap().stats();
        assert_eq!((stats.devices[0].lanes, stats.notices.len()), (1, 1));
        assert!(stats.notices[0].contains("`cpu:7` has 1 lanes"), "{:?}", stats.notices);
        // A failed spawn keeps nothing.
        let fails: Factory<i64> = Box::new(|_| Err(brigade_actors::ItemError::failed("no")));
        assert!(System::clone(&strict).spawn(chain(vec![fails]), Options::new()).is_err());
        eventually("the failed one gave its share back", || strict.cpu().used == 2);
    });
}

#[test]
fn two_systems_in_one_process_share_nothing() {
    within(LIMIT, || {
        let (one, other) = (System::new().cpu_budget(1), System::new().cpu_budget(4));
        let options = || Options::new().name("same").trace(100);
        let topology = || kit::chain_on(vec![sleepy(3 * MS)], |_| "cpu:0".into());
        let a = one.spawn(topology(), options()).unwrap();
        let b = other.spawn(topology(), options()).unwrap();
        let begun = Instant::now();
        let tickets: Vec<_> = (0..4)
            .flat_map(|n| {
                let (a, b) = (a.try_push(vec![n]), b.try_push(vec![n]));
                a.into_iter().chain(b)
            })
            .collect();
        let count = tickets.len() as u32;
        for ticket in tickets {
            ticket.wait().unwrap();
        }
        assert!(count >= 2, "{count}");
        // Not one lane between them: they computed together.
        let (wall, alone) = (begun.elapsed(), count * 3 * MS);
        let busy = |pipeline: &Pipeline<i64>| pipeline.stats().devices[0].busy_ns;
        assert!(busy(&a) + busy(&b) >= alone.as_nanos() as u64, "{wall:?}");
        assert_eq!((one.cpu().budget, one.cpu().used), (Some(1), 1));
        assert_eq!((other.cpu().budget, other.cpu().used), (Some(4), 1));
        one.shutdown();
        assert_eq!((a.state(), b.state()), (PipelineState::Stopped, PipelineState::Running));
        assert_eq!(b.push(vec![5]).unwrap().wait().unwrap(), [5]);
    });
}

/// Time that the threads of this name have spent on a processor, in nanoseconds.
#[cfg(target_os = "linux")]
fn processor_time(prefix: &str) -> u64 {
    let spent = threads_named(prefix).into_iter().filter_map(|task| {
        let text = std::fs::read_to_string(format!("/proc/self/task/{task}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    spent.sum()
}

#[test]
#[cfg(target_os = "linux")]
fn an_idle_system_costs_no_processor_time() {
    within(LIMIT, || {
        let system = System::new().cpu_budget(2);
        let pipelines: Vec<_> = ["idle-a", "idle-b", "idle-c"]
            .into_iter()
            .map(|name| {
                let mut b = two(name, || map(|x| x));
                let aside = b.actor(format!("{name}2"), "cpu:0", 1, 1, map(|x| x));
                let more = b.source("more");
                b.connect(more, aside.input(0)).replicas(aside, 3);
                system.spawn(b.build().unwrap(), Options::new()).unwrap()
            })
            .collect();
        for pipeline in &pipelines {
            pipeline.push(vec![1, 1]).unwrap().wait().unwrap();
        }
        std::thread::sleep(20 * MS);
        assert_eq!(threads_named("idle-").len(), 15);
        let before = processor_time("idle-");
        assert!(before > 0, "the threads are not found");
        let pause = 300 * MS;
        std::thread::sleep(pause);
        let spent = processor_time("idle-") - before;
        assert!(u128::from(spent) < pause.as_nanos() / 100, "{spent} ns in an idle pause");
    });
}

#[cfg(all(feature = "affinity", target_os = "linux"))]
mod pinned {
    use super::*;

    /// The processors that the calling thread may run on.
    fn allowed() -> usize {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = text.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
        let list = line.split_whitespace().nth(1).unwrap();
        let spans = list.split(',').map(|span| {
            let (from, to) = span.split_once('-').unwrap_or((span, span));
            to.parse::<usize>().unwrap() - from.parse::<usize>().unwrap() + 1
        });
        spans.sum()
    }

    #[test]
    fn threads_are_pinned_where_there_are_cores_and_the_others_say_that_they_are_not() {
        within(LIMIT, || {
            if brigade_actors::affinity::cores() == 0 {
                return;
            }
            let here = allowed();
            let system = System::new().cpu_budget(2).pin(1);
            let count = || stage_fn(|_: Inputs| Ok(vec![allowed() as i64]));
            let first =
                system.spawn(kit::chain_on(vec![count()], |_| "cpu:0".into()), Options::new());
            let first = first.unwrap();
            assert_eq!(first.push(vec![0]).unwrap().wait().unwrap(), [1]);
            assert_eq!(first.stats().actors[0].core, Some(0));
            assert!(first.stats().notices.is_empty());
            // The second lane finds no core: it runs anywhere, and says so.
            let second =
                system.spawn(kit::chain_on(vec![count()], |_| "cpu:1".into()), Options::new());
            let second = second.unwrap();
            assert_eq!(second.push(vec![0]).unwrap().wait().unwrap(), [here as i64]);
            let stats = second.stats();
            assert_eq!(stats.actors[0].core, None);
            assert!(stats.notices[0].contains("`a0` is not pinned"), "{:?}", stats.notices);
            assert_eq!(allowed(), here, "the caller was pinned");
        });
    }
}
