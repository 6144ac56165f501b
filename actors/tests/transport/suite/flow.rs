//! Much at once, and where its bytes are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use brigade_actors::transport::{Accept, Bytes, Frame, Incoming, LinkError, TransportOptions};
use crossbeam_channel::{Sender, bounded};

use super::super::peer::{PATIENCE, pattern, soon, wait_for, with};
use super::{Make, plain};

/// Checks that frames are numbered without a gap.
struct Counting {
    next: u64,
    seen: Arc<AtomicU64>,
    wrong: Arc<AtomicBool>,
}

struct Counted {
    bytes: Vec<u8>,
    number: u64,
    seen: Arc<AtomicU64>,
    wrong: Arc<AtomicBool>,
}

impl Accept for Counting {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        let number = u64::from_le_bytes(head.try_into().unwrap());
        if number != self.next {
            self.wrong.store(true, Ordering::SeqCst);
        }
        self.next += 1;
        let (seen, wrong) = (Arc::clone(&self.seen), Arc::clone(&self.wrong));
        Ok(Box::new(Counted { bytes: vec![0; length as usize], number, seen, wrong }))
    }

    fn closed(&mut self, _: LinkError) {}
}

impl Incoming for Counted {
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn complete(self: Box<Self>) {
        let number = self.number as u8;
        if self.bytes.iter().any(|b| *b != number) {
            self.wrong.store(true, Ordering::SeqCst);
        }
        self.seen.fetch_add(1, Ordering::SeqCst);
    }
}

/// How long both directions are busy: a second, or as `BRIGADE_DUPLEX_SECONDS` says. A minute over
/// TLS is
///
/// ```console
/// BRIGADE_DUPLEX_SECONDS=60 cargo test --release -p brigade-actors --features grpc --test transport \
///     mutual::suite::both_directions_at_once -- --nocapture
/// ```
fn busy() -> Duration {
    let told = std::env::var("BRIGADE_DUPLEX_SECONDS").ok();
    Duration::from_secs(told.map_or(1, |seconds| seconds.parse().unwrap()))
}

pub(crate) fn both_directions_at_once(make: Make) {
    let pair = make(&TransportOptions::new().queue(8, 64 << 20));
    let wrong = Arc::new(AtomicBool::new(false));
    let seen: [Arc<AtomicU64>; 2] = Default::default();
    let counting = |which: usize| Counting {
        next: 0,
        seen: Arc::clone(&seen[which]),
        wrong: Arc::clone(&wrong),
    };
    let (given, far) = bounded(1);
    let accept = std::sync::Mutex::new(Some(counting(0)));
    let listening = pair
        .server
        .listen(
            pair.address,
            Arc::new(move |link| {
                given.send(link).unwrap();
                Ok(Box::new(accept.lock().unwrap().take().unwrap()) as Box<dyn Accept>)
            }),
        )
        .unwrap();
    let near = pair.client.connect(&listening.address(), Box::new(counting(1)), soon()).unwrap();
    let far = far.recv_timeout(PATIENCE).unwrap();
    let (begun, busy) = (Instant::now(), busy());
    let end = begun + busy;
    let sent: Vec<u64> = std::thread::scope(|scope| {
        let threads = [&near, &far].map(|link| {
            scope.spawn(move || {
                let mut number = 0_u64;
                while Instant::now() < end {
                    let size = [100, 70_000, 300_000][number as usize % 3];
                    let payload = vec![number as u8; size];
                    match link.send(Frame::new(number.to_le_bytes().to_vec(), payload)) {
                        Ok(()) => number += 1,
                        Err(LinkError::Full { .. }) => {
                            std::thread::sleep(Duration::from_micros(200))
                        }
                        Err(why) => panic!("{why}"),
                    }
                }
                number
            })
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(sent.iter().all(|n| *n > 20), "{sent:?}");
    wait_for("all frames", || (0..2).all(|i| seen[i].load(Ordering::SeqCst) == sent[i]));
    assert!(!wrong.load(Ordering::SeqCst));
    assert!(near.is_open() && far.is_open());
    let (here, there) = (near.counters(), far.counters());
    assert_eq!((here.frames_sent, there.frames_sent), (sent[0], sent[1]));
    assert_eq!(here.bytes_sent, there.bytes_received);
    assert_eq!(there.bytes_sent, here.bytes_received);
    let rate = |bytes: u64| bytes as f64 / 1e6 / begun.elapsed().as_secs_f64();
    eprintln!(
        "{busy:?} both ways without a fault: {} and {} frames, {:.0} and {:.0} MB/s, each byte checked",
        sent[0],
        sent[1],
        rate(here.bytes_sent),
        rate(there.bytes_sent)
    );
}

/// A payload that tells when it is dropped.
struct Owned(Vec<u8>, Arc<AtomicU64>);

impl Bytes for Owned {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// Gives a place for each payload, and counts how often it is asked for.
struct Placing(Sender<Placed>);

struct Placed {
    bytes: Vec<u8>,
    asked: usize,
    to: Sender<Placed>,
}

impl Accept for Placing {
    fn accept(&mut self, _: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        Ok(Box::new(Placed { bytes: vec![0; length as usize], asked: 0, to: self.0.clone() }))
    }

    fn closed(&mut self, _: LinkError) {}
}

impl Incoming for Placed {
    fn buffer(&mut self) -> &mut [u8] {
        self.asked += 1;
        &mut self.bytes
    }

    fn complete(self: Box<Self>) {
        let _ = self.to.clone().send(*self);
    }
}

/// The copies in between are counted where they can be seen (`grpc::copies`). Here, that one owner on
/// one side, dropped once, and one place on the other are all that a transport is given.
pub(crate) fn payloads_are_sent_from_and_placed_into_what_is_given(make: Make) {
    let pair = plain(make);
    let (sender, placed) = bounded(10);
    let on_link = with(move |_| Box::new(Placing(sender.clone())));
    let listening = pair.server.listen(pair.address, on_link).unwrap();
    let near = pair.connect_to(&listening.address()).unwrap();
    for size in [1, 4 << 10, 1 << 20, 16 << 20] {
        let dropped = Arc::new(AtomicU64::new(0));
        let payload = Owned(pattern(size, size), Arc::clone(&dropped));
        near.link.send(Frame::new(b"head".to_vec(), payload)).unwrap();
        let got = placed.recv_timeout(PATIENCE).unwrap();
        assert!(got.bytes == pattern(size, size), "{size} bytes");
        // A piece is what came at once, and no crumb.
        assert!((1..=2 + size / 4096).contains(&got.asked), "{size} bytes in {} pieces", got.asked);
        wait_for("the payload to be dropped", || dropped.load(Ordering::SeqCst) > 0);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }
}
