//! The control plane.
#![cfg(feature = "control")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use brigade_actors::PipelineState;
use brigade_actors::control::{
    Control, ControlError, Drain, GetStats, ListActors, Restart, Stop, THREAD_NAME,
};

mod kit;
use kit::{MS, chain, map, sleepy, within};

const LIMIT: Duration = Duration::from_secs(20);

/// The control plane is one per process: one test at a time looks at it.
static ALONE: Mutex<()> = Mutex::new(());

fn control_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim() == THREAD_NAME)
        .count()
}

#[test]
fn messages_are_served_from_any_runtime_and_from_none() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    within(LIMIT, || {
        let pipeline = kit::spawn(chain(vec![map(|x| x), map(|x| x)]), 4);
        pipeline.push(vec![1]).unwrap().wait().unwrap();
        let control = Control::of(&pipeline).unwrap();
        let addr = control.addr().clone();
        // On an executor that knows nothing of actix.
        let stats = kit::block_on(addr.send(GetStats)).unwrap().unwrap();
        assert_eq!(stats.completed, 1);
        // Inside somebody else's actix system, on its own thread.
        let inside = addr.clone();
        let names = actix::System::new().block_on(async move { inside.send(ListActors).await });
        assert_eq!(names.unwrap().unwrap(), ["a0", "a1"]);
        let restart = Restart { actor: "a1".into() };
        kit::block_on(addr.send(restart)).unwrap().unwrap();
        let unknown = Restart { actor: "zz".into() };
        let error = kit::block_on(addr.send(unknown)).unwrap().unwrap_err();
        assert!(matches!(error, ControlError::UnknownActor { actor } if actor == "zz"));
        assert_eq!(pipeline.push(vec![2]).unwrap().wait().unwrap(), [2]);
        assert_eq!(pipeline.stats().actors[1].restarts, 1);
        drop(pipeline);
        let gone = kit::block_on(addr.send(GetStats)).unwrap();
        assert!(matches!(gone, Err(ControlError::Gone)));
    });
}

#[test]
fn a_pipeline_spawns_runs_and_stops_inside_an_actix_runtime() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    within(LIMIT, || {
        actix::System::new().block_on(async {
            let pipeline = kit::spawn(chain(vec![map(|x| x * 3)]), 2);
            let control = Control::of(&pipeline).unwrap();
            let result = pipeline.push_async(vec![5]).await.unwrap().await.unwrap();
            assert_eq!(result, [15]);
            let stats = control.addr().send(GetStats).await.unwrap().unwrap();
            assert_eq!(stats.completed, 1);
            let report = control.addr().send(Stop).await.unwrap().unwrap();
            assert!(report.detached.is_empty());
            drop(pipeline);
        });
    });
}

#[test]
fn drain_and_stop_over_the_control_plane() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    within(LIMIT, || {
        let pipeline = kit::spawn(chain(vec![sleepy(30 * MS)]), 4);
        let control = Control::of(&pipeline).unwrap();
        let tickets: Vec<_> = (0..3).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        let send = |drain| kit::block_on(control.addr().send(drain)).unwrap();
        let error = send(Drain { timeout: Some(5 * MS) }).unwrap_err();
        assert!(matches!(error, ControlError::Drain(error) if error.left == 3));
        // Others are served while a drain waits.
        let waiting = control.addr().send(Drain::default());
        kit::block_on(control.addr().send(GetStats)).unwrap().unwrap();
        kit::block_on(waiting).unwrap().unwrap();
        for (n, mut ticket) in (0..).zip(tickets) {
            assert_eq!(ticket.try_take().unwrap().unwrap(), [n]);
        }
        let report = kit::block_on(control.addr().send(Stop)).unwrap().unwrap();
        assert!(report.detached.is_empty());
        assert_eq!(pipeline.state(), PipelineState::Stopped);
    });
}

#[test]
fn one_thread_serves_all_and_ends_with_the_last() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    within(LIMIT, || {
        let pipelines: Vec<_> = (0..3).map(|_| kit::spawn(chain(vec![map(|x| x)]), 2)).collect();
        let mut controls: Vec<_> =
            pipelines.iter().map(|pipeline| Control::of(pipeline).unwrap()).collect();
        assert_eq!((controls[0].served(), control_threads()), (3, 1));
        controls.truncate(1);
        kit::block_on(controls[0].addr().send(GetStats)).unwrap().unwrap();
        let addr = controls[0].addr().clone();
        drop(controls);
        // A joined thread may stand in /proc a moment longer.
        let until = Instant::now() + Duration::from_secs(1);
        while control_threads() > 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(control_threads(), 0, "joined with the last of them");
        assert!(kit::block_on(addr.send(GetStats)).is_err());
        // Nothing in the pipeline needed it.
        let begun = Instant::now();
        assert_eq!(pipelines[0].push(vec![7]).unwrap().wait().unwrap(), [7]);
        pipelines[0].drain(None).unwrap();
        drop(pipelines);
        assert!(begun.elapsed() < LIMIT / 4);
    });
}
