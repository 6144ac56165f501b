//! Numbers, firings and packets.

use std::fmt;
use std::time::Instant;

use crate::error::ItemError;
use crate::item::Item;
use crate::sync::Arc;

/// The number of an item: given by the source at admission, unique in the life of a pipeline.
///
/// Numbers rise in the order in which items were admitted. Results do not have to come in that
/// order; only a stream restores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(u64);

impl Seq {
    /// The item with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number itself.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One complete set of inputs, handed to [`Stage::submit`](crate::Stage::submit).
#[derive(Debug)]
#[non_exhaustive]
pub struct Firing<P> {
    /// The item that fires.
    pub seq: Seq,
    /// One payload per input port of the actor, in port order.
    pub inputs: Vec<P>,
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
        Self { seq, inputs, stream: None, deadline: None }
    }
}

/// What an edge delivers for one item: its payload, or the error that it became upstream.
pub(crate) type Delivery<P> = Result<P, ItemError>;

/// An item that arrived in full.
pub(crate) struct Work<P> {
    pub(crate) item: Arc<Item<P>>,
    pub(crate) inputs: Result<Vec<P>, ItemError>,
}

/// What lies in an actor's inbox.
pub(crate) enum Message<P> {
    /// The whole input of an actor with one port.
    Packet(Arc<Item<P>>, Delivery<P>),
    /// Every port of a join holds this item: its inputs lie in the item's cells.
    Ready(Arc<Item<P>>),
    /// An item whose inputs a replica had gathered already when its stage went down.
    Gathered(Work<P>),
    /// Look at your flags, and ask your stage what it has finished.
    Wake,
}
