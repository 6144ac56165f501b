//! What peers of a group of ranks do wrong. `tests/scenarios.md` lists where the rest is tested.

use std::io::Write;
use std::sync::Mutex;
use std::thread;

use brigade::ErrorKind;
use brigade::actors::transport::{Accept, Frame, Incoming, Link, LinkError};
use brigade::cluster::{
    MAX_SPEC_BYTES, ProcessGroup, StageSpec, recv_activation, send_activation, serve_stage_uri,
    ship_stage,
};

use super::*;

const WAIT: Duration = Duration::from_secs(20);

/// The numbers of what ranks say, as they are written.
const HELLO: u32 = 0;
const STAGE: u32 = 2;

/// The version of the words of ranks, as `actors/PROTOCOL.md` has it.
const VERSION: u32 = 2;

fn word(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// Hears why its link ended.
struct Ear(Arc<Mutex<Option<LinkError>>>);

struct Ignored(Vec<u8>);

impl Accept for Ear {
    fn accept(&mut self, _: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        Ok(Box::new(Ignored(vec![0; length as usize])))
    }

    fn closed(&mut self, why: LinkError) {
        *self.0.lock().unwrap() = Some(why);
    }
}

impl Incoming for Ignored {
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn complete(self: Box<Self>) {}
}

/// Somebody who connects to a rank.
struct Stranger {
    link: Link,
    ended: Arc<Mutex<Option<LinkError>>>,
}

impl Stranger {
    fn connect(transport: &Arc<dyn Transport>, address: &str) -> Self {
        let until = Instant::now() + WAIT;
        loop {
            let ended = Arc::new(Mutex::new(None));
            let tried = transport.connect(address, Box::new(Ear(Arc::clone(&ended))), until);
            // The rank is about to listen.
            if matches!(tried, Err(LinkError::Unreachable { .. })) && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
            return Self { link: tried.unwrap(), ended };
        }
    }

    /// Says this, and is turned away in time; gives the words.
    fn turned_away(&self, head: Vec<u8>, payload: Vec<u8>) -> String {
        self.link.send(Frame::new(head, payload)).unwrap();
        eventually("the stranger is turned away", WAIT, || self.ended.lock().unwrap().is_some());
        self.ended.lock().unwrap().as_ref().unwrap().to_string()
    }
}

#[test]
fn a_strangers_greeting_is_turned_away_and_the_ranks_find_each_other() {
    for kind in ["local", "grpc"] {
        let addresses: Vec<String> = if kind == "local" {
            vec!["met-0".into(), "met-1".into()]
        } else {
            // Two ports that were free a moment ago.
            let listeners: Vec<_> =
                (0..2).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
            listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect()
        };
        let shared = open(kind);
        let transport = || if kind == "local" { Arc::clone(&shared) } else { open(kind) };
        let strangers = transport();
        let join = |rank: usize| {
            let (transport, addresses) = (transport(), addresses.clone());
            thread::spawn(move || ProcessGroup::join(transport, rank, &addresses, WAIT))
        };
        let zero = join(0);
        let stranger = || Stranger::connect(&strangers, &addresses[0]);
        for (head, words) in [
            (b"hello, world!".to_vec(), "no message of a group"),
            (word(&[STAGE]), "a rank says first who it is"),
            (word(&[HELLO, VERSION + 1, 2, 1]), "use one release on all"),
            (word(&[HELLO, VERSION, 3, 1]), "rank 1 of 3 is not awaited by rank 0 of 2"),
            (word(&[HELLO, VERSION, 2, 0]), "rank 0 of 2 is not awaited"),
            (word(&[HELLO, VERSION, 2, 2]), "rank 2 of 2 is not awaited"),
            (word(&[HELLO, VERSION, 2, u32::MAX]), "is not awaited"),
        ] {
            let why = stranger().turned_away(head, Vec::new());
            assert!(why.contains(words), "{kind}: {words}: {why}");
        }
        if kind == "grpc" {
            let mut raw = std::net::TcpStream::connect(&addresses[0]).unwrap();
            raw.write_all(b"hello, world!").unwrap();
        }
        // Nobody has become rank 1 by that.
        assert!(!zero.is_finished(), "{kind}");
        let (one, zero) = (join(1), zero.join().unwrap().unwrap());
        let one = one.join().unwrap().unwrap();
        let why = stranger().turned_away(word(&[HELLO, VERSION, 2, 1]), Vec::new());
        assert!(why.contains("rank 1 has joined already"), "{kind}: {why}");
        let x = || vec![("x".to_owned(), Value::from(Tensor::of_i64(&[7])))];
        send_activation(&one, 0, 3, &x()).unwrap();
        let got = recv_activation(&zero, 1).unwrap().unwrap();
        assert_eq!((got.number, got.values), (3, x()), "{kind}");
    }
}

#[test]
fn a_spec_beyond_its_cap_is_neither_sent_nor_taken() {
    let local = open("local");
    let addresses = vec!["cap-0".to_owned(), "cap-1".to_owned()];
    let zero = {
        let (local, addresses) = (Arc::clone(&local), addresses.clone());
        thread::spawn(move || ProcessGroup::join(local, 0, &addresses, WAIT).unwrap())
    };
    // A rank 1 that does what it wants.
    let one = Stranger::connect(&local, &addresses[0]);
    one.link.send(Frame::head(word(&[HELLO, VERSION, 2, 1]))).unwrap();
    let zero = zero.join().unwrap();

    let beyond = MAX_SPEC_BYTES as usize + 1;
    let mut g = GraphBuilder::new("big");
    let x = g.input("x", DType::U8, [1.into()]).unwrap();
    let big = g.constant(Tensor::zeros(DType::U8, [beyond]).unwrap()).unwrap();
    let y = g.op("Concat", &[x, big], &[("axis", 0_i64.into())]).unwrap();
    let spec = StageSpec::new(g.finish([("y", y)]).unwrap());
    let error = ship_stage(&zero, 1, &spec).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert!(error.to_string().contains("the stage `big` takes more than"), "{error}");

    let why = one.turned_away(word(&[STAGE]), vec![0; beyond]);
    assert!(why.contains(&format!("{beyond}")) && why.contains("payload"), "{why}");
    let error = recv_activation(&zero, 1).unwrap_err();
    assert!(error.to_string().contains("rank 1 is gone"), "{error}");
}

#[test]
fn a_stage_with_two_outputs_gives_both_by_their_names() {
    let mut ranks = ProcessGroup::in_process(2).unwrap();
    let (one, zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let rank = thread::spawn(move || serve_stage_uri(&one, &[] as &[&str]));
    let mut g = GraphBuilder::new("two");
    let x = g.input("x", DType::F32, ["N".into()]).unwrap();
    let (up, down) = (g.relu(x).unwrap(), g.op("Neg", &[x], &[]).unwrap());
    let spec = StageSpec::new(g.finish([("up", up), ("down", down)]).unwrap());
    ship_stage(&zero, 1, &spec).unwrap();
    let floats = |values: &[f32]| Value::from(Tensor::new([2], values.to_vec()).unwrap());
    send_activation(&zero, 1, 5, &[("x".to_owned(), floats(&[1.0, -2.0]))]).unwrap();
    let got = recv_activation(&zero, 1).unwrap().unwrap();
    assert_eq!(got.number, 5);
    let wanted =
        [("up".to_owned(), floats(&[1.0, 0.0])), ("down".to_owned(), floats(&[-1.0, 2.0]))];
    assert_eq!(got.values, wanted);
    drop(zero);
    assert_eq!(rank.join().unwrap().unwrap(), 1);
}
