//! What every transport has to do. A case takes a function that makes the two sides.

mod flow;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use brigade_actors::transport::{
    Accept, Bytes, Frame, HEAD_LIMIT, Incoming, LinkError, OnLink, TransportOptions,
};
use crossbeam_channel::{Receiver, bounded};

pub(crate) use flow::{
    both_directions_at_once, payloads_are_sent_from_and_placed_into_what_is_given,
};

use super::peer::{End, PATIENCE, Pair, Taker, pattern, quiet, taking, wait_for, with};

type Make = fn(&TransportOptions) -> Pair;

/// A test for each case of the suite.
macro_rules! suite {
    ($make:path) => {
        mod suite {
            suite!(
                $make,
                frames_come_in_order_and_whole,
                many_links_at_once,
                both_directions_at_once,
                payloads_are_sent_from_and_placed_into_what_is_given,
                what_waits_is_sent_before_the_close,
                the_listeners_side_closes,
                dropping_the_last_handle_closes,
                dropping_the_transport_closes_its_links,
                words_of_a_refusal_reach_the_peer,
                a_head_beyond_the_limit_is_not_taken,
                a_length_is_refused_before_memory,
                what_is_not_wanted_passes_by_without_memory,
                the_queue_is_bounded,
                a_panic_ends_that_link_alone,
                a_buffer_of_another_length_ends_the_link,
                nobody_there,
                no_answer_in_time,
                a_listener_closes_with_its_links,
                a_listener_closes_with_the_link_that_it_lets_in,
                a_link_counts
            );
        }
    };
    ($make:path, $($case:ident),*) => {$(
        #[test]
        fn $case() {
            $crate::suite::$case($make);
        }
    )*};
}

fn plain(make: Make) -> Pair {
    make(&TransportOptions::new())
}

pub(crate) fn frames_come_in_order_and_whole(make: Make) {
    let pair = plain(make);
    let (near, far, _listening) = pair.link();
    let sizes = [0, 1, 15, 4096, 65_535, 65_536, 65_537, 1 << 20, 20 << 20, 0, 3];
    for (from, to) in [(&near, &far), (&far, &near)] {
        for (n, size) in sizes.into_iter().enumerate() {
            from.send(&pattern(n, n * 700), pattern(size, size));
        }
        from.link.send(Frame::head(b"bare".to_vec())).unwrap();
        from.link.send(Frame::new(vec![9; HEAD_LIMIT], vec![1])).unwrap();
        for (n, size) in sizes.into_iter().enumerate() {
            let (head, payload) = to.frame();
            assert!(head == pattern(n, n * 700), "head {n}");
            assert!(payload == pattern(size, size), "payload {n} of {size} bytes");
        }
        assert_eq!(to.frame(), (b"bare".to_vec(), Vec::new()));
        assert!(to.frame() == (vec![9; HEAD_LIMIT], vec![1]));
    }
}

pub(crate) fn many_links_at_once(make: Make) {
    let pair = plain(make);
    let (on_link, ends) = taking();
    let listening = pair.server.listen(pair.address, on_link).unwrap();
    let links: Vec<(End, End)> = (0..16)
        .map(|_| {
            let near = pair.connect_to(&listening.address()).unwrap();
            (near, ends.recv_timeout(PATIENCE).unwrap())
        })
        .collect();
    for n in 0..20 {
        for (l, (near, far)) in links.iter().enumerate() {
            near.send(&[l as u8, n as u8], pattern(l + n, 1000));
            far.send(&[n as u8, l as u8], pattern(l * n, 10));
        }
    }
    for (l, (near, far)) in links.iter().enumerate() {
        for n in 0..20 {
            assert_eq!(far.frame(), (vec![l as u8, n as u8], pattern(l + n, 1000)));
            assert_eq!(near.frame(), (vec![n as u8, l as u8], pattern(l * n, 10)));
        }
    }
}

pub(crate) fn what_waits_is_sent_before_the_close(make: Make) {
    let pair = plain(make);
    let (near, far, _listening) = pair.link();
    for n in 0..50 {
        near.send(&[n], pattern(n.into(), 100_000));
    }
    near.link.close();
    assert!(!near.link.is_open());
    assert_eq!(near.link.send(Frame::head(vec![1])), Err(LinkError::Closed));
    for n in 0..50 {
        assert!(far.frame() == (vec![n], pattern(n.into(), 100_000)), "frame {n}");
    }
    assert_eq!(far.closed_next(), LinkError::Closed);
    assert_eq!(near.closed(), LinkError::Closed);
    assert_eq!(far.link.send(Frame::head(vec![1])), Err(LinkError::Closed));
    assert!(!far.link.is_open());
}

pub(crate) fn the_listeners_side_closes(make: Make) {
    let pair = plain(make);
    let (near, far, _listening) = pair.link();
    far.send(b"last", vec![1; 1000]);
    far.link.close();
    assert_eq!(near.frame(), (b"last".to_vec(), vec![1; 1000]));
    assert_eq!(near.closed(), LinkError::Closed);
    assert_eq!(far.closed(), LinkError::Closed);
}

pub(crate) fn dropping_the_last_handle_closes(make: Make) {
    let pair = plain(make);
    let (near, far, _listening) = pair.link();
    let clone = near.link.clone();
    drop(near.link);
    clone.send(Frame::head(b"still".to_vec())).unwrap();
    assert_eq!(far.frame().0, b"still");
    drop(clone);
    assert_eq!(far.closed(), LinkError::Closed);
}

pub(crate) fn dropping_the_transport_closes_its_links(make: Make) {
    let Pair { server, client, address } = plain(make);
    let (on_link, ends) = taking();
    let listening = server.listen(address, on_link).unwrap();
    let pair = Pair { server, client, address };
    let near = pair.connect_to(&listening.address()).unwrap();
    let far = ends.recv_timeout(PATIENCE).unwrap();
    let begun = Instant::now();
    drop((pair, listening));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(near.closed(), LinkError::Closed);
    assert_eq!(far.closed(), LinkError::Closed);
    assert!(near.link.send(Frame::head(vec![])).is_err());
}

pub(crate) fn words_of_a_refusal_reach_the_peer(make: Make) {
    let pair = plain(make);
    let why = "no more than 3 coordinators, äöü; % come back later";
    let refusing = Arc::new(move |_| Err(LinkError::Refused { why: why.to_owned() }));
    let listening = pair.server.listen(pair.address, refusing).unwrap();
    let error = pair.connect_to(&listening.address()).err();
    assert_eq!(error, Some(LinkError::Refused { why: why.to_owned() }));
}

pub(crate) fn a_head_beyond_the_limit_is_not_taken(make: Make) {
    let pair = plain(make);
    let (near, far, _listening) = pair.link();
    let error = near.link.send(Frame::head(vec![0; HEAD_LIMIT + 1])).err();
    let length = HEAD_LIMIT as u64 + 1;
    assert_eq!(error, Some(LinkError::TooLong { what: "head", length, limit: HEAD_LIMIT as u64 }));
    near.send(b"goes on", vec![]);
    assert_eq!(far.frame().0, b"goes on");
}

/// Takes payloads of at most 1000 bytes.
struct Small(Taker);

impl Accept for Small {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        if length > 1000 {
            return Err(LinkError::TooLong { what: "payload", length, limit: 1000 });
        }
        self.0.accept(head, length)
    }

    fn closed(&mut self, why: LinkError) {
        self.0.closed(why);
    }
}

/// Who takes links with `make` at one end, as a taker's events.
fn odd(
    pair: &Pair,
    make: fn(Taker) -> Box<dyn Accept>,
) -> (End, Receiver<super::peer::Event>, Box<dyn brigade_actors::transport::Listening>) {
    let (sender, events) = bounded(1);
    let on_link = with(move |_| {
        let (taker, events) = Taker::new();
        let _ = sender.send(events);
        make(taker)
    });
    let listening = pair.server.listen(pair.address, on_link).unwrap();
    let near = pair.connect_to(&listening.address()).unwrap();
    (near, events.recv_timeout(PATIENCE).unwrap(), listening)
}

fn end_of(events: &Receiver<super::peer::Event>) -> LinkError {
    loop {
        if let super::peer::Event::Closed(why) = events.recv_timeout(PATIENCE).unwrap() {
            return why;
        }
    }
}

pub(crate) fn a_length_is_refused_before_memory(make: Make) {
    let pair = plain(make);
    let (near, far, _listening) = odd(&pair, |taker| Box::new(Small(taker)));
    near.send(b"fits", vec![7; 1000]);
    near.send(b"does not", vec![7; 30 << 20]);
    // Taken or not, depending on how soon the refusal is here.
    let _ = near.link.send(Frame::new(b"comes too late".to_vec(), vec![7; 10]));
    let own = LinkError::TooLong { what: "payload", length: 30 << 20, limit: 1000 };
    match far.recv_timeout(PATIENCE).unwrap() {
        super::peer::Event::Frame(head, payload) => {
            assert_eq!((head, payload), (b"fits".to_vec(), vec![7; 1000]));
        }
        super::peer::Event::Closed(why) => panic!("{why}"),
    }
    assert_eq!(end_of(&far), own);
    match near.closed() {
        LinkError::Refused { why } => assert_eq!(why, own.to_string()),
        other => panic!("{other:?}"),
    }
}

/// Lets payloads of more than 1000 bytes pass by.
struct Choosy(Taker);

struct PassingBy;

impl Accept for Choosy {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        if length > 1000 { Ok(Box::new(PassingBy)) } else { self.0.accept(head, length) }
    }

    fn closed(&mut self, why: LinkError) {
        self.0.closed(why);
    }
}

impl Incoming for PassingBy {
    fn is_wanted(&self) -> bool {
        false
    }

    fn buffer(&mut self) -> &mut [u8] {
        panic!("nobody may ask for it");
    }

    fn complete(self: Box<Self>) {}
}

pub(crate) fn what_is_not_wanted_passes_by_without_memory(make: Make) {
    let pair = plain(make);
    let (near, far, _listening) = odd(&pair, |taker| Box::new(Choosy(taker)));
    near.send(b"not wanted", vec![7; 30 << 20]);
    near.send(b"wanted", vec![8; 9]);
    match far.recv_timeout(PATIENCE).unwrap() {
        super::peer::Event::Frame(head, payload) => {
            assert_eq!((head, payload), (b"wanted".to_vec(), vec![8; 9]));
        }
        super::peer::Event::Closed(why) => panic!("{why}"),
    }
    assert!(near.link.is_open());
}

/// Waits for a sign before it takes a frame.
struct Slow(Taker, Receiver<()>);

impl Accept for Slow {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        let _ = self.1.recv_timeout(PATIENCE);
        self.0.accept(head, length)
    }

    fn closed(&mut self, why: LinkError) {
        self.0.closed(why);
    }
}

/// A payload whose memory is counted.
struct Held(Vec<u8>, Arc<AtomicU64>);

impl Bytes for Held {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len() as u64, Ordering::SeqCst);
    }
}

pub(crate) fn the_queue_is_bounded(make: Make) {
    const CAP: u64 = 8 << 20;
    const PIECE: u64 = 1 << 20;
    // The peer does not read for a while, and that is no reason to give it up here.
    let options = TransportOptions::new()
        .queue(100, CAP)
        .keep_alive(Duration::from_secs(30), Duration::from_secs(30));
    let pair = make(&options);
    let (go, gate) = bounded::<()>(1000);
    let (sender, far) = bounded(1);
    let on_link = with(move |_| {
        let (taker, events) = Taker::new();
        sender.send(events).unwrap();
        Box::new(Slow(taker, gate.clone()))
    });
    let listening = pair.server.listen(pair.address, on_link).unwrap();
    let near = pair.connect_to(&listening.address()).unwrap();
    let far = far.recv_timeout(PATIENCE).unwrap();
    // What the windows of a network transport hold on its way comes on top of the queue.
    let held = Arc::new(AtomicU64::new(0));
    let mut sent = 0_u64;
    let mut since = Instant::now();
    let full = loop {
        held.fetch_add(PIECE, Ordering::SeqCst);
        let payload = Held(vec![sent as u8; PIECE as usize], Arc::clone(&held));
        match near.link.send(Frame::new(vec![], payload)) {
            Ok(()) => {
                sent += 1;
                since = Instant::now();
            }
            // Stays full: the peer has taken what its windows hold.
            Err(full) if since.elapsed() > Duration::from_millis(300) => break full,
            Err(LinkError::Full { .. }) => std::thread::sleep(Duration::from_millis(5)),
            Err(why) => panic!("{why}"),
        }
        assert!(held.load(Ordering::SeqCst) <= CAP + PIECE, "{held:?} bytes are held");
        assert!(sent < 1000, "no end");
    };
    match full {
        LinkError::Full { bytes, limit_bytes, .. } => assert!(bytes <= CAP && limit_bytes == CAP),
        other => panic!("{other:?}"),
    }
    assert!(near.link.is_open());
    for _ in 0..1000 {
        go.send(()).unwrap();
    }
    drop(go);
    for n in 0..sent {
        match far.recv_timeout(PATIENCE).unwrap() {
            super::peer::Event::Frame(_, payload) => {
                assert!(payload.len() as u64 == PIECE && payload[0] == n as u8, "frame {n}");
            }
            super::peer::Event::Closed(why) => panic!("{why}"),
        }
    }
    wait_for("the memory to be free", || held.load(Ordering::SeqCst) == 0);
    near.send(b"goes on", vec![]);
}

struct Panics(Taker);

impl Accept for Panics {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        assert!(head != b"bad", "this panic belongs to the test");
        self.0.accept(head, length)
    }

    fn closed(&mut self, why: LinkError) {
        self.0.closed(why);
    }
}

pub(crate) fn a_panic_ends_that_link_alone(make: Make) {
    // Writing a backtrace down takes its thread a while, and that is no silence.
    let while_it_is_written = Duration::from_secs(30);
    let pair = make(&TransportOptions::new().keep_alive(while_it_is_written, while_it_is_written));
    let (near, far, listening) = odd(&pair, |taker| Box::new(Panics(taker)));
    let other = pair.connect_to(&listening.address()).unwrap();
    near.send(b"bad", vec![1]);
    let why = end_of(&far);
    assert!(matches!(&why, LinkError::Lost { why } if why.contains("panicked")), "{why}");
    let theirs = near.closed();
    assert!(theirs.to_string().contains("panicked"), "{theirs}");
    other.send(b"good", vec![1]);
    other.link.close();
    assert_eq!(other.closed(), LinkError::Closed);
}

struct Misfit(Taker);
struct MisfitBuffer([u8; 3]);

impl Accept for Misfit {
    fn accept(&mut self, _: &[u8], _: u64) -> Result<Box<dyn Incoming>, LinkError> {
        Ok(Box::new(MisfitBuffer([0; 3])))
    }

    fn closed(&mut self, why: LinkError) {
        self.0.closed(why);
    }
}

impl Incoming for MisfitBuffer {
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn complete(self: Box<Self>) {
        panic!("it was never full");
    }
}

pub(crate) fn a_buffer_of_another_length_ends_the_link(make: Make) {
    let pair = plain(make);
    let (near, far, _listening) = odd(&pair, |taker| Box::new(Misfit(taker)));
    near.send(b"four", vec![1; 4]);
    assert!(end_of(&far).to_string().contains("3 bytes"));
    assert!(near.closed().to_string().contains("3 bytes"));
}

pub(crate) fn nobody_there(make: Make) {
    let pair = plain(make);
    let address = {
        let listening = pair.server.listen(pair.address, quiet()).unwrap();
        let address = listening.address();
        listening.close();
        address
    };
    let begun = Instant::now();
    let error = pair.connect_to(&address).err().unwrap();
    assert!(
        matches!(&error, LinkError::Unreachable { address: a, .. } if *a == address),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

pub(crate) fn no_answer_in_time(make: Make) {
    let pair = plain(make);
    let (go, gate) = bounded::<()>(0);
    let slow = Arc::new(move |_| {
        let _ = gate.recv_timeout(PATIENCE);
        Ok(Box::new(Taker::new().0) as Box<dyn Accept>)
    });
    let listening = pair.server.listen(pair.address, slow).unwrap();
    let begun = Instant::now();
    let deadline = begun + Duration::from_millis(200);
    let error = pair.client.connect(&listening.address(), Box::new(Taker::new().0), deadline).err();
    assert!(matches!(error, Some(LinkError::Timeout { .. })), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    drop(go);
}

pub(crate) fn a_listener_closes_with_its_links(make: Make) {
    let pair = plain(make);
    let (on_link, ends) = taking();
    let listening = pair.server.listen(pair.address, on_link).unwrap();
    let address = listening.address();
    let near: Vec<End> = (0..5).map(|_| pair.connect_to(&address).unwrap()).collect();
    let far: Vec<End> = (0..5).map(|_| ends.recv_timeout(PATIENCE).unwrap()).collect();
    far[2].send(b"last words", vec![5; 70_000]);
    let begun = Instant::now();
    listening.close();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(near[2].frame(), (b"last words".to_vec(), vec![5; 70_000]));
    for end in near.iter().chain(&far) {
        assert_eq!(end.closed(), LinkError::Closed);
    }
    assert!(matches!(pair.connect_to(&address).err(), Some(LinkError::Unreachable { .. })));
}

pub(crate) fn a_listener_closes_with_the_link_that_it_lets_in(make: Make) {
    let pair = plain(make);
    let (taking, ends) = taking();
    let on_link: OnLink = Arc::new(move |link| {
        let taken = taking(link);
        // The listener closes before this is over.
        std::thread::sleep(Duration::from_millis(150));
        taken
    });
    let listening = pair.server.listen(pair.address, on_link).unwrap();
    let address = listening.address();
    std::thread::scope(|scope| {
        let near = scope.spawn(|| pair.connect_to(&address));
        let far = ends.recv_timeout(PATIENCE).unwrap();
        let begun = Instant::now();
        listening.close();
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        assert_eq!(far.closed(), LinkError::Closed);
        assert_eq!(near.join().unwrap().unwrap().closed(), LinkError::Closed);
    });
}

pub(crate) fn a_link_counts(make: Make) {
    let pair = plain(make);
    let (near, far, _listening) = pair.link();
    for n in 0..10 {
        near.send(&[0; 10], vec![0; n * 100]);
    }
    far.send(&[0; 3], vec![0; 7]);
    for _ in 0..10 {
        far.frame();
    }
    near.frame();
    wait_for("the queue to be empty", || near.link.counters().frames_queued == 0);
    let (here, there) = (near.link.counters(), far.link.counters());
    assert_eq!((here.frames_sent, here.bytes_sent), (10, 100 + 4500));
    assert_eq!((here.frames_received, here.bytes_received), (1, 10));
    assert_eq!((there.frames_received, there.bytes_received), (10, 100 + 4500));
    assert_eq!((there.frames_sent, there.bytes_sent), (1, 10));
    assert_eq!(here.bytes_queued, 0);
}
