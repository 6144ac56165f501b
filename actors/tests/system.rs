//! The pipelines of a system.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use brigade_actors::{Options, PipelineState, SpawnError, System};

mod kit;
use kit::{chain, map, within};

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
        drop(a);
        assert_eq!(system.pipelines(), ["b"]);
        assert!(system.stop("a").is_none());
        let _a = spawn("a");
        let stopped: Vec<_> = system.shutdown().into_iter().map(|(name, _)| name).collect();
        assert_eq!(stopped, ["a", "b"]);
        assert_eq!(b.state(), PipelineState::Stopped);
    });
}
