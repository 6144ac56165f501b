//! Ranks that drive themselves: stages shipped to them and tensors sent from rank to rank, step by
//! step.
//!
//! A [`Cluster`](super::Cluster) does all of this by itself. These are its lower-level verbs, for a
//! program that has a loop of its own: rank 0 ships a [`StageSpec`] to each other rank
//! ([`ship_stage`]) and feeds rank 1; each other rank receives its stage ([`recv_stage`]) and then
//! takes from the rank before it, computes, and gives to the next one, or to rank 0 if it is the last
//! ([`serve_stage`], [`serve_stage_loop`]).
//!
//! Everything that is sent is typed and numbered, waits have deadlines, each rank may hold a bounded
//! number of activations that the next one did not take, and a rank that is gone ends the waits of
//! those that wait for it at once.

mod verbs;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade_actors::codec;
use brigade_actors::transport::{
    Accept, Frame, HEAD_LIMIT, Incoming, Link, LinkError, Listening, OnLink, Transport,
    TransportOptions, transport,
};
use serde::{Deserialize, Serialize};

use super::message::{Form, PROTOCOL, WireError, buffer_for};
use super::payload::Payload;
use super::{MAX_SPEC_BYTES, link_error};
use crate::error::{Result, bail, err};
use crate::tensor::{Buffer, BufferPool, Value};

pub use verbs::{
    Shipped, end_activations, recv_activation, recv_stage, send_activation, serve_stage,
    serve_stage_loop, serve_stage_uri, ship_stage,
};

/// Activations that a rank may have sent and the next one not taken.
pub const WINDOW: usize = 8;

/// The most bytes of one value.
const MAX_VALUE_BYTES: u64 = 4 << 30;

/// The most values of one activation.
const MAX_VALUES: u32 = 4096;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Word {
    /// First, from the rank that dials.
    Hello {
        protocol: u32,
        world: u32,
        rank: u32,
    },
    /// The answer.
    Welcome {
        rank: u32,
    },
    /// A spec follows.
    Stage,
    /// The answer: what was compiled where.
    Ready {
        device: String,
        nodes: u64,
    },
    Refused {
        error: WireError,
    },
    /// One value of an activation follows.
    Value {
        number: u64,
        index: u32,
        of: u32,
        name: String,
        form: Form,
    },
    /// The activation with this number failed further up.
    Failed {
        number: u64,
        error: WireError,
    },
    /// An activation was taken.
    Taken {
        number: u64,
    },
    /// No more activations come.
    End,
}

/// What came from a rank.
#[derive(Debug)]
enum Event {
    Stage(Vec<u8>),
    Answer(Result<(String, u64), WireError>),
    Activation(Activation),
    Failed(u64, WireError),
    End,
}

/// Values with their names and the number of the item that they are of.
#[derive(Clone, Debug, PartialEq)]
pub struct Activation {
    /// The number, which whoever sends gives.
    pub number: u64,
    /// The values, by name.
    pub values: Vec<(String, Value)>,
}

#[derive(Debug, Default)]
struct Peer {
    link: Option<Link>,
    gone: Option<String>,
    events: VecDeque<Event>,
    part: Vec<(String, Value)>,
    sent: u64,
    taken: u64,
}

#[derive(Debug)]
struct Shared {
    rank: usize,
    peers: Mutex<Vec<Peer>>,
    changed: Condvar,
    pool: BufferPool,
}

impl Shared {
    fn peers(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, peers: MutexGuard<'a, Vec<Peer>>) -> MutexGuard<'a, Vec<Peer>> {
        let moment = Duration::from_millis(100);
        self.changed.wait_timeout(peers, moment).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The ranks of a group, as one of them sees it. Dropping it tells the others that this one is gone.
///
/// ```
/// use std::thread;
/// use brigade::cluster::{ProcessGroup, StageSpec, Worker, recv_activation, send_activation, serve_stage_loop, ship_stage};
/// use brigade::ops::builder::GraphBuilder;
/// use brigade::{DType, Tensor};
///
/// let mut ranks = ProcessGroup::in_process(2)?;
/// let (one, zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
/// let rank_1 = thread::spawn(move || serve_stage_loop(&one, &Worker::new("rank-1")));
///
/// let mut g = GraphBuilder::new("double");
/// let x = g.input("x", DType::F32, ["N".into()])?;
/// let y = g.add(x, x)?;
/// let shipped = ship_stage(&zero, 1, &StageSpec::new(g.finish([("y", y)])?))?;
/// assert_eq!(shipped.device, "cpu:0");
/// send_activation(&zero, 1, 7, &[("x".to_owned(), Tensor::new([2], vec![1.0_f32, 2.0])?.into())])?;
/// let back = recv_activation(&zero, 1)?.expect("the rank goes on");
/// assert_eq!((back.number, back.values[0].0.as_str()), (7, "y"));
/// assert_eq!(back.values[0].1.tensor()?.as_slice::<f32>()?, [2.0, 4.0]);
/// drop(zero); // ends the loop
/// assert_eq!(rank_1.join().unwrap()?, 1);
/// # Ok::<(), brigade::Error>(())
/// ```
pub struct ProcessGroup {
    shared: Arc<Shared>,
    world: usize,
    deadline: Duration,
    _listening: Option<Box<dyn Listening>>,
    _transport: Arc<dyn Transport>,
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroup")
            .field("rank", &self.rank())
            .field("world_size", &self.world)
            .finish_non_exhaustive()
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        for peer in self.shared.peers().iter_mut() {
            if let Some(link) = peer.link.take() {
                link.close();
            }
        }
    }
}

impl ProcessGroup {
    /// How long a wait lasts at most, unless told.
    pub const DEADLINE: Duration = Duration::from_secs(30);

    /// All ranks of a group within this process, for tests and for threads.
    ///
    /// # Errors
    /// If there are no ranks.
    pub fn in_process(world: usize) -> Result<Vec<Self>> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let kind = transport("local").ok_or_else(|| err!(Internal, "no transport `local`"))?;
        let local = (kind.open)(&TransportOptions::new()).map_err(link_error)?;
        let group = NEXT.fetch_add(1, Ordering::Relaxed);
        let addresses: Vec<String> = (0..world).map(|r| format!("group-{group}-{r}")).collect();
        std::thread::scope(|scope| {
            let join = |rank| {
                let (local, addresses) = (Arc::clone(&local), &addresses);
                scope.spawn(move || Self::join(local, rank, addresses, Self::DEADLINE))
            };
            let ranks: Vec<_> = (0..world).map(join).collect();
            ranks
                .into_iter()
                .map(|r| r.join().unwrap_or_else(|_| Err(err!(Internal, "a rank did not join"))))
                .collect()
        })
    }

    /// Joins a group as `rank`: listens at `addresses[rank]`, dials every lower rank, and waits until
    /// all are there.
    ///
    /// # Errors
    /// If the rank is not one of the group, or somebody is not there by the deadline; names them.
    pub fn join(
        transport: Arc<dyn Transport>,
        rank: usize,
        addresses: &[String],
        deadline: Duration,
    ) -> Result<Self> {
        let world = addresses.len();
        if rank >= world {
            bail!(Usage, "rank {rank} is none of a group of {world}");
        }
        let until = Instant::now() + deadline;
        let shared = Arc::new(Shared {
            rank,
            peers: Mutex::new((0..world).map(|_| Peer::default()).collect()),
            changed: Condvar::new(),
            pool: BufferPool::new(64 << 20),
        });
        let listener = Arc::clone(&shared);
        let on_link: OnLink = Arc::new(move |link: Link| {
            let ear = Ear { shared: Arc::clone(&listener), peer: None, link: Some(link) };
            Ok(Box::new(ear) as Box<dyn Accept>)
        });
        let listening = transport.listen(&addresses[rank], on_link).map_err(link_error)?;
        for (lower, address) in addresses.iter().enumerate().take(rank) {
            let error = loop {
                let ear = Ear { shared: Arc::clone(&shared), peer: Some(lower), link: None };
                match transport.connect(address, Box::new(ear), until) {
                    Ok(link) => {
                        let (world, rank) = (world as u32, rank as u32);
                        say(&link, &Word::Hello { protocol: PROTOCOL, world, rank }, None)?;
                        shared.peers()[lower].link = Some(link);
                        break None;
                    }
                    // Ranks start in any order.
                    Err(LinkError::Unreachable { .. }) if Instant::now() < until => {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    Err(e) => break Some(e),
                }
            };
            if let Some(e) = error {
                return Err(err!(Device, "rank {lower} at {address} is not reached").with_source(e));
            }
        }
        let mut peers = shared.peers();
        loop {
            let missing: Vec<String> = (0..world)
                .filter(|r| *r != rank && peers[*r].link.is_none())
                .map(|r| r.to_string())
                .collect();
            if missing.is_empty() {
                break;
            }
            if Instant::now() >= until {
                bail!(Deadline, "ranks did not join in time: {}", missing.join(", "));
            }
            peers = shared.wait(peers);
        }
        drop(peers);
        let _listening = Some(listening);
        Ok(Self { shared, world, deadline, _listening, _transport: transport })
    }

    /// Which rank this is.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.world
    }

    /// How long waits last at most.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    fn peer(&self, rank: usize) -> Result<usize> {
        if rank >= self.world || rank == self.rank() {
            let world = self.world;
            return Err(err!(Usage, "rank {rank} is no other rank of a group of {world}"));
        }
        Ok(rank)
    }

    fn send(&self, to: usize, word: &Word, payload: Option<Buffer>) -> Result<()> {
        let link = {
            let peers = self.shared.peers();
            match (&peers[to].link, &peers[to].gone) {
                (Some(link), None) => link.clone(),
                (_, Some(why)) => bail!(Device, "rank {to} is gone: {why}"),
                (None, None) => bail!(Device, "rank {to} is not there"),
            }
        };
        say(&link, word, payload).map_err(|e| e.within(&format!("rank {to}")))
    }

    /// Waits for something of a rank.
    fn wait<T>(
        &self,
        from: usize,
        what: &str,
        mut take: impl FnMut(&mut Peer) -> Option<Result<T>>,
    ) -> Result<T> {
        let until = Instant::now() + self.deadline;
        let mut peers = self.shared.peers();
        loop {
            if let Some(found) = take(&mut peers[from]) {
                return found;
            }
            if let Some(why) = &peers[from].gone {
                bail!(Device, "rank {from} is gone, {what}: {why}");
            }
            if Instant::now() >= until {
                let waited = self.deadline;
                return Err(err!(Deadline, "rank {from} sent nothing within {waited:?}, {what}"));
            }
            peers = self.shared.wait(peers);
        }
    }
}

/// Reads `bytes` as what ranks say to each other.
pub(super) fn fuzz_words(bytes: &[u8]) {
    let _: Result<Word, _> = codec::decode(bytes, HEAD_LIMIT as u64);
}

fn say(link: &Link, word: &Word, payload: Option<Buffer>) -> Result<()> {
    let head = codec::encode(word, HEAD_LIMIT as u64)
        .map_err(|e| err!(Limit, "a message does not fit into a frame").with_source(e))?;
    let frame = match payload {
        Some(bytes) => Frame::new(head, Payload(bytes)),
        None => Frame::head(head),
    };
    link.send(frame).map_err(link_error)
}

/// The ear of one rank for another; which one it is, a greeting tells where it was dialled.
struct Ear {
    shared: Arc<Shared>,
    peer: Option<usize>,
    /// Until the greeting.
    link: Option<Link>,
}

impl Accept for Ear {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        let malformed = |why: String| LinkError::Malformed { why };
        let word: Word = codec::decode(head, HEAD_LIMIT as u64)
            .map_err(|e| malformed(format!("no message of a group: {e}")))?;
        let Some(peer) = self.peer else {
            self.greeted(&word, length)?;
            return Ok(Box::new(Nothing));
        };
        let limit = match &word {
            Word::Stage => MAX_SPEC_BYTES,
            Word::Value { .. } => MAX_VALUE_BYTES,
            _ => 0,
        };
        if length > limit {
            return Err(LinkError::TooLong { what: "payload", length, limit });
        }
        if let Word::Value { index, of, number, form, .. } = &word {
            let peers = self.shared.peers();
            let in_order = *index as usize == peers[peer].part.len() && *of <= MAX_VALUES;
            let waiting =
                peers[peer].events.iter().filter(|e| matches!(e, Event::Activation(_))).count();
            if !in_order || waiting >= WINDOW {
                return Err(malformed(format!("value {index} of activation {number} out of turn")));
            }
            form.check(length, &crate::graph::Fact::unknown())
                .map_err(|e| malformed(e.to_string()))?;
        }
        let buffer = buffer_for(&self.shared.pool, length).map_err(|e| malformed(e.to_string()))?;
        Ok(Box::new(Heard { shared: Arc::clone(&self.shared), peer, word, buffer }))
    }

    fn closed(&mut self, why: LinkError) {
        let Some(peer) = self.peer else { return };
        let mut peers = self.shared.peers();
        peers[peer].link = None;
        peers[peer].gone.get_or_insert_with(|| why.to_string());
        drop(peers);
        self.shared.changed.notify_all();
    }
}

impl Ear {
    /// A rank that dialled says which one it is; what is no rank, or there already, is turned away.
    fn greeted(&mut self, word: &Word, length: u64) -> Result<(), LinkError> {
        let refused = |why: String| LinkError::Refused { why };
        let Word::Hello { protocol, world, rank } = word else {
            return Err(refused("a rank says first who it is".to_owned()));
        };
        if *protocol != PROTOCOL || length > 0 {
            return Err(refused(format!(
                "this rank speaks protocol {PROTOCOL}, the other {protocol}: use one release on all"
            )));
        }
        let mut peers = self.shared.peers();
        let (own, rank) = (self.shared.rank, *rank as usize);
        if *world as usize != peers.len() || rank <= own || rank >= peers.len() {
            let there = peers.len();
            return Err(refused(format!(
                "rank {rank} of {world} is not awaited by rank {own} of {there}"
            )));
        }
        if peers[rank].link.is_some() || peers[rank].gone.is_some() {
            return Err(refused(format!("rank {rank} has joined already")));
        }
        peers[rank].link = self.link.take();
        self.peer = Some(rank);
        let welcome = Word::Welcome { rank: own as u32 };
        if let Some(link) = &peers[rank].link {
            let _ = say(link, &welcome, None);
        }
        drop(peers);
        self.shared.changed.notify_all();
        Ok(())
    }
}

/// A frame that was dealt with by its head.
struct Nothing;

impl Incoming for Nothing {
    fn buffer(&mut self) -> &mut [u8] {
        &mut []
    }

    fn complete(self: Box<Self>) {}
}

struct Heard {
    shared: Arc<Shared>,
    peer: usize,
    word: Word,
    buffer: Buffer,
}

impl Incoming for Heard {
    fn buffer(&mut self) -> &mut [u8] {
        self.buffer.unique_bytes().unwrap_or(&mut [])
    }

    fn complete(self: Box<Self>) {
        let Self { shared, peer, word, buffer } = *self;
        let mut peers = shared.peers();
        let at = &mut peers[peer];
        match word {
            Word::Stage => at.events.push_back(Event::Stage(buffer.as_bytes().to_vec())),
            Word::Ready { device, nodes } => {
                at.events.push_back(Event::Answer(Ok((device, nodes))));
            }
            Word::Refused { error } => at.events.push_back(Event::Answer(Err(error))),
            Word::Value { number, of, name, form, .. } => {
                match form.value(buffer) {
                    Ok(value) => at.part.push((name, value)),
                    Err(e) => at.events.push_back(Event::Failed(number, (&e).into())),
                }
                if at.part.len() == of as usize {
                    let values = std::mem::take(&mut at.part);
                    at.events.push_back(Event::Activation(Activation { number, values }));
                }
            }
            Word::Failed { number, error } => at.events.push_back(Event::Failed(number, error)),
            Word::Taken { .. } => at.taken = (at.taken + 1).min(at.sent),
            Word::End => at.events.push_back(Event::End),
            Word::Hello { .. } | Word::Welcome { .. } => {}
        }
        drop(peers);
        shared.changed.notify_all();
    }
}
