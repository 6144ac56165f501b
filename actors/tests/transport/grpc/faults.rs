//! Peers that end, stop, and runtimes that links are used from.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use brigade_actors::transport::{Frame, LinkError, Listening, TransportOptions};

use super::super::peer::{End, PATIENCE, Pair, quiet, taking, wait_for};
use super::{LOOPBACK, grpc, mutual_pair, plaintext_pair};

const ADDRESS: &str = "BRIGADE_TEST_LINK";

/// The other process of the tests here; nothing when run with all tests.
#[test]
fn other_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let (accept, _events) = super::super::peer::Taker::new();
    let client = grpc(&TransportOptions::new());
    let deadline = Instant::now() + PATIENCE;
    let link = client.connect(&address, Box::new(accept), deadline).unwrap();
    println!("connected");
    while Instant::now() < deadline {
        match link.send(Frame::new(b"from the child".to_vec(), vec![7; 100_000])) {
            Ok(()) => {}
            Err(LinkError::Full { .. }) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return,
        }
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the other process, which connects here.
fn process(options: &TransportOptions) -> (Process, End, Box<dyn Listening>, Pair) {
    let pair = plaintext_pair(options);
    let (on_link, ends) = taking();
    let listening = pair.server.listen(LOOPBACK, on_link).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "grpc::faults::other_process", "--nocapture"])
        .env(ADDRESS, listening.address())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut process = Process(child);
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("connected")));
    let end = ends.recv_timeout(PATIENCE).unwrap();
    end.frame();
    (process, end, listening, pair)
}

#[test]
fn the_end_of_a_process_is_noticed_at_once() {
    let (mut process, end, _listening, _pair) = process(&TransportOptions::new());
    let begun = Instant::now();
    process.0.kill().unwrap();
    let why = end.closed();
    assert!(matches!(&why, LinkError::Lost { why } if why.contains("process")), "{why:?}");
    // The system tells; no time-out has to pass.
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[cfg(unix)]
#[test]
fn a_process_that_stands_still_is_given_up() {
    let options =
        TransportOptions::new().keep_alive(Duration::from_millis(200), Duration::from_millis(400));
    let (process, end, listening, _pair) = process(&options);
    let begun = Instant::now();
    let stop = Command::new("kill").args(["-STOP", &process.0.id().to_string()]).status().unwrap();
    assert!(stop.success());
    let why = end.closed();
    assert!(matches!(&why, LinkError::Lost { why } if why.contains("silent")), "{why:?}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let begun = Instant::now();
    listening.close();
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn links_work_from_inside_of_a_runtime_of_the_users() {
    let use_it = || {
        let pair = mutual_pair(&TransportOptions::new());
        let (near, far, listening) = pair.link();
        near.send(b"from a runtime", vec![1; 100_000]);
        assert_eq!(far.frame().1.len(), 100_000);
        listening.close();
        assert_eq!(near.closed(), LinkError::Closed);
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap()
        .block_on(async { tokio::spawn(async move { use_it() }).await.unwrap() });
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async { use_it() });
    #[cfg(feature = "control")]
    actix::System::new().block_on(async { use_it() });
}

#[test]
fn several_threads_carry_links_too() {
    let pair = mutual_pair(&TransportOptions::new().threads(2));
    let (near, far, _listening) = pair.link();
    for n in 0..100 {
        near.send(&[n], vec![n; 10_000]);
    }
    for n in 0..100 {
        assert_eq!(far.frame(), (vec![n], vec![n; 10_000]));
    }
}

#[test]
fn connecting_from_a_thread_of_the_transport_is_an_error_and_no_deadlock() {
    let pair = plaintext_pair(&TransportOptions::new());
    let (sender, result) = crossbeam_channel::bounded(1);
    let server = std::sync::Arc::downgrade(&pair.server);
    let on_link = std::sync::Arc::new(move |_| {
        let (accept, _events) = super::super::peer::Taker::new();
        let deadline = Instant::now() + PATIENCE;
        let server = server.upgrade().unwrap();
        sender.send(server.connect("127.0.0.1:1", Box::new(accept), deadline).err()).unwrap();
        Err(LinkError::Closed)
    });
    let listening = pair.server.listen(LOOPBACK, on_link).unwrap();
    pair.connect_to(&listening.address()).err().unwrap();
    let error = result.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(error.to_string().contains("from another thread"), "{error}");
}

/// Threads whose names begin so.
#[cfg(target_os = "linux")]
fn threads(prefix: &str) -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with(prefix))
        .count()
}

#[cfg(target_os = "linux")]
#[test]
fn threads_end_with_their_transport() {
    // Other tests have threads of the same names: in a process of its own.
    if std::env::var("BRIGADE_TEST_THREADS").is_err() {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "grpc::faults::threads_end_with_their_transport"])
            .env("BRIGADE_TEST_THREADS", "1")
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    assert_eq!(threads("link"), 0);
    for threads_of in [1, 2] {
        let pair = mutual_pair(&TransportOptions::new().threads(threads_of));
        let (near, far, listening) = pair.link();
        let other = pair.server.listen(LOOPBACK, quiet()).unwrap();
        let more = pair.connect_to(&other.address()).unwrap();
        assert!(threads("link") >= 2);
        // Links and listeners that are still held do not keep threads.
        drop(pair);
        wait_for("the threads to end", || threads("link") == 0);
        assert!(near.link.send(Frame::head(vec![])).is_err());
        assert!(far.link.send(Frame::head(vec![])).is_err());
        drop((near, far, listening, other, more));
    }
}
