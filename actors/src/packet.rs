//! Numbers, firings and packets.

use std::fmt;
use std::time::Instant;

use crate::error::ItemError;
use crate::item::Item;
use crate::supervise::discard;
use crate::sync::Arc;

/// The number of an item: given by the source at admission, unique in the life of a pipeline.
///
/// Numbers rise in the order in which items were admitted. Results do not have to come in that
/// order; only a stream restores it. A child that a fan-out made of an item has the number of that
/// item and its own place among the children: `7.2` is the third child of item 7, `7.2.0` the first
/// child of that one. A batch has the number of its first member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq {
    number: u64,
    path: [u32; Self::NESTING],
    depth: u8,
}

impl Seq {
    /// How deep fan-outs can be nested.
    pub const NESTING: usize = 3;

    /// The item with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self { number, path: [0; Self::NESTING], depth: 0 }
    }

    /// The number that the source gave.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.number
    }

    /// The places among the children of each fan-out that the item comes from, outermost first:
    /// empty for an item that the source numbered.
    ///
    /// ```
    /// assert!(brigade_actors::Seq::new(7).path().is_empty());
    /// ```
    #[must_use]
    pub fn path(&self) -> &[u32] {
        self.path.get(..usize::from(self.depth)).unwrap_or(&self.path)
    }

    /// Child `index` of this item. Deeper than [`NESTING`](Self::NESTING) it is the item itself:
    /// the topology refuses such a fan-out.
    pub(crate) fn child(mut self, index: u32) -> Self {
        if let Some(place) = self.path.get_mut(usize::from(self.depth)) {
            *place = index;
            self.depth += 1;
        }
        self
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)?;
        self.path().iter().try_for_each(|index| write!(f, ".{index}"))
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seq({self})")
    }
}

/// One complete set of inputs, handed to [`Stage::submit`](crate::Stage::submit).
#[derive(Debug)]
#[non_exhaustive]
pub struct Firing<P> {
    /// The item that fires.
    pub seq: Seq,
    /// One payload per input port of the actor, in port order. For a
    /// [`batch`](crate::Operator::batch), one payload per member, in the order of arrival; for a
    /// [`collect`](crate::Operator::collect), nothing.
    pub inputs: Vec<P>,
    /// For a [`collect`](crate::Operator::collect), what became of each child, in the order in which
    /// the fan-out gave them; else empty.
    pub children: Vec<Result<P, ItemError>>,
    /// The items that the firing stands for: the members of a batch, else 1.
    pub members: usize,
    /// The stream of carried state that the item belongs to, if any.
    pub stream: Option<u64>,
    /// The instant at which the item's result has lost its use. The runtime does not start a
    /// firing that is late; a stage may use this to give up earlier.
    pub deadline: Option<Instant>,
}

impl<P> Firing<P> {
    /// A firing of item `seq` with these inputs: what the runtime would hand over, for calling a
    /// stage by hand.
    #[must_use]
    pub const fn new(seq: Seq, inputs: Vec<P>) -> Self {
        Self { seq, inputs, children: Vec::new(), members: 1, stream: None, deadline: None }
    }
}

/// What an edge delivers for one item: its payload, or the error that it became upstream.
pub(crate) type Delivery<P> = Result<P, ItemError>;

/// What a message says of its item, so that the taker need not look: an item changes hands between
/// threads, and each of its cache lines that the taker reads or writes does so with it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamp {
    /// The number that the source gave.
    pub(crate) number: u64,
    /// When the item was put onto the edge, in nanoseconds since the spawn; 0 if it lies on none.
    pub(crate) at_ns: u64,
}

/// An item that arrived in full.
pub(crate) struct Work<P> {
    pub(crate) item: Arc<Item<P>>,
    pub(crate) seq: Seq,
    /// When it was put onto the one edge that it lies in until it is fired, or [`Work::JOINED`]; 0 if
    /// it lies in none any more.
    pub(crate) since_ns: u64,
    pub(crate) inputs: Result<Vec<P>, ItemError>,
    /// What became of the item's children, for a collect.
    pub(crate) children: Vec<Delivery<P>>,
    /// How often it was tried before.
    pub(crate) tries: u32,
}

impl<P> Work<P> {
    /// It lies in the edges of a join until it is fired, and has the stamps of them.
    pub(crate) const JOINED: u64 = u64::MAX;

    /// Drops its payloads, whatever they do.
    pub(crate) fn discard(self) {
        discard(self.inputs.into_iter().flatten());
        discard(self.children.into_iter().flatten());
    }
}

/// What lies in an actor's inbox.
pub(crate) enum Message<P> {
    /// The whole input of an actor with one port.
    Packet(Arc<Item<P>>, Delivery<P>, Stamp),
    /// Every port of a join holds this item of that number, or all its children have come to a
    /// collect: its inputs lie in the item's cells.
    Ready(Arc<Item<P>>, u64),
    /// An item whose inputs a replica had gathered already when its stage went down.
    Gathered(Box<Work<P>>),
    /// A batch failed whose members are to be tried again, each alone.
    Retry(Arc<Item<P>>),
    /// Look at your flags, and ask your stage what it has finished.
    Wake,
}

impl<P> Message<P> {
    /// All children of an item have come to a collect.
    pub(crate) fn ready(item: &Arc<Item<P>>) -> Self {
        Self::Ready(Arc::clone(item), item.seq().number())
    }

    /// Drops it, whatever its payloads do.
    pub(crate) fn discard(self) {
        match self {
            Self::Packet(_, delivery, _) => discard(delivery),
            Self::Gathered(work) => work.discard(),
            Self::Ready(..) | Self::Retry(_) | Self::Wake => {}
        }
    }
}
