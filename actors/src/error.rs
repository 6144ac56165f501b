//! Errors: of an item, of a push, of a build, of a stop.

use std::error::Error;
use std::fmt;

use crate::packet::Seq;
use crate::supervise::discard;
use crate::sync::Arc;

/// What kind of thing happened to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A stage returned an error for this item.
    Failed,
    /// A stage panicked on this item; it is rebuilt for the items after it.
    Panicked,
    /// A stage broke its contract: an output missing, given twice, or on a port it does not have.
    Contract,
    /// Dropped by the full-queue policy.
    Dropped,
    /// The item's deadline passed before its result was there.
    Expired,
    /// The caller cancelled the item.
    Cancelled,
    /// The pipeline was stopped or is being drained.
    Shutdown,
    /// The stage that held the item went down, or the pipeline as a whole failed.
    StageDown,
    /// An earlier item of the same stream failed, so the state that this item needs is lost.
    StateLost,
    /// The inputs of the item do not fit the pipeline.
    Invalid,
    /// A filter took the item out: there is no value, and nothing went wrong.
    Filtered,
    /// The item needs more of something than a stated limit allows.
    Limit,
    /// The pipeline made no progress, and its watchdog was told to give its items up.
    Stalled,
}

impl ErrorKind {
    const fn words(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Panicked => "panicked",
            Self::Contract => "broke the contract of a stage",
            Self::Dropped => "dropped",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Shutdown => "shut down",
            Self::StageDown => "stage down",
            Self::StateLost => "state lost",
            Self::Invalid => "invalid",
            Self::Filtered => "filtered",
            Self::Limit => "over a limit",
            Self::Stalled => "stalled",
        }
    }
}

/// Why an item has no value as its result.
///
/// Cheap to clone: one counter. It carries the actor and the item's number once the runtime has
/// seen it, the error that a caller's code gave as its [`source`](Error::source), and, where several
/// ports of a join or of the sink held errors, the [`others`](ItemError::others) beside the first.
///
/// ```
/// use brigade_actors::{ErrorKind, ItemError};
///
/// let error = ItemError::from_error(std::io::Error::other("disk gone"));
/// assert_eq!(error.kind(), ErrorKind::Failed);
/// assert!(error.downcast_ref::<std::io::Error>().is_some());
/// ```
#[derive(Clone)]
pub struct ItemError(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    actor: Option<Arc<str>>,
    seq: Option<Seq>,
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
    others: Vec<ItemError>,
}

impl ItemError {
    /// An error of this kind that says `message`.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            actor: None,
            seq: None,
            message: message.into(),
            source: None,
            others: Vec::new(),
        }))
    }

    /// An error of kind [`ErrorKind::Failed`].
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// What a stage returns for an item that it takes out of the flow: kind
    /// [`ErrorKind::Filtered`].
    ///
    /// ```
    /// use brigade_actors::{ErrorKind, ItemError};
    ///
    /// assert_eq!(ItemError::filtered("too small").kind(), ErrorKind::Filtered);
    /// ```
    #[must_use]
    pub fn filtered(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Filtered, message)
    }

    /// True if a filter took the item out and nothing went wrong.
    #[must_use]
    pub fn is_filtered(&self) -> bool {
        self.kind() == ErrorKind::Filtered
    }

    /// An error of kind [`ErrorKind::Failed`] that says what `source` says and keeps it.
    #[must_use]
    pub fn from_error(source: impl Error + Send + Sync + 'static) -> Self {
        Self::from_source(Arc::new(source))
    }

    /// Like [`from_error`](Self::from_error), for an error that is shared already.
    #[must_use]
    pub fn from_source(source: Arc<dyn Error + Send + Sync>) -> Self {
        Self::failed(source.to_string()).with_source(source)
    }

    /// This error with `source` as its cause.
    #[must_use]
    pub fn with_source(mut self, source: Arc<dyn Error + Send + Sync>) -> Self {
        self.edit().source = Some(source);
        self
    }

    /// This error, placed at an actor and an item where it does not name one yet.
    #[must_use]
    pub(crate) fn at(mut self, actor: Option<&Arc<str>>, seq: Seq) -> Self {
        let needs_actor = self.0.actor.is_none() && actor.is_some();
        if needs_actor || self.0.seq.is_none() {
            let inner = self.edit();
            if inner.actor.is_none() {
                inner.actor = actor.cloned();
            }
            inner.seq.get_or_insert(seq);
        }
        self
    }

    /// This error, placed at an actor where it does not name one yet.
    #[must_use]
    pub(crate) fn of(mut self, actor: &Arc<str>) -> Self {
        if self.0.actor.is_none() {
            self.edit().actor = Some(Arc::clone(actor));
        }
        self
    }

    /// This error with one more beside it; the same error twice counts once.
    #[must_use]
    pub(crate) fn chain(mut self, other: Self) -> Self {
        let known = Arc::ptr_eq(&self.0, &other.0)
            || self.0.others.iter().any(|one| Arc::ptr_eq(&one.0, &other.0));
        if !known {
            self.edit().others.push(other);
        }
        self
    }

    /// The error of several ports as one: the lowest port's, the rest beside it. A port that was
    /// filtered says something only where no port failed.
    pub(crate) fn join(errors: impl IntoIterator<Item = Self>) -> Option<Self> {
        errors.into_iter().reduce(|one, other| match (one.is_filtered(), other.is_filtered()) {
            (true, false) => other,
            (_, true) => one,
            (false, false) => one.chain(other),
        })
    }

    fn edit(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The actor at which it happened; `None` where it happened at the source or the sink.
    #[must_use]
    pub fn actor(&self) -> Option<&str> {
        self.0.actor.as_deref()
    }

    /// The item that it happened to; `None` before the runtime has seen the error.
    #[must_use]
    pub fn seq(&self) -> Option<Seq> {
        self.0.seq
    }

    /// What happened, without the actor and the item.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The errors of the higher ports, where several ports of one join or of the sink held one.
    #[must_use]
    pub fn others(&self) -> &[Self] {
        &self.0.others
    }

    /// The error that a caller's code gave, shared.
    #[must_use]
    pub fn cause(&self) -> Option<&Arc<dyn Error + Send + Sync>> {
        self.0.source.as_ref()
    }

    /// The nearest `E` among the causes of this error.
    #[must_use]
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        let mut next = self.source();
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<E>() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

impl fmt::Display for ItemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        match (&inner.actor, inner.seq) {
            (Some(actor), Some(seq)) => write!(f, "item {seq} at actor `{actor}`: ")?,
            (Some(actor), None) => write!(f, "actor `{actor}`: ")?,
            (None, Some(seq)) => write!(f, "item {seq}: ")?,
            (None, None) => {}
        }
        if inner.kind != ErrorKind::Failed {
            write!(f, "{}: ", inner.kind.words())?;
        }
        f.write_str(&inner.message)?;
        for other in &inner.others {
            write!(f, "; also {other}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ItemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemError")
            .field("kind", &self.0.kind)
            .field("actor", &self.0.actor)
            .field("seq", &self.0.seq)
            .field("message", &self.0.message)
            .field("source", &self.0.source)
            .field("others", &self.0.others)
            .finish()
    }
}

impl Error for ItemError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// What an item is told whose deadline passed in front of the pipeline.
const LATE: &str = "the deadline passed before the item was let in";

/// Why a push was not admitted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PushErrorKind {
    /// As many items are in flight as may be.
    Full,
    /// The deadline passed before the item was let in, in most cases while it waited for a credit.
    Expired,
    /// The pipeline takes nothing more: it is draining, was stopped, or failed with this cause.
    Closed(ItemError),
    /// The number of inputs is not the number of source ports.
    Arity {
        /// The source ports of the pipeline.
        expected: usize,
        /// The inputs that were given.
        given: usize,
    },
}

/// A push that was not admitted, with the inputs given back.
pub struct PushError<I> {
    kind: PushErrorKind,
    inputs: I,
}

impl<I> PushError<I> {
    pub(crate) const fn new(kind: PushErrorKind, inputs: I) -> Self {
        Self { kind, inputs }
    }

    /// Why it was not admitted.
    pub const fn kind(&self) -> &PushErrorKind {
        &self.kind
    }

    /// The inputs, as they were given.
    pub fn into_inputs(self) -> I {
        self.inputs
    }

    /// True if the pipeline was full: the same push can succeed later.
    pub const fn is_full(&self) -> bool {
        matches!(self.kind, PushErrorKind::Full)
    }

    /// The refusal as the result of an item that never entered.
    pub fn into_item_error(self) -> ItemError {
        discard(Some(self.inputs));
        match self.kind {
            PushErrorKind::Full => ItemError::new(ErrorKind::Dropped, "the pipeline is full"),
            PushErrorKind::Expired => ItemError::new(ErrorKind::Expired, LATE),
            PushErrorKind::Closed(cause) => cause,
            kind @ PushErrorKind::Arity { .. } => {
                ItemError::new(ErrorKind::Invalid, PushError::new(kind, ()).to_string())
            }
        }
    }
}

impl<I> fmt::Display for PushError<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            PushErrorKind::Full => f.write_str(
                "the pipeline is full: push again once results have come (`push` waits for that \
                     under `WhenFull::Wait`)",
            ),
            PushErrorKind::Expired => f.write_str(LATE),
            PushErrorKind::Closed(cause) => write!(f, "the pipeline takes no more items: {cause}"),
            PushErrorKind::Arity { expected, given } => {
                write!(f, "{given} inputs were given to a pipeline with {expected} source ports")
            }
        }
    }
}

impl<I> fmt::Debug for PushError<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<I> Error for PushError<I> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.kind {
            PushErrorKind::Closed(cause) => Some(cause),
            _ => None,
        }
    }
}

/// Why a topology cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two sources, two sinks or two actors have one name.
    #[error("two {what} are named `{name}`: give each a name of its own")]
    DuplicateName {
        /// `sources`, `sinks` or `actors`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An edge names a port that does not exist.
    #[error("an edge names {port}, which does not exist")]
    UnknownPort {
        /// The port, in words.
        port: String,
    },
    /// Nothing arrives at a port, so its actor could never fire.
    #[error("nothing is connected to {port}")]
    Unconnected {
        /// The port, in words.
        port: String,
    },
    /// Two edges arrive at one port.
    #[error("two edges arrive at {port}: an input takes one edge, a merge needs two inputs")]
    ConnectedTwice {
        /// The port, in words.
        port: String,
    },
    /// An actor has no input port.
    #[error("actor `{actor}` has no input port, so nothing says when it fires")]
    NoInputs {
        /// The actor.
        actor: String,
    },
    /// The actors feed each other in a ring.
    #[error("the actors {} feed each other in a ring", .actors.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" -> "))]
    Cycle {
        /// The actors of one ring, in the order of its edges.
        actors: Vec<String>,
    },
    /// An actor was given no replica, or more than any machine has use for.
    #[error("actor `{actor}` is given {replicas} replicas: give it 1 to {most}")]
    Replicas {
        /// The actor.
        actor: String,
        /// What was given.
        replicas: usize,
        /// The most that can be.
        most: usize,
    },
    /// Replicas were given to an actor that keeps something from item to item.
    #[error("actor `{actor}` is {operator}, which cannot have replicas: a map and a collect can")]
    NoReplicas {
        /// The actor.
        actor: String,
        /// What it is.
        operator: &'static str,
    },
    /// Something was said about an actor that this topology does not have.
    #[error("actor {actor} does not exist: the topology has {actors}")]
    UnknownActor {
        /// The number that was given.
        actor: usize,
        /// How many actors there are.
        actors: usize,
    },
    /// The inputs of an actor carry items of different regions, so they never match.
    #[error(
        "the inputs of actor `{actor}` do not belong together: {first}, but {second}: close the \
         inner one (`collect` after `flat_map`, `unbatch` after `batch`) before they join"
    )]
    MixedRegions {
        /// The actor.
        actor: String,
        /// What one of its ports carries, in words.
        first: String,
        /// What another one carries.
        second: String,
    },
    /// A `collect` or an `unbatch` that closes nothing.
    #[error("actor `{actor}` is {operator}, but its input carries {found}: {advice}")]
    ClosesNothing {
        /// The actor.
        actor: String,
        /// What it is.
        operator: &'static str,
        /// What its input carries, in words.
        found: String,
        /// What to do.
        advice: String,
    },
    /// Batches reach a sink or end at nobody.
    #[error("{end} takes the batches of actor `{batch}`: put an `unbatch` before it")]
    OpenBatch {
        /// The batching actor.
        batch: String,
        /// The sink or actor, in words.
        end: String,
    },
    /// The children of a fan-out reach a sink beside other sinks, so the result could not be told
    /// apart.
    #[error(
        "{sink} takes the children of actor `{fan_out}` beside other sinks: put a `collect` before \
         it, or leave it the only sink"
    )]
    OpenChildren {
        /// The fan-out.
        fan_out: String,
        /// The sink, in words.
        sink: String,
    },
    /// An operator has a number of ports that it cannot work with.
    #[error("actor `{actor}` is {operator}, which takes {wanted}")]
    Ports {
        /// The actor.
        actor: String,
        /// What it is.
        operator: &'static str,
        /// The ports that it takes, in words.
        wanted: &'static str,
    },
    /// Fan-outs are nested too deep.
    #[error("actor `{actor}` fans out inside {limit} other fan-outs, which is as deep as they go")]
    TooDeep {
        /// The innermost fan-out.
        actor: String,
        /// How deep they go.
        limit: usize,
    },
    /// A batch is to be tried again member by member, but not only one `unbatch` closes it.
    #[error(
        "actor `{batch}` tries the members of a failed batch singly, so exactly one `unbatch` must \
         close it and every actor inside must lead there"
    )]
    RetryEnds {
        /// The batching actor.
        batch: String,
    },
    /// A device was given no lane, so its actors could never compute.
    #[error("device `{device}` has no lane: give it at least one")]
    NoLanes {
        /// The device.
        device: String,
    },
}

/// Why a pipeline could not be spawned. Everything that had been started was stopped again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The factory of an actor failed or panicked; failures of further actors are in
    /// [`ItemError::others`].
    #[error("actor `{actor}` could not be built: {}", .error.message())]
    Stage {
        /// The actor.
        actor: String,
        /// What its factory said.
        #[source]
        error: ItemError,
    },
    /// The operating system refused a thread.
    #[error("no thread for actor `{actor}`: {error}")]
    Thread {
        /// The actor.
        actor: String,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// Some factories did not return in time; their threads were left behind.
    #[error("these actors were not built in time: {}", .actors.join(", "))]
    Timeout {
        /// The actors that were still being built.
        actors: Vec<String>,
    },
    /// The CPU budget of the system has not as many threads left as the pipeline asks for, and its
    /// policy is to refuse.
    #[error(
        "pipeline `{pipeline}` asks for {asked} CPU threads, and {} of the {budget} of the system \
         are left: give its actors fewer threads or lanes that they share, or raise the budget",
        .budget.saturating_sub(*.used)
    )]
    CpuBudget {
        /// The pipeline.
        pipeline: String,
        /// The threads that its devices would compute on at once.
        asked: usize,
        /// The threads that other pipelines hold.
        used: usize,
        /// The threads of the system.
        budget: usize,
    },
    /// An option asks for more than there can be of what is made ready, or counted, for each.
    #[error("{option}({given}): at most {most}")]
    TooMany {
        /// The option.
        option: &'static str,
        /// What was given.
        given: usize,
        /// The most that can be.
        most: usize,
    },
    /// An option has a value that cannot work, or contradicts another one.
    #[error("{0}")]
    Options(String),
}

fn left_words(left: usize) -> String {
    match left {
        0 => String::new(),
        1 => "; 1 item was still in flight".into(),
        left => format!("; {left} items were still in flight"),
    }
}

/// A drain that did not finish: what was left when its deadline passed or the pipeline stopped.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the drain did not finish: {reason}{}", left_words(*.left))]
#[non_exhaustive]
pub struct DrainError {
    /// Items that were in flight when the drain gave up, or that a stop gave up.
    pub left: usize,
    /// Why it gave up.
    pub reason: String,
}
